"""Float rules of blocks whose last bit or sign of zero NumPy's own operators miss; they come before those of `arithmetic`.

Minimum and maximum order -0 below +0, float64 rounds as its instruction says, and 16-bit `fma` rounds once. Whatever a rule here does
not take goes to the compiler's rule of the same name.
"""

from .arithmetic import BlockCompiler

_DIRECTED = ("rm", "rp", "rz")


def install():
    for name, rule in (("add", _add), ("sub", _sub), ("mul", _mul), ("fma", _fma), ("max", _max), ("min", _min)):
        _before(f"op_{name}", rule)


def _before(name, rule):
    general = getattr(BlockCompiler, name)

    def op(self, ins, p, ops):
        if not rule(self, ins, p, ops):
            general(self, ins, p, ops)

    setattr(BlockCompiler, name, op)


def _float64(c, p, ops, expr):
    """A directed float64 instruction as `expr`; False for any other."""
    mode = next((x for x in p if x in _DIRECTED), None)
    if mode is None or p[-1] != "f64":
        return False
    a, b = (c.arr(x, "f8") for x in ops[1:3])
    c.put(ops[0], expr.format(a=a, b=b, mode=mode), "f8")
    return True


def _add(c, ins, p, ops):
    return _float64(c, p, ops, "nx.add64_directed({a}, {b}, {mode!r})")


def _sub(c, ins, p, ops):
    return _float64(c, p, ops, "nx.add64_directed({a}, -{b}, {mode!r})")


def _mul(c, ins, p, ops):
    return _float64(c, p, ops, "nx.mul64_directed({a}, {b}, {mode!r})")


def _fma(c, ins, p, ops):
    t, relu = p[-1], "relu" in p
    if t == "f64":
        mode = next((x for x in p if x in _DIRECTED), "rn")
        a, b, z = (c.arr(x, "f8") for x in ops[1:])
        c.put(ops[0], f"nx.fma64({a}, {b}, {z}, {mode!r})", "f8")
    elif t in ("f16x2", "bf16x2"):
        a, b, z = (c.arr(x, "u4") for x in ops[1:])
        c.put(ops[0], f"nx.fma16x2({t!r}, {relu}, {a}, {b}, {z})", "u4")
    elif t in ("f16", "bf16") and "f32" not in p:
        a, b, z = (c.arr(x, "u2") for x in ops[1:])
        c.put(ops[0], f"nx.fma16({t!r}, {relu}, {a}, {b}, {z}).astype(u2)", "u2")
    else:
        return False
    return True


def _minmax(c, ins, p, fn, nanfn):
    if p[-1] not in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"):
        return False
    c._minmax(ins, p, fn, nanfn)
    return True


def _max(c, ins, p, ops):
    return _minmax(c, ins, p, "nx.fmax", "nx.maximum")


def _min(c, ins, p, ops):
    return _minmax(c, ins, p, "nx.fmin", "nx.minimum")
