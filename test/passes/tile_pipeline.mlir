// RUN: %fa4c opt %s --pass-pipeline "tile-pipeline" | filecheck %s
// RUN: %fa4c opt %s --pass-pipeline "tile-pipeline{stages=1}" | filecheck %s --check-prefix=PLAIN
// RUN: %fa4c opt %s --pass-pipeline "tile-pipeline{buffers=3}" | filecheck %s --check-prefix=BUFFERS
// RUN: %fa4c opt %s --pass-pipeline "tile-pipeline,tile-pipeline" | filecheck %s

!a = tensor<?x64xbf16, #tile.gmem>
!a_tile = tensor<128x64xbf16, #tile.smem>
!s = tensor<128x128xf32, #tile.reg>
!p = tensor<128x128xbf16, #tile.reg>
!o = tensor<128x64xf32, #tile.reg>

// S of this block is issued, then the product that uses the last block's P; P is overwritten when that is done. The load of c belongs to
// the step that uses it.
// CHECK-LABEL: scf.for
// CHECK:         "tile.load"{{.*}}order = 0 : i64, stage = 0 : i64
// CHECK:         "tile.load"{{.*}}order = 2 : i64, stage = 1 : i64
// CHECK:         "tile.mma"{{.*}}order = 1 : i64, stage = 0 : i64
// CHECK:         "tile.map"
// CHECK:         order = 4 : i64, stage = 0 : i64
// CHECK:         "tile.mma"{{.*}}order = 3 : i64, stage = 1 : i64

// PLAIN-LABEL: scf.for
// PLAIN:         "tile.load"{{.*}}order = 0 : i64, stage = 0 : i64
// PLAIN:         "tile.load"{{.*}}order = 3 : i64, stage = 0 : i64
// PLAIN:         "tile.mma"{{.*}}order = 1 : i64, stage = 0 : i64
// PLAIN:         "tile.map"
// PLAIN:         order = 2 : i64, stage = 0 : i64
// PLAIN:         "tile.mma"{{.*}}order = 4 : i64, stage = 0 : i64

// The load outside of the loop keeps its one buffer.
// BUFFERS:     "tile.load"
// BUFFERS-NOT: buffers
// BUFFERS-LABEL: scf.for
// BUFFERS:       "tile.load"{{.*}}buffers = 3
// BUFFERS:       "tile.load"{{.*}}buffers = 3

// What stands outside of loops, and loops without MMAs, have no schedule.
// CHECK-LABEL: "tile.reduce"
// CHECK-NOT:     order
module {
"tile.kernel"() ({
^bb0(%a: !a, %b: !a, %c: !a, %sums: tensor<?xf32, #tile.gmem>, %blocks: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c128 = arith.constant 128 : index
  %sa = "tile.load"(%a, %c0, %c0) {dims = array<i64: 0, 1>} : (!a, index, index) -> !a_tile
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> !o
  %acc = scf.for %i = %c0 to %blocks step %c1 iter_args(%oi = %zero) -> (!o) {
    %n0 = arith.muli %i, %c128 : index
    %sb = "tile.load"(%b, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (!a, index, index) -> !a_tile
    %sc = "tile.load"(%c, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (!a, index, index) -> !a_tile
    %s = "tile.mma"(%sa, %sb) {transpose_b = true} : (!a_tile, !a_tile) -> !s
    %p = "tile.map"(%s) ({
    ^bb0(%e: f32, %row: index, %col: index):
      %y = arith.truncf %e : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>} : (!s) -> !p
    %o = "tile.mma"(%p, %sc, %oi) : (!p, !a_tile, !o) -> !o
    scf.yield %o : !o
  }
  %r = "tile.reduce"(%acc) {kind = "sum"} : (!o) -> tensor<128xf32, #tile.reg>
  "tile.store"(%r, %sums, %c0) {dims = array<i64: 0>} : (tensor<128xf32, #tile.reg>, tensor<?xf32, #tile.gmem>, index) -> ()
}) {sym_name = "two_gemms"} : () -> ()
}
