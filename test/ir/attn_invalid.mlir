// RUN: not %fa4c opt %s --pass-pipeline "attn-simplify-mask" 2>&1 | filecheck %s

// CHECK: attn_invalid.mlir:[[# @LINE + 6]]:8: error: 'attn.gemm' needs one contracted size, but a has 128 and b has 64
// CHECK-NEXT: note: why: op(a) is ?x128 and op(b) is 64x?
// CHECK-NEXT: note: fix: set transpose_a or transpose_b, or give both operands the same size there
func.func @sizes(
    %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "dk"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  return
}
