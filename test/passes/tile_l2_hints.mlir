// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{repeated=evict_last once=evict_first}" | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{repeated=evict_last},tile-l2-hints{repeated=evict_first}" | filecheck %s --check-prefix KEPT
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints" | filecheck %s --check-prefix TARGET
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{repeated=evict_last},warp-specialize,warp-insert-barriers" | filecheck %s --check-prefix WARP
// RUN: not %fa4c opt %examples/causal.mlir --pass-pipeline "attn-to-tile,tile-l2-hints{once=soon}" 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile,tile-l2-hints{once=evict_first}" | sed s/evict_first/evict_never/ > %t
// RUN: not %fa4c opt %t --pass-pipeline "cse" 2>&1 | filecheck %s --check-prefix REFUSED
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-to-tile{configurations=128x96x2:l2=evict_last/evict_first}" > %t.wish
// RUN: %fa4c opt %t.wish --no-loc --pass-pipeline "tile-l2-hints" | filecheck %s
// RUN: %fa4c opt %t.wish --no-loc --pass-pipeline "tile-l2-hints{once=none repeated=none}" | filecheck %s --check-prefix TARGET
// RUN: %fa4c opt %t.wish --no-loc --pass-pipeline "tile-l2-hints,warp-specialize" --disable-pass tile-l2-hints | filecheck %s --check-prefix TARGET
// RUN: sed s/evict_first/evict_never/ %t.wish > %t.never
// RUN: not %fa4c opt %t.never --pass-pipeline "cse" 2>&1 | filecheck %s --check-prefix WISH

// Q is read once, K and V in the loop by every CTA of a head.
// CHECK:      "tile.load"{{.*}} l2 = "evict_first"}
// CHECK:      scf.for
// CHECK:        "tile.load"{{.*}} l2 = "evict_last"}
// CHECK:        "tile.load"{{.*}} l2 = "evict_last"}
// CHECK-NOT:  evict_

// A priority that is there stays.
// KEPT-NOT: evict_first
// KEPT:     l2 = "evict_last"
// KEPT-NOT: evict_first

// Off where neither target nor kernel asks for it, where options say so, and where the pass is left out.
// TARGET-NOT: evict_

// WARP:     "warp.tma_load"({{[^)]*}}) {operandSegmentSizes
// WARP:     "warp.tma_load"({{[^)]*}}) {l2 = "evict_last"
// WARP:     "warp.tma_load"({{[^)]*}}) {l2 = "evict_last"

// UNKNOWN: error: pass 'tile-l2-hints': option once=soon must be

// REFUSED: error: 'tile.load' has l2 = "evict_never"
// REFUSED: why: known are evict_first, evict_last
// WISH:    error: 'tile.kernel' has l2_once = "evict_never"
