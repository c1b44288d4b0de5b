"""Which states of a role hold the same numbers: a thread that keeps whole rows has no registers for the slot and phase of each pipe.

States of pipes with as many slots, which advance in the same blocks, once in each, are at one place wherever all have advanced as often.
One pair of numbers serves them all: in each block it advances where the last of them does. So nobody may use a state between its own
advance and that one. Phases may begin differently: they stay so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ..ir import warp


@dataclass
class _State:
    """`stages`: slots of its pipe. `uses`: numbers of the operations, in order of the text; `advances`: number of a block -> of the
    operation there. `shares`: whether it may share its numbers at all."""

    stages: int
    uses: list[int] = field(default_factory=list)
    advances: dict[int, int] = field(default_factory=dict)
    shares: bool = True


def find(block) -> tuple[dict, set]:
    """Of a role's block: (state -> the one whose numbers it takes, advances that change no numbers because another one's does)."""
    states = {op.out: _State(op.pipe.owner.opview.stages.value) for op in block.operations if isinstance(op, warp.StateOp)}
    operations = {}
    _read(block, states, operations, itertools.count(), itertools.count())
    groups = []
    for value, state in states.items():
        group = next((g for g in groups if _fit([*(states[v] for v in g), state])), None)
        groups.append([value]) if group is None else group.append(value)
    silent = set()
    for group in groups:
        for numbers in _advances(states[v] for v in group).values():
            silent.update(operations[n] for n in numbers - {max(numbers)})
    return {value: group[0] for group in groups for value in group}, silent


def _read(block, states, operations, numbers, blocks) -> None:
    own = next(blocks)
    for op in block.operations:
        number = next(numbers)
        for value in set(op.operation.operands) & states.keys():
            state = states[value]
            state.uses.append(number)
            if isinstance(op, warp.AdvanceOp):
                state.shares = state.shares and own not in state.advances
                state.advances[own] = number
                operations[number] = op
            elif isinstance(op, warp.WalkOp):  # advances it, too
                state.shares = False
        for region in op.operation.regions:
            for inner in region.blocks:
                _read(inner, states, operations, numbers, blocks)


def _advances(group) -> dict[int, set[int]]:
    """Number of a block -> numbers of the group's advances there."""
    found = {}
    for state in group:
        for block, number in state.advances.items():
            found.setdefault(block, set()).add(number)
    return found


def _fit(group: list[_State]) -> bool:
    first = group[0]
    if any(not s.shares or not s.advances or s.stages != first.stages or s.advances.keys() != first.advances.keys() for s in group):
        return False
    last = {block: max(numbers) for block, numbers in _advances(group).items()}
    return not any(number < use < last[block] for s in group for block, number in s.advances.items() for use in s.uses)
