"""The base class of all fa4c operations: what the bindings' `ext.Operation` leaves out.

`ext` (torch-mlir) has no optional attributes, lets undeclared attributes pass, and runs Python verifiers before the generic
checks, so that a missing operand would reach a verifier as an IndexError. `make_operation_base` gives a dialect a base class that

- reads `name: Optional[ir.XAttr] = optional("default")` declarations: absent in the text means the default;
- refuses undeclared attributes, naming the nearest declared one;
- checks operand, result and region counts, segment sizes, block arguments and required attributes before it calls
  `verify_op(self) -> bool`, the hook that dialects override.
"""

import difflib
import re
from typing import Any

from . import variadic
from .diagnostics import op_error
from .mlir import ext, ir

# Functions, kernels and tensors name Python functions, PTX entries and files, of at most 255 bytes with what is put behind a name.
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
NAME_RULE = {"why": "kernels, files and entries of the PTX are named after it", "fix": "letters, digits and _, at most 128, no digit first"}

# Attributes that MLIR itself puts on operations.
_INFRASTRUCTURE = ("operandSegmentSizes", "resultSegmentSizes")


class OptionalAttr:
    """Declares an attribute that may be absent; `default` is MLIR attribute text, or None for "absent means None"."""

    def __init__(self, default: str | None, kind: type):
        self.default, self.kind = default, kind


def optional(kind: type, default: str | None = None) -> Any:
    """`masked: Any = optional(ir.BoolAttr, "false")` in the body of an operation class."""
    return OptionalAttr(default, kind)


def _optional_property(name: str, spec: OptionalAttr) -> property:
    def get(self):
        if name in self.attributes:
            return self.attributes[name]
        return ir.Attribute.parse(spec.default, context=self.operation.context) if spec.default is not None else None

    return property(get)


def _take_kinds_irdl_cannot_name(fields, inherited: dict) -> dict:
    """name -> kind of the required attributes. Kinds such as DenseI64ArrayAttr have no IRDL name; only our own check sees those."""
    attributes = ext.partition_fields(fields)[1]
    kinds = {a.name: inherited.get(a.name, a.constraint) for a in attributes}
    for a in attributes:
        if isinstance(a.constraint, type) and issubclass(a.constraint, ir.Attribute) and not hasattr(a.constraint, "attr_name"):
            a.constraint = Any
    return kinds


def _grouped_property(fields, number: int, which: str) -> property:
    group = next(k for k, f in enumerate(fields) if f.variadicity != ext.Variadicity.single)
    is_optional = fields[group].variadicity == ext.Variadicity.optional

    def get(self):
        values = list(getattr(self.operation, which))
        behind = len(fields) - group - 1
        if number < group:
            return values[number]
        if number > group:
            return values[number - len(fields)]
        inside = values[group : len(values) - behind]
        return inside if not is_optional else (inside[0] if inside else None)

    return property(get)


def make_operation_base(dialect: type) -> type:
    """The base class for the operations of `dialect`, an `ext.Dialect` subclass."""

    class Operation(dialect.Operation):
        _optional = {}  # name -> OptionalAttr; unannotated, since `ext` reads annotations as fields
        _attribute_kinds = {}  # name -> kind of the required attributes
        # Attributes every operation of the dialect may carry; a dialect extends it (tile: stage, order).
        _shared_optional = {}

        def __init_subclass__(cls, **kwargs):
            own = {k: v for k, v in vars(cls).items() if isinstance(v, OptionalAttr)}
            for name in own:
                delattr(cls, name)
                cls.__annotations__.pop(name, None)
            if "__annotations__" not in cls.__dict__:
                cls.__annotations__ = {}
            merged = {**cls._shared_optional, **cls._optional, **own}  # the parent's, too
            super().__init_subclass__(**kwargs)
            cls._attribute_kinds = _take_kinds_irdl_cannot_name(cls._fields, cls._attribute_kinds)
            cls._optional = merged
            # Verifiers run for every operation after every pass: what they need of the declaration is read once.
            operands, attributes, results, cls._regions = ext.partition_fields(cls._fields)
            cls._groups = (variadic.Group("operand", operands), variadic.Group("result", results))
            cls._expanded = tuple(group for group in cls._groups if group.expanded)
            cls._declared = {a.name: cls._attribute_kinds.get(a.name, a.constraint) for a in attributes}
            cls._required = tuple(cls._declared)
            cls._declared.update({name: spec.kind for name, spec in merged.items()})
            for name, spec in merged.items():
                setattr(cls, name, _optional_property(name, spec))
            if kwargs.get("name"):
                inferred = [group.segments for group in cls._groups if group.inferred]
                for group in cls._groups:
                    if group.inferred:
                        for number, field in enumerate(group.fields):
                            setattr(cls, field.name, _grouped_property(group.fields, number, group.what + "s"))
                cls.__init__ = _init_with_optional(cls.__init__, merged, inferred)

        def verify_invariants(self) -> bool:
            with self.operation.context:  # MLIR calls verifiers with no current context
                variadic.collapse(self)  # a verification that failed half way leaves expanded sizes
                if not (_generic_checks(self) and self.verify_op()):
                    return False
                variadic.expand(self)
                return True

        def verify_region_invariants(self) -> bool:
            with self.operation.context:
                variadic.collapse(self)
            return True

        @classmethod
        def _emit_operation(cls) -> None:
            variadic.emit_operation(cls)

        def verify_op(self) -> bool:
            """What the dialect demands beyond counts and attribute kinds; counts are already right."""
            return True

    return Operation


