"""Helper functions of emitted files that use tensor memory; written only where a kernel calls them."""

TMEM_HELPERS = {
    "tmem_at": '''
def tmem_at(address, kind):
    """A pointer into tensor memory: lane << 16 | column, in 32-bit columns."""
    return prims.TmemAddr(address).as_ptr(kind)
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
    "operand_step": '''
def operand_step(kk, rows, swizzle, k_major):
    """Bytes to the 16 elements of k-step kk: 32 bytes along a row, slab after slab, or 16 rows down."""
    return 32 * kk // swizzle * rows * swizzle + 32 * kk % swizzle if k_major else 16 * kk * swizzle
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
def store_row(pointer, row, source, rows, swizzle):
    """Row `row` of a swizzled buffer = source, 16 bytes at a time: chunk c of a row of span s lies where c is XORed with row * s / 128."""
    chunk, spans = 16 * 8 // source.element_type.width, swizzle // 16
    at = pointer.toint() + row * swizzle
    twist = row * swizzle // 128 % spans
    for c in range(cute.size(source) // chunk):
        address = at + c // spans * (rows * swizzle) + (c % spans ^ twist) * 16
        place = cute.make_ptr(source.element_type, address, cute.AddressSpace.smem, assumed_align=16)
        piece = cute.make_tensor((source.iterator + c * chunk).align(16), cute.make_layout(chunk))
        cute.autovec_copy(piece, cute.make_tensor(place, cute.make_layout(chunk)))
''',
}
