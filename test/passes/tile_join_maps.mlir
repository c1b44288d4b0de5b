// RUN: %fa4c opt %s --pass-pipeline "tile-join-maps" | filecheck %s
// RUN: sed 's/sm_100a/sm_90a/' %s | %fa4c opt - --pass-pipeline "tile-join-maps" | filecheck %s --check-prefix=REG
// RUN: sed 's/(\(.\)tanh, \(.\)p)/(\1later, \2p)/' %s | %fa4c opt - --pass-pipeline "tile-join-maps" | filecheck %s --check-prefix=LATER

// P is computed for each element between its two readers; what goes to registers comes first, and may take the place of t.
// CHECK:       %[[BOTH:.*]]:2 = "tile.map_both"(%[[T:.*]]) ({
// CHECK:         %[[P:.*]] = math.exp2
// CHECK-NEXT:    %[[W:.*]] = arith.mulf %[[P]], %{{.*}} : f32
// CHECK-NEXT:    %[[C:.*]] = arith.truncf %[[P]] : f32 to bf16
// CHECK-NEXT:    "tile.yield"(%[[W]], %[[C]]) : (f32, bf16) -> ()
// CHECK:       -> (tensor<128x128xf32, #tile.reg>, tensor<128x128xbf16, #tile.tmem<-1 : i64>>)
// CHECK-NOT:   math.exp2
// CHECK:       "tile.to_shared"(%[[BOTH]]#0)

// Where MMAs sum in registers, and where a reader needs what is made later: two tiles.
// REG-NOT:     tile.map_both
// LATER-NOT:   tile.map_both
module attributes {fa4c.target = "sm_100a"} {
"tile.kernel"() ({
^bb0(%n: index):
  %tanh = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128x128xf32, #tile.reg>
  %p = "tile.map"(%tanh) ({
  ^bb0(%x: f32, %row: index, %col: index):
    %y = math.exp2 %x : f32
    "tile.yield"(%y) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.reg>
  %later = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128x128xf32, #tile.reg>
  %pc = "tile.map"(%p) ({
  ^bb0(%x: f32, %row: index, %col: index):
    %y = arith.truncf %x : f32 to bf16
    "tile.yield"(%y) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xbf16, #tile.tmem<-1>>
  %w = "tile.map"(%tanh, %p) ({
  ^bb0(%x: f32, %y: f32, %row: index, %col: index):
    %z = arith.mulf %y, %x : f32
    "tile.yield"(%z) : (f32) -> ()
  }) {operandSegmentSizes = array<i32: 2, 0>} : (tensor<128x128xf32, #tile.reg>, tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.reg>
  %stored = "tile.to_shared"(%w) : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.smem>
}) {sym_name = "kernel"} : () -> ()
}
