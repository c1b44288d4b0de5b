"""attn-to-tile by execution: the tile program gives what the attn function means, for variants, shapes, dtypes and edits of the text."""

import attn_to_tile_programs as programs
import numpy as np
import pytest
from attn_to_tile_programs import (
    CAUSAL,
    SCALED,
    STRIPES,
    WINDOW,
    argument,
    attention,
    cast,
    check_same,
    function,
    gemm_pv,
    gemm_qk,
    map_op,
    mask_op,
    softmax,
)

from fa4c.ir import scalar, tile
from fa4c.ir.context import print_module

TO_TILE = "attn-to-tile{block-m=64 block-n=32}"
BANDED = f"attn-simplify-mask,{TO_TILE}"
SIZES = [dict(b=1, hq=1, hkv=1, m=m, n=n) for m, n in [(65, 33), (150, 170), (1, 1), (200, 40), (30, 200), (70, 0)]]
GROUPED = dict(b=2, hq=4, hkv=2, m=66, n=40)
EXAMPLES = sorted(path.stem for path in programs.EXAMPLES.glob("*.mlir"))


def small(name: str, align: str = "bottom_right") -> str:
    """An example, its reach and prefix in proportion to the sizes here."""
    text = programs.example(name).replace("arith.constant 511", "arith.constant 37").replace('"bottom_right"', f'"{align}"')
    return text.replace("x128x", "x32x")


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name, align):
    for pipeline in (TO_TILE, BANDED):
        check_same(small(name, align), pipeline, GROUPED, tolerance=1e-5)
    for sizes in SIZES:
        check_same(small(name, align), BANDED, sizes, tolerance=1e-5)


@pytest.mark.parametrize("mask", ["", CAUSAL, WINDOW, STRIPES])
@pytest.mark.parametrize("d, dv", [(8, 8), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (40, 72), (256, 256)])
def test_head_dims_with_the_chosen_shape(d, dv, mask):
    check_same(attention(d=d, dv=dv, mask=mask), "attn-simplify-mask,attn-to-tile", dict(b=1, hq=2, hkv=1, m=210, n=150), tolerance=1e-5)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_layouts(layout):
    check_same(attention(layout=layout, mask=CAUSAL), BANDED, GROUPED)


@pytest.mark.parametrize("dtype, tolerance", [("bf16", 2.0**-7), ("f16", 2.0**-10)])
def test_in_the_kernels_dtype(dtype, tolerance):
    text = attention(dtype=dtype, mask=CAUSAL, d=64, dv=64)
    inputs = programs.make_inputs(text, GROUPED)
    assert programs.difference(programs.run_attn(text, inputs, "kernel"), programs.run_tile(text, BANDED, inputs, "kernel")) < 4 * tolerance


@pytest.mark.parametrize(
    "old, new",
    [
        ("constant 20", "constant 19"),
        ("constant 0.125", "constant 0.126"),
        ("cmpi sle", "cmpi slt"),
        ('"bottom_right"', '"top_left"'),
        ("arith.mulf %x, %c", "arith.addf %x, %c"),
    ],
)
def test_an_edit_of_the_text_changes_the_result_accordingly(old, new):
    text = attention(mask=WINDOW)
    edited = text.replace(old, new)
    assert edited != text
    sizes = dict(b=1, hq=2, hkv=1, m=80, n=100)
    check_same(edited, BANDED, sizes)
    inputs = programs.make_inputs(text, sizes)
    change = programs.difference(programs.run_attn(text, inputs), programs.run_attn(edited, inputs))
    assert change > 1e-4
    assert programs.difference(programs.run_attn(text, inputs), programs.run_tile(edited, BANDED, inputs)) == pytest.approx(
        change, abs=1e-5
    )


# -- other variants ------------------------------------------------------------------------------------------

