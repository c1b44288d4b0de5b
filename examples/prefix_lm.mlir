// Prefix language model: keys inside the prefix are seen by every query, later ones causally.
// %prefix is the length of the prefix, one for each batch entry, so it is a captured scalar with the axis b.
func.func @prefix_lm(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x128xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x128xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]},
    %prefix: tensor<i32> {attn.name = "prefix", attn.axes = ["b"], attn.dims = [], attn.fill = "uniform(0,300)"})
    -> (tensor<?x128xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x128xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.0883883461 : f32  // 1 / sqrt(128)
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %u = "attn.mask"(%t) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %length = "attn.load"(%prefix) : (tensor<i32>) -> i32
    %length_index = arith.index_cast %length : i32 to index
    %in_prefix = arith.cmpi slt, %j, %length_index : index
    %causal = arith.cmpi sle, %j, %i : index
    %keep = arith.ori %in_prefix, %causal : i1
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>) -> tensor<?x128xf32>
  %r = "attn.cast"(%o) : (tensor<?x128xf32>) -> tensor<?x128xbf16>
  return %r, %lse : tensor<?x128xbf16>, tensor<?xf32>
}
