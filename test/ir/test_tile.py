"""Every complaint of the tile dialect's verifiers, each with its place; one line of wrong IR a case."""

import fuzz
import pytest
from tile_programs import EXAMPLES

from fa4c.ir import tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import from_mlir_error
from fa4c.ir.mlir import ir

KERNEL = """!g = tensor<?x?xbf16, #tile.gmem>
!g4 = tensor<?x?x?x32xbf16, #tile.gmem>
!gf = tensor<?xf32, #tile.gmem>
!s = tensor<64x32xbf16, #tile.smem>
!r = tensor<64x32xf32, #tile.reg>
!rb = tensor<64x32xbf16, #tile.reg>
!acc = tensor<64x64xf32, #tile.reg>
!row = tensor<64xf32, #tile.reg>
!flag = tensor<64xi1, #tile.reg>
!part = tensor<64x4xf32, #tile.reg>
!t = tensor<64x32xf32, #tile.tmem<0>>
module {
"tile.kernel"() ({
^bb0(%g: !g, %g4: !g4, %gf: !gf):
  %c0 = arith.constant 0 : index
  %yes = arith.constant true
  %one = arith.constant 1.0 : f32
  %r = "tile.splat"() {value = 0.0 : f32} : () -> !r
  %rb = "tile.splat"() {value = 0.0 : bf16} : () -> !rb
  %row = "tile.splat"() {value = 0.0 : f32} : () -> !row
  %flag = "tile.splat"() {value = true} : () -> !flag
  %part = "tile.splat"() {value = 0.0 : f32} : () -> !part
  %plain = arith.constant dense<0.0> : tensor<64x32xf32>
  %loose = arith.constant dense<true> : tensor<64xi1>
  %s = "tile.load"(%g, %c0, %c0) {dims = array<i64: 0, 1>} : (!g, index, index) -> !s
  %s4 = "tile.load"(%g4, %c0, %c0, %c0, %c0) {dims = array<i64: 1, 3>} : (!g4, index, index, index, index) -> !s
  @OP@
}) {sym_name = "k"} : () -> ()
}
"""
LINE = 1 + KERNEL.split("@OP@")[0].count("\n")


def complaint(text: str) -> str:
    """What the verifiers say, in the contract's form."""
    with pytest.raises(ir.MLIRError) as caught:
        parse_module(text, "case.mlir")
    return from_mlir_error(caught.value)


def load(attributes: str = "dims = array<i64: 0, 1>", coords: int = 2, source: str = "%g : !g", out: str = "!s") -> str:
    value, _, kind = source.partition(" : ")
    operands, kinds = ", ".join([value] + ["%c0"] * coords), ", ".join([kind] + ["index"] * coords)
    return f'%x = "tile.load"({operands}) {{{attributes}}} : ({kinds}) -> {out}'


def store(value: str, target: str, coords: int, attributes: str) -> str:
    (tile_name, tile_kind), (target_name, target_kind) = (text.split(" : ") for text in (value, target))
    return (f'"tile.store"({", ".join([tile_name, target_name] + ["%c0"] * coords)}) {{{attributes}}} : '
            f'({", ".join([tile_kind, target_kind] + ["index"] * coords)}) -> ()')


def mma(a: str, b: str, out: str, acc: str = "", attributes: str = "transpose_b = true, ") -> str:
    operands = [text.split(" : ") for text in (a, b, acc) if text]
    names, kinds = ", ".join(n for n, _ in operands), ", ".join(k for _, k in operands)
    return f'%x = "tile.mma"({names}) {{{attributes}operandSegmentSizes = array<i32: 1, 1, {len(operands) - 2}>}} : ({kinds}) -> {out}'


def global_add(value: str, target: str, coords: int, dims: str = "dims = array<i64: 0, 1>") -> str:
    return store(value, target, coords, dims).replace("tile.store", "tile.global_add")


def a_map(inputs: str, arguments: str, out: str, body: str = '"tile.yield"(%e) : (f32) -> ()', cond: str = "") -> str:
    given = [text.split(" : ") for text in inputs.split("; ") if text]
    operands = given + ([cond.split(" : ")] if cond else [])
    names, kinds = ", ".join(n for n, _ in operands), ", ".join(k for _, k in operands)
    segments = f"array<i32: {len(given)}, {int(bool(cond))}>"
    return f'%x = "tile.map"({names}) ({{ ^bb0({arguments}): {body} }}) {{operandSegmentSizes = {segments}}} : ({kinds}) -> {out}'


