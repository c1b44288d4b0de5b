"""Flash attention as a hand-written tile program: text made from a schedule, with which the interpreter's tests play.

Online softmax with a conditional rescale, row sums kept as partial sums, the causal mask applied to boundary blocks only.
"""

from dataclasses import dataclass, field

import numpy as np

# The order of FA-3: the next block's QK is issued, then this block's PV, then the next block's softmax; O is rescaled last.
IN_ORDER = {"load_k": (0, 0), "load_v": (0, 1), "qk": (0, 2), "pv": (1, 3), "mask": (0, 4), "row_max": (0, 5), "grows": (0, 6), "vote": (0, 7),
            "new_max": (0, 8), "factor": (0, 9), "p": (0, 10), "row_sum": (0, 11), "add_sum": (0, 12), "cast": (0, 13), "rescale": (0, 14)}


@dataclass
class Attention:
    """The program's parameters; `schedule` gives each operation of the loop its (stage, order), None for a plain loop."""

    schedule: dict | None = field(default_factory=lambda: dict(IN_ORDER))
    buffers: dict = field(default_factory=lambda: {"load_k": 2, "load_v": 2})
    block_m: int = 64
    block_n: int = 32
    head_dim: int = 32
    threshold: float = 8.0  # log2 of the growth of the row maximum that makes O be rescaled

    def at(self, name: str) -> str:
        """The schedule attributes of one operation."""
        if self.schedule is None or name not in self.schedule:
            return ""
        stage, order = self.schedule[name]
        return f", stage = {stage}, order = {order}"

    def text(self) -> str:
        bm, bn, d = self.block_m, self.block_n, self.head_dim
        scale = 1.4426950408889634 / d**0.5
        g4, g3 = f"tensor<?x?x?x{d}xbf16, #tile.gmem>", "tensor<?x?x?xf32, #tile.gmem>"
        q, kv = f"tensor<{bm}x{d}xbf16, #tile.smem>", f"tensor<{bn}x{d}xbf16, #tile.smem>"
        s, p, o = f"tensor<{bm}x{bn}xf32, #tile.reg>", f"tensor<{bm}x{bn}xbf16, #tile.reg>", f"tensor<{bm}x{d}xf32, #tile.reg>"
        row, part, flag = f"tensor<{bm}xf32, #tile.reg>", f"tensor<{bm}x4xf32, #tile.reg>", f"tensor<{bm}xi1, #tile.reg>"
        tensors = ", ".join(f'{{name = "{n}", role = "{r}", dims = [{d}]}}' for n, r, d in (
            ("q", "input", '"b", "m", "h", "d"'), ("k", "input", '"b", "n", "h", "d"'), ("v", "input", '"b", "n", "h", "d"'),
            ("o", "output", '"b", "m", "h", "d"'), ("lse", "output", '"b", "h", "m"')))
        arguments = f"%q: {g4}, %k: {g4}, %v: {g4}, %o: {g4}, %lse: {g3}"
        two_d = "dims = array<i64: 1, 3>"
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
  %sq = "tile.load"(%q, %b, %m0, %h, %c0) {{{two_d}}} : ({g4}, index, index, index, index) -> {q}
  %o_zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {o}
  %sum_zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {part}
  %max_none = "tile.splat"() {{value = 0xFF800000 : f32}} : () -> {row}
  %acc, %max, %sum = scf.for %i = %c0 to %blocks step %c1 iter_args(%oi = %o_zero, %mi = %max_none, %li = %sum_zero) -> ({o}, {row}, {part}) {{
    %n0 = arith.muli %i, %bn : index
    %n1 = arith.addi %n0, %bn : index
    %past_end = arith.cmpi sgt, %n1, %n : index
    %past_diagonal = arith.cmpi sgt, %n1, %m0 : index
    %boundary = arith.ori %past_end, %past_diagonal : i1
    %sk = "tile.load"(%k, %b, %n0, %h, %c0) {{{two_d}, buffers = {self.buffers["load_k"]}{self.at("load_k")}}}
      : ({g4}, index, index, index, index) -> {kv}
    %sv = "tile.load"(%v, %b, %n0, %h, %c0) {{{two_d}, buffers = {self.buffers["load_v"]}{self.at("load_v")}}}
      : ({g4}, index, index, index, index) -> {kv}
    %s = "tile.mma"(%sq, %sk) {{transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>{self.at("qk")}}} : ({q}, {kv}) -> {s}
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
    }}) {{operandSegmentSizes = array<i32: 1, 1>{self.at("mask")}}} : ({s}, i1) -> {s}
    %mx = "tile.reduce"(%sm, %mi) {{kind = "max"{self.at("row_max")}}} : ({s}, {row}) -> {row}
    %grows = "tile.map"(%mi, %mx) ({{
    ^bb0(%old: f32, %new: f32, %r: index, %c: index):
      %diff = arith.subf %new, %old : f32
      %scale = arith.constant {scale} : f32
      %octaves = arith.mulf %diff, %scale : f32
      %limit = arith.constant {self.threshold:e} : f32
      %yes = arith.cmpf ogt, %octaves, %limit : f32
      "tile.yield"(%yes) : (i1) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 0>{self.at("grows")}}} : ({row}, {row}) -> {flag}
    %any = "tile.vote_any"(%grows) {{{self.at("vote").removeprefix(", ")}}} : ({flag}) -> {flag}
    %mn = "tile.map"(%mi, %mx, %any) ({{
    ^bb0(%old: f32, %new: f32, %r: index, %c: index):
      "tile.yield"(%new) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 1>{self.at("new_max")}}} : ({row}, {row}, {flag}) -> {row}
    %f = "tile.rescale_factor"(%mi, %mn) {{scale_log2 = {scale} : f32{self.at("factor")}}} : ({row}, {row}) -> {row}
    %p = "tile.map"(%sm, %mn) ({{
    ^bb0(%e: f32, %top: f32, %r: index, %c: index):
      %inf = arith.constant 0xFF800000 : f32
      %zero = arith.constant 0.0 : f32
      %empty = arith.cmpf oeq, %top, %inf : f32
      %base = arith.select %empty, %zero, %top : f32
      %diff = arith.subf %e, %base : f32
      %scale = arith.constant {scale} : f32
      %t = arith.mulf %diff, %scale : f32
      %y = "tile.exp2"(%t) {{emulated = 4}} : (f32) -> f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 0>{self.at("p")}}} : ({s}, {row}) -> {s}
    %l0 = "tile.map"(%li, %f) ({{
    ^bb0(%l: f32, %factor: f32, %r: index, %c: index):
      %y = arith.mulf %l, %factor : f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 0>{self.at("row_sum")}}} : ({part}, {row}) -> {part}
    %l1 = "tile.reduce"(%p, %l0) {{kind = "sum"{self.at("add_sum")}}} : ({s}, {part}) -> {part}
    %pc = "tile.map"(%p) ({{
    ^bb0(%e: f32, %r: index, %c: index):
      %y = arith.truncf %e : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }}) {{operandSegmentSizes = array<i32: 1, 0>{self.at("cast")}}} : ({s}) -> {p}
    %o1 = "tile.map"(%oi, %f, %any) ({{
    ^bb0(%e: f32, %factor: f32, %r: index, %c: index):
      %y = arith.mulf %e, %factor : f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 1>{self.at("rescale")}}} : ({o}, {row}, {flag}) -> {o}
    %o2 = "tile.mma"(%pc, %sv, %o1) {{operandSegmentSizes = array<i32: 1, 1, 1>{self.at("pv")}}} : ({p}, {kv}, {o}) -> {o}
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
  "tile.store"(%so, %o, %b, %m0, %h, %c0) {{{two_d}}} : ({q}, {g4}, index, index, index, index) -> ()
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


def make_inputs(m: int, n: int, head_dim: int = 32, heads: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """q, k, v with values that bf16 holds exactly, large enough that the row maximum grows beyond any threshold now and then."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (1, m, heads, head_dim), "k": (1, n, heads, head_dim), "v": (1, n, heads, head_dim)}
    return {name: np.round(rng.standard_normal(shape) * 4 * 16) / 16 for name, shape in shapes.items()}


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Causal attention (top left) in float64 and its log-sum-exp; a row that sees no key gives 0 and -inf."""
    scores = np.einsum("bmhd,bnhd->bhmn", q, k) / q.shape[-1] ** 0.5
    rows, columns = np.indices(scores.shape[-2:])
    scores = np.where(columns <= rows, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return np.einsum("bhmn,bnhd->bmhd", p / np.where(total == 0, 1, total), v), lse
