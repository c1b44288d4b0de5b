"""attn-to-tile with several configurations: the host runs one of them, as the sizes say; measured ones come from the target's data."""

import pathlib
import re

import attn_to_tile_programs as programs
import numpy as np
import pytest
from attn_to_tile_programs import CAUSAL, STRIPES, WINDOW, attention, check_same

from fa4c import targets
from fa4c.explain import explain
from fa4c.ir import interpret_tile
from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.ir.tile import HostOp
from fa4c.passes import _attn_to_tile_configurations, op_costs, pipelines
from fa4c.passes._attn_to_tile_configurations import Configuration, choose_configurations, problem_of
from fa4c.passes._attn_to_tile_plan import make_plan
from fa4c.passes.attn_to_tile import demand_of
from fa4c.passes.registry import run_pipeline

CAUSAL_FILE = pathlib.Path(__file__).parents[2] / "examples" / "causal.mlir"
TWO = "n<=60:64x32x2,128x48x2"
THREE = "n<=60:64x32x2,m<=40:128x32x2,64x48x1"
TANH = """
    %y = math.tanh %x : f32"""


def pipeline(configurations: str, rest: str = "") -> str:
    return f'attn-simplify-mask,attn-to-tile{{configurations="{configurations}"}}{rest}'


@pytest.mark.parametrize("mask", ["", CAUSAL, WINDOW, STRIPES])
@pytest.mark.parametrize(("configurations", "rest"), [
    (THREE, ""), (TWO, ",tile-conditional-rescale,tile-pipeline,tile-lpt-grid,tile-persistent"),
])
def test_every_choice_computes_the_same(mask, configurations, rest):
    for m, n in [(70, 60), (70, 61), (30, 90)]:
        check_same(attention(mask=mask), pipeline(configurations, rest), dict(b=1, hq=2, hkv=1, m=m, n=n), tolerance=1e-5)


@pytest.mark.parametrize(("n", "rows"), [(59, 64), (60, 64), (61, 128)])
def test_the_sizes_choose(n, rows):
    """One CTA, so that the rows that are written tell whose they are."""
    module = programs.lower(attention(), pipeline(TWO))
    inputs = programs.make_inputs(attention(), dict(b=1, hq=1, hkv=1, m=150, n=n), 0)
    out = interpret_tile.run(module, inputs, ctas={(0, 0, 0)})["o0"]
    assert np.isfinite(out[0, :rows]).all()
    assert np.isnan(out[0, rows:]).all()


def test_the_choice_follows_the_text():
    """The limit is a number of the IR: change it, and the other kernel runs."""
    text = print_module(programs.lower(attention(), pipeline(TWO)), locations=False)
    edited = text.replace("arith.constant 60 : index", "arith.constant 61 : index")
    assert edited != text
    inputs = programs.make_inputs(attention(), dict(b=1, hq=1, hkv=1, m=150, n=61), 0)
    written = []
    for source in (text, edited):
        out = interpret_tile.run(parse_module(source, "edited", programs.CONTEXT), inputs, ctas={(0, 0, 0)})["o0"]
        written.append(int(np.isfinite(out[0, :, 0, 0]).sum()))
    assert written == [128, 64]


def test_each_configuration_has_its_kernel_and_hints():
    wishes = pipeline("n<=60:64x32x3:l2=evict_last/none,64x48x2:l2=none/evict_first")
    lowered = print_module(programs.lower(attention(), f"{wishes},tile-l2-hints"), locations=False)
    first, second = lowered.split('"tile.kernel"')[1:]
    assert "_64x32x3" in lowered and "_64x48x2" in lowered
    assert (first.count("evict_last"), first.count("evict_first")) == (2, 0)
    assert (second.count("evict_last"), second.count("evict_first")) == (0, 1)
    assert "buffers = 3" in first and "buffers = 3" not in second


def test_every_pipeline_grants_wishes():
    """A configuration's priorities are lost without a word where nothing reads them."""
    groups = [pipelines.PIPELINES, pipelines.DETERMINISTIC, *pipelines.GENERATIONS.values()]
    for parts in (parts for group in groups for parts in group.values()):
        assert "tile-l2-hints" in parts["tile"].split(",")


# -- the host's branches -------------------------------------------------------------------------------------------------------------------


def test_a_branch_that_launches_nothing_is_refused():
    text = print_module(programs.lower(attention(), pipeline(TWO)), locations=False)
    launches = [line for line in text.splitlines() if '"tile.launch"' in line]
    with pytest.raises(ir.MLIRError, match="launches a kernel in one of its branches only"):
        parse_module(text.replace(launches[1], ""), "edited", programs.CONTEXT)
    with pytest.raises(ir.MLIRError, match="launches a kernel in one of its branches only"):
        parse_module(text.replace(launches[0], ""), "edited", programs.CONTEXT)


