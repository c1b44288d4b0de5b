// RUN: sed s/sm_90a/sm_100a/ %examples/tile/gemm.mlir | %fa4c opt - --no-loc --pass-pipeline "tile-split-2cta{ctas=2}" | filecheck %s
// RUN: sed s/sm_90a/sm_100a/ %examples/tile/gemm.mlir | %fa4c opt - --no-loc --pass-pipeline "tile-split-2cta{ctas=0}" | filecheck %s --check-prefix ONE
// RUN: %fa4c compile %examples/full.mlir --target sm_100a --emit tile --no-loc --set tile-split-2cta.ctas=2 | filecheck %s --check-prefix CHAIN
// RUN: %fa4c compile %examples/full.mlir --target sm_100a --emit warp --no-loc --set tile-split-2cta.ctas=2 | filecheck %s --check-prefix WARP
// RUN: not %fa4c compile %examples/causal.mlir --target sm_100a --emit tile --set tile-split-2cta.ctas=2 2>&1 | filecheck %s --check-prefix CAUSAL
// RUN: %fa4c compile %examples/causal.mlir --target sm_100a --emit tile --no-loc --set attn-to-tile.alike=2 --set tile-split-2cta.ctas=2 | filecheck %s --check-prefix ALIKE
// RUN: not %fa4c compile %examples/full.mlir --target sm_100a --head-dim 256 --set attn-to-tile.block-n=80 --emit tile --set tile-split-2cta.ctas=2 2>&1 | filecheck %s --check-prefix COLUMNS
// RUN: %fa4c compile %examples/full.mlir --target sm_100a --head-dim 256 --emit tile --no-loc --set attn-to-tile.alike=2 --set tile-split-2cta.ctas=2 | filecheck %s --check-prefix WIDE
// RUN: not %fa4c opt %examples/tile/gemm.mlir --pass-pipeline "tile-split-2cta{ctas=2}" 2>&1 | filecheck %s --check-prefix HOPPER
// RUN: not %fa4c opt %S/inputs/sum_over_rows.mlir --pass-pipeline "tile-split-2cta{ctas=2}" 2>&1 | filecheck %s --check-prefix SUM
// RUN: not %fa4c opt %S/inputs/sum_over_rows.mlir --pass-pipeline "tile-split-2cta{ctas=2 exchange=true},tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem,warp-specialize" 2>&1 | filecheck %s --check-prefix LEFT
// RUN: not %fa4c opt %S/inputs/sum_over_rows.mlir --pass-pipeline "tile-split-2cta{ctas=3}" 2>&1 | filecheck %s --check-prefix THREE

// Row blocks in twos; of b each CTA loads half of the rows, which are the result's columns. a and the result stay.
// CHECK:      %[[TWO:.*]] = arith.constant 2 : index
// CHECK-NEXT: %[[PAIRS:.*]] = arith.ceildivsi %gx, %[[TWO]]
// CHECK-NEXT: %[[X:.*]] = arith.muli %[[PAIRS]], %[[TWO]]
// CHECK-NEXT: "tile.launch"(%[[X]], %gy,
// CHECK:      %[[RANK:.*]] = "tile.cta_rank"() : () -> index
// CHECK:      %sa = "tile.load"(%a, %m0, %k0) {{.*}} -> tensor<128x64xbf16, #tile.smem>
// CHECK:      %[[HALF:.*]] = arith.constant 64 : index
// CHECK-NEXT: %[[OFFSET:.*]] = arith.muli %[[RANK]], %[[HALF]]
// CHECK-NEXT: %[[ROW:.*]] = arith.addi %n0, %[[OFFSET]]
// CHECK-NEXT: %[[B:.*]] = "tile.load"(%b, %[[ROW]], %k0) {{.*}} -> tensor<64x64xbf16, #tile.smem>
// CHECK-NEXT: "tile.mma"(%sa, %[[B]], {{.*}}) {ctas = 2 : i64, {{.*}} -> tensor<128x128xf32, #tile.reg>
// CHECK:      {cluster = 2 : i64, sym_name = "gemm_kernel"}

// By the target's numbers reading a and b takes as long as multiplying them: no pairs.
// ONE-NOT: ctas
// ONE-NOT: cluster

// K is halved along its rows, V along its columns: both run along the columns of a product.
// CHAIN:      "tile.load"{{.*}} -> tensor<64x128xbf16, #tile.smem>
// CHAIN:      "tile.load"{{.*}} -> tensor<128x64xbf16, #tile.smem>

// The pair's first CTA issues; what it waits for counts both CTAs, and its commits tell both.
// WARP:      "warp.tmem_alloc"() {columns = 512 : i64, ctas = 2 : i64,
// WARP:      "warp.pipeline"() {{.*}}leader = true{{.*}} tx_bytes = 131072 : i64}
// WARP:      "warp.pipeline"() {{.*}}fills = 8 : i64,{{.*}} leader = true
// WARP:      "warp.tcgen05_mma"{{.*}} ctas = 2 : i64,
// WARP:      "warp.tcgen05_commit"{{.*}} {barrier = "full", ctas = 2 : i64}
// WARP:      {active = 1 : i64, leader = true, {{.*}}sym_name = "mma"

// CAUSAL:      error: 'tile.mma' stands in a loop whose trips differ between neighbouring CTAs
// CAUSAL-NEXT: note: why: the two of a pair form every product together
// CAUSAL-NEXT: note: fix: run attn-to-tile{alike=2}, or leave out tile-split-2cta

// x // 2 is the same in both: the blocks of the pair's rows. Which of them need a mask is each CTA's own matter.
// ALIKE:      %[[PLACE:.*]]:3 = "tile.program_id"()
// ALIKE:      arith.muli %[[PLACE]]#0, %c256
// ALIKE:      %[[PAIR:.*]] = arith.floordivsi %[[PLACE]]#0, %c2
// ALIKE-NEXT: arith.muli %[[PAIR]], %c512
// ALIKE:      scf.for
// ALIKE:      "tile.mma"{{.*}} {ctas = 2 : i64,

// COLUMNS:      error: 'tile.mma' has 80 columns
// COLUMNS-NEXT: note: why: each CTA of a pair holds half of them, whole steps of 16
// COLUMNS-NEXT: note: fix: use a multiple of 32 columns: attn-to-tile{alike=2} chooses such blocks

// What a pair halves leaves room for more keys a block: 128, of which each CTA loads 64.
// WIDE:      "tile.load"{{.*}} -> tensor<64x256xbf16, #tile.smem>
// WIDE:      "tile.load"{{.*}} -> tensor<128x128xbf16, #tile.smem>

// HOPPER:      error: 'tile.kernel' cannot run in pairs of CTAs
// HOPPER-NEXT: note: why: this target's MMA is formed by one CTA

// dq = w^T k: the keys are what x counts.
// SUM:      sum_over_rows.mlir:42:13: error: 'tile.mma' sums over an axis that the pair splits
// SUM-NEXT: note: why: the axis along which program_id x moves: each CTA has another part of it, so the two do not multiply by one b
// SUM-NEXT: note: fix: give tile-split-2cta exchange=true and run tile-insert-dsmem-exchange behind it

// LEFT:      sum_over_rows.mlir:42:13: error: 'tile.mma' is formed by one CTA, others of its kernel by pairs
// LEFT:      note: fix: run tile-insert-dsmem-exchange behind tile-split-2cta{exchange=true}

// THREE: error: ctas=3 is no number of CTAs that form a product