def map_both(second: str, cond: str = "", body: str = '"tile.yield"(%e, %e) : (f32, f32) -> ()') -> str:
    text = a_map("%r : !r", ELEMENT, f"(!r, {second})", body, cond)
    return text.replace('%x = "tile.map"', '%x:2 = "tile.map_both"')


def one(name: str, operands: str, attributes: str, out: str) -> str:
    given = [text.split(" : ") for text in operands.split("; ") if text]
    return f'%x = "tile.{name}"({", ".join(n for n, _ in given)}) {{{attributes}}} : ({", ".join(k for _, k in given)}) -> {out}'


def in_a_loop(op: str) -> str:
    return f"scf.for %k = %c0 to %c0 step %c0 {{ {op} }}"


def walk(queue: str = "%q : tensor<2xi32, #tile.gmem>", arguments: str = "%tile: index") -> str:
    name, _, kind = queue.partition(" : ")
    return f'"tile.walk"(%c0, {name}) ({{ ^bb0({arguments}): "tile.vote_any"(%flag) : (!flag) -> !flag }}) : (index, {kind}) -> ()'


ELEMENT = "%e: f32, %i: index, %j: index"
IN_KERNEL = [
    # dim
    (one("dim", "%r : !r", "axis = 0", "index"), "'tile.dim' needs tensor in #tile.gmem, but it is tensor<64x32xf32, #tile.reg>"),
    (one("dim", "%g : !g", "axis = 2", "index"), "'tile.dim' has axis = 2, but the tensor has dimensions 0 to 1"),
    (one("dim", "%g : !g", "axis = -1", "index"), "'tile.dim' has axis = -1, but the tensor has dimensions 0 to 1"),
    (one("dim", "%g : !g", "", "index"), "'tile.dim' lacks the attribute 'axis'"),
    (one("dim", "%g : !g", 'axis = "m"', "index"), "'tile.dim' has axis = \"m\", which is no integer attribute"),
    (one("dim", "%g : !g", "axes = 0, axis = 0", "index"), "'tile.dim' has no attribute 'axes'\nnote: why: declared attributes are: axis\n"
     "note: fix: did you mean 'axis'?"),
    (one("dim", "", "axis = 0", "index"), "'tile.dim' needs 1 operand, but has 0"),
    # device
    (one("device", "", 'prop = "num_sm"', "index"), "'tile.device' has prop = \"num_sm\", which is no device property\n"
     'note: why: known are "num_sms" and "l2_bytes"'),
    # load
    (load(source="%r : !r"), "'tile.load' needs source in #tile.gmem, but it is tensor<64x32xf32, #tile.reg>"),
    (load(out="!rb"), "'tile.load' needs out in #tile.smem, but it is tensor<64x32xbf16, #tile.reg>"),
    (load(out="tensor<64x32xbf16>"), "'tile.load' needs out in #tile.smem, but it is tensor<64x32xbf16>"),
    (load(coords=1), "'tile.load' needs 2 coordinates, but has 1\nnote: why: the tensor is tensor<?x?xbf16, #tile.gmem>"),
    (load("dims = array<i64: 1>"), "'tile.load' has dims = [1], but the tile has rank 2"),
    (load("dims = array<i64: 1>", out="tensor<32xbf16, #tile.smem>"),
     "'tile.load' needs out of rank 2, but it is tensor<32xbf16, #tile.smem>"),
    (load(out="tensor<?x32xbf16, #tile.smem>"),
     "'tile.load' needs out of fixed size, with rows or rows and columns, but it is tensor<?x32xbf16,"),
    (load("dims = array<i64: 0, 2>"), "'tile.load' has a dim = 2, but the tensor has dimensions 0 to 1"),
    (load("dims = array<i64: -1, 1>"), "'tile.load' has a dim = -1, but the tensor has dimensions 0 to 1"),
    (load("dims = array<i64: 1, 0>"), "'tile.load' has dims = [1, 0], but columns must run along dimension 1\n"
     "note: why: only the last dimension is contiguous"),
    (load("dims = array<i64: 3, 3>", 4, "%g4 : !g4"), "'tile.load' has dims = [3, 3], which are not ascending"),
    (load(out="tensor<64x32xf16, #tile.smem>"), "'tile.load' moves f16 out of or into a tensor of bf16\nnote: why: copies do not convert"),
    (load("dims = array<i64: 0, 1>, buffers = 0"), "'tile.load' needs at least 1 buffer, but has 0"),
    (load("dims = [0, 1]"), "'tile.load' has dims = [0, 1], which is no densei64array attribute"),
    (load(""), "'tile.load' lacks the attribute 'dims'"),
    (load("dims = array<i64: 0, 1>, buffer = 2"), "'tile.load' has no attribute 'buffer'\n"
     "note: why: declared attributes are: after, buffers, dims, l2, order, shared, stage, turns\nnote: fix: did you mean 'buffers'?"),
    (load("dims = array<i64: 0, 1>, turns = 0"),
     "'tile.load' takes turns with others, but is a row, is shared, has several buffers or stands in no loop"),
    (in_a_loop(load("dims = array<i64: 0, 1>, turns = 0")), "'tile.load' takes turns = 0 alone"),
    # mma
    (mma("%plain : tensor<64x32xf32>", "%s : !s", "!acc"),
     "'tile.mma' needs a in #tile.smem or #tile.reg or #tile.tmem, but it is tensor<64x32xf32>"),
    (mma("%s : !s", "%rb : !rb", "!acc"), "'tile.mma' needs b in #tile.smem, but it is tensor<64x32xbf16, #tile.reg>"),
    (mma("%s : !s", "%s : !s", "tensor<64x64xf32, #tile.smem>"), "'tile.mma' needs out in #tile.reg or #tile.tmem, but it is"),
    (mma("%row : !row", "%s : !s", "!acc"), "'tile.mma' needs a of rank 2, but it is tensor<64xf32, #tile.reg>"),
    (mma("%s : !s", "%s : !s", "!acc", attributes=""), "'tile.mma' needs one contracted size, but a has 32 and b has 64"),
    (mma("%r : !r", "%s : !s", "!acc"), "'tile.mma' needs one dtype for a and b, but they have f32 and bf16"),
    (mma("%s : !s", "%s : !s", "!r"), "'tile.mma' has the result tensor<64x32xf32, #tile.reg>, but computes 64x64xf32\n"
     "note: fix: give it the type tensor<64x64xf32, #tile.reg>"),
    (mma("%s : !s", "%s : !s", "tensor<64x64xbf16, #tile.reg>"), "'tile.mma' has the result tensor<64x64xbf16, #tile.reg>, but computes"),
    (mma("%s : !s", "%s : !s", "!acc", "%r : !r"), "'tile.mma' has acc of type tensor<64x32xf32, #tile.reg>, but the result is"),
    (mma("%s : !s", "%s : !s", "!acc", attributes="transposeb = true, "), "'tile.mma' has no attribute 'transposeb'"),
    (mma("%s : !s", "%s : !s", "!acc", attributes="transpose_b = 1, "), "'tile.mma' has transpose_b = 1 : i64, which is no bool attribute"),
    (mma("%rb : !rb", "%s : !s", "tensor<32x32xf32, #tile.reg>", attributes="transpose_a = true, "),
     "'tile.mma' transposes an operand a in registers\nnote: why: each thread holds parts of rows"),
    (mma("%s : !s", "%s : !s", "!acc", attributes="transpose_a = true, transpose_b = true, "),
     "'tile.mma' needs one contracted size, but a has 64 and b has 32"),
    (mma("%s : !s", "%s : !s", "!acc", attributes="transpose_a = true, "),
     "'tile.mma' has the result tensor<64x64xf32, #tile.reg>, but computes 32x32xf32"),
    (mma("%s : !s", "%s : !s", "!acc").replace("1, 1, 0", "1, 0, 1"),
     "'tile.mma' has operandSegmentSizes = [1, 0, 1], which does not fit 2 operands"),
    (a_map("%r : !r", ELEMENT, "!r").replace("operandSegmentSizes = array<i32: 1, 0>", ""),
     "'tile.map' lacks the attribute 'operandSegmentSizes'"),
    # map
    (a_map("%r : !r", ELEMENT, "tensor<64x32xf32, #tile.smem>"), "'tile.map' needs out in #tile.reg or #tile.tmem, but it is"),
    (a_map("%row : !row", ELEMENT, "tensor<64xf32, #tile.tmem<0>>"),
     "'tile.map' needs out of rank 2, but it is tensor<64xf32, #tile.tmem<0 : i64>>"),
    (a_map("%r : !r", ELEMENT, "tensor<64x32xf32, #tile.tmem<-2>>"),
     "'tile.map' needs out at a column of tensor memory, 0 or more (-1: not placed yet), but it is"),
    (a_map("%r : !r", ELEMENT, "!r", cond="%loose : tensor<64xi1>"), "'tile.map' has cond of type tensor<64xi1>"),
    (a_map("%r : !r", "%e: f32, %i: index", "!r"), "'tile.map' has 1 inputs, but its region takes 2 arguments"),
    (a_map("%g : !g", "%e: bf16, %i: index, %j: index", "!rb", '"tile.yield"(%e) : (bf16) -> ()'),
     "'tile.map' needs input 0 in #tile.reg or #tile.smem or #tile.tmem, but it is"),
    (a_map("%r : !r; %part : !part", "%e: f32, %f: f32, %i: index, %j: index", "!r"),
     "'tile.map' has input 1 of shape 64x4, but the result is 64x32\nnote: why: inputs have the result's shape, or are row vectors"),
    (a_map("%rb : !rb", ELEMENT, "!r"), "'tile.map' region argument 0 is f32, but input 0 holds bf16"),
    (a_map("%r : !r", "%e: f32, %i: index, %j: i32", "!r"), "'tile.map' region arguments for row and column are index, but one is i32"),
    (a_map("%r : !r", ELEMENT, "!r", cond="%one : f32"), "'tile.map' has cond of type f32\nnote: why: cond is an i1, or one i1 a row"),
    (a_map("%r : !r", ELEMENT, "!r", cond="%row : !row"), "'tile.map' has cond of type tensor<64xf32, #tile.reg>"),
    (a_map("%row : !row; %r : !r", "%e: f32, %f: f32, %i: index, %j: index", "!r", cond="%yes : i1"),
     "'tile.map' has cond, but its first input has not the result's type\nnote: why: where cond is false the first input passes through"),
    (a_map("", "%i: index, %j: index", "!row", '"tile.yield"(%one) : (f32) -> ()', cond="%yes : i1"),
     "'tile.map' has cond, but its first input"),
    (a_map("%r : !r", ELEMENT, "!r", "%y = arith.negf %e : f32"), "'tile.map' has a region that does not end with 'tile.yield'"),
    (a_map("%r : !r", ELEMENT, "!r", '"tile.yield"(%i) : (index) -> ()'), "'tile.map' yields index, but needs f32"),
    (a_map("%r : !r", ELEMENT, "!r", '"tile.yield"() : () -> ()'), "'tile.map' yields nothing, but needs f32"),
    # global_add
    (global_add("%s : !s", "%g : !g", 2), "'tile.global_add' adds tensor<64x32xbf16, #tile.smem>"),
    (global_add("%rb : !rb", "%g : !g", 2), "'tile.global_add' adds tensor<64x32xbf16, #tile.reg>\nnote: why: sums over CTAs are f32"),
    (global_add("%r : !r", "%g : !g", 2), "'tile.global_add' moves f32 out of or into a tensor of bf16"),
    (global_add("%r : !r", "%r : !r", 2), "'tile.global_add' needs target in #tile.gmem, but it is tensor<64x32xf32, #tile.reg>"),
    (global_add("%r : !r", "%gf : !gf", 2), "'tile.global_add' needs 1 coordinates, but has 2"),
    (global_add("%r : !r", "%gf : !gf", 1, "dims = array<i64: 0>"), "'tile.global_add' has dims = [0], but the tile has rank 2"),
    (global_add("%row : !row", "%gf : !gf", 1, "dims = array<i64: 0>"), "'tile.global_add' needs x of rank 2, but it is tensor<64xf32"),
    (global_add("%row : !row", "%gf : !gf", 2, "dims = array<i64>"), "'tile.global_add' needs 1 coordinates, but has 2"),
    # wait_count, add_count
    (one("wait_count", "%g : !g; %c0 : index; %c0 : index", "", "").replace("%x = ", "").replace("-> ", "-> ()"),
     "'tile.wait_count' counts in tensor<?x?xbf16, #tile.gmem>\nnote: why: counters are i32"),
    (one("add_count", "%r : !r; %c0 : index", "", "").replace("%x = ", "").replace("-> ", "-> ()"),
     "'tile.add_count' needs counter in #tile.gmem, but it is tensor<64x32xf32, #tile.reg>"),
    # to_shared
    (one("to_shared", "%rb : !rb", "buffers = 0", "!s"), "'tile.to_shared' needs at least 1 buffer, but has 0"),
    # map_both
    (map_both("tensor<64x16xf32, #tile.reg>"), "'tile.map_both' has results of shape 64x32 and 64x16"),
    (map_both("!s"), "'tile.map_both' needs beside in #tile.reg or #tile.tmem, but it is"),
    (map_both("!r", cond="%yes : i1"), "'tile.map_both' has cond\nnote: why: where that is false only the first result would be known"),
    (map_both("!r", body='"tile.yield"(%e) : (f32) -> ()'), "'tile.map_both' yields f32, but needs f32, f32"),
    # reduce
    (one("reduce", "%s : !s", 'kind = "sum"', "!row"), "'tile.reduce' needs x in #tile.reg, but it is tensor<64x32xbf16, #tile.smem>"),
    (one("reduce", "%row : !row", 'kind = "sum"', "!row"), "'tile.reduce' needs x of rank 2, but it is tensor<64xf32, #tile.reg>"),
    (one("reduce", "%r : !r", 'kind = "sum"', "tensor<64xf32, #tile.smem>"), "'tile.reduce' needs out in #tile.reg, but it is"),
    (one("reduce", "%r : !r", 'kind = "min"', "!row"), "'tile.reduce' has kind = \"min\"\nnote: why: known kinds are \"max\" and \"sum\""),
    (one("reduce", "%r : !r", 'kind = "sum"', "tensor<64x8xf32, #tile.reg>"),
     "'tile.reduce' reduces tensor<64x32xf32, #tile.reg> to tensor<64x8xf32,"),
    (one("reduce", "%r : !r", 'kind = "sum"', "tensor<64xbf16, #tile.reg>"),
     "'tile.reduce' reduces tensor<64x32xf32, #tile.reg> to tensor<64xbf16,"),
    (one("reduce", "%r : !r; %part : !part", 'kind = "sum"', "!row"),
     "'tile.reduce' has init of type tensor<64x4xf32, #tile.reg>, but the result is"),
    # splat
    (one("splat", "", "value = 0.0 : f32", "tensor<64x32xf32, #tile.smem>"),
     "'tile.splat' needs out in #tile.reg or #tile.tmem, but it is"),
    (one("splat", "", "value = 0.0 : bf16", "!r"), "'tile.splat' has value = 0.000000e+00 : bf16, but the result holds f32"),
    (one("splat", "", "value = 0.0 : f32", "tensor<64x32x2xf32, #tile.reg>"),
     "'tile.splat' needs out of fixed size, with rows or rows and columns"),
    (one("splat", "", "value = unit", "!r"), "'tile.splat' has value = unit, but the result holds f32"),
    # rescale_factor
    (one("rescale_factor", "%r : !r; %row : !row", "scale_log2 = 1.0 : f32", "!row"),
     "'tile.rescale_factor' needs old of rank 1, but it is"),
    (one("rescale_factor", "%row : !row; %s : !s", "scale_log2 = 1.0 : f32", "!row"),
     "'tile.rescale_factor' needs new in #tile.reg, but it is"),
    (one("rescale_factor", "%row : !row; %row : !row", "scale_log2 = 1.0 : f32", "tensor<128xf32, #tile.reg>"),
     "'tile.rescale_factor' relates tensor<64xf32, #tile.reg>, tensor<64xf32, #tile.reg> and tensor<128xf32, #tile.reg>"),
    (one("rescale_factor", "%row : !row; %row : !row", "scale = 1.0 : f32", "!row"), "'tile.rescale_factor' has no attribute 'scale'"),
    # vote_any
    (one("vote_any", "%r : !r", "", "!flag"), "'tile.vote_any' needs x of rank 1, but it is"),
    (one("vote_any", "%row : !row", "", "!row"), "'tile.vote_any' takes tensor<64xf32, #tile.reg> and gives tensor<64xf32, #tile.reg>"),
    (one("vote_any", "%flag : !flag", "", "tensor<32xi1, #tile.reg>"),
     "'tile.vote_any' takes tensor<64xi1, #tile.reg> and gives tensor<32xi1,"),
    ('%f = "tile.splat"() {value = true} : () -> tensor<8xi1, #tile.reg> loc("case.mlir":1:1)\n'
     + one("vote_any", "%f : tensor<8xi1, #tile.reg>", "", "tensor<8xi1, #tile.reg>"),
     "'tile.vote_any' needs a multiple of 16 rows, but has 8"),
    # to_shared
    (one("to_shared", "%s : !s", "", "!s"), "'tile.to_shared' needs x in #tile.reg, but it is tensor<64x32xbf16, #tile.smem>"),
    (one("to_shared", "%rb : !rb", "", "!rb"), "'tile.to_shared' needs out in #tile.smem, but it is tensor<64x32xbf16, #tile.reg>"),
    (one("to_shared", "%r : !r", "", "!s"), "'tile.to_shared' copies tensor<64x32xf32, #tile.reg> to tensor<64x32xbf16, #tile.smem>\n"
     "note: why: shape and dtype stay"),
    # store
    (store("%plain : tensor<64x32xf32>", "%g : !g", 2, "dims = array<i64: 0, 1>"),
     "'tile.store' needs tile in #tile.smem or #tile.reg, but it is"),
    (store("%s : !s", "%s : !s", 2, "dims = array<i64: 0, 1>"), "'tile.store' needs target in #tile.gmem, but it is"),
    (store("%rb : !rb", "%g : !g", 2, "dims = array<i64: 0, 1>"), "'tile.store' stores tensor<64x32xbf16, #tile.reg>\n"
     "note: why: 2-D tiles are stored from shared memory, row vectors from registers\nnote: fix: put it there first: \"tile.to_shared\""),
    (store("%s : !s", "%gf : !gf", 1, "dims = array<i64: 0>"), "'tile.store' has dims = [0], but the tile has rank 2"),
    (store("%row : !row", "%gf : !gf", 2, "dims = array<i64: 0>"), "'tile.store' needs 1 coordinates, but has 2"),
    (store("%row : !row", "%g : !g", 2, "dims = array<i64: 0>"), "'tile.store' moves f32 out of or into a tensor of bf16"),
    # load_element, exp2
    (one("load_element", "%r : !r; %c0 : index; %c0 : index", "", "f32"), "'tile.load_element' needs source in #tile.gmem, but it is"),
    (one("load_element", "%gf : !gf; %c0 : index; %c0 : index", "", "f32"), "'tile.load_element' needs 1 coordinates, but has 2"),
    (one("load_element", "%gf : !gf; %c0 : index", "", "bf16"), "'tile.load_element' gives bf16, but the tensor holds f32"),
    (one("exp2", "%one : f32", "emulated = 17", "f32"), "'tile.exp2' emulates 17 of 16 columns\nnote: why: the share is 0 to 16 of 16"),
    (one("exp2", "%one : f32", "", "f32"), "'tile.exp2' lacks the attribute 'emulated'"),
    # a place in a schedule
    (load("dims = array<i64: 0, 1>, stages = 1"), "'tile.load' has no attribute 'stages'"),
    (in_a_loop(load("dims = array<i64: 0, 1>, stage = 1.0 : f32")),
     "'tile.load' has stage = 1.000000e+00 : f32, which is no integer attribute"),
    (load("dims = array<i64: 0, 1>, stage = 1"), "'tile.load' has stage = 1, but stands in no loop\n"
     "note: why: it would place it in a loop's steps\nnote: fix: remove stage"),
    (load("dims = array<i64: 0, 1>, order = 3"), "'tile.load' has order = 3, but stands in no loop"),
    # walk
    (walk("%gf : !gf"), "'tile.walk' has the queue tensor<?xf32, #tile.gmem>\nnote: why: it is a tensor<2xi32, #tile.gmem>"),
    (walk("%row : !row"), "'tile.walk' has the queue tensor<64xf32, #tile.reg>"),
    (walk("%c0 : index"), "'tile.walk' has the queue index"),
    (walk("%gf : !gf", "%tile: index, %more: index"),
     "'tile.walk' has a body with 2 arguments\nnote: why: the body takes the tile's number"),
    (in_a_loop(load("dims = array<i64: 0, 1>, stage = -1")),
     "'tile.load' has stage = -1\nnote: why: in step k an operation of stage s works for"),
    (a_map("%r : !r", ELEMENT, "!r").replace("operandS", "stage = -2, operandS"), "'tile.map' has stage = -2"),
    (one("splat", "", "value = 0.0 : f32, stage = 0", "!r"), "'tile.splat' has no attribute 'stage'"),
]


