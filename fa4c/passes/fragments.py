"""Which register values share one fragment.

At the tile level register tiles are values; at the warp level they live in fragments that operations overwrite. Accumulators must be summed
in place, loop-carried values should be, and each shared fragment saves registers and copies. Sharing is right if, in the scheduled
order, every read finds the value it means. That is decided by running the schedule symbolically: a fragment holds a token
(operation result, iteration), a read says which token it expects.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import MapOp, MmaOp, ReduceOp, space_of
from .schedule import body_slots

_ITERATIONS = 4  # more than any stage distance plus one: later steps repeat the steady state


@dataclass
class Fragments:
    """The result: `home[value]` is the representative value whose fragment holds it."""

    home: dict

    def same(self, a, b) -> bool:
        return self.home[a] == self.home[b]


def assign(kernel, is_compute) -> Fragments:
    """Homes for the register tiles that a role computes, or carries through loops; `is_compute(op)` says which operations run in it."""
    block = kernel.body.blocks[0]
    values, forced, wanted = [], [], []
    _collect(block, values, forced, wanted, is_compute)
    parent = {value: value for value in values}

    def find(value):
        while parent[value] != value:
            value = parent[value]
        return value

    for a, b in forced:
        parent[find(a)] = find(b)
    program = _Program(is_compute)
    reached, failure = _simulate(block, find, program)
    for a, b in wanted:  # some sharing is needed for the schedule to work at all: keep what lets it run at least as far
        root_a, root_b = find(a), find(b)
        if root_a != root_b and a.type == b.type:
            parent[root_a] = root_b
            now, why = _simulate(block, find, program)
            if now >= reached:
                reached, failure = now, why
            else:
                parent[root_a] = root_a
    if failure:
        raise op_diagnostic(
            failure.op,
            f"needs two copies of a register tile: {failure}",
            why="each register tile has one copy, which a later iteration overwrites before it was read",
            fix="order the reader before the writer, or lower the stage distance",
        )
    return Fragments({value: find(value) for value in values})


def in_place_input(op):
    """The input that an operation's result may overwrite, by preference; None if there is none."""
    if isinstance(op, MmaOp):
        return op.acc
    if isinstance(op, ReduceOp):
        return op.init
    if isinstance(op, MapOp):
        return next((value for value in op.inputs if value.type == op.out.type), None)
    return None


def passes_through(op):
    """The value whose content the result starts from (accumulator, initial value, unselected elements), or None."""
    if isinstance(op, MapOp):
        return op.inputs[0] if op.cond is not None else None
    return in_place_input(op) if isinstance(op, (MmaOp, ReduceOp)) else None


def is_register(value) -> bool:
    return space_of(value.type) == "reg"


def _collect(block, values, forced, wanted, is_compute) -> None:
    for op in block.operations:
        if is_compute(op):
            values.extend(r for r in op.operation.results if is_register(r))
        if op.operation.name == "scf.for":
            body = op.regions[0].blocks[0]
            carried = list(body.arguments)[1:]
            yielded = list(body.operations)[-1].operation.operands
            for result, argument, init, out in zip(op.operation.results, carried, list(op.operation.operands)[3:], yielded, strict=True):
                if init in values:
                    values += [result, argument]
                    forced.append((result, argument))
                    wanted[:0] = [(out, argument)]
                    wanted.append((argument, init))
            _collect(body, values, forced, wanted, is_compute)
        elif op.operation.name == "tile.walk":
            _collect(op.regions[0].blocks[0], values, forced, wanted, is_compute)
        elif is_compute(op):
            source = in_place_input(op)
            if source is not None and is_register(source):
                pair = (op.operation.results[0], source)
                wanted[:0] = [pair] if passes_through(op) is not None else []
                wanted.extend([pair] if passes_through(op) is None else [])


def _simulate(block, find, program: _Program):
    """(operations run, the first read that finds another value than it means or None); infinitely many if there is none."""
    simulation = _Simulation(find, program)
    try:
        simulation.run_block(block, {})
    except _Clash as clash:
        return simulation.serial, clash
    return math.inf, None


class _Clash(Exception):
    def __init__(self, op, text):
        self.op = op
        super().__init__(text)


class _Program:
    """What all simulations of one kernel have in common, read off the operations once: each sharing is tried by one."""

    def __init__(self, is_compute):
        self.is_compute = functools.cache(is_compute)
        self.slots = functools.cache(lambda loop: body_slots(loop, is_compute))
        self.accesses = functools.cache(_accesses)


