"""Small hand-written kernels, each correctly synchronised: what the seeded faults mutate and the random schedules repeat."""

from kernel_parts import Case, bf16, f32, line_of, ptx, wait
from kernels_cluster import CLUSTER, DSMEM, make_cluster
from kernels_copy import BULK, CPASYNC, TMA, make_bulk, make_cpasync, make_tma
from kernels_global import ATOMIC, SEMAPHORE, make_atomic, make_semaphore
from kernels_mma import PROXY, TCGEN, WGMMA, fragment, make_proxy, make_tcgen, make_wgmma
from kernels_sync import MBAR, NAMED, WARP, make_mbar, make_named, make_warp

__all__ = ["CASES", "bf16", "f32", "fragment", "line_of", "ptx", "wait"]

CASES = {
    c.name: c
    for c in [
        Case("named", NAMED, 1, 64, 1024, make_named),
        Case("warp", WARP, 1, 32, 1024, make_warp),
        Case("mbar", MBAR, 1, 64, 1024, make_mbar),
        Case("tma", TMA, 1, 128, 16384, make_tma),
        Case("bulk", BULK, 1, 128, 1024, make_bulk),
        Case("wgmma", WGMMA, 1, 128, 1024 + 16384, make_wgmma),
        Case("proxy", PROXY, 1, 128, 8192, make_proxy),
        Case("cluster", CLUSTER, 2, 32, 1024, make_cluster, (2, 1, 1)),
        Case("dsmem", DSMEM, 2, 32, 1024, make_cluster, (2, 1, 1)),
        Case("semaphore", SEMAPHORE, 3, 64, 0, make_semaphore),
        Case("cpasync", CPASYNC, 1, 64, 2048, make_cpasync),
        Case("tcgen", TCGEN, 1, 160, 1024 + 24576, make_tcgen),
        Case("atomic", ATOMIC, 2, 32, 0, make_atomic),
    ]
}
