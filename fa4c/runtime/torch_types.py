"""Names of dtypes in manifests and trees <-> torch dtypes."""

import torch

TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "i1": torch.bool,
    "index": torch.int64,
}
NAME = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


def name_of(dtype) -> str:
    """'bf16' of torch.bfloat16, of 'bf16', of 'bfloat16'; other dtypes give their own text."""
    if isinstance(dtype, str):
        dtype = getattr(torch, {"fp16": "float16", "bf16": "bfloat16", "f32": "float32"}.get(dtype, dtype), dtype)
    return NAME.get(dtype, str(dtype))