O = ("o", "tensor<?x16xf32>", "m dv")  # noqa: E741
LSE = ("lse", "tensor<?xf32>", "m")
QK2 = (argument("q2", "tensor<?x16xbf16>", "b hq", "m d"), argument("k2", "tensor<?x16xbf16>", "b hkv", "n d"))
SIGMOID = """
    %one = arith.constant 1.0 : f32
    %n = arith.negf %x : f32
    %e = math.exp %n : f32
    %d = arith.addf %one, %e : f32
    %y = arith.divf %one, %d : f32"""
EXP = """
    %y = math.exp %x : f32"""
DECAY = """
    %a = arith.subi %i, %j : index
    %a32 = arith.index_cast %a : index to i32
    %af = arith.sitofp %a32 : i32 to f32
    %c = arith.constant -0.05 : f32
    %z = arith.constant 0.0 : f32
    %g = arith.mulf %af, %c : f32
    %e = math.exp2 %g : f32
    %w = arith.mulf %x, %e : f32
    %seen = arith.cmpi sle, %j, %i : index
    %y = arith.select %seen, %w, %z : f32"""
INVERSE = """
    %one = arith.constant 1.0 : f32
    %y = arith.divf %one, %x : f32"""
DROP = """
    %five = arith.constant 5 : index
    %zero = arith.constant 0 : index
    %z = arith.constant 0.0 : f32
    %c = arith.constant 1.25 : f32
    %sum = arith.addi %i, %j : index
    %rest = arith.remsi %sum, %five : index
    %out = arith.cmpi eq, %rest, %zero : index
    %w = arith.mulf %x, %c : f32
    %y = arith.select %out, %z, %w : f32"""


def two_softmaxes(mask2: str) -> str:
    """Differential attention: (softmax(q k^T) - lambda softmax(q2 k2^T)) v, as two GEMMs."""
    combine = """
    %c = arith.constant 0.3 : f32
    %z = arith.mulf %xob, %c : f32
    %y = arith.subf %xoa, %z : f32"""
    body = gemm_qk("sa") + mask_op("ua", "sa", CAUSAL) + softmax("pa", "la", "ua") + cast("ca", "pa") + gemm_pv("oa", "ca")
    body += gemm_qk("sb", "q2", "k2") + mask_op("ub", "sb", mask2) + softmax("pb", "lb", "ub") + cast("cb", "pb") + gemm_pv("ob", "cb")
    body += map_op("o", ["oa", "ob"], combine, shapes=("?x16", "?x16"))
    return function(body, [O, ("la", "tensor<?xf32>", "m"), ("lb", "tensor<?xf32>", "m")], arguments=QK2)


