// RUN: %fa4c opt %S/inputs/sum_over_rows.mlir --no-loc --pass-pipeline "tile-split-2cta{ctas=2 exchange=true},tile-insert-dsmem-exchange" | filecheck %s
// RUN: %fa4c opt %S/inputs/sum_over_rows.mlir --no-loc --pass-pipeline "tile-insert-dsmem-exchange" | filecheck %s --check-prefix ALONE
// RUN: sed 's/"tile.global_add"/"tile.store"/' %S/inputs/sum_over_rows.mlir | not %fa4c opt - --pass-pipeline "tile-split-2cta{ctas=2 exchange=true},tile-insert-dsmem-exchange" 2>&1 | filecheck %s --check-prefix STORED
// RUN: sed 's/%n0 = arith.muli %x, %c128/%n00 = arith.muli %x, %c128 : index\n%n0 = arith.addi %n00, %n00/' %S/inputs/sum_over_rows.mlir | not %fa4c opt - --pass-pipeline "tile-split-2cta{ctas=2 exchange=true},tile-insert-dsmem-exchange" 2>&1 | filecheck %s --check-prefix APART

// k twice: this CTA's rows, for the products whose rows are keys; all keys of the pair and half of the columns, for the sum over keys.
// CHECK:      %[[RANK:.*]] = "tile.cta_rank"() : () -> index
// CHECK:      %[[BACK:.*]] = arith.muli %[[RANK]], %{{.*}}
// CHECK-NEXT: %[[FIRST:.*]] = arith.subi %n0, %[[BACK]]
// CHECK:      %[[K:.*]] = "tile.load"(%k, %[[FIRST]], %{{.*}}) {{.*}} -> tensor<256x32xbf16, #tile.smem>
// CHECK:      "tile.load"(%k, %n0, %c0) {{.*}} -> tensor<128x64xbf16, #tile.smem>

// w is (128 keys, 128 queries) in each CTA; what a CTA multiplies has 256 keys and 64 queries.
// CHECK:      %[[W:.*]] = "tile.exchange"(%w) {axis = 1 : i64} : (tensor<128x128xbf16, #tile.reg>) -> tensor<256x64xbf16, #tile.smem>
// CHECK:      %part = "tile.mma"(%[[W]], %[[K]]) {ctas = 2 : i64, folded = true, {{.*}}transpose_a = true} {{.*}} -> tensor<128x32xf32, #tile.reg>
// CHECK:      "tile.to_shared"(%part) : {{.*}} -> tensor<128x32xf32, #tile.smem>
// CHECK:      %[[DOWN:.*]] = arith.muli %[[RANK]], %c64
// CHECK-NEXT: %[[ROW:.*]] = arith.addi %m0, %[[DOWN]]
// CHECK-NEXT: "tile.global_add"({{.*}}, %dq, %[[ROW]], %c0) {{{.*}}folded = true}

// No pairs: nothing to exchange.
// ALONE-NOT: tile.exchange
// ALONE-NOT: ctas

// STORED:      error: 'tile.store' takes a sum over keys of which the pair has one half each
// STORED-NEXT: note: why: rows of the exchanged product are other ones in each CTA; they can be added to global memory

// APART:      error: 'tile.mma' multiplies by tiles of neighbouring CTAs that do not follow each other
// APART-NEXT: note: why: the pair sums over both: the second one must start 128 behind the first one
