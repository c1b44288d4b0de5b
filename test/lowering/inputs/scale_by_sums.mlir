// out = S * (row sums of S), S = A @ B^T: one kernel writes the sums to a workspace, the next one reads them.
!a = tensor<?x?x64xbf16, #tile.gmem>
!w = tensor<?x?xf32, #tile.gmem>
!o = tensor<?x?x?xbf16, #tile.gmem>
!s = tensor<128x64xbf16, #tile.smem>
!acc = tensor<128x128xf32, #tile.reg>
!row = tensor<128xf32, #tile.reg>
module attributes {fa4c.target = "sm_90a"} {
"tile.host"() ({
^bb0(%a: !a, %b: !a, %sums: !w, %out: !o):
  %batch = "tile.dim"(%a) {axis = 0} : (!a) -> index
  %m = "tile.dim"(%a) {axis = 1} : (!a) -> index
  %n = "tile.dim"(%b) {axis = 1} : (!a) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %m, %c128 : index
  %gy = arith.ceildivsi %n, %c128 : index
  "tile.launch"(%gx, %c1, %batch, %a, %b, %sums) {kernel = @sum_rows, operandSegmentSizes = array<i32: 3, 3, 0>} : (index, index, index, !a, !a, !w) -> ()
  "tile.launch"(%gx, %gy, %batch, %a, %b, %sums, %out) {kernel = @scale, operandSegmentSizes = array<i32: 3, 4, 0>} : (index, index, index, !a, !a, !w, !o) -> ()
}) {sym_name = "scale_by_sums", tensors = [{name = "a", role = "input", dims = ["b", "m", "d"]}, {name = "b", role = "input", dims = ["b", "n", "d"]},
    {name = "sums", role = "workspace", axes = ["b"], dims = ["b", "m"], init = "none", lifetime = "call", pad = 4 : i64},
    {name = "out", role = "output", dims = ["b", "m", "n"]}]} : () -> ()
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
^bb0(%a: !a, %b: !a, %sums: !w, %out: !o):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c128 = arith.constant 128 : index
  %c0 = arith.constant 0 : index
  %m0 = arith.muli %x, %c128 : index
  %n0 = arith.muli %y, %c128 : index
  %sa = "tile.load"(%a, %z, %m0, %c0) {dims = array<i64: 1, 2>} : (!a, index, index, index) -> !s
  %sb = "tile.load"(%b, %z, %n0, %c0) {dims = array<i64: 1, 2>} : (!a, index, index, index) -> !s
  %s = "tile.mma"(%sa, %sb) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (!s, !s) -> !acc
  %sum = "tile.map"() ({
  ^bb0(%i: index, %j: index):
    %row = arith.addi %m0, %i : index
    %e = "tile.load_element"(%sums, %z, %row) : (!w, index, index) -> f32
    "tile.yield"(%e) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 0, 0>} : () -> !row
  %r = "tile.map"(%s, %sum) ({
  ^bb0(%e: f32, %f: f32, %i: index, %j: index):
    %t = arith.mulf %e, %f : f32
    %u = arith.truncf %t : f32 to bf16
    "tile.yield"(%u) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0>} : (!acc, !row) -> tensor<128x128xbf16, #tile.reg>
  %so = "tile.to_shared"(%r) : (tensor<128x128xbf16, #tile.reg>) -> tensor<128x128xbf16, #tile.smem>
  "tile.store"(%so, %out, %z, %m0, %n0) {dims = array<i64: 1, 2>} : (tensor<128x128xbf16, #tile.smem>, !o, index, index, index) -> ()
}) {sym_name = "scale"} : () -> ()
}
