"""The `warp` dialect: who does what, when, and what it waits for.

A `warp.kernel` is imperative. Register fragments and shared-memory buffers are storage that operations write into, so that each line is
one line (or loop) of CuTe-DSL. A fragment's type is the tile of the whole CTA; the compute warpgroups hold 64 consecutive rows each, in
the layout of a wgmma accumulator (PTX ISA, wgmma register fragments). Where the tile has 64 rows, but the role several warpgroups, each
holds all rows and its share of neighbouring columns. Scalars stay SSA: `arith` on index, `scf.for` and `scf.if` for control.

Top level of a kernel: tensor maps, buffers, pipelines, `init_barriers`, then one `warp.role` for each group of warps.
"""

# The dialect is one module to all others.
from .warp_base import (  # noqa: F401
    ROW_ALIGNMENT,
    AcquireOp,
    AdvanceOp,
    ArmOp,
    ArriveOp,
    BarrierOp,
    BufferOp,
    ClusterSyncOp,
    ElectOp,
    FenceAsyncOp,
    InitBarriersOp,
    KernelOp,
    Operation,
    PipelineOp,
    ReleaseOp,
    RoleOp,
    SlotOwnerOp,
    StateOp,
    TensorMapOp,
    TurnGiveOp,
    TurnInitOp,
    TurnTakeOp,
    WaitOp,
    WalkOp,
    Warp,
    bits_of,
    column_shares,
    has_barriers,
    is_slot_number,
    registers_held,
    stage_bytes,
    values_held,
)
from .warp_compute import (  # noqa: F401
    CopyOp,
    FillOp,
    FragmentOp,
    MapOp,
    PtxOp,
    ReduceOp,
    VoteAnyOp,
    WgmmaCommitOp,
    WgmmaFenceOp,
    WgmmaOp,
    WgmmaWaitOp,
    WhenOp,
)
from .warp_copies import (  # noqa: F401
    AddCountOp,
    GlobalAddOp,
    LoadColumnsOp,
    LoadFragmentOp,
    StoreCommitOp,
    StoreRowsOp,
    StoreSharedOp,
    StoreWaitOp,
    SyncWarpOp,
    TmaAddOp,
    TmaLoadOp,
    TmaPutOp,
    TmaStoreOp,
    WaitCountOp,
)
