// A schedule that the text pins is kept if it is right. Here P is cast while the last product may still read the P before.
// RUN: not %fa4c opt %s --pass-pipeline "tile-pipeline" 2>&1 | filecheck %s
// CHECK: tile_pipeline_invalid.mlir:28:10: error: 'tile.map' is pinned too early (stage = 0, order = 2): it must run after {{.*}} (tile.mma)
// CHECK-NEXT: note: why: it overwrites what {{.*}} (tile.mma) reads in the iteration before
// CHECK-NEXT: note: fix: change its stage or order, or that of the other, or remove both for a schedule to be found

// RUN: not %fa4c opt %s --pass-pipeline "tile-pipeline{stages=-2}" 2>&1 | filecheck %s --check-prefix=COUNT
// COUNT: error: stages=-2 is no count

!a = tensor<?x64xbf16, #tile.gmem>
!a_tile = tensor<128x64xbf16, #tile.smem>
!s = tensor<128x128xf32, #tile.reg>
!p = tensor<128x128xbf16, #tile.reg>
!o = tensor<128x64xf32, #tile.reg>
module {
"tile.kernel"() ({
^bb0(%a: !a, %b: !a, %c: !a, %blocks: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c128 = arith.constant 128 : index
  %sa = "tile.load"(%a, %c0, %c0) {dims = array<i64: 0, 1>} : (!a, index, index) -> !a_tile
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> !o
  %acc = scf.for %i = %c0 to %blocks step %c1 iter_args(%oi = %zero) -> (!o) {
    %n0 = arith.muli %i, %c128 : index
    %sb = "tile.load"(%b, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (!a, index, index) -> !a_tile
    %sc = "tile.load"(%c, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (!a, index, index) -> !a_tile
    %s = "tile.mma"(%sa, %sb) {transpose_b = true, order = 1} : (!a_tile, !a_tile) -> !s
    %p = "tile.map"(%s) ({
    ^bb0(%e: f32, %row: index, %col: index):
      %y = arith.truncf %e : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>, stage = 0, order = 2} : (!s) -> !p
    %o = "tile.mma"(%p, %sc, %oi) {stage = 1, order = 3} : (!p, !a_tile, !o) -> !o
    scf.yield %o : !o
  }
}) {sym_name = "two_gemms"} : () -> ()
}

// RUN: sed 's/^!s = \(.*\)reg>/!s = \1tmem<-1>>/' %s | not %fa4c opt - --pass-pipeline "tile-pipeline" 2>&1 | filecheck %s --check-prefix=TMEM
// TMEM: error: 'tile.mma' makes tensor<128x128xf32, #tile.tmem<-1 : i64>>
// TMEM-NEXT: note: why: sm_90a has no tensor memory
