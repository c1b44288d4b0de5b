// RUN: %fa4c opt %examples/causal.mlir --pass-pipeline attn-fold-scale,attn-derive-backward,attn-exp-to-exp2 --no-loc | filecheck %s
// RUN: %fa4c opt %s --pass-pipeline attn-exp-to-exp2 --no-loc | filecheck %s --check-prefix=OTHER

// P again from S and LSE: log2(e) goes into the scale and into a vector of LSE; an element costs a multiply-add and an exponential.
// CHECK:      arith.constant -1.44269502 : f32
// CHECK-NEXT: arith.mulf
// CHECK:      %p = "attn.map"
// CHECK:        arith.constant 0.127517432 : f32
// CHECK-NEXT:   %[[Y:.*]] = arith.mulf
// CHECK-NEXT:   %[[Z:.*]] = arith.addf %[[Y]], %arg7 : f32
// CHECK-NEXT:   math.exp2 %[[Z]] : f32
// CHECK-NOT:  math.exp %

// A vector that the map reads twice stays; an exponent that is no sum gets one factor.
// OTHER-LABEL: func.func @other
// OTHER:       "attn.map"(%{{.*}}, %r) ({
// OTHER:         arith.constant 1.44269502 : f32
// OTHER:         arith.constant -1.44269502 : f32
// OTHER:         math.exp2
// OTHER:         arith.mulf
func.func @other(
    %q: tensor<?x16xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x16xbf16> {attn.name = "k", attn.axes = ["b", "hq"], attn.dims = ["n", "d"]},
    %r: tensor<?xf32> {attn.name = "r", attn.axes = ["b", "hq"], attn.dims = ["m"]})
    -> (tensor<?xf32> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x16xbf16>, tensor<?x16xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s, %r) ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
    %d = arith.subf %x, %y : f32
    %e = math.exp %d : f32
    %f = arith.mulf %e, %y : f32
    "attn.yield"(%f) : (f32) -> ()
  }) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %o = "attn.reduce"(%t) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %o : tensor<?xf32>
}
