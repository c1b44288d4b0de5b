// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-to-tile,tile-exp-emulation{share=2}" | filecheck %s
// RUN: %fa4c opt %examples/full.mlir --no-loc --pass-pipeline "attn-to-tile,tile-exp-emulation" | filecheck %s --check-prefix TARGET
// RUN: not %fa4c opt %examples/full.mlir --pass-pipeline "attn-to-tile,tile-exp-emulation{share=17}" 2>&1 | filecheck %s --check-prefix MANY

// CHECK-NOT: math.exp2
// CHECK:     %[[X:.*]] = math.fma
// CHECK-NEXT: "tile.exp2"(%[[X]]) {emulated = 2 : i64} : (f32) -> f32
// CHECK-NOT: math.exp2

// TARGET-NOT: tile.exp2
// TARGET:     math.exp2

// MANY: error: share=17 is out of range
// MANY-NEXT: note: why: it counts exponentials of 16 neighbouring columns
