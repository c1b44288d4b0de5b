"""Blackwell data centre: B200, GB200. Source: the project's fact sheet "FlashAttention-4 on Blackwell" (B). Nothing here is measured."""

from . import Mma, Target

TARGET = Target(
    name="sm_100a",
    description="Blackwell: tcgen05 MMA with the accumulator in tensor memory, CTA pairs",
    runs_on="B200, GB200",
    status="ready",
    compute_capability=(10, 0),
    passes=("tile-exp-emulation", "tile-conditional-rescale", "tile-split-2cta", "tile-insert-dsmem-exchange", "tile-pipeline",
            "tile-alias-tmem", "tile-l2-hints", "tile-multicast", "tile-lpt-grid", "tile-persistent", "tile-deterministic-reduction",
            "tile-row-sum-by-mma"),
    smem_bytes=232448,  # B 1.1
    registers=65536,  # B 1.1
    max_registers_per_thread=255,
    register_step=8,
    max_threads_per_cta=1024,
    warps_per_warpgroup=4,
    named_barriers=16,
    tmem_columns=512,  # B 1.1: 128 lanes x 512 columns x 4 bytes
    tmem_step=32,  # as allocations do (B 1.1); FA-4's maps keep to it too (B 2.2)
    max_cluster=8,
    dtypes=("bf16", "fp16"),
    max_head_dim=256,
    head_dim_step=8,
    # B 8.2: M = 128 for one CTA (256 for a pair), N a multiple of 16 up to 256, K = 16
    mma=Mma(m=128, n_step=16, n_max=256, k=16, accumulator="tmem", pair_m=256),
    mma_flops=8192,  # B 1.1
    mufu=16,  # B 1.1; B300 has 32
    stores_apart=True,  # B 6: FA-4's epilogue warp; who corrects sums goes on to the next tile
    exp2_emulated=None,
    exp2_emulation_from=0.9,  # B 1.2, 6: MMA and exponentials are level at head dim 128, where FA-4 emulates an eighth in causal kernels
    fp32=128,  # FMAs, as Hopper
    fp32_packed=2,  # B 1.2, 8.1: add, sub, mul, fma of .f32x2; that halves instructions, not the units' time
    max_inputs=3,  # PTX ISA: max.f32 of three, sm_100 and later
    alu=64,
    smem_bytes_per_clk=128,  # B 1.1
    dsmem_exchange_clk=384,  # B 1.4: the paper's figure; 256 by the released code's own traffic
    num_sms=148,  # B 1.1
    l2_bytes=50 * 1024 * 1024,  # not in B; this is the section budget that FA-4's kernels use (B 5)
    clock_hz=1.85e9,  # B 1.1
)
