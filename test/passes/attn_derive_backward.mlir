// RUN: %fa4c opt %s --pass-pipeline attn-derive-backward --no-loc | filecheck %s
// RUN: %fa4c opt %s --pass-pipeline "attn-derive-backward{refine=0}" --no-loc | filecheck %s --check-prefix=AS-STORED
// RUN: %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=v keep=true}" --no-loc | filecheck %s --check-prefix=ONLY-V
// RUN: %fa4c opt %s --pass-pipeline "attn-derive-backward{of=o,lse}" --no-loc | filecheck %s --check-prefix=OF-LSE
// RUN: %fa4c opt %examples/softcap.mlir --pass-pipeline "attn-derive-backward{refine=0}" --no-loc | filecheck %s --check-prefix=SOFTCAP
// RUN: %fa4c opt %examples/alibi.mlir --pass-pipeline attn-derive-backward --no-loc | filecheck %s --check-prefix=ALIBI

// Plain attention: S and P again from q, k and lse, delta from o and do, five GEMMs, each gradient with the axes of its argument. Where there are
// few keys delta is corrected by what P * (dP - delta) adds up to.
// CHECK-NOT:     func.func @plain(
// CHECK-LABEL:   func.func @plain_bwd
// CHECK-SAME:      (%[[Q:[a-z0-9]+]]: {{[^}]*}} attn.name = "q"}
// CHECK-SAME:      %[[K:[a-z0-9]+]]: {{[^}]*}} attn.name = "k"}
// CHECK-SAME:      %[[V:[a-z0-9]+]]: {{[^}]*}} attn.name = "v"}
// CHECK-SAME:      %[[O:[a-z0-9]+]]: {{[^}]*}} attn.name = "o"}
// CHECK-SAME:      %[[LSE:[a-z0-9]+]]: {{[^}]*}} attn.name = "lse"}
// CHECK-SAME:      %[[DO:[a-z0-9]+]]: tensor<?x32xbf16> {attn.axes = ["b", "hq"], attn.dims = ["m", "dv"], attn.name = "do"})
// CHECK-SAME:      -> (tensor<?x64xbf16> {attn.axes = ["b", "hq"], attn.dims = ["m", "d"], attn.name = "dq"},
// CHECK-SAME:          tensor<?x64xbf16> {attn.axes = ["b", "hkv"], attn.dims = ["n", "d"], attn.name = "dk"},
// CHECK-SAME:          tensor<?x32xbf16> {attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"], attn.name = "dv"})
// CHECK-SAME:      attributes {attn.align = "bottom_right"}
// CHECK-DAG:     %[[S:.*]] = "attn.gemm"(%[[Q]], %[[K]]) {transpose_b = true}
// CHECK-DAG:     %[[DP:.*]] = "attn.gemm"(%[[DO]], %[[V]]) {transpose_b = true}
// CHECK:         %[[P:.*]] = "attn.map"(%[[S]], %{{.*}}) ({
// CHECK:           arith.subf
// CHECK-NEXT:      math.exp
// CHECK:         %[[PC:.*]] = "attn.cast"(%[[P]])
// CHECK-NEXT:    %[[DV:.*]] = "attn.gemm"(%[[PC]], %[[DO]]) {transpose_a = true}
// CHECK:         %[[DOO:.*]] = "attn.map"(%[[DO]], %[[O]])
// CHECK:         %[[DELTA:.*]] = "attn.reduce"(%[[DOO]]) {kind = "sum"}
// CHECK:         %[[PARTS:.*]] = "attn.map"(%[[DELTA]], %[[P]], %[[DP]]) ({
// CHECK-NEXT:    ^bb0(%[[X:[a-z0-9]+]]: f32, %[[Y:[a-z0-9]+]]: f32, %[[Z:[a-z0-9]+]]: f32,
// CHECK-NEXT:      %[[D:.*]] = arith.subf %[[Z]], %[[X]]
// CHECK-NEXT:      arith.mulf %[[D]], %[[Y]]
// CHECK:         %[[OFF:.*]] = "attn.reduce"(%[[PARTS]]) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>
// CHECK-NEXT:    %[[FINE:.*]] = "attn.map"(%[[DELTA]], %[[OFF]]) ({
// CHECK-NEXT:    ^bb0(%[[X:[a-z0-9]+]]: f32, %[[Y:[a-z0-9]+]]: f32,
// CHECK-NEXT:      %[[N:.*]] = "attn.size"() {dim = "n"}
// CHECK-NEXT:      %[[MOST:.*]] = arith.constant 16 : index
// CHECK-NEXT:      %[[FEW:.*]] = arith.cmpi sle, %[[N]], %[[MOST]]
// CHECK-NEXT:      %[[SUM:.*]] = arith.addf %[[X]], %[[Y]]
// CHECK-NEXT:      arith.select %[[FEW]], %[[SUM]], %[[X]]
// CHECK:         %[[DS:.*]] = "attn.map"(%[[DP]], %[[FINE]], %[[P]])
// CHECK:         %[[DSC:.*]] = "attn.cast"(%[[DS]])
// CHECK-NEXT:    %[[DQ:.*]] = "attn.gemm"(%[[DSC]], %[[K]]) :
// CHECK-NEXT:    %[[DK:.*]] = "attn.gemm"(%[[DSC]], %[[Q]]) {transpose_a = true}
// CHECK-NOT:     attn.gemm
// CHECK:         return

