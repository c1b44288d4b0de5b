"""Prints a semantics tree as an attn function. Text in, so no MLIR is imported; `ir/semantics.py` reads the same tree back."""

import struct

from ..ir.expr import FLOATS, canonical, dtypes_of

_MLIR_DTYPES = {"fp16": "f16"}
_FLOAT_OPS = {
    "add": "addf",
    "sub": "subf",
    "mul": "mulf",
    "div": "divf",
    "rem": "remf",
    "max": "maximumf",
    "min": "minimumf",
    "neg": "negf",
}
_INT_OPS = {
    "add": "addi",
    "sub": "subi",
    "mul": "muli",
    "div": "divsi",
    "floordiv": "floordivsi",
    "rem": "remsi",
    "max": "maxsi",
    "min": "minsi",
    "and": "andi",
    "or": "ori",
    "xor": "xori",
}
_MATH = {
    "exp": "exp",
    "exp2": "exp2",
    "log": "log",
    "log2": "log2",
    "tanh": "tanh",
    "erf": "erf",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "floor": "floor",
    "pow": "powf",
}
_CMPF = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_CMPI = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_INFINITY = {"f32": 0x7F800000, "f64": 0x7FF0000000000000, "bf16": 0x7F80, "fp16": 0x7C00}
_NAN = {"f32": 0x7FC00000, "f64": 0x7FF8000000000000, "bf16": 0x7FC0, "fp16": 0x7E00}
_SIGN = {"f32": 1 << 31, "f64": 1 << 63, "bf16": 1 << 15, "fp16": 1 << 15}


def to_mlir(semantics: dict) -> str:
    """The attn-level MLIR text of a semantics tree. Raises `ValueError` where the tree is malformed."""
    return _Printer(semantics).text()


def _mlir_dtype(dtype: str) -> str:
    return _MLIR_DTYPES.get(dtype, dtype)


def _type(shape, dtype: str) -> str:
    return f"tensor<{''.join(('?' if size is None else str(size)) + 'x' for size in shape)}{_mlir_dtype(dtype)}>"


def _strings(names) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


