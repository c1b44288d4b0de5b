"""The tile interpreter: whole programs against float64 NumPy, each operation's formula, sizes, and what is refused."""

import numpy as np
import pytest
import tile_programs
import torch

from fa4c.ir import interpret_tile_ops
from fa4c.ir.context import parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.interpret_tile import run

MODES = ("value", "storage")


# ------------------------------------------------------------------------------------------------------------ whole programs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m, n, k", [(128, 128, 64), (300, 170, 200), (1, 1, 1), (129, 127, 65), (0, 5, 7), (200, 130, 0)])
def test_gemm(mode, m, n, k):
    rng = np.random.default_rng(0)
    a, b = tile_programs.bf16(rng, m, k), tile_programs.bf16(rng, n, k)
    c = run(tile_programs.example("gemm.mlir"), {"a": a, "b": b}, mode=mode)["c"]
    assert c.dtype == np.float64
    np.testing.assert_allclose(c, a @ b.T, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m, n", [(128, 128), (200, 300), (1, 1), (129, 513), (70, 0)])
def test_two_gemms(mode, m, n):
    rng = np.random.default_rng(1)
    a, b, c = tile_programs.bf16(rng, m, 64), tile_programs.bf16(rng, n, 64), tile_programs.bf16(rng, n, 128)
    out = run(tile_programs.example("two_gemms.mlir"), {"a": a, "b": b, "c": c}, mode=mode)["out"]
    np.testing.assert_allclose(out, np.maximum(a @ b.T, 0) @ c, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m, n", [(64, 64), (100, 70), (70, 200), (64, 0), (1, 1)])
def test_flash_attention_in_text_order(mode, m, n):
    inputs = tile_programs.attention_inputs(m, n)
    got, want = run(tile_programs.attention(schedule=None), inputs, mode=mode), tile_programs.attention_reference(**inputs)
    np.testing.assert_allclose(got["o"], want["o"], atol=1e-5)
    np.testing.assert_allclose(got["lse"], want["lse"], atol=1e-5)


def test_kernel_dtypes_round_and_accept_torch():
    """bf16 results, f32 sums: close to float64, not equal to it."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(200, 320, generator=generator).bfloat16()
    b = torch.randn(100, 320, generator=generator).bfloat16()
    module = tile_programs.example("gemm.mlir")
    c = run(module, {"a": a, "b": b}, dtype="kernel")["c"]
    exact = run(module, {"a": a, "b": b})["c"]
    np.testing.assert_allclose(exact, a.double().numpy() @ b.double().numpy().T, atol=1e-9)
    assert c.dtype == np.float32
    assert np.array_equal(torch.from_numpy(c).bfloat16().float().numpy(), c)
    assert 0 < np.abs(c - exact).max() < 2**-8 * np.abs(exact).max()


def test_kernel_dtypes_round_the_inputs():
    a, b = np.array([[1 + 2**-12]]), np.array([[1.0]])
    module = tile_programs.example("gemm.mlir")
    assert run(module, {"a": a, "b": b})["c"] == 1 + 2**-12
    assert run(module, {"a": a, "b": b}, dtype="kernel")["c"] == 1


def test_a_part_of_the_grid_leaves_the_rest_poisoned():
    rng = np.random.default_rng(0)
    a, b = tile_programs.bf16(rng, 300, 64), tile_programs.bf16(rng, 130, 64)
    c = run(tile_programs.example("gemm.mlir"), {"a": a, "b": b}, ctas=[(1, 0, 0)])["c"]
    np.testing.assert_allclose(c[128:256, :128], (a @ b.T)[128:256, :128])
    assert np.isnan(c[:128]).all() and np.isnan(c[256:]).all() and np.isnan(c[:, 128:]).all()


# ------------------------------------------------------------------------------------------------------ one operation at a time

HOST = """
module attributes {{fa4c.target = "sm_90a"}} {{
"tile.host"() ({{
^bb0(%x: tensor<?x?xf32, #tile.gmem>, %out: tensor<?xf32, #tile.gmem>, %out2: tensor<?x?xf32, #tile.gmem>):
  %c1 = arith.constant 1 : index
  {host}
  "tile.launch"(%c1, %c1, %c1, %x, %out, %out2 {scalars}) {{kernel = @k, operandSegmentSizes = array<i32: 3, 3, {count}>}}
    : (index, index, index, tensor<?x?xf32, #tile.gmem>, tensor<?xf32, #tile.gmem>, tensor<?x?xf32, #tile.gmem> {scalar_types}) -> ()
}}) {{sym_name = "h", tensors = [{{name = "x", role = "input", dims = ["m", "n"]}}, {{name = "out", role = "output", dims = ["m"]}},
    {{name = "out2", role = "output", dims = ["r", "c"]}}]}} : () -> ()
"tile.kernel"() ({{
^bb0(%x: tensor<?x?xf32, #tile.gmem>, %out: tensor<?xf32, #tile.gmem>, %out2: tensor<?x?xf32, #tile.gmem> {arguments}):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %sx = "tile.load"(%x, %c0, %c0) {{dims = array<i64: 0, 1>}} : (tensor<?x?xf32, #tile.gmem>, index, index) -> tensor<16x8xf32, #tile.smem>
  %rx = "tile.map"(%sx) ({{
  ^bb0(%e: f32, %i: index, %j: index):
    "tile.yield"(%e) : (f32) -> ()
  }}) {{operandSegmentSizes = array<i32: 1, 0>}} : (tensor<16x8xf32, #tile.smem>) -> tensor<16x8xf32, #tile.reg>
  {body}
}}) {{sym_name = "k"}} : () -> ()
}}
"""
ROW, TILE = "tensor<16xf32, #tile.reg>", "tensor<16x8xf32, #tile.reg>"
STORE_ROW = f'"tile.store"(%r, %out, %c0) {{dims = array<i64: 0>}} : ({ROW}, tensor<?xf32, #tile.gmem>, index) -> ()'


def run_body(body: str, x: np.ndarray, *, host: str = "", scalars: str = "", sizes=None, **options) -> dict:
    count = scalars.count("%")
    text = HOST.format(body=body, host=host, scalars=scalars, count=count, scalar_types=", index" * count,
                       arguments="".join(f", %arg{n}: index" for n in range(count)))
    return run(parse_module(text, "body.mlir"), {"x": x}, sizes=sizes or {"r": 16, "c": 8}, **options)


def store_tile(row: str = "%c0", column: str = "%c0") -> str:
    """Ends a body: %t, a tile in registers, goes to out2 at these coordinates."""
    return f"""%st = "tile.to_shared"(%t) : ({TILE}) -> tensor<16x8xf32, #tile.smem>
      "tile.store"(%st, %out2, {row}, {column}) {{dims = array<i64: 0, 1>}}
        : (tensor<16x8xf32, #tile.smem>, tensor<?x?xf32, #tile.gmem>, index, index) -> ()"""


def a_map(inputs: str, types: str, arguments: str, code: str, result: str = TILE, name: str = "t", cond: int = 0) -> str:
    return f"""%{name} = "tile.map"({inputs}) ({{
      ^bb0({arguments}, %i: index, %j: index):
        {code}
      }}) {{operandSegmentSizes = array<i32: {inputs.count("%") - cond}, {cond}>}} : ({types}) -> {result}"""


X = np.round(np.random.default_rng(3).standard_normal((16, 8)) * 8) / 8


@pytest.mark.parametrize("kind, function", [("sum", np.sum), ("max", np.max)])
def test_reduce(kind, function):
    for x in (X, X - 20):
        got = run_body(f'%r = "tile.reduce"(%rx) {{kind = "{kind}"}} : ({TILE}) -> {ROW}\n{STORE_ROW}', x)
        np.testing.assert_allclose(got["out"], function(x, axis=1))


def test_reduce_starts_at_init():
    body = f"""%first = "tile.splat"() {{value = 1.5 : f32}} : () -> {ROW}
      %r = "tile.reduce"(%rx, %first) {{kind = "sum"}} : ({TILE}, {ROW}) -> {ROW}\n{STORE_ROW}"""
    np.testing.assert_allclose(run_body(body, X)["out"], X.sum(axis=1) + 1.5)


def test_partial_reduce_takes_the_columns_of_a_quad_lane():
    """Column c of four takes columns with j // 2 % 4 == c; c is chosen by adding 100 ** c times it."""
    body = f"""%p = "tile.reduce"(%rx) {{kind = "sum"}} : ({TILE}) -> tensor<16x4xf32, #tile.reg>
      {a_map("%p", "tensor<16x4xf32, #tile.reg>", "%e: f32", '''
        %f = arith.index_cast %j : index to i32
        %g = arith.sitofp %f : i32 to f32
        %y = arith.mulf %e, %g : f32
        "tile.yield"(%y) : (f32) -> ()''', "tensor<16x4xf32, #tile.reg>", "q")}
      %r = "tile.reduce"(%q) {{kind = "sum"}} : (tensor<16x4xf32, #tile.reg>) -> {ROW}\n{STORE_ROW}"""
    parts = [X[:, [2 * c, 2 * c + 1]].sum(axis=1) for c in range(4)]
    np.testing.assert_allclose(run_body(body, X)["out"], parts[1] + 2 * parts[2] + 3 * parts[3])


def test_map_sees_row_column_scalars_and_spreads_rows():
    body = f"""%top = "tile.reduce"(%rx) {{kind = "max"}} : ({TILE}) -> {ROW}
      %five = arith.constant 5 : index
      {a_map("%rx, %top", f"{TILE}, {ROW}", "%e: f32, %m: f32", '''
        %d = arith.subf %e, %m : f32
        %a = arith.muli %i, %five : index
        %b = arith.addi %a, %j : index
        %f = arith.index_cast %b : index to i32
        %g = arith.sitofp %f : i32 to f32
        %y = arith.addf %d, %g : f32
        "tile.yield"(%y) : (f32) -> ()''')}
      {store_tile()}"""
    rows, columns = np.indices((16, 8))
    np.testing.assert_allclose(run_body(body, X)["out2"], X - X.max(axis=1, keepdims=True) + 5 * rows + columns)


def negate(cond: str, kind: str) -> str:
    code = """%y = arith.negf %e : f32
        "tile.yield"(%y) : (f32) -> ()"""
    return f'{a_map(f"%rx, {cond}", f"{TILE}, {kind}", "%e: f32", code, cond=1)}\n{store_tile()}'


@pytest.mark.parametrize("flag", [True, False])
def test_map_under_a_scalar_condition(flag):
    body = f"%flag = arith.constant {str(flag).lower()}\n" + negate("%flag", "i1")
    np.testing.assert_array_equal(run_body(body, X)["out2"], -X if flag else X)


def test_map_under_a_condition_for_each_row():
    flags = a_map("", "", "", '''
        %two = arith.constant 4 : index
        %y = arith.cmpi slt, %i, %two : index
        "tile.yield"(%y) : (i1) -> ()''', "tensor<16xi1, #tile.reg>", "flags").replace("^bb0(, ", "^bb0(")
    got = run_body(flags + "\n" + negate("%flags", "tensor<16xi1, #tile.reg>"), X)["out2"]
    np.testing.assert_array_equal(got, np.where(np.arange(16)[:, None] < 4, -X, X))


@pytest.mark.parametrize("hit, expect", [(40, [0, 0, 1, 0]), (0, [1, 0, 0, 0]), (63, [0, 0, 0, 1]), (99, [0, 0, 0, 0])])
def test_vote_any_is_uniform_over_16_rows(hit, expect):
    vote = interpret_tile_ops.reader(find("tile.vote_any", """
      %a = "tile.splat"() {value = true} : () -> tensor<64xi1, #tile.reg>
      %b = "tile.vote_any"(%a) : (tensor<64xi1, #tile.reg>) -> tensor<64xi1, #tile.reg>"""), "float64")
    (got,) = vote([np.arange(64) == hit], {})
    np.testing.assert_array_equal(got, np.repeat(expect, 16).astype(bool))


def test_rescale_factor():
    factor = interpret_tile_ops.reader(find("tile.rescale_factor", f"""
      %a = "tile.splat"() {{value = 0.0 : f32}} : () -> {ROW}
      %b = "tile.rescale_factor"(%a, %a) {{scale_log2 = 0.5 : f32}} : ({ROW}, {ROW}) -> {ROW}"""), "float64")
    old, new = np.array([1.0, 1.0, -np.inf, -np.inf]), np.array([1.0, 5.0, 3.0, -np.inf])
    np.testing.assert_allclose(factor([old, new], {})[0], [1.0, 0.25, 0.0, 0.0])


KEEP_ALIVE = []


def find(name: str, body: str):
    """The operation `name` of a kernel with this body."""
    module = parse_module('"tile.kernel"() ({' + body + '}) {sym_name = "k"} : () -> ()')
    KEEP_ALIVE.append(module)
    return next(op for op in module.body.operations[0].body.blocks[0].operations if op.operation.name == name)


@pytest.mark.parametrize("row, column", [(0, 0), (3, 0), (-3, 0), (0, 5), (2, -7), (16, 0), (-16, 0), (0, 8)])
def test_boxes_are_clipped(row, column):
    """Loads read 0 out of bounds, stores drop, at both ends of both dimensions."""
    source = np.arange(1.0, 129).reshape(16, 8)
    padded = np.zeros((48, 24))
    padded[16:32, 8:16] = source
    want = padded[16 + row : 32 + row, 8 + column : 16 + column]
    np.testing.assert_array_equal(interpret_tile_ops.read_box(source, [row, column], [0, 1], [16, 8]), want)

    target = np.full((16, 8), -1.0)
    interpret_tile_ops.write_box(target, [row, column], [0, 1], source)
    padded = np.full((48, 24), -1.0)
    padded[16 + row : 32 + row, 8 + column : 16 + column] = source
    np.testing.assert_array_equal(target, padded[16:32, 8:16])


def test_a_box_outside_in_another_dimension_is_all_zero():
    source = np.ones((2, 16, 3, 8))
    assert interpret_tile_ops.read_box(source, [1, 0, 2, 0], [1, 3], [16, 8]).all()
    for coords in ([2, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 3, 0]):
        assert not interpret_tile_ops.read_box(source, coords, [1, 3], [16, 8]).any()
    interpret_tile_ops.write_box(source, [0, 0, 3, 0], [1, 3], np.zeros((16, 8)))
    assert source.all()


def test_load_element_reads_zero_out_of_bounds():
    code = """%k = arith.subi %i, %c1 : index
        %y = "tile.load_element"(%x, %k, %j) : (tensor<?x?xf32, #tile.gmem>, index, index) -> f32
        "tile.yield"(%y) : (f32) -> ()"""
    body = a_map("%rx", TILE, "%e: f32", code) + "\n" + store_tile()
    got = run_body(body, X)["out2"]
    np.testing.assert_array_equal(got, np.vstack([np.zeros((1, 8)), X[:-1]]))


def test_exp2_in_a_map():
    code = """%y = "tile.exp2"(%e) {emulated = 16} : (f32) -> f32
        "tile.yield"(%y) : (f32) -> ()"""
    got = run_body(a_map("%rx", TILE, "%e: f32", code) + "\n" + store_tile(), X)["out2"]
    np.testing.assert_allclose(got, np.exp2(X))


def test_host_arithmetic_reaches_the_kernel():
    """num_sms and l2_bytes of the target, powers of two, select and remainder: 132 -> 128; 50 MiB."""
    host = """%sms = "tile.device"() {prop = "num_sms"} : () -> index
      %l2 = "tile.device"() {prop = "l2_bytes"} : () -> index
      %p = "tile.pow2_floor"(%sms) : (index) -> index
      %zero = arith.constant 0 : index
      %one = "tile.pow2_floor"(%zero) : (index) -> index
      %six = arith.constant 6 : index
      %mod = arith.remsi %sms, %p : index
      %cmp = arith.cmpi sgt, %mod, %six : index
      %sel = arith.select %cmp, %six, %mod : index"""
    body = """%v = arith.addi %arg0, %arg1 : index
      %i32 = arith.index_cast %v : index to i32
      %f = arith.sitofp %i32 : i32 to f32
      """ + a_map("%rx", TILE, "%e: f32", '"tile.yield"(%f) : (f32) -> ()') + "\n" + store_tile()
    for scalars, want in ((", %p, %one", 129), (", %sel, %sms", 136), (", %l2, %sms", 50 * 2**20 + 132)):
        assert (run_body(body, X, host=host, scalars=scalars)["out2"] == want).all()


def test_loops_and_branches_on_scalars():
    """Carried indices, nested loops, branches with results, also tiles."""
    body = f"""%zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {TILE}
      %c3 = arith.constant 3 : index
      %c7 = arith.constant 7 : index
      %n, %t = scf.for %outer = %c1 to %c7 step %c3 iter_args(%a = %c0, %u = %zero) -> (index, {TILE}) {{
        %inner = scf.for %k = %c0 to %outer step %c1 iter_args(%b = %a) -> (index) {{
          %b1 = arith.addi %b, %k : index
          scf.yield %b1 : index
        }}
        %first = arith.cmpi eq, %outer, %c1 : index
        %w = scf.if %first -> ({TILE}) {{
          scf.yield %rx : {TILE}
        }} else {{
          {a_map("%u", TILE, "%e: f32", '''
            %q = arith.addf %e, %e : f32
            "tile.yield"(%q) : (f32) -> ()''', name="d")}
          scf.yield %d : {TILE}
        }}
        scf.yield %inner, %w : index, {TILE}
      }}
      {store_tile("%n")}"""
    for mode in MODES:  # %n = 0 + (0 + 1 + 2 + 3); doubled once
        got = run_body(body, X, sizes={"r": 22, "c": 8}, mode=mode)["out2"]
        np.testing.assert_array_equal(got[6:], 2 * X)
        assert np.isnan(got[:6]).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_that_runs_again_starts_from_its_own_values(mode):
    add = """%y = arith.addf %e, %f : f32
            "tile.yield"(%y) : (f32) -> ()"""
    body = f"""%zero = "tile.splat"() {{value = 0.0 : f32}} : () -> {TILE}
      %c3 = arith.constant 3 : index
      %t = scf.for %run = %c0 to %c3 step %c1 iter_args(%before = %zero) -> ({TILE}) {{
        %sum = scf.for %k = %c0 to %c3 step %c1 iter_args(%u = %zero) -> ({TILE}) {{
          {a_map("%u, %rx", f"{TILE}, {TILE}", "%e: f32, %f: f32", add, name="v")}
          scf.yield %v : {TILE}
        }}
        scf.yield %sum : {TILE}
      }}
      {store_tile()}"""
    np.testing.assert_allclose(run_body(body, X, mode=mode)["out2"], 3 * X)


WALK = """
!x = tensor<?x8xf32, #tile.gmem>
!queue = tensor<2xi32, #tile.gmem>
module {
"tile.host"() ({
^bb0(%x: !x, %queue: !queue, %first: !x, %second: !x):
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  "tile.launch"(%c3, %c1, %c1, %x, %queue, %first) {kernel = @k, operandSegmentSizes = array<i32: 3, 3, 0>}
    : (index, index, index, !x, !queue, !x) -> ()
  "tile.launch"(%c3, %c1, %c1, %x, %queue, %second) {kernel = @k, operandSegmentSizes = array<i32: 3, 3, 0>}
    : (index, index, index, !x, !queue, !x) -> ()
}) {sym_name = "h", tensors = [{name = "x", role = "input", dims = ["m", "n"]},
    {name = "queue", role = "workspace", dims = ["two"], init = "zero"},
    {name = "first", role = "output", dims = ["m", "n"]}, {name = "second", role = "output", dims = ["m", "n"]}]} : () -> ()
"tile.kernel"() ({
^bb0(%x: !x, %queue: !queue, %out: !x):
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %m = "tile.dim"(%x) {axis = 0} : (!x) -> index
  %tiles = arith.ceildivsi %m, %c16 : index
  "tile.walk"(%tiles, %queue) ({
  ^bb0(%tile: index):
    %row = arith.muli %tile, %c16 : index
    %t = "tile.load"(%x, %row, %c0) {dims = array<i64: 0, 1>} : (!x, index, index) -> tensor<16x8xf32, #tile.smem>
    "tile.store"(%t, %out, %row, %c0) {dims = array<i64: 0, 1>} : (tensor<16x8xf32, #tile.smem>, !x, index, index) -> ()
  }) : (index, !queue) -> ()
}) {sym_name = "k"} : () -> ()
}
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m", [0, 1, 16, 48, 49, 150])
def test_a_walk_does_each_tile_and_leaves_its_queue_as_it_was(mode, m):
    """Three CTAs; the second launch finds the queue at 0 again."""
    x = np.arange(8.0 * m).reshape(m, 8)
    got = run(parse_module(WALK, "walk.mlir"), {"x": x}, mode=mode)
    np.testing.assert_array_equal(got["first"], x)
    np.testing.assert_array_equal(got["second"], x)


def test_a_walk_needs_a_queue_that_starts_at_0():
    with pytest.raises(Diagnostic, match="walk.mlir:.*error: 'tile.walk' finds a queue that does not start at 0"):
        run(parse_module(WALK.replace(', init = "zero"', ""), "walk.mlir"), {"x": np.zeros((1, 8))})


# --------------------------------------------------------------------------------------------------------------- what is refused

A, B = np.zeros((4, 6)), np.zeros((5, 6))


@pytest.mark.parametrize("inputs, sizes, phrase", [
    ({"a": A}, None, "needs the input 'b'"),
    ({"a": A, "b": B, "bb": B}, None, "has no input 'bb'"),
    ({"a": A, "b": B, "c": A}, None, "has no input 'c'"),
    ({"a": A, "b": np.zeros((5, 7))}, None, "was given k = 6 by 'a' and k = 7 by 'b'"),
    ({"a": A, "b": B}, {"n": 9}, "was given n = 9 by the caller and n = 5 by 'b'"),
    ({"a": A, "b": np.zeros(6)}, None, "takes 'b' with 2 dimensions (n, k), but was given 1"),
])
def test_inputs_that_do_not_fit(inputs, sizes, phrase):
    with pytest.raises(Diagnostic) as caught:
        run(tile_programs.example("gemm.mlir"), inputs, sizes=sizes)
    assert phrase in caught.value.text()
    assert caught.value.text().startswith("gemm.mlir:2:1: error: 'tile.host' ")


def test_static_sizes_are_checked():
    with pytest.raises(Diagnostic, match="takes 'b' with d = 64, but was given 32"):
        run(tile_programs.example("two_gemms.mlir"), {"a": np.zeros((4, 64)), "b": np.zeros((4, 32)), "c": np.zeros((4, 128))})


def test_sizes_of_outputs_alone_come_from_the_caller():
    with pytest.raises(Diagnostic, match="nothing says what r is"):
        run_body("", X, sizes={"c": 8})
    assert np.isnan(run_body("", X, sizes={"r": 3, "c": 2})["out2"]).all()


def test_a_module_without_a_host():
    with pytest.raises(Diagnostic, match="has 0 'tile.host' operations, but needs one"):
        run(parse_module("module {}"), {})


def test_a_loop_that_does_not_advance():
    with pytest.raises(Diagnostic, match="body.mlir:.*error: 'scf.for' has the step 0"):
        run_body("%none = arith.subi %c1, %c1 : index\n scf.for %i = %c0 to %c1 step %none {\n}", X)


def test_an_unknown_operation_is_named():
    with pytest.raises(Diagnostic, match="error: 'tensor.empty' cannot be evaluated"):
        run_body("%e = tensor.empty() : tensor<4xf32>", X)


@pytest.mark.parametrize("op", ['"tile.device"() {prop = "num_sms"} : () -> index', '"tile.pow2_floor"(%c1) : (index) -> index'])
def test_a_host_operation_in_a_kernel(op):
    with pytest.raises(Diagnostic, match="error: 'tile.(device|pow2_floor)' cannot be executed here"):
        run_body(f"%e = {op}", X)


@pytest.mark.parametrize("options", [{"mode": "physical"}, {"dtype": "bf16"}])
def test_modes_are_named(options):
    with pytest.raises(ValueError, match="value|float64"):
        run(tile_programs.example("gemm.mlir"), {}, **options)
