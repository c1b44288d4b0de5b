"""Basic blocks of PTX to Python functions over arrays of 32 lanes.

One block becomes one function `block(F, R, m)`: F is the fragment of the warp that runs it, R the warp's register list, m the
active lanes. It comes in two forms: all living lanes active (writes need no mask), and some (writes are merged). Registers
live in R as arrays of any type of the right width; inside a function they are local variables, and only those that live on
go back to R. Instructions that touch memory or synchronise are calls into the machine (memory.py, tma.py, ...).
"""

import contextlib

import numpy as np

from . import half as hf
from . import numerics as nx
from . import rounding as rd
from .errors import EmulatorError
from .parser import Imm, Mem, Not, Reg, Sink, Special, Symbol, Vec

DTYPE = {
    "u8": "u1",
    "s8": "i1",
    "b8": "u1",
    "u16": "u2",
    "s16": "i2",
    "b16": "u2",
    "f16": "u2",
    "bf16": "u2",
    "u32": "u4",
    "s32": "i4",
    "b32": "u4",
    "f32": "f4",
    "f16x2": "u4",
    "bf16x2": "u4",
    "u64": "u8",
    "s64": "i8",
    "b64": "u8",
    "f64": "f8",
    "f32x2": "u8",
    "pred": "?",
    "tf32": "u4",
}
REG_DTYPE = {1: "?", 16: "u2", 32: "u4", 64: "u8"}
SIZE = {"?": 1, "u1": 1, "i1": 1, "u2": 2, "i2": 2, "u4": 4, "i4": 4, "f4": 4, "u8": 8, "i8": 8, "f8": 8}
COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
    "equ": "==",
    "neu": "!=",
    "ltu": "<",
    "leu": "<=",
    "gtu": ">",
    "geu": ">=",
}


class Unsupported(Exception):
    """An instruction that this emulator does not know; turned into an EmulatorError with its line."""


