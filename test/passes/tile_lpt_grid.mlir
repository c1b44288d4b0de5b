// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile,tile-lpt-grid,cse" | filecheck %s
// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile,tile-lpt-grid" | filecheck %s --check-prefix EVEN
// RUN: %fa4c opt %examples/tile/gemm.mlir --no-loc --pass-pipeline "tile-lpt-grid" | filecheck %s --check-prefix EVEN

// CHECK:         "tile.host"
// CHECK:           %[[BLOCKS:.*]] = arith.ceildivsi
// CHECK:           %[[PAIRS:.*]] = arith.muli %[[HEADS:.*]], %{{.*}} : index
// CHECK:           %[[L2:.*]] = "tile.device"() {prop = "l2_bytes"}
// CHECK:           %[[FIT:.*]] = arith.floordivsi %[[L2]], %{{.*}} : index
// CHECK:           %[[POW:.*]] = "tile.pow2_floor"
// CHECK:           %[[SECTION:.*]] = arith.minsi %[[POW]], %{{.*}} : index
// CHECK:           %[[ALL:.*]] = arith.muli %[[BLOCKS]], %[[PAIRS]] : index
// CHECK:           "tile.launch"(%[[ALL]], %[[ONE:.*]], %[[ONE]], {{.*}}, %[[BLOCKS]], %[[HEADS]], %[[PAIRS]], %[[SECTION]])
// CHECK-SAME:        operandSegmentSizes = array<i32: 3, 5, 4>
// CHECK:         "tile.kernel"
// CHECK-NEXT:    ^bb0({{.*}}, %[[BLOCKS:.*]]: index, %[[HEADS:.*]]: index, %[[PAIRS:.*]]: index, %[[SECTION:.*]]: index):
// CHECK:           %[[ID:.*]]:3 = "tile.program_id"()
// CHECK-NEXT:      %[[WHOLE:.*]] = arith.muli %[[SECTION]], %[[BLOCKS]]
// CHECK-NEXT:      %[[WHICH:.*]] = arith.floordivsi %[[ID]]#0, %[[WHOLE]]
// CHECK-NOT:       %[[ID]]#1
// CHECK:           scf.for

// EVEN-NOT: l2_bytes
