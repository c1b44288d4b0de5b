"""Damages MLIR files in every small way: each operand, attribute, region, result and block argument left out, each attribute misspelled.

`failures(path)` is empty if every damaged file ends in a diagnostic, or is still valid where what was left out is optional. Any other
exception is a failure. Tests of any level can use it:

    @pytest.mark.parametrize("path", sorted(glob.glob("examples/*.mlir")))
    def test_damage_ends_in_a_diagnostic(path):
        assert fuzz.failures(path) == []
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fa4c.ir.attn_signature import verify_module
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ext, ir

# Function and argument attributes with a default, and upstream ones: leaving them out is no mistake.
OPTIONAL_ATTRIBUTES = frozenset(
    ("attn.fill", "attn.align", "attn.layout", "attn.cu_seqlens", "fastmath", "overflowFlags", "sym_visibility", "arg_attrs", "res_attrs")
)


@dataclass(frozen=True)
class Damage:
    what: str
    text: str  # the damaged module, in generic form
    may_be_valid: bool


def failures(path: str, verify: Callable = verify_module) -> list[str]:
    """What was not reported, or not as a diagnostic, one text each."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    context = new_context()
    found = []
    for damage in damages(text, path, context):
        outcome = _outcome(damage.text, context, verify)
        if outcome not in ("diagnostic", "valid") or (outcome == "valid" and not damage.may_be_valid):
            found.append(f"{damage.what}: {outcome}")
    return found


def _outcome(text: str, context, verify) -> str:
    try:
        module = ir.Module.parse(text, context)
        with context:
            verify(module)
    except (ir.MLIRError, Diagnostic):
        return "diagnostic"
    except Exception as error:  # what the fuzz test looks for
        return f"{type(error).__name__}: {error}"
    return "valid"


def damages(text: str, path: str, context=None) -> Iterator[Damage]:
    """Every way of damaging one operation of a file, one at a time."""
    context = context or new_context()
    module = parse_module(text, path, context)
    for number, whole in enumerate(_operations(module)):
        for change in _changes(whole):
            copy = module.operation.clone()
            op = _operations(copy)[number]
            what = f"{op.name} ({op.location}): {change.what}"
            with context, ir.Location.unknown():
                change.apply(op)
            yield Damage(what, copy.operation.get_asm(print_generic_op_form=True, assume_verified=True), change.may_be_valid)


def misspelled(name: str) -> str:
    """The last two letters swapped, or one doubled where that changes nothing: attn.axes -> attn.axse."""
    swapped = name[:-2] + name[-1] + name[-2]
    return swapped if swapped != name else name + name[-1]


@dataclass(frozen=True)
class _Change:
    what: str
    apply: Callable
    may_be_valid: bool = False


def _operations(module) -> list:
    """All operations below a module, in order."""
    found = []

    def walk(operation):
        for region in operation.regions:
            for block in region.blocks:
                for op in block.operations:
                    found.append(op.operation)
                    walk(op.operation)

    walk(module.operation)
    return found


def _changes(op) -> list[_Change]:
    optional = OPTIONAL_ATTRIBUTES | set(getattr(type(op.opview), "_optional", ()))
    fields = getattr(type(op.opview), "_fields", [])
    for name, kind in (("operandSegmentSizes", ext.OperandDef), ("resultSegmentSizes", ext.ResultDef)):
        if sum(isinstance(field, kind) and field.variadicity != ext.Variadicity.single for field in fields) == 1:
            optional = optional | {name}  # the count says it
    changes = [_Change(f"without operand {n}", lambda op, n=n: _rebuild(op, without_operand=n)) for n in range(len(op.operands))]
    changes += [_Change(f"without result {n}", lambda op, n=n: _rebuild(op, without_result=n)) for n in range(len(op.results))]
    changes += [_Change(f"without region {n}", lambda op, n=n: _rebuild(op, without_region=n)) for n in range(len(op.regions))]
    for name in op.attributes:
        changes.append(_Change(f"without attribute {name}", lambda op, name=name: _rename(op, name, None), name in optional))
        changes.append(_Change(f"attribute {name} misspelled", lambda op, name=name: _rename(op, name, misspelled(name))))
    for which in ("arg_attrs", "res_attrs"):
        changes += _dictionary_changes(op, which, optional) if which in op.attributes else []
    for r, region in enumerate(op.regions):
        for b, block in enumerate(region.blocks):
            changes.append(_Change(f"region {r} with an empty block {b}", lambda op, r=r, b=b: _empty(op.regions[r].blocks[b])))
            changes += [
                _Change(f"region {r} without block argument {n}", lambda op, r=r, b=b, n=n: _drop_argument(op.regions[r].blocks[b], n))
                for n in range(len(block.arguments))
            ]
    return changes


def _dictionary_changes(op, which: str, optional) -> list[_Change]:
    changes = []
    for number, entries in enumerate(ir.ArrayAttr(op.attributes[which])):
        for name in [entry.name for entry in ir.DictAttr(entries)]:
            for new in (None, misspelled(name)):

                def apply(op, number=number, name=name, new=new):
                    dictionaries = list(ir.ArrayAttr(op.attributes[which]))
                    kept = {e.name if e.name != name else new: e.attr for e in ir.DictAttr(dictionaries[number])}
                    dictionaries[number] = ir.DictAttr.get({k: v for k, v in kept.items() if k is not None})
                    op.attributes[which] = ir.ArrayAttr.get(dictionaries)

                text = f"{which}[{number}] {'without' if new is None else 'misspelled'} {name}"
                changes.append(_Change(text, apply, new is None and name in optional))
    return changes


def _rename(op, name: str, new: str | None) -> None:
    attributes = {new if key == name else key: op.attributes[key] for key in op.attributes}
    _rebuild(op, attributes={key: value for key, value in attributes.items() if key is not None})


def _rebuild(op, *, without_operand=None, without_result=None, without_region=None, attributes=None) -> None:
    """Replace an operation by one that lacks something. Uses of a result that is gone get a value of its type from nowhere."""
    copy = ir.Operation.create(
        op.name,
        results=[value.type for n, value in enumerate(op.results) if n != without_result],
        operands=[value for n, value in enumerate(op.operands) if n != without_operand],
        attributes={name: op.attributes[name] for name in op.attributes} if attributes is None else attributes,
        regions=len(op.regions) - (without_region is not None),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    kept = [region for n, region in enumerate(op.regions) if n != without_region]
    for old, new in zip(kept, copy.regions, strict=True):
        for block in list(old.blocks):
            block.append_to(new)
    new_results = iter(copy.results)
    for n, value in enumerate(op.results):
        value.replace_all_uses_with(next(new_results) if n != without_result else _from_nowhere(value.type, ir.InsertionPoint(copy)))
    op.erase()


def _from_nowhere(kind, ip):
    return ir.Operation.create("builtin.unrealized_conversion_cast", results=[kind], operands=[], ip=ip).results[0]


def _drop_argument(block, number: int) -> None:
    argument = block.arguments[number]
    if any(True for _ in argument.uses):
        argument.replace_all_uses_with(_from_nowhere(argument.type, ir.InsertionPoint.at_block_begin(block)))
    block.erase_argument(number)


def _empty(block) -> None:
    for op in reversed(list(block.operations)):
        op.operation.erase()