VARIANTS = {
    "no scale": attention(score=""),
    "unscaled, no lse": function(gemm_qk() + softmax(x="s") + cast("pc", "p") + gemm_pv(), [O]),
    "lse alone": function(gemm_qk() + mask_op("u", "s", CAUSAL) + softmax(), [LSE]),
    "two masks": function(
        gemm_qk() + mask_op("a", "s", CAUSAL) + mask_op("u", "a", STRIPES) + softmax() + cast("pc", "p") + gemm_pv(), [O, LSE]
    ),
    "two bands": function(
        gemm_qk() + mask_op("a", "s", WINDOW) + mask_op("u", "a", CAUSAL) + softmax() + cast("pc", "p") + gemm_pv(), [O, LSE]
    ),
    "map behind the mask": function(
        gemm_qk() + mask_op("a", "s", CAUSAL) + map_op("u", ["a"], SCALED) + softmax() + cast("pc", "p") + gemm_pv(), [O, LSE]
    ),
    "mask, map, mask": function(
        gemm_qk()
        + mask_op("a", "s", WINDOW)
        + map_op("e", ["a"], SIGMOID.replace("%e", "%w"))
        + mask_op("u", "e", CAUSAL)
        + softmax()
        + cast("pc", "p")
        + gemm_pv(),
        [O, LSE],
    ),
    "map that unmasks": function(
        gemm_qk() + mask_op("a", "s", CAUSAL) + map_op("u", ["a"], SIGMOID) + softmax() + cast("pc", "p") + gemm_pv(), [O, LSE]
    ),
    "two softmaxes, one band": two_softmaxes(CAUSAL),
    "two softmaxes, two bands": two_softmaxes(WINDOW),
    "two softmaxes, one stripes": two_softmaxes(STRIPES),
    "sigmoid": function(gemm_qk() + map_op("p", ["s"], SIGMOID) + cast("pc", "p") + gemm_pv(), [O]),
    "causal sigmoid": function(gemm_qk() + mask_op("u", "s", CAUSAL) + map_op("p", ["u"], SIGMOID) + cast("pc", "p") + gemm_pv(), [O]),
    "causal sigmoid behind exp": function(
        gemm_qk() + mask_op("u", "s", CAUSAL) + map_op("t", ["u"], EXP) + map_op("p", ["t"], SIGMOID) + cast("pc", "p") + gemm_pv(), [O]
    ),
    "retention": function(gemm_qk() + map_op("p", ["s"], DECAY) + cast("pc", "p") + gemm_pv(), [O]),
    "inverse": function(gemm_qk() + map_op("p", ["s"], INVERSE) + cast("pc", "p") + gemm_pv(), [O]),
    "two gemms": function(gemm_qk() + cast("pc", "s") + gemm_pv(), [O]),
    "dropout of P": function(
        gemm_qk() + mask_op("u", "s", CAUSAL) + softmax() + map_op("t", ["p"], DROP) + cast("pc", "t") + gemm_pv(), [O, LSE]
    ),
    "row sums": function(
        gemm_qk()
        + map_op("p", ["s"], DECAY)
        + '  %n = "attn.reduce"(%p) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>\n'
        + '  %top = "attn.reduce"(%s) {kind = "max"} : (tensor<?x?xf32>) -> tensor<?xf32>\n'
        + cast("pc", "p")
        + gemm_pv("z")
        + map_op("o", ["z", "n"], "\n    %y = arith.divf %xz, %xn : f32", shapes=("?x16", "?")),
        [O, ("n", "tensor<?xf32>", "m"), ("top", "tensor<?xf32>", "m")],
        align="top_left",
    ),
    "row sums of P": function(
        gemm_qk()
        + mask_op("u", "s", CAUSAL)
        + softmax()
        + map_op("t", ["p"], DROP)
        + '  %n = "attn.reduce"(%t) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>\n',
        [("n", "tensor<?xf32>", "m")],
    ),
    "output scaled by lse": function(
        gemm_qk()
        + mask_op("u", "s", CAUSAL)
        + softmax()
        + cast("pc", "p")
        + gemm_pv("z")
        + map_op("o", ["z", "lse"], "\n    %e = math.tanh %xlse : f32\n    %y = arith.mulf %xz, %e : f32", shapes=("?x16", "?")),
        [O, LSE],
    ),
    "norm of the output": function(
        gemm_qk(d=24)
        + softmax(x="s")
        + cast("pc", "p")
        + gemm_pv("z", dv=24)
        + map_op(
            "sq",
            ["z"],
            "\n    %one = arith.constant 1.0 : f32\n    %w = arith.mulf %x, %x : f32\n    %y = arith.addf %w, %one : f32",
            shapes=("?x24",),
        )
        + '  %n = "attn.reduce"(%sq) {kind = "sum"} : (tensor<?x24xf32>) -> tensor<?xf32>\n'
        + '  %top = "attn.reduce"(%z) {kind = "max"} : (tensor<?x24xf32>) -> tensor<?xf32>\n'
        + map_op("o", ["z", "n"], "\n    %w = math.rsqrt %xn : f32\n    %y = arith.mulf %xz, %w : f32", shapes=("?x24", "?")),
        [("o", "tensor<?x24xf32>", "m dv"), ("top", "tensor<?xf32>", "m")],
        d=24,
        dv=24,
    ),
    "gain of the output": function(
        gemm_qk()
        + softmax(x="s")
        + cast("pc", "p")
        + gemm_pv("z")
        + map_op(
            "o",
            ["z", "gain", "gate"],
            "\n    %w = arith.mulf %xz, %xgain : f32\n    %y = arith.mulf %w, %xgate : f32",
            shapes=("?x16", "16", "?x16"),
        ),
        [O],
        arguments=(argument("gain", "tensor<16xf32>", "hq", "dv"), argument("gate", "tensor<?x16xf32>", "b hq", "m dv")),
    ),
    "other dtypes": function(
        gemm_qk()
        + cast("h", "s", dtype="f16")
        + '  %sb = "attn.cast"(%h) : (tensor<?x?xf16>) -> tensor<?x?xbf16>\n'
        + '  %t = "attn.cast"(%sb) : (tensor<?x?xbf16>) -> tensor<?x?xf32>\n'
        + softmax(x="t")
        + cast("pc", "p")
        + gemm_pv(),
        [O, LSE],
    ),
    "bias tensor": function(
        gemm_qk()
        + map_op("t", ["s", "bias"], "\n    %y = arith.addf %xs, %xbias : f32", shapes=("?x?", "?x?"))
        + softmax(x="t")
        + cast("pc", "p")
        + gemm_pv(),
        [O, LSE],
        arguments=(argument("bias", "tensor<?x?xf32>", "hq", "m n"),),
    ),
    "bias of rows and columns": function(
        gemm_qk()
        + map_op(
            "t", ["s", "rb", "cb"], "\n    %z = arith.addf %xs, %xrb : f32\n    %y = arith.addf %z, %xcb : f32", shapes=("?x?", "?", "?")
        )
        + mask_op("u", "t", CAUSAL)
        + softmax()
        + cast("pc", "p")
        + gemm_pv(),
        [O, LSE],
        arguments=(argument("rb", "tensor<?xf32>", "b hq", "m"), argument("cb", "tensor<?xf32>", "b", "n")),
    ),
    "scale read from memory": attention(
        score="""
    %c = "attn.load"(%tau, %h) : (tensor<?xf32>, index) -> f32
    %y = arith.mulf %x, %c : f32""",
        arguments=(argument("tau", "tensor<?xf32>", "", "hq_table"),),
    ),
    "sizes in a region": attention(
        score="""
    %n = "attn.size"() {dim = "n"} : () -> index
    %rest = arith.subi %n, %j : index
    %r32 = arith.index_cast %rest : index to i32
    %rf = arith.sitofp %r32 : i32 to f32
    %c = arith.constant 0.01 : f32
    %z = arith.mulf %rf, %c : f32
    %y = arith.addf %x, %z : f32"""
    ),
    "a branch in a region": attention(
        score="""
    %near = arith.cmpi sle, %i, %j : index
    %y = scf.if %near -> (f32) {
      %t = "attn.load"(%tau, %h) : (tensor<?xf32>, index) -> f32
      %w = arith.mulf %x, %t : f32
      scf.yield %w : f32
    } else {
      scf.yield %x : f32
    }""",
        arguments=(argument("tau", "tensor<?xf32>", "", "hq_table"),),
    ),
    "two values of one P": function(
        gemm_qk() + softmax(x="s") + cast("pc", "p") + gemm_pv() + map_op("t", ["p"], DROP) + cast("tc", "t") + gemm_pv("o2", "tc"),
        [O, ("o2", "tensor<?x16xf32>", "m dv")],
    ),
    "two scores of one K": function(
        gemm_qk()
        + gemm_qk("s2", "q2", "k")
        + map_op("t", ["s", "s2"], "\n    %y = arith.mulf %xs, %xs2 : f32", shapes=("?x?", "?x?"))
        + softmax(x="t")
        + cast("pc", "p")
        + gemm_pv(),
        [O],
        arguments=QK2[:1],
    ),
    "keys as values": function(gemm_qk() + softmax(x="s") + cast("pc", "p") + gemm_pv(v="k"), [("o", "tensor<?x16xf32>", "m d"), LSE]),
    "heads of keys only": attention(mask=CAUSAL, kv="b hq"),
    "keys for the whole batch": attention(mask=CAUSAL, kv="hkv"),
    "keys for all": attention(mask=CAUSAL, kv=""),
}
VARIANT_SIZES = [dict(b=2, hq=2, hkv=1, m=65, n=33), *(dict(b=1, hq=1, hkv=1, m=m, n=n) for m, n in [(64, 64), (50, 130), (130, 50)])]
FOLDED = f"attn-simplify-mask,attn-fold-scale,{TO_TILE},canonicalize,cse"


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    for sizes in VARIANT_SIZES:
        table = {"hq_table": sizes["hq"]}
        for pipeline in (TO_TILE, BANDED, FOLDED) if sizes == VARIANT_SIZES[0] else (FOLDED,):
            check_same(VARIANTS[name], pipeline, {**sizes, **table}, tolerance=2e-5)


