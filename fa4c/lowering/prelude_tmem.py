"""Helper functions of emitted files that use tensor memory; written only where a kernel calls them."""

TMEM_HELPERS = {
    "tmem_at": '''
def tmem_at(address, kind):
    """A pointer into tensor memory: lane << 16 | column, in 32-bit columns."""
    return prims.TmemAddr(address).as_ptr(kind)
''',
    "pair_barrier": '''
def pair_barrier(pointer):
    """An mbarrier as copies of a pair want it, which clear the bit of its address that tells the two CTAs apart."""
    return cutlass.make_array_view(cute.make_tensor(pointer, cute.make_layout((1,))))
''',
    "arrive_at_leader": '''
def arrive_at_leader(pointer):
    """Arrive on an mbarrier of the pair's first CTA, behind what this thread knows to be written in either CTA."""
    prims.mbarrier_arrive(prims.mapa(pair_barrier(pointer), 0), scope=prims.MemScope.CLUSTER)
''',
    "arrive_one": '''
def arrive_one(base, offset, slot):
    """One thread of a warp arrives on the mbarrier `slot` of those at `offset`, by one instruction, without a branch around it."""
    text = f"mbarrier.arrive.shared.b64 _, [$0 + {offset}];"
    prims.inline_ptx(text, read_only_args=[(base + 8 * slot).toint()], predicate=prims.elect_sync())
''',
    "tmem_pieces": '''
def tmem_pieces(words):
    """(first column, columns) of each instruction that moves `words` columns: powers of two, at most 32."""
    pieces, first = [], 0
    while first < words:
        count = min(32, 1 << (words - first).bit_length() - 1)
        pieces.append((first, count))
        first += count
    return pieces
''',
    "tmem_load": '''
def tmem_load(target, at, address, words):
    """target[at ...] = `words` columns of tensor memory, this thread's lane."""
    held = cute.make_tensor(cute.recast_ptr(target.iterator, dtype=Int32), cute.make_layout(at + words))
    for first, count in tmem_pieces(words):
        got = prims.tcgen05_ld("32x32b", prims.TmemAddr(address + first).as_ptr(Int32), num=count)
        for i in range(count):
            held[at + first + i] = got[i] if count > 1 else got
''',
    "tmem_store": '''
def tmem_store(address, source, at, words):
    """`words` columns of tensor memory, this thread's lane = source[at ...]."""
    held = cute.recast_ptr(source.iterator, dtype=Int32)
    for first, count in tmem_pieces(words):
        piece = cute.make_tensor(held + (at + first), cute.make_layout(count))
        prims.tcgen05_st("32x32b", prims.TmemAddr(address + first).as_ptr(Int32), piece.load() if count > 1 else piece[0])
''',
    "smem_operand": '''
def smem_operand(pointer, rows, swizzle, k_major):
    """Descriptor of an MMA operand: slabs of `rows` rows of one swizzle span; groups of 8 rows follow each other."""
    layout = getattr(prims.Tcgen05SmemSwizzle, f"SWIZZLE_{swizzle}B")
    return prims.Tcgen05SmemDesc.build(pointer.toint(), 16 if k_major else rows * swizzle, 8 * swizzle, layout=layout)
''',
    "operand_at": '''
def operand_at(operand, kk, rows, swizzle, k_major):
    """The descriptor of k-step kk, 16 elements: 32 bytes further along a row, slab after slab, or 16 rows down. Addresses are in the low
    word; put together from two words it takes one addition."""
    step = 32 * kk // swizzle * rows * swizzle + 32 * kk % swizzle if k_major else 16 * kk * swizzle
    words = [Int32(word).ir_value() for word in (Int32(operand) + step // 16, operand >> 32)]
    both = llvm.inline_asm(Int64.mlir_type, words, "mov.b64 $0, {$1, $2};", "=l,r,r", asm_dialect=llvm.AsmDialect.AD_ATT)
    return prims.Tcgen05SmemDesc(Int64(both))
''',
    "warp_sum": '''
def warp_sum(x):
    """The sum over the 32 lanes of a warp."""
    for distance in (1, 2, 4, 8, 16):
        x = x + cute.arch.shuffle_sync_bfly(x, distance)
    return x
''',
    "load_row": '''
def load_row(source, offset, target, columns):
    """target = `columns` neighbouring f32 of shared memory, the same for all threads, 16 bytes at a time."""
    place = cute.make_ptr(target.element_type, (source + offset).toint(), cute.AddressSpace.smem, assumed_align=16)
    for c in range(0, columns, 4):
        piece = cute.make_tensor((target.iterator + c).align(16), cute.make_layout(4))
        cute.autovec_copy(cute.make_tensor(place + c, cute.make_layout(4)), piece)
''',
    "store_row": '''
def store_row(pointer, row, source, first, columns, rows, swizzle, column=0):
    """Row `row` of a swizzled buffer, from `column` on = source[first ...], 16 bytes at a time: chunk c of a row of span s lies where c is
    XORed with row * s / 128."""
    chunk, spans = 16 * 8 // source.element_type.width, swizzle // 16
    at = pointer.toint() + row * swizzle + row * swizzle // 128 % spans * 16  # a multiple of the span, and the twist
    for n in range(columns // chunk):
        c = column // chunk + n
        address = (at ^ c % spans * 16) + c // spans * (rows * swizzle)
        place = cute.make_ptr(source.element_type, address, cute.AddressSpace.smem, assumed_align=16)
        piece = cute.make_tensor((source.iterator + (first + n * chunk)).align(16), cute.make_layout(chunk))
        cute.autovec_copy(piece, cute.make_tensor(place, cute.make_layout(chunk)))
''',
    "send_row": '''
def send_row(pointer, peer, row, source, first, columns, rows, swizzle):
    """`store_row` into the shared memory of CTA `peer` of the cluster. A chunk twists the peer's address, which is known only where it is
    used; sums that the address is added to would be formed in front of the loop, a register each."""
    chunk, spans = 16 * 8 // source.element_type.width, swizzle // 16
    near = pointer.toint() + row * swizzle + row * swizzle // 128 % spans * 16
    mapa = "mapa.shared::cluster.u32 $0, $1, $2;"
    at = prims.inline_ptx(mapa, write_only_types=[Int32], read_only_args=[near, Int32(peer)])
    words = cute.recast_tensor(source, Int32)
    for c in range(columns // chunk):
        address = (at ^ c % spans * 16) + c // spans * (rows * swizzle)
        piece = [words[(first + c * chunk) * source.element_type.width // 32 + i] for i in range(4)]
        prims.inline_ptx("st.shared::cluster.v4.b32 [$0], {$1, $2, $3, $4};", read_only_args=[address, *piece])
''',
    "store_halves": '''
def store_halves(target, at, a, b):
    """target[at], target[at + 1] = a, b, converted to 16 bits by one instruction, whose second operand is the lower half."""
    kind = "bf16x2" if target.element_type is BFloat16 else "f16x2"
    operands = [Float32(x).ir_value() for x in (b, a)]
    both = llvm.inline_asm(Int32.mlir_type, operands, f"cvt.rn.{kind}.f32 $0, $1, $2;", "=r,f,f", asm_dialect=llvm.AsmDialect.AD_ATT)
    cute.recast_tensor(target, Int32)[at // 2] = Int32(both)
''',
    "max3": '''
def max3(a, b, c):
    """The maximum of three by one instruction."""
    return Float32(nvvm.fmax(*(Float32(x).ir_value() for x in (a, b)), c=Float32(c).ir_value()))
''',
    "read_if_inside": '''
def read_if_inside(kind, address: Int64, axes):
    """`read_element` of 32 bits by a load that is left out where it is out of bounds: nothing has to be kept until it comes in."""
    inside, offset = True, Int64(0)
    for coordinate, size, stride in axes:
        coordinate = cutlass.Uint32(coordinate)
        inside = (coordinate < cutlass.Uint32(size)) & inside
        offset = offset + Int64(coordinate) * stride
    operands = [Int64(address + offset * 4).ir_value(), select(Int32, inside, 1, 0).ir_value()]
    text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }"
    word = llvm.inline_asm(Int32.mlir_type, operands, text, "=&r,l,r", asm_dialect=llvm.AsmDialect.AD_ATT)
    return Int32(word) if kind is Int32 else Int32(word).bitcast(kind)
''',
    "add_pair": '''
def add_pair(a, b):
    """Two sums by one instruction, as are those below."""
    return cute.arch.add_packed_f32x2(pair(a), pair(b))
''',
    "sub_pair": '''
def sub_pair(a, b):
    return cute.arch.sub_packed_f32x2(pair(a), pair(b))
''',
    "mul_pair": '''
def mul_pair(a, b):
    return cute.arch.mul_packed_f32x2(pair(a), pair(b))
''',
    "fma_pair": '''
def fma_pair(a, b, c):
    return cute.arch.fma_packed_f32x2(pair(a), pair(b), pair(c))
''',
    "pair": '''
def pair(x):
    return Float32(x[0]), Float32(x[1])
''',
    "exp2_pair": '''
def exp2_pair(x, emulated):
    """2**x of two; `emulated` on the FMA units: x = n + f, f in [-0.5, 0.5] by rounding, a polynomial in f, n added to the exponent.

    The polynomial is exactly 1 at f = 0: at x = -127 the exponent then comes out as 0 and the result as 0, which masked scores (-inf) need.
    """
    if not emulated:
        return cute.math.exp2(x[0], fastmath=True), cute.math.exp2(x[1], fastmath=True)
    x = cute.arch.fmax(x[0], Float32(-127.0)), cute.arch.fmax(x[1], Float32(-127.0))
    big = 12582912.0, 12582912.0  # 1.5 * 2**23: the low mantissa bits of the sum hold n
    shifted = add_pair(x, big)
    f = sub_pair(x, sub_pair(shifted, big))
    # relative error at most 1.02e-4, where bf16 rounds by 3.9e-3 and fp16 by 4.9e-4
    p = fma_pair(f, (0.05500896, 0.05500896), (0.24221103, 0.24221103))
    p = fma_pair(p, f, (0.69328293, 0.69328293))
    p = fma_pair(p, f, (1.0, 1.0))
    return tuple(add_exponent(p[i], shifted[i]) for i in range(2))
''',
    "add_exponent": '''
def add_exponent(p, shifted):
    """p, its exponent greater by the low bits of `shifted`, by one instruction."""
    words = [x.bitcast(Int32).ir_value() for x in (shifted, p)]
    text = f"mad.lo.s32 $0, $1, {1 << 23}, $2;"
    return Int32(llvm.inline_asm(Int32.mlir_type, words, text, "=r,r,r", asm_dialect=llvm.AsmDialect.AD_ATT)).bitcast(Float32)
''',
    "tanh_pair": '''
def tanh_pair(x):
    """1 - 2 / (e**2x + 1) of two: absolute error of a few 1e-7."""
    y = mul_pair(x, (2.8853900817779268, 2.8853900817779268))
    y = add_pair(tuple(cute.math.exp2(v, fastmath=True) for v in y), (1.0, 1.0))
    return fma_pair(tuple(cute.arch.rcp_approx(v) for v in y), (-2.0, -2.0), (1.0, 1.0))
''',
}
