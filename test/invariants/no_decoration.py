"""The table of invariant 6, "no decoration".

For an example, at the tile level and at the warp level before and after barriers are in, each operation is deleted, each pair of
neighbours that do not depend on each other is swapped, and each attribute is changed within its domain, one at a time. Every such edit
must change the next level's text, the CuTe-DSL source or the manifest made with it, or must be refused with a located diagnostic. What
changes nothing is decoration, and must be named in EXCEPTIONS with a reason.

    python test/invariants/no_decoration.py                 a summary, and all edits that change nothing
    python test/invariants/no_decoration.py --all           every row
    python test/invariants/no_decoration.py --every 20      each 20th row only
"""

import argparse
import collections
import functools
import itertools
import json
import multiprocessing
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from fa4c import targets  # noqa: E402
from fa4c.ir.context import new_context, parse_module, print_module  # noqa: E402
from fa4c.ir.diagnostics import Diagnostic, from_mlir_error  # noqa: E402
from fa4c.ir.mlir import ir  # noqa: E402
from fa4c.lowering import cute_source, manifest  # noqa: E402
from fa4c.lowering.build import Binary  # noqa: E402
from fa4c.lowering.compile import compile_text  # noqa: E402
from fa4c.lowering.cubin import KernelResources  # noqa: E402
from fa4c.passes.registry import run_pipeline  # noqa: E402

EXAMPLES = ("causal", "softcap")

# level -> (how to get there from the tile level, the rest of the way)
LEVELS = {
    "tile": ("", "warp-specialize,cse"),
    "warp": ("warp-specialize,cse", "warp-ping-pong,warp-insert-barriers,warp-check"),
    "warp with barriers": ("warp-specialize,cse,warp-ping-pong,warp-insert-barriers", "warp-check"),
}
SEEN = ("refused", "warp text", "CuTe source", "manifest")  # outcomes that show an edit; others: "same", "no place", "crash"


@dataclass(frozen=True)
class Edit:
    """One change of one operation of a module. `apply` works on a clone; what it needs is found by number."""

    number: int  # of the operation, in a walk of the module
    kind: str  # "delete", "swap", "attribute"
    what: str  # the operation, the two operations, or operation and attribute, by name
    detail: str
    apply: Callable
    note: str = ""  # a fact that an exception may rest on


@dataclass(frozen=True)
class Row:
    example: str
    level: str
    kind: str
    what: str
    detail: str
    note: str
    where: str
    outcome: str
    message: str

    def __str__(self) -> str:
        text = f"{self.example:8}{self.level:20}{self.kind:10}{self.what:42}{self.detail:34}{self.where:22}{self.outcome}"
        return f"{text}: {self.message}" if self.message else text


# ------------------------------------------------------------------------------------------------------------------ exceptions


@dataclass(frozen=True)
class Exempt:
    """Edits that may change nothing."""

    name: str
    reason: str
    matches: Callable[[Row], bool]


def _swap_of(*notes: str) -> Callable[[Row], bool]:
    return lambda row: row.kind == "swap" and row.note in notes


# What may change nothing: places that have no meaning, and permissions. `_why_apart` finds the facts they rest on.
EXCEPTIONS = [
    Exempt("constants", "a constant is written where it is used: its own place says nothing", _swap_of("a constant")),
    Exempt("parameters", "sizes and descriptors are parameters of the kernel, there from the start", _swap_of("a parameter")),
    Exempt(
        "host",
        "scalars of the host function become expressions of the manifest, which have no order; nor have host and kernel",
        _swap_of("host"),
    ),
    Exempt("order", "both carry an order, which says when they run; their place in the text does not", _swap_of("both ordered")),
    Exempt("roles", "copies that a warp of its own issues and a computation run in different roles, each at its own pace",
           _swap_of("two roles")),
    Exempt("scalars", "scalars are computed where they are needed, so their place among tiles says nothing", _swap_of("a scalar")),
    Exempt("fragments", "registers are declared at the head of their role", _swap_of("a declaration")),
    Exempt("dead scalars", "nothing uses it; cse removes it on the way down", lambda row: row.note == "dead scalar"),
    Exempt(
        "permissions",
        "fastmath and overflowFlags permit code to be less exact, and the emitted code does not take the permission",
        lambda row: row.kind == "attribute" and row.what.split(" ")[1] in ("fastmath", "overflowFlags"),
    ),
]