def test_rows_that_see_nothing_are_0_and_minus_infinity():
    text = attention(mask=CAUSAL)
    out = programs.run_tile(text, BANDED, programs.make_inputs(text, dict(b=1, hq=1, hkv=1, m=50, n=20)))
    assert np.isneginf(out["o1"][0, 0, :30]).all() and not out["o0"][0, :30].any()
    assert np.isfinite(out["o1"][0, 0, 30:]).all()


@pytest.mark.parametrize("pipeline", [TO_TILE, BANDED])
def test_storage_mode_agrees(pipeline):
    text = attention(mask=CAUSAL)
    inputs = programs.make_inputs(text, GROUPED)
    assert programs.difference(programs.run_attn(text, inputs), programs.run_tile(text, pipeline, inputs, mode="storage")) < 2e-6


def test_blocks_outside_the_band_are_not_visited():
    """Infinite keys outside the window would make P * V NaN if they were loaded: 0 * inf."""
    text = attention(mask=WINDOW, align="top_left")
    inputs = programs.make_inputs(text, dict(b=1, hq=1, hkv=1, m=64, n=200))
    want = programs.run_attn(text, inputs)
    inputs["v"][:, 96:] = np.inf
    assert programs.difference(want, programs.run_tile(text, BANDED, inputs)) < 2e-6
    assert np.isnan(programs.run_tile(text, TO_TILE, inputs)["o0"]).any()


