// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-interleave-columns" | filecheck %s

// A sum that one kernel adds to from registers and another one reads into registers: both buffers, in either kernel.
// An output, and a workspace that is read element by element, keep their order.
// CHECK-LABEL: "warp.kernel"
// CHECK:         %{{.*}} = "warp.buffer"() {interleaved = true, offset = 1024 : i64, swizzle = 128 : i64}
// CHECK:         %{{.*}} = "warp.buffer"() {offset = 33792 : i64, swizzle = 128 : i64}
// CHECK:         %{{.*}} = "warp.buffer"() {offset = 66560 : i64, swizzle = 128 : i64}
// CHECK:         sym_name = "adds"
// CHECK-LABEL: "warp.kernel"
// CHECK:         %{{.*}} = "warp.buffer"() {interleaved = true, offset = 1024 : i64, swizzle = 128 : i64}
// CHECK:         sym_name = "reads"
"tile.host"() ({
^bb0(%sum: tensor<?x64xf32, #tile.gmem>, %out: tensor<?x64xf32, #tile.gmem>, %read: tensor<?x64xf32, #tile.gmem>):
  %c1 = arith.constant 1 : index
  "tile.launch"(%c1, %c1, %c1, %sum, %out, %read) {kernel = @adds, operandSegmentSizes = array<i32: 3, 3, 0>} : (index, index, index, tensor<?x64xf32, #tile.gmem>, tensor<?x64xf32, #tile.gmem>, tensor<?x64xf32, #tile.gmem>) -> ()
  "tile.launch"(%c1, %c1, %c1, %sum, %out, %read) {kernel = @reads, operandSegmentSizes = array<i32: 3, 3, 0>} : (index, index, index, tensor<?x64xf32, #tile.gmem>, tensor<?x64xf32, #tile.gmem>, tensor<?x64xf32, #tile.gmem>) -> ()
}) {sym_name = "host", tensors = [{name = "sum", role = "workspace", dims = ["m", "d"], init = "zero"}, {name = "out", role = "output", dims = ["m", "d"]}, {name = "read", role = "workspace", dims = ["m", "d"], init = "zero"}]} : () -> ()
"warp.kernel"() ({
^bb0(%sum: tensor<?x64xf32, #tile.gmem>, %out: tensor<?x64xf32, #tile.gmem>, %read: tensor<?x64xf32, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %a = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x64x64xf32, #tile.smem>
  %b = "warp.buffer"() {offset = 33792, swizzle = 128} : () -> tensor<1x64x64xf32, #tile.smem>
  %c = "warp.buffer"() {offset = 66560, swizzle = 128} : () -> tensor<1x64x64xf32, #tile.smem>
  %map_a = "warp.tensor_map"(%sum) {box = array<i64: 64, 32>, swizzle = 128} : (tensor<?x64xf32, #tile.gmem>) -> !warp.descriptor
  %map_b = "warp.tensor_map"(%out) {box = array<i64: 64, 32>, swizzle = 128} : (tensor<?x64xf32, #tile.gmem>) -> !warp.descriptor
  %map_c = "warp.tensor_map"(%read) {box = array<i64: 64, 32>, swizzle = 128} : (tensor<?x64xf32, #tile.gmem>) -> !warp.descriptor
  "warp.role"() ({
    %f = "warp.fragment"() : () -> tensor<64x64xf32, #tile.reg>
    "warp.fill"(%f) {value = 1.0 : f32} : (tensor<64x64xf32, #tile.reg>) -> ()
    "warp.store_shared"(%a, %f) : (tensor<1x64x64xf32, #tile.smem>, tensor<64x64xf32, #tile.reg>) -> ()
    "warp.store_shared"(%b, %f) : (tensor<1x64x64xf32, #tile.smem>, tensor<64x64xf32, #tile.reg>) -> ()
    "warp.store_shared"(%c, %f) : (tensor<1x64x64xf32, #tile.smem>, tensor<64x64xf32, #tile.reg>) -> ()
    "warp.tma_store"(%map_a, %a, %c0, %c0) {row = 0, add = true} : (!warp.descriptor, tensor<1x64x64xf32, #tile.smem>, index, index) -> ()
    "warp.tma_store"(%map_b, %b, %c0, %c0) {row = 0} : (!warp.descriptor, tensor<1x64x64xf32, #tile.smem>, index, index) -> ()
    "warp.tma_store"(%map_c, %c, %c0, %c0) {row = 0, add = true} : (!warp.descriptor, tensor<1x64x64xf32, #tile.smem>, index, index) -> ()
  }) {sym_name = "compute", warps = array<i64: 0, 1, 2, 3>, active = 4, registers = 240} : () -> ()
}) {sym_name = "adds", threads = 128, smem_bytes = 100352} : () -> ()
"warp.kernel"() ({
^bb0(%sum: tensor<?x64xf32, #tile.gmem>, %out: tensor<?x64xf32, #tile.gmem>, %read: tensor<?x64xf32, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %a = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x64x64xf32, #tile.smem>
  %map_a = "warp.tensor_map"(%sum) {box = array<i64: 64, 32>, swizzle = 128} : (tensor<?x64xf32, #tile.gmem>) -> !warp.descriptor
  "warp.role"() ({
    "warp.tma_load"(%map_a, %a, %c0, %c0) {operandSegmentSizes = array<i32: 1, 1, 0, 2>} : (!warp.descriptor, tensor<1x64x64xf32, #tile.smem>, index, index) -> ()
  }) {sym_name = "load", warps = array<i64: 0, 1, 2, 3>, active = 1, registers = 24} : () -> ()
  "warp.role"() ({
    %f = "warp.fragment"() : () -> tensor<64x64xf32, #tile.reg>
    "warp.load_fragment"(%a, %f) {operandSegmentSizes = array<i32: 1, 0, 1>} : (tensor<1x64x64xf32, #tile.smem>, tensor<64x64xf32, #tile.reg>) -> ()
    %g = "warp.fragment"() : () -> tensor<64xf32, #tile.reg>
    "warp.map"(%g) ({
    ^bb0(%row: index, %column: index):
      %x = "tile.load_element"(%read, %row, %c0) : (tensor<?x64xf32, #tile.gmem>, index, index) -> f32
      "tile.yield"(%x) : (f32) -> ()
    }) : (tensor<64xf32, #tile.reg>) -> ()
  }) {sym_name = "compute", warps = array<i64: 4, 5, 6, 7>, active = 4, registers = 240} : () -> ()
}) {sym_name = "reads", threads = 256, smem_bytes = 33792} : () -> ()