class _Printer:
    def __init__(self, tree: dict):
        self.tree = tree
        self.tensors = {a["name"]: (a["dtype"], len(a["dims"])) for a in tree["args"]}
        self.values = {a["name"]: (tuple(a["dims"]), a["dtype"]) for a in tree["args"]}  # name -> (dims, dtype)
        self.sizes = {dim: size for a in tree["args"] for dim, size in zip(a["dims"], a["shape"], strict=True)}
        self.lines: list[str] = []

    def text(self) -> str:
        tree = self.tree
        for step in tree["body"]:
            self._step(step)
        arguments = ",\n".join(
            f"    {self._ssa(a['name'])}: {_type(a['shape'], a['dtype'])} {{{self._argument_attributes(a)}}}" for a in tree["args"]
        )
        results = ",\n        ".join(f"{_type(r['shape'], r['dtype'])} {{{self._tensor_attributes(r)}}}" for r in tree["results"])
        values = ", ".join(self._ssa(r["value"]) for r in tree["results"])
        types = ", ".join(self._value_type(r["value"]) for r in tree["results"])
        head = f"func.func @{tree['name']}(\n{arguments})\n    -> ({results})\n"
        head += f'    attributes {{attn.align = "{tree["align"]}", attn.layout = "{tree["layout"]}"}} {{\n'
        return head + "".join(f"  {line}\n" for line in self.lines) + f"  return {values} : {types}\n}}\n"

    def _tensor_attributes(self, t: dict) -> str:
        return f'attn.name = "{t["name"]}", attn.axes = {_strings(t["axes"])}, attn.dims = {_strings(t["dims"])}'

    def _argument_attributes(self, a: dict) -> str:
        text = self._tensor_attributes(a)
        if a.get("fill") not in (None, "normal" if a["dtype"] in FLOATS else None):
            text += f', attn.fill = "{a["fill"]}"'
        if "cu_seqlens" in a:
            text += f', attn.cu_seqlens = "{a["cu_seqlens"]}"'
        return text

    def _ssa(self, name: str) -> str:
        return name if name.startswith("%") else f"%{name}"

    def _value_type(self, name: str) -> str:
        dims, dtype = self.values[name]
        return _type([self.sizes.get(dim) for dim in dims], dtype)

    def _step(self, step: dict) -> None:
        op, inputs = step["op"], step["in"]
        for name in inputs:
            if name not in self.values:
                raise ValueError(f"step {op!r} reads {name!r}, which nothing before it produces")
        rule = _STEPS.get(op)
        if rule is None:
            raise ValueError(f"no operation {op!r}; there are {', '.join(_STEPS)}")
        outputs, attributes, region = rule(self, step)
        self.values.update(zip(step["out"], outputs, strict=True))
        results = ", ".join(self._ssa(name) for name in step["out"])
        types = ", ".join(self._value_type(name) for name in inputs)
        result_types = ", ".join(self._value_type(name) for name in step["out"])
        call = f'{results} = "attn.{op}"({", ".join(self._ssa(name) for name in inputs)})'
        signature = f"({types}) -> " + (result_types if len(step["out"]) == 1 else f"({result_types})")
        if region is None:
            self.lines.append(f"{call}{' {' + attributes + '}' if attributes else ''} : {signature}")
        else:
            self.lines += [f"{call} ({{", *region, f"}}) : {signature}"]

    # -- one rule a step: (dims and dtype of the results, attributes, lines of the region)

    def gemm(self, step: dict):
        (a, _), (b, _) = (self.values[name] for name in step["in"])
        rows = a[1] if step.get("transpose_a") else a[0]
        columns = b[0] if step.get("transpose_b") else b[1]
        flags = ", ".join(f"{name} = true" for name in ("transpose_a", "transpose_b") if step.get(name))
        return [((rows, columns), step["dtype"])], flags, None

    def map(self, step: dict):
        operands = [self.values[name] for name in step["in"]]
        dims = max((dims for dims, _ in operands), key=len)
        region = self._region(step["expr"], [dtype for _, dtype in operands], "bhij"[: 2 + len(dims)])
        return [(dims, step["dtype"])], "", region

    def mask(self, step: dict):
        return [self.values[step["in"][0]]], "", self._region(step["expr"], [], "bhij")

    def softmax(self, step: dict):
        dims, dtype = self.values[step["in"][0]]
        return [(dims, dtype), (dims[:1], dtype)], "", None

    def cast(self, step: dict):
        return [(self.values[step["in"][0]][0], step["dtype"])], "", None

    def reduce(self, step: dict):
        dims, dtype = self.values[step["in"][0]]
        dim = step.get("dim", len(dims) - 1)
        attributes = f'kind = "{step["kind"]}"' + (f", dim = {dim} : i64" if "dim" in step else "")
        return [(dims[:dim] + dims[dim + 1 :], dtype)], attributes, None

    def scatter(self, step: dict):
        operands = [self.values[name] for name in step["in"]]
        indices = "bhij"[: 2 + max(len(dims) for dims, _ in operands[1:])]
        region = self._region_of(step["exprs"], [dtype for _, dtype in operands[1:]], indices)
        return [(operands[0][0], step["dtype"])], "", region

    def _fresh(self, name: str) -> str:
        while name in self.tensors:  # a region may not redefine an argument's name
            name += "."
        return f"%{name}"

    def _region(self, expr: list, operands: list[str], indices: str) -> list[str]:
        return self._region_of([expr], operands, indices)

    def _region_of(self, exprs: list, operands: list[str], indices: str) -> list[str]:
        """The lines of a region that yields a value for each tree."""
        elements = [self._fresh("x" if len(operands) == 1 else f"x{k}") for k in range(len(operands))]
        arguments = [f"{name}: {_mlir_dtype(dtype)}" for name, dtype in zip(elements, operands, strict=True)]
        arguments += [f"{self._fresh(name)}: index" for name in indices]
        lines, yielded = [f"^bb0({', '.join(arguments)}):"], []
        for number, expr in enumerate(exprs):
            yielded.append(self._value_lines(expr, operands, elements, "e" if number == 0 else f"e{number}_", lines))
        names, kinds = (", ".join(part) for part in zip(*yielded, strict=True))
        return [*lines, f'  "attn.yield"({names}) : ({kinds}) -> ()']

    def _value_lines(self, expr: list, operands: list[str], elements: list[str], prefix: str, lines: list[str]) -> tuple[str, str]:
        """Adds the lines of one tree; the name and the type of its value."""
        expr = canonical(expr, operands, self.tensors)
        dtypes = dtypes_of(expr, operands, self.tensors)
        names: list[str] = []
        for number, node in enumerate(expr):
            if node[0] == "x":
                names.append(elements[node[1]])
            elif node[0] == "index":
                names.append(self._fresh(node[1]))
            else:
                names.append(self._fresh(f"{prefix}{number}"))
                lines.append(f"  {names[-1]} = {self._node(node, names, dtypes, dtypes[number])}")
        return names[-1], _mlir_dtype(dtypes[-1])

    def _node(self, node: list, names: list[str], dtypes: list[str], dtype: str) -> str:
        op, kind = node[0], _mlir_dtype(dtype)
        if op == "const":
            return f"arith.constant {_literal(node[1], dtype)}" + ("" if dtype == "i1" else f" : {kind}")
        if op == "size":
            return f'"attn.size"() {{dim = "{node[1]}"}} : () -> index'
        if op == "load":
            tensor = next(a for a in self.tree["args"] if a["name"] == node[1])
            types = ", ".join([_type(tensor["shape"], tensor["dtype"])] + ["index"] * len(node[2:]))
            return f'"attn.load"({", ".join([self._ssa(node[1])] + [names[n] for n in node[2:]])}) : ({types}) -> {kind}'
        if op == "cast":
            source = dtypes[node[1]]
            return f"arith.{_cast(source, dtype)} {names[node[1]]} : {_mlir_dtype(source)} to {kind}"
        if op == "select":
            return f"arith.select {names[node[1]]}, {names[node[2]]}, {names[node[3]]} : {kind}"
        operands = ", ".join(names[n] for n in node[1:])
        return self._arithmetic(op, operands, dtypes[node[1]])

    def _arithmetic(self, op: str, operands: str, source: str) -> str:
        kind, is_float = _mlir_dtype(source), source in FLOATS
        if op in _CMPF:
            return f"arith.cmp{'f' if is_float else 'i'} {(_CMPF if is_float else _CMPI)[op]}, {operands} : {kind}"
        if op == "abs":
            return f"math.abs{'f' if is_float else 'i'} {operands} : {kind}"
        if op in _MATH:
            return f"math.{_MATH[op]} {operands} : {kind}"
        return f"arith.{(_FLOAT_OPS if is_float else _INT_OPS)[op]} {operands} : {kind}"


