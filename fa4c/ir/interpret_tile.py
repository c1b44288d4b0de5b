"""Executes a tile-level module on the CPU, with NumPy: its host function and every CTA of every launch.

    outputs = run(module, {"q": q, "k": k, "v": v}, mode="storage", dtype="kernel")

Two modes. "value" gives an operation's result to whoever names it, in text order (SSA). "storage" runs loops in their software-pipelined
order and keeps tiles in physical buffers, columns and registers, poisoned at the start (`tile_storage`): a schedule, buffer count or
column that a pass chose wrongly gives wrong numbers. Two dtypes: "float64" never rounds, "kernel" rounds as the kernel's types say.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from . import scalar
from .diagnostics import Diagnostic, nearest, op_diagnostic
from .interpret_tile_kernel import Kernel, Machine
from .interpret_tile_pair import Pair
from .tile_storage import PhysicalStore, ValueStore, poison

MODES = {"value": ValueStore, "storage": PhysicalStore}


def run(module, inputs: Mapping, *, mode: str = "value", dtype: str = "float64", ctas: Iterable | None = None,
        sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """The outputs of the module's `tile.host`, by name, as arrays in memory order; parts that no CTA writes are NaN.

    `inputs` has NumPy arrays or torch tensors. Problem sizes follow from their shapes; `sizes` gives those that only outputs or
    workspaces have. `ctas`, a set of (x, y, z), restricts each launch to these.
    """
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if dtype not in (scalar.FLOAT64, scalar.KERNEL):
        raise ValueError(f"dtype is {scalar.FLOAT64!r} or {scalar.KERNEL!r}, not {dtype!r}")
    return _Program(module, mode, dtype, None if ctas is None else {tuple(cta) for cta in ctas}).run(inputs, sizes or {})


class _Program:
    def __init__(self, module, mode: str, dtype: str, ctas: set | None):
        operations = list(module.body.operations)
        hosts = [op for op in operations if op.operation.name == "tile.host"]
        if len(hosts) != 1:
            where = hosts[1].location if len(hosts) > 1 else module.operation.location
            raise Diagnostic(f"the module has {len(hosts)} 'tile.host' operations, but needs one", where=where,
                             why="execution starts there", fix="lower the file to tile level first" if not hosts else "")
        self._module, self._host, self._mode, self._dtype, self._ctas = module, hosts[0], mode, dtype, ctas
        self._kernel_ops = {op.sym_name.value: op for op in operations if op.operation.name == "tile.kernel"}
        self._kernels: dict[str, Kernel] = {}

    def run(self, inputs: Mapping, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        tensors = _bind_tensors(self._host, inputs, sizes, self._dtype)
        special = {"tile.device": self._device, "tile.pow2_floor": _pow2_floor, "tile.launch": self._launch}
        host = Kernel(self._host, self._dtype)
        machine = Machine(host, ValueStore(host, self._dtype), special=special, in_schedule_order=False)
        for _ in machine.run(list(tensors.values())):
            pass
        return {name: tensors[name] for name, entry in _entries(self._host).items() if entry["role"].value == "output"}

    def _device(self, step, operands) -> list:
        from .. import targets  # the only thing here that knows targets, and only on the host

        return [np.int64(getattr(targets.of(self._module), step.op.prop.value))]

    def _launch(self, step, operands) -> list:
        kernel = self._kernel(step.op)
        x, y, z = (int(size) for size in operands[:3])
        for cta in np.ndindex(max(z, 0), max(y, 0), max(x, 0)):
            place = cta[::-1]
            if self._ctas is not None and place not in self._ctas:
                continue
            if not kernel.paired:
                for _ in self._cta(kernel, place, x, operands[3:]):
                    pass
            elif place[0] % 2 == 0 or (self._ctas is not None and (place[0] - 1, *place[1:]) not in self._ctas):
                self._run_pair(kernel, (place[0] // 2 * 2, *place[1:]), x, operands[3:])
        return []

    def _run_pair(self, kernel: Kernel, place: tuple, grid_x: int, arguments: list) -> None:
        pair = Pair()
        pair.run(*(self._cta(kernel, (place[0] + rank, *place[1:]), grid_x, arguments, pair.side(rank)) for rank in range(2)))

    def _cta(self, kernel: Kernel, place: tuple, grid_x: int, arguments: list, side=None) -> Iterator[None]:
        """A fresh CTA, its memory poisoned."""
        store = MODES[self._mode](kernel, self._dtype)
        special = {
            "tile.program_id": lambda step, operands: [np.int64(number) for number in place],
            "tile.walk": lambda step, operands: [place[0], grid_x],
        }
        ctas = kernel.op.cluster.value if kernel.op.operation.name == "tile.kernel" else 1
        if ctas > 1:
            if grid_x % ctas:
                raise op_diagnostic(kernel.op, f"runs {grid_x} CTAs in clusters of {ctas}", why="the grid's x is a multiple of that")
            special["tile.cta_rank"] = lambda step, operands: [np.int64(place[0] % ctas)]
            if any(step.name == "tile.load" and step.op.shared.value for step in kernel.block.all_steps()):
                special["tile.load"] = self._shares(kernel, place, ctas, arguments)
        return Machine(kernel, store, special=special, in_schedule_order=self._mode == "storage", side=side).run(arguments)

    def _shares(self, kernel: Kernel, place: tuple, ctas: int, arguments: list):
        """The rule of loads in a cluster: of a shared one, each CTA's rows are what that CTA asked for in its own load of that number."""
        first = place[0] // ctas * ctas
        asked = [self._asked(kernel, (first + rank, *place[1:]), arguments) for rank in range(ctas)]
        if len({len(loads) for loads in asked}) > 1:
            raise op_diagnostic(kernel.op, f"makes {', '.join(str(len(loads)) for loads in asked)} shared loads in the CTAs of a cluster",
                                why="they load the same tiles in the same order, and wait for each other", fix="remove shared")
        count = iter(range(len(asked[0])))

        def load(step, operands):
            if not step.op.shared.value:
                return step.compute(operands, {})
            number = next(count)
            return [np.concatenate([np.split(loads[number], ctas)[rank] for rank, loads in enumerate(asked)])]

        return load

    def _asked(self, kernel: Kernel, place: tuple, arguments: list) -> list:
        """What a CTA would load by its shared loads, in order. Nothing that it computes matters, nor does what it stores."""
        loads = []

        def load(step, operands):
            results = step.compute(operands, {})
            if step.op.shared.value:
                loads.append(results[0])
            return results

        special = {
            "tile.program_id": lambda step, operands: [np.int64(number) for number in place],
            "tile.load": load,
            "tile.store": lambda step, operands: [],
            "tile.global_add": lambda step, operands: [],
        }
        store = MODES[self._mode](kernel, self._dtype)
        for _ in Machine(kernel, store, special=special, in_schedule_order=self._mode == "storage").run(arguments):
            pass
        return loads

    def _kernel(self, launch) -> Kernel:
        name = launch.kernel.value
        if name not in self._kernels:
            self._kernels[name] = Kernel(self._kernel_ops[name], self._dtype)
        return self._kernels[name]


