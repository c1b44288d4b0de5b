"""Attention functions as text, put together from parts, and their execution before and after passes."""

import functools
import pathlib
import re

import numpy as np

from fa4c.ir import interpret_attn, interpret_tile
from fa4c.ir.attn_signature import attn_functions, function_facts, memory_order
from fa4c.ir.context import new_context, parse_module
from fa4c.passes.registry import run_pipeline

CONTEXT = new_context()
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

SCALED = """
    %c = arith.constant 0.125 : f32
    %y = arith.mulf %x, %c : f32"""
CAUSAL = """
    %keep = arith.cmpi sle, %j, %i : index"""
WINDOW = """
    %reach = arith.constant 20 : index
    %first = arith.subi %i, %reach : index
    %after = arith.cmpi sge, %j, %first : index
    %before = arith.cmpi sle, %j, %i : index
    %keep = arith.andi %after, %before : i1"""
# No range of keys: every block is masked.
STRIPES = """
    %three = arith.constant 3 : index
    %zero = arith.constant 0 : index
    %sum = arith.addi %i, %j : index
    %rest = arith.remsi %sum, %three : index
    %keep = arith.cmpi ne, %rest, %zero : index"""


def argument(name, kind, axes, dims) -> str:
    def strings(names):
        return "[" + ", ".join(f'"{n}"' for n in names.split()) + "]"

    return f'%{name}: {kind} {{attn.name = "{name}", attn.axes = {strings(axes)}, attn.dims = {strings(dims)}}}'


def gemm_qk(out="s", q="q", k="k", d=16, dtype="bf16") -> str:
    operand = f"tensor<?x{d}x{dtype}>"
    return f'  %{out} = "attn.gemm"(%{q}, %{k}) {{transpose_b = true}} : ({operand}, {operand}) -> tensor<?x?xf32>\n'


def gemm_pv(out="o", p="pc", v="v", dv=16, dtype="bf16") -> str:
    return f'  %{out} = "attn.gemm"(%{p}, %{v}) : (tensor<?x?x{dtype}>, tensor<?x{dv}x{dtype}>) -> tensor<?x{dv}xf32>\n'


def cast(out, x, shape="?x?", dtype="bf16") -> str:
    return f'  %{out} = "attn.cast"(%{x}) : (tensor<{shape}xf32>) -> tensor<{shape}x{dtype}>\n'


def map_op(out, inputs, body, *, shapes=("?x?",), shape=None, result="y") -> str:
    """`inputs` are names, `shapes` their shapes; the region's elements are called like them with an x in front, or %x if there is one."""
    shape = shape or max(shapes, key=len)
    names = ["x"] if len(inputs) == 1 else [f"x{name}" for name in inputs]
    indices = "%b: index, %h: index, %i: index" + (", %j: index" if "x" in shape else "")
    elements = "".join(f"%{name}: f32, " for name in names)
    kinds = ", ".join(f"tensor<{s}xf32>" for s in shapes)
    operands = ", ".join(f"%{name}" for name in inputs)
    return (
        f'  %{out} = "attn.map"({operands}) ({{\n  ^bb0({elements}{indices}):{body}\n    "attn.yield"(%{result}) : (f32) -> ()\n'
        f"  }}) : ({kinds}) -> tensor<{shape}xf32>\n"
    )


def mask_op(out, x, predicate) -> str:
    arguments = "%b: index, %h: index, %i: index, %j: index"
    return (
        f'  %{out} = "attn.mask"(%{x}) ({{\n  ^bb0({arguments}):{predicate}\n    "attn.yield"(%keep) : (i1) -> ()\n'
        "  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>\n"
    )


def softmax(p="p", lse="lse", x="u") -> str:
    return f'  %{p}, %{lse} = "attn.softmax"(%{x}) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)\n'


