// c = tanh(a @ b^T + bias), one bias a column, with the sum in tensor memory: gemm_bias_tanh.mlir for a target whose MMA accumulates there.
// 128 x 128 tiles of c, the sum taken 64 at a time. One warp issues the copies of a and b into a ring of 4 slots, another the MMAs; four
// warps set the sum to 0, wait for the last MMA, read the sum, one row a thread, add the bias, and put the tile back through shared memory.
module attributes {fa4c.target = "sm_100a"} {
"tile.host"() ({
^bb0(%a: tensor<?x?xbf16, #tile.gmem>, %b: tensor<?x?xbf16, #tile.gmem>, %bias: tensor<?xf32, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):
  %m = "tile.dim"(%a) {axis = 0} : (tensor<?x?xbf16, #tile.gmem>) -> index
  %n = "tile.dim"(%b) {axis = 0} : (tensor<?x?xbf16, #tile.gmem>) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %grid_x = arith.ceildivsi %m, %c128 : index
  %grid_y = arith.ceildivsi %n, %c128 : index
  "tile.launch"(%grid_x, %grid_y, %c1, %a, %b, %bias, %c) {kernel = @gemm_tmem_kernel, operandSegmentSizes = array<i32: 3, 4, 0>} : (index, index, index, tensor<?x?xbf16, #tile.gmem>, tensor<?x?xbf16, #tile.gmem>, tensor<?xf32, #tile.gmem>, tensor<?x?xbf16, #tile.gmem>) -> ()
}) {sym_name = "gemm_tmem", tensors = [{name = "a", role = "input", dims = ["m", "k"]}, {name = "b", role = "input", dims = ["n", "k"]}, {name = "bias", role = "input", dims = ["n"]}, {name = "c", role = "output", dims = ["m", "n"]}]} : () -> ()
"warp.kernel"() ({
^bb0(%a: tensor<?x?xbf16, #tile.gmem>, %b: tensor<?x?xbf16, #tile.gmem>, %bias: tensor<?xf32, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  %m0 = arith.muli %x, %c128 : index
  %n0 = arith.muli %y, %c128 : index
  %k = "tile.dim"(%a) {axis = 1} : (tensor<?x?xbf16, #tile.gmem>) -> index
  %blocks = arith.ceildivsi %k, %c64 : index

  // Shared memory: mbarriers in the first 1024 bytes, then 4 x 16 KiB of a, 4 x 16 KiB of b, and 32 KiB of c.
  %sa = "warp.buffer"() {offset = 1024, swizzle = 128} : () -> tensor<4x128x64xbf16, #tile.smem>
  %sb = "warp.buffer"() {offset = 66560, swizzle = 128} : () -> tensor<4x128x64xbf16, #tile.smem>
  %sc = "warp.buffer"() {offset = 132096, swizzle = 128} : () -> tensor<1x128x128xbf16, #tile.smem>
  %map_a = "warp.tensor_map"(%a) {box = array<i64: 128, 64>, swizzle = 128} : (tensor<?x?xbf16, #tile.gmem>) -> !warp.descriptor
  %map_b = "warp.tensor_map"(%b) {box = array<i64: 128, 64>, swizzle = 128} : (tensor<?x?xbf16, #tile.gmem>) -> !warp.descriptor
  %map_c = "warp.tensor_map"(%c) {box = array<i64: 128, 64>, swizzle = 128} : (tensor<?x?xbf16, #tile.gmem>) -> !warp.descriptor
  // 32768 bytes fill a slot; the MMAs that read it empty it. `zeros` is filled by the four warps once the sum is 0, `sum` when all MMAs are done.
  %ring = "warp.pipeline"() {stages = 4, offset = 0, tx_bytes = 32768, arrivals = 1} : () -> !warp.pipe
  %sum = "warp.pipeline"() {stages = 1, offset = 64, tx_bytes = 0, arrivals = 0} : () -> !warp.pipe
  %zeros = "warp.pipeline"() {stages = 1, offset = 72, tx_bytes = 0, arrivals = 0, fills = 4} : () -> !warp.pipe
  %memory = "warp.tmem_alloc"() {columns = 128, word = 80, warp = 1} : () -> !warp.tensor_memory
  "warp.init_barriers"(%ring, %sum, %zeros) : (!warp.pipe, !warp.pipe, !warp.pipe) -> ()
  %acc = "warp.tmem"(%memory) : (!warp.tensor_memory) -> tensor<128x128xf32, #tile.tmem<0>>

  "warp.role"() ({
    %state = "warp.state"(%ring) {phase = 1} : (!warp.pipe) -> !warp.place
    scf.for %i = %c0 to %blocks step %c1 {
      %k0 = arith.muli %i, %c64 : index
      "warp.acquire"(%state) : (!warp.place) -> ()
      "warp.elect"() ({
        "warp.arm"(%state) : (!warp.place) -> ()
        "warp.tma_load"(%map_a, %sa, %state, %m0, %k0) {operandSegmentSizes = array<i32: 1, 1, 1, 2>} : (!warp.descriptor, tensor<4x128x64xbf16, #tile.smem>, !warp.place, index, index) -> ()
        "warp.tma_load"(%map_b, %sb, %state, %n0, %k0) {operandSegmentSizes = array<i32: 1, 1, 1, 2>} : (!warp.descriptor, tensor<4x128x64xbf16, #tile.smem>, !warp.place, index, index) -> ()
      }) {scope = "warp"} : () -> ()
      "warp.advance"(%state) : (!warp.place) -> ()
    }
  }) {sym_name = "load", warps = array<i64: 0>, active = 1, registers = 48} : () -> ()

  "warp.role"() ({
    %state = "warp.state"(%ring) {phase = 0} : (!warp.pipe) -> !warp.place
    %done = "warp.state"(%sum) {phase = 1} : (!warp.pipe) -> !warp.place
    %zeroed = "warp.state"(%zeros) {phase = 0} : (!warp.pipe) -> !warp.place
    "warp.wait"(%zeroed) : (!warp.place) -> ()
    scf.for %i = %c0 to %blocks step %c1 {
      "warp.wait"(%state) : (!warp.place) -> ()
      "warp.elect"() ({
        "warp.tcgen05_mma"(%acc, %sa, %sb, %state, %state) {accumulate = true, block = 0, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>} : (tensor<128x128xf32, #tile.tmem<0>>, tensor<4x128x64xbf16, #tile.smem>, tensor<4x128x64xbf16, #tile.smem>, !warp.place, !warp.place) -> ()
        "warp.tcgen05_commit"(%state) {barrier = "empty"} : (!warp.place) -> ()
      }) {scope = "warp"} : () -> ()
      "warp.advance"(%state) : (!warp.place) -> ()
    }
    "warp.elect"() ({
      "warp.tcgen05_commit"(%done) {barrier = "full"} : (!warp.place) -> ()
    }) {scope = "warp"} : () -> ()
  }) {sym_name = "mma", warps = array<i64: 1, 2, 3>, active = 1, registers = 48} : () -> ()

  "warp.role"() ({
    %done = "warp.state"(%sum) {phase = 0} : (!warp.pipe) -> !warp.place
    %zeroed = "warp.state"(%zeros) {phase = 1} : (!warp.pipe) -> !warp.place
    %out = "warp.fragment"() : () -> tensor<128x128xbf16, #tile.reg>
    "warp.tmem_map"(%acc) ({
    ^bb0(%row: index, %col: index):
      %zero = arith.constant 0.0 : f32
      "tile.yield"(%zero) : (f32) -> ()
    }) {columns = 32, operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<128x128xf32, #tile.tmem<0>>) -> ()
    "warp.tmem_wait"() {kind = "store"} : () -> ()
    "warp.arrive"(%zeroed) : (!warp.place) -> ()
    "warp.wait"(%done) : (!warp.place) -> ()
    "warp.tmem_map"(%out, %acc) ({
    ^bb0(%s: f32, %row: index, %col: index):
      %j = arith.addi %n0, %col : index
      %shift = "tile.load_element"(%bias, %j) : (tensor<?xf32, #tile.gmem>, index) -> f32
      %shifted = arith.addf %s, %shift : f32
      %tanh = "warp.ptx"(%shifted) {asm = "tanh.approx.f32 $0, $1;"} : (f32) -> f32
      %rounded = arith.truncf %tanh : f32 to bf16
      "tile.yield"(%rounded) : (bf16) -> ()
    }) {columns = 32, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x128xbf16, #tile.reg>, tensor<128x128xf32, #tile.tmem<0>>) -> ()
    "warp.store_shared"(%sc, %out) : (tensor<1x128x128xbf16, #tile.smem>, tensor<128x128xbf16, #tile.reg>) -> ()
    "warp.fence_async"() : () -> ()
    "warp.barrier"() {id = 1, scope = "warpgroup"} : () -> ()
    "warp.elect"() ({
      "warp.tma_store"(%map_c, %sc, %m0, %n0) {row = 0} : (!warp.descriptor, tensor<1x128x128xbf16, #tile.smem>, index, index) -> ()
      "warp.store_commit"() : () -> ()
      "warp.store_wait"() {pending = 0} : () -> ()
    }) {scope = "warpgroup"} : () -> ()
  }) {sym_name = "compute", warps = array<i64: 4, 5, 6, 7>, active = 4, registers = 240, layout = "lanes"} : () -> ()
  "warp.tmem_free"(%memory) : (!warp.tensor_memory) -> ()
}) {sym_name = "gemm_tmem_kernel", threads = 256, smem_bytes = 164864} : () -> ()
}