// Without refinement delta is what stored outputs give.
// AS-STORED:     %[[DELTA:.*]] = "attn.reduce"
// AS-STORED-NOT: attn.reduce
// AS-STORED:     "attn.map"(%{{.*}}, %[[DELTA]], %{{.*}})

// dV alone needs P, so S and lse, but no delta; the forward is kept where asked.
// ONLY-V-LABEL:       func.func @plain(
// ONLY-V-LABEL:       func.func @plain_bwd
// ONLY-V-SAME:          attn.name = "v"}, %[[LSE:[a-z0-9]+]]: {{[^}]*}} attn.name = "lse"}
// ONLY-V-SAME:          attn.name = "do"}) -> (tensor<?x32xbf16> {{[^}]*}} attn.name = "dv"})
// ONLY-V-COUNT-2:     "attn.gemm"
// ONLY-V-NOT:         attn.reduce
// ONLY-V-NOT:         attn.gemm
// ONLY-V:             return

// The gradient of LSE is taken off delta, row by row.
// OF-LSE-LABEL:     func.func @plain_bwd
// OF-LSE-SAME:        %[[DLSE:[a-z0-9]+]]: tensor<?xf32> {attn.axes = ["b", "hq"], attn.dims = ["m"], attn.name = "dlse"})
// OF-LSE:           %[[DELTA:.*]] = "attn.reduce"
// OF-LSE-NEXT:      %[[ROW:.*]] = "attn.map"(%[[DLSE]], %[[DELTA]]) ({
// OF-LSE:             arith.subf
// OF-LSE:           }) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
// OF-LSE:           "attn.map"({{.*}}%[[ROW]]{{.*}}) ({
// OF-LSE:             arith.subf
// OF-LSE:             arith.subf
// OF-LSE:           %[[FINE:.*]] = "attn.map"(%[[ROW]], %{{.*}}) ({
// OF-LSE:           "attn.map"(%{{.*}}, %[[FINE]], %{{.*}})
func.func @plain(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                 %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
                 %v: tensor<?x32xbf16> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]})
    -> (tensor<?x32xbf16> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) attributes {attn.align = "bottom_right"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%s) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %pc = "attn.cast"(%p) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %o = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x32xbf16>) -> tensor<?x32xf32>
  %r = "attn.cast"(%o) : (tensor<?x32xf32>) -> tensor<?x32xbf16>
  return %r, %lse : tensor<?x32xbf16>, tensor<?xf32>
}

// The tangent is computed once, for the scores and for their derivative. The mask of P serves dS too.
// SOFTCAP-LABEL: func.func @softcap_bwd
// SOFTCAP:       %[[T:.*]] = "attn.map"(%{{.*}}) ({
// SOFTCAP:         math.tanh
// SOFTCAP-NEXT:    "attn.yield"
// SOFTCAP-NOT:   math.tanh
// SOFTCAP:       "attn.mask"
// SOFTCAP:         arith.cmpi sle
// SOFTCAP-NOT:   arith.cmpi
// SOFTCAP:       "attn.map"(%[[T]], %{{.*}}, %{{.*}}, %{{.*}}) ({
// SOFTCAP-NOT:   math.tanh
// SOFTCAP-NOT:   arith.select
// SOFTCAP:       return

// A captured scalar of each head: summed over keys, rows and, as it has no axis b, over the batch.
// ALIBI-LABEL:   func.func @alibi_bwd
// ALIBI-SAME:      tensor<f32> {attn.axes = ["hq"], attn.dims = [], attn.name = "dslopes"})
// ALIBI:         %[[DELTA:.*]] = "attn.reduce"(%{{.*}}) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>
// ALIBI:         "attn.map"({{.*}}%[[DELTA]]{{.*}})
// ALIBI:         %[[ROWS:.*]] = "attn.reduce"(%{{.*}}) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>
// ALIBI:         %[[ALL:.*]] = "attn.reduce"(%[[ROWS]]) {kind = "sum"} : (tensor<?xf32>) -> tensor<f32>
// ALIBI:         return %{{.*}}, %{{.*}}, %{{.*}}, %[[ALL]]
