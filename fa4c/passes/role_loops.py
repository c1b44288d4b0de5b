"""The loops of one role of the warp level: an iteration's operations in their stages and order, and the scalars that they need
(`warp-specialize`). What each operation becomes: `role_ops.py`."""

from __future__ import annotations

import itertools

from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, index_constant, ir, scf
from ..ir.tile import space_of
from .loop_nest import constant
from .schedule import body_slots, is_scalar_op


class RoleLoops:
    """Emits the control structure of the operations that `keep` picks. An environment has, for each value of the tile level, what stands
    for it here.

    Who derives from it says `emit_op(op, env)`, `emit_walk(op, env)`, and how values go on: `enter(loop)` before a loop,
    `carry(loop, numbers)` for those that are finished, `number_readers(loop, slots)`.
    """

    counts_loops_around = True  # loops that hold others, by the number of the iteration; else by the loop's own index

    def __init__(self, keep):
        self.keep = keep

    def emit_block(self, block, env) -> None:
        for op in block.operations:
            if op.operation.name in ("scf.for", "tile.walk"):
                if any(self.keep(inner) for inner in operations_within(op.regions[0].blocks[0])):
                    (self.emit_walk if op.operation.name == "tile.walk" else self.emit_loop)(op, env)
            elif self.keep(op):
                self.emit_op(op, env)

    def emit_loop(self, op, env) -> None:
        body = op.regions[0].blocks[0]
        lower, upper, step = (self.scalar(v, env) for v in list(op.operation.operands)[:3])
        for argument in list(body.arguments)[1:]:
            if space_of(argument.type) not in ("reg", "tmem"):
                raise op_diagnostic(
                    op,
                    f"carries a {argument.type} from one iteration to the next",
                    why="only tiles in registers or tensor memory can be carried so far",
                    fix="compute it from the loop's index",
                )
        self.enter(op)
        self._hoist(body, env)
        with op.location:
            if any(o.operation.name == "scf.for" for o in body.operations):
                self._nested_loop(op, lower, upper, step, env)
            else:
                self._pipelined_loop(op, self._trip_count(lower, upper, step), lower, step, env)

    def _trip_count(self, lower, upper, step):
        if constant(lower) == 0 and constant(step) == 1:
            return upper
        return arith.CeilDivSIOp(arith.SubIOp(upper, lower).result, step).result

    def _nested_loop(self, op, lower, upper, step, env) -> None:
        if any(slot.stage or slot.op.order is not None for slot in body_slots(op)):
            raise op_diagnostic(
                op,
                "pipelines a loop that holds another loop",
                why="only innermost loops can be pipelined",
                fix="leave out its stages and orders",
            )
        counts, body = self.counts_loops_around, op.regions[0].blocks[0]
        count = self._trip_count(lower, upper, step) if counts else None
        bounds = (index_constant(0), count, index_constant(1)) if counts else (lower, upper, step)
        loop = scf.ForOp(*bounds, loc=op.location)
        with ir.InsertionPoint(loop.body):
            number = loop.induction_variable
            inner = self._iteration_env(op, number, lower, step, env) if counts else {**env, body.arguments[0]: number}
            self.emit_block(body, inner)
            self.carry(op, set(range(len(op.operation.results))))
            scf.YieldOp([])

    def _pipelined_loop(self, op, count, lower, step, env) -> None:
        slots = body_slots(op, self.keep)
        self.number_readers(op, slots)
        slots = sorted([*slots, *self.waits_within(op)], key=lambda slot: slot.order)
        first = min(slot.stage for slot in slots)
        span = max(slot.stage for slot in slots) - first

        def emit(which, k, guard):
            """The operations of `which` (slot, delay) for step k (a value), those with one guard under one `if`."""
            for condition, group in guard(which):
                if condition is None:
                    self._emit_slots(op, group, k, lower, step, env)
                    continue
                branch = scf.IfOp(condition, loc=op.location)
                with ir.InsertionPoint(branch.then_block):
                    self._emit_slots(op, group, k, lower, step, env)
                    scf.YieldOp([])

        delayed = [(slot, slot.stage - first) for slot in slots]
        for k in range(span):  # prologue: step k has work if there are more than k iterations
            emit([(s, d) for s, d in delayed if d <= k], index_constant(k), lambda which, k=k: [(less(index_constant(k), count), which)])
        loop = scf.ForOp(index_constant(span), count, index_constant(1), loc=op.location)
        with ir.InsertionPoint(loop.body):
            emit(delayed, loop.induction_variable, lambda which: [(None, which)])
            scf.YieldOp([])
        for e in range(span):  # epilogue: step count + e, what is delayed by more than e, if its iteration exists
            k = arith.AddIOp(count, index_constant(e)).result

            def by_delay(which, e=e):
                """Neighbours of one delay share a guard; the order stays that of the step."""
                groups = [(d, list(group)) for d, group in itertools.groupby(which, key=lambda slot_and_delay: slot_and_delay[1])]
                return [(less(index_constant(d - e - 1), count), group) for d, group in groups]

            emit([(s, d) for s, d in delayed if d > e], k, by_delay)

    def waits_within(self, loop) -> list:
        """Slots of a loop's step in which this role only waits for another."""
        return []

    def _emit_slots(self, op, slots, k, lower, step, env) -> None:
        finished = set()
        yielded = list(list(op.regions[0].blocks[0].operations)[-1].operation.operands)
        envs = {}
        for slot, delay in slots:
            if delay not in envs:
                t = k if delay == 0 else arith.SubIOp(k, index_constant(delay)).result
                envs[delay] = self._iteration_env(op, t, lower, step, env)
            self.emit_op(slot.op, envs[delay])
            finished |= {i for i, value in enumerate(yielded) if value.owner == slot.op.operation}
        self.carry(op, finished)

    def _iteration_env(self, op, t, lower, step, env) -> dict:
        """The loop's index, and as `("iteration", index)` the number of the iteration, from 0 on."""
        inner = dict(env)
        inner["iteration", op.regions[0].blocks[0].arguments[0]] = t
        offset = t if constant(step) == 1 else arith.MulIOp(t, step).result
        inner[op.regions[0].blocks[0].arguments[0]] = offset if constant(lower) == 0 else arith.AddIOp(lower, offset).result
        return inner

    # -- scalars

    def _hoist(self, body, env) -> None:
        """Compute before a loop what its operations use that is the same in each iteration: divisions by sizes above all."""
        for op in operations_within(body):
            if self.keep(op):
                used = [*op.operation.operands, *(v for region in op.operation.regions for b in region.blocks for v in captured(b))]
                for value in used:
                    if _is_scalar(value) and value not in env and self._is_known(value, env):
                        self.scalar(value, env)

    def _is_known(self, value, env) -> bool:
        """Whether a scalar follows from what `env` has."""
        if value in env:
            return True
        owner = value.owner
        return not isinstance(owner, ir.Block) and is_scalar_op(owner.opview) and all(self._is_known(v, env) for v in owner.operands)

    def scalar(self, value, env):
        """The warp-level copy of a scalar, computed here if it is not there yet."""
        if value not in env:
            owner = value.owner
            for operand in owner.operands:
                self.scalar(operand, env)
            clone_op(owner.opview, env)
        return env[value]

    def scalars(self, values, env) -> list:
        return [self.scalar(v, env) for v in values]