def test_a_kernel_for_some_sizes_updates_what_is_there():
    """Of a workspace that a launch before it was given, and of no output."""
    attn = CAUSAL_FILE.read_text()
    steps = "attn-derive-backward,attn-outline-kernels,attn-transpose-recompute,attn-simplify-mask,attn-to-tile"
    text = print_module(programs.lower(attn, steps), locations=False)
    first, second, *_ = [line for line in text.splitlines() if '"tile.launch"' in line]
    assert "_preprocess" in first and "_refine" in second
    with pytest.raises(ir.MLIRError, match="launches a kernel in one of its branches only"):
        parse_module(text.replace(first, ""), "edited", programs.CONTEXT)
    with pytest.raises(ir.MLIRError, match="launches a kernel in one of its branches only"):
        parse_module(text.replace('init = "none", lifetime = "call", name = "delta", pad = 4 : i64, role = "workspace"',
                                  'name = "delta", role = "output"'), "edited", programs.CONTEXT)
    module = programs.lower(attn, steps.removesuffix(",attn-to-tile"))
    preprocess, refine, *_ = module.body.operations
    refine.operation.move_before(preprocess.operation)
    with pytest.raises(Diagnostic, match="returns 'delta', and may not run at all"):
        run_pipeline(module, "attn-to-tile")


def test_a_loop_of_launches_is_refused():
    text = print_module(programs.lower(attention(), "attn-to-tile{block-m=64 block-n=32}"), locations=False)
    (launch,) = [line for line in text.splitlines() if '"tile.launch"' in line]
    loop = f"%from = arith.constant 0 : index\n%by = arith.constant 1 : index\nscf.for %k = %from to %by step %by {{\n{launch}\n}}"
    with pytest.raises(ir.MLIRError, match="'scf.for' launches kernels"):
        parse_module(text.replace(launch, loop), "edited", programs.CONTEXT)


# -- the option ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("configurations", "complaint"), [
    ("64x32,64x48", "64x32x2 is not limited"),
    ("n<=60:64x32", "the last is limited"),
    ("n<=60:64x32,", "cannot read the configuration ''"),
    ("n<60:64x32,64x48", "cannot read the configuration 'n<60:64x32'"),
    ("l<=60:64x32,64x48", "has no size 'l'"),
    ("d<=60:64x32,64x48", "has no size 'd'"),
    ("n<=60:64x33,64x48", "cannot have block_n = 33"),
    ("n<=60:192x256x9,64x48", "does not fit"),
    ("n<=60:64x32:l2=often/none,64x48", "cannot read"),
])
def test_refused_options(configurations, complaint):
    with pytest.raises(Diagnostic, match=complaint):
        programs.lower(attention(), pipeline(configurations))


def test_a_shape_and_a_list_are_refused():
    with pytest.raises(Diagnostic, match="a block shape and a list of configurations"):
        programs.lower(attention(), f'attn-to-tile{{block-m=64 configurations="{TWO}"}}')


# -- fewer copies --------------------------------------------------------------------------------------------------------------------------

TO_SCHEDULE = "tile-accumulate-in-tmem,tile-conditional-rescale,tile-exp-emulation,tile-pipeline,tile-alias-tmem"


def loaded(d: int, dv: int, options: str = "") -> list[tuple[int, int]]:
    """(rows, copies) of Q, K and V on sm_100a."""
    text = f'module attributes {{fa4c.target = "sm_100a"}} {{\n{attention(d=d, dv=dv)}\n}}'
    lowered = print_module(programs.lower(text, f"attn-fold-scale,attn-to-tile{options},{TO_SCHEDULE}"), locations=False)
    lines = [line for line in lowered.splitlines() if '"tile.load"' in line]
    copies = [re.search(r"buffers = (\d+)", line) for line in lines]
    return [(int(re.search(r"-> tensor<(\d+)x", line)[1]), int(n[1]) if n else 1) for line, n in zip(lines, copies, strict=True)]


@pytest.mark.parametrize(("latency", "columns", "copies"), [(750, 128, (2, 1)), (770, 96, (2, 2))])
def test_a_wider_block_with_one_copy_of_v(latency, columns, copies, monkeypatch):
    """A step of 128 keys takes 2657 clocks with 600 until V's first bytes, and so many more as these are later: 2816 at 759. As long
    as that 96 keys take with two copies, 2112. K could have the single copy instead, but is waited for until 3045."""
    monkeypatch.setattr(op_costs, "COPY_LATENCY", latency)
    assert loaded(192, 128) == [(256, 1), (columns, copies[0]), (columns, copies[1])]


