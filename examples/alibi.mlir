// ALiBi: a penalty that grows with the distance, slope_h * (j - i), with one slope a head instead of position embeddings. Causal.
// %slopes is a captured tensor: its only axis is the query head, so at one (batch, head) it is a scalar, loaded without an index.
func.func @alibi(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x128xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x128xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]},
    %slopes: tensor<f32> {attn.name = "slopes", attn.axes = ["hq"], attn.dims = [], attn.fill = "alibi"})
    -> (tensor<?x128xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x128xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.0883883461 : f32  // 1 / sqrt(128)
    %y = arith.mulf %x, %c : f32
    %slope = "attn.load"(%slopes) : (tensor<f32>) -> f32
    %distance = arith.subi %j, %i : index
    %distance32 = arith.index_cast %distance : index to i32
    %distance_f = arith.sitofp %distance32 : i32 to f32
    %bias = arith.mulf %slope, %distance_f : f32
    %biased = arith.addf %y, %bias : f32
    "attn.yield"(%biased) : (f32) -> ()
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
