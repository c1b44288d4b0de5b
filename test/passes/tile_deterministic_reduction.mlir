// RUN: %fa4c opt %s --pass-pipeline "tile-deterministic-reduction,cse" --no-loc | filecheck %s

// Each CTA adds to the rows of blocks from its own number on: last(i) = min(last, i), and the grid runs backwards.
// CHECK:       "tile.launch"(%[[GX:.*]], %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[GX]]) {kernel = @k, operandSegmentSizes = array<i32: 3, 2, 1>}
// CHECK:       dims = ["m", "warpgroups"], init = "zero", lifetime = "call", name = "sum_turns", role = "workspace"
// CHECK:       ^bb0(%[[SUM:.*]]: tensor<?x64xf32, #tile.gmem>, %[[COUNTER:.*]]: tensor<?x1xi32, #tile.gmem>, %[[SIZE:.*]]: index)
// CHECK:       %[[X:.*]]:3 = "tile.program_id"
// CHECK:       %[[LAST:.*]] = arith.subi %[[SIZE]]
// CHECK:       %[[BLOCK:.*]] = arith.subi %[[LAST]], %[[X]]#0
// CHECK:       %[[LENGTH:.*]] = arith.subi %{{.*}}, %[[BLOCK]]
// CHECK:       scf.for %[[J:.*]] = %{{.*}} to %[[LENGTH]]
// CHECK:         %[[I:.*]] = arith.addi %[[BLOCK]], %[[J]]
// CHECK:         %[[ROW:.*]] = arith.muli %[[I]]
// CHECK:         %[[BEHIND:.*]] = arith.minsi %[[LAST]], %[[I]]
// CHECK-NEXT:    %[[TURN:.*]] = arith.subi %[[BEHIND]], %[[BLOCK]]
// CHECK-NEXT:    "tile.wait_count"(%[[COUNTER]], %[[TURN]], %[[ROW]])
// CHECK-NEXT:    "tile.global_add"
// CHECK-NEXT:    "tile.add_count"(%[[COUNTER]], %[[ROW]])
"tile.host"() ({
^bb0(%sum: tensor<?x64xf32, #tile.gmem>):
  %m = "tile.dim"(%sum) {axis = 0} : (tensor<?x64xf32, #tile.gmem>) -> index
  %c64 = arith.constant 64 : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %m, %c64 : index
  "tile.launch"(%gx, %c1, %c1, %sum) {kernel = @k, operandSegmentSizes = array<i32: 3, 1, 0>} : (index, index, index, tensor<?x64xf32, #tile.gmem>) -> ()
}) {sym_name = "host", tensors = [{name = "sum", role = "workspace", dims = ["m", "d"], init = "zero", lifetime = "call"}]} : () -> ()
"tile.kernel"() ({
^bb0(%sum: tensor<?x64xf32, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %m = "tile.dim"(%sum) {axis = 0} : (tensor<?x64xf32, #tile.gmem>) -> index
  %end = arith.ceildivsi %m, %c64 : index
  %length = arith.subi %end, %x : index
  scf.for %j = %c0 to %length step %c1 {
    %i = arith.addi %x, %j : index
    %row = arith.muli %i, %c64 : index
    %t = "tile.splat"() {value = 1.0 : f32} : () -> tensor<64x64xf32, #tile.reg>
    "tile.global_add"(%t, %sum, %row, %c0) {dims = array<i64: 0, 1>} : (tensor<64x64xf32, #tile.reg>, tensor<?x64xf32, #tile.gmem>, index, index) -> ()
  }
}) {sym_name = "k"} : () -> ()

// By two blocks for each x: x is the turn, as all of smaller x add too, and the loop is walked backwards; of several heads, all for a block
// before the next block: the first loop makes all trips then, and the last one a single one.
// CHECK:       ^bb0(%[[SUM:.*]]: tensor<?x?x64xf32, #tile.gmem>, %[[COUNTER:.*]]: tensor<?x?x1xi32, #tile.gmem>)
// CHECK:       %[[X:.*]]:3 = "tile.program_id"
// CHECK:       %[[FIRST:.*]] = arith.muli %[[X]]#0
// CHECK-NEXT:  %[[LENGTH:.*]] = arith.subi %{{.*}}, %[[FIRST]]
// CHECK-NEXT:  %[[ALONE:.*]] = arith.cmpi eq, %[[HEADS:.*]], %[[ONE:.*]] : index
// CHECK-NEXT:  %[[ATATIME:.*]] = arith.select %[[ALONE]], %[[LENGTH]], %[[ONE]]
// CHECK-NEXT:  %[[TIMES:.*]] = arith.select %[[ALONE]], %[[ONE]], %[[LENGTH]]
// CHECK-NEXT:  scf.for %[[J:.*]] = %{{.*}} to %[[TIMES]] step
// CHECK-NEXT:    scf.for %[[H:.*]] = %{{.*}} to %[[HEADS]] step
// CHECK-NEXT:      scf.for %[[K:.*]] = %{{.*}} to %[[ATATIME]] step
// CHECK-NEXT:        %[[WALK:.*]] = arith.addi %[[J]], %[[K]] : index
// CHECK-NEXT:        %[[LAST:.*]] = arith.subi %[[LENGTH]], %[[ONE]]
// CHECK-NEXT:        %[[BACK:.*]] = arith.subi %[[LAST]], %[[WALK]]
// CHECK-NEXT:        %[[I:.*]] = arith.addi %[[FIRST]], %[[BACK]]
// CHECK:             "tile.wait_count"(%[[COUNTER]], %[[X]]#0, %[[H]], %[[ROW:[a-z]+]])
// CHECK-NEXT:        "tile.global_add"
// CHECK-NEXT:        "tile.add_count"(%[[COUNTER]], %[[H]], %[[ROW]])
"tile.host"() ({
^bb0(%sum: tensor<?x?x64xf32, #tile.gmem>):
  %m = "tile.dim"(%sum) {axis = 1} : (tensor<?x?x64xf32, #tile.gmem>) -> index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %m, %c128 : index
  "tile.launch"(%gx, %c1, %c1, %sum) {kernel = @k2, operandSegmentSizes = array<i32: 3, 1, 0>} : (index, index, index, tensor<?x?x64xf32, #tile.gmem>) -> ()
}) {sym_name = "host2", tensors = [{name = "sum", role = "workspace", dims = ["h", "m", "d"], init = "zero", lifetime = "call"}]} : () -> ()
"tile.kernel"() ({
^bb0(%sum: tensor<?x?x64xf32, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  %heads = "tile.dim"(%sum) {axis = 0} : (tensor<?x?x64xf32, #tile.gmem>) -> index
  %m = "tile.dim"(%sum) {axis = 1} : (tensor<?x?x64xf32, #tile.gmem>) -> index
  %end = arith.ceildivsi %m, %c64 : index
  %first = arith.muli %x, %c2 : index
  scf.for %h = %c0 to %heads step %c1 {
    %length = arith.subi %end, %first : index
    scf.for %j = %c0 to %length step %c1 {
      %i = arith.addi %first, %j : index
      %row = arith.muli %i, %c64 : index
      %t = "tile.splat"() {value = 1.0 : f32} : () -> tensor<64x64xf32, #tile.reg>
      "tile.global_add"(%t, %sum, %h, %row, %c0) {dims = array<i64: 1, 2>} : (tensor<64x64xf32, #tile.reg>, tensor<?x?x64xf32, #tile.gmem>, index, index, index) -> ()
    }
  }
}) {sym_name = "k2"} : () -> ()