_STEPS = {name: getattr(_Printer, name) for name in ("gemm", "map", "mask", "softmax", "cast", "reduce", "scatter")}


def _cast(source: str, target: str) -> str:
    """The `arith` operation between two dtypes; `expr.py` leaves no pair without one."""
    width = {"bf16": 16, "fp16": 16, "f32": 32, "f64": 64, "i1": 1, "i32": 32, "i64": 64}
    if source in FLOATS and target in FLOATS:
        if width[source] == width[target]:
            raise ValueError(f"no cast from {source} to {target}; go through f32")
        return "extf" if width[source] < width[target] else "truncf"
    if source in FLOATS:
        return "fptosi"
    if target in FLOATS:
        return "uitofp" if source == "i1" else "sitofp"
    if "index" in (source, target):
        return "index_castui" if source == "i1" else "index_cast"
    if width[source] < width[target]:
        return "extui" if source == "i1" else "extsi"
    return "trunci"


def _literal(value, dtype: str) -> str:
    if dtype == "i1":
        return "true" if value else "false"
    if dtype not in FLOATS:
        return str(value)
    value = float(value)
    if value != value:
        return hex(_NAN[dtype])
    if value in (float("inf"), float("-inf")):
        return hex(_INFINITY[dtype] | (_SIGN[dtype] if value < 0 else 0))
    return _decimal(value, dtype)


def _decimal(value: float, dtype: str) -> str:
    """The shortest decimal that reads back as the same number of its dtype; MLIR wants a point in it."""
    text = repr(value)
    if dtype == "f32":
        texts = (f"{value:.{digits}g}" for digits in range(6, 10))
        text = next((t for t in texts if struct.unpack("f", struct.pack("f", float(t)))[0] == value), text)
    mantissa, _, exponent = text.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + (f"e{exponent}" if exponent else "")
