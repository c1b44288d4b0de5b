// RUN: %fa4c opt %s --pass-pipeline "tile-row-sum-by-mma" --no-loc | filecheck %s
// RUN: sed 's/sm_90a/sm_100a/' %s | %fa4c opt - --pass-pipeline "tile-row-sum-by-mma" --no-loc | filecheck %s --check-prefix=WIDE

!t = tensor<?x64xbf16, #tile.gmem>
!s = tensor<64x64xbf16, #tile.smem>
!r = tensor<64x64xbf16, #tile.reg>
!f = tensor<64x64xf32, #tile.reg>
!row = tensor<64xf32, #tile.reg>
!v = tensor<?xf32, #tile.gmem>
!t8 = tensor<?x8xbf16, #tile.gmem>
!s8 = tensor<64x8xbf16, #tile.smem>
!r8 = tensor<64x8xbf16, #tile.reg>
!f8 = tensor<64x8xf32, #tile.reg>
module attributes {fa4c.target = "sm_90a"} {

// The products are an MMA's; their sum, read by nothing else, is on its diagonal. The copies to registers go.
// CHECK:      %[[A:.*]] = "tile.load"
// CHECK-NEXT: %[[B:.*]] = "tile.load"
// CHECK-NEXT: %[[C:.*]] = "tile.mma"(%[[A]], %[[B]]) {transpose_b = true}
// CHECK-SAME:   -> tensor<64x64xf32, #tile.reg>
// CHECK-NEXT: %[[D:.*]] = "tile.map"(%[[C]])
// CHECK-NEXT: ^bb0(%[[X:.*]]: f32, %[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-NEXT:   %[[SAME:.*]] = arith.cmpi eq, %[[I]], %[[J]]
// CHECK-NEXT:   %[[ZERO:.*]] = arith.constant 0.0
// CHECK-NEXT:   arith.select %[[SAME]], %[[X]], %[[ZERO]]
// CHECK:      "tile.reduce"(%[[D]])
// CHECK-NOT:  from_shared
// CHECK:      sym_name = "sums"
// An MMA with its sum in tensor memory has 128 rows.
// WIDE-NOT: tile.mma
"tile.kernel"() ({
^bb0(%x: !t, %y: !t, %out: !v):
  %c0 = arith.constant 0 : index
  %a = "tile.load"(%x, %c0, %c0) {dims = array<i64: 0, 1>} : (!t, index, index) -> !s
  %b = "tile.load"(%y, %c0, %c0) {dims = array<i64: 0, 1>} : (!t, index, index) -> !s
  %ra = "tile.from_shared"(%a) : (!s) -> !r
  %rb = "tile.from_shared"(%b) : (!s) -> !r
  %p = "tile.map"(%ra, %rb) ({
  ^bb0(%e: bf16, %f: bf16, %row: index, %col: index):
    %g = arith.extf %e : bf16 to f32
    %h = arith.extf %f : bf16 to f32
    %v = arith.mulf %g, %h : f32
    "tile.yield"(%v) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0>} : (!r, !r) -> !f
  %sum = "tile.reduce"(%p) {kind = "sum", operandSegmentSizes = array<i32: 1, 0>} : (!f) -> !row
  "tile.store"(%sum, %out, %c0) {dims = array<i64: 0>} : (!row, !v, index) -> ()
}) {sym_name = "sums"} : () -> ()

// What is no sum of plain products stays: a maximum, a product with something else in it, rows of 8 where an MMA takes 16 at a time.
// CHECK-NOT:  tile.mma
// CHECK:      sym_name = "others"
"tile.kernel"() ({
^bb0(%x: !t, %y: !t, %z: !t8, %out: !v):
  %c0 = arith.constant 0 : index
  %a = "tile.load"(%x, %c0, %c0) {dims = array<i64: 0, 1>} : (!t, index, index) -> !s
  %b = "tile.load"(%y, %c0, %c0) {dims = array<i64: 0, 1>} : (!t, index, index) -> !s
  %ra = "tile.from_shared"(%a) : (!s) -> !r
  %rb = "tile.from_shared"(%b) : (!s) -> !r
  %p = "tile.map"(%ra, %rb) ({
  ^bb0(%e: bf16, %f: bf16, %row: index, %col: index):
    %g = arith.extf %e : bf16 to f32
    %h = arith.extf %f : bf16 to f32
    %v = arith.mulf %g, %h : f32
    "tile.yield"(%v) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0>} : (!r, !r) -> !f
  %max = "tile.reduce"(%p) {kind = "max", operandSegmentSizes = array<i32: 1, 0>} : (!f) -> !row
  "tile.store"(%max, %out, %c0) {dims = array<i64: 0>} : (!row, !v, index) -> ()
  %q = "tile.map"(%ra, %rb) ({
  ^bb0(%e: bf16, %f: bf16, %row: index, %col: index):
    %g = arith.extf %e : bf16 to f32
    %h = arith.extf %f : bf16 to f32
    %n = math.absf %h : f32
    %v = arith.mulf %g, %n : f32
    "tile.yield"(%v) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0>} : (!r, !r) -> !f
  %sum = "tile.reduce"(%q) {kind = "sum", operandSegmentSizes = array<i32: 1, 0>} : (!f) -> !row
  "tile.store"(%sum, %out, %c0) {dims = array<i64: 0>} : (!row, !v, index) -> ()
  %c = "tile.load"(%z, %c0, %c0) {dims = array<i64: 0, 1>} : (!t8, index, index) -> !s8
  %rc = "tile.from_shared"(%c) : (!s8) -> !r8
  %rd = "tile.from_shared"(%c) : (!s8) -> !r8
  %w = "tile.map"(%rc, %rd) ({
  ^bb0(%e: bf16, %f: bf16, %row: index, %col: index):
    %g = arith.extf %e : bf16 to f32
    %h = arith.extf %f : bf16 to f32
    %v = arith.mulf %g, %h : f32
    "tile.yield"(%v) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0>} : (!r8, !r8) -> !f8
  %narrow = "tile.reduce"(%w) {kind = "sum", operandSegmentSizes = array<i32: 1, 0>} : (!f8) -> !row
  "tile.store"(%narrow, %out, %c0) {dims = array<i64: 0>} : (!row, !v, index) -> ()
}) {sym_name = "others"} : () -> ()
}