@pytest.mark.parametrize("op, phrase", IN_KERNEL, ids=[f"{number}-{phrase[:50]}" for number, (_, phrase) in enumerate(IN_KERNEL)])
def test_wrong_operations_in_a_kernel(op, phrase):
    text = complaint(KERNEL.replace("@OP@", op))
    assert text.startswith(f"case.mlir:{LINE + op.count(chr(10))}:"), text
    assert f": error: {phrase}" in text


def test_the_kernel_without_a_wrong_operation_is_right():
    """So each case above fails for its own line. The results here have the types that the verifiers ask for."""
    for op in (
        "", load(), in_a_loop(load("dims = array<i64: 0, 1>, buffers = 3, stage = 2, order = -4")),
        mma("%s : !s", "%s : !s", "!acc"),
        mma("%rb : !rb", "%s : !s", "tensor<64x64xf32, #tile.tmem<64>>"),
        a_map("%r : !r; %row : !row", "%e: f32, %f: f32, %i: index, %j: index", "!t"),
        a_map("%r : !r", ELEMENT, "!r", cond="%flag : !flag"), a_map("%r : !r", ELEMENT, "!r", cond="%yes : i1"),
        one("reduce", "%r : !r; %part : !part", 'kind = "max"', "!part"), one("vote_any", "%flag : !flag", "", "!flag"),
        one("to_shared", "%rb : !rb", "", "!s"), store("%s : !s", "%g4 : !g4", 4, "dims = array<i64: 0, 3>"),
        store("%row : !row", "%gf : !gf", 1, "dims = array<i64: 0>"), one("exp2", "%one : f32", "emulated = 0", "f32"),
    ):
        parse_module(KERNEL.replace("@OP@", op), "case.mlir")