@pytest.mark.parametrize(("d", "dv", "options", "found"), [
    (128, 128, "", [(256, 1), (128, 2), (128, 2)]),  # all fit
    (192, 192, "", [(128, 1), (112, 2), (112, 2)]),  # 1392 clocks; 128 keys with one copy of V take 1761, not 1591
    (192, 128, "{block-m=256 block-n=128}", [(256, 1), (128, 2), (128, 1)]),
    (192, 128, "{block-n=128 buffers=2}", [(128, 1), (128, 2), (128, 2)]),  # as asked for
])
def test_copies_that_fit(d, dv, options, found):
    assert loaded(d, dv, options) == found


def test_a_backwards_shapes_are_tried_with_its_own_passes(monkeypatch):
    """None of which emulates exponentials: 2242 clocks by the trial and in the kernel, where a forward's make 2153."""
    tried = {}
    given = _attn_to_tile_configurations.clocks_of_a_score

    def kept(function, target, shape):
        tried[function.sym_name.value, shape.block_m * shape.block_n] = clocks = given(function, target, shape)
        return clocks

    monkeypatch.setattr(_attn_to_tile_configurations, "clocks_of_a_score", kept)
    with targets.override("sm_100a", mufu=4):
        options = dict(target="sm_100a", direction="bwd", head_dim=(256, 256), level="tile", changes=False)
        kernels = explain(CAUSAL_FILE.read_text(), "causal.mlir", **options)["kernels"]
    (clocks,) = (step["interval"] for kernel in kernels if kernel["name"] == "causal_bwd_dq" for step in kernel["steps"])
    assert clocks == 128 * 64 * tried["causal_bwd_dq", 128 * 64] == 2242


# -- measured data -------------------------------------------------------------------------------------------------------------------------


def planned(text: str, name: str = "sm_90a"):
    module = parse_module(text, "text", programs.CONTEXT)
    run_pipeline(module, "attn-simplify-mask,attn-fold-scale")
    function = module.body.operations[0]
    target = targets.get(name)
    plan = make_plan(function)
    return module, function, plan, demand_of(plan, target.mma.k), target


def entry_for(text: str, *configurations: dict) -> dict:
    with programs.CONTEXT:
        module, function, plan, demand, _ = planned(text)
        return {"problem": problem_of(plan, demand), "configurations": list(configurations), "source": "a test"}


def chosen(text: str, **options) -> list[Configuration]:
    with programs.CONTEXT:
        module, function, plan, demand, target = planned(text)
        return choose_configurations(function, plan, demand, target, **{"wanted": "measured", **options})


SHORT = dict(block_m=64, block_n=80, buffers=3, limit=dict(size="n", most=512))
LONG = dict(block_m=128, block_n=96, buffers=2, l2=["evict_last", "none"])


def test_data_of_the_target_decide():
    text = attention(d=64, dv=64, mask=CAUSAL)
    with targets.override("sm_90a", tuned=()):
        by_formula = chosen(text)
    with targets.override("sm_90a", tuned=(entry_for(text, SHORT, LONG),)):
        short, other = chosen(text)
        assert (short.label, short.limit, short.l2, short.source) == ("64x80x3", ("n", 512), ("none", "none"), "a test")
        assert (other.label, other.limit, other.l2) == ("128x96x2", None, ("evict_last", "none"))
        assert chosen(text, wanted="formula") == by_formula and len(by_formula) == 1
        lowered = print_module(programs.lower(text, "attn-simplify-mask,attn-fold-scale,attn-to-tile"), locations=False)
        assert "arith.constant 512 : index" in lowered and lowered.count('"tile.kernel"') == 2
        (free,) = chosen(text, block_m=64)  # an option wins over data
        assert free.shape.block_m == 64 and free.limit is None


@pytest.mark.parametrize("other", [
    attention(d=64, dv=64), attention(d=64, dv=64, mask=WINDOW), attention(d=64, dv=64, mask=STRIPES),
    attention(d=128, dv=128, mask=CAUSAL), attention(d=64, dv=64, mask=CAUSAL, score=TANH),
])
def test_data_are_for_one_kind_of_problem(other):
    with targets.override("sm_90a", tuned=(entry_for(attention(d=64, dv=64, mask=CAUSAL), SHORT, LONG),)):
        assert all(configuration.source != "a test" for configuration in chosen(other))


def test_data_that_do_not_fit_the_target_are_left_out():
    text = attention(d=128, dv=128)
    with targets.override("sm_90a", tuned=(entry_for(text, LONG),), smem_bytes=100_000):
        (configuration,) = chosen(text)
        assert "not measured" in configuration.source


def test_the_host_names_no_variant():
    """The same data serve every function that asks the same of the machine."""
    text = attention(d=64, dv=64, mask=CAUSAL)
    renamed = text.replace("@f(", "@other(") if "@f(" in text else text
    assert entry_for(text)["problem"] == entry_for(renamed)["problem"]
    assert isinstance(programs.lower(text, pipeline(TWO)).body.operations[0], HostOp)
