"""A kernel ready to run: blocks, compiled functions, decoded machine operations. Independent of any launch, so it is cached."""

import hashlib

from . import cfg, codegen, memory
from .arithmetic import BlockCompiler
from .counters import counters_of
from .errors import EmulatorError
from .ops import OPS
from .parser import STRONG, TYPE_BYTES, Imm, Kernel, Mem, Module, Reg, Sink, Symbol, Vec, parse, space_of

_CACHE = {}
MATRIX = ("wgmma", "tcgen05", "ldmatrix", "stmatrix", "mma")


def load_program(ptx, entry, file):
    """The program of one entry, from a small cache keyed by the text."""
    key = (hashlib.sha256(ptx.encode()).digest(), entry, file)
    if key not in _CACHE:
        if len(_CACHE) > 16:
            _CACHE.pop(next(iter(_CACHE)))
        module = parse(ptx, file)
        if entry is None and len(module.kernels) == 1:
            entry = next(iter(module.kernels))
        if entry not in module.kernels:
            raise EmulatorError(f"no kernel {entry!r} in the module", file=file, line=1, fix="entries: " + ", ".join(module.kernels))
        _CACHE[key] = Program(module, module.kernels[entry])
    return _CACHE[key]


class Program:
    def __init__(self, module: Module, kernel: Kernel):
        self.module, self.kernel, self.file = module, kernel, module.file
        self.ops = OPS
        self.symbols = {v.name: v for v in module.variables + kernel.variables}
        self.params = {p.name: p for p in kernel.params}
        self.blocks = cfg.build(kernel, self.is_op)
        self.env = codegen.base_env()
        self.env.update(
            ld=memory.load,
            st=memory.store,
            to_generic=memory.to_generic,
            from_generic=memory.from_generic,
            is_space=memory.is_space,
            special=special,
            symbol=symbol,
            ldparam=load_param,
            mapa=mapa,
            noop=lambda *a: None,
        )
        self.uses_wgmma = any(i.parts[0] == "wgmma" for i in kernel.instrs)
        self.sources = {}
        self._check_known()
        self.code = [Code(self, b) for b in self.blocks]
        for b in self.blocks:
            if b.op:
                self.code[b.id].op = self._decode(kernel.instrs[b.first])

    def is_op(self, ins):
        p = ins.parts
        if p[0] in ("ld", "st"):
            return any(x in STRONG for x in p) or "async" in p
        return p[0] in self.ops

    def _check_known(self):
        """Refuse unknown instructions at load time, by name and line."""
        for ins in self.kernel.instrs:
            base = ins.parts[0]
            if base in self.ops or base in MEMORY_OPS or base in ("bra", "ret", "exit") or hasattr(BlockCompiler, "op_" + base):
                continue
            raise EmulatorError(
                f"unknown instruction {ins.opcode}",
                file=self.file,
                line=ins.line,
                why="the emulator has no rule for it",
                fix="docs/emulator.md lists what is modelled",
            )
        for ins in self.kernel.instrs:
            self._check_operands(ins)
        for b in self.blocks:
            if not b.op:
                # Generating the text finds operand and type errors before anything runs.
                self.sources[b.id] = BlockCompiler(self.kernel, b, True, self.env, MEMORY_OPS, self.file).source(f"block{b.id}")

    def _check_operands(self, ins):
        """Names must be defined; a matrix operation's registers have 32 bits."""
        for op in ins.ops:
            inner = op.items if isinstance(op, Vec) else (op,)
            for x in inner:
                name = x.base if isinstance(x, Mem) else x
                if isinstance(name, Symbol) and name.name not in self.symbols and name.name not in self.params:
                    raise EmulatorError(
                        f"{name.name} is not defined", file=self.file, line=ins.line, why="it is no register, variable or parameter"
                    )
                bits = self.kernel.reg_bits[x.index] if isinstance(x, Reg) else 32
                if bits != 32 and isinstance(op, Vec) and ins.parts[0] in MATRIX:
                    what = f"{ins.opcode} with a register of {bits} bits"
                    raise EmulatorError(what, file=self.file, line=ins.line, why="it takes 32 bits")

    def _decode(self, ins):
        with codegen.decoding(ins, self.file):
            return self.ops[ins.parts[0]](ins, self)

    def where(self, line):
        """The PTX text of a line, for reports, with the source location if the PTX has one."""
        text = self.module.lines[line - 1].strip() if 0 < line <= len(self.module.lines) else ""
        text = text if len(text) <= 120 else text[:117] + "..."
        loc = next((i.loc for i in self.kernel.instrs if i.line == line and i.loc), None)
        return text + (f"  ({self.module.files.get(loc[0], loc[0])}:{loc[1]})" if loc else "")


class Code:
    """What runs for one block: the op, or the generated function in its two forms (compiled when first needed)."""

    __slots__ = ("program", "block", "op", "instr", "_full", "_masked", "n", "counters")

    def __init__(self, program, block):
        self.program, self.block, self.op = program, block, None
        self.instr = program.kernel.instrs[block.first]
        self._full = self._masked = None
        self.n = block.last - block.first
        self.counters = [c for i in program.kernel.instrs[block.first : block.last] for c in counters_of(i)]

    def full(self, F, R, m):
        return (self._full or self._compile(True))(F, R, m)

    def masked(self, F, R, m):
        return (self._masked or self._compile(False))(F, R, m)

    def _compile(self, full):
        p = self.program
        name = f"block{self.block.id}{'' if full else 'm'}"
        text = p.sources[self.block.id] if full else BlockCompiler(p.kernel, self.block, False, p.env, MEMORY_OPS, p.file).source(name)
        exec(compile(text, f"<{p.kernel.name}:{name}>", "exec"), p.env)
        fn = p.env[name]
        if full:
            self._full = fn
        else:
            self._masked = fn
        return fn


