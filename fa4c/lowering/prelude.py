"""Imports and helper functions of an emitted file; a helper is written only if the kernel calls it."""

import re

from .prelude_tmem import TMEM_HELPERS

IMPORTS = [
    "import cuda.bindings.driver as cudadrv",
    "import cutlass",
    "import cutlass.cute as cute",
    "import cutlass.experimental.cuda as cuda",
    "from cutlass import BFloat16, Boolean, Float16, Float32, Int8, Int16, Int32, Int64, range_constexpr, select_",
    "from cutlass.cute.nvgpu import OperandMajorMode, warpgroup",
    "from cutlass.experimental import primitives as prims",
]
_DIALECTS = "from cutlass._mlir.dialects import {}"  # for helpers of single instructions

HELPERS = {
    "select": '''
def select(kind, condition, a, b):
    """condition ? a : b without a branch; a plain Python condition is decided while tracing."""
    if isinstance(condition, bool):
        return kind(a) if condition else kind(b)
    return kind(select_(condition, kind(a), kind(b)))
''',
    "hold": '''
def hold(number):
    """A number of 32 bits in a register, of which the compiler does not know how it came about."""
    return prims.inline_ptx("mov.b32 $0, $1;", write_only_types=[Int32], read_only_args=[number])
''',
    "keep": '''
def keep(number):
    """A number of 32 bits in a register of each thread. What the compiler can compute again, it does where registers are short: a sum of
    the thread's number in each iteration of a loop, but no shuffle."""
    return cute.arch.shuffle_sync(number, cute.arch.lane_idx())
''',
    "kept_pointer": '''
def kept_pointer(pointer):
    """The same for the begin of shared memory, which is one number for all."""
    address = cute.arch.make_warp_uniform(pointer.toint())
    return cute.make_ptr(pointer.dtype, address, cute.AddressSpace.smem, assumed_align=1024)
''',
    "kept_descriptors": '''
def kept_descriptors(view):
    """The same for the first one of a tensor of descriptors of shared memory: both halves, else ptxas may take registers of each thread for
    them. The DSL offers no way to the number, and lowers its own type to it: what is cast to and fro is the number."""
    first = view.iterator
    number = Int64(builtin.unrealized_conversion_cast([Int64.mlir_type], [first]))
    low, high = cute.arch.make_warp_uniform(Int32(number)), cute.arch.make_warp_uniform(Int32(number >> 32))
    number = Int64(high) << 32 | Int64(low) & Int64(0xFFFFFFFF)
    first = builtin.unrealized_conversion_cast([first.type], [number.ir_value()])
    return cute.make_tensor(first, view.layout)
''',
    "store_matrices": '''
def store_matrices(address, offset, words, number):
    """Four 8 x 8 matrices of 16 bits, words[number] and the next three of each lane, into shared memory; lanes give a row's address."""
    text = f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0+{offset}], {{$1, $2, $3, $4}};"
    prims.inline_ptx(text, read_only_args=[address, *(words[number + i] for i in range(4))])
''',
    "load_matrices": '''
def load_matrices(address, offset, words, number):
    """The same out of shared memory."""
    text = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    for i, word in enumerate(prims.inline_ptx(text, write_only_types=[Int32] * 4, read_only_args=[address])):
        words[number + i] = word
''',
    "truncated_div": '''
def truncated_div(a, b):
    """a / b rounded towards zero; DSL and Python division round down."""
    if not isinstance(b, int):
        a, b = select(Int32, b < 0, -a, a), select(Int32, b < 0, -b, b)
    elif b < 0:
        a, b = -a, -b
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if a < 0 else a // b
    return select(Int32, a < 0, -(-a // b), a // b)
''',
    "quad_max": '''
def quad_max(x):
    """The maximum over the 4 lanes that share a row."""
    x = cute.arch.fmax(x, cute.arch.shuffle_sync_bfly(x, 1))
    return cute.arch.fmax(x, cute.arch.shuffle_sync_bfly(x, 2))
''',
    "quad_sum": '''
def quad_sum(x):
    """The sum over the 4 lanes that share a row."""
    x = x + cute.arch.shuffle_sync_bfly(x, 1)
    return x + cute.arch.shuffle_sync_bfly(x, 2)
''',
    "tanh_exp2": '''
def tanh_exp2(x):
    """1 - 2 / (e**2|x| + 1), with the sign of x: absolute error of 1e-7. tanh.approx has 2**-11, which a soft cap of 30 turns into 1e-2 in
    the score. Near -1 the formula would round numbers of 2, not 1: of the derivative 1 - tanh**2 at -5 that is 3e-3."""
    size = 1.0 - 2.0 * cute.arch.rcp_approx(cute.math.exp2(cute.math.absf(x) * 2.8853900817779268, fastmath=True) + 1.0)
    return cute.math.copysign(size, x)
''',
    "exp2_emulated": '''
def exp2_emulated(x):
    """2**x on the FMA units: x = n + f, f in [-0.5, 0.5] by rounding, a polynomial in f, n added to the exponent; 0 from -127 down.

    The polynomial is exactly 1 at f = 0: at x = -127 the exponent then comes out as 0 and the result as 0, which masked scores (-inf) need.
    """
    x = cute.arch.fmax(x, Float32(-127.0))
    shifted = x + 12582912.0  # 1.5 * 2**23: the low mantissa bits hold n
    f = x - (shifted - 12582912.0)
    p = f * 0.00960053 + 0.05591672  # relative error at most 3.1e-6
    p = p * f + 0.24023716
    p = p * f + 0.69312203
    p = p * f + 1.0
    return (p.bitcast(Int32) + (shifted.bitcast(Int32) << 23)).bitcast(Float32)
''',
    "take_tile": '''
def take_tile(queue: Int64):
    """The next tile that no CTA has taken; the first ones are the CTAs' numbers."""
    taken = cute.arch.atomic_add(cute.make_ptr(Int32, queue, cute.AddressSpace.gmem, assumed_align=4), Int32(1), sem="relaxed", scope="gpu")
    return Int32(taken) + Int32(cute.arch.grid_dim()[0])
''',
    "leave_queue": '''
@cute.jit
def leave_queue(queue: Int64):
    """Count this CTA out; the last one leaves the queue as it was found, for the next launch."""
    taken = cute.make_ptr(Int32, queue, cute.AddressSpace.gmem, assumed_align=4)
    left = Int32(cute.arch.atomic_add(taken + 1, Int32(1), sem="acq_rel", scope="gpu"))  # behind all that other CTAs took
    if left == Int32(cute.arch.grid_dim()[0]) - 1:
        cute.arch.fence_acq_rel_gpu()  # the other CTAs' tickets come before the reset
        cute.make_tensor(taken, cute.make_layout(2))[0] = Int32(0)
        cute.make_tensor(taken, cute.make_layout(2))[1] = Int32(0)
''',
    "read_element": '''
def read_element(kind, address: Int64, axes):
    """Element of a tensor in global memory, 0 out of bounds; `axes`: (coordinate, size, stride in elements) each.

    The address is clamped into the tensor, so that the load needs no branch.
    """
    inside, offset = True, Int64(0)
    for coordinate, size, stride in axes:
        coordinate = Int32(coordinate)
        inside = (coordinate >= 0) & (coordinate < size) & inside
        offset = offset + Int64(cutlass.max(0, cutlass.min(coordinate, Int32(size) - 1))) * stride
    pointer = cute.make_ptr(kind, address + offset * (kind.width // 8), cute.AddressSpace.gmem, assumed_align=kind.width // 8)
    value = cute.make_tensor(pointer, cute.make_layout(1))[0]
    return select(kind, inside, value, 0) if axes else value
''',
    "read_exclusive": '''
def read_exclusive(address: Int64, axes):
    """An f32 element of a tensor in global memory; 0 out of bounds, where nothing is read: what is inside belongs to other threads."""
    inside = Boolean(True)
    for coordinate, size, stride in axes:
        inside = (Int32(coordinate) >= 0) & (Int32(coordinate) < size) & inside
        address = address + Int64(coordinate) * stride * 4
    value = prims.inline_ptx("ld.global.f32 $0, [$1];", write_only_types=[Float32], read_only_args=[address], predicate=inside)
    return select(Float32, inside, value, 0)
''',
    "load_pair": '''
def load_pair(source, offset, target, number):
    """target[number], target[number + 1] = two neighbours in shared memory from element `offset` on, by one load; `offset` is even."""
    pair = cute.make_tensor(source + cute.assume(offset, divby=2), cute.make_layout(2))
    cute.autovec_copy(pair, cute.make_tensor(target.iterator + number, cute.make_layout(2)))
''',
    "store_pair": '''
def store_pair(target, offset, source, odd, number, other):
    """Two neighbours in shared memory from element `offset` on = source[number], source[number + 1]; those from `other` on if odd."""
    pair = cute.make_rmem_tensor(2, Float32)
    for e in range(2):
        pair[e] = source[number + e] if number == other else select(Float32, odd, source[other + e], source[number + e])
    cute.autovec_copy(pair, cute.make_tensor(target + cute.assume(offset, divby=2), cute.make_layout(2)))
''',
    "exchange_if": '''
def exchange_if(condition, tensor, a, b):
    """Exchange two registers, without a branch."""
    first, second = tensor[a], tensor[b]
    tensor[a] = select(Float32, condition, second, first)
    tensor[b] = select(Float32, condition, first, second)
''',
    "write_element": '''
def write_element(kind, address: Int64, offset, value):
    """tensor[offset in elements] = value."""
    pointer = cute.make_ptr(kind, address + offset * (kind.width // 8), cute.AddressSpace.gmem, assumed_align=kind.width // 8)
    cute.make_tensor(pointer, cute.make_layout(1))[0] = value
''',
    "add_to_global": '''
def add_to_global(address: Int64, offset, inside, values):
    """memory[address + offset bytes] += values, neighbouring f32, in one instruction, where `inside`; the offset is known while tracing."""
    vector, operands = (f".v{len(values)}", "{$1, $2}") if len(values) == 2 else ("", "$1")
    text = f"red.relaxed.gpu.global.add{vector}.f32 [$0+{offset}], {operands};"
    prims.inline_ptx(text, read_only_args=[address, *values], predicate=None if inside is True else Boolean(inside))
''',
    "wait_count": '''
@cute.jit
def wait_count(address: Int64, count: Int32):
    """Wait until the number there is `count`; what those who made it so wrote before is seen behind this."""
    counter = cute.make_ptr(Int32, address, cute.AddressSpace.gmem, assumed_align=4)
    seen = Int32(cute.arch.load(counter, Int32, sem="acquire", scope="gpu"))
    while seen != count:
        seen = Int32(cute.arch.load(counter, Int32, sem="acquire", scope="gpu"))
''',
    "add_count": '''
def add_count(address: Int64):
    """Add 1, behind all that this thread wrote, or knows to be written."""
    counter = cute.make_ptr(Int32, address, cute.AddressSpace.gmem, assumed_align=4)
    cute.arch.red(counter, Int32(1), op="add", dtype="s32", sem="release", scope="gpu")
''',
    "warp_rows_sum": '''
def warp_rows_sum(x):
    """The sum over the 8 quads of a warp, whose 4 lanes hold the same value each."""
    x = x + cute.arch.shuffle_sync_bfly(x, 4)
    x = x + cute.arch.shuffle_sync_bfly(x, 8)
    return x + cute.arch.shuffle_sync_bfly(x, 16)
''',
}
HELPERS.update(TMEM_HELPERS)


def prelude_for(body: str) -> list[str]:
    """The lines of the helpers that `body` calls, and of those that they call."""
    wanted, calling = set(), body
    while more := {name for name in HELPERS if name not in wanted and re.search(rf"\b{name}\(", calling)}:
        wanted |= more
        calling = "".join(HELPERS[name] for name in more)
    lines = [line for name, text in HELPERS.items() if name in wanted for line in ["", *text.strip("\n").split("\n"), ""]]
    dialects = [name for name in ("builtin", "llvm", "nvvm") if any(f"{name}." in line for line in lines)]
    return [_DIALECTS.format(", ".join(dialects)), *lines] if dialects else lines
