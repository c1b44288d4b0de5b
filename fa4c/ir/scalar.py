"""Evaluates scalar regions (`arith`, `math`, `scf.if`) over NumPy arrays: one array element is one scalar, shapes broadcast.

Two modes. "float64": every float is a float64, whatever its type says, so that rounding disappears. "kernel": each result is rounded to its
type, as hardware would: f32 arrays are float32; bf16 and f16 values are float32 arrays that hold only values of that type (an f32 add,
multiply, divide or square root rounded once more is the correctly rounded one, since 24 >= 2 * 11 + 2).

Integers are the same in both: index is int64, iN wraps around at N bits, i1 is bool. Division by zero gives 0.
"""

from collections.abc import Callable, Mapping

import numpy as np

from .diagnostics import op_diagnostic
from .mlir import ir

FLOAT64, KERNEL = "float64", "kernel"
_INTS = {"i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "index": np.int64}
_UNSIGNED = {"i1": np.uint8, "i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64, "index": np.uint64}
_CMPF = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")
_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
# external(op, operand arrays) -> result arrays, or None for "not mine".
External = Callable[[object, list], "list | None"]


def element_name(kind) -> str:
    """ "f32", "i32", "index", ... of a scalar type, or of the elements of a shaped one."""
    return str(kind.element_type if isinstance(kind, ir.ShapedType) else kind)


def storage_dtype(name: str, mode: str = KERNEL) -> type:
    """The NumPy dtype that holds values of the MLIR element type `name`."""
    if name in _INTS:
        return _INTS[name]
    return np.float64 if mode == FLOAT64 or name == "f64" else np.float32


def round_to(name: str, values, mode: str = KERNEL) -> np.ndarray:
    """`values` as the element type `name` holds them: floats to nearest even, integers wrapped."""
    dtype = storage_dtype(name, mode)
    if name in _INTS:
        values = np.asarray(values)
        return values.astype(dtype) if name != "i1" else (values.astype(np.int64) & 1).astype(bool) if values.dtype != bool else values
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(values).astype(dtype, copy=False)
        if mode == FLOAT64 or name in ("f32", "f64"):
            return values
        if name == "f16":
            return values.astype(np.float16).astype(np.float32)
    if name == "bf16":
        return _round_bf16(values)
    raise ValueError(f"no rule to round to {name}")


def _round_bf16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32)).reshape(np.shape(values))


def evaluate(
    block, arguments: list, outer: Mapping | None = None, *, mode: str = FLOAT64, external: External | None = None
) -> list[np.ndarray]:
    """Run a region's block and return what its terminator yields.

    `outer` has the values defined outside that the region uses. `external` evaluates operations of other dialects (attn.load, attn.size).
    """
    values = dict(zip(block.arguments, arguments, strict=True))

    def lookup(value):
        return values[value] if value in values else outer[value]

    for op in block.operations:
        operation = op.operation
        if operation.name in _TERMINATORS:
            return [np.asarray(lookup(value)) for value in operation.operands]
        operands = [lookup(value) for value in operation.operands]
        if operation.name == "scf.if":
            results = _evaluate_if(operation, operands[0], _Chained(values, outer or {}), mode, external)
        else:
            results = (external(operation, operands) if external else None) or apply(operation, operands, mode)
        values.update(zip(operation.results, results, strict=True))
    return []


_TERMINATORS = ("scf.yield", "attn.yield", "tile.yield", "warp.yield", "func.return")


class _Chained(Mapping):
    def __init__(self, inner: Mapping, outer: Mapping):
        self._inner, self._outer = inner, outer

    def __getitem__(self, key):
        return self._inner[key] if key in self._inner else self._outer[key]

    def __iter__(self):
        return iter({**self._outer, **self._inner})

    def __len__(self):
        return len({**self._outer, **self._inner})


def _evaluate_if(operation, condition, outer, mode, external) -> list:
    """Both branches for all elements, then a choice: regions are pure, so the branch not taken does no harm."""
    branches = [
        evaluate(region.blocks[0], [], outer, mode=mode, external=external) if len(region.blocks) else [] for region in operation.regions
    ]
    return [np.where(condition, yes, no) for yes, no in zip(*branches, strict=True)] if len(operation.results) else []


def apply(op, operands: list, mode: str = FLOAT64) -> list[np.ndarray]:
    """The results of one `arith` or `math` operation, on scalars or elementwise on shaped values."""
    operation = op.operation
    rule = _RULES.get(operation.name)
    if rule is None:
        raise op_diagnostic(operation, "cannot be evaluated", why="it is no scalar arith or math operation that the interpreter knows")
    with np.errstate(all="ignore"):
        value = rule(operation, [np.asarray(operand) for operand in operands], mode)
    name = element_name(operation.results[0].type)
    return [round_to(name, value, mode)]


# -- rules: (operation, operand arrays, mode) -> unrounded result ------------------------------------------------------------------------


def _plain(function):
    return lambda operation, operands, mode: function(*operands)


def _constant(operation, operands, mode):
    attribute = operation.attributes["value"]
    kind = operation.results[0].type
    if not isinstance(kind, ir.ShapedType):
        return attribute.value
    if attribute.is_splat:
        return np.full(tuple(kind.shape), attribute.get_splat_value().value)
    return np.array([element if not hasattr(element, "value") else element.value for element in attribute]).reshape(tuple(kind.shape))


def _divide_to_zero(a, b):
    magnitude = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where(b == 0, 0, magnitude * np.sign(a) * np.sign(b))


def _floor_divide(a, b):
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def _ceil_divide(a, b):
    return -_floor_divide(-a, b)


