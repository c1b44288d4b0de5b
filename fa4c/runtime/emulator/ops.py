"""Which machine operation carries out which opcode. A rule takes (instruction, program) and gives `run(fragment, lanes)`.

`run` returns False while it has to wait; it must not have changed anything then. Loads and stores without ordering, and all
arithmetic, are compiled into blocks instead (codegen.py, program.py).
"""

from . import atomics, mbarrier, sync, tcgen05, tma, warpmma, wgmma

OPS = {
    "shfl": sync.op_shfl,
    "vote": sync.op_vote,
    "match": sync.op_match,
    "redux": sync.op_redux,
    "elect": sync.op_elect,
    "bar": sync.op_bar,
    "barrier": sync.op_bar,
    "mbarrier": mbarrier.op_mbarrier,
    "fence": sync.op_fence,
    "membar": sync.op_fence,
    "atom": atomics.op_atom,
    "red": atomics.op_atom,
    "ld": atomics.op_strong_ld,
    "st": atomics.op_strong_st,
    "cp": tma.op_cp,
    "wgmma": wgmma.op_wgmma,
    "ldmatrix": warpmma.op_ldmatrix,
    "stmatrix": warpmma.op_stmatrix,
    "tcgen05": tcgen05.op_tcgen05,
    "setmaxnreg": sync.op_setmaxnreg,
    "movmatrix": warpmma.op_movmatrix,
    "mma": warpmma.op_mma,
}
