"""Moves, selections, comparisons and conversions of a block as Python expressions (PTX ISA chapters 9.7.6 to 9.7.9): `op_*` each."""

from .codegen import COMPARE, DTYPE, REG_DTYPE, SIZE, Blocks, Unsupported
from .parser import Imm, Pair, Reg

ROUND = ("rn", "rz", "rm", "rp")
ROUND_INT = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


class Conversions(Blocks):
    """The rules that compute nothing new of their operands."""

    def _finish(self, d, expr, ftz, sat, dt="f4"):
        if ftz:
            expr = f"ftz({expr})"
        if sat:
            expr = f"sat({expr})"
        self.put(d, expr, dt)

    def _in(self, op, dt, ftz):
        v = self.val(op, dt)
        return self.let(f"ftz({v})") if ftz and isinstance(op, Reg) else v

    def op_mov(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        d, s = ops
        if isinstance(d, Reg) and isinstance(s, Reg) and not self.cond() and self.k.reg_bits[d.index] == self.k.reg_bits[s.index]:
            # A plain move shares the array, whatever its type.
            views = self.views.get(s.index)
            if not views:
                self.reg(s.index, REG_DTYPE[self.k.reg_bits[s.index]])
                views = self.views[s.index]
            self.views[d.index] = dict(views)
            self.dirty[d.index] = next(iter(views.values()))
            return
        self.put(d, self.arr(s, dt), dt)

    def op_selp(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        d, a, b, c = ops
        a = self.val(a, dt)
        self.put(d, f"where({self.arr(c, '?')}, {a}, {self.val(b, dt)})", dt)

    def op_slct(self, ins, p, ops):
        dt, ct = DTYPE[p[-2]], DTYPE[p[-1]]
        d, a, b, c = ops
        self.put(d, f"where({self._in(c, ct, 'ftz' in p)} >= 0, {self.arr(a, dt)}, {self.val(b, dt)})", dt)

    def _compare(self, p, a, b):
        t, cmp = p[-1], p[1]
        if cmp in ("lo", "ls", "hi", "hs"):
            t = "u" + t[1:]
        if t in ("f16", "bf16"):
            x, y = (self.let(f"hf.widen({self.arr(v, 'u2')}, {t!r})") for v in (a, b))
            dt = "f4"
            if "ftz" in p:
                x, y = (self.let(f"hf.flush({v}, {t!r})") for v in (x, y))
        else:
            dt = DTYPE[t]
            x, y = self.arr(a, dt), self.val(b, dt)
            if dt == "f4" and "ftz" in p:
                x, y = self.let(f"ftz({x})"), self.let(f"ftz({y})")
        if dt[0] == "f":
            return self._compare_floats(cmp, x, y)
        return self.let(f"{x} {COMPARE[cmp]} {y}")

    def _compare_floats(self, cmp, x, y, flush=None):
        """The ordered comparisons are false beside a NaN, the others (`..u`, `nan`) true."""
        if flush:
            x, y = self.let(flush.format(x)), self.let(flush.format(y))
        if cmp == "num":
            return self.let(f"({x} == {x}) & ({y} == {y})")
        if cmp == "nan":
            return self.let(f"({x} != {x}) | ({y} != {y})")
        e = f"{x} {COMPARE[cmp]} {y}"
        if cmp == "ne":
            e = f"({e}) & ({x} == {x}) & ({y} == {y})"
        elif cmp in ("equ", "ltu", "leu", "gtu", "geu"):
            e = f"({e}) | ({x} != {x}) | ({y} != {y})"
        return self.let(e)

    def _condition(self, p, src):
        """(comparison, its negation) of setp and set, each combined with a third operand where there is one."""
        a, b, *c = src
        r = self._compare(p, a, b)
        combine = next((x for x in p if x in ("and", "or", "xor")), None)
        if not combine:
            return r, None
        s, q = {"and": "&", "or": "|", "xor": "^"}[combine], self.arr(c[0], "?")
        return self.let(f"{r} {s} {q}"), self.let(f"~{r} {s} {q}")

    def op_setp(self, ins, p, ops):
        d = ops[0]
        if p[-1] in ("f16x2", "bf16x2"):
            self._setp_halves(p, d, *ops[1:])
            return
        r, other = self._condition(p, ops[1:])
        if isinstance(d, Pair):
            second = other or self.let(f"~{r}")
            self.put(d.first, r, "?")
            self.put(d.second, second, "?")
        else:
            self.put(d, r, "?")

    def _setp_halves(self, p, d, a, b):
        """setp.CMP.{f16x2,bf16x2} p|q: p for the low halves, q for the high ones."""
        if not isinstance(d, Pair) or {"and", "or", "xor"} & set(p):
            raise Unsupported(f"setp.{'.'.join(p[1:])} with these operands")
        t = p[-1].removesuffix("x2")
        low, high = zip(*(self._low_high(v) for v in (a, b)))
        for target, pair in ((d.first, low), (d.second, high)):
            x, y = (self.let(f"hf.widen({v}, {t!r})") for v in pair)
            self.put(target, self._compare_floats(p[1], x, y, f"hf.flush({{}}, {t!r})" if "ftz" in p else None), "?")

    def _low_high(self, v):
        pair = self.let(f"hf.halves({self.arr(v, 'u4')})")
        return f"{pair}[0]", f"{pair}[1]"

    def op_set(self, ins, p, ops):
        if p[-1].endswith("x2") or p[-2].endswith("x2"):
            raise Unsupported(f"instruction {ins.opcode}")
        r, _ = self._condition((*p[:-2], p[-1]), ops[1:])
        dt = DTYPE[p[-2]]
        one = 1.0 if dt == "f4" else -1 if dt[0] == "i" else 0xFFFFFFFF
        self.put(ops[0], f"where({r}, {self.const(one, dt)}, {self.const(0, dt)})", dt)

    def op_cvta(self, ins, p, ops):
        space = p[2] if p[1] == "to" else p[1]
        if p[1] == "to":
            self.put(ops[0], f"from_generic({self.arr(ops[1], 'u8')}, {space!r})", "u8")
        else:
            self.put(ops[0], f"to_generic({self.arr(ops[1], 'u8')}, {space!r})", "u8")

    def op_isspacep(self, ins, p, ops):
        self.put(ops[0], f"is_space({self.arr(ops[1], 'u8')}, {p[1]!r})", "?")

    def op_cvt(self, ins, p, ops):
        kinds = [x for x in p if x in DTYPE or x in ("e4m3x2", "e5m2x2")]
        if len(kinds) != 2:
            raise Unsupported(f"instruction {ins.opcode}")
        to, frm = kinds
        rnd = next((x for x in p if x in ROUND), None)
        irnd = next((x for x in p if x in ("rni", "rzi", "rmi", "rpi")), None)
        d, a = ops[0], ops[1]
        if to in ("f16x2", "bf16x2") and frm == "f32":
            a, b = (f"relu({v})" if "relu" in p else v for v in (self.arr(x, "f4") for x in ops[1:]))
            self.put(d, f"hf.cvt16x2({a}, {b}, {to!r}, {rnd!r})", "u4")
            return
        if to not in DTYPE or frm not in DTYPE or to.endswith("x2") or frm.endswith("x2") or to == "tf32":
            raise Unsupported(f"instruction {ins.opcode}")
        fd, td = DTYPE[frm], DTYPE[to]
        if frm in ("f16", "bf16"):
            x, fd = self.let(f"hf.widen({self.arr(a, 'u2')}, {frm!r})"), "f4"
        else:
            x = self._in(a, fd, "ftz" in p and fd == "f4")
            x = self.arr(a, fd) if isinstance(a, Imm) else x
        if to in ("f16", "bf16"):
            self._to_half(d, x, fd, to, rnd or irnd or "rn", p)
        elif fd[0] == "f" and td[0] == "f":
            e = f"{x}.astype({td})" if fd != td else x
            if irnd:
                e = f"{ROUND_INT[irnd]}({e})"
            elif fd == "f8" and td == "f4" and rnd in ("rm", "rp", "rz"):
                e = f"rd.float_to_float32({x}, {rnd!r})"
            self._finish(d, e, "ftz" in p and td == "f4", "sat" in p, td)
        elif fd[0] == "f":
            self._put_int(d, f"nx.float_to_int({x}, {td!r}, {irnd or 'rzi'!r})", td)
        elif td[0] == "f":
            self.put(d, f"rd.int_to_float{8 * SIZE[td]}({x}, {rnd!r})" if rnd in ("rm", "rp", "rz") else f"{x}.astype({td})", td)
        elif "sat" in p:
            self._put_int(d, f"nx.int_sat({x}, {td!r})", td)
        else:
            self._put_int(d, f"{x}.astype({td})" if fd != td else x, td)

    def _to_half(self, d, x, fd, to, mode, p):
        """cvt to f16 or bf16; float64 and integers come by way of an odd float32, which loses nothing that rounding needs."""
        if fd != "f4":
            x = self.let(f"hf.to_f32_odd({x}.astype(f8))")
        if mode in ROUND_INT:  # to an integral value of the same type
            x, mode = self.let(f"{ROUND_INT[mode]}({x})"), "rn"
        for name in ("relu", "sat"):
            if name in p:
                x = self.let(f"{name}({x})")
        self.put(d, f"hf.narrow({x}, {to!r}, {mode!r}).astype(u2)", "u2")

    def _put_int(self, d, expr, td):
        """Integer results extend by their own signedness to the register's width."""
        self.put(d, expr, td)
