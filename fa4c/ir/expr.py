"""Expression trees, the EXPR of the semantics: scalar code as a list of nodes [op, operand...], in plain data, without MLIR.

A node's operands are numbers of earlier nodes; the last node is the value. Operands of one arithmetic node have one dtype. `rem` and
integer `div` go towards zero, as in C (torch.fmod); comparisons with NaN are false, except `ne`. A constant that JSON cannot hold is a
string: "inf", "-inf", "nan".

The canonical form, which `canonical` makes and `semantics.from_function` returns: no two equal nodes, no dead ones, each behind its
operands in the order of a depth-first walk from the value, shorthands (sigmoid, casts without an instruction) written out.
"""

import struct

UNARY = frozenset(("neg", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "abs", "floor"))
BINARY = frozenset(("add", "sub", "mul", "div", "floordiv", "rem", "max", "min", "pow"))
COMPARE = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
LOGIC = frozenset(("and", "or", "xor"))
FLOATS = ("f32", "f64", "bf16", "fp16")
INTS = ("i32", "i64", "index")
INDICES = ("b", "h", "i", "j")
SIZES = ("m", "n", "hq", "hkv")


def round_constant(value, dtype: str):
    """A constant as its dtype holds it, as canonical JSON data."""
    if dtype == "i1":
        return bool(value)
    if dtype in INTS:
        return int(value)
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if dtype == "f32":
        return struct.unpack("f", struct.pack("f", value))[0]
    if dtype == "fp16":
        return struct.unpack("e", struct.pack("e", value))[0]
    if dtype == "bf16":
        bits = struct.unpack("I", struct.pack("f", value))[0]
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return struct.unpack("f", struct.pack("I", bits))[0]
    return value


class ExprBuilder:
    """Collects nodes, equal ones once, and knows their dtypes.

    `operands`: dtypes of the elements ["x", k]. `tensors`: name -> (dtype, number of dimensions) of what can be loaded.
    """

    def __init__(self, operands=(), tensors=None):
        self.operands, self.tensors = tuple(operands), dict(tensors or {})
        self.nodes: list[list] = []
        self.dtypes: list[str] = []
        self._numbers: dict[tuple, int] = {}

    def dtype(self, node: int) -> str:
        return self.dtypes[node]

    def const(self, value, dtype: str) -> int:
        return self._add(["const", round_constant(value, dtype), dtype], dtype)

    def index(self, which: str) -> int:
        if which not in INDICES:
            raise ValueError(f"no index {which!r}; there are {', '.join(INDICES)}")
        return self._add(["index", which], "index")

    def size(self, which: str) -> int:
        if which not in SIZES:
            raise ValueError(f"no size {which!r}; there are {', '.join(SIZES)}")
        return self._add(["size", which], "index")

    def x(self, number: int = 0) -> int:
        return self._add(["x", number], self.operands[number])

    def load(self, name: str, *indices: int) -> int:
        if name not in self.tensors:
            raise ValueError(f"no tensor {name!r} to load; there are: {', '.join(self.tensors) or 'none'}")
        dtype, rank = self.tensors[name]
        if len(indices) != rank:
            raise ValueError(f"{name!r} has {rank} dimensions, but {len(indices)} indices were given")
        return self._add(["load", name, *[self.cast(index, "index") for index in indices]], dtype)

    def cast(self, node: int, dtype: str) -> int:
        source = self.dtypes[node]
        if source == dtype:
            return node
        if dtype == "i1":
            return self.op("ne", node, self.const(0, source))
        if {source, dtype} & set(FLOATS) and "index" in (source, dtype):  # converts through i32, as lengths fit in it
            return self.cast(self.cast(node, "i32"), dtype)
        return self._add(["cast", node, dtype], dtype)

    def op(self, name: str, *operands: int) -> int:
        """A node of arithmetic, comparison, logic or `select`; operands of one dtype."""
        dtypes = [self.dtypes[node] for node in operands]
        if name == "select":
            self._expect(name, operands, 3, dtypes[0] == "i1" and len(set(dtypes[1:])) == 1)
            return self._add([name, *operands], dtypes[1])
        if name in COMPARE:
            self._expect(name, operands, 2, len(set(dtypes)) == 1)
            return self._add([name, *operands], "i1")
        if name == "not":
            self._expect(name, operands, 1, dtypes == ["i1"])
            return self._add([name, *operands], "i1")
        if name in LOGIC:
            self._expect(name, operands, 2, len(set(dtypes)) == 1 and dtypes[0] not in FLOATS)
            return self._logic(name, *operands)
        if name in BINARY:
            allowed = INTS if name in ("floordiv",) else FLOATS if name == "pow" else (*INTS, *FLOATS)
            self._expect(name, operands, 2, len(set(dtypes)) == 1 and dtypes[0] in allowed)
            return self._add([name, *operands], dtypes[0])
        if name in UNARY:
            self._expect(name, operands, 1, dtypes[0] in ((*INTS, *FLOATS) if name in ("neg", "abs") else FLOATS))
            return self._unary(name, operands[0], dtypes[0])
        raise ValueError(f"no operation {name!r}")

    def _logic(self, name: str, a: int, b: int) -> int:
        if name == "xor" and self.nodes[b] == ["const", True, "i1"]:
            return self.op("not", a)
        return self._add([name, a, b], self.dtypes[a])

    def _unary(self, name: str, operand: int, dtype: str) -> int:
        if name == "neg" and dtype in INTS:
            return self.op("sub", self.const(0, dtype), operand)
        if name == "sigmoid":
            one = self.const(1.0, dtype)
            return self.op("div", one, self.op("add", one, self.op("exp", self.op("neg", operand))))
        return self._add([name, operand], dtype)

    def _expect(self, name: str, operands, count: int, right: bool) -> None:
        if len(operands) != count or not right:
            raise ValueError(f"{name!r} cannot take operands of dtypes {', '.join(self.dtypes[n] for n in operands)}")

    def _add(self, node: list, dtype: str) -> int:
        key = (*node, type(node[1]).__name__, repr(node[1]))  # tells 1, 1.0 and True, 0.0 and -0.0 apart
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
            self.dtypes.append(dtype)
        return self._numbers[key]

    def build(self, value: int) -> list[list]:
        """The canonical tree whose value is the node `value`."""
        order: dict[int, int] = {}
        stack = [(value, False)]
        while stack:
            node, operands_done = stack.pop()
            if node in order:
                continue
            if operands_done:
                order[node] = len(order)
            else:
                stack.append((node, True))
                stack += [(operand, False) for operand in reversed(operands_of(self.nodes[node]))]
        return [_renumber(self.nodes[node], order) for node in order]


