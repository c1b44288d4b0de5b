// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-specialize,cse" | filecheck %s

// Row sums of a @ b^T. The sum of one block is taken while the MMA of the next runs: stage 1, ahead of the MMA in the order of a step.
//
// 24 KiB of tiles behind 1 KiB for mbarriers; each tensor gets a descriptor with boxes one swizzle span wide.
// CHECK-LABEL: "warp.kernel"
// CHECK:         %[[NB:.*]] = arith.ceildivsi
// CHECK-NEXT:    %[[SA:.*]] = "warp.buffer"() {offset = 1024 : i64, swizzle = 128 : i64} : () -> tensor<1x128x64xbf16, #tile.smem>
// CHECK-NEXT:    %[[SB:.*]] = "warp.buffer"() {offset = 17408 : i64, swizzle = 128 : i64} : () -> tensor<2x128x64xbf16, #tile.smem>
// CHECK-NEXT:    %[[MA:.*]] = "warp.tensor_map"(%[[A:.*]]) {box = array<i64: 128, 64>, swizzle = 128 : i64}
// CHECK-NEXT:    %[[MB:.*]] = "warp.tensor_map"(%[[B:.*]]) {box = array<i64: 128, 64>, swizzle = 128 : i64}
//
// The load role has its own loop, with nothing of stage 1.
// CHECK-NEXT:    "warp.role"() ({
// CHECK-NEXT:      "warp.tma_load"(%[[MA]], %[[SA]],
// CHECK:           scf.for %{{.*}} = %{{.*}} to %[[NB]] step
// CHECK-NEXT:        arith.muli
// CHECK-NEXT:        "warp.tma_load"(%[[MB]], %[[SB]],
// CHECK-NEXT:      }
// CHECK-NEXT:    }) {active = 1 : i64, registers = 24 : i64, sym_name = "load", warps = array<i64: 0, 1, 2, 3>}
//
// The compute role: prologue (the first MMA, if there is an iteration), steady state, epilogue (the last sum). Loop-carried sums share a fragment.
// CHECK-NEXT:    "warp.role"() ({
// CHECK-DAG:       %[[SUM:.*]] = "warp.fragment"() : () -> tensor<128x4xf32, #tile.reg>
// CHECK-DAG:       %[[P:.*]] = "warp.fragment"() : () -> tensor<128x128xf32, #tile.reg>
// CHECK-DAG:       %[[ROWS:.*]] = "warp.fragment"() : () -> tensor<128xf32, #tile.reg>
// CHECK:           "warp.fill"(%[[SUM]]) {value = 0.000000e+00 : f32}
// CHECK-NEXT:      %[[ANY:.*]] = arith.cmpi slt, %{{.*}}, %[[NB]]
// CHECK-NEXT:      scf.if %[[ANY]] {
// CHECK-NEXT:        "warp.wgmma"(%[[P]], %[[SA]], %[[SB]]) {accumulate = false
// CHECK-NEXT:      }
// CHECK:           scf.for %{{.*}} = %{{.*}} to %[[NB]] step %{{.*}} {
// CHECK-NEXT:        "warp.reduce"(%[[SUM]], %[[P]]) {accumulate = true, kind = "sum"}
// CHECK-NEXT:        "warp.wgmma"(%[[P]], %[[SA]], %[[SB]])
// CHECK-NEXT:      }
// CHECK:           scf.if %[[ANY]] {
// CHECK-NEXT:        "warp.reduce"(%[[SUM]], %[[P]])
// CHECK-NEXT:      }
// CHECK-NEXT:      "warp.reduce"(%[[ROWS]], %[[SUM]]) {accumulate = false, kind = "sum"}
// CHECK-NEXT:    }) {active = 8 : i64, registers = 240 : i64, sym_name = "compute", warps = array<i64: 4, 5, 6, 7, 8, 9, 10, 11>}
// CHECK-NEXT:  }) {smem_bytes = 50176 : i64, sym_name = "row_sums", threads = 384 : i64}
"tile.kernel"() ({
^bb0(%a: tensor<?x64xbf16, #tile.gmem>, %b: tensor<?x64xbf16, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c128 = arith.constant 128 : index
  %m0 = arith.muli %x, %c128 : index
  %n = "tile.dim"(%b) {axis = 0} : (tensor<?x64xbf16, #tile.gmem>) -> index
  %nb = arith.ceildivsi %n, %c128 : index
  %sa = "tile.load"(%a, %m0, %c0) {dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128x4xf32, #tile.reg>
  %sum = scf.for %i = %c0 to %nb step %c1 iter_args(%s = %zero) -> (tensor<128x4xf32, #tile.reg>) {
    %n0 = arith.muli %i, %c128 : index
    %sb = "tile.load"(%b, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
    %p = "tile.mma"(%sa, %sb) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x64xbf16, #tile.smem>, tensor<128x64xbf16, #tile.smem>) -> tensor<128x128xf32, #tile.reg>
    %s1 = "tile.reduce"(%p, %s) {kind = "sum", stage = 1, order = 0} : (tensor<128x128xf32, #tile.reg>, tensor<128x4xf32, #tile.reg>) -> tensor<128x4xf32, #tile.reg>
    scf.yield %s1 : tensor<128x4xf32, #tile.reg>
  }
  %r = "tile.reduce"(%sum) {kind = "sum"} : (tensor<128x4xf32, #tile.reg>) -> tensor<128xf32, #tile.reg>
}) {sym_name = "row_sums"} : () -> ()
