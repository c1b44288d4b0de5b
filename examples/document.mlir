// Several documents in one sequence: a query sees the keys of its own document, causally.
// %doc holds the document number of each position. It is read at %i and at %j, so which keys belong together is known only at run time;
// the causal part still bounds the loop over keys.
func.func @document(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x128xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x128xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]},
    %doc: tensor<?xi32> {attn.name = "doc", attn.axes = ["b"], attn.dims = ["n"], attn.fill = "sorted_ids(4)"})
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
    %doc_i = "attn.load"(%doc, %i) : (tensor<?xi32>, index) -> i32
    %doc_j = "attn.load"(%doc, %j) : (tensor<?xi32>, index) -> i32
    %same = arith.cmpi eq, %doc_i, %doc_j : i32
    %causal = arith.cmpi sle, %j, %i : index
    %keep = arith.andi %same, %causal : i1
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>) -> tensor<?x128xf32>
  %r = "attn.cast"(%o) : (tensor<?x128xf32>) -> tensor<?x128xbf16>
  return %r, %lse : tensor<?x128xbf16>, tensor<?xf32>
}
