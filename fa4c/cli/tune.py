"""`fa4c tune`: which configurations of a variant are fastest on a GPU, and the target's data that say so."""

from __future__ import annotations

import argparse
import sys

from ..ir.diagnostics import Diagnostic, UsageError
from ..lowering import scratch
from .compile import DTYPES, head_dim, target_named
from .files import check_writable, display_name, make_folder, progress, read_text
from .sizes import sizes_of
from .targets import shape_text

EXAMPLES = """examples:
  fa4c tune examples/causal.mlir --head-dim 64                  on a GPU: compile, measure, print, write the target's data
  fa4c tune examples/causal.mlir --list                         the candidates and what the model predicts; nothing is compiled

on two machines:
  fa4c tune examples/causal.mlir examples/full.mlir --head-dim 64 --head-dim 128 --knobs l2 --prepare DIR     where the compiler is
  fa4c tune --measure DIR --out result.json                     where the GPU is: needs torch and cuda-bindings only
  fa4c tune --apply result.json                                 writes fa4c/targets/<target>_tuned.json, which attn-to-tile reads

Shapes default to 16k tokens in a batch at each of --lengths. docs/tune.md has the rest.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help=".mlir files of the attn level")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--list", action="store_true", help="show the candidates, compile and measure nothing")
    step.add_argument("--prepare", metavar="DIR", help="compile the candidates into DIR, measure nothing")
    step.add_argument("--measure", metavar="DIR", help="measure what was prepared in DIR")
    step.add_argument("--apply", metavar="RESULT", help="write the target's data from a result")
    parser.add_argument("--target", metavar="T", default="sm_90a", help="see `fa4c targets` (default: sm_90a)")
    parser.add_argument("--dtype", choices=DTYPES, help="re-type the files")
    parser.add_argument(
        "--head-dim", type=head_dim, action="append", default=[], metavar="D[,DV]", help="re-type the files; may be repeated"
    )
    parser.add_argument("--shapes", nargs="+", default=[], metavar="SHAPE", help="sizes to measure at: b=4,hq=16,m=4096 b=1,...")
    parser.add_argument(
        "--lengths",
        type=_numbers,
        default=[1024, 4096, 16384],
        metavar="N,...",
        help="instead of --shapes: 16k tokens at these lengths (default: 1024,4096,16384)",
    )
    parser.add_argument("--limit", type=_at_least(int, 0), default=3, metavar="N", help="new block shapes for each variant (default: 3)")
    parser.add_argument("--factor", type=_at_least(float, 1), default=1.25, metavar="X",
                        help="leave out what the model has this much slower (default: 1.25)")
    parser.add_argument(
        "--knobs", type=_names, default=[], metavar="NAME,...", help="changes of other passes to try, one at a time; --list shows them"
    )
    parser.add_argument(
        "--try", type=_names, default=[], dest="also", metavar="MxN[xBUFFERS],...", help="these block shapes too, where they fit"
    )
    parser.add_argument("--jobs", type=_at_least(int, 1), default=1, metavar="N", help="compilers at a time (default: 1)")
    parser.add_argument(
        "--budget", type=_at_least(float, 1), default=600, metavar="SECONDS",
        help="of GPU time; what is left then is reported (default: 600)"
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="the result of a measurement (default: tune-result.json), or of --apply")


# The model goes through a call block by block, for each block shape.
_LONGEST = 1 << 20


def _at_least(kind, least: int):
    """An argument's type: a number, not less than that."""

    def read(text: str):
        try:
            number = kind(text)
        except ValueError:
            number = least - 1
        if not least <= number < 1 << 31:
            raise argparse.ArgumentTypeError(f"'{text}' is no {'whole number' if kind is int else 'number'} from {least} on")
        return number

    return read


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > _LONGEST:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of lengths from 1 to {_LONGEST:,}; write for example 1024,4096")
    return found


def _names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def run(args: argparse.Namespace) -> None:
    if args.measure or args.apply:
        if args.files:
            raise UsageError(
                f"{args.files[0]}: --{'measure' if args.measure else 'apply'} takes no FILE",
                why="what was compiled is in its folder",
                fix="prepare a folder with this file first",
            )
        (_measure if args.measure else _apply)(args)
        return
    if not args.files:
        raise UsageError("a FILE is needed", fix="for example fa4c tune examples/causal.mlir")
    if args.list:
        _list(args)
    elif args.prepare:
        _prepare(args, args.prepare)
    else:
        _all(args)


