// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{repeated=evict_last once=evict_first}" | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{repeated=evict_last},tile-l2-hints{repeated=evict_first}" | filecheck %s --check-prefix KEPT
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints" | filecheck %s --check-prefix TARGET
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{repeated=evict_last},warp-specialize,warp-insert-barriers" | filecheck %s --check-prefix WARP
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-to-tile,tile-l2-hints{once=soon}" 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{once=evict_first}" | sed s/evict_first/evict_never/ > %t
// RUN: not %fa4c opt %t --pass-pipeline "cse" 2>&1 | filecheck %s --check-prefix REFUSED

// Q is read once, K and V in the loop by every CTA of a head.
// CHECK:      "tile.load"{{.*}} l2 = "evict_first"}
// CHECK:      scf.for
// CHECK:        "tile.load"{{.*}} l2 = "evict_last"}
// CHECK:        "tile.load"{{.*}} l2 = "evict_last"}

// A priority that is there stays.
// KEPT-NOT: evict_first
// KEPT:     l2 = "evict_last"
// KEPT-NOT: evict_first

// No measurement has shown a gain so far.
// TARGET-NOT: l2 =

// WARP:     "warp.tma_load"({{[^)]*}}) {operandSegmentSizes
// WARP:     "warp.tma_load"({{[^)]*}}) {l2 = "evict_last"
// WARP:     "warp.tma_load"({{[^)]*}}) {l2 = "evict_last"

// UNKNOWN: error: pass 'tile-l2-hints': option once=soon must be

// REFUSED: error: 'tile.load' has l2 = "evict_never"
// REFUSED: why: known are evict_first, evict_last