def operands_of(node: list) -> list[int]:
    """The node numbers that a node reads."""
    op = node[0]
    if op in ("x", "index", "size", "const"):
        return []
    if op == "load":
        return node[2:]
    return [node[1]] if op == "cast" else node[1:]


def _renumber(node: list, order: dict[int, int]) -> list:
    op = node[0]
    if op in ("x", "index", "size", "const"):
        return list(node)
    if op == "load":
        return ["load", node[1], *[order[n] for n in node[2:]]]
    return ["cast", order[node[1]], node[2]] if op == "cast" else [op, *[order[n] for n in node[1:]]]


def replay(expr: list[list], builder: ExprBuilder) -> int:
    """Add a tree to a builder and return the number of its value. Raises `ValueError` where it is no tree."""
    numbers: list[int] = []
    for node in expr:
        op, rest = node[0], node[1:]
        operands = [numbers[n] if 0 <= n < len(numbers) else _no_such(n) for n in operands_of(node)]
        if op == "x":
            number = builder.x(rest[0])
        elif op == "index":
            number = builder.index(rest[0])
        elif op == "size":
            number = builder.size(rest[0])
        elif op == "const":
            number = builder.const(rest[0], rest[1])
        elif op == "load":
            number = builder.load(rest[0], *operands)
        elif op == "cast":
            number = builder.cast(operands[0], rest[1])
        else:
            number = builder.op(op, *operands)
        numbers.append(number)
    return numbers[-1]


def _no_such(number):
    raise ValueError(f"a node reads node {number}, which does not stand before it")


def canonical(expr: list[list], operands=(), tensors=None) -> list[list]:
    """The canonical form of a tree; same value for every input."""
    builder = ExprBuilder(operands, tensors)
    return builder.build(replay(expr, builder))


def dtypes_of(expr: list[list], operands=(), tensors=None) -> list[str]:
    """The dtype of each node of a canonical tree."""
    builder = ExprBuilder(operands, tensors)
    replay(expr, builder)
    if builder.nodes != expr:
        raise ValueError("the expression is not in canonical form")
    return builder.dtypes
