"""Tile programs that the tests of `tile-pipeline` schedule: attention forward with parameters, written without schedule."""

import numpy as np

LOG2_E = 1.4426950408889634


def attention(block_m: int = 128, block_n: int = 128, head_dim: int = 128, *, buffers: int = 2, conditional: bool = False,
              emulated: int = 0, pins: dict | None = None) -> str:
    """Causal attention: K and V loads, S = QK, boundary mask, online softmax with partial row sums, O rescaled, O += PV.

    `conditional` rescales O, and moves the maximum, only where it grew by more than 8 octaves. `pins`: name -> attribute text.
    """
    bm, bn, d = block_m, block_n, head_dim
    scale = LOG2_E / d**0.5
    g4, g3 = f"tensor<?x?x?x{d}xbf16, #tile.gmem>", "tensor<?x?x?xf32, #tile.gmem>"
    q, kv = f"tensor<{bm}x{d}xbf16, #tile.smem>", f"tensor<{bn}x{d}xbf16, #tile.smem>"
    s, p, o = f"tensor<{bm}x{bn}xf32, #tile.reg>", f"tensor<{bm}x{bn}xbf16, #tile.reg>", f"tensor<{bm}x{d}xf32, #tile.reg>"
    row, part, flag = f"tensor<{bm}xf32, #tile.reg>", f"tensor<{bm}x4xf32, #tile.reg>", f"tensor<{bm}xi1, #tile.reg>"
    pins = {name: ", " + text for name, text in (pins or {}).items()}
    tensors = ", ".join(f'{{name = "{n}", role = "{r}", dims = [{dims}]}}' for n, r, dims in (
        ("q", "input", '"b", "m", "h", "d"'), ("k", "input", '"b", "n", "h", "d"'), ("v", "input", '"b", "n", "h", "d"'),
        ("o", "output", '"b", "m", "h", "d"'), ("lse", "output", '"b", "h", "m"')))
    arguments = f"%q: {g4}, %k: {g4}, %v: {g4}, %o: {g4}, %lse: {g3}"
    box = "dims = array<i64: 1, 3>"

    def at(name: str) -> str:
        return pins.get(name, "")

    def binary(result, a, b, kind_a, kind_b, kind, element, lines, name, cond="") -> str:
        operands, kinds = [a, b] + ([cond] if cond else []), [kind_a, kind_b] + ([flag] if cond else [])
        return f"""    {result} = "tile.map"({", ".join(operands)}) ({{
    ^bb0(%e: f32, %w: f32, %r: index, %c: index):
{lines}
      "tile.yield"(%y) : ({element}) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, {int(bool(cond))}>{at(name)}}} : ({", ".join(kinds)}) -> {kind}"""

    times = "      %y = arith.mulf %e, %w : f32"
    if conditional:
        maximum = f"""    %mx = "tile.reduce"(%sm, %mi) {{kind = "max"{at("row_max")}}} : ({s}, {row}) -> {row}
""" + binary("%grows", "%mi", "%mx", row, row, flag, "i1", f"""      %diff = arith.subf %w, %e : f32
      %scale = arith.constant {scale} : f32
      %octaves = arith.mulf %diff, %scale : f32
      %limit = arith.constant 8.0 : f32
      %y = arith.cmpf ogt, %octaves, %limit : f32""", "grows") + f"""
    %any = "tile.vote_any"(%grows) {{{at("vote").removeprefix(", ")}}} : ({flag}) -> {flag}
""" + binary("%mn", "%mi", "%mx", row, row, row, "f32", "      %zero = arith.constant 0.0 : f32\n      %y = arith.addf %w, %zero : f32",
             "new_max", "%any")
    else:
        maximum = f"""    %mn = "tile.reduce"(%sm, %mi) {{kind = "max"{at("row_max")}}} : ({s}, {row}) -> {row}"""
    return f"""
"tile.host"() ({{
^bb0({arguments}):
  %b = "tile.dim"(%q) {{axis = 0}} : ({g4}) -> index
  %m = "tile.dim"(%q) {{axis = 1}} : ({g4}) -> index
  %h = "tile.dim"(%q) {{axis = 2}} : ({g4}) -> index
  %bm = arith.constant {bm} : index
  %gx = arith.ceildivsi %m, %bm : index
  "tile.launch"(%gx, %h, %b, %q, %k, %v, %o, %lse) {{kernel = @attention, operandSegmentSizes = array<i32: 3, 5, 0>}}
    : (index, index, index, {g4}, {g4}, {g4}, {g4}, {g3}) -> ()
}}) {{sym_name = "host", tensors = [{tensors}]}} : () -> ()
"tile.kernel"() ({{
^bb0({arguments}):
  %x, %h, %b = "tile.program_id"() : () -> (index, index, index)
  %bm = arith.constant {bm} : index
  %bn = arith.constant {bn} : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m0 = arith.muli %x, %bm : index
  %n = "tile.dim"(%k) {{axis = 1}} : ({g4}) -> index
  %m1 = arith.addi %m0, %bm : index
  %visible = arith.minsi %n, %m1 : index
  %blocks = arith.ceildivsi %visible, %bn : index
  %sq = "tile.load"(%q, %b, %m0, %h, %c0) {{{box}}} : ({g4}, index, index, index, index) -> {q}
  %o_zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {o}
  %sum_zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {part}
  %max_none = "tile.splat"() {{value = 0xFF800000 : f32}} : () -> {row}
  %acc, %max, %sum = scf.for %i = %c0 to %blocks step %c1
      iter_args(%oi = %o_zero, %mi = %max_none, %li = %sum_zero) -> ({o}, {row}, {part}) {{
    %n0 = arith.muli %i, %bn : index
    %n1 = arith.addi %n0, %bn : index
    %past_end = arith.cmpi sgt, %n1, %n : index
    %past_diagonal = arith.cmpi sgt, %n1, %m0 : index
    %boundary = arith.ori %past_end, %past_diagonal : i1
    %sk = "tile.load"(%k, %b, %n0, %h, %c0) {{{box}, buffers = {buffers}{at("load_k")}}} : ({g4}, index, index, index, index) -> {kv}
    %sv = "tile.load"(%v, %b, %n0, %h, %c0) {{{box}, buffers = {buffers}{at("load_v")}}} : ({g4}, index, index, index, index) -> {kv}
    %s = "tile.mma"(%sq, %sk) {{transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>{at("qk")}}} : ({q}, {kv}) -> {s}
    %sm = "tile.map"(%s, %boundary) ({{
    ^bb0(%e: f32, %r: index, %c: index):
      %row = arith.addi %m0, %r : index
      %col = arith.addi %n0, %c : index
      %causal = arith.cmpi sle, %col, %row : index
      %inside = arith.cmpi slt, %col, %n : index
      %keep = arith.andi %causal, %inside : i1
      %inf = arith.constant 0xFF800000 : f32
      %y = arith.select %keep, %e, %inf : f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 1, 1>{at("mask")}}} : ({s}, i1) -> {s}
{maximum}
    %f = "tile.rescale_factor"(%mi, %mn) {{scale_log2 = {scale} : f32{at("factor")}}} : ({row}, {row}) -> {row}
{binary("%p", "%sm", "%mn", s, row, s, "f32", f'''      %inf = arith.constant 0xFF800000 : f32
      %zero = arith.constant 0.0 : f32
      %empty = arith.cmpf oeq, %w, %inf : f32
      %base = arith.select %empty, %zero, %w : f32
      %diff = arith.subf %e, %base : f32
      %scale = arith.constant {scale} : f32
      %t = arith.mulf %diff, %scale : f32
      %y = "tile.exp2"(%t) {{emulated = {emulated}}} : (f32) -> f32''', "p")}
{binary("%l0", "%li", "%f", part, row, part, "f32", times, "row_sum")}
    %l1 = "tile.reduce"(%p, %l0) {{kind = "sum"{at("add_sum")}}} : ({s}, {part}) -> {part}
    %pc = "tile.map"(%p) ({{
    ^bb0(%e: f32, %r: index, %c: index):
      %y = arith.truncf %e : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }}) {{operandSegmentSizes = array<i32: 1, 0>{at("cast")}}} : ({s}) -> {p}
{binary("%o1", "%oi", "%f", o, row, o, "f32", times, "rescale", "%any" if conditional else "")}
    %o2 = "tile.mma"(%pc, %sv, %o1) {{operandSegmentSizes = array<i32: 1, 1, 1>{at("pv")}}} : ({p}, {kv}, {o}) -> {o}
    scf.yield %o2, %mn, %l1 : {o}, {row}, {part}
  }}
  %l = "tile.reduce"(%sum) {{kind = "sum"}} : ({part}) -> {row}
  %r = "tile.map"(%acc, %l) ({{
  ^bb0(%e: f32, %total: f32, %row: index, %col: index):
    %zero = arith.constant 0.0 : f32
    %empty = arith.cmpf oeq, %total, %zero : f32
    %y = arith.divf %e, %total : f32
    %z = arith.select %empty, %zero, %y : f32
    %t = arith.truncf %z : f32 to bf16
    "tile.yield"(%t) : (bf16) -> ()
  }}) {{operandSegmentSizes = array<i32: 2, 0>}} : ({o}, {row}) -> tensor<{bm}x{d}xbf16, #tile.reg>
  %so = "tile.to_shared"(%r) : (tensor<{bm}x{d}xbf16, #tile.reg>) -> {q}
  "tile.store"(%so, %o, %b, %m0, %h, %c0) {{{box}}} : ({q}, {g4}, index, index, index, index) -> ()
  %log = "tile.map"(%max, %l) ({{
  ^bb0(%top: f32, %total: f32, %row: index, %col: index):
    %scale = arith.constant {scale} : f32
    %t = arith.mulf %top, %scale : f32
    %g = math.log2 %total : f32
    %sum2 = arith.addf %t, %g : f32
    %ln2 = arith.constant 0.6931471805599453 : f32
    %y = arith.mulf %sum2, %ln2 : f32
    "tile.yield"(%y) : (f32) -> ()
  }}) {{operandSegmentSizes = array<i32: 2, 0>}} : ({row}, {row}) -> {row}
  "tile.store"(%log, %lse, %b, %h, %m0) {{dims = array<i64: 2>}} : ({row}, {g3}, index, index, index) -> ()
}}) {{sym_name = "attention"}} : () -> ()
"""


