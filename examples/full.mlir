// Full attention: every query sees every key. o = softmax(q k^T / sqrt(d)) v, and lse is the natural log of the row sums.
// No mask, so nothing depends on where a query stands and the alignment does not matter.
func.func @full(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x128xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x128xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]})
    -> (tensor<?x128xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x128xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.0883883461 : f32  // 1 / sqrt(128)
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%t) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>) -> tensor<?x128xf32>
  %r = "attn.cast"(%o) : (tensor<?x128xf32>) -> tensor<?x128xbf16>
  return %r, %lse : tensor<?x128xbf16>, tensor<?xf32>
}
