// What the backward does with scores, without the softmax: program_id x counts blocks of 128 keys, the loop blocks of 128 queries.
// s^T = k q^T, w = bf16(relu(s^T)), dk += w q, and dq += w^T k, whose sum runs over the keys of all CTAs.
!x = tensor<?x64xbf16, #tile.gmem>
!sum = tensor<?x64xf32, #tile.gmem>
!tile = tensor<128x64xbf16, #tile.smem>
!s = tensor<128x128xf32, #tile.reg>
!w = tensor<128x128xbf16, #tile.reg>
!d = tensor<128x64xf32, #tile.reg>
module attributes {fa4c.target = "sm_100a"} {
"tile.host"() ({
^bb0(%q: !x, %k: !x, %dq: !sum, %dk: !x):
  %n = "tile.dim"(%k) {axis = 0} : (!x) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %blocks = arith.ceildivsi %n, %c128 : index
  "tile.launch"(%blocks, %c1, %c1, %q, %k, %dq, %dk) {kernel = @sum_over_rows, operandSegmentSizes = array<i32: 3, 4, 0>} : (index, index, index, !x, !x, !sum, !x) -> ()
}) {sym_name = "sums", tensors = [{name = "q", role = "input", dims = ["m", "d"]}, {name = "k", role = "input", dims = ["n", "d"]}, {name = "dq", role = "output", dims = ["m", "d"], init = "zero"}, {name = "dk", role = "output", dims = ["n", "d"]}]} : () -> ()
"tile.kernel"() ({
^bb0(%q: !x, %k: !x, %dq: !sum, %dk: !x):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c128 = arith.constant 128 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n0 = arith.muli %x, %c128 : index
  %m = "tile.dim"(%q) {axis = 0} : (!x) -> index
  %blocks = arith.ceildivsi %m, %c128 : index
  %sk = "tile.load"(%k, %n0, %c0) {dims = array<i64: 0, 1>} : (!x, index, index) -> !tile
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> !d
  %sum = scf.for %i = %c0 to %blocks step %c1 iter_args(%acc = %zero) -> (!d) {
    %m0 = arith.muli %i, %c128 : index
    %sq = "tile.load"(%q, %m0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (!x, index, index) -> !tile
    %st = "tile.mma"(%sk, %sq) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (!tile, !tile) -> !s
    %w = "tile.map"(%st) ({
    ^bb0(%e: f32, %row: index, %column: index):
      %least = arith.constant 0.0 : f32
      %positive = arith.maximumf %e, %least : f32
      %rounded = arith.truncf %positive : f32 to bf16
      "tile.yield"(%rounded) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>} : (!s) -> !w
    %added = "tile.mma"(%w, %sq, %acc) {operandSegmentSizes = array<i32: 1, 1, 1>} : (!w, !tile, !d) -> !d
    %sw = "tile.to_shared"(%w) : (!w) -> tensor<128x128xbf16, #tile.smem>
    %part = "tile.mma"(%sw, %sk) {transpose_a = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x128xbf16, #tile.smem>, !tile) -> !d
    %spart = "tile.to_shared"(%part) : (!d) -> tensor<128x64xf32, #tile.smem>
    "tile.global_add"(%spart, %dq, %m0, %c0) {dims = array<i64: 0, 1>} : (tensor<128x64xf32, #tile.smem>, !sum, index, index) -> ()
    scf.yield %added : !d
  }
  %r = "tile.map"(%sum) ({
  ^bb0(%e: f32, %row: index, %column: index):
    %rounded = arith.truncf %e : f32 to bf16
    "tile.yield"(%rounded) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (!d) -> tensor<128x64xbf16, #tile.reg>
  %sr = "tile.to_shared"(%r) : (tensor<128x64xbf16, #tile.reg>) -> !tile
  "tile.store"(%sr, %dk, %n0, %c0) {dims = array<i64: 0, 1>} : (!tile, !x, index, index) -> ()
}) {sym_name = "sum_over_rows"} : () -> ()
}
