// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-fold-scale" | filecheck %s

// The factor goes through the mask into the softmax, the map is gone.
// CHECK-LABEL: func.func @scaled
// CHECK-NEXT:    %[[S:.*]] = "attn.gemm"
// CHECK-NEXT:    %[[U:.*]] = "attn.mask"(%[[S]])
// CHECK:         "attn.softmax"(%[[U]]) {scale = 1.250000e-01 : f32}
func.func @scaled(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                  %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 8.0 : f32
    %y = arith.divf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %u = "attn.mask"(%t) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.cmpi sle, %j, %i : index
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}

// A soft cap: two factors inside become one, the outer one is the softmax's.
// CHECK-LABEL: func.func @softcap
// CHECK:         "attn.map"
// CHECK-NEXT:    ^bb0(%[[X:[a-zA-Z0-9_]+]]: f32
// CHECK-NEXT:      %[[C:.*]] = arith.constant 6.250000e-02 : f32
// CHECK-NEXT:      %[[Y:.*]] = arith.mulf %[[X]], %[[C]] : f32
// CHECK-NEXT:      %[[T:.*]] = math.tanh %[[Y]] : f32
// CHECK-NEXT:      "attn.yield"(%[[T]])
// CHECK:         "attn.softmax"(%{{.*}}) {scale = 2.000000e+01 : f32}
func.func @softcap(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                   %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.125 : f32
    %half = arith.constant 0.5 : f32
    %cap = arith.constant 20.0 : f32
    %y = arith.mulf %x, %c : f32
    %z = arith.mulf %half, %y : f32
    %w = math.tanh %z : f32
    %v = arith.mulf %w, %cap : f32
    "attn.yield"(%v) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%t) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}

// A negative factor would turn the maximum into a minimum; it stays.
// CHECK-LABEL: func.func @negative
// CHECK:         arith.constant -1.250000e-01 : f32
// CHECK:         "attn.softmax"(%{{[a-zA-Z0-9_]+}}) : (tensor<?x?xf32>)
func.func @negative(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant -0.125 : f32
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%t) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}