def function(
    body: str, results: list[tuple], *, arguments=(), d=16, dv=16, dtype="bf16", align="bottom_right", layout="bshd", kv="b hkv"
) -> str:
    """`results`: (value, type, dims), stored under the names o0, o1, ...; q, k and v are always there."""
    given = [
        argument("q", f"tensor<?x{d}x{dtype}>", "b hq", "m d"),
        argument("k", f"tensor<?x{d}x{dtype}>", kv, "n d"),
        argument("v", f"tensor<?x{dv}x{dtype}>", kv, "n dv"),
        *arguments,
    ]
    described = [argument(f"o{n}", kind, "b hq", dims).partition(": ")[2] for n, (_, kind, dims) in enumerate(results)]
    values, kinds = ", ".join(f"%{value}" for value, _, _ in results), ", ".join(kind for _, kind, _ in results)
    return (
        f"func.func @f({', '.join(given)}) -> ({', '.join(described)})\n"
        f'    attributes {{attn.align = "{align}", attn.layout = "{layout}"}} {{\n{body}  return {values} : {kinds}\n}}\n'
    )


def attention(*, score=SCALED, mask="", d=16, dv=16, dtype="bf16", **options) -> str:
    """Softmax attention with one map of the scores and, perhaps, one mask."""
    body = gemm_qk(d=d, dtype=dtype) + (map_op("t", ["s"], score) if score else "")
    body += mask_op("u", "t" if score else "s", mask) if mask else ""
    body += softmax(x="u" if mask else "t" if score else "s") + cast("pc", "p", dtype=dtype) + gemm_pv(dv=dv, dtype=dtype)
    body += cast("r", "o", f"?x{dv}", dtype)
    return function(body, [("r", f"tensor<?x{dv}x{dtype}>", "m dv"), ("lse", "tensor<?xf32>", "m")], d=d, dv=dv, dtype=dtype, **options)


@functools.cache
def example(name: str) -> str:
    return (EXAMPLES / f"{name}.mlir").read_text(encoding="utf-8")


# -- execution -----------------------------------------------------------------------------------------------


def lower(text: str, pipeline: str):
    module = parse_module(text, "test.mlir", CONTEXT)
    run_pipeline(module, pipeline)
    return module


def source_line(printed: str, line: str) -> int:
    """The line of test.mlir that a line of printed text comes from; locations may be aliases, or names around one."""
    while (found := re.search(r'"test.mlir":(\d+):', line)) is None:
        line = re.search(rf"^{re.findall('#loc[0-9]*', line)[-1]} = (.*)$", printed, re.MULTILINE)[1]
    return int(found[1])


def make_inputs(text: str, sizes: dict, seed: int = 0) -> dict:
    module = parse_module(text, "test.mlir", CONTEXT)
    with CONTEXT:
        facts = function_facts(attn_functions(module)[0])
    rng = np.random.default_rng(seed)
    made = {}
    for tensor in facts.args:
        static = {name: size for name, size in zip(tensor.dims, tensor.shape, strict=True) if size is not None}
        shape = [static.get(name, sizes.get(name)) for name in memory_order(tensor, facts.layout)]
        if tensor.dtype.startswith("i"):
            made[tensor.name] = np.sort(rng.integers(0, 4 if tensor.dims else 40, shape), axis=-1)
        else:
            made[tensor.name] = rng.standard_normal(shape)
    return made


def run_attn(text: str, inputs: dict, dtype: str = "float64") -> dict:
    module = parse_module(text, "test.mlir", CONTEXT)
    with CONTEXT:
        return interpret_attn.run(attn_functions(module)[0], inputs, dtype)


def run_tile(text: str, pipeline: str, inputs: dict, dtype: str = "float64", mode: str = "value") -> dict:
    module = lower(text, pipeline)
    with CONTEXT:
        return interpret_tile.run(module, inputs, mode=mode, dtype=dtype)


def difference(want: dict, got: dict) -> float:
    """The largest difference over all results; infinite where one is infinite or NaN and the other is not."""
    assert want.keys() == got.keys()
    worst = 0.0
    for name in want:
        a, b = np.asarray(want[name], np.float64), np.asarray(got[name], np.float64)
        assert a.shape == b.shape
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            apart = np.where(same, 0.0, np.abs(a - b))
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
    return worst


def check_same(text: str, pipeline: str, sizes: dict, *, tolerance: float = 2e-6, seed: int = 0) -> None:
    inputs = make_inputs(text, sizes, seed)
    apart = difference(run_attn(text, inputs), run_tile(text, pipeline, inputs))
    assert apart < tolerance, f"results differ by {apart} for {sizes} after {pipeline}"