HOST = """!g = tensor<?x?xbf16, #tile.gmem>
module {
"tile.host"() ({
^bb0(%a: !g, %b: !g):
  %one = arith.constant 1 : index
  %i = arith.constant 1 : i32
  %r = "tile.splat"() {value = 0.0 : f32} : () -> tensor<64xf32, #tile.reg>
  @OP@
}) {sym_name = "h", tensors = @TENSORS@} : () -> ()
"tile.kernel"() ({
^bb0(%x: !g):
  %c = arith.constant 1 : index
}) {sym_name = "k"} : () -> ()
}
"""
A, B = '{name = "a", role = "input", dims = ["m", "k"]}', '{name = "b", role = "output", dims = ["m", "k"]}'


def launch(grid: list[str], tensors: list[str], scalars: list[str], kernel: str = "kernel = @k, ") -> str:
    kinds = {"%one": "index", "%i": "i32", "%r": "tensor<64xf32, #tile.reg>"}
    operands = grid + tensors + scalars
    segments = f"operandSegmentSizes = array<i32: {len(grid)}, {len(tensors)}, {len(scalars)}>"
    return f'"tile.launch"({", ".join(operands)}) {{{kernel}{segments}}} : ({", ".join(kinds.get(o, "!g") for o in operands)}) -> ()'