def operations_within(block):
    """All operations of the program's control structure; not those inside the regions of maps."""
    for op in block.operations:
        yield op
        if op.operation.name in ("scf.for", "tile.walk"):
            yield from operations_within(op.regions[0].blocks[0])


def _is_scalar(value) -> bool:
    return not isinstance(value.type, ir.RankedTensorType)


def captured(block) -> list:
    """Values used in a region but defined outside of it."""
    inside, captured = set(block.arguments), []
    for op in block.operations:
        _captured_by(op, inside, captured)
    return captured


def _captured_by(op, inside, captured) -> None:
    captured.extend(v for v in op.operation.operands if v not in inside and v not in captured)
    for region in op.operation.regions:
        for block in region.blocks:
            inside.update(block.arguments)
            for inner in block.operations:
                _captured_by(inner, inside, captured)
    inside.update(op.operation.results)


def clone_op(op, env) -> None:
    """A copy of `op` here, its operands (also those used in nested regions) looked up in `env`, which learns its results."""
    new = op.operation.clone()
    _remap(new, env)
    env.update(zip(op.operation.results, new.results, strict=True))


def _remap(operation, env) -> None:
    for i, value in enumerate(operation.operands):
        if value in env:
            operation.operands[i] = env[value]
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                _remap(inner.operation, env)


def less(a, b):
    return arith.CmpIOp(arith.CmpIPredicate.slt, a, b).result
