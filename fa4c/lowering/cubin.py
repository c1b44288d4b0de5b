"""Reading a cubin (an ELF file): registers, stack, local memory and shared memory of each kernel.

Source: the attributes of `.nv.info.NAME` sections and the section header of `.text.NAME`, as cuobjdump shows them: EIATTR_FRAME_SIZE 0x11,
EIATTR_MIN_STACK_SIZE 0x12, EIATTR_REGCOUNT 0x2f in `.nv.info`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FRAME_SIZE, _REGCOUNT = 0x11, 0x2F
_FORMAT_BYTE_SIZED = 4  # entries of this format carry (size, payload); the others carry 2 bytes in place


@dataclass(frozen=True)
class KernelResources:
    """`registers` a thread at launch; `stack_bytes` and `local_bytes` a thread (0: nothing spills); `static_smem_bytes` a CTA."""

    registers: int
    stack_bytes: int
    local_bytes: int
    static_smem_bytes: int


def resources(cubin: bytes) -> dict[str, KernelResources]:
    """Kernel name -> resources. Raises ValueError if the bytes are no 64-bit ELF file."""
    sections = _sections(cubin)
    symbols = _symbol_names(cubin, sections)
    frames, registers = {}, {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, payload in _attributes(section.data(cubin)):
                if len(payload) >= 8:
                    symbol, value = struct.unpack_from("<II", payload)
                    if attribute == _FRAME_SIZE:
                        frames[symbols.get(symbol)] = value
                    elif attribute == _REGCOUNT:
                        registers[symbols.get(symbol)] = value
    found = {}
    for section in sections:
        if section.name.startswith(".text."):
            name = section.name.removeprefix(".text.")
            local = sum(s.size for s in sections if s.name == f".nv.local.{name}")
            shared = sum(s.size for s in sections if s.name == f".nv.shared.{name}")
            # the register count is also in the top byte of the text section's info word
            found[name] = KernelResources(registers.get(name, section.info >> 24), frames.get(name, 0), local, max(0, shared - 1024))
    return found


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int
    info: int
    kind: int

    def data(self, image: bytes) -> bytes:
        return image[self.offset : self.offset + self.size]


def _sections(image: bytes) -> list[_Section]:
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: no 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    raw = []
    for i in range(count):
        name, kind, _, _, start, size, link, info = struct.unpack_from("<IIQQQQII", image, offset + i * entry_size)
        raw.append((name, kind, start, size, link, info))
    names = image[raw[names_index][2] : raw[names_index][2] + raw[names_index][3]]
    return [_Section(_text(names, n), start, size, link, info, kind) for n, kind, start, size, link, info in raw]


def _symbol_names(image: bytes, sections: list[_Section]) -> dict[int, str]:
    table = next((s for s in sections if s.kind == 2), None)
    if table is None:
        return {}
    names = sections[table.link].data(image)
    data = table.data(image)
    return {i: _text(names, struct.unpack_from("<I", data, 24 * i)[0]) for i in range(len(data) // 24)}


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _attributes(data: bytes):
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _FORMAT_BYTE_SIZED:
            yield attribute, data[at : at + size]
            at += size
