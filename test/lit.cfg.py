"""lit: runs the RUN lines of every test/**/*.mlir."""

import os
import sys
import tempfile

import lit.formats

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(root, "test"))
import forked  # noqa: E402

# A command is forked from one process, which ends with lit: to import the bindings takes longer than most commands.
fa4c = f'-I -S "{forked.__file__}" "{forked.Server(forked.LIGHT).address}"' if forked.POSSIBLE else "-m fa4c.cli"

config.name = "fa4c"  # noqa: F821 (lit puts `config` here)
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.excludes = ["inputs"]  # noqa: F821
config.test_source_root = os.path.dirname(os.path.abspath(__file__))  # noqa: F821
config.test_exec_root = os.path.join(tempfile.gettempdir(), f"fa4c-lit-{os.getpid()}")  # noqa: F821

# The interpreter that runs lit is the one that runs fa4c, whatever is first on PATH; the checkout need not be installed.
config.environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])  # noqa: F821
config.environment["PYTHONPATH"] = root  # noqa: F821
config.substitutions += [("%fa4c", f'"{sys.executable}" {fa4c}'), ("%examples", os.path.join(root, "examples"))]  # noqa: F821
