"""What a role with whole rows keeps beside them: one slot and phase for pipes that go on together, and addresses of its own."""

import re

import compiled
import pytest

from fa4c.ir.context import new_context, parse_module
from fa4c.ir.tile_base import nested_in
from fa4c.lowering import shared_states

OPTIONS = dict(target="sm_100a", direction="bwd", head_dim=(64, 64))
STATE = re.compile(r'\n *"warp\.advance"\((%\w+)\)')


def compute_of(text: str) -> str:
    """Of the kernel of five GEMMs."""
    return re.split(r'"warp\.role"', text.split('sym_name = "full_bwd_main"')[0].rpartition('sym_name = "compute"')[0])[-1]


def groups(text: str) -> tuple[list, int]:
    """(sizes of the groups of states that the compute role advances, largest first; how many advances are left out)."""
    with new_context() as context:
        module = parse_module(text, "backward.mlir", context)
        kernel = next(op for op in module.body.operations if op.operation.name == "warp.kernel" and op.sym_name.value.endswith("main"))
        roles = [op for op in kernel.body.blocks[0].operations if op.operation.name == "warp.role"]
        block = next(role.body.blocks[0] for role in roles if role.sym_name.value == "compute")
        leader, silent = shared_states.find(block)
        advanced = {op.state for op in nested_in(block) if op.operation.name == "warp.advance"}
        firsts = [leader[state] for state in advanced]
        return sorted((firsts.count(first) for first in set(firsts)), reverse=True), len(silent)


def main_source() -> str:
    return compiled.level("full.mlir", "cute", **OPTIONS).split("def full_bwd_main(")[1].split("@cute.jit")[0]


@pytest.fixture(scope="module")
def text() -> str:
    return compiled.level("full.mlir", "warp", **OPTIONS)


def test_pipes_that_go_on_together_share_their_numbers(text):
    """In each block: scores, room for P and dP, one slot each; LSE and delta, two. The sums of dK and dV come once a tile."""
    sizes, silent = groups(text)
    assert sum(sizes) - len(sizes) == silent >= 3 and sizes[1] >= 2
    lines = main_source().split("# role compute")[1].split("# role reduce")[0].splitlines()
    assert len([line for line in lines if re.search(r"phase_\d+ \^= 1", line)]) == len(sizes)
    assert [line for line in lines if re.search(r"mbarrier_wait\(.*phase_\d+ \^ 1\)", line)]  # one that begins in the other phase


def test_a_state_that_is_used_behind_its_own_advance_keeps_its_numbers(text):
    """One waits again right behind its advance, before another one's; then all advance twice."""
    silent = groups(text)[1]
    role = compute_of(text)
    first = STATE.search(role)
    again = role.replace(first[0], f'{first[0]} : (!warp.place) -> ()\n          "warp.wait"({first[1]})', 1)
    assert groups(text.replace(role, again))[1] == silent - 1
    twice = STATE.sub(lambda m: f"{m[0]} : (!warp.place) -> (){m[0]}", role)
    assert groups(text.replace(role, twice))[1] == 0


def test_each_role_reads_the_address_of_tensor_memory():
    """In front of the roles it would be kept through all of them."""
    common, *roles = re.split(r"# role (\w+)", main_source())
    reads = {name: len(re.findall(r"memory\w* = hold\(", body)) for name, body in zip(roles[::2], roles[1::2], strict=True)}
    assert "memory = " not in common and reads == {"load": 0, "mma": 1, "epilogue": 0, "compute": 1, "reduce": 1}
