"""The sizes of a problem on the command line: `--shape b=2,hq=8,hkv=2,m=1000,n=1000`."""

from __future__ import annotations

from ..ir.diagnostics import UsageError
from ..runtime.errors import InputError
from ..runtime.sizes import parse_sizes


def sizes_of(text: str, names=(), *, flag: str = "--shape") -> dict[str, int]:
    """As `parse_sizes`, with what is wrong as wrong usage."""
    try:
        return parse_sizes(text, names)
    except InputError as error:
        raise UsageError(f"{flag}: {error.what}", why=error.why, fix=error.fix) from None
