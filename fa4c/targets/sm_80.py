"""Ampere and newer consumer cards: planned. The numbers are those of A100 as NVIDIA publishes them; nothing reads them yet."""

from . import Mma, Target

TARGET = Target(
    name="sm_80",
    description="Ampere and newer consumer cards: mma.sync, cp.async",
    runs_on="A100 and newer consumer cards",
    status="planned",
    refusal="planned (portable path: `cp.async`, `mma.sync`, LPT)",  # the contract's sentence
    compute_capability=(8, 0),
    passes=("tile-pipeline", "tile-lpt-grid"),
    smem_bytes=166912,  # 163 KB
    registers=65536,
    max_registers_per_thread=255,
    register_step=8,
    max_threads_per_cta=1024,
    warps_per_warpgroup=4,
    named_barriers=16,
    tmem_columns=0,
    tmem_step=0,
    max_cluster=1,
    dtypes=("bf16", "fp16"),
    max_head_dim=256,
    head_dim_step=8,
    mma=Mma(m=16, n_step=8, n_max=8, k=16, accumulator="reg"),
    mma_flops=2048,
    mufu=16,
    fp32=64,
    alu=64,
    smem_bytes_per_clk=128,
    dsmem_exchange_clk=0,
    num_sms=108,
    l2_bytes=40 * 1024 * 1024,
    clock_hz=1.41e9,
)
