// out = relu(A @ B^T) @ C: two chained GEMMs in one kernel, no softmax. The product of the first never leaves the registers: it is cast to
// bf16 and is operand A of the second. The loop runs over the axis between the two, so the big intermediate matrix exists block by block.
module attributes {fa4c.target = "sm_90a"} {
"tile.host"() ({
^bb0(%a: tensor<?x64xbf16, #tile.gmem>, %b: tensor<?x64xbf16, #tile.gmem>, %c: tensor<?x128xbf16, #tile.gmem>, %out: tensor<?x128xbf16, #tile.gmem>):
  %m = "tile.dim"(%a) {axis = 0} : (tensor<?x64xbf16, #tile.gmem>) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %m, %c128 : index
  "tile.launch"(%gx, %c1, %c1, %a, %b, %c, %out) {kernel = @two_gemms_kernel, operandSegmentSizes = array<i32: 3, 4, 0>} : (index, index, index, tensor<?x64xbf16, #tile.gmem>, tensor<?x64xbf16, #tile.gmem>, tensor<?x128xbf16, #tile.gmem>, tensor<?x128xbf16, #tile.gmem>) -> ()
}) {sym_name = "two_gemms", tensors = [{name = "a", role = "input", dims = ["m", "d"]}, {name = "b", role = "input", dims = ["n", "d"]}, {name = "c", role = "input", dims = ["n", "dv"]}, {name = "out", role = "output", dims = ["m", "dv"]}]} : () -> ()
"tile.kernel"() ({
^bb0(%a: tensor<?x64xbf16, #tile.gmem>, %b: tensor<?x64xbf16, #tile.gmem>, %c: tensor<?x128xbf16, #tile.gmem>, %out: tensor<?x128xbf16, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c128 = arith.constant 128 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m0 = arith.muli %x, %c128 : index
  %n = "tile.dim"(%b) {axis = 0} : (tensor<?x64xbf16, #tile.gmem>) -> index
  %nb = arith.ceildivsi %n, %c128 : index
  %sa = "tile.load"(%a, %m0, %c0) {dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128x128xf32, #tile.reg>
  %acc = scf.for %i = %c0 to %nb step %c1 iter_args(%o = %zero) -> (tensor<128x128xf32, #tile.reg>) {
    %n0 = arith.muli %i, %c128 : index
    %sb = "tile.load"(%b, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
    %sc = "tile.load"(%c, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (tensor<?x128xbf16, #tile.gmem>, index, index) -> tensor<128x128xbf16, #tile.smem>
    %s = "tile.mma"(%sa, %sb) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x64xbf16, #tile.smem>, tensor<128x64xbf16, #tile.smem>) -> tensor<128x128xf32, #tile.reg>
    %p = "tile.map"(%s) ({
    ^bb0(%e: f32, %row: index, %col: index):
      %cst = arith.constant 0.0 : f32
      %relu = arith.maximumf %e, %cst : f32
      %t = arith.truncf %relu : f32 to bf16
      "tile.yield"(%t) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xbf16, #tile.reg>
    %o1 = "tile.mma"(%p, %sc, %o) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<128x128xbf16, #tile.reg>, tensor<128x128xbf16, #tile.smem>, tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.reg>
    scf.yield %o1 : tensor<128x128xf32, #tile.reg>
  }
  %r = "tile.map"(%acc) ({
  ^bb0(%e: f32, %row: index, %col: index):
    %t = arith.truncf %e : f32 to bf16
    "tile.yield"(%t) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xbf16, #tile.reg>
  %so = "tile.to_shared"(%r) : (tensor<128x128xbf16, #tile.reg>) -> tensor<128x128xbf16, #tile.smem>
  "tile.store"(%so, %out, %m0, %c0) {dims = array<i64: 0, 1>} : (tensor<128x128xbf16, #tile.smem>, tensor<?x128xbf16, #tile.gmem>, index, index) -> ()
}) {sym_name = "two_gemms_kernel"} : () -> ()
}