def exemption(row: Row) -> Exempt | None:
    return next((e for e in EXCEPTIONS if e.matches(row)), None)


def is_decoration(row: Row) -> bool:
    return row.outcome not in (*SEEN, "no place") and exemption(row) is None


# ----------------------------------------------------------------------------------------------------------------------- edits


def walk(operation) -> Iterator:
    """All operations below one, in order."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from walk(op.operation)


def edits(module) -> Iterator[Edit]:
    for number, op in enumerate(walk(module.operation)):
        dead = "dead scalar" if _is_dead(op) else ""
        yield Edit(number, "delete", op.name, "", _delete, dead)
        neighbour = _next(op)
        if neighbour is not None and not _depends(neighbour, op):
            yield Edit(number, "swap", f"{op.name} / {neighbour.name}", "", lambda op: _next(op).move_before(op), _why_apart(op, neighbour))
        for name in op.attributes:
            for text, value in _alternatives(op, name):
                yield Edit(number, "attribute", f"{op.name} {name}", text, functools.partial(_set, name=name, value=str(value)), dead)
        for name, spec in getattr(type(op.opview), "_optional", {}).items():
            if name not in op.attributes:
                value = _not_the_default(name, spec)
                yield Edit(number, "attribute", f"{op.name} {name}", f"absent -> {value}", functools.partial(_set, name=name, value=value))


def _next(op):
    """The operation behind one, None at a block's end and before a terminator."""
    following = list(op.block.operations)
    at = next(n for n, other in enumerate(following) if other.operation == op) + 1
    return None if at >= len(following) or following[at].operation.name in ("scf.yield", "tile.yield") else following[at].operation


def _copied_apart(op) -> str:
    """The name of a copy that a role of its own issues: a load, and a store from shared memory where the target has stores apart."""
    root = op
    while root.name != "builtin.module":
        root = root.parent.operation
    stored = op.name == "tile.store" and "#tile.smem" in str(op.operands[0].type) and targets.of(root.opview).stores_apart
    return op.name if stored or op.name == "tile.load" else ""


def _why_apart(a, b) -> str:
    """A reason for which the order of two neighbours may mean nothing, "" if it must."""
    pair = {a.name, b.name}
    copies, scheduled = [_copied_apart(op) for op in (a, b)], ["order" in op.attributes for op in (a, b)]
    if "arith.constant" in pair:
        return "a constant"
    if "tile.host" in pair or a.parent.name == "tile.host":
        return "host"
    if pair & {"tile.dim", "warp.tensor_map"}:
        return "a parameter"
    if "warp.fragment" in pair:
        return "a declaration"
    if _in_tile_program(a) and any(map(_is_scalar, (a, b))):
        return "a scalar"
    if _in_tile_program(a) and copies[0] != copies[1]:
        return "two roles"
    return "both ordered" if all(scheduled) else ""


def _in_tile_program(op) -> bool:
    op = op.parent.operation
    while op.name not in ("tile.kernel", "tile.map", "tile.map_both", "builtin.module"):
        op = op.parent.operation
    return op.name == "tile.kernel"


def _is_dead(op) -> bool:
    """A scalar that nothing uses, or only other dead ones."""
    return _is_scalar(op) and all(_is_dead(use.owner.operation) for result in op.results for use in result.uses)


def _is_scalar(op) -> bool:
    return len(op.results) > 0 and not any(isinstance(v.type, ir.RankedTensorType) for v in op.results)


def _depends(later, earlier) -> bool:
    mine = set(earlier.results)
    return any(value in mine for op in (later, *walk(later)) for value in op.operands)


def _delete(op) -> None:
    for result in op.results:
        if any(True for _ in result.uses):
            other = _other_value(op, result.type)
            if other is None:
                raise NoPlace(f"its result is used, and no other {result.type} is there to take its place")
            result.replace_all_uses_with(other)
    op.erase()