# --- instructions of generated blocks that touch memory or the machine -------------------------------------------------
def _address(c, op):
    """(expression of the base address array, constant offset)."""
    if isinstance(op, Mem):
        if isinstance(op.base, Symbol):
            return c.let(f"symbol(F, {op.base.name!r})"), op.offset
        if isinstance(op.base, Imm):
            return c.const_array(op.base.value, "u8"), op.offset
        bits = c.k.reg_bits[op.base.index]
        return c.reg(op.base.index, "u8" if bits == 64 else "u4"), op.offset
    raise codegen.Unsupported(f"address {op}")


def _vector(parts):
    return next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)


def gen_ld(c, ins):
    """ld{.space}{.cache}{.vec}.type d, [a]."""
    p, (d, a) = ins.parts, ins.ops[:2]
    space, n, t = space_of(p), _vector(p), p[-1]
    size = TYPE_BYTES[t]
    if size not in (1, 2, 4, 8):
        raise codegen.Unsupported(f"type .{t}")
    raw = f"u{size}"
    if space == "param" and isinstance(a.base, Symbol):
        v = c.let(f"ldparam(F, {a.base.name!r}, {a.offset}, {size}, {n})")
    else:
        base, off = _address(c, a)
        v = c.let(f"ld(F, {c.mask_arg()}, {ins.line}, {space!r}, {base}, {off}, {size}, {n})")
    dests = d.items if isinstance(d, Vec) else (d,)
    if len(dests) != n:
        raise codegen.Unsupported(f"{len(dests)} destinations for {n} elements")
    for k, dst in enumerate(dests):
        if isinstance(dst, Sink):
            continue
        e = f"{v}[{k}]"
        if t[0] == "s" and size < c.k.reg_bits[dst.index] // 8:
            c.put(dst, f"{e}.view(i{size})", f"i{size}")
        else:
            c.put(dst, e, raw)


def gen_st(c, ins):
    """st{.space}{.vec}.type [a], b."""
    p, (a, b) = ins.parts, ins.ops[:2]
    space, n, t = space_of(p), _vector(p), p[-1]
    size = TYPE_BYTES[t]
    if size not in (1, 2, 4, 8):
        raise codegen.Unsupported(f"type .{t}")
    base, off = _address(c, a)
    items = b.items if isinstance(b, Vec) else (b,)
    if len(items) != n:
        raise codegen.Unsupported(f"{len(items)} sources for {n} elements")
    data = ", ".join(c.arr(i, f"u{size}") for i in items)
    c.emit(f"st(F, {c.mask_arg()}, {ins.line}, {space!r}, {base}, {off}, {size}, {data})")


def gen_nothing(c, ins):
    """An instruction without functional effect here."""


def gen_mapa(c, ins):
    """mapa{.shared::cluster}.{u32,u64} d, a, rank."""
    d, a, r = ins.ops
    dt = "u4" if ins.parts[-1] == "u32" else "u8"
    generic = not any(x.startswith("shared") for x in ins.parts)
    c.put(d, f"mapa(F, {c.arr(a, dt)}, {c.arr(r, 'u4')}, {generic}, {ins.line})", dt)


def gen_getctarank(c, ins):
    """getctarank{.shared::cluster}.{u32,u64} d, a: which CTA of the cluster an address belongs to."""
    d, a = ins.ops
    dt = "u4" if ins.parts[-1] == "u32" else "u8"
    offset = "" if any(x.startswith("shared") for x in ins.parts) else f" - {c.const(memory.SHARED_BASE, dt)}"
    c.put(d, f"(({c.arr(a, dt)}{offset}) >> {c.const(24, dt)}).astype(u4)", "u4")


def gen_zero(c, ins):
    """createpolicy and the like: an opaque value that nothing depends on."""
    d = ins.ops[0]
    c.put(d, c.const_array(0, "u8"), "u8")


def gen_activemask(c, ins):
    c.put(ins.ops[0], "special(F, '%activemask')", "u4")


MEMORY_OPS = {
    "ld": gen_ld,
    "ldu": gen_ld,
    "st": gen_st,
    "prefetch": gen_nothing,
    "prefetchu": gen_nothing,
    "nanosleep": gen_nothing,
    "mapa": gen_mapa,
    "getctarank": gen_getctarank,
    "createpolicy": gen_zero,
    "activemask": gen_activemask,
    "discard": gen_nothing,
    "applypriority": gen_nothing,
    "pmevent": gen_nothing,
}


# --- values that depend on the launch -----------------------------------------------------------------------------------
def special(F, name):
    """A special register as 32 lanes of u32 or u64."""
    return F.warp.special(name, F)


def symbol(F, name):
    """The address of a variable or parameter as 32 lanes of u64."""
    return F.cta.symbol(name)


def load_param(F, name, offset, size, n):
    return F.launch.param_value(name, offset, size, n)


def mapa(F, a, rank, generic, line):
    """The same shared offset in another CTA of the cluster."""
    if generic:
        off = a - a.dtype.type(memory.SHARED_BASE)
        return (off & a.dtype.type(0xFFFFFF)) + (rank.astype(a.dtype) << a.dtype.type(24)) + a.dtype.type(memory.SHARED_BASE)
    return (a & a.dtype.type(0xFFFFFF)) | (rank.astype(a.dtype) << a.dtype.type(24))
