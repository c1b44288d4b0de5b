"""Attention's backward with five GEMMs over sums in tensor memory, at the tile level, for the tests of schedules and of columns.

A CTA keeps a block of keys and walks over blocks of queries: S^T, dP^T, dV += P^T dO, dK += dS^T Q, and dQ = dS K, which is added to global
memory. Of a CTA pair this is one CTA's part: S^T, dP^T, dV and dK are as wide as with one CTA; dQ has half the columns, since its rows are
split between the CTAs, and its 64 rows lie in 128 lanes (fact sheet of FA-4 on Blackwell, 8.2). Here that half is dQ's first columns.
"""

import numpy as np


def order(*words: str) -> dict[str, str]:
    """A step, as attributes: `"s", "dv+1"`; +1 works for the iteration before."""
    found = {}
    for n, word in enumerate(" ".join(words).split()):
        name, _, stage = word.partition("+")
        found[name] = f"stage = {stage or 0}, order = {n}"
    return found


# The orders of the fact sheet (2.4), each from S of a step on: one CTA, head dim above 64; one CTA, head dim 64; a pair; a pair without
# overlap. What the sheet calls dV(t+1) at the end of a step is dV of the iteration before at the beginning of the next one.
ONE_CTA = order("dv+1 q s dk+1 dq+1 lse p pc dqr+1 add+1 do dp delta ds dst dss")
ONE_CTA_64 = order("q s dv+1 dk+1 dq+1 lse p pc dqr+1 add+1 do dp delta ds dst dss")
PAIR = order("dv+1 q s dk+1 lse p pc do dp dq+1 dqr+1 add+1 delta ds dst dss")
PAIR_SERIAL = order("q s lse p pc do dp delta ds dst dss dk dv dq dqr add")


