"""The fields of launch.json and what each may hold, so that a wrong one is named before anything is built from it."""

import math

from .errors import EmulatorError


def _integer(least=None, most=1 << 40):
    def holds(v):
        return isinstance(v, int) and not isinstance(v, bool) and (least is None or v >= least) and v <= most

    return holds, "an integer" if least is None else f"an integer from {least} on"


def _one_of(kind, words):
    return lambda v: isinstance(v, kind), words


def _list_of(one, words, sizes=range(0, 100)):
    holds = one[0]
    return lambda v: isinstance(v, list) and len(v) in sizes and all(map(holds, v)), words


_TEXT, _FLAG = _one_of(str, "a text"), _one_of(bool, "true or false")
_NUMBER = (lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and (isinstance(v, int) or math.isfinite(v))), "a number"
_VALUE = (lambda v: isinstance(v, (int, float))), "a number"
_NATURAL = _integer(0)
_SIZES = _list_of(_NATURAL, "a list of sizes")
_THREE = (lambda v: _integer(1, 1 << 31)[0](v) or _list_of(_integer(1, 1 << 31), "", range(1, 4))[0](v)), "one to three positive integers"
_OBJECTS = _list_of(_one_of(dict, ""), "a list of objects")

_STEP = {
    "entry": ((lambda v: v is None or isinstance(v, str)), "a text"),
    "grid": _THREE,
    "block": _THREE,
    "cluster": _THREE,
    "smem": _integer(0, 1 << 30),
    "params": _OBJECTS,
}
_BUFFERS = (lambda v: isinstance(v, dict) and all(isinstance(b, dict) for b in v.values())), "an object of objects"
LAUNCH = {**_STEP, "buffers": _BUFFERS, "then": _OBJECTS}
THEN = {**_STEP, "ptx": _TEXT, "pdl": _FLAG}
BUFFER = {
    "dtype": _TEXT,
    "shape": _SIZES,
    "file": _TEXT,
    "random": _TEXT,
    "scale": _NUMBER,
    "seed": _NATURAL,
    "fill": _NUMBER,
    "poison": _FLAG,
    "writable": _FLAG,
    "layout": _list_of(_TEXT, "a list of names"),
    "save": _TEXT,
    "expect": _TEXT,
    "tolerance": _NUMBER,
}
_DIM = (lambda v: _NATURAL[0](v) or (isinstance(v, dict) and set(v) == {"dim"} and isinstance(v["dim"], str))), ""
PARAMETERS = {
    "pointer": {"buffer": _TEXT, "tensor": _TEXT},
    "scalar": {"dtype": _TEXT, "value": _VALUE},
    "bytes": {"hex": _TEXT},
    "struct": {"fields": _OBJECTS},
    "tensor_map_bytes": {"buffer": _TEXT, "tensor": _TEXT, "hex": _TEXT, "offset": _NATURAL},
    "tensor_map": {
        "buffer": _TEXT,
        "tensor": _TEXT,
        "dtype": _TEXT,
        "dims": ((lambda v: _list_of(_DIM, "", range(1, 6))[0](v) and len({type(x) for x in v}) == 1), 'sizes, or {"dim": NAME} each'),
        "strides_bytes": _SIZES,
        "box": _SIZES,
        "swizzle": _NATURAL,
        "element_strides": _SIZES,
        "oob_fill": ((lambda v: v in ("zero", "nan") or isinstance(v, bool)), "zero or nan"),
        "base_offset_bytes": _NATURAL,
    },
}


def check(path, data, fields, where, needed=()):
    """Refuse an object with an unknown or missing field, or one that holds something else."""
    if not isinstance(data, dict):
        raise EmulatorError(f"{where} must be a JSON object", file=path)
    prefix = f"{where}: " if where != "the file" else ""
    for name, value in data.items():
        if name not in fields:
            raise EmulatorError(f"{prefix}unknown field {name!r}", file=path, fix="fields: " + ", ".join(fields))
        holds, words = fields[name]
        if not holds(value):
            text = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
            raise EmulatorError(f"{prefix}the field {name!r} is {text}", file=path, why=f"it must be {words}")
    for name in needed:
        if name not in data:
            raise EmulatorError(f"{prefix}the field {name!r} is missing", file=path)
