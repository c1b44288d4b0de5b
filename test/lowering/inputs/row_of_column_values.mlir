// out[j, d] = sum over i of (S^T[j, i] - sums[i]) A[i, d], S^T = B @ A^T; sums, the row sums of S, by a kernel before. Rows are n here, so that
// the values of the other axis are a row: 1 x 64 loaded by TMA from a workspace, in two rotating buffers, spread over the rows of a map.
!a = tensor<?x?x64xbf16, #tile.gmem>
!w = tensor<?x?xf32, #tile.gmem>
!s = tensor<128x64xbf16, #tile.smem>
!k = tensor<64x64xbf16, #tile.smem>
!l = tensor<1x64xf32, #tile.smem>
!acc = tensor<128x128xf32, #tile.reg>
!st = tensor<128x64xf32, #tile.reg>
!row = tensor<128xf32, #tile.reg>
module attributes {fa4c.target = "sm_90a"} {
"tile.host"() ({
^bb0(%a: !a, %b: !a, %sums: !w, %out: !a):
  %batch = "tile.dim"(%a) {axis = 0} : (!a) -> index
  %m = "tile.dim"(%a) {axis = 1} : (!a) -> index
  %n = "tile.dim"(%b) {axis = 1} : (!a) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %m, %c128 : index
  %gy = arith.ceildivsi %n, %c128 : index
  "tile.launch"(%gx, %c1, %batch, %a, %b, %sums) {kernel = @sum_rows, operandSegmentSizes = array<i32: 3, 3, 0>} : (index, index, index, !a, !a, !w) -> ()
  "tile.launch"(%gy, %c1, %batch, %a, %b, %sums, %out) {kernel = @subtract, operandSegmentSizes = array<i32: 3, 4, 0>} : (index, index, index, !a, !a, !w, !a) -> ()
}) {sym_name = "subtract_sums", tensors = [{name = "a", role = "input", dims = ["b", "m", "d"]}, {name = "b", role = "input", dims = ["b", "n", "d"]},
    {name = "sums", role = "workspace", axes = ["b"], dims = ["b", "m"], init = "none", lifetime = "call", pad = 4 : i64},
    {name = "out", role = "output", dims = ["b", "n", "d"]}]} : () -> ()
"tile.kernel"() ({
^bb0(%a: !a, %b: !a, %sums: !w):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c128 = arith.constant 128 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m0 = arith.muli %x, %c128 : index
  %n = "tile.dim"(%b) {axis = 1} : (!a) -> index
  %blocks = arith.ceildivsi %n, %c128 : index
  %sa = "tile.load"(%a, %z, %m0, %c0) {dims = array<i64: 1, 2>} : (!a, index, index, index) -> !s
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> !row
  %sum = scf.for %i = %c0 to %blocks step %c1 iter_args(%before = %zero) -> (!row) {
    %n0 = arith.muli %i, %c128 : index
    %sb = "tile.load"(%b, %z, %n0, %c0) {dims = array<i64: 1, 2>, buffers = 2} : (!a, index, index, index) -> !s
    %s = "tile.mma"(%sa, %sb) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (!s, !s) -> !acc
    %after = "tile.reduce"(%s, %before) {kind = "sum"} : (!acc, !row) -> !row
    scf.yield %after : !row
  }
  "tile.store"(%sum, %sums, %z, %m0) {dims = array<i64: 1>} : (!row, !w, index, index) -> ()
}) {sym_name = "sum_rows"} : () -> ()
"tile.kernel"() ({
^bb0(%a: !a, %b: !a, %sums: !w, %out: !a):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c128 = arith.constant 128 : index
  %c64 = arith.constant 64 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n0 = arith.muli %x, %c128 : index
  %m = "tile.dim"(%a) {axis = 1} : (!a) -> index
  %blocks = arith.ceildivsi %m, %c64 : index
  %sb = "tile.load"(%b, %z, %n0, %c0) {dims = array<i64: 1, 2>} : (!a, index, index, index) -> !s
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> !st
  %acc = scf.for %i = %c0 to %blocks step %c1 iter_args(%o = %zero) -> (!st) {
    %m0 = arith.muli %i, %c64 : index
    %sa = "tile.load"(%a, %z, %m0, %c0) {dims = array<i64: 1, 2>, buffers = 2} : (!a, index, index, index) -> !k
    %sum = "tile.load"(%sums, %z, %m0) {dims = array<i64: 1>, buffers = 2} : (!w, index, index) -> !l
    %s = "tile.mma"(%sb, %sa) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (!s, !k) -> !st
    %t = "tile.map"(%s, %sum) ({
    ^bb0(%e: f32, %f: f32, %row: index, %col: index):
      %g = arith.subf %e, %f : f32
      "tile.yield"(%g) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 2, 0>} : (!st, !l) -> !st
    %p = "tile.map"(%t) ({
    ^bb0(%e: f32, %row: index, %col: index):
      %u = arith.truncf %e : f32 to bf16
      "tile.yield"(%u) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>} : (!st) -> tensor<128x64xbf16, #tile.reg>
    %o1 = "tile.mma"(%p, %sa, %o) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<128x64xbf16, #tile.reg>, !k, !st) -> !st
    scf.yield %o1 : !st
  }
  %r = "tile.map"(%acc) ({
  ^bb0(%e: f32, %i: index, %j: index):
    %u = arith.truncf %e : f32 to bf16
    "tile.yield"(%u) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (!st) -> tensor<128x64xbf16, #tile.reg>
  %so = "tile.to_shared"(%r) : (tensor<128x64xbf16, #tile.reg>) -> !s
  "tile.store"(%so, %out, %z, %n0, %c0) {dims = array<i64: 1, 2>} : (!s, !a, index, index, index) -> ()
}) {sym_name = "subtract"} : () -> ()
}