def program(d: int, dv: int = 0, *, bm: int = 128, bn: int = 128, pair: bool = False, schedule: dict | None = None) -> str:
    """bm queries x bn keys; `schedule`: name -> attributes (`order`), by default none."""
    dv, dq = dv or d, d // 2 if pair else d
    place = {name: ", " + text for name, text in (schedule or {}).items()}
    gq, go = (f"tensor<?x{w}xbf16, #tile.gmem>" for w in (d, dv))
    gdq, gf, gdk, gdv = f"tensor<?x{dq}xf32, #tile.gmem>", "tensor<?xf32, #tile.gmem>", gq, go
    names = ("q", "do", "k", "v", "lse", "delta", "dq", "dk", "dv")
    kinds = (gq, go, gq, go, gf, gf, gdq, gdk, gdv)
    dims = ("m d", "m dv", "n d", "n dv", "m", "m", "m dqd", "n d", "n dv")
    roles = ("input",) * 6 + ("output",) * 3
    tensors = ", ".join(
        f'{{name = "{n}", role = "{r}", dims = [{", ".join(chr(34) + x + chr(34) for x in dim.split())}]{zero}}}'
        for n, r, dim, zero in zip(names, roles, dims, ("",) * 6 + (', init = "zero"', "", ""), strict=True))
    arguments = ", ".join(f"%g{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    s_t, p_t = f"tensor<{bn}x{bm}xf32, #tile.tmem<-1>>", f"tensor<{bn}x{bm}xbf16, #tile.tmem<-1>>"
    s_r, p_r, p_s = f"tensor<{bn}x{bm}xf32, #tile.reg>", f"tensor<{bn}x{bm}xbf16, #tile.reg>", f"tensor<{bn}x{bm}xbf16, #tile.smem>"
    dq_t, dq_r = (f"tensor<{bm}x{dq}xf32, #tile.{space}>" for space in ("tmem<-1>", "reg"))
    row = f"tensor<1x{bm}xf32, #tile.smem>"
    wide, narrow, whole = (f"tensor<{rows}x{w}xbf16, #tile.smem>" for rows, w in ((bn, d), (bn, dv), (bn, dq)))
    q_s, do_s = f"tensor<{bm}x{d}xbf16, #tile.smem>", f"tensor<{bm}x{dv}xbf16, #tile.smem>"
    dk_t, dv_t = f"tensor<{bn}x{d}xf32, #tile.tmem<-1>>", f"tensor<{bn}x{dv}xf32, #tile.tmem<-1>>"

    def load(name, result, source, coords, kind, tile, copies=True) -> str:
        axes = "array<i64: 0, 1>" if "," in coords else "array<i64: 0>"
        more = f", buffers = 2{place.get(name, '')}" if copies else ""
        types = ", ".join([kind, *["index"] * len(coords.split(","))])
        return f'%{result} = "tile.load"(%{source}, {coords}) {{dims = {axes}{more}}} : ({types}) -> {tile}'

    def mma(name, a, b, kinds, out, acc="", flags="") -> str:
        result = name + "1" if acc else name
        operands, types = ["%" + o for o in (a, b, acc) if o], [*kinds, *([out] if acc else [])]
        sizes = f"operandSegmentSizes = array<i32: 1, 1, {int(bool(acc))}>"
        return f'%{result} = "tile.mma"({", ".join(operands)}) {{{sizes}{flags}{place.get(name, "")}}} : ({", ".join(types)}) -> {out}'

    def tile_map(name, inputs, kinds, out, body, scheduled=True) -> str:
        elements = ["f32"] * len(inputs)
        arguments = ", ".join(f"%x{n}: {e}" for n, e in enumerate(elements))
        element = "bf16" if "bf16" in out else "f32"
        return f"""%{name} = "tile.map"({", ".join("%" + i for i in inputs)}) ({{
    ^bb0({arguments}, %r: index, %c: index):
{body}
      "tile.yield"(%y) : ({element}) -> ()
    }}) {{operandSegmentSizes = array<i32: {len(inputs)}, 0>{place.get(name, "") if scheduled else ""}}} : ({", ".join(kinds)}) -> {out}"""

    cast = "      %y = arith.truncf %x0 : f32 to bf16"
    copy = "      %zero = arith.constant 0.0 : f32\n      %y = arith.addf %x0, %zero : f32"
    kinds_text = ", ".join(kinds)
    return f"""module attributes {{fa4c.target = "sm_100a"}} {{
"tile.host"() ({{
^bb0({arguments}):
  %n = "tile.dim"(%gk) {{axis = 0}} : ({gq}) -> index
  %bn = arith.constant {bn} : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %n, %bn : index
  "tile.launch"(%gx, %c1, %c1, {", ".join("%g" + name for name in names)}) {{kernel = @five, operandSegmentSizes = array<i32: 3, 9, 0>}}
    : (index, index, index, {kinds_text}) -> ()
}}) {{sym_name = "host", tensors = [{tensors}]}} : () -> ()
"tile.kernel"() ({{
^bb0({arguments}):
  %x, %unused1, %unused2 = "tile.program_id"() : () -> (index, index, index)
  %bn = arith.constant {bn} : index
  %bm = arith.constant {bm} : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n0 = arith.muli %x, %bn : index
  %m = "tile.dim"(%gq) {{axis = 0}} : ({gq}) -> index
  %blocks = arith.ceildivsi %m, %bm : index
  {load("k", "sk", "gk", "%n0, %c0", gq, wide, False)}
  {load("v", "sv", "gv", "%n0, %c0", go, narrow, False)}
  {load("kq", "skq", "gk", "%n0, %c0", gq, whole, False) if pair else ""}
  %dk = "tile.splat"() {{value = 0.0 : f32}} : () -> {dk_t}
  %dv = "tile.splat"() {{value = 0.0 : f32}} : () -> {dv_t}
  %dks, %dvs = scf.for %i = %c0 to %blocks step %c1 iter_args(%dki = %dk, %dvi = %dv) -> ({dk_t}, {dv_t}) {{
    %m0 = arith.muli %i, %bm : index
    {load("q", "sq", "gq", "%m0, %c0", gq, q_s)}
    {mma("s", "sk", "sq", (wide, q_s), s_t, flags=", transpose_b = true")}
    {load("lse", "slse", "glse", "%m0", gf, row)}
    {tile_map("p", ("s", "slse"), (s_t, row), s_r, "      %t = arith.subf %x0, %x1 : f32" + chr(10) + "      %y = math.exp2 %t : f32")}
    {tile_map("pc", ("p",), (s_r,), p_t, cast)}
    {load("do", "sdo", "gdo", "%m0, %c0", go, do_s)}
    {mma("dp", "sv", "sdo", (narrow, do_s), s_t, flags=", transpose_b = true")}
    {mma("dv", "pc", "sdo", (p_t, do_s), dv_t, "dvi")}
    {load("delta", "sdelta", "gdelta", "%m0", gf, row)}
    {tile_map("ds", ("dp", "p", "sdelta"), (s_t, s_r, row), p_r, "      %t = arith.subf %x0, %x2 : f32" + chr(10)
              + "      %u = arith.mulf %x1, %t : f32" + chr(10) + "      %y = arith.truncf %u : f32 to bf16")}
    {tile_map("dst", ("ds",), (p_r,), p_t, "").replace("%x0: f32", "%x0: bf16").replace("(%y)", "(%x0)")}
    {mma("dk", "dst", "sq", (p_t, q_s), dk_t, "dki")}
    %dss = "tile.to_shared"(%ds) {{{place.get("dss", "").removeprefix(", ")}}} : ({p_r}) -> {p_s}
    {mma("dq", "dss", "skq" if pair else "sk", (p_s, whole if pair else wide), dq_t, flags=", transpose_a = true")}
    {tile_map("dqr", ("dq",), (dq_t,), dq_r, copy)}
    "tile.global_add"(%dqr, %gdq, %m0, %c0) {{dims = array<i64: 0, 1>, staged = 32, buffers = 2{place.get("add", "")}}}
      : ({dq_r}, {gdq}, index, index) -> ()
    scf.yield %dk1, %dv1 : {dk_t}, {dv_t}
  }}
  {tile_map("dkr", ("dks",), (dk_t,), f"tensor<{bn}x{d}xbf16, #tile.reg>", cast, False)}
  %sdk = "tile.to_shared"(%dkr) : (tensor<{bn}x{d}xbf16, #tile.reg>) -> {wide}
  "tile.store"(%sdk, %gdk, %n0, %c0) {{dims = array<i64: 0, 1>}} : ({wide}, {gdk}, index, index) -> ()
  {tile_map("dvr", ("dvs",), (dv_t,), f"tensor<{bn}x{dv}xbf16, #tile.reg>", cast, False)}
  %sdv = "tile.to_shared"(%dvr) : (tensor<{bn}x{dv}xbf16, #tile.reg>) -> {narrow}
  "tile.store"(%sdv, %gdv, %n0, %c0) {{dims = array<i64: 0, 1>}} : ({narrow}, {gdv}, index, index) -> ()
}}) {{sym_name = "five"}} : () -> ()
}}
"""


def inputs(m: int, n: int, d: int, dv: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (m, d), "do": (m, dv or d), "k": (n, d), "v": (n, dv or d), "lse": (m,), "delta": (m,)}
    return {name: rng.standard_normal(shape) / 8 for name, shape in shapes.items()}


def reference(q, do, k, v, lse, delta, *, pair: bool = False) -> dict[str, np.ndarray]:
    """In float64, with P and dS unrounded."""
    p = np.exp2(q @ k.T - lse[:, None])
    ds = p * (do @ v.T - delta[:, None])
    dq = ds @ k
    return {"dq": dq[:, : dq.shape[1] // 2] if pair else dq, "dk": ds.T @ q, "dv": p.T @ do}
