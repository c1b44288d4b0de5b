// RUN: %fa4c opt %s --no-loc --pass-pipeline "warp-ping-pong" | filecheck %s

// The MMAs that open an iteration of a loop that also computes get a turn around them, once for a run of neighbours.
// CHECK-LABEL: ^bb0(%{{.*}}: tensor<1xf32
// CHECK:         "warp.role"() ({
// CHECK-NEXT:      "warp.turn_init"() {id = 2 : i64}
// CHECK:           scf.for
// CHECK-NEXT:      "warp.turn_take"() {id = 2 : i64}
// CHECK-NEXT:      "warp.wgmma"
// CHECK-NEXT:      "warp.wgmma"
// CHECK-NEXT:      "warp.turn_give"() {id = 2 : i64}
// CHECK-NEXT:      "warp.map"
// CHECK-NOT:       "warp.turn_
// CHECK:         sym_name = "turns"
"warp.kernel"() ({
^bb0(%marker: tensor<1xf32, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %a = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x128x64xbf16, #tile.smem>
  %b = "warp.buffer"() {offset = 17408, swizzle = 128} : () -> tensor<2x128x64xbf16, #tile.smem>
  "warp.role"() ({
    %s = "warp.fragment"() : () -> tensor<128x128xf32, #tile.reg>
    %t = "warp.fragment"() : () -> tensor<128x128xf32, #tile.reg>
    scf.for %i = %c0 to %c8 step %c1 {
      "warp.wgmma"(%s, %a, %b) {accumulate = false, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (tensor<128x128xf32, #tile.reg>, tensor<1x128x64xbf16, #tile.smem>, tensor<2x128x64xbf16, #tile.smem>) -> ()
      "warp.wgmma"(%t, %a, %b) {accumulate = false, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (tensor<128x128xf32, #tile.reg>, tensor<1x128x64xbf16, #tile.smem>, tensor<2x128x64xbf16, #tile.smem>) -> ()
      "warp.map"(%s, %s) ({
      ^bb0(%x: f32, %row: index, %col: index):
        "tile.yield"(%x) : (f32) -> ()
      }) : (tensor<128x128xf32, #tile.reg>, tensor<128x128xf32, #tile.reg>) -> ()
    }
  }) {sym_name = "compute", warps = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>, active = 8, registers = 240} : () -> ()
}) {sym_name = "turns", threads = 256, smem_bytes = 50176} : () -> ()

// A loop of MMAs alone gains nothing from turns: the tensor cores are busy anyway.
// CHECK-LABEL: ^bb0(%{{.*}}: tensor<2xf32
// CHECK-NOT:     "warp.turn_
// CHECK:         sym_name = "only_mmas"
"warp.kernel"() ({
^bb0(%marker: tensor<2xf32, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %a = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x128x64xbf16, #tile.smem>
  %b = "warp.buffer"() {offset = 17408, swizzle = 128} : () -> tensor<2x128x64xbf16, #tile.smem>
  "warp.role"() ({
    %s = "warp.fragment"() : () -> tensor<128x128xf32, #tile.reg>
    scf.for %i = %c0 to %c8 step %c1 {
      "warp.wgmma"(%s, %a, %b) {accumulate = true, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (tensor<128x128xf32, #tile.reg>, tensor<1x128x64xbf16, #tile.smem>, tensor<2x128x64xbf16, #tile.smem>) -> ()
    }
  }) {sym_name = "compute", warps = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>, active = 8, registers = 240} : () -> ()
}) {sym_name = "only_mmas", threads = 256, smem_bytes = 50176} : () -> ()

// One warpgroup has nobody to take turns with.
// CHECK-LABEL: ^bb0(%{{.*}}: tensor<3xf32
// CHECK-NOT:     "warp.turn_
// CHECK:         sym_name = "one_warpgroup"
"warp.kernel"() ({
^bb0(%marker: tensor<3xf32, #tile.gmem>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %a = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<1x64x64xbf16, #tile.smem>
  %b = "warp.buffer"() {offset = 17408, swizzle = 128} : () -> tensor<2x128x64xbf16, #tile.smem>
  "warp.role"() ({
    %s = "warp.fragment"() : () -> tensor<64x128xf32, #tile.reg>
    scf.for %i = %c0 to %c8 step %c1 {
      "warp.wgmma"(%s, %a, %b) {accumulate = false, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (tensor<64x128xf32, #tile.reg>, tensor<1x64x64xbf16, #tile.smem>, tensor<2x128x64xbf16, #tile.smem>) -> ()
      "warp.map"(%s, %s) ({
      ^bb0(%x: f32, %row: index, %col: index):
        "tile.yield"(%x) : (f32) -> ()
      }) : (tensor<64x128xf32, #tile.reg>, tensor<64x128xf32, #tile.reg>) -> ()
    }
  }) {sym_name = "compute", warps = array<i64: 0, 1, 2, 3>, active = 4, registers = 240} : () -> ()
}) {sym_name = "one_warpgroup", threads = 128, smem_bytes = 50176} : () -> ()
