// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-specialize,cse,warp-insert-barriers,warp-check" | filecheck %s
// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-specialize{epilogue=no},cse,warp-insert-barriers,warp-check" | filecheck %s --check-prefix=NO

// Tiles of a @ b^T, one after the other. Who computes hands each warpgroup's rows over in a ring of its own; the role `epilogue` stores
// them as they come, and gives the first half back while the second is still read.
// CHECK:      "warp.buffer"() {{.*}} -> tensor<1x64x64xbf16, #tile.smem>
// CHECK-NEXT: %[[BUFFER:.*]] = "warp.buffer"() {{.*}} -> tensor<1x256x64xbf16, #tile.smem>
// CHECK:      %[[RING:.*]] = "warp.pipeline"() {arrivals = 1 : i64, fills = 4 : i64, groups = 2 : i64,
// CHECK:      sym_name = "mma", warps = array<i64: 1>}
// CHECK-NEXT: "warp.role"() ({
// CHECK-NEXT:   %[[FIRST:.*]] = "warp.state"(%[[RING]]) {group = 0 : i64, phase = 0 : i64}
// CHECK-NEXT:   %[[SECOND:.*]] = "warp.state"(%[[RING]]) {group = 1 : i64, phase = 0 : i64}
// CHECK:        "warp.wait"(%[[FIRST]])
// CHECK-NEXT:   "warp.elect"() ({
// CHECK-NEXT:     "warp.tma_put"(%{{.*}}, %[[BUFFER]], %[[FIRST]],
// CHECK-NEXT:     "warp.store_commit"
// CHECK-NEXT:   })
// CHECK-NEXT:   "warp.wait"(%[[SECOND]])
// CHECK-NEXT:   "warp.elect"() ({
// CHECK-NEXT:     "warp.tma_put"(%{{.*}}, %[[BUFFER]], %[[SECOND]],
// CHECK-NEXT:     "warp.store_commit"
// CHECK-NEXT:     "warp.store_wait"() {pending = 1 : i64}
// CHECK-NEXT:   })
// CHECK-NEXT:   "warp.release"(%[[FIRST]])
// CHECK-NEXT:   "warp.advance"(%[[FIRST]])
// CHECK-NEXT:   "warp.elect"() ({
// CHECK-NEXT:     "warp.store_wait"() {pending = 0 : i64}
// CHECK-NEXT:   })
// CHECK-NEXT:   "warp.release"(%[[SECOND]])
// CHECK-NEXT:   "warp.advance"(%[[SECOND]])
// CHECK:      {active = 1 : i64, registers = 56 : i64, sym_name = "epilogue", warps = array<i64: 2, 3>}
// CHECK:        %[[OURS:.*]] = "warp.state"(%[[RING]]) {phase = 1 : i64}
// CHECK:        "warp.acquire"(%[[OURS]])
// CHECK-NEXT:   "warp.store_shared"(%[[BUFFER]], %{{.*}}, %[[OURS]])
// CHECK-NEXT:   "warp.fence_async"
// CHECK-NEXT:   "warp.sync_warp"
// CHECK-NEXT:   "warp.arrive"(%[[OURS]])
// CHECK-NEXT:   "warp.advance"(%[[OURS]])
// CHECK-NOT:    "warp.barrier"
// CHECK-NOT:    "warp.store_wait"
// CHECK:      sym_name = "compute"
//
// Without it each warpgroup waits for its own stores, and all its threads for the one that does.
// NO-NOT:     "warp.tma_put"
// NO:         sym_name = "mma", warps = array<i64: 1, 2, 3>}
// NO:           "warp.store_wait"
// NO:           "warp.barrier"
// NO:           "warp.store_shared"
// NO:           "warp.barrier"
// NO:           "warp.tma_store"
module attributes {fa4c.target = "sm_100a"} {
  "tile.kernel"() ({
  ^bb0(%a: tensor<?x64xbf16, #tile.gmem>, %b: tensor<?x64xbf16, #tile.gmem>, %c: tensor<?x64xbf16, #tile.gmem>, %tiles: index, %ctas: index):
    %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
    %c0 = arith.constant 0 : index
    %c256 = arith.constant 256 : index
    scf.for %t = %x to %tiles step %ctas {
      %m0 = arith.muli %t, %c256 : index
      %sa = "tile.load"(%a, %m0, %c0) {dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<256x64xbf16, #tile.smem>
      %sb = "tile.load"(%b, %c0, %c0) {dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<64x64xbf16, #tile.smem>
      %p = "tile.mma"(%sa, %sb) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<256x64xbf16, #tile.smem>, tensor<64x64xbf16, #tile.smem>) -> tensor<256x64xf32, #tile.tmem<0>>
      %r = "tile.map"(%p) ({
      ^bb0(%v: f32, %row: index, %column: index):
        %h = arith.truncf %v : f32 to bf16
        "tile.yield"(%h) : (bf16) -> ()
      }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<256x64xf32, #tile.tmem<0>>) -> tensor<256x64xbf16, #tile.reg>
      %sc = "tile.to_shared"(%r) : (tensor<256x64xbf16, #tile.reg>) -> tensor<256x64xbf16, #tile.smem>
      "tile.store"(%sc, %c, %m0, %c0) {dims = array<i64: 0, 1>} : (tensor<256x64xbf16, #tile.smem>, tensor<?x64xbf16, #tile.gmem>, index, index) -> ()
    }
  }) {sym_name = "tiles"} : () -> ()
}
