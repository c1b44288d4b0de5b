// Soft-capped scores: 30 * tanh(score / 30) keeps every score within (-30, 30), after the usual scale. Causal.
// The cap is one more line in the map; nothing else in the compiler knows of it.
func.func @softcap(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x128xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x128xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]})
    -> (tensor<?x128xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x128xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.0883883461 : f32  // 1 / sqrt(128)
    %y = arith.mulf %x, %c : f32
    %inverse_cap = arith.constant 0.0333333351 : f32
    %cap = arith.constant 30.0 : f32
    %z = arith.mulf %y, %inverse_cap : f32
    %w = math.tanh %z : f32
    %capped = arith.mulf %w, %cap : f32
    "attn.yield"(%capped) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %u = "attn.mask"(%t) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.cmpi sle, %j, %i : index
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>) -> tensor<?x128xf32>
  %r = "attn.cast"(%o) : (tensor<?x128xf32>) -> tensor<?x128xbf16>
  return %r, %lse : tensor<?x128xbf16>, tensor<?xf32>
}
