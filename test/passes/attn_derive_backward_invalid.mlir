// RUN: not %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=w}" 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=doc}" 2>&1 | filecheck %s --check-prefix=INTEGER
// RUN: not %fa4c opt %s --pass-pipeline "attn-derive-backward{of=p}" 2>&1 | filecheck %s --check-prefix=RESULT
// RUN: not %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=limit}" 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=q of=counts}" 2>&1 | filecheck %s --check-prefix=COUNTS
// RUN: not %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=table}" 2>&1 | filecheck %s --check-prefix=RULE
// RUN: not %fa4c opt %S/inputs/no_attn.mlir --pass-pipeline attn-derive-backward 2>&1 | filecheck %s --check-prefix=LEVEL

// NAME:      attn_derive_backward_invalid.mlir:{{[0-9]+}}:1: error: 'func.func' has no argument 'w'
// NAME-NEXT: note: why: there are q, k, limit, doc, table
// NAME-NEXT: note: fix: use one of:

// INTEGER:      :1: error: 'func.func' has the argument 'doc' of dtype i32
// INTEGER-NEXT: note: why: only floating-point tensors have a gradient

// RESULT:      :1: error: 'func.func' has no result 'p'
// RESULT-NEXT: note: why: there are lse, counts, sums

// A limit that scores are compared with steers a choice, and a choice has no derivative.
// NOTHING:      :1: error: 'func.func' has nothing to differentiate
// NOTHING-NEXT: note: why: no result of sums depends on limit by floating-point arithmetic

// COUNTS:      :1: error: 'func.func' has the result 'counts' of dtype i32

// RULE:      attn_derive_backward_invalid.mlir:{{[0-9]+}}:11: error: 'attn.scatter' has no derivative
// RULE-NEXT: note: why: there are rules for attn.gemm, attn.map,
// RULE-NEXT: note: fix: leave the arguments that it reads out

// LEVEL: error: there is no attn function to derive

func.func @f(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
             %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
             %limit: tensor<f32> {attn.name = "limit", attn.axes = [], attn.dims = []},
             %doc: tensor<?xi32> {attn.name = "doc", attn.axes = ["b"], attn.dims = ["n"]},
             %table: tensor<?xf32> {attn.name = "table", attn.axes = ["hq"], attn.dims = ["span"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]},
        tensor<?xi32> {attn.name = "counts", attn.axes = ["b"], attn.dims = ["n"]},
        tensor<?xf32> {attn.name = "sums", attn.axes = ["hq"], attn.dims = ["span"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %l = "attn.load"(%limit) : (tensor<f32>) -> f32
    %zero = arith.constant 0.0 : f32
    %keep = arith.cmpf ogt, %l, %zero : f32
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %e = "attn.load"(%table, %j) : (tensor<?xf32>, index) -> f32
    %y = arith.mulf %x, %e : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %sums = "attn.scatter"(%table, %t) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%x, %i) : (f32, index) -> ()
  }) : (tensor<?xf32>, tensor<?x?xf32>) -> tensor<?xf32>
  return %lse, %doc, %sums : tensor<?xf32>, tensor<?xi32>, tensor<?xf32>
}