def _remainder(a, b):
    """The remainder of division towards zero: the sign of the dividend, as in C (torch.fmod)."""
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))


def _unsigned(function):
    def rule(operation, operands, mode):
        names = [element_name(value.type) for value in operation.operands]
        return function(*[operand.astype(_UNSIGNED[name]) for operand, name in zip(operands, names, strict=True)])

    return rule


def _unsigned_divide(a, b):
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b).astype(a.dtype))


def _unsigned_remainder(a, b):
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b).astype(a.dtype))


def _cmpi(operation, operands, mode):
    predicate = _CMPI[operation.attributes["predicate"].value]
    if predicate.startswith("u"):
        return _unsigned(_COMPARE[predicate[1:]])(operation, operands, mode)
    if element_name(operation.operands[0].type) == "i1" and predicate.startswith("s"):
        operands = [-operand.astype(np.int8) for operand in operands]  # a set i1 is -1
    return _COMPARE[predicate.removeprefix("s") if predicate.startswith("s") else predicate](*operands)


def _cmpf(operation, operands, mode):
    predicate = _CMPF[operation.attributes["predicate"].value]
    a, b = operands
    unordered = np.isnan(a) | np.isnan(b)
    if predicate in ("true", "false"):
        return np.full(unordered.shape, predicate == "true")
    if predicate in ("ord", "uno"):
        return ~unordered if predicate == "ord" else unordered
    result = _COMPARE[predicate[1:]](a, b)
    return (result & ~unordered) if predicate[0] == "o" else (result | unordered)


def _signed_to_float(operation, operands, mode):
    (value,) = operands
    return -value.astype(np.int8) if value.dtype == bool else value


def _float_to_signed(operation, operands, mode):
    name = element_name(operation.results[0].type)
    info = np.iinfo(_INTS[name] if name != "i1" else np.int8)
    value = np.trunc(np.nan_to_num(np.asarray(operands[0], dtype=np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.where(
        value >= float(info.max), info.max, np.clip(value, float(info.min), float(info.max) - 1 if info.bits == 64 else info.max)
    ).astype(np.int64)


def _sign_extend(operation, operands, mode):
    (value,) = operands
    return -value.astype(np.int64) if value.dtype == bool else value.astype(np.int64)


def _zero_extend(operation, operands, mode):
    (value,) = operands
    return value.astype(_UNSIGNED[element_name(operation.operands[0].type)]).astype(np.int64)


def _bitcast(operation, operands, mode):
    (value,) = operands
    pairs = {("f32", "i32"): (np.float32, np.int32), ("i32", "f32"): (np.int32, np.float32)}
    key = (element_name(operation.operands[0].type), element_name(operation.results[0].type))
    if key not in pairs:
        raise op_diagnostic(
            operation, f"cannot be evaluated from {key[0]} to {key[1]}", why="the interpreter reinterprets f32 and i32 only"
        )
    source, target = pairs[key]
    return np.ascontiguousarray(value.astype(source)).view(target)


def _erf(x):
    import torch  # NumPy has no erf

    return torch.special.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy().reshape(x.shape)


def _shift_right_unsigned(a, b):
    return a >> b


_RULES = {
    "arith.constant": _constant,
    "arith.select": _plain(np.where),
    "arith.cmpi": _cmpi,
    "arith.cmpf": _cmpf,
    "arith.sitofp": _signed_to_float,
    "arith.uitofp": _zero_extend,
    "arith.fptosi": _float_to_signed,
    "arith.extsi": _sign_extend,
    "arith.extui": _zero_extend,
    "arith.index_cast": _sign_extend,
    "arith.index_castui": _zero_extend,
    "arith.bitcast": _bitcast,
    "arith.minui": _unsigned(np.minimum),
    "arith.maxui": _unsigned(np.maximum),
    "arith.divui": _unsigned(_unsigned_divide),
    "arith.remui": _unsigned(_unsigned_remainder),
    "arith.shrui": _unsigned(_shift_right_unsigned),
}
_RULES |= {
    f"arith.{name}": _plain(function)
    for name, function in {
        "addf": np.add,
        "subf": np.subtract,
        "mulf": np.multiply,
        "divf": np.divide,
        "remf": np.fmod,
        "negf": np.negative,
        "maximumf": np.maximum,
        "minimumf": np.minimum,
        "maxnumf": np.fmax,
        "minnumf": np.fmin,
        "addi": np.add,
        "subi": np.subtract,
        "muli": np.multiply,
        "divsi": _divide_to_zero,
        "floordivsi": _floor_divide,
        "ceildivsi": _ceil_divide,
        "remsi": _remainder,
        "maxsi": np.maximum,
        "minsi": np.minimum,
        "andi": np.bitwise_and,
        "ori": np.bitwise_or,
        "xori": np.bitwise_xor,
        "shli": np.left_shift,
        "shrsi": np.right_shift,
        "extf": np.asarray,
        "truncf": np.asarray,
        "trunci": np.asarray,
    }.items()
}
_RULES |= {
    f"math.{name}": _plain(function)
    for name, function in {
        "exp": np.exp,
        "exp2": np.exp2,
        "expm1": np.expm1,
        "log": np.log,
        "log2": np.log2,
        "log1p": np.log1p,
        "tanh": np.tanh,
        "sin": np.sin,
        "cos": np.cos,
        "erf": _erf,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "absf": np.abs,
        "absi": np.abs,
        "powf": np.power,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "roundeven": np.rint,
        "fma": lambda a, b, c: a * b + c,
    }.items()
}
KNOWN = frozenset(_RULES)
