"""The fused backward, S to dQ in one loop: schedule, registers, and numbers on the emulator against float64."""

import dataclasses
import functools
import re
from collections import Counter

import compiled
import pytest

from fa4c import targets
from fa4c.cli.main import main
from fa4c.ir import warp
from fa4c.ir.context import new_context, parse_module
from fa4c.lowering.compile import compile_text
from fa4c.passes import loop_graph, tile_pipeline
from fa4c.passes._tile_map import operations_in
from fa4c.passes.register_pressure import OTHER_REGISTERS, most_alive
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import artifact

FUSED = (("attn-split-backward", "fuse", "true"), ("tile-pipeline", "stages", "0"))
TO_TILES = ("attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-exp-to-exp2,attn-split-backward,attn-outline-kernels,"
            "attn-transpose-recompute,attn-simplify-mask,attn-to-tile")


@functools.cache
def built(example: str, head_dim: int):
    text = (compiled.EXAMPLES / example).read_text()
    return compiled.kernel_of_text(text, example, direction="bwd", head_dim=(head_dim, head_dim), overrides=FUSED)


def plan(head_dim: int, **changes):
    """The schedule of the main kernel's loop, and the registers its tiles need; `changes` to the target that schedules."""
    with new_context():
        module = parse_module((compiled.EXAMPLES / "causal.mlir").read_text(), "causal.mlir")
        run_pipeline(module, f"attn-retype{{head-dim={head_dim},{head_dim}}},{TO_TILES}")
        target = dataclasses.replace(targets.of(module), **changes)
        (loop,) = loop_graph.pipelined_loops(module)
        found = tile_pipeline.plan_loop(loop, target)
        graph = found.loop
        order = sorted(graph.graph.stepped(), key=lambda i: found.orders[i])
        names = [re.sub(r" .*", "", graph.name(i)) + " " + graph.ops[i].operation.name for i in order]
        alive = most_alive(graph.ops, graph.graph.edges, graph.versions, found.stages, order)
        return found, [name.split()[1].removeprefix("tile.") for name in names], [found.stages[i] for i in order], alive


def test_where_registers_are_short_mmas_wait_for_elementwise_work():
    """Blocks of 128 x 128 at head dim 64: S, dP and two accumulators are 192 of 240 registers, and P in 16 bits would be 32 more."""
    found, operations, stages, alive = plan(64)
    assert set(stages) == {0} and alive == 192
    gemms, maps = ([n for n, kind in enumerate(operations) if kind == wanted] for wanted in ("mma", "map"))
    assert max(gemms[:2]) < min(maps) and max(maps) < gemms[2]  # S, dP; all else; dV, dQ, dK
    more, operations, stages, alive = plan(64, registers=2 * 65536, max_registers_per_thread=512)
    assert max(stages) >= 1 and alive > 192 and more.ii < 0.8 * found.ii


def test_registers_decide_at_head_dim_128():
    """Two accumulators of 64 registers leave room for one block only: no operation is put off, and the clocks are nearly as few."""
    found, operations, stages, alive = plan(128)
    assert found.ii <= 1.03 * 5 * 512
    assert set(stages) == {0}
    assert alive == 208 == 240 - OTHER_REGISTERS
    assert operations[-4:] == ["mma", "mma", "to_shared", "global_add"]  # dQ is added while dK runs


def loop_counts(passes: str) -> Counter:
    """Operations of the compute role's block loop, by name; the types of conditional maps' results as "when f32"."""
    with new_context():
        module = parse_module((compiled.EXAMPLES / "causal.mlir").read_text(), "causal.mlir")
        run_pipeline(module, f"attn-retype{{head-dim=64,64}},{TO_TILES},tile-pipeline,warp-specialize,cse,{passes}")
        (kernel,) = [op for op in module.body.operations if isinstance(op, warp.KernelOp) and op.sym_name.value.endswith("main")]
        loops = [op for op in operations_in(kernel) if op.operation.name == "scf.for"]
        found = Counter(op.operation.name for op in operations_in(loops[-1]))  # the innermost of the last role
        for op in operations_in(loops[-1]):
            if isinstance(op, warp.WhenOp):
                found.update(f"when {inner.target.type.element_type}" for inner in operations_in(op) if isinstance(inner, warp.MapOp))
        return found


def test_what_an_iteration_waits_for():
    """LSE and delta come with dO; warpgroups meet once, at dS; what is cut by the end is masked in f32."""
    found = loop_counts("warp-insert-barriers")
    assert found["warp.wgmma"] == 5 and found["warp.load_columns"] == 2
    assert found["warp.wait"] == found["warp.release"] == 2
    assert found["warp.barrier"] == 1
    assert found["when f32"] == 2 and found["when bf16"] == 0


@pytest.mark.parametrize(("example", "head_dim", "early"), [("full", 64, False), ("full", 96, True), ("causal", 128, True)])
def test_column_values_come_under_mmas_where_registers_allow(example, head_dim, early):
    """LSE beside S and dP takes as many registers as P in 16 bits beside P and dP. At 64 P is cast when dP is no longer needed.
    Nor does it wait for the mask."""
    text = compiled.level(f"{example}.mlir", "warp", direction="bwd", head_dim=(head_dim, head_dim))
    names = re.findall(r'"warp\.(wgmma|load_columns|wgmma_wait|map)"\(', text.split('sym_name = "reduce"')[1])
    found = [names[n - 1] for n, name in enumerate(names) if name == "load_columns"]
    assert found[:2] == ["wgmma" if early else "wgmma_wait", "wgmma_wait"]