@pytest.mark.parametrize("op, phrase", [
    (launch(["%one"] * 2, ["%a"], []), "needs 3 grid sizes, but has 2\nnote: fix: use a constant 1 for unused ones"),
    (launch(["%one", "%one", "%i"], ["%a"], []), "takes sizes of type index, but grid or scalar 2 is i32"),
    (launch(["%one"] * 3, ["%a"], ["%one", "%i"]), "takes sizes of type index, but grid or scalar 4 is i32"),
    (launch(["%one"] * 3, ["%a", "%r"], []), "needs tensor 1 in #tile.gmem, but it is tensor<64xf32, #tile.reg>"),
    (launch(["%one"] * 3, ["%a"], [], ""), "lacks the attribute 'kernel'"),
    (launch(["%one"] * 3, ["%a"], [], 'kernel = "k", '), "has kernel = \"k\", which is no flatsymbolref attribute"),
    (launch(["%one"] * 3, ["%a"], [], "kernel = @k, cluster = 2, "), "has no attribute 'cluster'"),
    (launch(["%one"] * 3, ["%a"], [], "kernel = @kk, "), "launches @kk, but the module has no such kernel\nnote: fix: did you mean 'k'?"),
    (launch(["%one"] * 3, ["%a", "%b"], []),
     "passes (tensor<?x?xbf16, #tile.gmem>, tensor<?x?xbf16, #tile.gmem>), but @k takes (tensor<?x?xbf16"),
    (launch(["%one"] * 3, ["%a"], ["%one"]),
     "passes (tensor<?x?xbf16, #tile.gmem>, index), but @k takes (tensor<?x?xbf16, #tile.gmem>)\nnote: why: "),
])
def test_wrong_launches(op, phrase):
    text = complaint(HOST.replace("@OP@", op).replace("@TENSORS@", f"[{A}, {B}]"))
    assert text.startswith(f"case.mlir:8:3: error: 'tile.launch' {phrase}"), text


