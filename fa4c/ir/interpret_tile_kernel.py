"""Runs one block of a tile program: straight-line operations, branches, and loops in text order or in their software-pipelined order.

A block is read once into `Step`s and run many times. In storage mode a loop whose operations carry `stage` or `order` runs as
hardware would: in step k the operations, in ascending order, each for iteration k - stage. Scalars are recomputed for each iteration;
tiles live where `tile_storage` says.

Running is a generator that yields after every tile operation, so that several CTAs can run side by side, one operation at a time.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from . import scalar
from .diagnostics import op_diagnostic
from .interpret_tile_ops import captured, is_tile, reader
from .tile import Scheduled, space_of
from .tile_pair import pairs
from .tile_storage import RegisterPlan

_TERMINATORS = ("scf.yield", "tile.yield")


class Block:
    """A block, read: its steps in text order and what its terminator yields."""

    def __init__(self, block, mode: str):
        self.arguments = list(block.arguments)
        self.steps: list[Step] = []
        self.yields: list = []
        for op in block.operations:
            if op.operation.name in _TERMINATORS:
                self.yields = list(op.operation.operands)
            else:
                self.steps.append(Step(op, mode))

    @cached_property
    def tile_steps(self) -> list["Step"]:
        """The steps that carry a place in a schedule."""
        return [step for step in self.steps if step.scheduled]

    @cached_property
    def placed_steps(self) -> list["Step"]:
        """The steps whose results have a place in storage."""
        return [step for step in self.steps if step.placed]

    @cached_property
    def tile_results(self) -> set:
        return {result for step in self.tile_steps for result in step.results}

    def all_steps(self) -> Iterator["Step"]:
        """Nested blocks included."""
        for step in self.steps:
            yield step
            for block in step.blocks:
                yield from block.all_steps()

    def all_tile_results(self) -> Iterator:
        """Nested blocks included."""
        for step in self.steps:
            if step.scheduled:
                yield from step.results
            for block in step.blocks:
                yield from block.all_tile_results()


class Step:
    """An operation, read: what it takes and gives, and for all but control flow the function that computes it."""

    def __init__(self, op, mode: str):
        operation = op.operation
        self.op, self.name = op, operation.name
        self.operands, self.results = list(operation.operands), list(operation.results)
        self.scheduled, self.paired = isinstance(op, Scheduled), pairs(op)
        self.placed = self.scheduled or (self.name == "tile.splat" and space_of(self.results[0].type) == "tmem")
        self.blocks, self.captured = [], []
        self.stage, self.order, self.buffers, self.turns = 0, None, 1, None
        self.compute = reader(op, mode)
        if self.scheduled:
            self.stage = op.stage.value
            self.order = op.order.value if op.order is not None else None
            self.captured = [value for region in operation.regions for value in captured(region)]
        if self.name in ("tile.load", "tile.to_shared", "tile.exchange"):
            self.buffers = op.buffers.value
        if self.name == "tile.load" and op.turns is not None:
            self.turns = op.turns.value
        if self.name in ("scf.for", "scf.if", "tile.walk"):
            self.blocks = [Block(region.blocks[0], mode) for region in operation.regions if len(region.blocks)]
        elif self.compute is None and not self.name.startswith("tile."):
            self.compute = lambda operands, outer: scalar.apply(operation, operands, mode)

    @cached_property
    def holds_tiles(self) -> bool:
        """Whether it is control flow around tile operations, or hands tiles on."""
        return any(step.scheduled or step.holds_tiles for block in self.blocks for step in block.steps) or (
            bool(self.blocks) and any(is_tile(result.type) for result in self.results))

    @property
    def block(self) -> Block:
        """The body of a loop."""
        return self.blocks[0]


class Kernel:
    """A `tile.kernel` (or `tile.host`), read, with its registers planned."""

    def __init__(self, op, mode: str):
        self.op = op
        self.block = Block(op.body.blocks[0], mode)
        self.paired = any(step.paired for step in self.block.all_steps())
        self.register_plan = RegisterPlan()
        self._plan_registers(self.block)

    def _plan_registers(self, block: Block) -> None:
        for step in block.steps:
            if step.name == "tile.mma" and step.op.acc is not None and space_of(step.op.acc.type) == "reg":
                self.register_plan.accumulate(step.results[0], step.op.acc, in_place=step.op.acc in block.tile_results)
            for nested in step.blocks:
                self._plan_registers(nested)
            if step.name == "scf.for":
                for value in step.block.yields:
                    self.register_plan.keep_copies(value, copies=len(step.block.yields))


class Scope:
    """The values of one run of a block: of a kernel, of one iteration, of a branch."""

    __slots__ = ("parent", "values", "iteration")

    def __init__(self, parent: "Scope | None", iteration: int):
        self.parent, self.values, self.iteration = parent, {}, iteration

    def __getitem__(self, value):
        scope = self
        while scope is not None:
            if value in scope.values:
                return scope.values[value]
            scope = scope.parent
        raise KeyError(value.get_name())


class Machine:
    """Runs one CTA (or the host). `special` has the operations that ask about the surroundings: name -> function(operands) -> results.

    `side` is its side of a pair of CTAs, where it has a peer.
    """

    def __init__(self, kernel: Kernel, store, *, special: dict[str, Callable[[Step, list], list]], in_schedule_order: bool, side=None):
        self._kernel, self._store, self._side = kernel, store, side
        self._special, self._in_schedule_order = special, in_schedule_order

    def run(self, arguments: list) -> Iterator[None]:
        scope = Scope(None, 0)
        scope.values.update(zip(self._kernel.block.arguments, arguments, strict=True))
        yield from self._run_block(self._kernel.block, scope)

    def _run_block(self, block: Block, scope: Scope) -> Iterator[None]:
        self._store.enter(scope, block)
        for step in block.steps:
            yield from self._run_step(step, scope)

    def _run_step(self, step: Step, scope: Scope) -> Iterator[None]:
        if step.name == "scf.for":
            yield from self._run_loop(step, scope)
        elif step.name == "scf.if":
            yield from self._run_branch(step, scope)
        elif step.name == "tile.walk":
            yield from self._run_walk(step, scope)
        else:
            operands = [self._store.fetch(scope[value], step.op) for value in step.operands]
            if step.paired:
                operands = yield from self._side.operands(step.op, operands)
            self._compute(step, scope, operands)
            if step.scheduled:
                yield

    def _compute(self, step: Step, scope: Scope, operands: list) -> None:
        fetch = self._store.fetch
        if step.name in self._special:
            results = self._special[step.name](step, operands)
        elif step.compute is None:
            raise op_diagnostic(step.op, "cannot be executed here", why="the interpreter has no rule for it at this place")
        else:
            results = step.compute(operands, {value: fetch(scope[value], step.op) for value in step.captured})
        for result, array in zip(step.results, results, strict=True):
            if step.placed:
                self._store.put(scope, result, array)
            else:
                scope.values[result] = array

    def _run_walk(self, step: Step, scope: Scope) -> Iterator[None]:
        """CTAs run one after the other here, so the first takes all tiles but the others' first ones."""
        (tile, ctas), queue = self._special["tile.walk"](step, []), self._store.fetch(scope[step.operands[1]], step.op)
        if queue.min() < 0:  # poisoned
            raise op_diagnostic(step.op, "finds a queue that does not start at 0", why="its workspace is not initialised",
                                fix='give it init = "zero" where the host names it')
        while tile < int(scope[step.operands[0]]):
            inner = Scope(scope, scope.iteration)
            inner.values[step.block.arguments[0]] = np.int64(tile)
            yield from self._run_block(step.block, inner)
            tile = ctas + int(queue[0])
            queue[0] += 1
        queue[1] += 1
        if queue[1] == ctas:
            queue[:] = 0

    def _run_branch(self, step: Step, scope: Scope) -> Iterator[None]:
        taken = 0 if scope[step.operands[0]] else 1
        if taken < len(step.blocks):
            block = step.blocks[taken]
            inner = Scope(scope, scope.iteration)
            yield from self._run_block(block, inner)
            yielded = self._store.leave([inner[value] for value in block.yields], step.op)
            scope.values.update(zip(step.results, yielded, strict=True))

    # -------------------------------------------------------------------------------------------------------------- loops

    def _run_loop(self, step: Step, scope: Scope) -> Iterator[None]:
        lower, upper, stride = (int(scope[value]) for value in step.operands[:3])
        if stride <= 0:
            raise op_diagnostic(step.op, f"has the step {stride}", why="a loop counts upwards")
        pipelined = self._in_schedule_order and any(s.stage or s.order is not None for s in step.block.tile_steps)
        order = _schedule_order(step.block) if pipelined else []
        loop = _Loop(step, self._store, scope, range(lower, upper, stride), depth=max((s.stage for s in order), default=0))
        if pipelined:
            yield from self._run_pipelined(loop, order)
        else:
            for number in range(len(loop.indices)):
                yield from self._run_block(step.block, loop.start(number))
        scope.values.update(zip(step.results, self._store.leave(loop.carried_after(len(loop.indices)), step.op), strict=True))

    def _run_pipelined(self, loop: "_Loop", order: list[Step]) -> Iterator[None]:
        """In step k the operation of stage s works for iteration k - s."""
        for k in range(len(loop.indices) + loop.depth):
            for step in order:
                number = k - step.stage
                if 0 <= number < len(loop.indices):
                    while number >= loop.started:
                        self._start_iteration(loop)
                    yield from self._run_step(step, loop.scopes[number])

    def _start_iteration(self, loop: "_Loop") -> None:
        """Compute all that is no tile operation; it depends on nothing that the schedule moves."""
        scope = loop.start(loop.started)
        self._store.enter(scope, loop.step.block)
        for step in loop.step.block.steps:
            if not step.scheduled:
                for _ in self._run_step(step, scope):
                    pass


