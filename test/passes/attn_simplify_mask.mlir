// RUN: %fa4c opt %s --no-loc --pass-pipeline "attn-simplify-mask" | filecheck %s

// Causal: keys [0, i + 1), all of them seen.
// CHECK-LABEL: func.func @causal
// CHECK:         %[[T:.*]] = "attn.gemm"
// CHECK-NEXT:    %[[U:.*]] = "attn.band_mask"(%[[T]]) ({
// CHECK-NEXT:    ^bb0(%{{.*}}: index, %{{.*}}: index, %[[I:[a-z0-9_]+]]: index, %[[J:[a-z0-9_]+]]: index
// CHECK-NEXT:      %[[KEEP:.*]] = arith.cmpi sle, %[[J]], %[[I]] : index
// CHECK-NEXT:      "attn.yield"(%[[KEEP]]) : (i1) -> ()
// CHECK-NEXT:    }, {
// CHECK-NEXT:    ^bb0(%{{.*}}: index, %{{.*}}: index, %[[ROW:[a-z0-9_]+]]: index
// CHECK-NEXT:      %[[ZERO:.*]] = arith.constant 0 : index
// CHECK-NEXT:      %[[ONE:.*]] = arith.constant 1 : index
// CHECK-NEXT:      %[[HI:.*]] = arith.addi %[[ROW]], %[[ONE]] : index
// CHECK-NEXT:      "attn.yield"(%[[ZERO]], %[[HI]], %[[ZERO]], %[[HI]])
// CHECK:         "attn.softmax"(%[[U]])
func.func @causal(
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.cmpi sle, %j, %i : index
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}

// Documents are known at run time only, so no block is known to be full, but the causal part still ends the loop.
// CHECK-LABEL: func.func @document
// CHECK:         "attn.band_mask"
// CHECK:         }, {
// CHECK-DAG:       %[[ZERO:.*]] = arith.constant 0 : index
// CHECK-DAG:       %[[HI:.*]] = arith.addi
// CHECK:           "attn.yield"(%[[ZERO]], %[[HI]], %[[ZERO]], %[[ZERO]])
func.func @document(
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %doc: tensor<?xi32> {attn.name = "doc", attn.axes = ["b"], attn.dims = ["n"], attn.fill = "sorted_ids(4)"})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %x = "attn.load"(%doc, %i) : (tensor<?xi32>, index) -> i32
    %y = "attn.load"(%doc, %j) : (tensor<?xi32>, index) -> i32
    %same = arith.cmpi eq, %x, %y : i32
    %before = arith.cmpi sle, %j, %i : index
    %keep = arith.andi %same, %before : i1
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}

// A length loaded for each batch entry depends on neither i nor j: it is loaded again where the bounds are computed.
// CHECK-LABEL: func.func @padding
// CHECK-SAME:    %[[LENGTH:[a-z0-9_]+]]: tensor<i32>
// CHECK:         "attn.band_mask"
// CHECK:         }, {
// CHECK:           %[[L32:.*]] = "attn.load"(%[[LENGTH]])
// CHECK-NEXT:      %[[L:.*]] = arith.index_cast %[[L32]]
// CHECK-NEXT:      "attn.yield"(%[[ZERO:.*]], %[[L]], %[[ZERO]], %[[L]])
func.func @padding(
    %length: tensor<i32> {attn.name = "length", attn.axes = ["b"], attn.dims = []},
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %x = "attn.load"(%length) : (tensor<i32>) -> i32
    %l = arith.index_cast %x : i32 to index
    %keep = arith.cmpi slt, %j, %l : index
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}

// Always true: nothing is left of it.
// CHECK-LABEL: func.func @always
// CHECK-NOT:     attn.mask
// CHECK:         %[[S:.*]] = "attn.gemm"
// CHECK-NEXT:    "attn.softmax"(%[[S]])
func.func @always(
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.constant true
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}

// Nothing is known of a comparison of loaded values: the mask stays as it is.
// CHECK-LABEL: func.func @unknown
// CHECK-NOT:     attn.band_mask
// CHECK:         "attn.mask"
func.func @unknown(
    %q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %visible: tensor<?xi32> {attn.name = "visible", attn.axes = ["b"], attn.dims = ["n"], attn.fill = "uniform(0,2)"})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %x = "attn.load"(%visible, %j) : (tensor<?xi32>, index) -> i32
    %one = arith.constant 1 : i32
    %keep = arith.cmpi eq, %x, %one : i32
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}
