// RUN: %fa4c opt %s --pass-pipeline "attn-retype{dtype=fp16 head-dim=192,64}" --no-loc | filecheck %s
// RUN: %fa4c opt %s --pass-pipeline "attn-retype{head-dim=64}" --no-loc | filecheck %s --check-prefix HEAD
// RUN: %fa4c opt %s --pass-pipeline "attn-retype" --no-loc | filecheck %s --check-prefix SAME
// RUN: not %fa4c opt %s --pass-pipeline "attn-retype{head-dim=1,2,3}" 2>&1 | filecheck %s --check-prefix THREE
// RUN: not %fa4c opt %S/inputs/no_attn.mlir --pass-pipeline "attn-retype{dtype=fp16}" 2>&1 | filecheck %s --check-prefix LOWER
// RUN: not %fa4c opt %S/inputs/f32.mlir --pass-pipeline "attn-retype{dtype=fp16}" 2>&1 | filecheck %s --check-prefix WIDE
// RUN: not %fa4c opt %S/inputs/f32.mlir --pass-pipeline "attn-retype{head-dim=64}" 2>&1 | filecheck %s --check-prefix DIMS

// Queries and keys take d, values and the output dv; the bias, whose dimension has another name, keeps its size but not its dtype.
// CHECK-LABEL: func.func @biased
// CHECK-SAME:    tensor<?x192xf16> {attn.axes = ["b", "hq"]
// CHECK-SAME:    tensor<?x192xf16> {attn.axes = ["b", "hkv"]
// CHECK-SAME:    tensor<?x64xf16> {attn.axes = ["b", "hkv"]
// CHECK-SAME:    tensor<128xf16> {attn.axes = ["hq"]
// CHECK-SAME:    -> (tensor<?x64xf16>
// CHECK:         "attn.gemm"(%{{.*}}, %{{.*}}) {transpose_b = true} : (tensor<?x192xf16>, tensor<?x192xf16>) -> tensor<?x?xf32>
// A value read from memory changes with its tensor; the f32 constant is the user's, the 16-bit one keeps its value.
// CHECK:         arith.constant 0.0883883461 : f32
// CHECK:         "attn.load"(%{{.*}}, {{.*}}) : (tensor<128xf16>, index) -> f16
// CHECK-NEXT:    arith.constant 2.500000e-01 : f16
// CHECK-NEXT:    arith.mulf {{.*}} : f16
// CHECK-NEXT:    arith.extf {{.*}} : f16 to f32
// CHECK:         "attn.cast"({{.*}}) : (tensor<?x?xf32>) -> tensor<?x?xf16>
// CHECK:         "attn.gemm"({{.*}}) : (tensor<?x?xf16>, tensor<?x64xf16>) -> tensor<?x64xf32>
// CHECK:         return {{.*}} : tensor<?x64xf16>

// One number is for both head dims.
// HEAD: tensor<?x64xbf16> {attn.axes = ["b", "hq"], attn.dims = ["m", "d"]
// HEAD: -> (tensor<?x64xbf16>
// HEAD: return {{.*}} : tensor<?x64xbf16>

// SAME: tensor<?x128xbf16> {attn.axes = ["b", "hq"], attn.dims = ["m", "d"]
// SAME: return {{.*}} : tensor<?x128xbf16>

// THREE: error: head-dim=1,2,3 is no head dim
// LOWER: no_attn.mlir:{{[0-9]+:[0-9]+}}: error: there is no attn function to re-type
// WIDE: f32.mlir:{{[0-9]+}}:{{[0-9]+}}: error: 'func.func' has no bf16 or fp16 argument to re-type
// DIMS: error: 'func.func' has no dimension named d or dv

func.func @biased(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x128xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x128xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]},
    %bias: tensor<128xbf16> {attn.name = "bias", attn.axes = ["hq"], attn.dims = ["bucket"]})
    -> (tensor<?x128xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x128xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = arith.constant 0.0883883461 : f32
    %y = arith.mulf %x, %c : f32
    %near = "attn.load"(%bias, %j) : (tensor<128xbf16>, index) -> bf16
    %quarter = arith.constant 0.25 : bf16
    %small = arith.mulf %near, %quarter : bf16
    %wide = arith.extf %small : bf16 to f32
    %z = arith.addf %y, %wide : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%t) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>) -> tensor<?x128xf32>
  %r = "attn.cast"(%o) : (tensor<?x128xf32>) -> tensor<?x128xbf16>
  return %r : tensor<?x128xbf16>
}