class NoPlace(Exception):
    """An edit that cannot be made."""


def _other_value(op, kind):
    """A value of a type that may stand for a result: an operand of the operation, else the nearest one defined before it."""
    if (own := next((v for v in op.operands if v.type == kind), None)) is not None:
        return own
    here = op
    while here.parent is not None and here.name != "builtin.module":
        before = list(itertools.takewhile(lambda other, here=here: other.operation != here, here.block.operations))
        for other in reversed(before):
            if op.name == "arith.constant" == other.operation.name and other.operation.attributes["value"] == op.attributes["value"]:
                continue
            if (found := next((v for v in other.operation.results if v.type == kind), None)) is not None:
                return found
        if (found := next((v for v in here.block.arguments if v.type == kind), None)) is not None:
            return found
        here = here.parent.operation
    return None


def _set(op, name: str, value: str) -> None:
    op.attributes[name] = ir.Attribute.parse(value)


# Attributes of text with a known domain; others get another text.
_WORDS = {
    ("warp.reduce", "kind"): ("max", "sum"),
    ("tile.reduce", "kind"): ("max", "sum"),
    ("warp.elect", "scope"): ("warp", "warpgroup"),
    ("warp.barrier", "scope"): ("warpgroup", "role"),
    ("tile.device", "prop"): ("num_sms", "l2_bytes"),
    ("tile.load", "l2"): ("evict_first", "evict_last"),
    ("warp.tma_load", "l2"): ("evict_first", "evict_last"),
}
_FLOAT_PREDICATES = {"oeq": 1, "ogt": 2, "oge": 3, "olt": 4, "ole": 5, "one": 6}


def _alternatives(op, name: str) -> Iterator[tuple[str, object]]:
    """(text, attribute) of other values in the attribute's domain."""
    attribute = op.attributes[name]
    if name in ("operandSegmentSizes", "resultSegmentSizes"):
        return  # says which operand is which; it has no domain of its own
    for new in _other_values(op, name, attribute):
        if str(new) == str(attribute):
            continue  # a list of one, turned round
        yield f"{_short(attribute)} -> {_short(new)}", new