@pytest.mark.parametrize("tensors, phrase", [
    (f"[{A}]", "names 1 tensors, but its region has 2 arguments\nnote: why: 'tensors' describes the arguments one by one"),
    (f"[{A}, {A}, {B}]", "names 3 tensors, but its region has 2 arguments"),
    (f"[{A}, 3]", "describes tensor 1 wrongly: the entry is no dictionary\nnote: fix: write {name = "),
    (f"[{A}, {B[:-1]}, nmae = 1}}]", "describes tensor 1 wrongly: unknown key 'nmae'"),
    (f"[{A}, {{name = \"b\", role = \"output\"}}]", "describes tensor 1 wrongly: key 'dims' is missing"),
    (f"[{A}, {{role = \"output\", dims = [\"m\", \"k\"]}}]", "describes tensor 1 wrongly: key 'name' is missing"),
    (f"[{A.replace('input', 'inptu')}, {B}]", "describes tensor 0 wrongly: role \"inptu\" is none of input, output, workspace"),
    (f"[{A.replace(', ' + chr(34) + 'k' + chr(34), '')}, {B}]", "describes tensor 0 wrongly: dims has 1 names for a tensor of rank 2"),
    (f"[{A}, {B.replace('[' + chr(34) + 'm' + chr(34) + ', ', '[1, ')}]",
     "describes tensor 1 wrongly: dims [1, \"k\"] is no list of identifiers"),
    (f"[{A}, {{name = \"b\", role = \"output\", dims = \"mk\"}}]", "describes tensor 1 wrongly: dims \"mk\" is no list of identifiers"),
    (f"[{A}, {{name = 3, role = \"output\", dims = [\"m\", \"k\"]}}]", "describes tensor 1 wrongly: name 3 : i64 is no identifier"),
    (f"[{A}, {A}]", "describes two tensors of the name 'a'\nnote: why: callers pass tensors by name"),
    ("3", "has tensors = 3 : i64, which is no array attribute"),
])
def test_wrong_descriptions_of_tensors(tensors, phrase):
    text = complaint(HOST.replace("@OP@", "").replace("@TENSORS@", tensors))
    assert text.startswith(f"case.mlir:3:1: error: 'tile.host' {phrase}"), text