def test_column_values_stay_behind_a_guard_that_reads_what_they_replace():
    text, options = (compiled.EXAMPLES / "causal.mlir").read_text(), dict(direction="bwd", head_dim=(128, 128))
    bare = compile_text(text, "causal.mlir", emit="warp", disabled=["warp-insert-barriers", "warp-check"], locations=False, **options)
    kernel = bare.split('sym_name = "reduce"')[1]
    target, kind = re.search(r'"warp.load_columns"\(%\w+, (%\w+)\).*, (tensor<1x64xf32, #tile.reg>)', kernel).groups()
    masked = r'(?s)("warp.when"\(%\w+\) \(\{\n +"warp.map"\((%\w+), \2)(\) \(\{\n +\^bb0\()(.*?\) : \((tensor<\S+ \S+>), \5)\)'
    read = re.sub(masked, rf"\1, {target}\3%seen: f32, \4, {kind})", kernel, count=1)
    assert read != kernel
    for body, order in ((kernel, ["load_columns", "when"]), (read, ["when", "load_columns"])):
        made = compile_text(bare.replace(kernel, body), "warp.mlir", emit="warp", disabled=["warp-check"])
        assert re.findall(r'"warp\.(when|load_columns)"\(', made.split('sym_name = "reduce"')[1])[:2] == order


def test_a_slot_is_waited_for_once():
    """Where dK of a block comes a step behind its S: K, V; Q and dO in front of the loop and in it, and neither by dK."""
    text = compiled.level("full.mlir", "warp", direction="bwd", head_dim=(192, 128))
    kernel = text.split('sym_name = "full_bwd_dk_dv"')[0].rpartition('"warp.kernel"')[2]
    role = kernel.split('sym_name = "load"')[1]
    assert role.count('"warp.wait"(') == 6
    first, _, second = re.search(r'(%\w+) = "warp.state"\((%\w+)\).*\n\s*(%\w+) = "warp.state"\(\2\)', role).groups()
    early = re.sub(rf'.*"warp.release"\({second}\).*\n', "", role)
    early = re.sub(rf'.*"warp.advance"\({first}\)', rf'"warp.release"({first}) : (!warp.place) -> ()\n\g<0>', early)
    compiled.check_refused(text, re.escape(role), lambda _: early, "reads a slot of its buffer that was not waited for")


def test_an_order_of_columns_that_not_all_kernels_see_is_refused():
    text = compiled.level("full.mlir", "warp", direction="bwd", head_dim=(64, 64))
    assert len(re.findall("interleaved = true, ", text)) == 2  # the sum of dQ, in the kernel that adds and in the one that casts
    first = r"(?s)interleaved = true, (.*interleaved = true)"
    compiled.check_refused(text, first, r"\1", "in another order than what is before")
    lanes = compiled.level("full.mlir", "warp", direction="bwd", head_dim=(64, 64), target="sm_100a")
    sums = r'"warp.buffer"\(\) \{(?=.*swizzle = 128.*xf32)'
    compiled.check_refused(lanes, sums, r"\g<0>interleaved = true, ", "writes an interleaved buffer")
    compiled.check_refused(text, r'("warp.tma_add"\(.*), %c0\)', r"\1, %c1)", "not known to begin 8 of them")


def test_warpgroups_share_whole_spans():
    """dQ's 64 rows of 96 columns lie in 6 spans of 16, three for each of two warpgroups; three spans of 32 would leave one out."""
    text = compiled.level("full.mlir", "warp", direction="bwd", head_dim=(96, 96))
    wider = re.sub(r'("warp.buffer"\(\) \{interleaved.*)swizzle = 64(.*2x64x96xf32)', r"\1swizzle = 128\2", text)
    assert wider != text
    compiled.check_refused(wider, "64, 1, 16>, swizzle = 64", "64, 1, 32>, swizzle = 128", "shares 96 columns among 2")


def test_with_more_registers_it_overlaps_blocks():
    found, _, stages, alive = plan(128, registers=2 * 65536, max_registers_per_thread=512)
    assert max(stages) >= 1 and alive > 208
    assert found.ii < plan(128)[0].ii


@pytest.mark.parametrize("head_dim", [64, 128])
def test_nothing_is_spilled(head_dim):
    manifest, members = built("causal.mlir", head_dim)
    for kernel in manifest["kernels"].values():
        assert kernel["stack_bytes"] == kernel["local_bytes"] == 0
    (ptx,) = [data.decode() for name, data in members.items() if name.endswith("main.ptx")]
    assert ".local" not in ptx
    assert re.search(r"cp\.reduce\.async\.bulk\.tensor\S*\.add", ptx)  # dQ


@pytest.mark.parametrize(
    "case", ["causal.mlir 64 m=70,n=140", "causal.mlir 128 m=150,n=200", "full.mlir 96 m=65,n=129", "alibi.mlir 128 m=70,n=140"]
)
def test_on_the_emulator(case, tmp_path, capsys):
    """Odd sizes, grouped heads; compared with autograd in float64. The emulator fails on any hazard."""
    example, head_dim, sizes = case.split()
    file = tmp_path / "fused.fa4c"
    artifact.write(file, *built(example, int(head_dim)))
    assert main(["run", str(file), "--check", "--backend", "emulator", "--shape", f"b=1,hq=2,hkv=1,{sizes}"]) in (0, None)
    assert len(re.findall(r"^d[qkv] .* ok$", capsys.readouterr().out, re.MULTILINE)) == 6
