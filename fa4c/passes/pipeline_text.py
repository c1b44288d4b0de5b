"""Pipeline text, read and printed: `a,b{stages=3 kind="x y"},func.func(canonicalize,cse)`.

The grammar is upstream's. Upstream's own parser cannot be used, since it knows no passes written in Python. Option values are
kept as text here; `registry` gives them their types. An outermost `builtin.module(...)` is the module itself, so it may be
written or left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..ir.diagnostics import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*")
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[^\s{}\"']+")


@dataclass(frozen=True)
class Item:
    """One pass with its options, or, where `nested` is no None, an anchor operation with the passes that run on it."""

    name: str
    options: dict[str, str] = field(default_factory=dict)
    nested: tuple[Item, ...] | None = None

    def __str__(self) -> str:
        if self.nested is not None:
            return f"{self.name}({','.join(map(str, self.nested))})"
        if not self.options:
            return self.name
        return self.name + "{" + " ".join(f"{key}={_quoted(value)}" for key, value in self.options.items()) + "}"


def parse(text: str) -> list[Item]:
    """The items of a pipeline, an outermost `builtin.module(...)` taken off; raises UsageError."""
    reader = _Reader(text)
    try:
        items = reader.items() if reader.peek() else []
    except RecursionError:
        raise reader.error("too many anchors in each other") from None
    if reader.peek():
        raise reader.error("expected ',' or the end")
    return _without_module_anchor(items)


def format_pipeline(items: list[Item]) -> str:
    return ",".join(map(str, items))


def _without_module_anchor(items) -> list[Item]:
    flat = []
    for item in items:
        flat += item.nested if item.name == "builtin.module" and item.nested is not None else [item]
    return flat


def _quoted(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    return f"'{value}'" if '"' in value else f'"{value}"'


class _Reader:
    def __init__(self, text: str):
        self.text, self.at = text, 0

    def error(self, what: str) -> UsageError:
        rest = self.text[self.at:self.at + 20]
        got = f"'{rest}'" if rest else "the end of the text"
        return UsageError(f"pass pipeline, column {self.at + 1}: {what}, but found {got}",
                          why=f"the pipeline is: {self.text}", fix="write passes as name{option=value option=value}, with commas between")

    def peek(self) -> str:
        self.at = _SPACE.match(self.text, self.at).end()
        return self.text[self.at:self.at + 1]

    def take(self, pattern: re.Pattern, what: str) -> str:
        self.peek()
        found = pattern.match(self.text, self.at)
        if not found:
            raise self.error(f"expected {what}")
        self.at = found.end()
        return found[0]

    def skip(self, char: str) -> None:
        if self.peek() != char:
            raise self.error(f"expected '{char}'")
        self.at += 1

    def items(self) -> list[Item]:
        found = [self.item()]
        while self.peek() == ",":
            self.at += 1
            found.append(self.item())
        return found

    def item(self) -> Item:
        name = self.take(_NAME, "the name of a pass")
        if self.peek() == "{":
            return Item(name, self.options())
        if self.peek() == "(":
            self.at += 1
            nested = () if self.peek() == ")" else tuple(self.items())
            self.skip(")")
            return Item(name, nested=nested)
        return Item(name)

    def options(self) -> dict[str, str]:
        self.skip("{")
        found = {}
        while self.peek() != "}":
            key = self.take(_KEY, "an option (name=value)")
            if key in found:
                raise self.error(f"option '{key}' is given twice")
            found[key] = self.value() if self.peek() == "=" else "true"
        self.skip("}")
        return found

    def value(self) -> str:
        self.skip("=")
        quote = self.peek()
        if quote not in ("'", '"'):
            return self.take(_BARE, "a value")
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self.error(f"expected a closing {quote}")
        value, self.at = self.text[self.at + 1:end], end + 1
        return value
