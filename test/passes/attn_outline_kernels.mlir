// RUN: %fa4c opt %examples/gqa.mlir --pass-pipeline attn-derive-backward,attn-transpose-recompute,attn-outline-kernels --no-loc | filecheck %s
// RUN: %fa4c opt %examples/gqa.mlir --pass-pipeline "attn-derive-backward{refine=5},attn-outline-kernels,attn-transpose-recompute,attn-simplify-mask,attn-to-tile" --no-loc | filecheck %s --check-prefix=TILE
// RUN: %fa4c opt %examples/gqa.mlir --pass-pipeline "attn-outline-kernels{stationary=m}" --no-loc | filecheck %s --check-prefix=FORWARD

// delta before the block loop; dQ, which every block of keys adds to, in f32. dK and dV are sums over a group of heads, which one CTA visits.
// CHECK-LABEL: func.func @gqa_bwd_preprocess
// CHECK-NOT:     attn.name = "q"
// CHECK-SAME:    attn.name = "lse_", attn.workspace}, tensor<?xf32> {attn.axes = ["b", "hq"], attn.dims = ["m"], attn.name = "delta", attn.workspace})
// CHECK-NOT:     attn.gemm
// CHECK:         "attn.reduce"
// The kernel that corrects delta, in place, where there are few keys. The others are what they are without it.
// CHECK-LABEL: func.func @gqa_bwd_refine
// CHECK-SAME:    %[[DELTA:[a-z0-9_]+]]: tensor<?xf32> {attn.axes = ["b", "hq"], attn.dims = ["m"], attn.name = "delta"})
// CHECK-SAME:    -> (tensor<?xf32> {attn.axes = ["b", "hq"], attn.dims = ["m"], attn.name = "delta", attn.workspace})
// CHECK-SAME:    attn.when = "n <= 16"
// CHECK-COUNT-2: "attn.gemm"
// CHECK-NOT:     attn.gemm
// CHECK:         %[[OFF:.*]] = "attn.reduce"
// CHECK-NEXT:    %[[FINE:.*]] = "attn.map"(%[[DELTA]], %[[OFF]]) ({
// CHECK-NOT:     arith.select
// CHECK:         return %[[FINE]] :
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

// On the host a condition around its launch; its one block of keys is no loop.
// TILE:        "tile.host"
// TILE:          "tile.launch"({{.*}}kernel = @gqa_bwd_preprocess
// TILE:          %[[FEW:.*]] = arith.cmpi sle, %{{.*}}, %c5
// TILE-NEXT:     scf.if %[[FEW]] {
// TILE:            "tile.launch"({{.*}}kernel = @gqa_bwd_refine
// TILE-NEXT:     }
// TILE-NOT:      scf.if
// TILE:          "tile.launch"({{.*}}kernel = @gqa_bwd_main
// TILE:        "tile.kernel"
// TILE:        "tile.kernel"
// TILE:          "tile.load"({{.*}} -> tensor<16x128xbf16, #tile.smem>
// TILE-NOT:      scf.for
// TILE:          sym_name = "gqa_bwd_refine"
