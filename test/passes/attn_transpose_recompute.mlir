// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline attn-derive-backward,attn-transpose-recompute --no-loc | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline "attn-derive-backward{wrt=q},attn-transpose-recompute" --no-loc | filecheck %s --check-prefix=ALONE
// RUN: %fa4c compile %examples/causal.mlir --direction bwd --emit attn --no-loc | filecheck %s --check-prefix=BOUNDS

// S^T = K Q^T and dP^T = V dO^T; dV and dK take P^T and dS^T as they are, dQ alone reads dS^T across. Positions change places.
// CHECK-LABEL: func.func @causal_bwd
// CHECK-SAME:    (%[[Q:[a-z0-9]+]]: {{[^}]*}} attn.name = "q"}
// CHECK-SAME:    %[[K:[a-z0-9]+]]: {{[^}]*}} attn.name = "k"}
// CHECK-SAME:    %[[V:[a-z0-9]+]]: {{[^}]*}} attn.name = "v"}
// CHECK-SAME:    %[[DO:[a-z0-9]+]]: {{[^}]*}} attn.name = "do"})
// CHECK-DAG:   %[[S:.*]] = "attn.gemm"(%[[K]], %[[Q]]) {transpose_b = true}
// CHECK-DAG:   %[[DP:.*]] = "attn.gemm"(%[[V]], %[[DO]]) {transpose_b = true}
// CHECK:       "attn.mask"
// CHECK-NEXT:  ^bb0(%{{.*}}: index, %{{.*}}: index, %[[KEY:.*]]: index, %[[QUERY:.*]]: index):
// CHECK-NEXT:    arith.cmpi sle, %[[KEY]], %[[QUERY]]
// CHECK:       %[[P:.*]] = "attn.cast"
// CHECK-NEXT:  "attn.gemm"(%[[P]], %[[DO]]) :
// CHECK:       "attn.gemm"(%[[DS:[a-z0-9_]+]], %[[K]]) {transpose_a = true}
// CHECK-NEXT:  "attn.gemm"(%[[DS]], %[[Q]]) :
// CHECK-NOT:   transpose_a

// dQ alone gains nothing.
// ALONE-LABEL: func.func @causal_bwd
// ALONE-SAME:    (%[[Q:[a-z0-9]+]]: {{[^}]*}} attn.name = "q"}, %[[K:[a-z0-9]+]]:
// ALONE:       "attn.gemm"(%[[Q]], %[[K]]) {transpose_b = true}
// ALONE-NOT:   transpose_a

// The queries that see a key: from its own position to the last, in key coordinates.
// BOUNDS-LABEL: func.func @causal_bwd_main
// BOUNDS:      "attn.band_mask"
// BOUNDS:      }, {
// BOUNDS-NEXT: ^bb0(%{{.*}}: index, %{{.*}}: index, %[[AT:.*]]: index):
// BOUNDS-NEXT:   %[[END:.*]] = "attn.size"() {dim = "n"}
// BOUNDS-NEXT:   "attn.yield"(%[[AT]], %[[END]], %[[AT]], %[[END]])