def _pow2_floor(step, operands) -> list:
    return [np.int64(1 << max(int(operands[0]), 1).bit_length() - 1)]


# ------------------------------------------------------------------------------------------------------------------- tensors


def _entries(host) -> dict:
    """name -> the entry of `tensors` that describes it, in the order of the region's arguments."""
    return {entry["name"].value: entry for entry in host.tensors}


def _dim_names(entry) -> list[str]:
    return [dim.value for dim in entry["dims"]]


def _bind_tensors(host, inputs: Mapping, sizes: Mapping[str, int], dtype: str) -> dict[str, np.ndarray]:
    """name -> array of every tensor of `host`: inputs converted, outputs and workspaces allocated and poisoned."""
    entries = _entries(host)
    kinds = dict(zip(entries, [argument.type for argument in host.body.blocks[0].arguments], strict=True))
    wanted = [name for name, entry in entries.items() if entry["role"].value == "input"]
    for name in inputs:
        if name not in wanted:
            raise op_diagnostic(host, f"has no input '{name}'", fix=nearest(name, wanted))
    arrays = {}
    for name in wanted:
        if name not in inputs:
            raise op_diagnostic(host, f"needs the input '{name}'", why=f"its inputs are: {', '.join(wanted)}")
        arrays[name] = scalar.round_to(scalar.element_name(kinds[name]), _to_numpy(inputs[name]), dtype)
    known = _sizes(host, {name: array.shape for name, array in arrays.items()}, kinds, sizes)
    tensors = {}
    for name, entry in entries.items():
        tensors[name] = arrays[name] if name in arrays else _allocate(host, name, entry, kinds[name], known, dtype)
    return tensors


def _to_numpy(tensor) -> np.ndarray:
    """A NumPy array of a torch tensor (bf16 too), or of anything array-like."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return np.asarray(tensor)


def _sizes(host, shapes: dict[str, tuple], kinds: dict, given: Mapping[str, int]) -> dict[str, int]:
    """The problem sizes, from the shapes of the inputs and the caller's; all that name one size must agree."""
    known = {name: (int(size), "the caller") for name, size in given.items()}
    for name, shape in shapes.items():
        dims, kind = _dim_names(_entries(host)[name]), kinds[name]
        if len(shape) != len(dims):
            raise op_diagnostic(host, f"takes '{name}' with {len(dims)} dimensions ({', '.join(dims)}), but was given {len(shape)}")
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if not kind.is_dynamic_dim(axis) and kind.shape[axis] != size:
                raise op_diagnostic(host, f"takes '{name}' with {dim} = {kind.shape[axis]}, but was given {size}",
                                    why=f"its type is {kind}")
            before, source = known.setdefault(dim, (size, f"'{name}'"))
            if before != size:
                raise op_diagnostic(host, f"was given {dim} = {before} by {source} and {dim} = {size} by '{name}'",
                                    why="dimensions of one name have one size")
    return {dim: size for dim, (size, _) in known.items()}


def _allocate(host, name: str, entry, kind, known: dict[str, int], dtype: str) -> np.ndarray:
    shape = []
    for axis, dim in enumerate(_dim_names(entry)):
        if not kind.is_dynamic_dim(axis):
            shape.append(kind.shape[axis])
        elif dim in known:
            shape.append(known[dim])
        else:
            raise op_diagnostic(host, f"has '{name}' of unknown size: nothing says what {dim} is",
                                why="no input has a dimension of that name", fix=f"give it: sizes={{'{dim}': ...}}")
    element = scalar.element_name(kind)
    if "init" in entry and entry["init"].value == "zero":
        return np.zeros(tuple(shape), scalar.storage_dtype(element, dtype))
    return poison(shape, element, dtype)

