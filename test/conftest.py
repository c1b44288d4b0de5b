"""What tests share: the command line as a user starts it, and parsing of its diagnostics."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import forked  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

# The contract's form: a place, `error:`, then notes that say why and how to fix it.
PLACED = re.compile(r"^\S+:\d+:\d+: error: \S.*")
ANY_ERROR = re.compile(r"^\S+: error: \S.*")
USAGE = re.compile(r"^fa4c( \w+)?: error: \S.*")  # ours, or argparse's, which names the sub-command


class Cli:
    """Runs `fa4c ...`; whatever happens, a user sees no traceback.

    Each command is a process of its own, forked from one that has imported all (forked.py); `fresh`, or where `env` changes what is
    imported, it is started as a user starts it.
    """

    server = None

    def __call__(self, *args, stdin: str | None = None, env: dict | None = None, cwd=None, traceback: bool = False, fresh: bool = False):
        run = self._fresh if fresh or "PYTHONPATH" in (env or {}) or not forked.POSSIBLE else self._forked
        done = run(list(map(str, args)), stdin, {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, cwd)
        assert traceback or "Traceback" not in done.stderr, done.stderr
        return done

    def _fresh(self, args, stdin, env, cwd):
        return subprocess.run([sys.executable, "-m", "fa4c.cli", *args], input=stdin, capture_output=True, text=True, cwd=cwd, env=env,
                              timeout=570)

    def _forked(self, args, stdin, env, cwd):
        self.server = self.server or forked.Server(forked.HEAVY)
        with contextlib.ExitStack() as files:
            given, out, err = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
            given.write(stdin or "")
            given.seek(0)
            status = forked.ask(self.server.address, args, [file.fileno() for file in (given, out, err)], env=env, cwd=cwd)
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(args, status, out.read(), err.read())

    def ok(self, *args, **kwargs) -> str:
        done = self(*args, **kwargs)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *args, status: int = 1, placed: bool = False, **kwargs) -> str:
        """The text on stderr of a command that must fail with `status`, its form checked; stdout must be empty."""
        done = self(*args, **kwargs)
        assert done.returncode == status, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
        assert done.stdout == "", done.stdout
        form = PLACED if placed else USAGE if status == 2 else ANY_ERROR
        assert any(form.match(line) for line in done.stderr.splitlines()), done.stderr
        return done.stderr


@pytest.fixture(scope="session")
def fa4c_cli():
    cli = Cli()
    yield cli
    if cli.server is not None:
        cli.server.stop()


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def examples() -> pathlib.Path:
    return EXAMPLES


@pytest.fixture
def without(tmp_path_factory):
    """`env=without("cutlass")`: an environment for `fa4c_cli` in which these packages cannot be imported.

    Shadowing a package by a file on PYTHONPATH would not do: nvidia-cutlass-dsl puts itself first on the path.
    """

    def environment(*packages: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("blocked")
        (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n")
        return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}

    return environment