def _init_with_optional(init, optional_attrs, inferred_segments):
    def __init__(self, *args, **kwargs):
        given = {k: kwargs.pop(k) for k in list(kwargs) if k in optional_attrs}
        # `ext` takes a false attribute for an absent one; as a plain Attribute, BoolAttr(false) and an empty array are true
        falsy = (ir.BoolAttr, ir.DenseI64ArrayAttr)
        init(self, *args, **{k: ir.Attribute(v) if isinstance(v, falsy) else v for k, v in kwargs.items()})
        for name, value in given.items():
            if value is not None:
                self.attributes[name] = value
        for name in inferred_segments:
            del self.attributes[name]

    return __init__


def _generic_checks(op) -> bool:
    operation = op.operation
    operands, results = op._groups
    if not (_check_count(op, operands, len(operation.operands)) and _check_count(op, results, len(operation.results))):
        return False
    if len(operation.regions) != len(op._regions):
        return op_error(op, f"needs {_plural(len(op._regions), 'region')}, but has {len(operation.regions)}")
    for field, region in zip(op._regions, operation.regions, strict=True):
        if len(region.blocks) != 1:
            return op_error(op, f"needs one block in region '{field.name}', but it has {len(region.blocks)}")
    return _check_attributes(op)


def _check_count(op, group: variadic.Group, count: int) -> bool:
    if group.expanded and count > variadic.MAX_GROUP:
        return op_error(op, f"has {count} {group.what}s", why=f"a group holds at most {variadic.MAX_GROUP}", fix="use several operations")
    if count < group.needed or (count > group.needed and not group.more):
        bound = "at least " if group.more else ""
        return op_error(
            op,
            f"needs {bound}{_plural(group.needed, group.what)}, but has {count}",
            why=f"its {group.what}s are: {group.names()}",
            fix=f"give it the {group.what}s in that order",
        )
    if not group.more:
        return True
    if group.segments not in op.attributes:
        return group.inferred or op_error(
            op,
            f"lacks the attribute '{group.segments}'",
            why=f"its {group.what}s are grouped: {group.names()}",
            fix=f"add {group.segments} = array<i32: ...>, one number for each group",
        )
    segments = op.attributes[group.segments]
    sizes = list(segments) if isinstance(segments, ir.DenseI32ArrayAttr) else []
    bad = (
        len(sizes) != len(group.fields)
        or sum(sizes) != count
        or any(
            (f.variadicity == ext.Variadicity.single and n != 1) or (f.variadicity == ext.Variadicity.optional and n not in (0, 1)) or n < 0
            for f, n in zip(group.fields, sizes, strict=False)
        )
    )
    if bad:
        return op_error(op, f"has {group.segments} = {sizes}, which does not fit {_plural(count, group.what)}",
                        why=f"the groups are: {group.names()}")
    return True


def _check_attributes(op) -> bool:
    declared = op._declared
    present = {a.name if hasattr(a, "name") else a for a in op.attributes}
    for name in sorted(present.difference(declared, _INFRASTRUCTURE)):
        if "." in name:  # a discardable attribute of another dialect would be dropped silently further down
            near = difflib.get_close_matches(name.split(".")[-1], declared, n=1)
        else:
            near = difflib.get_close_matches(name, declared, n=1, cutoff=0.3)
        known = ", ".join(sorted(declared)) or "none"
        return op_error(
            op,
            f"has no attribute '{name}'",
            why=f"declared attributes are: {known}",
            fix=f"did you mean '{near[0]}'?" if near else "remove it",
        )
    for name in op._required:
        if name not in present:
            return op_error(op, f"lacks the attribute '{name}'", why="it is required", fix=f"add {name} = ...")
    for name in sorted(present.intersection(declared)):
        kind = declared[name]
        if isinstance(kind, type) and kind is not ir.Attribute and not _is_kind(op.attributes[name], kind):
            return op_error(
                op, f"has {name} = {op.attributes[name]}, which is no {_kind_name(kind)}", why=f"'{name}' is declared as {_kind_name(kind)}"
            )
    if "sym_name" in declared and not IDENTIFIER.fullmatch(op.attributes["sym_name"].value):
        return op_error(op, f"has sym_name = {op.attributes['sym_name']}, which is no identifier", **NAME_RULE)
    return True


def _is_kind(attribute, kind) -> bool:
    return kind.isinstance(attribute) if hasattr(kind, "isinstance") else isinstance(attribute, kind)


def _kind_name(kind) -> str:
    return kind.__name__.removesuffix("Attr").lower() + " attribute"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
