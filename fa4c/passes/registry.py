"""How passes are named, found, given their options and run.

A pass is one function in the file that its name says (`attn-to-tile` is in `attn_to_tile.py`), with its options as keyword-only
arguments:

    @register_pass("tile-pipeline")
    def tile_pipeline(module: ir.Module, *, stages: int = 2, order: str = "") -> None:

It changes the module in place, and raises `Diagnostic` (or emits an error) where it cannot do its work. A level's name starts
the file's name (`attn_`, `tile_`, `warp_`); other files of this package are helpers. Pass files are imported only when a
pipeline names them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.diagnostics import Collector, Diagnostic, Diagnostics, UsageError, from_mlir_error, nearest
from .pipeline_text import Item, parse

LEVELS = ("attn", "tile", "warp")

# A rewrite pattern of the bindings that returns a true value "did not match".
NO_MATCH = True

# Upstream has no list of its passes in Python; these are offered as the nearest name, all others still work.
_UPSTREAM_KNOWN = ("canonicalize", "cse", "inline", "loop-invariant-code-motion", "remove-dead-values", "sccp", "strip-debuginfo",
                   "symbol-dce")

_passes: dict[str, Pass] = {}


class PassBug(Exception):
    """A pass of ours failed in a way that no input may cause; the exception that it raised is the cause."""


@dataclass(frozen=True)
class Option:
    """`kind` is the annotation: int, float, bool, str, list[int], a Literal of strings, or one of these `| None`."""

    name: str
    kind: Any
    default: Any

    def convert(self, text: str, pass_name: str) -> Any:
        try:
            return _convert(self.kind, text)
        except ValueError as error:
            raise UsageError(f"pass '{pass_name}': option {self.name}={text} must be {error}",
                             fix=f"its default is {self.name}={format_value(self.default)}") from None


@dataclass(frozen=True)
class Pass:
    name: str
    function: Callable
    options: dict[str, Option]
    description: str  # the text at the head of its file
    counts_on: tuple[str, ...] = ()  # passes without which what it makes may not get through

    @property
    def summary(self) -> str:
        return self.description.split("\n")[0]

    def arguments(self, given: dict[str, str]) -> dict[str, Any]:
        """Typed keyword arguments out of an item's texts."""
        typed = {}
        for key, text in given.items():
            option = self.option(key)
            typed[option.name.replace("-", "_")] = option.convert(text, self.name)
        return typed

    def option(self, name: str) -> Option:
        found = self.options.get(name.replace("_", "-"))
        if found is None:
            raise UsageError(f"pass '{self.name}' has no option '{name}'",
                             why=f"its options are: {', '.join(self.options) or 'none'}", fix=nearest(name, self.options))
        return found