def test_a_host_launches_and_a_kernel_does_something():
    text = complaint(HOST.replace("@OP@", "").replace("@TENSORS@", f"[{A}, {B}]"))
    assert text.startswith("case.mlir:3:1: error: 'tile.host' launches no kernel\nnote: why: nothing would write its outputs"), text
    assert "error: 'tile.kernel' has an empty body" in complaint('"tile.kernel"() ({^bb0(%g: index):}) {sym_name = "k"} : () -> ()')


def test_attributes_that_upstream_operations_do_not_have():
    body = '%y = "arith.negf"(%e) {fastmaht = 1} : (f32) -> f32 "tile.yield"(%y) : (f32) -> ()'
    text = complaint(KERNEL.replace("@OP@", a_map("%r : !r", ELEMENT, "!r", body)))
    assert text.startswith(f"case.mlir:{LINE}:"), text
    assert "error: 'arith.negf' has no attribute 'fastmaht'\nnote: fix: did you mean 'fastmath'?" in text, text
    right = HOST.replace("@OP@", launch(["%one"] * 3, ["%a"], [])).replace("@TENSORS@", f"[{A}, {B}]")
    parse_module(right, "case.mlir")
    text = complaint(right.replace("%one = arith.constant 1", "%one = arith.constant {valeu = 3} 1"))
    assert text.startswith("case.mlir:5:10: error: 'arith.constant' has no attribute 'valeu'\nnote: fix: did you mean 'value'?"), text


