"""Verifiers of the `warp` dialect: every operation refuses what does not fit, and says where.

The kernel around the wrong operation is examples/warp/gemm_bias_tanh.mlir.
"""

import functools
import pathlib
import re

import fuzz
import pytest

from fa4c.ir import warp
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import from_mlir_error
from fa4c.ir.mlir import ir
from fa4c.lowering.compile import compile_text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "warp" / "gemm_bias_tanh.mlir"
TEXT = EXAMPLE.read_text()


def said(text: str) -> str:
    """The diagnostics of a text; "" if it verifies."""
    try:
        parse_module(text, "kernel.mlir", new_context())
    except ir.MLIRError as error:
        return from_mlir_error(error)
    return ""


def test_the_example_verifies():
    assert said(TEXT) == ""


# operation -> [(text in the example, what stands there instead, what is said)]
FRAGMENT, BUFFER = "tensor<128x128xf32, #tile.reg>", "tensor<1x128x128xbf16, #tile.smem>"
WALK = '    "warp.walk"({1}) ({{\n    {0}\n      "warp.fence_async"() : () -> ()\n    }}) {{{3}operandSegmentSizes = array<i32: 1, {2}>}} : ({4}) -> ()\n    "warp.fence_async"'  # noqa: E501
ROWS = '    %lse = "warp.fragment"() : () -> {0}\n    "warp.store_rows"(%lse, {1}) : ({0}, {2}) -> ()\n    "warp.fence_async"'


def add(source: str, coords: int, dims: str, vector: int) -> str:
    kinds = {"%acc": "tensor<128x128xf32, #tile.reg>", "%out": "tensor<128x128xbf16, #tile.reg>", "%sums": "tensor<128xf32, #tile.reg>"}
    return f"""    %sums = "warp.fragment"() : () -> {kinds["%sums"]}
    "warp.global_add"({", ".join([source, "%bias", *["%m0"] * coords])}) {{dims = array<i64{dims}>, vector = {vector}}}
      : ({", ".join([kinds[source], "tensor<?xf32, #tile.gmem>", *["index"] * coords])}) -> ()
    "warp.fence_async\""""


def from_shared(operation: str, source: str, target: str) -> str:
    """A load into registers instead of the store; the buffers' types as in the example."""
    kinds = {"%sa": "tensor<4x128x64xbf16, #tile.smem>", "%sc": "tensor<1x128x128xbf16, #tile.smem>"}
    attributes = " {reader = -1, operandSegmentSizes = array<i32: 1, 0, 1>}" if source == "%sa" else ""
    return f"""    %loaded = "warp.fragment"() : () -> {target}
    "warp.{operation}"({source}, %loaded){attributes} : ({kinds[source]}, {target}) -> ()
    "warp.store_shared\""""


ADD = """    "warp.tma_add"({0}) {{operandSegmentSizes = array<i32: 1, 1, 0, {2}>}} : (!warp.descriptor, {1}) -> ()
    "warp.fence_async\""""
