"""Which machine operation carries out which opcode. A rule takes (instruction, program) and gives `run(fragment, lanes)`.

`run` returns False while it has to wait; it must not have changed anything then. Loads and stores without ordering, and all
arithmetic, are compiled into blocks instead (codegen.py, program.py).
"""

from . import atomics, cpasync, dependent, mbarrier, sync, tcgen05, tma, warpmma, wgmma


def _op_st(ins, program):
    return (tma.op_st_async if "async" in ins.parts else atomics.op_strong_st)(ins, program)


def _op_cp(ins, program):
    bulk = "bulk" in ins.parts
    return (tma.op_cp if bulk else cpasync.op_cp_async)(ins, program)


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
    "st": _op_st,
    "cp": _op_cp,
    "wgmma": wgmma.op_wgmma,
    "ldmatrix": warpmma.op_ldmatrix,
    "stmatrix": warpmma.op_stmatrix,
    "tcgen05": tcgen05.op_tcgen05,
    "setmaxnreg": sync.op_setmaxnreg,
    "trap": sync.op_trap,
    "griddepcontrol": dependent.op_griddepcontrol,
    "movmatrix": warpmma.op_movmatrix,
    "mma": warpmma.op_mma,
}