def make_inputs(m: int, n: int, head_dim: int, heads: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """q, k, v of values that bf16 holds exactly, large enough that the row maximum grows by more than 8 octaves now and then."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (1, m, heads, head_dim), "k": (1, n, heads, head_dim), "v": (1, n, heads, head_dim)}
    return {name: np.round(rng.standard_normal(shape) * 4 * 16) / 16 for name, shape in shapes.items()}


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Causal attention in float64 and its log-sum-exp; a row that sees no key gives 0 and -inf."""
    scores = np.einsum("bmhd,bnhd->bhmn", q, k) / q.shape[-1] ** 0.5
    rows, columns = np.indices(scores.shape[-2:])
    scores = np.where(columns <= rows, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return np.einsum("bhmn,bnhd->bmhd", p / np.where(total == 0, 1, total), v), lse


def five_mmas(block_m: int = 64, block_n: int = 128, d: int = 128, *, buffers: int = 2) -> str:
    """The data flow of attention's backward (S^T, dP^T, dV, dK, dQ^T) over blocks of Q and dO, without its row statistics."""
    g = f"tensor<?x{d}xbf16, #tile.gmem>"
    gt, gq = "tensor<?x?xbf16, #tile.gmem>", "tensor<?x?xbf16, #tile.gmem>"
    qs, ks, kts = (f"tensor<{rows}x{columns}xbf16, #tile.smem>" for rows, columns in ((block_m, d), (block_n, d), (d, block_n)))
    s, s16 = f"tensor<{block_n}x{block_m}xf32, #tile.reg>", f"tensor<{block_n}x{block_m}xbf16, #tile.reg>"
    ss, acc = f"tensor<{block_n}x{block_m}xbf16, #tile.smem>", f"tensor<{block_n}x{d}xf32, #tile.reg>"
    dq, dq16 = f"tensor<{d}x{block_m}xf32, #tile.reg>", f"tensor<{d}x{block_m}xbf16, #tile.reg>"
    dqs = f"tensor<{d}x{block_m}xbf16, #tile.smem>"
    out = f"tensor<{block_n}x{d}xbf16, #tile.reg>"
    names = ("q", "do", "k", "v", "kt", "dq", "dk", "dv")
    kinds = (g, g, g, g, gt, gq, g, g)
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    dims = {"q": '"m", "d"', "do": '"m", "d"', "k": '"n", "d"', "v": '"n", "d"', "kt": '"d", "n"', "dq": '"d", "m"', "dk": '"n", "d"',
            "dv": '"n", "d"'}
    tensors = ", ".join(f'{{name = "{name}", role = "{"output" if name[0] == "d" and name != "do" else "input"}", dims = [{dims[name]}]}}'
                        for name in names)

    def load(result, source, row, column, kind, tile, copies="") -> str:
        return (f'%{result} = "tile.load"(%{source}, {row}, {column}) {{dims = array<i64: 0, 1>{copies}}} : '
                f"({kind}, index, index) -> {tile}")

    def cast(result, value, kind, to) -> str:
        return f"""%{result} = "tile.map"(%{value}) ({{
    ^bb0(%e: f32, %r: index, %c: index):
      %y = arith.truncf %e : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }}) {{operandSegmentSizes = array<i32: 1, 0>}} : ({kind}) -> {to}"""

    more = f", buffers = {buffers}"
    return f"""
"tile.host"() ({{
^bb0({arguments}):
  %n = "tile.dim"(%k) {{axis = 0}} : ({g}) -> index
  %bn = arith.constant {block_n} : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %n, %bn : index
  "tile.launch"(%gx, %c1, %c1, {", ".join("%" + name for name in names)}) {{kernel = @five, operandSegmentSizes = array<i32: 3, 8, 0>}}
    : (index, index, index, {", ".join(kinds)}) -> ()
}}) {{sym_name = "host", tensors = [{tensors}]}} : () -> ()
"tile.kernel"() ({{
^bb0({arguments}):
  %x, %unused1, %unused2 = "tile.program_id"() : () -> (index, index, index)
  %bn = arith.constant {block_n} : index
  %bm = arith.constant {block_m} : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n0 = arith.muli %x, %bn : index
  %m = "tile.dim"(%q) {{axis = 0}} : ({g}) -> index
  %blocks = arith.ceildivsi %m, %bm : index
  {load("sk", "k", "%n0", "%c0", g, ks)}
  {load("sv", "v", "%n0", "%c0", g, ks)}
  {load("skt", "kt", "%c0", "%n0", gt, kts)}
  %zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {acc}
  %dvs, %dks = scf.for %i = %c0 to %blocks step %c1 iter_args(%dvi = %zero, %dki = %zero) -> ({acc}, {acc}) {{
    %m0 = arith.muli %i, %bm : index
    {load("sq", "q", "%m0", "%c0", g, qs, more)}
    %s = "tile.mma"(%sk, %sq) {{transpose_b = true}} : ({ks}, {qs}) -> {s}
    {load("sdo", "do", "%m0", "%c0", g, qs, more)}
    %dp = "tile.mma"(%sv, %sdo) {{transpose_b = true}} : ({ks}, {qs}) -> {s}
    %p = "tile.map"(%s) ({{
    ^bb0(%e: f32, %r: index, %c: index):
      %y = "tile.exp2"(%e) {{emulated = 0}} : (f32) -> f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 1, 0>}} : ({s}) -> {s}
    {cast("pc", "p", s, s16)}
    %dv1 = "tile.mma"(%pc, %sdo, %dvi) : ({s16}, {qs}, {acc}) -> {acc}
    %ds = "tile.map"(%p, %dp) ({{
    ^bb0(%e: f32, %w: f32, %r: index, %c: index):
      %y = arith.mulf %e, %w : f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 0>}} : ({s}, {s}) -> {s}
    {cast("dsc", "ds", s, s16)}
    %sds = "tile.to_shared"(%dsc) : ({s16}) -> {ss}
    %dqa = "tile.mma"(%skt, %sds) : ({kts}, {ss}) -> {dq}
    %dk1 = "tile.mma"(%dsc, %sq, %dki) : ({s16}, {qs}, {acc}) -> {acc}
    {cast("dqc", "dqa", dq, dq16)}
    %sdq = "tile.to_shared"(%dqc) : ({dq16}) -> {dqs}
    "tile.store"(%sdq, %dq, %c0, %m0) {{dims = array<i64: 0, 1>}} : ({dqs}, {gq}, index, index) -> ()
    scf.yield %dv1, %dk1 : {acc}, {acc}
  }}
  {cast("dvr", "dvs", acc, out)}
  %sdv = "tile.to_shared"(%dvr) : ({out}) -> {ks}
  "tile.store"(%sdv, %dv, %n0, %c0) {{dims = array<i64: 0, 1>}} : ({ks}, {g}, index, index) -> ()
  {cast("dkr", "dks", acc, out)}
  %sdk = "tile.to_shared"(%dkr) : ({out}) -> {ks}
  "tile.store"(%sdk, %dk, %n0, %c0) {{dims = array<i64: 0, 1>}} : ({ks}, {g}, index, index) -> ()
}}) {{sym_name = "five"}} : () -> ()
"""