PUT = ADD.replace("tma_add", "tma_put").replace("{{operand", "{{group = {3}, operand")
COUNT = '    "warp.{0}_count"({1}) : ({2}) -> ()\n    "warp.fence_async"'
RELEASE = '"warp.release"(%state) : (!warp.place)'
OWNER = '"warp.slot_owner"({0}) ({{ "warp.fence_async"() : () -> () }}) : ({1})'
I1, F32 = "tensor<128xi1, #tile.reg>", "tensor<128xf32, #tile.reg>"
REFUSED = {
    "kernel": [
        ("threads = 384", "threads = 1056", "'warp.kernel' has 1056 threads"),
        ("threads = 384", "threads = 100", "has 100 threads"),
        ("threads = 384", "threads = 384, cluster = 3", "has cluster = 3"),
    ],
    "tensor_map": [
        (
            '%map_a = "warp.tensor_map"(%a) {box = array<i64: 128, 64>',
            '%map_a = "warp.tensor_map"(%a) {box = array<i64: 64>',
            "has a box of rank 1",
        ),
        ("(%a) {box = array<i64: 128, 64>", "(%a) {box = array<i64: 512, 64>", "a box has 1 to 256 elements"),
        ("(%a) {box = array<i64: 128, 64>, swizzle = 128", "(%a) {box = array<i64: 128, 64>, swizzle = 48", "has swizzle = 48"),
        ("(%a) {box = array<i64: 128, 64>", "(%a) {box = array<i64: 128, 32>", "has boxes 64 bytes wide under a swizzle of 128"),
    ],
    "buffer": [
        (BUFFER, "tensor<128x128xbf16, #tile.smem>", "a buffer is a tensor<stages x rows x columns"),
        ("{offset = 132096, swizzle = 128}", "{offset = 132096, swizzle = 16}", "has swizzle = 16"),
        ("{offset = 132096, swizzle = 128}", "{offset = 132112, swizzle = 128}", "has offset 132112"),
        (BUFFER, "tensor<1x128x72xbf16, #tile.smem>", "has rows of 144 bytes"),
        (BUFFER, "tensor<1x128x128xf8E4M3FN, #tile.smem>", "holds elements of type f8E4M3FN"),
    ],
    "pipeline": [
        ("stages = 4, offset = 0", "stages = 0, offset = 0", "has 0 stages"),
        ("stages = 4, offset = 0", "stages = 4, offset = 4", "has offset 4"),
        ("tx_bytes = 32768", "tx_bytes = 1048576", "has tx_bytes = 1048576"),
    ],
    "init_barriers": [
        (
            '"warp.init_barriers"(%ring) : (!warp.pipe)',
            '"warp.init_barriers"(%map_a) : (!warp.descriptor)',
            "needs pipe 0 made by 'warp.pipeline'",
        )
    ],
    "role": [
        ("warps = array<i64: 0, 1, 2, 3>", "warps = array<i64: 0, 1, 2, 3, 4>", "a role is made of whole warpgroups"),
        ("warps = array<i64: 0, 1, 2, 3>", "warps = array<i64: 0, 2, 1, 3>", "a role is made of whole warpgroups"),
        ("active = 1", "active = 5", "has 5 active warps of 4"),
        ("registers = 24}", "registers = 20}", "has registers = 20"),
        ("registers = 240", "registers = 264", "has registers = 264"),
    ],
    "state": [
        ("{phase = 1}", "{phase = 2}", "has phase = 2"),
        ('"warp.state"(%ring) {phase = 1} : (!warp.pipe)', '"warp.state"(%map_a) {phase = 1} : (!warp.descriptor)', "needs pipe made"),
    ],
    "elect": [('scope = "warp"}', 'scope = "lane"}', 'known are "warp", "warpgroup" and "role"')],
    "barrier": [
        ('{id = 1, scope = "warpgroup"}', '{id = 1, scope = "cta"}', "has scope = "),
        ("{id = 1,", "{id = 0,", "named barriers are 1 to 15"),
        ("{id = 1,", "{id = 16,", "has id = 16"),
    ],
    "tma_load": [
        (
            "%map_a, %sa, %state, %m0, %k0) {operandSegmentSizes = array<i32: 1, 1, 1, 2>} : (!warp.descriptor, tensor<4x128x64xbf16, #tile.smem>, !warp.place, index, index)",  # noqa: E501
            "%map_a, %sa, %state, %m0) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (!warp.descriptor, tensor<4x128x64xbf16, #tile.smem>, !warp.place, index)",  # noqa: E501
            "has 1 coordinates for",
        ),
        (
            "%a: tensor<?x?xbf16, #tile.gmem>, %b: tensor<?x?xbf16, #tile.gmem>, %bias: tensor<?xf32, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):\n  %x",  # noqa: E501
            "%a: tensor<?x?xf16, #tile.gmem>, %b: tensor<?x?xbf16, #tile.gmem>, %bias: tensor<?xf32, #tile.gmem>, %c: tensor<?x?xbf16, #tile.gmem>):\n  %x",  # noqa: E501
            None,
        ),
    ],
    "load_columns": [
        ('    "warp.store_shared"', from_shared("load_columns", "%sc", "tensor<1x128xf32, #tile.reg>"), "rows, columns and dtype stay"),
        ('    "warp.store_shared"', from_shared("load_columns", "%sc", "tensor<128x128xbf16, #tile.reg>"), "it loads one row"),
        ('    "warp.store_shared"', from_shared("load_columns", "%sa", "tensor<128x64xbf16, #tile.reg>"), "numbered from 0 on"),
    ],
    "load_fragment": [
        ('    "warp.store_shared"', from_shared("load_fragment", "%sc", "tensor<128x64xbf16, #tile.reg>"), "rows, columns and dtype stay"),
        ('    "warp.store_shared"', from_shared("load_fragment", "%sc", "tensor<1x128xf32, #tile.reg>"), "rows, columns and dtype stay"),
        ('    "warp.store_shared"', from_shared("load_fragment", "%sa", "tensor<128x64xbf16, #tile.reg>"), "numbered from 0 on"),
    ],
    "store_shared": [
        (
            "(%sc, %out) : (tensor<1x128x128xbf16, #tile.smem>, tensor<128x128xbf16, #tile.reg>)",
            "(%sc, %acc) : (tensor<1x128x128xbf16, #tile.smem>, tensor<128x128xf32, #tile.reg>)",
            "rows, columns and dtype stay",
        )
    ],
    "tma_store": [("{row = 0}", "{row = 2}", "has row = 2, but 2 coordinates")],
    "tma_add": [
        ('    "warp.fence_async"', ADD.format("%map_c, %sc, %m0, %n0", BUFFER + ", index, index", 2), "adds bf16"),
        ('    "warp.fence_async"', ADD.format("%map_c, %sc, %m0", BUFFER + ", index", 1), "has 1 coordinates for"),
    ],
    "tma_put": [
        ('    "warp.fence_async"', PUT.format("%map_c, %sc, %m0, %n0", BUFFER + ", index, index", 2, 2), "stores rows 128 to 191 of 128"),
        ('    "warp.fence_async"', PUT.format("%map_c, %sc, %m0", BUFFER + ", index", 1, 0), "has 1 coordinates for"),
    ],
    "store_rows": [
        (
            '    "warp.fence_async"',
            ROWS.format("tensor<128x8xf32, #tile.reg>", "%bias, %m0", "tensor<?xf32, #tile.gmem>, index"),
            "it stores a row vector",
        ),
        ('    "warp.fence_async"', ROWS.format(F32, "%bias, %m0, %m0", "tensor<?xf32, #tile.gmem>, index, index"), "has 2 coordinates for"),
        (
            '    "warp.fence_async"',
            ROWS.format("tensor<128xi32, #tile.reg>", "%bias, %m0", "tensor<?xf32, #tile.gmem>, index"),
            "stores do not convert",
        ),
    ],
    "wait_count": [
        ('    "warp.fence_async"', COUNT.format("wait", "%bias, %m0", "tensor<?xf32, #tile.gmem>, index"), "counts in tensor<?xf32"),
    ],
    "add_count": [
        ('    "warp.fence_async"', COUNT.format("add", "%bias", "tensor<?xf32, #tile.gmem>"), "counts in tensor<?xf32"),
    ],
    "global_add": [
        ('    "warp.fence_async"', add("%acc", 1, "", 2), "rows and the last dimension"),
        ('    "warp.fence_async"', add("%acc", 1, ": 0, 0", 2), "rows and the last dimension"),
        ('    "warp.fence_async"', add("%acc", 2, ": 0", 2), "has 2 coordinates for"),
        ('    "warp.fence_async"', add("%sums", 1, "", 3), "has vector = 3"),
        ('    "warp.fence_async"', add("%out", 1, "", 2), "adds bf16 to f32"),
    ],
    "fragment": [
        (FRAGMENT, FRAGMENT.replace("128x128", "96x128"), "a warpgroup holds 64 rows"),
        (FRAGMENT, FRAGMENT.replace("128x128", "128x20"), "of 20 columns"),
        (FRAGMENT, FRAGMENT.replace("#tile.reg", "#tile.smem"), "needs out in #tile.reg"),
        (FRAGMENT, FRAGMENT.replace("xf32", "xf8E5M2"), "of type f8E5M2"),
    ],
    "fill": [("{value = 0.0 : f32}", "{value = 0 : i32}", "has value = 0 : i32, but the fragment holds f32")],
    "copy": [
        (
            '    "warp.store_shared"',
            '    "warp.copy"(%out, %acc) : (tensor<128x128xbf16, #tile.reg>, tensor<128x128xf32, #tile.reg>) -> ()\n    "warp.store_shared"',  # noqa: E501
            "copies tensor<128x128xf32",
        )
    ],
    "wgmma": [
        ("{accumulate = true, transpose_b = true", "{accumulate = true, transpose_b = false", "the sizes do not fit"),
        ("(%acc, %sa, %sb, %state, %state)", "(%acc, %sc, %sb, %state, %state)", None),
        ("%sum: f32, %row", "%sum: f32, %row", ""),
        ("{accumulate = true, transpose_b = true", "{accumulate = true, transpose_a = true, transpose_b = true", "the sizes do not fit"),
    ],
    "wgmma_wait": [('"warp.wgmma_wait"() {pending = 0}', '"warp.wgmma_wait"() {pending = 8}', "wait_group takes 0 to 7")],
    "map": [
        ("^bb0(%sum: f32, %row: index, %col: index)", "^bb0(%sum: f32, %col: index)", "but its region takes 2 arguments"),
        ('"tile.yield"(%rounded) : (bf16)', '"tile.yield"(%tanh) : (f32)', "yields f32, but needs bf16"),
        ('"warp.map"(%out, %acc)', '"warp.map"(%out, %n0)', None),
    ],
    "reduce": [
        (
            '    "warp.store_shared"',
            f'    %m = "warp.fragment"() : () -> {F32}\n    "warp.reduce"(%m, %acc) {{kind = "min", accumulate = true}} : ({F32}, tensor<128x128xf32, #tile.reg>) -> ()\n    "warp.store_shared"',  # noqa: E501
            'known kinds are "max" and "sum"',
        ),
        (
            '    "warp.store_shared"',
            f'    %m = "warp.fragment"() : () -> {F32}\n    "warp.reduce"(%m, %out) {{kind = "max", accumulate = true}} : ({F32}, tensor<128x128xbf16, #tile.reg>) -> ()\n    "warp.store_shared"',  # noqa: E501
            "the dtype stays",
        ),
    ],
    "vote_any": [
        (
            '    "warp.store_shared"',
            f'    %m = "warp.fragment"() : () -> {F32}\n    "warp.vote_any"(%m, %m) : ({F32}, {F32}) -> ()\n    "warp.store_shared"',
            "one i1 a row",
        )
    ],
    "when": [
        (
            '    "warp.store_shared"',
            '    "warp.when"(%n0) ({\n      "warp.fence_async"() : () -> ()\n    }) : (index) -> ()\n    "warp.store_shared"',
            "has cond of type index",
        )
    ],
    "walk": [
        ('    "warp.fence_async"', WALK.format("", "%blocks", "0, 0", "", "index"), "has a body with 0 arguments"),
        (
            '    "warp.fence_async"',
            WALK.format("^bb0(%tile: index):", "%blocks, %state", "0, 1", "word = 2, ", "index, !warp.place"),
            "has word = 2",
        ),
        (
            '    "warp.fence_async"',
            WALK.format("^bb0(%tile: index):", "%blocks, %state", "0, 1", "", "index, !warp.place"),
            "has only one of state and word",
        ),
    ],
    "ptx": [
        ("tanh.approx.f32 $0, $1;", "tanh.approx.f32 $0, $2;", "has asm without $1"),
        ("tanh.approx.f32 $0, $1;", "tanh.approx.f32 $0, \\\\ $1;", "one line without quotes and backslashes"),
    ],
    "turn_take": [
        ('    "warp.store_shared"', '    "warp.turn_take"() {id = 0} : () -> ()\n    "warp.store_shared"', "named barriers are 1 to 15")
    ],
    "turn_give": [('    "warp.store_shared"', '    "warp.turn_give"() {id = 16} : () -> ()\n    "warp.store_shared"', "has id = 16")],
    "turn_init": [('    "warp.store_shared"', '    "warp.turn_init"() {id = 0} : () -> ()\n    "warp.store_shared"', "has id = 0")],
    **{
        name: [
            (
                f'"warp.{name}"(%state) : (!warp.place)',
                f'"warp.{name}"(%ring) : (!warp.pipe)',
                "needs state made by 'warp.state', but it is made by 'warp.pipeline'",
            )
        ]
        for name in ("acquire", "arm", "wait", "release", "advance")
    },
    "slot_owner": [
        (RELEASE, OWNER.format("%ring", "!warp.pipe"), "needs state made by 'warp.state'"),
        (RELEASE, OWNER.format("%state", "!warp.place"), "shares 4 slots among 8 warps"),
        (RELEASE, OWNER.format("%state", "!warp.place").replace('"warp.fence_async"() : () -> ()', ""), "needs one block in region 'body'"),
    ],
    "arrive": [('"warp.release"(%state) : (!warp.place)', '"warp.arrive"(%ring) : (!warp.pipe)', "needs state made by 'warp.state'")],
}
# What has neither operands nor attributes can only be given too much of them, which the fuzz test does.
PLAIN = {"fence_async", "store_commit", "store_wait", "wgmma_fence", "wgmma_commit", "sync_warp", "cluster_sync"}