def register_pass(name: str, *, counts_on: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
    """Make a function `(module, *, option=default, ...)` a pass. Options are read from its keyword-only arguments."""

    def register(function: Callable) -> Callable:
        if name in _passes:
            raise ValueError(f"pass '{name}' is registered twice: {_passes[name].function} and {function}")
        home = (sys.modules[function.__module__].__doc__ or "").strip() or (function.__doc__ or "").strip()
        _passes[name] = Pass(name, function, _options(name, function), home, counts_on)
        return function

    return register


def all_passes() -> dict[str, Pass]:
    """Every pass, by name: imports all pass files."""
    for name in own_names():
        find_pass(name)
    return dict(sorted(_passes.items()))


def own_names() -> list[str]:
    """Names of our passes, read off the files without importing them."""
    files = [info.name for info in pkgutil.iter_modules(importlib.import_module(__package__).__path__)]
    return sorted({*_passes, *(file.replace("_", "-") for file in files if file.split("_")[0] in LEVELS)})


def find_pass(name: str) -> Pass | None:
    """The pass of that name, its file imported; None where there is no such file (it may be upstream's)."""
    if name not in _passes and name.split("-")[0] in LEVELS:
        home = f"{__package__}.{name.replace('-', '_')}"
        try:
            importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home:
                raise
    return _passes.get(name)


def run_pipeline(module, text: str, *, disabled: Iterable[str] = (), overrides: Sequence[tuple[str, str, str]] = (),
                 print_after: Callable[[str, Any], object] | Any = None, timing: list | None = None, verified: bool = False) -> None:
    """Run the passes of `text` on an `ir.Module`, verifying after each, and before the first unless it is known to be `verified`.

    `disabled` names passes to leave out wherever they occur; `overrides`, (pass, option, value), replace what the text says at every
    occurrence; `print_after` is a stream, or a function called with (item text, module) after each pass; `timing` gets a pair (item text,
    seconds) for each. All names and values are checked before the first pass runs.
    """
    steps = _plan(text, disabled, overrides)
    if not verified:
        verify(module)  # so that a module that never was right is not blamed on the first pass
    for item, step in steps:
        start = time.perf_counter()
        step(module)
        if timing is not None:
            timing.append((str(item), time.perf_counter() - start))
        if print_after is not None:
            show(print_after, item, module)


def resolve(text: str, *, disabled: Iterable[str] = (), overrides: Sequence[tuple[str, str, str]] = ()) -> list[Item]:
    """The items that `run_pipeline` would run, with overrides applied; raises UsageError for what it would refuse."""
    return [item for item, _ in _plan(text, disabled, overrides)]


def _plan(text: str, disabled, overrides) -> list[tuple[Item, Callable]]:
    """What to run, item by item, all names and values checked."""
    for name in disabled:
        _check_known(name)
    changes: dict[str, dict[str, str]] = {}
    for name, option, value in overrides:
        _check_known(name)
        known = find_pass(name)
        if known is not None:
            known.option(option).convert(value, name)
            option = known.option(option).name
        changes.setdefault(name, {})[option] = value
    return [_step(item) for item in _apply(parse(text), set(disabled), changes)]


def check_overrides_occur(overrides: Iterable[tuple[str, str, str]], items: Iterable[Item], disabled: Iterable[str] = ()) -> None:
    """Refuse a change to a pass that does not run: it would be lost without a word. For the command line."""
    names = pass_names(items)
    for name, option, value in overrides:
        change = f"--set {name}.{option}={value}"
        if name in disabled:
            raise UsageError(f"{change}: pass '{name}' is left out", why=f"--disable-pass {name} is given, too", fix="drop one of the two")
        if name not in names:
            raise UsageError(f"{change}: pass '{name}' does not run here",
                             why=f"the pipeline has: {', '.join(sorted(names)) or 'no pass'}", fix=nearest(name, names))


def naming_what_counts_on(disabled: Iterable[str], names: Iterable[str], error: Diagnostic) -> Diagnostic:
    """An error of passes `names`, with what else to disable where some of them count on a pass that is."""
    pairs = [(name, other) for name in sorted(names) if find_pass(name) for other in find_pass(name).counts_on if other in disabled]
    fixes = [f"note: fix: disable {name}, too, which counts on {other}" for name, other in pairs if name not in disabled]
    return Diagnostics("\n".join([error.text(), *fixes])) if fixes else error


def verify(module) -> None:
    """MLIR's verifier, then what it cannot see: the signatures of attn functions. Raises `ir.MLIRError` or `Diagnostic`."""
    from ..ir.attn_signature import verify_module

    module.operation.verify()
    with module.context:
        verify_module(module)


def pass_names(items: Iterable[Item]) -> set[str]:
    """Names of all passes in these items, nested ones too."""
    names = set()
    for item in items:
        names |= pass_names(item.nested) if item.nested is not None else {item.name}
    return names


def format_value(value: Any) -> str:
    """An option's value as it is written in pipeline text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def _apply(items, disabled, changes) -> list[Item]:
    kept = []
    for item in items:
        if item.nested is not None:
            nested = _apply(item.nested, disabled, changes)
            if nested:
                kept.append(Item(item.name, nested=tuple(nested)))
        elif item.name not in disabled:
            options = {key.replace("_", "-") if find_pass(item.name) else key: value for key, value in item.options.items()}
            kept.append(Item(item.name, {**options, **changes.get(item.name, {})}))
    return kept


def _step(item: Item) -> tuple[Item, Callable]:
    """The function that runs one item on a module. Fails here, before anything ran, where the item makes no sense."""
    if item.nested is None:
        ours = find_pass(item.name)
        if ours is not None:
            return item, _our_step(ours, ours.arguments(item.options))
    else:
        for name in sorted(pass_names([item])):
            if find_pass(name) is not None:
                raise UsageError(f"pass '{name}' cannot run inside {item.name}(...)", why="it works on a whole module",
                                 fix=f"write it outside the parentheses of {item.name}")
    return item, _upstream_step(item)


def _our_step(ours: Pass, arguments: dict[str, Any]) -> Callable:
    from ..ir.mlir import ir

    def run(module) -> None:
        with Collector(module.context, _say) as reports, module.context:
            try:
                ours.function(module, **arguments)
            except Diagnostic as error:
                if not reports.errors:
                    raise
                raise Diagnostics("\n".join([*reports.errors, error.text()])) from error
            except ir.MLIRError as error:
                raise PassBug(f"pass '{ours.name}' built an operation that does not verify:\n{from_mlir_error(error)}") from error
        if reports.errors:
            raise Diagnostics("\n".join(reports.errors))
        try:
            verify(module)
        except ir.MLIRError as error:
            raise PassBug(f"the module does not verify after pass '{ours.name}':\n{from_mlir_error(error)}") from error
        except Diagnostic as error:
            raise PassBug(f"the module does not verify after pass '{ours.name}':\n{error.text()}") from error

    return run


def _upstream_step(item: Item) -> Callable:
    from ..ir.mlir import PassManager

    for name in sorted(pass_names([item])):
        _check_known(name)
    refusal = _upstream_refusal(str(item))
    if refusal:
        raise UsageError(f"upstream MLIR refuses '{item}' in a pipeline", why=" ".join(refusal.split()),
                         fix="see that pass's options in the MLIR documentation")

    def run(module) -> None:
        with module.context, Collector(module.context, _say) as reports:
            PassManager.parse(f"builtin.module({item})").run(module.operation)
        if reports.errors:
            raise Diagnostics("\n".join(reports.errors))

    return run


def _check_known(name: str) -> None:
    """Ours or upstream's, else a usage error with the nearest name."""
    if find_pass(name) is None and "does not refer to a registered pass" in _upstream_refusal(name):
        raise UsageError(f"there is no pass '{name}'", why="it is neither one of `fa4c passes` nor one of upstream MLIR",
                         fix=nearest(name, [*own_names(), *_UPSTREAM_KNOWN]))


@functools.cache
def _upstream_refusal(text: str) -> str:
    """What MLIR says of a pipeline on a module that it cannot parse, empty if it can. A context for that is not free, so asked once."""
    from ..ir.context import CONTEXT_LOCK
    from ..ir.mlir import PassManager, ir

    with CONTEXT_LOCK, ir.Context():
        try:
            PassManager.parse(f"builtin.module({text})")
        except ValueError as error:
            return str(error)
    return ""


def show(print_after, item: Item | str, module) -> None:
    """Call or write to `print_after`, a function or a stream."""
    if callable(print_after):
        print_after(str(item), module)
    else:
        print_after.write(f"// -----// IR after {item} //----- //\n{module}\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _options(name: str, function: Callable) -> dict[str, Option]:
    options = {}
    for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]:
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            raise TypeError(f"pass '{name}': argument '{parameter.name}' must be keyword-only and have a default")
        kind = type(parameter.default) if parameter.annotation is parameter.empty else parameter.annotation
        if parameter.annotation is parameter.empty and kind in (list, tuple):
            kind = list[int]
        public = parameter.name.replace("_", "-")
        options[public] = Option(public, kind, parameter.default)
        if not _kind_known(kind):
            raise TypeError(f"pass '{name}': option '{parameter.name}' has a kind that pipeline text cannot carry: {kind}")
    return options


def _union_parts(kind) -> list:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [part for part in typing.get_args(kind) if part is not type(None)]
    return [kind]


def _kind_known(kind) -> bool:
    parts = _union_parts(kind)
    return len(parts) == 1 and (parts[0] in (int, float, bool, str) or typing.get_origin(parts[0]) in (list, tuple, typing.Literal))


def _convert(kind, text: str):
    """`text` as `kind`; ValueError says what it should have been."""
    (part,) = _union_parts(kind)
    if part is not kind and text == "none":
        return None
    origin = typing.get_origin(part)
    if origin is typing.Literal:
        if text not in typing.get_args(part):
            raise ValueError("one of " + ", ".join(typing.get_args(part)))
        return text
    if origin in (list, tuple):
        return [_number(int, entry, "a list of integers, for example 64,128") for entry in text.split(",") if text]
    if part is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError("true or false")
        return text.lower() in ("true", "1")
    return text if part is str else _number(part, text, "an integer" if part is int else "a number")


def _number(kind, text: str, what: str):
    try:
        number = kind(text)
    except ValueError:
        raise ValueError(what) from None
    if not abs(number) < 2**31:  # of a kernel's sizes; nor is it NaN
        raise ValueError(f"{what} (below 2^31)")
    return number
