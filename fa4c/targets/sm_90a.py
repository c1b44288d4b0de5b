"""Hopper: H100, H200. Sources: the project's fact sheets "FA-4 on Hopper" (H) and "FlashAttention-4 on Blackwell" (B), and the PTX ISA."""

from . import Mma, Target

TARGET = Target(
    name="sm_90a",
    description="Hopper: wgmma with the accumulator in registers, TMA, clusters",
    runs_on="H100, H200",
    status="ready",
    compute_capability=(9, 0),
    passes=("tile-exp-emulation", "tile-conditional-rescale", "tile-pipeline", "tile-l2-hints", "tile-multicast", "tile-lpt-grid",
            "tile-persistent", "tile-deterministic-reduction", "tile-row-sum-by-mma"),
    smem_bytes=232448,  # H, units: per CTA
    registers=65536,  # H, units
    max_registers_per_thread=255,  # PTX ISA; setmaxnreg itself goes to 256 - 8
    register_step=8,  # PTX ISA, setmaxnreg
    max_threads_per_cta=1024,  # PTX ISA; FA-4 uses 256, 384 or 512 (H 1.1)
    warps_per_warpgroup=4,
    named_barriers=16,  # PTX ISA, bar.sync
    tmem_columns=0,
    tmem_step=0,
    max_cluster=8,  # PTX ISA: portable size
    dtypes=("bf16", "fp16"),
    max_head_dim=256,  # H 1.1
    head_dim_step=8,  # H 1.1: multiple of 8, padded to 16 inside
    # wgmma m64nNk16, N a multiple of 8 up to 256 (PTX ISA; H 1.2)
    mma=Mma(m=64, n_step=8, n_max=256, k=16, accumulator="reg"),
    mma_flops=4096,  # H, units; B 1.1
    mufu=16,  # H, units; B 1.1
    fp32=128,  # H, units
    alu=64,  # H, units: unconfirmed there, to be measured
    smem_bytes_per_clk=128,  # H, units; B 1.1
    dsmem_exchange_clk=0,
    # H200, soft cap, causal 4k: 4 of 16 gives +6 % at head dim 64 and +2 % at 128, 8 loses; plain attention loses at 2 (bench/NOTES.md)
    exp2_emulated=4,
    # H200: pairs of CTAs that load K and V together run at 0.94x to 1.02x, hints of L2 at 0.99x to 1.02x but for a case with unsteady
    # clocks (bench/NOTES.md); sm_90a_tuned.json has hints for the two problems where they won
    multicast=1,
    l2_repeated="none",
    l2_once="none",
    num_sms=132,  # H, units (H200 and H100 SXM)
    l2_bytes=50 * 1024 * 1024,  # H, units
    clock_hz=1.755e9,  # H, time model: unconfirmed there; the runtime reads the real one
)
