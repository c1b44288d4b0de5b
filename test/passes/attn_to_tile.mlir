// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-simplify-mask,attn-to-tile{configurations=formula},cse" | filecheck %s
// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-to-tile{configurations=formula},cse" | filecheck %s --check-prefix UNBOUNDED
// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-to-tile{block-m=64 block-n=48 buffers=3}" | filecheck %s --check-prefix CHOSEN
// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-retype{dtype=fp16 head-dim=40,72},attn-to-tile{configurations=formula}" | filecheck %s --check-prefix PADDED
// RUN: not %fa4c opt %s --pass-pipeline "attn-to-tile{block-m=96}" 2>&1 | filecheck %s --check-prefix ROWS
// RUN: not %fa4c opt %s --pass-pipeline "attn-to-tile,attn-to-tile" 2>&1 | filecheck %s --check-prefix TWICE

// The host: tensors as they lie in memory, and a grid of (row blocks, heads, batch).
// CHECK:         "tile.host"() ({
// CHECK-NEXT:    ^bb0(%[[Q:[a-zA-Z0-9_]+]]: tensor<?x?x?x64xbf16, #tile.gmem>, {{.*}}: tensor<?x?x?xf32, #tile.gmem>):
// CHECK:           %[[BM:.*]] = arith.constant 192 : index
// CHECK-NEXT:      %[[M:.*]] = "tile.dim"(%[[Q]]) {axis = 1 : i64}
// CHECK-NEXT:      %[[X:.*]] = arith.ceildivsi %[[M]], %[[BM]]
// CHECK-NEXT:      %[[Y:.*]] = "tile.dim"(%[[Q]]) {axis = 2 : i64}
// CHECK-NEXT:      %[[Z:.*]] = "tile.dim"(%[[Q]]) {axis = 0 : i64}
// CHECK-NEXT:      "tile.launch"(%[[X]], %[[Y]], %[[Z]], %[[Q]], {{.*}}) {kernel = @causal_fwd, operandSegmentSizes = array<i32: 3, 5, 0>}
// CHECK:         semantics = "{\22schema\22: 1, \22name\22: \22causal\22
// CHECK-SAME:    sym_name = "causal"
// CHECK-SAME:    {axes = ["b", "hq"], dims = ["b", "m", "hq", "d"], name = "q", role = "input"}
// CHECK-SAME:    {axes = ["b", "hkv"], dims = ["b", "n", "hkv", "d"], name = "k", role = "input"}
// CHECK-SAME:    {axes = ["b", "hq"], dims = ["b", "m", "hq", "dv"], name = "o", role = "output"}
// CHECK-SAME:    {axes = ["b", "hq"], dims = ["b", "hq", "m"], name = "lse", optional = true, role = "output"}

