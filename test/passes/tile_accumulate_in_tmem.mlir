// RUN: %fa4c opt %s --pass-pipeline "tile-accumulate-in-tmem" | filecheck %s
// RUN: sed 's/sm_100a/sm_90a/' %s | %fa4c opt - --pass-pipeline "tile-accumulate-in-tmem" | filecheck %s --check-prefix=REG

// The scores are copied to registers for the two readers; the accumulator stays where it is, scaled in place; P is written there for the MMA.
// One map reads the result after the loop: it reads tensor memory itself.
// CHECK:       %[[ZERO:.*]] = "tile.splat"() {value = 0.000000e+00 : f32} : () -> tensor<128x64xf32, #tile.tmem<-1 : i64>>
// CHECK:       scf.for {{.*}} iter_args(%[[O:.*]] = %[[ZERO]], {{.*}}) -> (tensor<128x64xf32, #tile.tmem<-1 : i64>>, tensor<128xf32, #tile.reg>)
// CHECK:       %[[S:.*]] = "tile.mma"{{.*}} -> tensor<128x128xf32, #tile.tmem<-1 : i64>>
// CHECK-NEXT:  %[[R:.*]] = "tile.map"(%[[S]])
// CHECK:       (tensor<128x128xf32, #tile.tmem<-1 : i64>>) -> tensor<128x128xf32, #tile.reg>
// CHECK:       "tile.reduce"(%[[R]], {{.*}})
// CHECK:       %[[SCALED:.*]] = "tile.map"(%[[O]], {{.*}})
// CHECK:       -> tensor<128x64xf32, #tile.tmem<-1 : i64>>
// CHECK:       %[[P:.*]] = "tile.map"(%[[R]])
// CHECK:       (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xbf16, #tile.tmem<-1 : i64>>
// CHECK:       "tile.mma"(%[[P]], {{.*}}, %[[SCALED]])
// CHECK:       scf.yield
// CHECK:       "tile.map"({{.*}}#0)
// CHECK:       (tensor<128x64xf32, #tile.tmem<-1 : i64>>) -> tensor<128x64xbf16, #tile.reg>

// Where MMAs sum in registers nothing changes.
// REG-NOT: tmem
module attributes {fa4c.target = "sm_100a"} {
"tile.kernel"() ({
^bb0(%a: tensor<?x64xbf16, #tile.gmem>, %b: tensor<?x64xbf16, #tile.gmem>, %out: tensor<?x64xbf16, #tile.gmem>, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %q = "tile.load"(%a, %c0, %c0) {dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128x64xf32, #tile.reg>
  %top = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128xf32, #tile.reg>
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%o = %zero, %m = %top) -> (tensor<128x64xf32, #tile.reg>, tensor<128xf32, #tile.reg>) {
    %k = "tile.load"(%b, %i, %c0) {dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
    %s = "tile.mma"(%q, %k) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x64xbf16, #tile.smem>, tensor<128x64xbf16, #tile.smem>) -> tensor<128x128xf32, #tile.reg>
    %m1 = "tile.reduce"(%s, %m) {kind = "max"} : (tensor<128x128xf32, #tile.reg>, tensor<128xf32, #tile.reg>) -> tensor<128xf32, #tile.reg>
    %oc = "tile.map"(%o, %m1) ({
    ^bb0(%x: f32, %f: f32, %row: index, %col: index):
      %y = arith.mulf %x, %f : f32
      "tile.yield"(%y) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 2, 0>} : (tensor<128x64xf32, #tile.reg>, tensor<128xf32, #tile.reg>) -> tensor<128x64xf32, #tile.reg>
    %p = "tile.map"(%s) ({
    ^bb0(%x: f32, %row: index, %col: index):
      %y = arith.truncf %x : f32 to bf16
      "tile.yield"(%y) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xbf16, #tile.reg>
    %o1 = "tile.mma"(%p, %k, %oc) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<128x128xbf16, #tile.reg>, tensor<128x64xbf16, #tile.smem>, tensor<128x64xf32, #tile.reg>) -> tensor<128x64xf32, #tile.reg>
    scf.yield %o1, %m1 : tensor<128x64xf32, #tile.reg>, tensor<128xf32, #tile.reg>
  }
  %e = "tile.map"(%r#0) ({
  ^bb0(%x: f32, %row: index, %col: index):
    %y = arith.truncf %x : f32 to bf16
    "tile.yield"(%y) : (bf16) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x64xf32, #tile.reg>) -> tensor<128x64xbf16, #tile.reg>
  %so = "tile.to_shared"(%e) : (tensor<128x64xbf16, #tile.reg>) -> tensor<128x64xbf16, #tile.smem>
  "tile.store"(%so, %out, %c0, %c0) {dims = array<i64: 0, 1>} : (tensor<128x64xbf16, #tile.smem>, tensor<?x64xbf16, #tile.gmem>, index, index) -> ()
}) {sym_name = "kernel"} : () -> ()
}
