"""PTX text to a list of resolved instructions (PTX ISA, chapters 4 "Syntax" and 5 "State spaces").

Braces open scopes with their own registers and labels; inline assembly relies on it (`LAB_WAIT`, `DONE`, `P1` repeat many
times in one kernel). Every register of a kernel gets one index, every label one instruction position.
"""

import bisect
import re
from dataclasses import dataclass, field

from .errors import EmulatorError

TYPE_BYTES = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "f32x2": 8,
    "b128": 16,
    "pred": 0,
}
STRONG = ("acquire", "release", "relaxed", "volatile", "mmio", "acq_rel")  # of loads and stores that other threads may run into


@dataclass(frozen=True)
class Reg:
    index: int


@dataclass(frozen=True)
class Imm:
    """An integer, or the bits of a float constant (`width` 32 or 64)."""

    value: int
    width: int = 0


@dataclass(frozen=True)
class Special:
    name: str


@dataclass(frozen=True)
class Symbol:
    name: str


@dataclass(frozen=True)
class Vec:
    items: tuple


@dataclass(frozen=True)
class Mem:
    """`[base+offset]`; for tensor operands `[base, {coordinates}]` the coordinates are in `coords`."""

    base: object
    offset: int = 0
    coords: tuple = ()


@dataclass(frozen=True)
class Pair:
    """`d|p`."""

    first: object
    second: object


@dataclass(frozen=True)
class Not:
    item: object


@dataclass(frozen=True)
class Sink:
    pass


@dataclass(eq=False)
class Instr:
    line: int
    parts: tuple  # opcode split at dots
    ops: tuple
    guard: object = None  # Reg or None
    guard_neg: bool = False
    target: int = -1  # instruction position of a branch
    loc: tuple = ()  # (file, line) of the source, from .loc

    @property
    def opcode(self) -> str:
        return ".".join(self.parts)


@dataclass
class Variable:
    """A module or kernel level variable: `.shared`, `.global`, `.const`, `.local`."""

    name: str
    space: str
    align: int
    size: int
    extern: bool
    init: bytes = b""
    line: int = 0


@dataclass
class Param:
    name: str
    size: int
    align: int
    offset: int


@dataclass
class Kernel:
    name: str
    line: int
    params: list
    instrs: list = field(default_factory=list)
    reg_bits: list = field(default_factory=list)  # 1 (predicate), 16, 32, 64, 128
    reg_names: list = field(default_factory=list)
    variables: list = field(default_factory=list)
    reqntid: tuple = ()
    reqnctapercluster: tuple = ()
    param_bytes: int = 0


@dataclass
class Module:
    file: str
    version: str
    target: str
    kernels: dict
    variables: list
    files: dict
    lines: list  # source text, for reports


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INSTR = re.compile(r"(?:@(!?)\s*([%\w$.]+)\s+)?([a-z_][\w.:]*)\s*(.*)", re.S)
_SPECIAL = re.compile(
    r"%(?:(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]|laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank"
    r"|is_explicit_cluster|lanemask_(?:eq|lt|le|gt|ge)|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi|dynamic_smem_size|total_smem_size)"
)
_REGDECL = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.S)
_VARDECL = re.compile(
    r"((?:\.\w+\s+)*?)\.(shared|global|const|local|param)\s+((?:\.\w+\s+|\.align\s+\d+\s+|\d+\s+)*?)\.(\w+)\s+([\w$%]+)\s*"
    r"((?:\[[^\]]*\]\s*)*)(?:=\s*(.*))?$",
    re.S,
)
_ENTRY = re.compile(
    r"((?:\.(?:visible|extern|weak)\s+)*)\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?\s*([^{;]*)([{;])", re.S
)


def space_of(parts) -> str:
    """The state space that an opcode names; "generic" where it names none."""
    named = (part.split("::")[0] for part in parts[1:])
    return next((space for space in named if space in ("global", "shared", "local", "param", "const")), "generic")


def parse(text: str, file: str = "<ptx>") -> Module:
    """Parse a whole PTX module; a malformed statement is an EmulatorError with its line."""
    return _Parser(text, file).module()


class _Scope:
    def __init__(self, parent=None):
        self.parent, self.names, self.ranges, self.labels = parent, {}, {}, {}