class _Loop:
    """One run of an `scf.for`; at most `depth` + 1 iterations are under way at once."""

    def __init__(self, step: Step, store, outer: Scope, indices: range, depth: int):
        self.step, self.indices, self.depth = step, indices, depth
        self.scopes, self.started = {}, 0
        self._store, self._outer = store, outer
        self._initial = store.enter_loop(step, [outer[value] for value in step.operands[3:]])

    def start(self, number: int) -> Scope:
        """The scope of iteration `number`; iterations start in order."""
        scope = Scope(self._outer, number)
        index, *carried = self.step.block.arguments
        scope.values[index] = np.int64(self.indices[number])
        scope.values.update(zip(carried, self.carried_after(number), strict=True))
        self.scopes[number] = scope
        self.scopes.pop(number - self.depth - 1, None)
        self.started = number + 1
        return scope

    def carried_after(self, count: int) -> list:
        """The carried values when `count` iterations have run."""
        if count == 0:
            return self._initial
        last = self.scopes[count - 1]
        return [self._store.carry(last[value]) for value in self.step.block.yields]


def _schedule_order(block: Block) -> list[Step]:
    """The operations that carry a stage and order, in the order in which a step runs them; those of one order in text order."""
    for step in block.steps:
        if step.holds_tiles:
            raise op_diagnostic(step.op, "cannot stand in a loop whose operations have a stage or an order",
                                why="it holds tile operations, but has no place in the schedule itself", fix="move it out of the loop")
    steps = block.tile_steps
    unordered = [step for step in steps if step.order is None]
    if unordered and len(unordered) < len(steps):
        raise op_diagnostic(unordered[0].op, "has no order", why="other operations of its loop have one", fix="add order = ...")
    return sorted(steps, key=lambda step: step.order or 0)
