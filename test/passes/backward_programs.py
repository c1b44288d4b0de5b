"""Tile programs with what a fused backward needs: transposed operands, results that warpgroups share by columns, sums in global memory."""

BF16, F32 = "bf16", "f32"


def gmem(*shape, element=BF16) -> str:
    return f"tensor<{'x'.join('?' if n is None else str(n) for n in shape)}x{element}, #tile.gmem>"


def smem(rows, columns, element=BF16) -> str:
    return f"tensor<{rows}x{columns}x{element}, #tile.smem>"


def reg(rows, columns=None, element=F32) -> str:
    return f"tensor<{rows}x{f'{columns}x' if columns else ''}{element}, #tile.reg>"


def entry(name: str, role: str, *dims: str, more: str = "") -> str:
    return f'{{name = "{name}", role = "{role}", dims = [{", ".join(f"{chr(34)}{d}{chr(34)}" for d in dims)}]{more}}}'





def transposed_gemm(rows: int = 64, columns: int = 128, depth: int = 64, others: int = 128, *, width: int | None = None,
                    out_width: int | None = None, first_row: int = 0) -> str:
    """out[m, c] += sum over k of a[k, m] * b[k, c], a CTA a block of k; `others` rows of a tile beside it give the number of warpgroups.

  `b` and `out` have `width` columns; `seen`, one number a CTA, is the sum of the tile beside it: the count of rows of k that exist.
    """
    w = width or columns
    a, b, out, n = gmem(None, rows), gmem(None, w), gmem(None, out_width or w, element=F32), gmem(1, element=F32)
    seen = reg(others)
    arguments = f"%a: {a}, %b: {b}, %out: {out}, %n: {n}"
    return f"""
"tile.host"() ({{
^bb0({arguments}):
  %k = "tile.dim"(%a) {{axis = 0}} : ({a}) -> index
  %block = arith.constant {depth} : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %k, %block : index
  "tile.launch"(%gx, %c1, %c1, %a, %b, %out, %n) {{kernel = @gemm, operandSegmentSizes = array<i32: 3, 4, 0>}}
    : (index, index, index, {a}, {b}, {out}, {n}) -> ()
}}) {{sym_name = "transposed_gemm", tensors = [{entry("a", "input", "k", "m")}, {entry("b", "input", "k", "c")},
  {entry("out", "output", "m", "e")}, {entry("n", "output", "one")}]}} : () -> ()
"tile.kernel"() ({{
^bb0({arguments}):
  %x, %py, %pz = "tile.program_id"() : () -> (index, index, index)
  %block = arith.constant {depth} : index
  %c0 = arith.constant 0 : index
  %row0 = arith.constant {first_row} : index
  %k0 = arith.muli %x, %block : index
  %k = "tile.dim"(%a) {{axis = 0}} : ({a}) -> index
  %sa = "tile.load"(%a, %k0, %c0) {{dims = array<i64: 0, 1>}} : ({a}, index, index) -> {smem(depth, rows)}
  %sb = "tile.load"(%b, %k0, %c0) {{dims = array<i64: 0, 1>}} : ({b}, index, index) -> {smem(depth, columns)}
  %s = "tile.mma"(%sa, %sb) {{transpose_a = true, operandSegmentSizes = array<i32: 1, 1, 0>}}
    : ({smem(depth, rows)}, {smem(depth, columns)}) -> {reg(rows, columns)}
  "tile.global_add"(%s, %out, %row0, %c0) {{dims = array<i64: 0, 1>}} : ({reg(rows, columns)}, {out}, index, index) -> ()
  %ones = "tile.map"() ({{
  ^bb0(%r: index, %c: index):
    %row = arith.addi %k0, %r : index
    %in_tensor = arith.cmpi slt, %row, %k : index
    %in_block = arith.cmpi slt, %r, %block : index
    %inside = arith.andi %in_tensor, %in_block : i1
    %one = arith.constant 1.0 : f32
    %zero = arith.constant 0.0 : f32
    %y = arith.select %inside, %one, %zero : f32
    "tile.yield"(%y) : (f32) -> ()
  }}) {{operandSegmentSizes = array<i32: 0, 0>}} : () -> {seen}
  "tile.global_add"(%ones, %n, %c0) {{dims = array<i64>}} : ({seen}, {n}, index) -> ()
}}) {{sym_name = "gemm"}} : () -> ()
"""