@pytest.mark.parametrize(("exponent", "never", "visited"), [
    ("%z = arith.addf %xu, %xw : f32", "inf", False),
    ("%z = arith.subf %xu, %xw : f32", "-inf", False),  # as a backward has it without attn-exp-to-exp2
    ("%n = arith.subf %xw, %xu : f32\n    %z = arith.negf %n : f32", "-inf", False),
    ("%z = arith.subf %xu, %xw : f32", "inf", True),  # -inf - -inf is no number: P is not known to be 0
    ("%z = arith.addf %xu, %xw : f32", "-inf", True),
])
def test_blocks_that_exp_makes_0_are_not_visited(exponent, never, visited):
    """P = exp(s -+ w), w a row vector that is never one infinity; infinite values where P is 0 tell."""
    given = argument("w", "tensor<?xf32>", "b hq", "m").replace("{", f'{{attn.never = "{never}", ')
    to_p = map_op("p", ["u", "w"], f"\n    {exponent}\n    %y = math.exp %z : f32", shapes=("?x?", "?"))
    body = gemm_qk() + mask_op("u", "s", CAUSAL) + to_p + cast("pc", "p") + gemm_pv()
    text = function(body, [("o", "tensor<?x16xf32>", "m dv")], arguments=(given,), align="top_left")
    inputs = programs.make_inputs(text, dict(b=1, hq=1, hkv=1, m=64, n=200))
    want = programs.run_attn(text, inputs)
    inputs["v"][:, 96:] = np.inf
    found = programs.run_tile(text, BANDED, inputs)
    assert np.isnan(found["o0"]).any() if visited else programs.difference(want, found) < 2e-6


