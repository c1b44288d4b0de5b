"""Derived backwards in the kernel's dtypes: as near to float64 as bf16 allows, finite wherever the gradient is. Cases of bugs.md."""

import copy
import math
import pathlib

import numpy as np
import pytest
import torch
from attn_autograd import CONTEXT, expected, function_of, make_inputs, tree_of
from attn_program import Program, attention

from fa4c.ir import interpret_attn
from fa4c.ir.semantics import from_function
from fa4c.runtime import check

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def in_kernel_dtypes(text: str, sizes: dict, inputs: dict, gradients: dict, pipeline: str = "attn-derive-backward") -> tuple[dict, dict]:
    """(gradients in the dtypes of the function, gradients by autograd in float64) from inputs that are rounded alike."""
    tree = tree_of(text)
    dtypes = {t["name"]: t["dtype"] for t in tree["args"]}
    inputs = {name: x.bfloat16().double() if dtypes[name] == "bf16" else x for name, x in inputs.items()}
    gradients = {name: g.bfloat16().double() for name, g in gradients.items()}
    wrt = [name for name, dtype in dtypes.items() if dtype in ("bf16", "f32")]
    options = f"{{of={','.join(gradients)}}}" if pipeline == "attn-derive-backward" else ""
    forward_module, forward = function_of(text)
    module, backward = function_of(text, pipeline + options)
    with CONTEXT:
        stored = interpret_attn.run(forward, inputs, "kernel")
        got = interpret_attn.run(backward, {**inputs, **stored, **{f"d{name}": g for name, g in gradients.items()}}, "kernel")
    return got, expected(tree, sizes, inputs, wrt, gradients)[1]


def worst(got: dict, want: dict) -> float:
    """The largest error, each tensor relative to its largest element."""
    assert all(np.isfinite(got[name]).all() for name in want)
    return max(
        np.abs(got[name] - want[name].numpy()).max(initial=0) / max(want[name].abs().max().item(), 1e-30)
        for name in want
        if want[name].numel()
    )


