// RUN: %fa4c opt %s --pass-pipeline "attn-derive-backward{wrt=bias,table,rows}" --no-loc | filecheck %s

// A bias of each key is read at %j, so its gradient is a sum over rows; one of each query is read at its position: a sum over keys. A table
// of distances is read at computed places, so its gradient is collected there.
// CHECK-LABEL: func.func @tables_bwd
// CHECK-SAME:    -> (tensor<?xf32> {attn.axes = ["hq"], attn.dims = ["n"], attn.name = "dbias"},
// CHECK-SAME:        tensor<?xbf16> {attn.axes = [], attn.dims = ["span"], attn.name = "dtable"},
// CHECK-SAME:        tensor<?xf32> {attn.axes = ["b", "hq"], attn.dims = ["m"], attn.name = "drows"})
// CHECK:       %[[DS:.*]] = "attn.map"(%{{.*}}, %{{.*}}, %{{.*}})
// CHECK-DAG:   %[[BIAS:.*]] = "attn.reduce"(%[[DS]]) {dim = 0 : i64, kind = "sum"}
// CHECK-DAG:   %[[ROWS:.*]] = "attn.reduce"(%[[DS]]) {kind = "sum"}
// CHECK-DAG:   %[[SUM:.*]] = "attn.scatter"(%{{.*}}, %[[DS]]) ({
// CHECK:         ^bb0(%[[X:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:           %[[AT:.*]] = arith.subi %[[J]], %[[I]]
// CHECK:           "attn.yield"(%[[X]], %[[AT]]) : (f32, index) -> ()
// CHECK:         }) : (tensor<?xbf16>, tensor<?x?xf32>) -> tensor<?xf32>
// CHECK:       %[[TABLE:.*]] = "attn.cast"(%[[SUM]]) : (tensor<?xf32>) -> tensor<?xbf16>
// CHECK:       return %[[BIAS]], %[[TABLE]], %[[ROWS]]
func.func @tables(%q: tensor<?x64xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                  %k: tensor<?x64xbf16> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
                  %bias: tensor<?xf32> {attn.name = "bias", attn.axes = ["hq"], attn.dims = ["n"]},
                  %table: tensor<?xbf16> {attn.name = "table", attn.axes = [], attn.dims = ["span"]},
                  %rows: tensor<?xf32> {attn.name = "rows", attn.axes = ["b", "hq"], attn.dims = ["m"]})
    -> (tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}) {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x64xbf16>, tensor<?x64xbf16>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %of_key = "attn.load"(%bias, %j) : (tensor<?xf32>, index) -> f32
    %of_row = "attn.load"(%rows, %i) : (tensor<?xf32>, index) -> f32
    %far = arith.subi %j, %i : index
    %of_distance = "attn.load"(%table, %far) : (tensor<?xbf16>, index) -> bf16
    %wide = arith.extf %of_distance : bf16 to f32
    %y = arith.addf %x, %of_key : f32
    %z = arith.addf %y, %of_row : f32
    %w = arith.addf %z, %wide : f32
    "attn.yield"(%w) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%t) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %lse : tensor<?xf32>
}
