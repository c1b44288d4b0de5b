"""Which part of a register tile a thread holds, as expressions of emitted code.

`QUADS` (PTX ISA, wgmma accumulator): element r of a thread lies in row `row0 + 8 * (r // 2 % 2)` and column `col0 + 8 * (r // 4) + r % 2`;
of a row vector or a rows x 4 tile it holds 2, rows `row0` and `row0 + 8`. `LANES` (tcgen05.ld 32x32b): a thread holds the whole row `row0`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.warp import values_held


@dataclass(frozen=True)
class Quads:
    """As an accumulator of wgmma, and of four warps' mma.m16n8k16: four threads share a row."""

    rows: int = 64  # of a warpgroup
    whole_rows: bool = False  # whether a thread holds all columns of a row
    neighbours: bool = False  # whether elements r and r + 1 of a row, r even, lie in registers r and r + 1 for all tiles

    def header(self, first_warp: int, warps: int) -> list[str]:
        """Where a thread of a role of these warps stands."""
        return ["row0 = wg * 64 + t // 32 * 16 + t % 32 // 4", "col0 = t % 4 * 2"]

    def elements(self, kind, warpgroups: int) -> int:
        """Values a thread holds."""
        return values_held(kind, warpgroups)

    def row_part(self, r: str, full_width: bool) -> str:
        """The element of a row vector that belongs to element r of a tile."""
        return f"{r} // 2 % 2" if full_width else r

    def column_part(self, r: str) -> str:
        """The element of a row of column values that belongs to element r of a tile."""
        return f"{r} // 4 * 2 + {r} % 2"

    def row(self, r: str, full_width: bool, row0: str) -> str:
        return f"{row0} + 8 * ({self.row_part(r, full_width)})"

    def column(self, r: str, full_width: bool, col0: str) -> str:
        return f"{col0} + 8 * ({r} // 4) + {r} % 2" if full_width else "t % 4"

    def column_group(self, r: str) -> str:
        """Number of the group of 8 columns."""
        return f"{r} // 4"


@dataclass(frozen=True)
class Lanes:
    """As tensor memory is read: a row a thread."""

    rows: int = 128
    whole_rows: bool = True
    neighbours: bool = True

    def header(self, first_warp: int, warps: int) -> list[str]:
        return [f"row0 = {self.first_row(first_warp, warps)}", "lanes = warp % 4 << 21  # this warp's quarter of tensor memory's lanes"]

    def first_row(self, first_warp: int, warps: int) -> str:
        """The thread's row, kept from what the compiler knows of other roles and of what is outside of a loop: it would form the addresses
        that follow from it once for all of them, and keep them, one a register, through loops that do not use them."""
        return f"hold({'t' if warps == 4 else f'tid - {32 * first_warp}'})"

    def elements(self, kind, warpgroups: int) -> int:
        return 1 if kind.rank == 1 else kind.shape[1]

    def row_part(self, r: str, full_width: bool) -> str:
        return "0"

    def column_part(self, r: str) -> str:
        return r

    def row(self, r: str, full_width: bool, row0: str) -> str:
        return row0

    def column(self, r: str, full_width: bool, col0: str) -> str:
        return r

    def column_group(self, r: str) -> str:
        return f"{r} // 8"


LAYOUTS = {"quads": Quads(), "lanes": Lanes()}
