// RUN: not %fa4c opt %s --pass-pipeline "warp-insert-barriers" 2>&1 | filecheck %s

// What nobody reads was not worth its copy, and its barrier would wait for nobody.
// CHECK: warp_insert_barriers_invalid.mlir:9:9: error: 'warp.buffer' is loaded but never read
// CHECK: note: fix: remove the load
"warp.kernel"() ({
^bb0(%a: tensor<?x64xbf16, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %sa = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x128x64xbf16, #tile.smem>
  %ma = "warp.tensor_map"(%a) {box = array<i64: 128, 64>, swizzle = 128} : (tensor<?x64xbf16, #tile.gmem>) -> !warp.descriptor
  "warp.role"() ({
    "warp.tma_load"(%ma, %sa, %c0, %c0) {operandSegmentSizes = array<i32: 1, 1, 0, 2>} : (!warp.descriptor, tensor<1x128x64xbf16, #tile.smem>, index, index) -> ()
  }) {sym_name = "load", warps = array<i64: 0, 1, 2, 3>, active = 1, registers = 24} : () -> ()
}) {sym_name = "k", threads = 128, smem_bytes = 17408} : () -> ()
