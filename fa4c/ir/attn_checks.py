"""What the verifiers of `attn` operations share: tensors, shapes, and the scalar code that regions may hold."""

import difflib

from .diagnostics import op_error
from .mlir import ir

# Scalar operations that a region may hold; `scalar.py` evaluates each, `semantics.py` knows a name for each.
REGION_OPS = frozenset(
    [
        f"arith.{name}"
        for name in (
            "constant addf subf mulf divf remf negf maximumf minimumf addi subi muli divsi floordivsi remsi maxsi minsi andi ori xori "
            "cmpi cmpf select "
            "extf truncf sitofp uitofp fptosi index_cast index_castui trunci extsi extui"
        ).split()
    ]
    + [f"math.{name}" for name in "exp exp2 log log2 tanh erf sqrt rsqrt absf absi powf floor".split()]
    + ["scf.if", "scf.yield", "attn.load", "attn.size", "attn.yield"]
)


def reduced_dim(op) -> int:
    """The dimension that an `attn.reduce` sums over."""
    return op.x.type.rank - 1 if op.dim is None else op.dim.value


def map_space(op, inputs) -> tuple[int | None, ...] | None:
    """The sizes that a map goes over, those of its inputs of highest rank; None after a complaint."""
    kinds = [value.type for value in inputs]
    if not kinds:
        op_error(op, "needs at least 1 operand, but has 0", why="the operands give the space that it maps over")
        return None
    for number, kind in enumerate(kinds):
        if not check_tensor(op, f"input {number}", kind):
            return None
    rank = max(kind.rank for kind in kinds)
    space = next(shape_of(kind) for kind in kinds if kind.rank == rank)
    for number, kind in enumerate(kinds):
        fits = shape_of(kind) == space if kind.rank == rank else set(shape_of(kind)) <= set(space)
        if not fits:
            op_error(
                op,
                f"maps over {shape_text(space)}, but input {number} is {kind}",
                why="all two-dimensional inputs have one shape; one-dimensional ones have one of its sizes",
            )
            return None
    return space


def region_arguments(inputs, space) -> list:
    elements = [(f"element of input {number}", value.type.element_type) for number, value in enumerate(inputs)]
    return elements + [(name, index_type()) for name in "bhij"[: 2 + len(space)]]


def check_mask(op) -> bool:
    if not (
        check_tensor(op, "scores", op.scores.type, ranks=(2,), dtypes=("f32",))
        and check_tensor(op, "out", op.out.type, ranks=(2,), dtypes=("f32",))
    ):
        return False
    return check_shape(op, "out", op.out.type, shape_of(op.scores.type), "a mask changes values, not shapes") and check_region(
        op, op.predicate, [(name, index_type()) for name in "bhij"], [ir.IntegerType.get_signless(1)]
    )


def index_type():
    return ir.IndexType.get()


def shape_of(kind) -> tuple[int | None, ...]:
    """Sizes of a ranked tensor, None where dynamic."""
    return tuple(None if kind.is_dynamic_dim(k) else kind.get_dim_size(k) for k in range(kind.rank))


def size_text(size: int | None) -> str:
    return "?" if size is None else str(size)


def shape_text(shape) -> str:
    return "x".join(size_text(s) for s in shape) or "a scalar"


def maybe_swapped(pair, swap: bool):
    return (pair[1], pair[0]) if swap else pair


def check_tensor(
    op, what: str, kind, *, ranks: tuple[int, ...] = (0, 1, 2), dtypes: tuple[str, ...] = ("f32", "f64", "bf16", "f16")
) -> bool:
    if not isinstance(kind, ir.RankedTensorType):
        return op_error(op, f"needs a ranked tensor as {what}, but it is {kind}", fix=f"for example tensor<?x128x{dtypes[0]}>")
    if kind.encoding is not None:
        return op_error(
            op, f"has {what} with an encoding, {kind}", why="where a tensor lives is said at the tile level", fix="drop the encoding"
        )
    if kind.rank not in ranks:
        return op_error(
            op,
            f"has {what} of rank {kind.rank}, {kind}",
            why=f"it takes rank {' or '.join(map(str, ranks))}: the dimensions of one (batch, head)",
            fix="batch and heads are named in attn.axes, not in the type",
        )
    if str(kind.element_type) not in dtypes:
        return op_error(op, f"has {what} of dtype {kind.element_type}", why=f"it takes {', '.join(dtypes)}", fix='insert "attn.cast"')
    return True


