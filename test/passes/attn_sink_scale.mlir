// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-sink-scale" | filecheck %s
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-outline-kernels" | filecheck %s --check-prefix BACKWARD

// RUN: %fa4c opt %examples/softcap.mlir --no-loc --pass-pipeline "attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-outline-kernels" | filecheck %s --check-prefix SOFTCAP

// All constants of a product: cap * (1 - t^2) * (scale / cap) leaves 1 - t^2, as dS times the cap of 30 would overflow fp16.
// SOFTCAP-LABEL: func.func @softcap_bwd_main
// SOFTCAP:         %[[DS:.*]] = "attn.map"(%{{.*}}, %dpc, %delta, %p)
// SOFTCAP-NOT:       3.000000e+01
// SOFTCAP:           "attn.yield"
// SOFTCAP:         "attn.cast"(%[[DS]])
// SOFTCAP-LABEL: func.func @softcap_bwd_postprocess
// SOFTCAP:           arith.constant 0.088388{{.*}} : f32

// The factor of dS becomes that of dK and, where it is cast, of dQ's sum; none is left at the scores.
// BACKWARD-LABEL: func.func @causal_bwd_main
// BACKWARD-COUNT-1: arith.mulf {{.*}} : f32
// BACKWARD:         %[[DS:.*]] = "attn.map"(%dpc, %delta, %p)
// BACKWARD:           arith.subf
// BACKWARD-NEXT:      %[[Y:.*]] = arith.mulf
// BACKWARD-NEXT:      "attn.yield"(%[[Y]])
// BACKWARD:         %[[DQ:.*]] = "attn.gemm"(%{{.*}}, %k)
// BACKWARD:         %[[DK:.*]] = "attn.gemm"(%{{.*}}, %q) {transpose_a = true}
// BACKWARD-NEXT:    "attn.map"(%[[DK]])
// BACKWARD:           arith.constant 0.0883883461 : f32
// BACKWARD:         return %[[DQ]],
// BACKWARD-LABEL: func.func @causal_bwd_postprocess
// BACKWARD:         "attn.map"
// BACKWARD:           arith.constant 0.0883883461 : f32
// BACKWARD:         "attn.cast"

// Two readers, one through a cast: each result is multiplied.
// CHECK-LABEL: func.func @two_gemms
// CHECK:         "attn.yield"(%x)
// CHECK:         %[[O:.*]] = "attn.gemm"(%tc, %v)
// CHECK-NEXT:    %[[P:.*]] = "attn.map"(%[[O]])
// CHECK-NEXT:    ^bb0(%[[E:[a-zA-Z0-9_]+]]: f32
// CHECK-NEXT:      %[[C:.*]] = arith.constant 1.250000e-01 : f32
// CHECK-NEXT:      %[[Y:.*]] = arith.mulf %[[E]], %[[C]] : f32
// CHECK:         return %[[P]]
func.func @two_gemms(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                     %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
                     %v: tensor<?x64xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]})
    -> (tensor<?x64xf32> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.125 : f32
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %tc = "attn.cast"(%t) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%tc, %v) : (tensor<?x?xbf16>, tensor<?x64xbf16>) -> tensor<?x64xf32>
  return %o : tensor<?x64xf32>
}

// A sum of the scores wants them multiplied: the factor stays for both readers.
// CHECK-LABEL: func.func @read_by_a_sum
// CHECK:         %[[Y:.*]] = arith.mulf
// CHECK-NEXT:    "attn.yield"(%[[Y]])
// CHECK:         %[[O:.*]] = "attn.gemm"(%tc, %v)
// CHECK-NEXT:    "attn.reduce"
// CHECK:         return %[[O]]
func.func @read_by_a_sum(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                         %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
                         %v: tensor<?x64xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]})
    -> (tensor<?x64xf32> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "r", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.125 : f32
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %tc = "attn.cast"(%t) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%tc, %v) : (tensor<?x?xbf16>, tensor<?x64xbf16>) -> tensor<?x64xf32>
  %r = "attn.reduce"(%t) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %o, %r : tensor<?x64xf32>, tensor<?xf32>
}