def _accesses(op) -> tuple[list, list, object]:
    """(register values that it reads, those that it writes, the one that its result starts from)"""
    operands, results = op.operation.operands, op.operation.results
    return [v for v in operands if is_register(v)], [v for v in results if is_register(v)], passes_through(op)


class _Simulation:
    def __init__(self, find, program: _Program):
        self.find, self.program = find, program
        self.content = {}  # representative value -> token
        self.serial = 0

    def run_block(self, block, tokens) -> None:
        for op in block.operations:
            if op.operation.name == "scf.for":
                self.run_loop(op, tokens)
            elif op.operation.name == "tile.walk":
                for _ in range(2):
                    self.run_block(op.regions[0].blocks[0], dict(tokens))
            elif self.program.is_compute(op):
                self.execute(op, tokens)

    def run_loop(self, op, tokens) -> None:
        body = op.regions[0].blocks[0]
        slots = self.program.slots(op)
        yielded = list(list(body.operations)[-1].operation.operands)
        inits = list(op.operation.operands)[3:]
        carried = [(i, a) for i, a in enumerate(list(body.arguments)[1:]) if is_register(a) and inits[i] in tokens]
        nested = any(o.operation.name == "scf.for" for o in body.operations)
        environments = [dict(tokens) for _ in range(_ITERATIONS)]
        for i, argument in carried:
            environments[0][argument] = tokens[inits[i]]
            self.move(op, inits[i], tokens[inits[i]], argument)
        if nested:
            for t in range(_ITERATIONS):
                self.run_block(body, environments[t])
                self.end_of_iteration(op, t, carried, yielded, environments, set(range(len(yielded))))
            slots = []
        last = max((slot.stage for slot in slots), default=0)
        first = min((slot.stage for slot in slots), default=0)
        for k in range(first, (_ITERATIONS + last) if slots else first):
            done: dict[int, set] = {}
            for slot in slots:
                t = k - slot.stage
                if 0 <= t < _ITERATIONS:
                    self.execute(slot.op, environments[t])
                    for i, _ in carried:
                        if yielded[i].owner == slot.op.operation:
                            done.setdefault(t, set()).add(i)
                            if t + 1 < _ITERATIONS:  # known from here on, in place or after the copy at the step's end
                                environments[t + 1][carried_argument(body, i)] = environments[t][yielded[i]]
            for t, which in sorted(done.items()):
                self.end_of_iteration(op, t, carried, yielded, environments, which)
        for i, argument in carried:
            tokens[op.operation.results[i]] = environments[-1].get(yielded[i], environments[-1].get(argument))

    def end_of_iteration(self, op, t, carried, yielded, environments, which) -> None:
        for i, argument in carried:
            if i not in which:
                continue
            token = environments[t].get(yielded[i])
            self.move(op, yielded[i], token, argument)
            if t + 1 < len(environments):
                environments[t + 1][argument] = token

    def move(self, op, source, token, target) -> None:
        """A copy between fragments, nothing where they are one."""
        if self.find(source) != self.find(target):
            self.read(op, source, token)
            self.content[self.find(target)] = token

    def read(self, op, value, token) -> None:
        if self.content.get(self.find(value)) != token or token is None:
            raise _Clash(op, "a value is read after it was overwritten, or before it was computed")

    def execute(self, op, tokens) -> None:
        self.serial += 1
        reads, writes, start = self.program.accesses(op)
        for value in reads:
            if value not in tokens:
                raise _Clash(op, "a value is read before it was computed")
            self.read(op, value, tokens[value])
        for result in writes:
            # all other inputs must survive until the operation has read them: elementwise operations read before they write, so only
            # a reduction or an MMA may not overwrite an input other than the one that it starts from
            for value in reads:
                clobbers = self.find(value) == self.find(result) and not (start is not None and value == start)
                if clobbers and not isinstance(op, MapOp):
                    raise _Clash(op, "its result would overwrite an operand that it still reads")
                if clobbers and start is not None and isinstance(op, MapOp):
                    raise _Clash(op, "its first input would overwrite an operand that it still reads")
            tokens[result] = (self.serial, result)
            self.content[self.find(result)] = tokens[result]


def carried_argument(body, index) -> ir.Value:
    return list(body.arguments)[1 + index]