@pytest.mark.parametrize(
    "pipeline", ["attn-derive-backward", "attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-transpose-recompute,attn-simplify-mask"]
)
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.mlir")), ids=lambda path: path.stem)
def test_examples_in_bf16(path, pipeline):
    sizes = dict(b=1, hq=4, hkv=2, m=65, n=130)
    inputs = make_inputs(tree_of(path.read_text()), sizes)
    do = torch.randn(1, 65, 4, 128, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    got, want = in_kernel_dtypes(path.read_text(), sizes, inputs, {"o": do}, pipeline)
    if "dslopes" in want:
        assert worst({"dslopes": got["dslopes"]}, {"dslopes": want.pop("dslopes")}) < 2**-16
    assert 1e-4 < worst(got, want) < 2**-6


@pytest.mark.parametrize("seed", range(1, 5))
def test_slopes_of_many_distances(seed):
    """f32 throughout: distances multiply any error of delta. The stored O's rounding is taken out of it, and so is what P, from a stored
    LSE, does not sum up to 1 by: with delta = rowsum(P dP) these inputs give up to 1e-3."""
    text, sizes = (EXAMPLES / "alibi.mlir").read_text(), dict(b=1, hq=4, hkv=2, m=65, n=130)
    do = torch.randn(1, 65, 4, 128, generator=torch.Generator().manual_seed(8 + seed), dtype=torch.float64)
    got, want = in_kernel_dtypes(text, sizes, make_inputs(tree_of(text), sizes, seed=seed - 1), {"o": do})
    assert worst({"dslopes": got["dslopes"]}, {"dslopes": want["dslopes"]}) < 2**-16


@pytest.mark.parametrize(("seed", "n", "missed_by"), [(204, 2, 9), (503, 2, 8), (512, 2, 6), (65, 3, 2)])
def test_few_keys_of_which_one_dominates(seed, n, missed_by):
    """O, made from P in bf16 and rounded itself, is all that is not exact: delta of it misses the tolerance, the corrected one does not."""
    text, sizes = (EXAMPLES / "causal.mlir").read_text(), dict(b=1, hq=1, hkv=1, m=8, n=n)
    tree, inputs = tree_of(text), {name: x.bfloat16() for name, x in make_inputs(tree_of(text), sizes, seed=seed).items()}
    do = torch.randn(1, 8, 1, 128, generator=torch.Generator().manual_seed(seed + 1000)).bfloat16()
    forward_module, forward = function_of(text)
    worst_ratio = {}
    for refine in (0, 16):
        module, backward = function_of(text, f"attn-derive-backward{{refine={refine}}}")
        with CONTEXT:
            got = interpret_attn.run(backward, {**inputs, **interpret_attn.run(forward, inputs, "kernel"), "do": do})
        found = {name: torch.tensor(got[f"d{name}"]) for name in "qkv"}
        worst_ratio[refine] = max(row.ratio for row in check.check_gradients(tree, inputs, {"o": do}, found))
    assert worst_ratio[0] > missed_by and worst_ratio[16] < 0.01


def causal_inputs(sizes: dict, factor: float = 1.0, **options):
    text = attention(mask=lambda p, s: p.causal(s), **options).text()
    inputs = {name: x * factor for name, x in make_inputs(tree_of(text), sizes).items()}
    return text, inputs, torch.ones(sizes["b"], sizes["m"], sizes["hq"], 6, dtype=torch.float64)


@pytest.mark.parametrize("length", [1, 64, 192])
def test_log_sum_exp_far_below_zero(length):
    """bugs.md B7: every score about -120, so that exp of it is nothing in f32."""
    sizes = dict(b=1, hq=1, hkv=1, m=length, n=length)
    text, inputs, do = causal_inputs(sizes, 0.1)
    inputs["q"][..., 0], inputs["k"][..., 0] = 1, -240.0  # the scale is 0.5
    got, want = in_kernel_dtypes(text, sizes, inputs, {"o": torch.randn(do.shape, dtype=torch.float64)})
    assert worst({"dv": got["dv"]}, {"dv": want["dv"]}) < 2**-6
    assert all(np.isfinite(x).all() for x in got.values())


def test_a_soft_cap_where_eager_gives_nothing():
    """Every score about -120 under a cap of 30: tanh(-4) is -1 in bf16, and eager's gradient 0. Operands of 16 bits miss what its error
    allows in dQ, where -1360 times a row's sum of dS cancels, by as much as their own roundings are. Three times those are too much."""
    text, sizes = (EXAMPLES / "softcap.mlir").read_text(), dict(b=1, hq=1, hkv=1, m=64, n=64)
    tree, inputs = tree_of(text), {name: x * 0.05 for name, x in make_inputs(tree_of(text), sizes).items()}
    inputs["q"][..., 0], inputs["k"][..., 0], inputs["v"] = 1, -120 * 128**0.5, inputs["v"] * 20
    inputs = {name: x.bfloat16() for name, x in inputs.items()}
    do = torch.randn(1, 64, 1, 128, generator=torch.Generator().manual_seed(3)).bfloat16()
    pipeline = "attn-fold-scale,attn-derive-backward,attn-exp-to-exp2"
    (_module, forward), (_other, backward) = function_of(text), function_of(text, pipeline)
    with CONTEXT:
        got = interpret_attn.run(backward, {**inputs, **interpret_attn.run(forward, inputs, "kernel"), "do": do}, "kernel")
        derived = from_function(backward)
    found = {name: torch.tensor(got[f"d{name}"]) for name in "qkv"}
    exact, eager = check.expected_gradients(tree, inputs, {"o": do}, found)
    assert not eager["q"].any() and exact["q"].any()

    def rows(gradients, backward=derived):
        return check.check_gradients(tree, inputs, {"o": do}, gradients, exact=exact, eager=eager, backward=backward)

    assert all(row.ok and (row.by_eager > 0) == (row.tensor != "dv") for row in rows(found))
    missed = [(row.tensor, row.limit) for row in rows(found, None) if not row.ok]
    assert missed == [("dq", row.by_eager) for row in rows(found)[:2]]
    thrice = {name: exact[name] + 3 * (x - exact[name]) for name, x in found.items()}
    assert [row.tensor for row in rows(thrice) if not row.ok and row.by_eager] == ["dq", "dq"]
    wrong = copy.deepcopy(derived)  # a derivation that is wrong is no measure of itself
    constants = [node for step in wrong["body"] for node in step.get("expr", []) if node[0] == "const"]
    [log2e] = [node for node in constants if isinstance(node[1], float) and math.isclose(node[1], 30 * math.log2(math.e), rel_tol=1e-3)]
    for log2e[1] in (4300.0, 43.285, math.nan):
        assert not any(row.by_eager for row in rows(found, wrong))
    inputs["q"] = inputs["q"] * 0.5  # tanh(-2) is no saturation: eager's error alone counts
    assert not any(row.by_eager for row in check.check_gradients(tree, inputs, {"o": do}, found, backward=derived))


@pytest.mark.parametrize("factor", [0.0, 3.0, 30.0, 1000.0])
def test_equal_and_large_scores(factor):
    """All scores equal; logits of hundreds and of millions."""
    sizes = dict(b=1, hq=2, hkv=1, m=33, n=47)
    text, inputs, do = causal_inputs(sizes, factor)
    inputs["v"] = make_inputs(tree_of(text), sizes, seed=5)["v"]
    got, want = in_kernel_dtypes(text, sizes, inputs, {"o": do})
    assert all(np.isfinite(x).all() for x in got.values())
    assert worst({"dv": got["dv"]}, {"dv": want["dv"]}) < 0.05


def test_one_query_one_key():
    """bugs.md B4: P = 1, dQ = dK = 0, dV = 1."""
    sizes = dict(b=1, hq=1, hkv=1, m=1, n=1)
    text, inputs, do = causal_inputs(sizes, 3.0)
    got, _ = in_kernel_dtypes(text, sizes, inputs, {"o": do})
    assert (got["dq"] == 0).all() and (got["dk"] == 0).all() and (got["dv"] == 1).all()


def test_rows_that_see_one_key_or_none():
    """bugs.md B2: more queries than keys, bottom-right. The last query sees the one key, all others nothing."""
    sizes = dict(b=1, hq=1, hkv=1, m=76, n=1)
    text, inputs, do = causal_inputs(sizes, 3.0)
    got, _ = in_kernel_dtypes(text, sizes, inputs, {"o": do, "lse": torch.zeros(1, 1, 76, dtype=torch.float64)})
    assert (got["dq"] == 0).all() and (got["dk"] == 0).all() and (got["dv"] == 1).all()


def test_log_sum_exp_in_the_loss():
    """bugs.md B5: loss = sum(out * exp(LSE)), its gradients handed in; rows that see nothing have exp(LSE) = 0."""
    sizes = dict(b=1, hq=2, hkv=2, m=60, n=48)
    text, inputs, _ = causal_inputs(sizes)
    module, forward = function_of(text)
    with CONTEXT:
        stored = {name: torch.from_numpy(x) for name, x in interpret_attn.run(forward, inputs).items()}
    weight = stored["lse"].exp()
    do = weight.transpose(1, 2)[..., None].expand(stored["o"].shape)
    dlse = (stored["o"].sum(-1).transpose(1, 2)) * weight
    got, want = in_kernel_dtypes(text, sizes, inputs, {"o": do, "lse": dlse})
    assert worst(got, want) < 2**-5


def test_a_fully_masked_function():
    """No row sees anything: all gradients are zero, whatever comes in."""
    p = Program()
    p.qkv()
    P, lse = p.softmax(p.mask(p.scores(), lambda e, i, j: e.const(False, "i1")))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    sizes = dict(b=2, hq=2, hkv=1, m=9, n=5)
    inputs = make_inputs(tree_of(p.text()), sizes)
    got, _ = in_kernel_dtypes(
        p.text(), sizes, inputs, {"o": torch.full((2, 9, 2, 6), 1e4, dtype=torch.float64), "lse": torch.ones(2, 2, 9).double()}
    )
    assert all((x == 0).all() for x in got.values())


def test_the_sum_of_a_group_is_rounded_not_its_terms():
    """dK of one KV head sums its query heads in f32 and rounds once: 256 + 1 + 1 is 258 in bf16, but 256 if each sum is rounded."""
    p = Program()
    p.qkv()
    p.result("o", p.output(p.scores()), cast=True)
    sizes = dict(b=1, hq=3, hkv=1, m=1, n=1)
    inputs = {name: torch.zeros(x.shape, dtype=torch.float64) for name, x in make_inputs(tree_of(p.text()), sizes).items()}
    inputs["q"][0, 0, :, 0], inputs["k"][..., 0], inputs["v"][..., 0] = torch.tensor([256.0, 1.0, 1.0]).double(), 1, 1
    do = torch.zeros(1, 1, 3, 6, dtype=torch.float64)
    do[..., 0] = 1
    got, want = in_kernel_dtypes(p.text(), sizes, inputs, {"o": do})
    assert got["dk"][0, 0, 0, 0] == want["dk"][0, 0, 0, 0].item() == 258