class Blocks:
    """Writes the function of one block; `env` collects the constants that the text names."""

    modifiers: dict = {}  # of an opcode, those that its rule heeds

    def __init__(self, kernel, block, full, env, memory_ops, file):
        self.k, self.b, self.full, self.env, self.mem, self.file = kernel, block, full, env, memory_ops, file
        self.lines, self.views, self.dirty, self.n = [], {}, {}, 0

    # --- plumbing -----------------------------------------------------------------------------------------------
    def source(self, name):
        for ins in self.k.instrs[self.b.first : self.b.last]:
            self.instr(ins)
        live = self.b.live_out
        stores = [f"R[{r}] = {v}" for r, v in self.dirty.items() if live >> r & 1]
        tail = self.lines.pop() if self.lines and self.lines[-1].startswith("return ") else None
        body = self.lines + stores + ([tail] if tail else [])
        return f"def {name}(F, R, m):\n" + "\n".join("    " + x for x in body or ["pass"]) + "\n"

    def emit(self, line):
        self.lines.append(line)

    def fresh(self):
        self.n += 1
        return f"t{self.n}"

    def let(self, expr):
        v = self.fresh()
        self.emit(f"{v} = {expr}")
        return v

    def const(self, value, dt):
        """A NumPy scalar constant by name."""
        key = _key("c", value, dt)
        if key not in self.env:
            self.env[key] = _scalar(value, dt)
        return key

    def const_array(self, value, dt):
        key = _key("a", value, dt)
        if key not in self.env:
            a = np.full(32, _scalar(value, dt))
            a.setflags(write=False)
            self.env[key] = a
        return key

    # --- operands -------------------------------------------------------------------------------------------------
    def reg(self, index, dt):
        """A register as an array of type dt; a narrower dt truncates, a wider one zero-extends."""
        views = self.views.setdefault(index, {})
        if dt in views:
            return views[dt]
        bits = self.k.reg_bits[index]
        if bits not in REG_DTYPE:
            raise Unsupported(f".b{bits} registers")
        own = REG_DTYPE[bits]
        if not views:
            v = f"r{index}"
            self.emit(f"{v} = R[{index}]")
            views[None] = v
        any_view = next(iter(views.values()))
        if SIZE[dt] != SIZE[own] or (own == "?") != (dt == "?"):
            if own == "?":
                raise Unsupported("a predicate as a number")
            base = views.get(own) or self.reg(index, own)
            unsigned = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}[SIZE[dt]]
            v = self.let(f"{base}.astype({unsigned})" + (f".view({dt})" if dt != unsigned else ""))
        elif own == "?":
            return any_view
        else:
            v = f"r{index}_{dt}"
            self.emit(f"{v} = {any_view}.view({dt})")
        views[dt] = v
        return v

    def val(self, op, dt):
        """An operand as an array or a scalar of type dt."""
        if isinstance(op, Reg):
            return self.reg(op.index, dt)
        if isinstance(op, Imm):
            return self.const(_imm(op, dt), dt)
        return self.arr(op, dt)

    def arr(self, op, dt):
        """An operand as an array of type dt."""
        if isinstance(op, Reg):
            return self.reg(op.index, dt)
        if isinstance(op, Imm):
            return self.const_array(_imm(op, dt), dt)
        if isinstance(op, Special):
            v = self.let(f"special(F, {op.name!r})")
            return v if dt == "u4" else self.let(f"{v}.astype({dt})")
        if isinstance(op, Symbol):
            v = self.let(f"symbol(F, {op.name!r})")
            return v if dt == "u8" else self.let(f"{v}.astype({dt})")
        if isinstance(op, Mem) and isinstance(op.base, Symbol):
            return self.let(f"(symbol(F, {op.base.name!r}) + u8t({op.offset})).astype({dt})")
        if isinstance(op, Not):
            return self.let(f"~{self.arr(op.item, '?')}")
        if isinstance(op, Vec):
            return self.pack(op, dt)
        raise Unsupported(f"operand {op}")

    def pack(self, vec, dt):
        n, size = len(vec.items), SIZE[dt]
        small = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}[size // n]
        parts = [f"{self.arr(i, small)}.astype(u{size})" for i in vec.items]
        expr = " | ".join(p if k == 0 else f"({p} << {self.const(k * 8 * size // n, f'u{size}')})" for k, p in enumerate(parts))
        v = self.let(expr)
        return v if dt[0] == "u" else self.let(f"{v}.view({dt})")

    # --- results --------------------------------------------------------------------------------------------------
    def put(self, op, expr, dt):
        """Assign an expression of type dt to a destination operand, masked as the block and the guard demand."""
        if isinstance(op, Sink):
            return
        if isinstance(op, Vec):
            v, n, size = self.let(expr), len(op.items), SIZE[dt]
            small = {1: "u1", 2: "u2", 4: "u4"}[size // n]
            w = v if dt[0] == "u" else self.let(f"{v}.view(u{size})")
            for k, item in enumerate(op.items):
                if not isinstance(item, Sink):
                    self.put(
                        item,
                        f"({w} >> {self.const(k * 8 * size // n, f'u{size}')}).astype({small})" if k else f"{w}.astype({small})",
                        small,
                    )
            return
        if not isinstance(op, Reg):
            raise Unsupported("this destination")
        index = op.index
        own = REG_DTYPE[self.k.reg_bits[index]]
        if SIZE[own] != SIZE[dt] or (own == "?") != (dt == "?"):
            if own == "?" or dt == "?":
                raise Unsupported("a predicate mixed with a number")
            wide = "i" if dt[0] == "i" else "u"
            if dt[0] == "f":
                expr, dt = f"({expr}).view(u{SIZE[dt]})", f"u{SIZE[dt]}"
            expr = f"({expr}).astype({wide}{SIZE[own]})"
            dt = f"{wide}{SIZE[own]}"
        cond = self.cond()
        if cond:
            expr = f"where({cond}, {expr}, {self.reg(index, dt)})"
        v = self.let(expr)
        self.views[index] = {dt if own != "?" else "?": v}
        self.dirty[index] = v

    def cond(self):
        """The mask expression under which the current instruction writes, or None."""
        return self.guard or (None if self.full else "m")

    def mask_arg(self):
        return self.guard or "None"

    # --- instructions ---------------------------------------------------------------------------------------------
    def instr(self, ins):
        self.guard = None
        p = ins.parts
        with decoding(ins, self.file):
            if p[0] == "bra":
                if ins.guard is not None:
                    g = self.reg(ins.guard.index, "?")
                    self.emit(f"return ~{g}" if ins.guard_neg else f"return {g}")
                return
            if p[0] in ("ret", "exit"):
                if ins.guard is not None:
                    g = self.reg(ins.guard.index, "?")
                    self.emit(f"return ~{g}" if ins.guard_neg else f"return {g}")
                return
            if ins.guard is not None:
                g = self.reg(ins.guard.index, "?")
                g = f"~{g}" if ins.guard_neg else g
                self.guard = self.let(g if self.full else f"{g} & m")
                if self.full:
                    self.guard = self.let(f"{self.guard} & m")
            if p[0] in self.mem:
                self.mem[p[0]](self, ins)
                return
            method = getattr(self, "op_" + p[0], None)
            if method is None:
                raise Unsupported(f"instruction {ins.opcode}")
            unknown = [x for x in p[1:] if x not in DTYPE and x not in self.modifiers.get(p[0], (x,))]
            if unknown:
                raise Unsupported(f"the modifier .{unknown[0]}")
            method(ins, p, ins.ops)


@contextlib.contextmanager
def decoding(ins, file):
    """Turns what goes wrong in decoding `ins` into an `EmulatorError` at its line."""
    try:
        yield
    except Unsupported as e:
        raise EmulatorError(
            f"{e} is not supported",
            file=file,
            line=ins.line,
            why=f"the instruction is {ins.opcode}",
            fix="docs/emulator.md lists what is modelled; please report kernels that need more",
        ) from None
    except (KeyError, IndexError, ValueError, AttributeError) as e:
        raise EmulatorError(
            f"cannot decode {ins.opcode}",
            file=file,
            line=ins.line,
            why=f"{type(e).__name__}: {e}",
            fix="check the operand count and types against the PTX ISA",
        ) from e


def _key(prefix, value, dt):
    """A Python name for a constant, distinct for distinct bits."""
    if isinstance(value, int):
        return f"{prefix}_{dt.replace('?', 'p')}_{value:x}".replace("-", "n")
    return f"{prefix}_{dt}_f{np.float64(value).view('u8'):x}"


def _imm(op, dt):
    """The value of an immediate for a type: float bits become numbers, numbers become float bits where needed."""
    v = op.value
    if dt == "f4":
        if op.width == 64:
            return float(np.uint64(v).view("f8"))
        return float(np.uint32(v & 0xFFFFFFFF).view("f4")) if op.width == 32 else float(v)
    if dt == "f8":
        if op.width == 64:
            return float(np.uint64(v).view("f8"))
        return float(np.uint32(v).view("f4")) if op.width == 32 else float(v)
    return v


def _scalar(value, dt):
    if dt == "?":
        return np.bool_(value != 0)
    if dt[0] == "f":
        return np.dtype(dt).type(value)
    bits = 8 * SIZE[dt]
    v = int(value) & ((1 << bits) - 1)
    if dt[0] == "i" and v >> (bits - 1):
        v -= 1 << bits
    return np.dtype(dt).type(v)


def base_env():
    """Names that every generated function may use."""
    return {
        "nx": nx,
        "hf": hf,
        "rd": rd,
        "where": np.where,
        "fma32": nx.fma32,
        "ftz": nx.ftz,
        "sat": nx.sat,
        "ex2": nx.ex2,
        "lg2": nx.lg2,
        "fmax": np.fmax,
        "fmin": np.fmin,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "abs": np.abs,
        "npsqrt": np.sqrt,
        "npsin": np.sin,
        "npcos": np.cos,
        "nptanh": np.tanh,
        "copysign": np.copysign,
        "rint": np.rint,
        "trunc": np.trunc,
        "floor": np.floor,
        "ceil": np.ceil,
        "one": np.float32(1),
        "zero": np.float32(0),
        "asf4": lambda x: np.asarray(x, np.float32),
        "u8t": np.uint64,
        "relu": nx.relu,
        "u1": nx.U1,
        "u2": nx.U2,
        "u4": nx.U4,
        "u8": nx.U8,
        "i1": nx.I1,
        "i2": nx.I2,
        "i4": nx.I4,
        "i8": nx.I8,
        "f4": nx.F4,
        "f8": nx.F8,
    }
