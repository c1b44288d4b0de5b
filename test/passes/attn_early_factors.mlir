// RUN: %fa4c opt %examples/softcap.mlir --no-loc --pass-pipeline "attn-fold-scale,attn-derive-backward{refine=0},attn-sink-scale,attn-exp-to-exp2,attn-early-factors" | filecheck %s
// RUN: %fa4c opt %s --no-loc --pass-pipeline attn-early-factors | filecheck %s --check-prefix=OTHER
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-derive-backward,attn-sink-scale,attn-exp-to-exp2" > %t.plain
// RUN: %fa4c opt %examples/causal.mlir --no-loc --pass-pipeline "attn-derive-backward,attn-sink-scale,attn-exp-to-exp2,attn-early-factors" | diff %t.plain -

// P (1 - t^2) is made of the masked t, limited where that is -inf and P 0, in front of dP, which moves down to its reader.
// CHECK:      %u = "attn.mask"(%t)
// CHECK:      %p = "attn.map"(%u, %{{.*}})
// CHECK:      %[[W:.*]] = "attn.map"(%u, %p) ({
// CHECK:        arith.subf
// CHECK-NEXT:   %[[LOWEST:.*]] = arith.constant -3.40282347E+38 : f32
// CHECK-NEXT:   %[[G:.*]] = arith.maximumf %{{.*}}, %[[LOWEST]] : f32
// CHECK-NEXT:   %[[X:.*]] = arith.mulf %{{.*}}, %[[G]] : f32
// CHECK-NEXT:   "attn.yield"(%[[X]])
// CHECK:      %pc = "attn.cast"(%p)
// CHECK:      %dpc = "attn.gemm"(%do, %v)
// CHECK-NEXT: "attn.map"(%dpc, %{{.*}}, %[[W]]) ({

// A factor that could be anything where the mask hides what it reads (the root of -inf): the product is 0 where the other one is.
// OTHER-LABEL: func.func @unknown
// OTHER:         %[[E:.*]] = "attn.map"(%u) ({
// OTHER:         "attn.map"(%u, %[[E]]) ({
// OTHER:           arith.cmpf oeq
// OTHER-NEXT:      arith.select
func.func @unknown(
    %q: tensor<?x16xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x16xbf16> {attn.name = "k", attn.axes = ["b", "hq"], attn.dims = ["n", "d"]})
    -> (tensor<?x16xf32> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x16xbf16>, tensor<?x16xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.cmpi sle, %j, %i : index
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %e = "attn.map"(%u) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %y = math.exp2 %x : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %d = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x16xbf16>, tensor<?x16xbf16>) -> tensor<?x?xf32>
  %w = "attn.map"(%s, %d, %e) ({
  ^bb0(%x: f32, %y: f32, %z: f32, %b: index, %h: index, %i: index, %j: index):
    %c = math.sqrt %x : f32
    %yz = arith.mulf %y, %z : f32
    %r = arith.mulf %yz, %c : f32
    "attn.yield"(%r) : (f32) -> ()
  }) : (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %wc = "attn.cast"(%w) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%wc, %k) : (tensor<?x?xbf16>, tensor<?x16xbf16>) -> tensor<?x16xf32>
  return %o : tensor<?x16xf32>
}