def _list(args) -> None:
    from ..tune import candidates

    target = target_named(args.target)
    for variant in _variants(args):
        found = candidates.find(variant.text, variant.filename, target, _search(args), dtype=variant.dtype, head_dim=variant.head_dim)
        print(f"{found.title}, today:")
        for configuration in found.today:
            limit = f" up to {configuration.limit[0]} = {configuration.limit[1]}" if configuration.limit else ""
            print(f"    {configuration.label}{limit}    ({configuration.source})")
        print(f"    {'candidate':28} predicted clocks at n = {', '.join(str(at['n']) for at in found.sizes)}")
        for candidate in found.candidates:
            print(f"    {candidate.label:28} {'  '.join(f'{clocks:>10}' for clocks in candidate.predicted)}")
        for entry in found.dropped:
            print(f"    {entry['label']:28} left out: {entry['why']}")
    print("knobs: " + ", ".join(candidates.KNOBS))


def _prepare(args, folder: str) -> dict:
    from ..tune.prepare import prepare

    make_folder(folder)
    plan = prepare(folder, _variants(args), target_named(args.target), _search(args), jobs=args.jobs, say=progress)
    for problem in plan["problems"]:
        for entry in problem["dropped"]:
            print(f"left out: {problem['name']} {problem['head_dims']} {entry['label']}: {entry['why']}", file=sys.stderr)
    print(folder)
    return plan


def _measure(args) -> dict:
    from ..tune.measure import measure
    from ..tune.result import suggestions, table

    out = args.out or "tune-result.json"
    check_writable(out)
    result = measure(args.measure, out, budget=args.budget, say=progress)
    print(table(result))
    for line in suggestions(result):
        print(f"another pass: {line}")
    print(out)
    if not result["rows"]:
        raise Diagnostic(
            "nothing was measured",
            where=args.measure,
            why="; ".join(e["note"] for e in result["wrong"][:2]) or "the budget was used up",
            fix="give a larger --budget",
        )
    return result


def _apply(args) -> None:
    from ..tune.data import RESULT, read_json
    from ..tune.result import apply

    if args.out:
        check_writable(args.out)
    path, entries = apply(read_json(args.apply, RESULT), args.out)
    for entry in entries:
        what = ", ".join(map(shape_text, entry["configurations"]))
        print(f"{'; '.join(entry['variants'])}: {what}    ({entry['source'] if entry['changed'] else 'as today'})")
    print(path)


def _all(args) -> None:
    from ..tune.gpu import Bench

    Bench(target_named(args.target).name)  # before the minutes of compiling
    out = args.out or "tune-result.json"
    check_writable(out)
    with scratch.folder() as folder:
        _prepare(args, folder)
        args.measure, args.out = folder, out
        _measure(args)
    args.apply, args.out = out, None
    _apply(args)


def _variants(args) -> list:
    from ..tune.prepare import Variant

    return [Variant(read_text(path), display_name(path), args.dtype, dims) for path in args.files for dims in (args.head_dim or [None])]


def _search(args):
    from ..tune.candidates import Search

    return Search(_shapes(args), tuple(args.lengths), args.limit, args.factor, tuple(args.knobs), _also(args))


def _shapes(args) -> tuple[dict, ...]:
    shapes = tuple(sizes_of(text, flag="--shapes") for text in args.shapes)
    for shape in shapes:
        wrong = next((name for name, size in shape.items() if not 1 <= size <= _LONGEST), None)
        if wrong is not None:
            raise UsageError(f"--shapes: {wrong} = {shape[wrong]} cannot be measured", fix=f"take sizes from 1 to {_LONGEST:,}")
    return shapes


def _also(args) -> tuple:
    from ..passes._attn_to_tile_shape import Shape

    found = []
    for text in args.also:
        parts = text.split("x")
        if len(parts) not in (2, 3) or not all(part.isdigit() for part in parts):
            raise UsageError(f"--try {text}: not of the form MxN or MxNxBUFFERS", fix="for example --try 128x192,192x96x3")
        found.append(Shape(*map(int, parts)) if len(parts) == 3 else Shape(*map(int, parts), 2))
    return tuple(found)
