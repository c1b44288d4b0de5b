// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-to-tile{configurations=formula},tile-multicast{ctas=2}" | filecheck %s
// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-to-tile{configurations=formula},tile-multicast" | filecheck %s --check-prefix TARGET
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile{configurations=formula},tile-multicast{ctas=2}" | filecheck %s --check-prefix CAUSAL
// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-to-tile{configurations=formula},tile-multicast{ctas=2},tile-persistent" | filecheck %s --check-prefix WALK
// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-to-tile{configurations=formula},tile-multicast{ctas=2},warp-specialize,cse,warp-insert-barriers,warp-check" | filecheck %s --check-prefix WARP

// As many row blocks as make whole clusters; K and V are read together, each CTA's Q is its own.
// CHECK:      %[[BLOCKS:.*]] = arith.ceildivsi
// CHECK:      %[[TWO:.*]] = arith.constant 2 : index
// CHECK-NEXT: %[[PAIRS:.*]] = arith.ceildivsi %[[BLOCKS]], %[[TWO]]
// CHECK-NEXT: %[[X:.*]] = arith.muli %[[PAIRS]], %[[TWO]]
// CHECK-NEXT: "tile.launch"(%[[X]],
// CHECK:      "tile.load"{{.*}} {dims = array<i64: 1, 3>}
// CHECK:      scf.for
// CHECK:        "tile.load"{{.*}} shared = true}
// CHECK:        "tile.load"{{.*}} shared = true}
// CHECK:      {cluster = 2 : i64, sym_name = "full_fwd"}

// No measurement has shown a gain so far.
// TARGET-NOT: shared = true
// TARGET-NOT: cluster

// Row blocks of a causal mask visit different blocks.
// CAUSAL-NOT: shared = true
// CAUSAL-NOT: cluster

// CTAs that walk come in whole clusters too.
// WALK:      %[[SMS:.*]] = "tile.device"() {prop = "num_sms"}
// WALK:      %[[HALF:.*]] = arith.floordivsi %[[SMS]], %[[TWO:.*]] : index
// WALK-NEXT: %[[EVEN:.*]] = arith.muli %[[HALF]], %[[TWO]]
// WALK-NEXT: %[[LEAST:.*]] = arith.maxsi %[[EVEN]], %[[TWO]]
// WALK-NEXT: arith.minsi %{{.*}}, %[[LEAST]]

// A slot is free when the warps of both CTAs have released it, and no CTA ends before the other.
// WARP:      "warp.tensor_map"{{.*}} {box = array<i64: 1, 64, 1, 64>
// WARP:      "warp.pipeline"() {arrivals = 16 : i64, ctas = 2 : i64,
// WARP:      "warp.tma_load"{{.*}} shared = true}
// WARP:      "warp.cluster_sync"() : () -> ()
// WARP-NEXT: {cluster = 2 : i64,
