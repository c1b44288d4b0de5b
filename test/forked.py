"""Commands `fa4c ...` in processes of their own, each forked from one that has imported what commands import: as fresh ones are, without
the seconds that imports take.

    server = forked.Server(forked.LIGHT); status = forked.ask(server.address, ["opt", ...], [0, 1, 2]); server.stop()

The command has the given files as standard input, output and error. `forked.py ADDRESS opt ...` asks from another process, as lit does.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress

POSSIBLE = hasattr(os, "fork") and hasattr(socket, "send_fds")  # not on Windows
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIGHT = ("fa4c.cli.opt", "fa4c.cli.compile", "fa4c.lowering.compile", "difflib")
HEAVY = (*LIGHT, "numpy", "torch", "fa4c.cli.run", "fa4c.cli.check", "fa4c.cli.explain", "fa4c.explain", "fa4c.cli.tune",
         "fa4c.runtime.artifact", "fa4c.runtime.check", "fa4c.runtime.execute", "fa4c.runtime.emulated", "fa4c.runtime.reference",
         "fa4c.tune.candidates", "fa4c.tune.result")  # fmt: skip


class Server:
    """Is there until `stop`, or the end of the process that made it. `modules`: what it imports beforehand."""

    def __init__(self, modules):
        self._folder = tempfile.TemporaryDirectory(prefix="fa4c-test-")
        self.address = os.path.join(self._folder.name, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(64)
            self._process = subprocess.Popen([sys.executable, __file__, "--serve", str(listener.fileno()), *modules], cwd=ROOT,
                                             stdin=subprocess.PIPE, pass_fds=[listener.fileno()])  # fmt: skip
        atexit.register(self.stop)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()


def ask(address: str, args, files, *, env=None, cwd=None, timeout=570) -> int:
    """The exit status of `fa4c args`."""
    request = {"args": list(map(str, args)), "env": dict(os.environ if env is None else env), "cwd": os.fspath(cwd or os.getcwd())}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        socket.send_fds(connection, [b"."], files)
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(_whole(connection))


def serve(listener: socket.socket) -> list[str]:
    """Forks for each request. Returns in the process that is to be the command, with its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = select.select([listener, 0], [], [])[0]
        if 0 in ready:  # whoever started this is gone
            os._exit(0)
        connection = listener.accept()[0]
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            files = socket.recv_fds(connection, 1, 3)[1]
            request = json.loads(_whole(connection))
            command = os.fork()
            if command == 0:
                connection.close()
                _become(files, request["env"], request["cwd"])
                return request["args"]
            for file in files:
                os.close(file)
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))
            os._exit(0)
        connection.close()


def _become(files, env, cwd) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)


def _whole(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def main(first: str, *rest: str) -> int | None:
    if first != "--serve":
        status = ask(first, rest, [0, 1, 2])
        if status < 0:
            os.kill(os.getpid(), -status)
        return status
    sys.path[0] = ROOT
    for module in rest[1:]:
        with suppress(ImportError):  # the command says what is missing
            importlib.import_module(module)
    gc.freeze()
    _end_as(serve(socket.socket(fileno=int(rest[0]))))


def _end_as(args) -> None:
    """The command, ended as Python ends one, but for the clearing of all modules, which takes longer than most commands."""
    from fa4c.cli.main import main

    try:
        status = main(args) or 0
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
