// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-fold-scale,attn-to-tile,tile-conditional-rescale" | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-conditional-rescale{threshold-log2=4.5}" | filecheck %s --check-prefix OTHER
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-to-tile,tile-conditional-rescale{threshold-log2=16}" 2>&1 | filecheck %s --check-prefix FAR

// CHECK:         scf.for %{{.*}} iter_args(%[[O0:[a-zA-Z0-9_]+]] = %{{[a-zA-Z0-9_]+}}, %[[M0:[a-zA-Z0-9_]+]] = %{{[a-zA-Z0-9_]+}}, %[[L0:[a-zA-Z0-9_]+]] = %{{[a-zA-Z0-9_]+}})
// CHECK:           %[[NEW:.*]] = "tile.reduce"(%{{.*}}, %[[M0]]) {kind = "max"}
// CHECK-NEXT:      %[[GREW:.*]] = "tile.map"(%[[NEW]], %[[M0]]) ({
// CHECK-NEXT:      ^bb0(%[[AFTER:[a-zA-Z0-9_]+]]: f32, %[[BEFORE:[a-zA-Z0-9_]+]]: f32
// CHECK-NEXT:        %[[BY:.*]] = arith.subf %[[AFTER]], %[[BEFORE]] : f32
// CHECK-NEXT:        arith.constant 0.127517432 : f32
// CHECK-NEXT:        arith.mulf %[[BY]]
// CHECK-NEXT:        arith.constant 8.000000e+00 : f32
// CHECK-NEXT:        arith.cmpf ogt
// CHECK:           %[[VOTE:.*]] = "tile.vote_any"(%[[GREW]]) : (tensor<128xi1, #tile.reg>)
// The maximum that everything is relative to: the old one where the vote is false.
// CHECK-NEXT:      %[[M:.*]] = "tile.map"(%[[M0]], %[[NEW]], %[[VOTE]]) ({
// CHECK-NEXT:      ^bb0(%{{.*}}: f32, %[[CHOSEN:[a-zA-Z0-9_]+]]: f32
// CHECK-NEXT:        "tile.yield"(%[[CHOSEN]])
// CHECK-NOT:       %[[NEW]]{{[,) ]}}
// CHECK:           %[[F:.*]] = "tile.rescale_factor"(%[[M0]], %[[M]])
// The accumulator is multiplied where the vote is true, ahead of what else waits for the MMA; row sums always.
// CHECK-NEXT:      "tile.map"(%[[O0]], %[[F]], %[[VOTE]]) ({
// CHECK:           "tile.map"(%[[L0]], %[[F]]) ({
// CHECK:           scf.yield %{{.*}}, %[[M]], %{{.*}}

// OTHER: arith.constant 4.500000e+00 : f32

// FAR: error: threshold-log2=16.0 is out of range
// FAR-NEXT: note: why: P may grow to 2**threshold_log2, and fp16 ends below 2**16; it is 0 to 15
