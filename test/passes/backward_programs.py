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


def chained(block_n: int = 128, block_m: int = 64, depth: int = 128, *, buffers: int = 2, q_buffers: int = 2, pins: dict | None = None,
            heads: bool = False) -> str:
    """out[m] += sum over n of relu(q[m] . k[n]) k[n]: a CTA owns a block of n and loops over blocks of m.

    The relu of k q^T goes through shared memory, where the second GEMM reads it across; k, loaded once, is read along both its dimensions.
    `heads`: a loop around it, over a first dimension of q and out.
    """
    lead, axis = ((None,), 1) if heads else ((), 0)
    q, k, out = gmem(*lead, None, depth), gmem(None, depth), gmem(*lead, None, depth, element=F32)
    box, at = f"dims = array<i64: {axis}, {axis + 1}>", "%h, " if heads else ""
    index = ", ".join(["index"] * (2 + heads))
    s, sb = reg(block_n, block_m), reg(block_n, block_m, BF16)
    arguments = f"%q: {q}, %k: {k}, %out: {out}"
    dims = ("h", "m", "d") if heads else ("m", "d")
    pin = {name: ", " + text for name, text in (pins or {}).items()}
    loop = f"""%m = "tile.dim"(%q) {{axis = {axis}}} : ({q}) -> index
  %bm = arith.constant {block_m} : index
  %blocks = arith.ceildivsi %m, %bm : index
  scf.for %i = %c0 to %blocks step %c1 {{
    %m0 = arith.muli %i, %bm : index
    %sq = "tile.load"(%q, {at}%m0, %c0) {{{box}, buffers = {q_buffers}}} : ({q}, {index}) -> {smem(block_m, depth)}
    %s = "tile.mma"(%sk, %sq) {{transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 0>{pin.get("s", "")}}}
      : ({smem(block_n, depth)}, {smem(block_m, depth)}) -> {s}
    %p = "tile.map"(%s) ({{
    ^bb0(%e: f32, %r: index, %c: index):
      %zero = arith.constant 0.0 : f32
      %y = arith.maximumf %e, %zero : f32
      %t = arith.truncf %y : f32 to bf16
      "tile.yield"(%t) : (bf16) -> ()
    }}) {{operandSegmentSizes = array<i32: 1, 0>{pin.get("p", "")}}} : ({s}) -> {sb}
    %sp = "tile.to_shared"(%p) {{buffers = {buffers}{pin.get("sp", "")}}} : ({sb}) -> {smem(block_n, block_m)}
    %d = "tile.mma"(%sp, %sk) {{transpose_a = true, operandSegmentSizes = array<i32: 1, 1, 0>{pin.get("d", "")}}}
      : ({smem(block_n, block_m)}, {smem(block_n, depth)}) -> {reg(block_m, depth)}
    "tile.global_add"(%d, %out, {at}%m0, %c0) {{{box}{pin.get("add", "")}}} : ({reg(block_m, depth)}, {out}, {index}) -> ()
  }}"""
    if heads:
        loop = f"""%hs = "tile.dim"(%q) {{axis = 0}} : ({q}) -> index
  scf.for %h = %c0 to %hs step %c1 {{
  {loop}
  }}"""
    return f"""
"tile.host"() ({{
^bb0({arguments}):
  %n = "tile.dim"(%k) {{axis = 0}} : ({k}) -> index
  %block = arith.constant {block_n} : index
  %c1 = arith.constant 1 : index
  %gx = arith.ceildivsi %n, %block : index
  "tile.launch"(%gx, %c1, %c1, %q, %k, %out) {{kernel = @chained_kernel, operandSegmentSizes = array<i32: 3, 3, 0>}}
    : (index, index, index, {q}, {k}, {out}) -> ()
}}) {{sym_name = "chained", tensors = [{entry("q", "input", *dims)}, {entry("k", "input", "n", "d")},
  {entry("out", "output", *dims)}]}} : () -> ()
"tile.kernel"() ({{
^bb0({arguments}):
  %x, %py, %pz = "tile.program_id"() : () -> (index, index, index)
  %block = arith.constant {block_n} : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n0 = arith.muli %x, %block : index
  %sk = "tile.load"(%k, %n0, %c0) {{dims = array<i64: 0, 1>}} : ({k}, index, index) -> {smem(block_n, depth)}
  {loop}
}}) {{sym_name = "chained_kernel"}} : () -> ()
"""