def test_damage_ends_in_a_diagnostic():
    """Segment sizes of an mma may be left out: its count of operands says whether `acc` is there."""
    harmless = "tile.mma", "without attribute operandSegmentSizes: valid"
    for path in (*sorted(EXAMPLES.glob("*.mlir")),):
        found = fuzz.failures(str(path))
        assert [line for line in found if not (line.startswith(harmless[0]) and line.endswith(harmless[1]))] == []


def test_host_tensors_live_in_global_memory():
    text = complaint(HOST.replace("@OP@", "").replace("@TENSORS@", f"[{A}, {B}]").replace("%b: !g", "%b: tensor<2x2xf32, #tile.smem>"))
    assert "error: 'tile.host' describes tensor 1 wrongly: its type tensor<2x2xf32, #tile.smem> is no tensor in #tile.gmem" in text, text


def test_every_operation_refuses_unknown_attributes():
    """The base class does it for all; here each name is tried once, on operations with nothing else."""
    for op in tile.Tile.operations:
        text = complaint(f'"{op.OPERATION_NAME}"() {{colour = "red"}} : () -> ()')
        assert f"'{op.OPERATION_NAME}' " in text and text.startswith("case.mlir:1:"), text


def test_tile_types_print_and_parse():
    with new_context():
        for space, shape in (("smem", (64, 32)), ("reg", (64,)), ("gmem", (None, 128)), ("tmem<256>", (128, 64))):
            kind = tile.tile_type(shape, "bf16", space)
            assert tile.space_of(kind) == space.split("<")[0]
            assert ir.Type.parse(str(kind)) == kind
        assert tile.space_of(ir.Type.parse("tensor<4xf32>")) is None
        assert tile.space_of(ir.IndexType.get()) is None