// The kernel. A key head serves hq / hkv query heads; row i has position i + n - m.
// CHECK:         "tile.kernel"() ({
// CHECK-NEXT:    ^bb0(%[[Q:[a-zA-Z0-9_]+]]: tensor<?x?x?x64xbf16, #tile.gmem>, %[[K:[a-zA-Z0-9_]+]]: {{[^,]+, [^,]+}}, %[[V:[a-zA-Z0-9_]+]]: {{[^,]+, [^,]+}}, %[[O:[a-zA-Z0-9_]+]]:
// CHECK:           %[[PLACE:.*]]:3 = "tile.program_id"()
// CHECK-NEXT:      %[[GROUP:.*]] = arith.floordivsi
// CHECK-NEXT:      %[[HKV:.*]] = arith.floordivsi %[[PLACE]]#1, %[[GROUP]]
// CHECK-NEXT:      %[[ROW0:.*]] = arith.muli %[[PLACE]]#0, %[[C192:c192[_0-9]*]]
// CHECK-NEXT:      %[[SHIFT:.*]] = arith.subi %[[N:.*]], %[[M:.*]] : index
// CHECK-NEXT:      %[[POS0:.*]] = arith.addi %[[ROW0]], %[[SHIFT]]
// Keys up to the position of the last row that exists; all rows see those up to the position of the first.
// CHECK-NEXT:      %[[END:.*]] = arith.addi %[[ROW0]], %[[C192]]
// CHECK-NEXT:      %[[STOP:.*]] = arith.minsi %[[END]], %[[M]]
// CHECK-NEXT:      %[[LAST:.*]] = arith.subi %[[STOP]], %[[C1:c1[_0-9]*]]
// CHECK-NEXT:      %[[POS1:.*]] = arith.addi %[[LAST]], %[[SHIFT]]
// CHECK-NEXT:      %[[FULL:.*]] = arith.addi %[[POS0]], %[[C1]]
// CHECK-NEXT:      %[[HI:.*]] = arith.addi %[[POS1]], %[[C1]]
// CHECK-NEXT:      %[[HI_N:.*]] = arith.minsi %[[HI]], %[[N]]
// CHECK-NEXT:      %[[FULL_N:.*]] = arith.minsi %[[FULL]], %[[N]]
// CHECK-NEXT:      %[[BLOCKS:.*]] = arith.ceildivsi %[[HI_N]], %[[C128:c128[_0-9]*]]
// CHECK-NEXT:      %[[QT:.*]] = "tile.load"(%[[Q]], %[[PLACE]]#2, %[[ROW0]], %[[PLACE]]#1, %[[C0:c0[_0-9]*]]) {dims = array<i64: 1, 3>}
// CHECK-SAME:        -> tensor<192x64xbf16, #tile.smem>
// CHECK:           %[[COUNT:.*]] = arith.maxsi %[[BLOCKS]], %[[C0]]
// CHECK-NEXT:      %[[TOP:.*]] = arith.subi %[[BLOCKS]], %[[C1]]
// CHECK-NEXT:      %[[STATE:.*]]:3 = scf.for %[[T:.*]] = %[[C0]] to %[[COUNT]] step %[[C1]] iter_args(%[[O0:.*]] = %{{.*}}, %[[M0:.*]] = %{{.*}}, %[[L0:.*]] = %{{.*}})
// Blocks from the last to the first.
// CHECK-NEXT:        %[[BLOCK:.*]] = arith.subi %[[TOP]], %[[T]]
// CHECK-NEXT:        %[[J0:.*]] = arith.muli %[[BLOCK]], %[[C128]]
// CHECK-NEXT:        %[[KT:.*]] = "tile.load"(%[[K]], %[[PLACE]]#2, %[[J0]], %[[HKV]], %[[C0]]) {buffers = 2 : i64, dims = array<i64: 1, 3>}
// CHECK-NEXT:        %[[S:.*]] = "tile.mma"(%[[QT]], %[[KT]]) {transpose_b = true}
// CHECK-NEXT:        %[[SCALED:.*]] = "tile.map"(%[[S]]) ({
// CHECK:               arith.mulf %{{.*}}, %{{.*}} : f32
// A block is partial where it ends behind the keys that all rows see.
// CHECK:             %[[J1:.*]] = arith.addi %[[J0]], %[[C128]]
// CHECK-NEXT:        %[[PARTIAL:.*]] = arith.cmpi sgt, %[[J1]], %[[FULL_N]]
// CHECK-NEXT:        %[[MASKED:.*]] = "tile.map"(%[[SCALED]], %[[PARTIAL]]) ({
// CHECK-NEXT:        ^bb0(%[[XX:[a-zA-Z0-9_]+]]: f32, %[[I:[a-zA-Z0-9_]+]]: index, %[[J:[a-zA-Z0-9_]+]]: index):
// The bounds of a row say all: one comparison an element.
// CHECK-NEXT:          %[[QUERY:.*]] = arith.addi %[[POS0]], %[[I]]
// CHECK:               %[[ROW_HI:.*]] = arith.addi %[[QUERY]], %{{.*}} : index
// CHECK-NEXT:          %[[ROW_HI_N:.*]] = arith.minsi %[[ROW_HI]], %[[N]]
// CHECK-NEXT:          %[[LIMIT:.*]] = arith.subi %[[ROW_HI_N]], %[[J0]]
// CHECK-NEXT:          %[[SEEN:.*]] = arith.cmpi slt, %[[J]], %[[LIMIT]]
// CHECK:               arith.select %[[SEEN]], %[[XX]], %{{.*}}
// CHECK:             %[[M1:.*]] = "tile.reduce"(%[[MASKED]], %[[M0]]) {kind = "max"}
// CHECK:             %[[F:.*]] = "tile.rescale_factor"(%[[M0]], %[[M1]]) {scale_log2 = 1.44269502 : f32}
// CHECK:             math.fma
// CHECK-NEXT:        math.exp2
// CHECK:             %[[L:.*]] = "tile.map"(%[[L0]], %[[F]])
// CHECK:             %[[L1:.*]] = "tile.reduce"(%[[P:.*]], %[[L]]) {kind = "sum"} : {{.*}} -> tensor<192x4xf32, #tile.reg>
// CHECK-NEXT:        %[[PC:.*]] = "tile.map"(%[[P]])
// CHECK:               arith.truncf
// CHECK:             %[[VT:.*]] = "tile.load"(%[[V]], %[[PLACE]]#2, %[[J0]], %[[HKV]], %[[C0]])
// CHECK-NEXT:        %[[OR:.*]] = "tile.map"(%[[O0]], %[[F]])
// CHECK:             %[[O1:.*]] = "tile.mma"(%[[PC]], %[[VT]], %[[OR]])
// CHECK-NEXT:        scf.yield %[[O1]], %[[M1]], %[[L1]]
// CHECK:           %[[L:.*]] = "tile.reduce"(%[[STATE]]#2) {kind = "sum"} : {{.*}} -> tensor<192xf32, #tile.reg>
// CHECK-NEXT:      %[[LSE:.*]] = "tile.map"(%[[STATE]]#1, %[[L]])
// CHECK:           %[[INVERSE:.*]] = "tile.map"(%[[L]])
// One map divides and rounds.
// CHECK:           %[[OUT:.*]] = "tile.map"(%[[STATE]]#0, %[[INVERSE]]) ({
// CHECK:             arith.mulf
// CHECK-NEXT:        arith.truncf
// CHECK:           %[[SO:.*]] = "tile.to_shared"(%[[OUT]])
// CHECK-NEXT:      "tile.store"(%[[SO]], %[[O]], %[[PLACE]]#2, %[[ROW0]], %[[PLACE]]#1, %[[C0]]) {dims = array<i64: 1, 3>}
// CHECK-NEXT:      "tile.store"(%[[LSE]], {{.*}}, %[[PLACE]]#2, %[[PLACE]]#1, %[[ROW0]]) {dims = array<i64: 2>}
// CHECK-NEXT:    }) {sym_name = "causal_fwd"}

