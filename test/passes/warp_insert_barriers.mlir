// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-insert-barriers" | filecheck %s
// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-insert-barriers,warp-check" | filecheck %s
// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-insert-barriers,warp-insert-barriers" | filecheck %s

// A buffer that is filled once needs full mbarriers only (arrivals = 0); a ring of 2 slots takes 8 arrivals, one of each reading warp.
// CHECK:         %[[SA:.*]] = "warp.buffer"() {offset = 1024
// CHECK:         %[[SB:.*]] = "warp.buffer"() {offset = 17408
// CHECK:         %[[QA:.*]] = "warp.pipeline"() {arrivals = 0 : i64, offset = 0 : i64, stages = 1 : i64, tx_bytes = 16384 : i64}
// CHECK-NEXT:    %[[QB:.*]] = "warp.pipeline"() {arrivals = 8 : i64, offset = 8 : i64, stages = 2 : i64, tx_bytes = 16384 : i64}
// CHECK-NEXT:    "warp.init_barriers"(%[[QA]], %[[QB]])
//
// Producer: phase 1, so that the first acquire finds empty slots.
// CHECK-NEXT:    "warp.role"() ({
// CHECK-NEXT:      %[[PA:.*]] = "warp.state"(%[[QA]]) {phase = 1 : i64}
// CHECK-NEXT:      %[[PB:.*]] = "warp.state"(%[[QB]]) {phase = 1 : i64}
// CHECK-NEXT:      "warp.elect"() ({
// CHECK-NEXT:        "warp.arm"(%[[PA]])
// CHECK-NEXT:        "warp.tma_load"(%{{.*}}, %[[SA]], %[[PA]],
// CHECK-NEXT:      }) {scope = "warp"}
// CHECK-NEXT:      scf.for
// CHECK:             "warp.acquire"(%[[PB]])
// CHECK-NEXT:        "warp.elect"() ({
// CHECK-NEXT:          "warp.arm"(%[[PB]])
// CHECK-NEXT:          "warp.tma_load"(%{{.*}}, %[[SB]], %[[PB]],
// CHECK-NEXT:        }) {scope = "warp"}
// CHECK-NEXT:        "warp.advance"(%[[PB]])
//
// Consumer: one wait for what came once, ahead of the loop; the slot is released after the wait that retires its last reader.
// CHECK:         "warp.role"() ({
// CHECK-NEXT:      %[[CA:.*]] = "warp.state"(%[[QA]]) {phase = 0 : i64}
// CHECK-NEXT:      %[[CB:.*]] = "warp.state"(%[[QB]]) {phase = 0 : i64}
// CHECK:           "warp.fill"
// CHECK-NEXT:      "warp.wait"(%[[CA]])
// CHECK-NEXT:      scf.for
// CHECK-NEXT:        "warp.wait"(%[[CB]])
// CHECK-NEXT:        "warp.wgmma_fence"()
// CHECK-NEXT:        "warp.wgmma"(%[[ACC:[A-Za-z0-9_]+]], %[[SA]], %[[SB]], %[[CA]], %[[CB]]) {accumulate = true
// CHECK-NEXT:        "warp.wgmma_commit"()
// CHECK-NEXT:        "warp.wgmma_wait"() {pending = 0 : i64}
// CHECK-NEXT:        "warp.release"(%[[CB]])
// CHECK-NEXT:        "warp.advance"(%[[CB]])
//
// Written by threads, read by TMA: proxy fence and a barrier of each warpgroup, then one thread stores and waits until the bytes were read.
// CHECK:           "warp.store_shared"(%[[SC:[A-Za-z0-9_]+]], %{{.*}})
// CHECK-NEXT:      "warp.fence_async"()
// CHECK-NEXT:      "warp.barrier"() {id = 1 : i64, scope = "warpgroup"}
// CHECK-NEXT:      "warp.elect"() ({
// CHECK-NEXT:        "warp.tma_store"(%{{[A-Za-z0-9_]+}}, %[[SC]],
// CHECK-NEXT:        "warp.store_commit"()
// CHECK-NEXT:      }) {scope = "warpgroup"}
// CHECK-NEXT:      "warp.elect"() ({
// CHECK-NEXT:        "warp.store_wait"() {pending = 0 : i64}
// CHECK-NEXT:      }) {scope = "warpgroup"}
"warp.kernel"() ({
^bb0(%a: tensor<?x64xbf16, #tile.gmem>, %b: tensor<?x64xbf16, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c128 = arith.constant 128 : index
  %n = "tile.dim"(%b) {axis = 0} : (tensor<?x64xbf16, #tile.gmem>) -> index
  %nb = arith.ceildivsi %n, %c128 : index
  %sa = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x128x64xbf16, #tile.smem>
  %sb = "warp.buffer"() {offset = 17408, swizzle = 128} : () -> tensor<2x128x64xbf16, #tile.smem>
  %sc = "warp.buffer"() {offset = 50176, swizzle = 128} : () -> tensor<1x128x128xbf16, #tile.smem>
  %ma = "warp.tensor_map"(%a) {box = array<i64: 128, 64>, swizzle = 128} : (tensor<?x64xbf16, #tile.gmem>) -> !warp.descriptor
  %mb = "warp.tensor_map"(%b) {box = array<i64: 128, 64>, swizzle = 128} : (tensor<?x64xbf16, #tile.gmem>) -> !warp.descriptor
  %mc = "warp.tensor_map"(%c) {box = array<i64: 64, 64>, swizzle = 128} : (tensor<?x?xbf16, #tile.gmem>) -> !warp.descriptor
  "warp.role"() ({
    "warp.tma_load"(%ma, %sa, %c0, %c0) {operandSegmentSizes = array<i32: 1, 1, 0, 2>} : (!warp.descriptor, tensor<1x128x64xbf16, #tile.smem>, index, index) -> ()
    scf.for %i = %c0 to %nb step %c1 {
      %n0 = arith.muli %i, %c128 : index
      "warp.tma_load"(%mb, %sb, %n0, %c0) {operandSegmentSizes = array<i32: 1, 1, 0, 2>} : (!warp.descriptor, tensor<2x128x64xbf16, #tile.smem>, index, index) -> ()
    }
  }) {sym_name = "load", warps = array<i64: 0, 1, 2, 3>, active = 1, registers = 24} : () -> ()
  "warp.role"() ({
    %acc = "warp.fragment"() : () -> tensor<128x128xf32, #tile.reg>
    %out = "warp.fragment"() : () -> tensor<128x128xbf16, #tile.reg>
    "warp.fill"(%acc) {value = 0.0 : f32} : (tensor<128x128xf32, #tile.reg>) -> ()
    scf.for %i = %c0 to %nb step %c1 {
      "warp.wgmma"(%acc, %sa, %sb) {accumulate = true, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (tensor<128x128xf32, #tile.reg>, tensor<1x128x64xbf16, #tile.smem>, tensor<2x128x64xbf16, #tile.smem>) -> ()
    }
    "warp.map"(%out, %acc) ({
    ^bb0(%x: f32, %row: index, %col: index):
      %y = arith.truncf %x : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }) : (tensor<128x128xbf16, #tile.reg>, tensor<128x128xf32, #tile.reg>) -> ()
    "warp.store_shared"(%sc, %out) : (tensor<1x128x128xbf16, #tile.smem>, tensor<128x128xbf16, #tile.reg>) -> ()
    "warp.tma_store"(%mc, %sc, %c0, %c0) {row = 0} : (!warp.descriptor, tensor<1x128x128xbf16, #tile.smem>, index, index) -> ()
  }) {sym_name = "compute", warps = array<i64: 4, 5, 6, 7, 8, 9, 10, 11>, active = 8, registers = 240} : () -> ()
}) {sym_name = "k", threads = 384, smem_bytes = 82944} : () -> ()
