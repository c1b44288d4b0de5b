// RUN: %fa4c opt %examples/gqa.mlir --pass-pipeline attn-derive-backward,attn-transpose-recompute,attn-outline-kernels --no-loc | filecheck %s
// RUN: %fa4c opt %examples/gqa.mlir --pass-pipeline "attn-outline-kernels{stationary=m}" --no-loc | filecheck %s --check-prefix=FORWARD

// delta before the block loop; dQ, which every block of keys adds to, in f32. dK and dV are sums over a group of heads, which one CTA visits.
// CHECK-LABEL: func.func @gqa_bwd_preprocess
// CHECK-NOT:     attn.name = "q"
// CHECK-SAME:    attn.name = "lse_", attn.workspace}, tensor<?xf32> {attn.axes = ["b", "hq"], attn.dims = ["m"], attn.name = "delta", attn.workspace})
// CHECK-NOT:     attn.gemm
// CHECK:         "attn.reduce"
// CHECK-LABEL: func.func @gqa_bwd_main
// CHECK-SAME:    attn.name = "delta"})
// CHECK-SAME:    tensor<?x128xf32> {attn.axes = ["b", "hq"], attn.dims = ["m", "d"], attn.name = "dq_sum", attn.workspace}
// CHECK-SAME:    tensor<?x128xbf16> {attn.axes = ["b", "hkv"], attn.dims = ["n", "d"], attn.name = "dk"}
// CHECK-NOT:     attn.reduce
// CHECK-COUNT-5: "attn.gemm"
// CHECK-LABEL: func.func @gqa_bwd_postprocess
// CHECK-SAME:    tensor<?x128xbf16> {attn.axes = ["b", "hq"], attn.dims = ["m", "d"], attn.name = "dq"}
// CHECK-COUNT-1: "attn.cast"
// CHECK-NEXT:    return

// Where CTAs own queries, a forward is one kernel as it is.
// FORWARD:     func.func @gqa(
// FORWARD-NOT: func.func
