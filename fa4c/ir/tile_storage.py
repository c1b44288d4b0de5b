"""Where tiles live while the interpreter runs a kernel: as plain values, or in physical buffers, columns and registers.

`ValueStore` is SSA: a result is an array of its own. `PhysicalStore` gives each operation a place that later iterations use again:

- shared memory: `buffers` copies for each `tile.load` and `tile.to_shared`; iteration i writes copy i % buffers; loads with the same
  `turns` have one copy together;
- tensor memory: the columns that the type names, in one array of 128 lanes x 512 columns, so that aliases overlap;
- registers: one place for each operation. An MMA sums into the place of its `acc`, so a chain through accumulators is one place.

Nothing is checked here that hardware would not notice: a place that was overwritten gives what it holds now, one that was never
written gives NaN. Only a register that no instruction has computed yet is an error of its own, since no program could name it.
"""

import numpy as np

from .diagnostics import op_diagnostic
from .scalar import element_name, storage_dtype
from .tile import column_of, space_of

LANES, COLUMNS = 128, 512


def poison(shape, element: str, mode: str) -> np.ndarray:
    """An array of values that no program computes: NaN, the least integer, true."""
    dtype = np.dtype(storage_dtype(element, mode))
    value = np.nan if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).min
    return np.full(tuple(shape), value, dtype)


class ValueStore:
    """SSA semantics: what an operation computed, whenever it is read."""

    def __init__(self, kernel, mode: str):
        pass

    def enter(self, scope, block) -> None:
        """A block starts running: make places for its results."""

    def enter_loop(self, loop, initial: list) -> list:
        """A loop starts running with these values in its carried arguments; the same, as the first iteration sees them."""
        return initial

    def leave(self, values: list, op) -> list:
        """What a loop or branch hands out, as the operations behind it see it."""
        return values

    def carry(self, value):
        """What an iteration yields, as the next one sees it."""
        return value

    def put(self, scope, result, array: np.ndarray) -> None:
        scope.values[result] = array

    def fetch(self, value, user):
        return value


class PhysicalStore:
    """Places that are used again. A tile's value is a handle: an object with `read` and `write`."""

    def __init__(self, kernel, mode: str):
        self._mode = mode
        self._plan = kernel.register_plan
        self._copies: dict = {}
        self._registers: dict = {}
        self._tensor_memory = None

    def enter(self, scope, block) -> None:
        for step in block.placed_steps:
            for result in step.results:
                scope.values[result] = self._place(step, result, scope.iteration)

    def enter_loop(self, loop, initial: list) -> list:
        seen = self.leave(initial, loop.op)
        for result in loop.block.all_tile_results():
            if (place := self._registers.get(self._plan.place_of(result))) is not None:
                place.written[result] = -1
        for number, result in enumerate(loop.block.yields):
            computed_here = result in loop.block.tile_results and space_of(result.type) == "reg"
            if computed_here and result not in loop.block.yields[:number]:
                place = self._register(result)
                place.push(seen[number])  # the first iteration reads the place that later ones read
                seen[number] = RegisterHandle(place, result, generation=-1, lag=0 if self._plan.is_accumulator(result) else 1)
        return seen

    def leave(self, values: list, op) -> list:
        """Registers are copied; memory stays where it is."""
        return [value.read(op) if isinstance(value, RegisterHandle) else value for value in values]

    def carry(self, value):
        """Accumulators stay where they are; other registers are copied aside before they are overwritten: `lag` copies stay readable."""
        if not isinstance(value, RegisterHandle) or self._plan.is_accumulator(value.result):
            return value
        return RegisterHandle(value.place, value.result, value.generation, value.lag + 1)

    def put(self, scope, result, array: np.ndarray) -> None:
        scope.values[result].write(array)

    def fetch(self, value, user):
        return value.read(user) if isinstance(value, _Handle) else value

    def _place(self, step, result, iteration: int):
        kind = result.type
        space = space_of(kind)
        if space == "smem":
            key = (step.op.operation.parent, step.turns) if step.turns is not None else result
            if key not in self._copies:
                self._copies[key] = [poison(kind.shape, element_name(kind), self._mode)] * step.buffers
            return BufferHandle(self._copies[key], iteration % step.buffers, kind.shape)
        if space == "tmem":
            self._tensor_memory = self._tensor_memory or TensorMemory()
            return self._tensor_memory.handle(step.op, kind, storage_dtype(element_name(kind), self._mode))
        return RegisterHandle(self._register(result), result, iteration)

    def _register(self, result):
        key = self._plan.place_of(result)
        if key not in self._registers:
            self._registers[key] = RegisterPlace(self._plan.copies_of(result))
        return self._registers[key]


