"""The arithmetic instructions of a block as Python expressions (PTX ISA chapters 9.7.1 to 9.7.5, 9.7.8): one `op_*` an opcode."""

from .codegen import COMPARE, DTYPE, SIZE, Unsupported
from .conversions import ROUND, ROUND_INT, Conversions
from .parser import Imm, Reg

_DIRECTED, _COMPARISONS = "rn rz rm rp ", " and or xor num nan ftz"
# The modifiers, types aside, that an opcode's rule heeds: any other is refused, not passed over.
MODIFIERS = {
    op: set(words.split())
    for ops, words in {
        "add sub": _DIRECTED + "ftz sat",
        "mul": _DIRECTED + "ftz sat lo hi wide",
        "mul24": "lo hi",
        "mad": _DIRECTED + "ftz sat lo hi wide",
        "fma": _DIRECTED + "ftz sat relu",
        "min max": "ftz NaN relu",
        "neg abs": "ftz",
        "ex2 lg2 rsqrt sin cos tanh": "approx ftz",
        "rcp sqrt": _DIRECTED + "approx ftz",
        "div": _DIRECTED + "approx full ftz",
        "rem copysign and or xor not cnot shl shr bfe bfi prmt popc clz brev mov selp": "",
        "lop3": "and or",
        "slct": "ftz",
        "shf": "l r wrap clamp",
        "bfind": "shiftamt",
        "set setp": " ".join(COMPARE) + _COMPARISONS,
        "cvt": _DIRECTED + "ftz sat relu " + " ".join(ROUND_INT),
    }.items()
    for op in ops.split()
}