def test_scale_is_the_softmaxs():
    scaled = attention(score="").replace('"attn.softmax"(%s)', '"attn.softmax"(%s) {scale = 0.125 : f32}')
    sizes = dict(b=1, hq=1, hkv=1, m=65, n=40)
    check_same(scaled, TO_TILE, sizes)
    inputs = programs.make_inputs(scaled, sizes)
    assert programs.difference(programs.run_attn(attention(score=SCALED), inputs), programs.run_tile(scaled, TO_TILE, inputs)) < 2e-6


def test_every_operation_has_a_place_in_the_file():
    text = attention(mask=CAUSAL)
    printed = print_module(programs.lower(text, BANDED))
    assert "loc(unknown)" not in printed
    lines = text.splitlines()
    for name, source in (
        ('"tile.rescale_factor"', "attn.softmax"),
        ('kind = "max"', "attn.softmax"),
        ('"tile.store"', "return"),
        ("{transpose_b", "transpose_b"),
    ):
        line = next(line for line in printed.splitlines() if name in line)
        assert source in lines[programs.source_line(printed, line) - 1], line


# -- which blocks are visited, and which of them are masked --------------------------------------------------


def visited_blocks(module, x: int, sizes: dict) -> dict[int, bool]:
    """block -> whether it is masked, for the CTA of row block x: the kernel's scalar arithmetic, without its tiles."""
    kernel = module.body.operations[1]
    values = {}

    def evaluate(op):
        operation = op.operation
        if isinstance(op, tile.ProgramIdOp):
            values.update(zip(operation.results, (np.int64(x), np.int64(0), np.int64(0)), strict=True))
        elif isinstance(op, tile.DimOp):
            names = [
                name.value for name in module.body.operations[0].tensors[list(kernel.body.blocks[0].arguments).index(op.tensor)]["dims"]
            ]
            values[op.out] = np.int64(sizes[names[op.axis.value]])
        elif operation.name.startswith("arith."):
            values[operation.results[0]] = scalar.apply(operation, [values[v] for v in operation.operands])[0]

    for op in kernel.body.blocks[0].operations:
        if op.operation.name != "scf.for":
            evaluate(op)
            continue
        found = {}
        for t in range(int(values[op.operation.operands[1]])):
            values[op.induction_variable] = np.int64(t)
            for inner in op.body.operations:
                evaluate(inner)
                if isinstance(inner, tile.LoadOp):
                    block = int(values[inner.coords[1]]) // 32
                    found.setdefault(block, False)
                elif isinstance(inner, tile.MapOp) and inner.cond is not None:
                    found[block] = bool(values[inner.cond])
        assert list(found) == sorted(found, reverse=True)
        return found
    raise AssertionError("no loop")


MASKS = {"": lambda i, j: j == j, CAUSAL: lambda i, j: j <= i, WINDOW: lambda i, j: (j <= i) & (j >= i - 20)}


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("m, n", [(64, 64), (200, 200), (130, 70), (70, 130), (1, 97), (97, 1), (65, 0), (300, 64)])
def test_only_blocks_with_visible_keys_are_visited_and_only_mixed_ones_masked(mask, align, m, n):
    module = programs.lower(attention(mask=mask, align=align), BANDED)
    sizes = dict(b=1, hq=1, hkv=1, m=m, n=n)
    rows, keys = np.arange(m)[:, None] + (n - m if align == "bottom_right" else 0), np.arange(n)[None, :]
    seen = MASKS[mask](rows, keys) & (rows == rows)
    for x in range(-(-m // 64)):
        part = seen[64 * x : 64 * x + 64]
        blocks = {j: part[:, 32 * j : 32 * j + 32] for j in range(-(-n // 32))}
        holes = {j: not block.all() or block.shape[1] < 32 for j, block in blocks.items()}
        first, last = min((j for j in blocks if blocks[j].any()), default=0), max((j for j in blocks if blocks[j].any()), default=-1)
        assert visited_blocks(module, x, sizes) == {j: holes[j] for j in range(first, last + 1)}