def _other_values(op, name, attribute) -> Iterator:
    if name == "order":
        yield from _other_orders(op, attribute)
    elif name == "predicate":
        numbers = range(6) if op.name == "arith.cmpi" else _FLOAT_PREDICATES.values()
        yield next(ir.IntegerAttr.get(attribute.type, n) for n in numbers if n != attribute.value)
    elif isinstance(attribute, ir.BoolAttr):
        yield ir.BoolAttr.get(not attribute.value)
    elif isinstance(attribute, ir.IntegerAttr):
        for n in dict.fromkeys((attribute.value + 1, attribute.value * 2, attribute.value // 2, max(0, attribute.value - 1))):
            if n != attribute.value:
                yield ir.IntegerAttr.get(attribute.type, n)
    elif isinstance(attribute, ir.FloatAttr):
        yield ir.FloatAttr.get(attribute.type, 0.5 if attribute.value != 0.5 else 0.25)
    elif isinstance(attribute, ir.StringAttr):
        yield from _other_texts(op, name, attribute)
    elif isinstance(attribute, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr)):
        values = list(attribute)
        for n, value in enumerate(values):
            yield type(attribute).get([*values[:n], value * 2 if value > 1 else value + 1, *values[n + 1 :]])
        if len(set(values)) > 1:
            yield type(attribute).get(values[::-1])
    elif isinstance(attribute, ir.FlatSymbolRefAttr):
        yield ir.FlatSymbolRefAttr.get(attribute.value + "_other")
    elif isinstance(attribute, ir.ArrayAttr) and name == "tensors":
        yield from _other_tensors(attribute)
    elif str(attribute).startswith("#arith.fastmath"):
        yield "#arith.fastmath<fast>"
    elif str(attribute).startswith("#arith.overflow"):
        yield "#arith.overflow<nsw>"
    else:
        raise AssertionError(f"no other value is known for {op.name} {name} = {attribute}")


def _other_orders(op, attribute) -> Iterator:
    """Orders are ranks within a role (loads are one): first of all, and last of all, unless it is that already."""
    is_load = op.name == "tile.load"
    mates = [
        other.attributes["order"].value
        for other in (o.operation for o in op.block.operations)
        if "order" in other.attributes and (other.name == "tile.load") == is_load
    ]
    for new, end in ((-1, min(mates)), (1000, max(mates))):
        if attribute.value != end:
            yield ir.IntegerAttr.get(attribute.type, new)


def _other_texts(op, name, attribute) -> Iterator:
    text = attribute.value
    words = _WORDS.get((op.name, name))
    if words is not None:
        yield from (ir.StringAttr.get(word) for word in words if word != text)
    elif name == "semantics":
        yield ir.StringAttr.get(json.dumps({**json.loads(text), "name": "other"}))
    else:
        yield ir.StringAttr.get(text + "_other")


def _other_tensors(attribute) -> Iterator:
    for n, entry in enumerate(attribute):
        for key in [e.name for e in entry]:
            new = {e.name: e.attr for e in entry}
            value = new[key]
            if isinstance(value, ir.ArrayAttr):
                new[key] = ir.ArrayAttr.get(list(value)[::-1])
            elif isinstance(value, ir.BoolAttr):
                new[key] = ir.BoolAttr.get(not value.value)
            elif isinstance(value, ir.IntegerAttr):
                new[key] = ir.IntegerAttr.get(value.type, 2 * value.value)
            elif key == "role":
                new[key] = ir.StringAttr.get("output" if value.value == "input" else "input")
            else:
                new[key] = ir.StringAttr.get(value.value + "_other")
            yield ir.ArrayAttr.get([*list(attribute)[:n], ir.DictAttr.get(new), *list(attribute)[n + 1 :]])


def _not_the_default(name: str, spec) -> str:
    if spec.default in ("true", "false"):
        return "true" if spec.default == "false" else "false"
    if spec.kind is ir.StringAttr:
        return '"{}"'
    return {
        "stage": "1 : i64",
        "order": "0 : i64",
        "after": "array<i64: 0, 1>",
        "buffers": "2 : i64",
        "word": "1008 : i64",
        "reader": "1 : i64",
        "rows": "32 : i64",
        "fills": "2 : i64",
        "groups": "2 : i64",
        "group": "0 : i64",
        "cluster": "2 : i64",
        "ctas": "2 : i64",
        "staged": "32 : i64",
        "first": "8 : i64",
        "slot": "1 : i64",
        "fold": "64 : i64",
        "turns": "1 : i64",
    }[name]


def _short(attribute) -> str:
    text = re.sub(r" : (i64|index|f32)$", "", str(attribute)).removeprefix("array<i64: ").removesuffix(">")
    return text if len(text) <= 24 else text[:10] + "..." + text[-10:]


# -------------------------------------------------------------------------------------------------------------------- outcomes


class Table:
    """The edits of one example, or of a `text` of that name, at one level, and what becomes of each."""

    def __init__(self, example: str, level: str, target: str = "sm_90a", text: str | None = None):
        self.example, self.level, self.target = example, level, target
        self.context = new_context()
        path = f"examples/{example}.mlir"
        first, self.rest = LEVELS[level]
        with self.context, ir.Location.unknown():
            source = (ROOT / path).read_text() if text is None else text
            module = parse_module(compile_text(source, path, emit="tile", target=target), path, self.context)
            if first:
                run_pipeline(module, first)
            self.text = print_module(module)
            self.module = self._parse(self.text)
            self.edits = list(edits(self.module))
            self.base = self._below(self._parse(self.text))

    def _parse(self, text):
        return ir.Module.parse(text, self.context)

    def rows(self, every: int = 1, first: int = 0) -> Iterator[Row]:
        for edit in self.edits[first::every]:
            yield self.row(edit)

    def row(self, edit: Edit) -> Row:
        with self.context, ir.Location.unknown():
            copy = self.module.operation.clone()
            op = next(itertools.islice(walk(copy), edit.number, None))
            where = _place(op.location)
            outcome, message = self._outcome(edit, op, copy)
        return Row(self.example, self.level, edit.kind, edit.what, edit.detail, edit.note, where, outcome, message)

    def _outcome(self, edit, op, copy) -> tuple[str, str]:
        try:
            edit.apply(op)
            module = self._parse(copy.get_asm(print_generic_op_form=True, assume_verified=True, enable_debug_info=True))
            below = self._below(module)
        except NoPlace as error:
            return "no place", str(error)
        except Diagnostic as error:
            return _refusal(error.text())
        except ir.MLIRError as error:
            return _refusal(from_mlir_error(error))
        except Exception as error:
            return "crash", f"{type(error).__name__}: {error}"
        return next(((name, "") for name in below if below[name] != self.base[name]), ("same", ""))

    def _below(self, module) -> dict[str, str]:
        """What the rest of the way makes of a module: the next level's text, or the source and the manifest."""
        run_pipeline(module, self.rest)
        if self.level == "tile":
            return {"warp text": print_module(module, locations=False)}
        with mock.patch.object(manifest, "resources", lambda cubin: {"kernel_0": KernelResources(0, 0, 0, 0)}):
            sources = cute_source.emit(module)
            made = manifest.make(module, {name: Binary(".version 8.8", b"", "") for name in sources}, target=self.target, direction="fwd")
        return {"CuTe source": "".join(sources.values()), "manifest": json.dumps(made)}


def _refusal(text: str) -> tuple[str, str]:
    first = text.split("\n")[0]
    placed = re.match(r"^(\S+:\d+:\d+): error: (.*)", first)
    return ("refused", placed[2]) if placed else ("refused without a place", first)


def _place(location) -> str:
    found = re.search(r'([^"/]+)":(\d+):(\d+)', str(location))
    return f"{found[1]}:{found[2]}:{found[3]}" if found else "-"


# ------------------------------------------------------------------------------------------------------------------------ main


def tables(every: int = 1, jobs: int = 1, examples=EXAMPLES, levels=tuple(LEVELS)) -> Iterator[Row]:
    work = [(example, level, every * jobs, first * every) for example in examples for level in levels for first in range(jobs)]
    if jobs == 1:
        for item in work:
            yield from _rows(item)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for rows in pool.imap(_rows, work):
            yield from rows


def _rows(item) -> list[Row]:
    example, level, every, first = item
    return list(Table(example, level).rows(every, first))


def summary(rows: list[Row]) -> Iterator[str]:
    """Counts of outcomes by kind of edit, then every edit that shows nowhere, with the exception that covers it."""
    groups = collections.defaultdict(collections.Counter)
    for row in rows:
        groups[row.level, row.kind, row.what if row.kind != "swap" else "neighbours"][row.outcome] += 1
    for (level, kind, what), outcomes in sorted(groups.items()):
        yield f"{level:20}{kind:10}{what:42}" + ", ".join(f"{outcome} {n}" for outcome, n in sorted(outcomes.items()))
    yield ""
    for e in EXCEPTIONS:
        covered = [row for row in rows if row.outcome not in SEEN and exemption(row) is e]
        yield f"exception: {e.name}: {len(covered)} edits. {e.reason}"
        yield from (
            f"    {line} ({n})" for line, n in sorted(collections.Counter(f"{r.level}: {r.kind} {r.what}" for r in covered).items())
        )
    left = [row for row in rows if is_decoration(row)]
    yield f"{len(rows)} edits, {sum(row.outcome in SEEN for row in rows)} show, {len(left)} are decoration"
    yield from map(str, left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="print every row")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth edit")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--example", action="append", help="causal, softcap, or another file of examples/")
    parser.add_argument("--level", action="append", choices=list(LEVELS))
    args = parser.parse_args()
    rows = list(tables(args.every, args.jobs, args.example or EXAMPLES, args.level or tuple(LEVELS)))
    for line in map(str, rows) if args.all else []:
        print(line)
    for line in summary(rows):
        print(line)
    return any(map(is_decoration, rows))


if __name__ == "__main__":
    sys.exit(main())