class _Parser:
    def __init__(self, text, file):
        self.raw_lines = text.split("\n")
        # Comments become blanks of the same length so that offsets keep their line.
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self.file = file
        self.breaks = [m.start() for m in re.finditer("\n", self.text)]
        self.files = {}

    def line(self, pos):
        return bisect.bisect_left(self.breaks, pos) + 1

    def fail(self, pos, what, why="", fix=""):
        raise EmulatorError(what, file=self.file, line=self.line(pos), why=why, fix=fix)

    def module(self):
        version = re.search(r"^\s*\.version\s+(\S+)", self.text, re.M)
        target = re.search(r"^\s*\.target\s+([\w,. ]+)", self.text, re.M)
        if not version or not target:
            raise EmulatorError(
                "this is not PTX: .version or .target is missing",
                file=self.file,
                line=1,
                fix="give the text that the compiler wrote (--keep-ptx, or nvcc -ptx)",
            )
        kernels, variables, pos, text = {}, [], 0, self.text
        while True:
            pos = self._skip(pos)
            if pos >= len(text):
                break
            m = _ENTRY.match(text, pos)
            if m:
                if m.group(6) == ";" or m.group(2) == "func":
                    if m.group(2) == "func" and m.group(6) == "{":
                        self.fail(pos, f"device function {m.group(3)} is not supported", "calls are not modelled", "inline it")
                    pos = m.end()
                    continue
                kernel, pos = self._kernel(m)
                kernels[kernel.name] = kernel
                continue
            d = re.compile(r"\.(version|target|address_size|file|section|pragma)\b[^\n]*").match(text, pos)
            if d:
                f = re.match(r"\.file\s+(\d+)\s+\"([^\"]*)\"", d.group())
                if f:
                    self.files[int(f.group(1))] = f.group(2)
                if d.group(1) == "section":
                    brace = text.find("{", pos)
                    end = self._matching(brace)
                    pos = end + 1
                else:
                    pos = d.end()
                continue
            end = text.find(";", pos)
            if end < 0:
                self.fail(pos, f"cannot read {text[pos : pos + 40].split(chr(10))[0]!r}", "no statement of PTX starts like this")
            variables.append(self._variable(text[pos:end].strip(), pos))
            pos = end + 1
        return Module(self.file, version.group(1), target.group(1).split(",")[0].strip(), kernels, variables, self.files, self.raw_lines)

    def _skip(self, pos):
        while pos < len(self.text) and self.text[pos].isspace():
            pos += 1
        return pos

    def _matching(self, pos):
        depth = 0
        for m in re.compile(r"[{}]").finditer(self.text, pos):
            depth += 1 if m.group() == "{" else -1
            if depth == 0:
                return m.start()
        self.fail(pos, "the brace opened here is never closed")

    def _variable(self, stmt, pos):
        m = _VARDECL.match(stmt)
        if not m:
            self.fail(pos, f"cannot read the declaration {stmt[:60]!r}")
        prefix, space, mods, kind, name, dims, init = m.groups()
        align = re.search(r"\.align\s+(\d+)", mods + prefix)
        if kind not in TYPE_BYTES:
            self.fail(pos, f"unknown type .{kind} of {name}")
        size = TYPE_BYTES[kind]
        unsized = False
        for d in re.findall(r"\[\s*(\d*)\s*\]", dims or ""):
            if d == "":
                unsized = True
            else:
                size *= int(d)
        vec = re.search(r"\.v(\d)", mods)
        size *= int(vec.group(1)) if vec else 1
        data = b""
        if init:
            values = [int(v, 0) for v in re.findall(r"-?(?:0[xX][0-9a-fA-F]+|\d+)", init)]
            data = b"".join((v & ((1 << 8 * TYPE_BYTES[kind]) - 1)).to_bytes(TYPE_BYTES[kind], "little") for v in values)
        return Variable(
            name,
            space,
            int(align.group(1)) if align else TYPE_BYTES[kind],
            0 if unsized else size,
            ".extern" in prefix or unsized,
            data,
            self.line(pos),
        )

    def _params(self, text, pos):
        params, offset = [], 0
        for piece in filter(None, (p.strip() for p in text.split(","))):
            m = re.match(
                r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s*)?(?:\.align\s+\d+\s*)?)?([\w$%]+)\s*(?:\[(\d+)\])?$",
                piece,
            )
            if not m or m.group(2) not in TYPE_BYTES:
                self.fail(pos, f"cannot read the parameter {piece!r}")
            size = TYPE_BYTES[m.group(2)] * int(m.group(4) or 1)
            align = int(m.group(1) or TYPE_BYTES[m.group(2)])
            offset = -(-offset // align) * align
            params.append(Param(m.group(3), size, align, offset))
            offset += size
        return params, offset

    def _kernel(self, m):
        name, directives = m.group(3), m.group(5)
        params, total = self._params(m.group(4) or "", m.start())
        kernel = Kernel(name, self.line(m.start(3)), params, param_bytes=total)
        for key in ("reqntid", "reqnctapercluster"):
            d = re.search(rf"\.{key}\s+([\d, ]+)", directives)
            if d:
                sizes = [x.strip() for x in d.group(1).split(",")]
                if not all(x.isdigit() for x in sizes):
                    self.fail(m.start(), f"cannot read .{key} {d.group(1).strip()}")
                setattr(kernel, key, tuple(map(int, sizes)))
        end = self._matching(m.end() - 1)
        self._body(kernel, m.end(), end)
        return kernel, end + 1

    def _body(self, kernel, pos, end):
        text, scope = self.text, _Scope()
        fixups, loc = [], ()
        self.kernel, self.cache = kernel, {}
        skip = re.compile(r"\s+")
        while pos < end:
            s = skip.match(text, pos)
            if s:
                pos = s.end()
                continue
            c = text[pos]
            if c == "{":
                scope, self.cache, pos = _Scope(scope), {}, pos + 1
                continue
            if c == "}":
                if scope.parent is None:
                    self.fail(pos, "unmatched closing brace")
                scope, self.cache, pos = scope.parent, {}, pos + 1
                continue
            if c == ";":
                pos += 1
                continue
            if text.startswith((".loc ", ".loc\t"), pos):
                stop = text.find("\n", pos)
                v = text[pos:stop].split()
                loc = (int(v[1]), int(v[2]))
                pos = stop
                continue
            m = _LABEL.match(text, pos)
            if m:
                if m.group(1) in scope.labels:
                    self.fail(pos, f"label {m.group(1)} is defined twice in one scope")
                scope.labels[m.group(1)] = len(kernel.instrs)
                pos = m.end()
                continue
            stop = text.find(";", pos, end)
            if stop < 0:
                self.fail(pos, f"no semicolon after {text[pos : pos + 40].strip()!r}")
            stmt, at, pos = text[pos:stop], pos, stop + 1
            if c == ".":
                self._directive(stmt, at, scope)
                continue
            m = _INSTR.match(stmt)
            if not m:
                self.fail(at, f"cannot read the instruction {stmt.strip()[:60]!r}")
            neg, guard, opcode, rest = m.groups()
            parts = tuple(opcode.split("."))
            line = self.line(at)
            instr = Instr(line, parts, (), loc=loc)
            if guard:
                instr.guard, instr.guard_neg = self._register(guard, scope, at), neg == "!"
            if parts[0] in ("bra", "brx"):
                if parts[0] == "brx":
                    self.fail(at, "brx.idx is not supported", "indirect branches are not modelled", "compile without jump tables")
                fixups.append((instr, rest.strip(), scope, at))
            elif parts[0] == "call":
                self.fail(at, "call is not supported", "functions are not modelled", "let the compiler inline the function")
            else:
                instr.ops = tuple(self._operands(rest, scope, at))
            kernel.instrs.append(instr)
        for instr, label, scope_, at in fixups:
            s = scope_
            while s is not None and label not in s.labels:
                s = s.parent
            if s is None:
                self.fail(at, f"label {label} is not defined in this scope")
            instr.target = s.labels[label]

    def _directive(self, stmt, pos, scope):
        m = _REGDECL.match(stmt)
        if m:
            kind = m.group(1)
            if kind not in TYPE_BYTES:
                self.fail(pos, f"unknown register type .{kind}")
            bits = 8 * TYPE_BYTES[kind] or 1
            bits = 16 if bits == 8 else bits
            for name in m.group(2).split(","):
                r = re.match(r"\s*([%\w$]+?)\s*(?:<\s*(\d+)\s*>)?\s*$", name)
                if not r:
                    self.fail(pos, f"cannot read the register declaration {name.strip()!r}")
                if r.group(2):
                    scope.ranges[r.group(1)] = (int(r.group(2)), bits)
                else:
                    scope.names[r.group(1)] = self._new_reg(r.group(1), bits)
                    self.cache = {}
            return
        if stmt.startswith(".pragma") or stmt.startswith(".branchtargets"):
            return
        v = self._variable(stmt.strip(), pos)
        self.kernel.variables.append(v)

    def _new_reg(self, name, bits):
        k = self.kernel
        k.reg_bits.append(bits)
        k.reg_names.append(name)
        return Reg(len(k.reg_bits) - 1)

    def _register(self, name, scope, pos):
        r = self._find_register(name, scope)
        if r is None:
            self.fail(pos, f"register {name} is not declared")
        return r

    def _find_register(self, name, scope):
        m = re.match(r"(.*?)(\d+)$", name)
        s = scope
        while s is not None:
            if name in s.names:
                return s.names[name]
            if m:
                prefix, number = m.group(1), int(m.group(2))
                if prefix in s.ranges and number < s.ranges[prefix][0]:
                    r = self._new_reg(name, s.ranges[prefix][1])
                    s.names[name] = r
                    return r
            s = s.parent
        return None

    def _operands(self, rest, scope, pos):
        return [self._operand(p, scope, pos) for p in (q.strip() for q in self._split(rest)) if p]

    @staticmethod
    def _split(text):
        """Split at commas outside brackets and braces."""
        if "{" not in text and "[" not in text:
            return text.split(",")
        out, depth, start = [], 0, 0
        for m in re.finditer(r"[\[\]{}(),]", text):
            c = m.group()
            if c in "[{(":
                depth += 1
            elif c in "]})":
                depth -= 1
            elif depth == 0:
                out.append(text[start : m.start()])
                start = m.end()
        out.append(text[start:])
        return out

    def _operand(self, text, scope, pos):
        key = text
        hit = self.cache.get(key)
        if hit is None:
            hit = self.cache[key] = self._operand_uncached(text, scope, pos)
        return hit

    def _operand_uncached(self, text, scope, pos):
        c = text[:1]
        if not c or (c == "[" and "]" not in text):
            self.fail(pos, f"cannot read the operand {text!r}")
        if c == "{":
            return Vec(tuple(self._operand(p.strip(), scope, pos) for p in text.strip("{} \t\n").split(",")))
        if c == "[":
            return self._memory(text[1 : text.rindex("]")].strip(), scope, pos)
        if c == "!":
            return Not(self._operand(text[1:].strip(), scope, pos))
        if c == "_" and text == "_":
            return Sink()
        if "|" in text:
            a, b = text.split("|", 1)
            return Pair(self._operand(a.strip(), scope, pos), self._operand(b.strip(), scope, pos))
        if c.isdigit() or c == "-" or c == "+":
            return self._number(text, pos)
        r = self._find_register(text, scope)
        if r is not None:
            return r
        if c == "%":
            if not _SPECIAL.fullmatch(text):
                self.fail(pos, f"register {text} is not declared, and is no special register that is supported")
            return Special(text)
        m = re.match(r"([\w$.]+)\s*\+\s*(\d+)$", text)
        if m:
            return Mem(Symbol(m.group(1)), int(m.group(2)))
        if not re.match(r"[A-Za-z_$][\w$]*$", text):
            self.fail(pos, f"cannot read the operand {text!r}")
        return Symbol(text)

    def _number(self, text, pos):
        t = text.replace(" ", "").rstrip("U")
        try:
            if t[:2] in ("0f", "0F"):
                return Imm(int(t[2:], 16), 32)
            if t[:2] in ("0d", "0D"):
                return Imm(int(t[2:], 16), 64)
            if re.match(r"[-+]?\d*\.\d+(e[-+]?\d+)?$|[-+]?\d+\.\d*(e[-+]?\d+)?$", t):
                import struct

                return Imm(struct.unpack("<Q", struct.pack("<d", float(t)))[0], 64)
            return Imm(int(t, 8) if re.match(r"0[0-7]+$", t) else int(t, 0))
        except ValueError:
            self.fail(pos, f"cannot read the number {text!r}")

    def _memory(self, text, scope, pos):
        pieces = [p.strip() for p in self._split(text)]
        m = re.match(r"([%\w$.]+)\s*(?:([+-])\s*(-?\s*\w+))?$", pieces[0])
        if not m:
            self.fail(pos, f"cannot read the address [{text}]")
        base = self._operand(m.group(1), scope, pos)
        offset = 0
        if m.group(3):
            offset = self._number(m.group(3), pos).value * (-1 if m.group(2) == "-" else 1)
        coords = ()
        if len(pieces) > 1:
            v = self._operand(pieces[1], scope, pos)
            coords = v.items if isinstance(v, Vec) else (v,)
        return Mem(base, offset, coords)
