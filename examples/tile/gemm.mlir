module attributes {fa4c.target = "sm_90a"} {
"tile.host"() ({
^bb0(%a: tensor<?x?xbf16, #tile.gmem>, %b: tensor<?x?xbf16, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):
  %m = "tile.dim"(%a) {axis = 0} : (tensor<?x?xbf16, #tile.gmem>) -> index
  %n = "tile.dim"(%b) {axis = 0} : (tensor<?x?xbf16, #tile.gmem>) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %m, %c128 : index
  %gy = arith.ceildivsi %n, %c128 : index
  "tile.launch"(%gx, %gy, %c1, %a, %b, %c) {kernel = @gemm_kernel, operandSegmentSizes = array<i32: 3, 3, 0>} : (index, index, index, tensor<?x?xbf16, #tile.gmem>, tensor<?x?xbf16, #tile.gmem>, tensor<?x?xbf16, #tile.gmem>) -> ()
}) {sym_name = "gemm", tensors = [{name = "a", role = "input", dims = ["m", "k"]}, {name = "b", role = "input", dims = ["n", "k"]}, {name = "c", role = "output", dims = ["m", "n"]}]} : () -> ()
"tile.kernel"() ({
^bb0(%a: tensor<?x?xbf16, #tile.gmem>, %b: tensor<?x?xbf16, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c128 = arith.constant 128 : index
  %c64 = arith.constant 64 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m0 = arith.muli %x, %c128 : index
  %n0 = arith.muli %y, %c128 : index
  %k = "tile.dim"(%a) {axis = 1} : (tensor<?x?xbf16, #tile.gmem>) -> index
  %kb = arith.ceildivsi %k, %c64 : index
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128x128xf32, #tile.reg>
  %acc = scf.for %i = %c0 to %kb step %c1 iter_args(%s = %zero) -> (tensor<128x128xf32, #tile.reg>) {
    %k0 = arith.muli %i, %c64 : index
    %sa = "tile.load"(%a, %m0, %k0) {dims = array<i64: 0, 1>, buffers = 4} : (tensor<?x?xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
    %sb = "tile.load"(%b, %n0, %k0) {dims = array<i64: 0, 1>, buffers = 4} : (tensor<?x?xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
    %s1 = "tile.mma"(%sa, %sb, %s) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<128x64xbf16, #tile.smem>, tensor<128x64xbf16, #tile.smem>, tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.reg>
    scf.yield %s1 : tensor<128x128xf32, #tile.reg>
  }
  %r = "tile.map"(%acc) ({
  ^bb0(%e: f32, %i: index, %j: index):
    %t = arith.truncf %e : f32 to bf16
    "tile.yield"(%t) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xbf16, #tile.reg>
  %sc = "tile.to_shared"(%r) : (tensor<128x128xbf16, #tile.reg>) -> tensor<128x128xbf16, #tile.smem>
  "tile.store"(%sc, %c, %m0, %n0) {dims = array<i64: 0, 1>} : (tensor<128x128xbf16, #tile.smem>, tensor<?x?xbf16, #tile.gmem>, index, index) -> ()
}) {sym_name = "gemm_kernel"} : () -> ()
}