class _Handle:
    """Names a place; reading gives what it holds at that moment."""


class BufferHandle(_Handle):
    """One of an operation's rotating copies in shared memory."""

    def __init__(self, copies: list, number: int, shape):
        self._copies, self._number, self._shape = copies, number, tuple(shape)

    def read(self, user) -> np.ndarray:
        return self._copies[self._number].reshape(self._shape)

    def write(self, array: np.ndarray) -> None:
        self._copies[self._number] = array


class TensorMemory:
    """128 lanes x 512 columns of 32 bits, kept as halves of 16 bits: a 16-bit element fills one, a 32-bit one two.

    A tile of 256 rows is two blocks of 128 lanes, at its column of each half of the columns.
    """

    def __init__(self):
        self.halves = np.full((LANES, 2 * COLUMNS), np.nan)

    def handle(self, op, kind, dtype) -> "ColumnsHandle":
        rows, width = kind.shape
        column = column_of(kind)
        per_element = 2 if element_name(kind) in ("f32", "i32") else 1
        last = column + -(-width * per_element // 2)
        blocks = -(-rows // LANES)
        if blocks > 2 or (blocks == 2 and rows % LANES) or column < 0 or last > COLUMNS // blocks:
            raise op_diagnostic(op, f"puts {rows} rows into columns {column} to {last} of tensor memory",
                                why=f"it has {LANES} lanes and {COLUMNS} columns, half of them for each block of {LANES} of 256 rows",
                                fix="choose a lower first column, or a smaller tile" if column >= 0 else "run tile-alias-tmem")
        starts = [2 * (column + block * COLUMNS // blocks) for block in range(blocks)]
        height = min(rows, LANES)
        parts = [self.halves[:height, at : at + width * per_element].reshape(height, width, per_element) for at in starts]
        return ColumnsHandle(parts, dtype)


class ColumnsHandle(_Handle):
    """The columns of one tile. Halves of different origin make no value: that reads NaN."""

    def __init__(self, parts: list[np.ndarray], dtype):
        self._parts, self._dtype = parts, dtype  # of each row block, (rows, columns, halves): views of the tensor memory

    def read(self, user) -> np.ndarray:
        whole = [np.where(part[:, :, 0] == part[:, :, -1], part[:, :, 0], np.nan) for part in self._parts]
        return np.concatenate(whole).astype(self._dtype)

    def write(self, array: np.ndarray) -> None:
        for block, part in enumerate(self._parts):
            part[...] = array[block * LANES : block * LANES + len(part), :, None]


class RegisterPlace:
    """The registers of one operation, or of a chain of accumulation, with the copies set aside for loop-carried readers."""

    def __init__(self, copies: int):
        self.contents: list = []  # the latest first
        self.written: dict = {}  # result -> the iteration it was last computed for
        self._copies = copies

    def push(self, array: np.ndarray) -> None:
        self.contents = [array, *self.contents[: self._copies]]


class RegisterHandle(_Handle):
    """`result` as computed for iteration `generation`; a reader that is late sees a later one, `lag` copies of history aside."""

    def __init__(self, place: RegisterPlace, result, generation: int, lag: int = 0):
        self.place, self.result, self.generation, self.lag = place, result, generation, lag

    def read(self, user) -> np.ndarray:
        written = self.place.written.get(self.result, -1)
        if written < self.generation:
            raise op_diagnostic(user, f"uses {self.result.get_name()} of iteration {self.generation} before it is computed",
                                why="the schedule runs the operation that computes it later",
                                fix="give that operation an earlier stage or order")
        return self.place.contents[min(written - self.generation, self.lag)]

    def write(self, array: np.ndarray) -> None:
        self.place.push(array)
        self.place.written[self.result] = self.generation


class RegisterPlan:
    """Which results share registers, found once for a kernel: an MMA's `acc` and result do, where both are computed in one block."""

    def __init__(self):
        self._leader: dict = {}
        self._accumulated: set = set()  # leaders
        self._copies: dict = {}

    def place_of(self, result):
        while result in self._leader:
            result = self._leader[result]
        return result

    def is_accumulator(self, result) -> bool:
        return self.place_of(result) in self._accumulated

    def copies_of(self, result) -> int:
        return 0 if self.is_accumulator(result) else self._copies.get(result, 0)

    def keep_copies(self, result, copies: int) -> None:
        self._copies[result] = max(copies, self._copies.get(result, 0))

    def accumulate(self, result, acc, in_place: bool) -> None:
        if in_place:
            leader, follower = self.place_of(acc), self.place_of(result)
            self._accumulated.discard(follower)
            if leader != follower:
                self._leader[follower] = leader
        self._accumulated.add(self.place_of(result))