def check_shape(op, what: str, kind, shape, why: str) -> bool:
    return shape_of(kind) == tuple(shape) or op_error(
        op,
        f"has {what} of shape {shape_text(shape_of(kind))}, but it must be {shape_text(shape)}",
        why=why,
        fix=f"give it the type tensor<{''.join(size_text(s) + 'x' for s in shape)}{kind.element_type}>",
    )


def check_choice(op, name: str, choices: tuple[str, ...]) -> bool:
    value = op.attributes[name].value
    quoted = ", ".join(f'"{choice}"' for choice in choices)
    return value in choices or op_error(op, f'has {name} = "{value}"', why=f"it is one of {quoted}", fix=f'write {name} = "{choices[0]}"')


def check_region(op, region, arguments, results) -> bool:
    """One block with these (name, type) arguments, scalar operations only, a yield of these types at its end."""
    block = region.blocks[0]
    given = [argument.type for argument in block.arguments]
    if given != [kind for _, kind in arguments]:
        wanted = ", ".join(f"{name}: {kind}" for name, kind in arguments)
        return op_error(
            op,
            f"has a region with arguments ({', '.join(map(str, given))})",
            why=f"it takes ({wanted})",
            fix="give the block these arguments in this order",
        )
    operations = list(block.operations)
    if not operations or operations[-1].operation.name != "attn.yield":
        return op_error(op, 'has a region that does not end in "attn.yield"', fix='end it with "attn.yield"(%value)')
    yielded = [value.type for value in operations[-1].operation.operands]
    if yielded != list(results):
        return op_error(
            op, f"has a region that yields ({', '.join(map(str, yielded))})", why=f"it must yield ({', '.join(map(str, results))})"
        )
    return _check_region_ops(op, block)


def _check_region_ops(op, block) -> bool:
    for inner in block.operations:
        name = inner.operation.name
        if name not in REGION_OPS:
            return op_error(
                inner,
                f"cannot stand in a region of '{op.operation.name}'",
                why=_held(name),
                fix=_hint(name),
            )
        if name in _DIVISIONS and _is_zero(inner.operation.operands[1]):
            return op_error(inner, "divides by 0", why="the result would be any number", fix="divide by another constant")
        stray = stray_attribute(inner)
        if stray is not None:
            return op_error(inner, f"has no attribute '{stray[0]}'", fix=stray[1])
        for region in inner.operation.regions:
            for nested in region.blocks:
                if not _check_region_ops(op, nested):
                    return False
    return True


_DIVISIONS = ("arith.divsi", "arith.floordivsi", "arith.remsi")


def _is_zero(value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name == "arith.constant" and owner.attributes["value"].value == 0


def _held(name: str) -> str:
    """What may stand in a region in place of an operation of that name."""
    dialect, dot, _ = name.partition(".")
    others = sorted(known for known in REGION_OPS if known.startswith(dialect + dot))
    return "regions hold " + (", ".join(others) or "scalar arith and math operations, scf.if, attn.load and attn.size")


# What arith and math operations may carry; MLIR itself lets any other name pass.
_UPSTREAM_ATTRIBUTES = ("value", "predicate", "fastmath", "overflowFlags", "nneg", "roundingmode")


def stray_attribute(op) -> tuple[str, str] | None:
    """The first attribute that an arith, math or scf operation does not declare (a misspelled `fastmath`), and how to put it right."""
    if op.operation.name.startswith(("arith.", "math.", "scf.")):
        for name in op.operation.attributes:
            if name not in _UPSTREAM_ATTRIBUTES:
                near = difflib.get_close_matches(name, _UPSTREAM_ATTRIBUTES, n=1)
                return name, f"did you mean '{near[0]}'?" if near else "remove it"
    return None


def _hint(name: str) -> str:
    return {
        "arith.maxnumf": "use arith.maximumf",
        "arith.minnumf": "use arith.minimumf",
        "arith.maxui": "use arith.maxsi",
        "arith.minui": "use arith.minsi",
        "arith.divui": "use arith.divsi",
        "arith.remui": "use arith.remsi",
    }.get(name, "write it with those")
