// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline 'attn-simplify-mask,attn-to-tile{configurations="n<=2048:128x128x2,128x96x3:l2=evict_last/evict_first"}' | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile{configurations=formula}" | filecheck %s --check-prefix ONE
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-to-tile{configurations=128x128x2,128x96x2}" 2>&1 | filecheck %s --check-prefix UNLIMITED
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-to-tile{configurations=n<=9:128x128x2}" 2>&1 | filecheck %s --check-prefix NOREST

// The host launches the first kernel whose limit holds; the grid is that kernel's own.
// CHECK:      %[[N:.*]] = "tile.dim"(%{{.*}}) {axis = 1 : i64}
// CHECK-NEXT: %[[MOST:.*]] = arith.constant 2048 : index
// CHECK-NEXT: %[[SHORT:.*]] = arith.cmpi sle, %[[N]], %[[MOST]] : index
// CHECK-NEXT: scf.if %[[SHORT]] {
// CHECK:        "tile.launch"(%{{.*}}) {kernel = @causal_fwd_128x128x2,
// CHECK-NEXT: } else {
// CHECK:        "tile.launch"(%{{.*}}) {kernel = @causal_fwd_128x96x3,
// CHECK-NEXT: }

// CHECK:      "tile.kernel"
// CHECK:        "tile.load"{{.*}} {dims
// CHECK:        "tile.load"{{.*}} {buffers = 2 : i64, dims
// CHECK:      sym_name = "causal_fwd_128x128x2"
// Priorities in L2 are a wish, for tile-l2-hints to grant.
// CHECK:      "tile.kernel"
// CHECK:        "tile.load"{{.*}} {dims
// CHECK:        "tile.load"{{.*}} {buffers = 3 : i64, dims
// CHECK:      l2_once = "evict_first", l2_repeated = "evict_last", sym_name = "causal_fwd_128x96x3"

// ONE-NOT:   scf.if
// ONE:       sym_name = "causal_fwd"}

// UNLIMITED: error: 'func.func' has configurations = 128x128x2,128x96x2, of which the 128x128x2 is not limited
// UNLIMITED: why: the host takes the first configuration whose limit holds
// NOREST:    error: 'func.func' has configurations = n<=9:128x128x2, of which the last is limited
