"""fa4c: a compiler for attention.

`import fa4c` is light: neither torch nor MLIR nor the kernel DSL is imported. torch comes with the first call, the compiler with the
first kernel that no cache holds.
"""

__version__ = "0.1.0"
__all__ = ["attention", "compile", "load", "Artifact", "__version__"]

_LAZY = {"attention": "api", "compile": "api", "load": "runtime.artifact", "Artifact": "runtime.artifact"}


def __getattr__(name: str):
    import importlib

    if name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value  # the next access does not come here
        return value
    if name in ("runtime", "frontend", "ir", "passes", "lowering", "targets"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'fa4c' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
