// Every attn operation and attribute at least once; what it computes makes sense only as a test.
// Forward, and the backward of plain attention by hand: delta, five GEMMs, row vectors as operands of maps, gradients of keys and values
// summed over the group of query heads, the gradient of a captured per-head scalar summed over rows, keys and batch.
func.func @every_op(
    %q: tensor<?x16xf32> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"], attn.fill = "normal"},
    %k: tensor<?x16xf32> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %v: tensor<?x24xf32> {attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]},
    %do: tensor<?x24xf32> {attn.name = "do", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
    %temperature: tensor<f32> {attn.name = "temperature", attn.axes = ["hq"], attn.dims = [], attn.fill = "uniform(0.5,2)"})
    -> (tensor<?x24xf32> {attn.name = "o", attn.axes = ["b", "hq"], attn.dims = ["m", "dv"]},
        tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]},
        tensor<?x16xf32> {attn.name = "dq", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
        tensor<?x16xf32> {attn.name = "dk", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
        tensor<?x24xf32> {attn.name = "dv", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]},
        tensor<f32> {attn.name = "dtemperature", attn.axes = ["hq"], attn.dims = []},
        tensor<?xf32> {attn.name = "row_max", attn.axes = ["b", "hq"], attn.dims = ["m"]},
        tensor<?xf32> {attn.name = "columns", attn.axes = ["b", "hq"], attn.dims = ["n"]},
        tensor<?xf32> {attn.name = "collected", attn.axes = ["b", "hkv"], attn.dims = ["n"]},
        tensor<f32> {attn.name = "squared", attn.axes = ["b", "hq"], attn.dims = []})
    attributes {attn.align = "bottom_right", attn.layout = "bhsd"} {
  %one = arith.constant 1 : index
  %s = "attn.gemm"(%q, %k) {transpose_a = false, transpose_b = true} : (tensor<?x16xf32>, tensor<?x16xf32>) -> tensor<?x?xf32>
  %t = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = "attn.load"(%temperature) : (tensor<f32>) -> f32
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %u = "attn.band_mask"(%t) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %keep = arith.cmpi sle, %j, %i : index
    "attn.yield"(%keep) : (i1) -> ()
  }, {
  ^bb0(%b: index, %h: index, %i: index):
    %zero = arith.constant 0 : index
    %hi = arith.addi %i, %one : index
    "attn.yield"(%zero, %hi, %zero, %hi) : (index, index, index, index) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %w = "attn.mask"(%u) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %n = "attn.size"() {dim = "n"} : () -> index
    %inside = arith.cmpi slt, %j, %n : index
    "attn.yield"(%inside) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%w) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  %o = "attn.gemm"(%p, %v) : (tensor<?x?xf32>, tensor<?x24xf32>) -> tensor<?x24xf32>
  %max = "attn.reduce"(%w) {kind = "max"} : (tensor<?x?xf32>) -> tensor<?xf32>

  %odo = "attn.map"(%o, %do) ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %c: index):
    %z = arith.mulf %x, %y : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<?x24xf32>, tensor<?x24xf32>) -> tensor<?x24xf32>
  %delta = "attn.reduce"(%odo) {kind = "sum"} : (tensor<?x24xf32>) -> tensor<?xf32>
  %again = "attn.map"(%w, %lse) ({
  ^bb0(%x: f32, %l: f32, %b: index, %h: index, %i: index, %j: index):
    %minus_inf = arith.constant 0xFF800000 : f32
    %empty = arith.cmpf oeq, %l, %minus_inf : f32
    %e = scf.if %empty -> (f32) {
      %none = arith.constant 0.0 : f32
      scf.yield %none : f32
    } else {
      %y = arith.subf %x, %l : f32
      %z = math.exp %y : f32
      scf.yield %z : f32
    }
    "attn.yield"(%e) : (f32) -> ()
  }) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %dv = "attn.gemm"(%again, %do) {transpose_a = true} : (tensor<?x?xf32>, tensor<?x24xf32>) -> tensor<?x24xf32>
  %dp = "attn.gemm"(%do, %v) {transpose_b = true} : (tensor<?x24xf32>, tensor<?x24xf32>) -> tensor<?x?xf32>
  %dt = "attn.map"(%again, %dp, %delta) ({
  ^bb0(%x: f32, %y: f32, %r: f32, %b: index, %h: index, %i: index, %j: index):
    %z = arith.subf %y, %r : f32
    %ds = arith.mulf %x, %z : f32
    "attn.yield"(%ds) : (f32) -> ()
  }) : (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %ds = "attn.map"(%dt) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %c = "attn.load"(%temperature) : (tensor<f32>) -> f32
    %y = arith.mulf %x, %c : f32
    "attn.yield"(%y) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %dq = "attn.gemm"(%ds, %k) : (tensor<?x?xf32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  %dk = "attn.gemm"(%ds, %q) {transpose_a = true} : (tensor<?x?xf32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  %sdt = "attn.map"(%s, %dt) ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
    %z = arith.mulf %x, %y : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %rows = "attn.reduce"(%sdt) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>
  %doubled = "attn.map"(%rows) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index):
    %z = arith.addf %x, %x : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<?xf32>) -> tensor<?xf32>
  %half = "attn.map"(%doubled, %rows) ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index):
    %z = arith.subf %x, %y : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %dc = "attn.reduce"(%half) {kind = "sum"} : (tensor<?xf32>) -> tensor<f32>
  %dc16 = "attn.cast"(%dc) : (tensor<f32>) -> tensor<bf16>
  %dc32 = "attn.cast"(%dc16) : (tensor<bf16>) -> tensor<f32>
  // Which keys matter most: the sum over queries, once by its own dimension and once collected at the key's place.
  %per_key = "attn.reduce"(%again) {kind = "sum", dim = 0} : (tensor<?x?xf32>) -> tensor<?xf32>
  %collected = "attn.scatter"(%per_key, %again, %dc32) ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%x, %j) : (f32, index) -> ()
  }) : (tensor<?xf32>, tensor<?x?xf32>, tensor<f32>) -> tensor<?xf32>
  %squared = "attn.map"(%dc32) ({
  ^bb0(%x: f32, %b: index, %h: index):
    %z = arith.mulf %x, %x : f32
    "attn.yield"(%z) : (f32) -> ()
  }) : (tensor<f32>) -> tensor<f32>
  return %o, %lse, %dq, %dk, %dv, %dc32, %max, %per_key, %collected, %squared
      : tensor<?x24xf32>, tensor<?xf32>, tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x24xf32>, tensor<f32>, tensor<?xf32>, tensor<?xf32>,
        tensor<?xf32>, tensor<f32>
}