// Without bounds every block is visited and masked.
// UNBOUNDED:     %[[BLOCKS:.*]] = arith.ceildivsi %[[N:[0-9]+]], %c128
// UNBOUNDED:     scf.for
// UNBOUNDED-NOT: arith.cmpi sgt
// UNBOUNDED:     %[[S:.*]] = "tile.map"(%{{[a-zA-Z0-9_]+}}) ({
// UNBOUNDED:     "tile.map"(%[[S]]) ({
// UNBOUNDED:     arith.cmpi sle
// UNBOUNDED-NEXT: arith.cmpi slt, %{{.*}}, %[[N]]

// CHOSEN:        buffers = 3 : i64
// CHOSEN-SAME:   tensor<48x64xbf16, #tile.smem>
// CHOSEN:        -> tensor<64x48xf32, #tile.reg>

// Head dims are rounded up to 16: loads read 0 there, stores drop it.
// PADDED:        tensor<?x?x?x40xf16, #tile.gmem>
// PADDED:        tensor<192x48xf16, #tile.smem>
// PADDED:        tensor<112x80xf16, #tile.smem>
// PADDED:        "tile.store"({{.*}} : (tensor<192x80xf16, #tile.smem>, tensor<?x?x?x72xf16, #tile.gmem>

// ROWS: attn_to_tile.mlir:{{[0-9]+}}:1: error: 'func.func' cannot have block_m = 96
// ROWS-NEXT: note: why: each of 1 to 3 warpgroups computes 64 rows
// ROWS-NEXT: note: fix: take a multiple of 64 up to 192, or 0 to let the pass choose

// TWICE: error: there are 0 attn functions to lower
func.func @causal(
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x64xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]})
    -> (tensor<?x64xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.125 : f32
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %u = "attn.mask"(%t) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.cmpi sle, %j, %i : index
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x64xbf16>) -> tensor<?x64xf32>
  %r = "attn.cast"(%o) : (tensor<?x64xf32>) -> tensor<?x64xbf16>
  return %r, %lse : tensor<?x64xbf16>, tensor<?xf32>
}