def cases():
    for name, changes in REFUSED.items():
        for n, (old, new, message) in enumerate(changes):
            if old != new:
                yield pytest.param(name, old, new, message, id=f"{name}-{n}")


@pytest.mark.parametrize(("name", "old", "new", "message"), list(cases()))
def test_refuses(name, old, new, message):
    assert old in TEXT
    everywhere = name in ("buffer", "fragment") and "tensor<" in old  # a type has to change where the value is used, too
    text = said(TEXT.replace(old, new, -1 if everywhere else 1))
    assert re.match(r"^kernel.mlir:\d+:\d+: error: ", text), text
    assert message is None or message in text
    if message is not None:
        assert f"'warp.{name}'" in text


def test_every_operation_has_a_case():
    names = {
        kind.OPERATION_NAME.removeprefix("warp.")
        for kind in vars(warp).values()
        if isinstance(kind, type) and issubclass(kind, warp.Operation) and getattr(kind, "OPERATION_NAME", None)
    }
    assert names == set(REFUSED) | PLAIN


# -- damage ------------------------------------------------------------------------------------------------------------------------------

# What may be left out: the initial value of a sum or reduction; a pipe that `warp-check` will miss; the work of a role (its warps idle);
# registers that the compiler behind is to keep.
MAY_BE_LEFT_OUT = re.compile(
    r"^tile.(reduce|mma) .*without operand|^warp.(init_barriers|wgmma_fence) .*without operand|^warp.role .*empty block"
)


@functools.cache
def printed(path: str, level: str) -> str:
    return compile_text((ROOT / "examples" / path).read_text(), path, emit=level, locations=False)


@pytest.mark.parametrize(
    ("path", "level"), [("warp/gemm_bias_tanh.mlir", "warp"), ("tile/two_gemms.mlir", "tile"), ("tile/two_gemms.mlir", "warp")]
)
def test_damage_ends_in_a_diagnostic(path, level, tmp_path):
    file = tmp_path / "kernel.mlir"
    file.write_text(printed(path, level))
    assert [line for line in fuzz.failures(str(file)) if not (MAY_BE_LEFT_OUT.match(line) and line.endswith(": valid"))] == []
