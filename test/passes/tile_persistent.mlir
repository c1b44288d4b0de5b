// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile,tile-persistent{blocks=7}" | filecheck %s --check-prefix ALIKE
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile,tile-persistent" | filecheck %s --check-prefix UNEQUAL
// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-retype{head-dim=256},attn-simplify-mask,attn-to-tile,tile-persistent" | filecheck %s --check-prefix TOOBIG

// The launcher takes as many CTAs as there are SMs, or one for each tile if tiles are long.
// ALIKE:      %[[SMS:.*]] = "tile.device"() {prop = "num_sms"}
// ALIKE:      %[[FEW:.*]] = arith.minsi %[[TILES:.*]], %[[SMS]]
// ALIKE:      %[[LIMIT:.*]] = arith.constant 7 : index
// ALIKE:      %[[SHORT:.*]] = arith.cmpi sle, %{{.*}}, %[[LIMIT]]
// ALIKE:      %[[CTAS:.*]] = arith.select %[[SHORT]], %[[FEW]], %[[TILES]]
// ALIKE:      "tile.launch"(%[[CTAS]],
// ALIKE:      "tile.kernel"
// ALIKE:      %[[ID:.*]]:3 = "tile.program_id"()
// ALIKE:      scf.for %[[TILE:.*]] = %[[ID]]#0 to %{{.*}} step
// ALIKE-NEXT:   arith.floordivsi %[[TILE]]
// ALIKE:        "tile.load"
// ALIKE:        scf.for

// Under a causal mask trip counts differ, so tiles come from a queue, a workspace that starts at 0.
// UNEQUAL:      name = "queue", role = "workspace"
// UNEQUAL:      "tile.kernel"
// UNEQUAL:      "tile.walk"(%[[TILES:.*]], %[[QUEUE:.*]]) ({
// UNEQUAL-NEXT: ^bb0(%{{.*}}: index):
// UNEQUAL-NOT:  "tile.program_id"

// At head dim 256 the output lies over Q in shared memory, which the next tile's Q would overwrite.
// TOOBIG-NOT: num_sms
