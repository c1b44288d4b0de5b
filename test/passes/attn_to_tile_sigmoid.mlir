// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-to-tile,cse" | filecheck %s
// RUN: sed 's/addf %e, %one/subf %e, %one/' %s | %fa4c opt - --no-loc --pass-pipeline "attn-to-tile,cse" | filecheck %s --check-prefix INVERSE

// No softmax: no row statistics, one accumulator. Keys past the end are sigmoid(0) = 1/2, but their rows of V are 0: nothing is masked.
// CHECK:         "tile.kernel"
// CHECK-NOT:     arith.cmpi
// CHECK:         scf.for %{{.*}} iter_args(%[[O0:[a-zA-Z0-9_]+]] = %{{[a-zA-Z0-9_]+}}) -> (tensor<192x64xf32, #tile.reg>)
// CHECK:           %[[S:.*]] = "tile.mma"
// CHECK-NEXT:      %[[P:.*]] = "tile.map"(%[[S]]) ({
// CHECK:             arith.divf
// CHECK:           %[[PC:.*]] = "tile.map"(%[[P]]) ({
// CHECK:             arith.truncf
// CHECK-NOT:       tile.rescale_factor
// CHECK:           "tile.mma"(%[[PC]], %{{.*}}, %[[O0]])
// CHECK-NOT:     tile.reduce

// 1 / x of those keys is infinite, and 0 * inf is no number: the block that has them sets them to 0, in f32, before the cast.
// INVERSE:         %[[P:.*]] = "tile.map"
// INVERSE:         %[[TAIL:.*]] = arith.cmpi sgt, %{{.*}}, %[[N:.*]] : index
// INVERSE-NEXT:    %[[CLEAN:.*]] = "tile.map"(%[[P]], %[[TAIL]]) ({
// INVERSE:           %[[LIMIT:.*]] = arith.subi %[[N]], %{{.*}} : index
// INVERSE-NEXT:      arith.cmpi slt, %{{.*}}, %[[LIMIT]] : index
// INVERSE-NEXT:      arith.constant 0.000000e+00 : f32
// INVERSE-NEXT:      arith.select
// INVERSE:         "tile.map"(%[[CLEAN]]) ({
// INVERSE:           arith.truncf
func.func @sigmoid(
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hq"], attn.dims = ["n", "d"]},
    %v: tensor<?x64xbf16> {attn.name = "v", attn.axes = ["b", "hq"], attn.dims = ["n", "dv"]})
    -> (tensor<?x64xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %p = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %one = arith.constant 1.0 : f32
    %n = arith.negf %x : f32
    %e = math.exp %n : f32
    %d = arith.addf %e, %one : f32
    %y = arith.divf %one, %d : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x64xbf16>) -> tensor<?x64xf32>
  %r = "attn.cast"(%o) : (tensor<?x64xf32>) -> tensor<?x64xbf16>
  return %r : tensor<?x64xbf16>
}