class BlockCompiler(Conversions):
    """A block's compiler with all the rules."""

    modifiers = MODIFIERS

    def binary(self, ins, dt, expr, cast=None):
        d, a, b = ins.ops
        a = self.arr(a, dt) if isinstance(a, Imm) and isinstance(b, Imm) else self.val(a, dt)
        self.put(d, expr.format(a=a, b=self.val(b, dt)), cast or dt)

    def _float(self, p):
        """(type, rounding, ftz, sat) of a float instruction."""
        t = p[-1]
        return t, next((x for x in p if x in ROUND), "rn"), "ftz" in p, "sat" in p

    def _mixed(self, op, t, ftz):
        """A source of a mixed-precision instruction (`add.f32.bf16`): 16 bits widened, or float32."""
        return self._in(op, "f4", ftz) if t == "f32" else self.let(f"hf.widen({self.arr(op, 'u2')}, {t!r})")

    def _arith(self, ins, p, symbol, directed):
        t, rnd, ftz, sat = self._float(p)
        d, *src = ins.ops
        if t == "f32" or (t in ("bf16", "f16") and "f32" in p):
            a, b = self._mixed(src[0], t, ftz), self._in(src[1], "f4", ftz)
            if isinstance(src[0], Imm) and isinstance(src[1], Imm):
                a = self.arr(src[0], "f4")
            expr = f"{a} {symbol} {b}" if rnd == "rn" else directed.format(a=a, b=b, mode=rnd)
            self._finish(d, expr, ftz, sat)
        elif t == "f64":
            self.binary(ins, "f8", f"{{a}} {symbol} {{b}}" if rnd == "rn" else directed.replace("32_", "64_").replace("{mode}", rnd))
        elif t == "f32x2":
            self._packed(ins, f"{{a}} {symbol} {{b}}" if rnd == "rn" else directed.replace("{mode}", rnd), ftz)
        elif t.startswith(("f16", "bf16")):
            self._half("map16", ins, t, fn=f"lambda x, y: x {symbol} y", ftz=ftz, sat=sat)
        elif sat:
            if t != "s32" or symbol == "*":
                raise Unsupported(f"instruction {ins.opcode}")
            self.binary(ins, "i4", f"nx.add_sat_s32({{a}}, {{b}}, {symbol == '-'})")
        else:
            self.binary(ins, DTYPE[t], "{a} %s {b}" % symbol)

    def _half(self, name, ins, t, fn=None, **flags):
        """One value of 16 bits, or two in a word, by the function of that name in half.py."""
        d, *src = ins.ops
        if {"rm", "rp", "rz"} & set(ins.parts):
            raise Unsupported(f"instruction {ins.opcode}")
        dt = "u4" if t.endswith("x2") else "u2"
        args = [*([fn] if fn else []), repr(t), *(self.arr(s, dt) for s in src), *(f"{k}=True" for k, v in flags.items() if v)]
        self.put(d, f"hf.{name}{'' if dt == 'u4' else 's'}({', '.join(args)})", dt)

    def _packed(self, ins, expr, ftz=False):
        """f32x2: two floats in a 64-bit register."""
        d, *src = ins.ops
        src = [self.let(f"{self.arr(s, 'u8')}.view(f4)") for s in src]
        src = [self.let(f"ftz({s})") for s in src] if ftz else src
        e = expr.format(**dict(zip("abc", src)))
        self.put(d, f"asf4({'ftz(' + e + ')' if ftz else e}).view(u8)", "u8")

    def op_add(self, ins, p, ops):
        self._arith(ins, p, "+", "rd.add32_directed({a}, {b}, '{mode}')")

    def op_sub(self, ins, p, ops):
        self._arith(ins, p, "-", "rd.add32_directed({a}, -{b}, '{mode}')")

    def op_mul(self, ins, p, ops):
        t = p[-1]
        if "wide" in p:
            dt = DTYPE[t]
            wide = f"{dt[0]}{2 * SIZE[dt]}"
            d, a, b = ops
            self.put(d, f"{self.arr(a, dt)}.astype({wide}) * {self.val(b, dt)}.astype({wide})", wide)
        elif "hi" in p:
            d, a, b = ops
            self.put(d, f"nx.mulhi({self.arr(a, DTYPE[t])}, {self.val(b, DTYPE[t])})", DTYPE[t])
        else:
            self._arith(ins, p, "*", "rd.mul32_directed({a}, {b}, '{mode}')")

    def op_mul24(self, ins, p, ops):
        if "lo" not in p:
            raise Unsupported("mul24.hi")
        d, dt, eight = ops[0], DTYPE[p[-1]], self.const(8, DTYPE[p[-1]])
        a, b = (f"(({self.arr(x, dt)} << {eight}) >> {eight})" for x in ops[1:])  # 24 bits, extended by their own sign
        self.put(d, f"{a} * {b}", dt)

    def op_mad(self, ins, p, ops):
        t, (d, a, b, c) = p[-1], ops
        if t in ("f32", "f64"):
            return self.op_fma(ins, p, ops)
        if "sat" in p:
            raise Unsupported(f"instruction {ins.opcode}")
        dt = DTYPE[t]
        if "wide" in p:
            wide = f"{dt[0]}{2 * SIZE[dt]}"
            self.put(d, f"{self.arr(a, dt)}.astype({wide}) * {self.val(b, dt)}.astype({wide}) + {self.val(c, wide)}", wide)
        elif "hi" in p:
            self.put(d, f"nx.mulhi({self.arr(a, dt)}, {self.val(b, dt)}) + {self.val(c, dt)}", dt)
        else:
            self.put(d, f"{self.arr(a, dt)} * {self.val(b, dt)} + {self.val(c, dt)}", dt)

    def op_fma(self, ins, p, ops):
        t, rnd, ftz, sat = self._float(p)
        d, a, b, c = ops
        if t == "f32" or (t in ("bf16", "f16") and "f32" in p):
            a, b = (self._mixed(x, t, ftz) for x in (a, b))
            c = self._in(c, "f4", ftz)
            self._finish(d, f"fma32({a}, {b}, {c})" if rnd == "rn" else f"rd.fma32_directed({a}, {b}, {c}, {rnd!r})", ftz, sat)
        elif t == "f64":
            self.put(d, f"rd.fma64({self.arr(a, 'f8')}, {self.arr(b, 'f8')}, {self.arr(c, 'f8')}, {rnd!r})", "f8")
        elif t == "f32x2":
            self._packed(ins, "fma32({a}, {b}, {c})" if rnd == "rn" else "rd.fma32_directed({a}, {b}, {c}, '%s')" % rnd, ftz)
        else:
            self._half("fma16", ins, t, relu="relu" in p, ftz=ftz, sat=sat)

    def _minmax(self, ins, p, which):
        t = p[-1]
        # Those of `nx` order -0 below +0, as the hardware does; NumPy's keep whichever comes first.
        name = f"nx.{which}imum" if "NaN" in p else f"nx.f{which}"
        if t in ("f32", "f64"):
            dt = DTYPE[t]
            d, *src = ins.ops
            args = [self._in(s, dt, "ftz" in p) for s in src]
            e = f"{name}({args[0]}, {args[1]})"
            if len(args) == 3:
                e = f"{name}({e}, {args[2]})"
            self.put(d, e, dt)
        elif t.startswith(("f16", "bf16")):
            self._half("map16", ins, t, fn=name, ftz="ftz" in p)
        elif t in ("u16x2", "s16x2"):
            raise Unsupported(f"instruction {ins.opcode}")
        else:
            both = which + "imum({a}, {b})"
            self.binary(ins, DTYPE[t], f"relu({both})" if "relu" in p else both)

    def op_max(self, ins, p, ops):
        self._minmax(ins, p, "max")

    def op_min(self, ins, p, ops):
        self._minmax(ins, p, "min")

    def _sign(self, ins, p, symbol, bits, number):
        """neg and abs: of floats the sign bit alone, a NaN's too."""
        d, a = ins.ops
        t, ftz = p[-1], "ftz" in p
        if t.startswith(("f16", "bf16")):
            dt, mask = ("u4", bits << 16 | bits) if t.endswith("x2") else ("u2", bits)
            if ftz:
                a = self.let(f"hf.{'map16' if dt == 'u4' else 'map16s'}(lambda x: x, {t!r}, {self.arr(a, dt)}, ftz=True)")
            self.put(d, f"{self.val(a, dt) if not ftz else a} {symbol} {self.const(mask, dt)}", dt)
        else:
            value = self._in(a, "f4", ftz) if t == "f32" and isinstance(a, Reg) else self.arr(a, DTYPE[t])
            self.put(d, number.format(value), DTYPE[t])

    def op_neg(self, ins, p, ops):
        self._sign(ins, p, "^", 0x8000, "-{}")

    def op_abs(self, ins, p, ops):
        self._sign(ins, p, "&", 0x7FFF, "abs({})")

    def _unary_f(self, ins, p, expr, post_ftz=True):
        t = p[-1]
        if t == "f32":
            ftz = "ftz" in p
            e = expr.format(a=self._in(ins.ops[1], "f4", ftz) if not isinstance(ins.ops[1], Imm) else self.arr(ins.ops[1], "f4"))
            self._finish(ins.ops[0], e, ftz and post_ftz, False)
        elif t == "f64":
            self.put(ins.ops[0], f"({expr.format(a=self.arr(ins.ops[1], 'f8'))}).astype(f8)", "f8")
        else:
            self._half("map16", ins, t, fn=f"lambda x: {expr.format(a='x')}", ftz="ftz" in p)

    def op_ex2(self, ins, p, ops):
        self._unary_f(ins, p, "ex2({a})")

    def op_lg2(self, ins, p, ops):
        self._unary_f(ins, p, "lg2({a})")

    def _rounded(self, ins, p, nearest, directed):
        """rcp, sqrt: to nearest by NumPy, else by the function of rounding.py; an `.approx` is nearest, within its error."""
        mode = next((x for x in p if x in ("rz", "rm", "rp")), None)
        if p[-1] == "f64" and {"approx", "ftz"} <= set(p):
            self.put(ins.ops[0], f"rd.high_half64(lambda x: {nearest.format(a='x')}, {self.arr(ins.ops[1], 'f8')})", "f8")
        elif mode:
            self._unary_f(ins, p, f"rd.{directed}{'64' if p[-1] == 'f64' else '32'}({{a}}, {mode!r})")
        else:
            self._unary_f(ins, p, nearest)

    def op_rcp(self, ins, p, ops):
        self._rounded(ins, p, "(one / {a})", "rcp")

    def op_sqrt(self, ins, p, ops):
        self._rounded(ins, p, "npsqrt({a})", "sqrt")

    def op_rsqrt(self, ins, p, ops):
        self._rounded(ins, p, "asf4(one / npsqrt({a}.astype(f8)))" if p[-1] == "f32" else "(one / npsqrt({a}))", None)

    def op_sin(self, ins, p, ops):
        self._unary_f(ins, p, "npsin({a})")

    def op_cos(self, ins, p, ops):
        self._unary_f(ins, p, "npcos({a})")

    def op_tanh(self, ins, p, ops):
        self._unary_f(ins, p, "asf4(nptanh({a}.astype(f8)))")

    def op_div(self, ins, p, ops):
        t, ftz = p[-1], "ftz" in p
        d, a, b = ops
        mode = next((x for x in p if x in ("rz", "rm", "rp")), None)
        if t not in ("f32", "f64"):
            self.put(d, f"nx.idiv({self.arr(a, DTYPE[t])}, {self.arr(b, DTYPE[t])})", DTYPE[t])
            return
        x, y = (self._in(v, DTYPE[t], ftz) if isinstance(v, Reg) else self.arr(v, DTYPE[t]) for v in (a, b))
        if mode:
            expr = f"rd.div{t[1:]}({x}, {y}, {mode!r})"
        else:
            expr = f"nx.div_approx({x}, {y})" if "approx" in p else f"{x} / {y}"
        self._finish(d, expr, ftz, False, DTYPE[t])

    def op_rem(self, ins, p, ops):
        self.put(ops[0], f"nx.irem({self.arr(ops[1], DTYPE[p[-1]])}, {self.arr(ops[2], DTYPE[p[-1]])})", DTYPE[p[-1]])

    def op_copysign(self, ins, p, ops):
        self.put(ops[0], f"copysign({self.val(ops[2], DTYPE[p[-1]])}, {self.arr(ops[1], DTYPE[p[-1]])})", DTYPE[p[-1]])

    def _logic(self, ins, p, symbol):
        self.binary(ins, DTYPE[p[-1]], "{a} %s {b}" % symbol)

    def op_and(self, ins, p, ops):
        self._logic(ins, p, "&")

    def op_or(self, ins, p, ops):
        self._logic(ins, p, "|")

    def op_xor(self, ins, p, ops):
        self._logic(ins, p, "^")

    def op_not(self, ins, p, ops):
        self.put(ops[0], f"~{self.arr(ops[1], DTYPE[p[-1]])}", DTYPE[p[-1]])

    def op_cnot(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        self.put(ops[0], f"({self.arr(ops[1], dt)} == 0).astype({dt})", dt)

    def op_shl(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        bits = 8 * SIZE[dt]
        if isinstance(ops[2], Imm) and isinstance(ops[1], Reg):
            n = ops[2].value & 0xFFFFFFFF
            self.put(ops[0], f"{self.val(ops[1], dt)} << {self.const(n, dt)}" if n < bits else self.const_array(0, dt), dt)
        else:
            self.put(ops[0], f"nx.shl({self.arr(ops[1], dt)}, {self.val(ops[2], 'u4')}, {bits})", dt)

    def op_shr(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        bits = 8 * SIZE[dt]
        if isinstance(ops[2], Imm) and isinstance(ops[1], Reg) and ops[2].value & 0xFFFFFFFF < bits:
            self.put(ops[0], f"{self.val(ops[1], dt)} >> {self.const(ops[2].value, dt)}", dt)
        else:
            self.put(ops[0], f"nx.shr({self.arr(ops[1], dt)}, {self.val(ops[2], 'u4')}, {bits})", dt)

    def op_bfe(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        self.put(ops[0], f"nx.bfe({self.arr(ops[1], dt)}, {self.arr(ops[2], 'u4')}, {self.arr(ops[3], 'u4')}, {8 * SIZE[dt]})", dt)

    def op_bfi(self, ins, p, ops):
        dt = DTYPE[p[-1]]
        self.put(
            ops[0],
            f"nx.bfi({self.arr(ops[1], dt)}, {self.arr(ops[2], dt)}, {self.arr(ops[3], 'u4')}, {self.arr(ops[4], 'u4')}, {8 * SIZE[dt]})",
            dt,
        )

    def op_prmt(self, ins, p, ops):
        if p[-1] != "b32" or len(p) > 2:
            raise Unsupported(f"instruction {ins.opcode}")
        self.put(ops[0], f"nx.prmt({self.arr(ops[1], 'u4')}, {self.arr(ops[2], 'u4')}, {self.arr(ops[3], 'u4')})", "u4")

    def op_lop3(self, ins, p, ops):
        d, *src = ops
        a, b, c = (self.arr(x, "u4") for x in src[:3])
        value = self.let(f"nx.lop3({a}, {b}, {c}, {src[3].value})")
        combine = next((x for x in p if x in ("or", "and")), None)
        if combine:  # also a predicate: whether the result is not 0, combined with another
            q = self.arr(src[4], "?")
            self.put(d.second, f"({value} != 0) {'|' if combine == 'or' else '&'} {q}", "?")
            d = d.first
        self.put(d, value, "u4")

    def op_shf(self, ins, p, ops):
        a, b, n = (self.arr(x, "u4") for x in ops[1:4])
        self.put(ops[0], f"nx.shf({a}, {b}, {n}, {p[1] == 'l'}, {p[2] == 'wrap'})", "u4")

    def op_popc(self, ins, p, ops):
        self.put(ops[0], f"nx.popc({self.arr(ops[1], DTYPE[p[-1]])})", "u4")

    def op_clz(self, ins, p, ops):
        self.put(ops[0], f"nx.clz({self.arr(ops[1], DTYPE[p[-1]])})", "u4")

    def op_brev(self, ins, p, ops):
        self.put(ops[0], f"nx.brev({self.arr(ops[1], DTYPE[p[-1]])})", DTYPE[p[-1]])

    def op_bfind(self, ins, p, ops):
        self.put(ops[0], f"nx.bfind({self.arr(ops[1], DTYPE[p[-1]])}, {'shiftamt' in p})", "u4")
