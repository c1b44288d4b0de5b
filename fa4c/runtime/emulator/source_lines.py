"""From a PTX line to the line of the CuTe-DSL source that made it, and to the IR op: for kernels that fa4c emitted itself.

An artifact's PTX has no `.loc`. The same source compiled with line information gives the same instructions with them, so the n-th
instruction of one is the n-th of the other. The emitted source names the op of each phase in a comment, `# warp.map  causal.mlir:12:8`.
"""

import re

_OP = re.compile(r"#\s*(\w+\.\w+)\s+(\S+:\d+:\d+)\s*$")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')


def map_lines(ptx, ptx_with_locs, source_name):
    """{line of `ptx`: line of the source}, or None if the two hold different instructions."""
    plain, located = _statements(ptx), _statements(ptx_with_locs)
    if [text for text, *_ in plain] != [text for text, *_ in located]:
        return None
    number = next((n for n, path in _FILE.findall(ptx_with_locs) if path.rsplit("/", 1)[-1] == source_name), None)
    return {line: loc[1] for (_, line, _), (_, _, loc) in zip(plain, located) if loc and loc[0] == number}


def _statements(ptx):
    """(text, line, its .loc) of each line that is no debug directive and no comment.

    Inside inline assembly the compiler counts lines of the assembly text on from the call's: the call's own is taken. Column 0 means that
    the compiler has merged instructions and lost their place: then the one before stands.
    """
    out, loc, inline = [], None, False
    for k, line in enumerate(ptx.split("\n"), 1):
        text, _, comment = line.partition("//")
        text, comment = " ".join(text.split()), comment.strip()
        inline = (inline or comment == "begin inline asm") and comment != "end inline asm"
        found = _LOC.match(text)
        if text.startswith(".section"):  # debug information ends the module
            break
        if found:
            loc = (found[1], int(found[2])) if int(found[3]) and not inline else loc
        elif text and not text.startswith((".file", ".target", "$L__tmp")):
            out.append((text, k, loc))
    return out


def op_of(source, line):
    """(op, where) of the phase that a source line belongs to: the nearest comment above it in the same or an enclosing block."""
    lines = source.split("\n")
    indent = None
    for text in reversed(lines[: max(line, 0)]):
        if not text.strip():
            continue
        own = len(text) - len(text.lstrip())
        if indent is not None and own > indent:
            continue  # another block
        indent = own
        found = _OP.search(text)
        if found:
            return found[1], found[2]
    return None


def describe(source, source_name, line):
    """`causal.cute.py:329: warpgroup.wait_group(0)  (warp.wgmma, causal.mlir:10:8)`."""
    lines = source.split("\n")
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    op = op_of(source, line)
    return f"{source_name}:{line}: {text if len(text) <= 100 else text[:97] + '...'}" + (f"  ({op[0]}, {op[1]})" if op else "")
