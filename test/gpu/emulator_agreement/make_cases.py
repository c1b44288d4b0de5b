#!/usr/bin/env python3
"""Kernels, inputs and the emulator's outputs, for `run_agreement.py` to repeat on an H200. Needs nvcc and ptxas, no GPU.

    make_cases.py DIR [--no-artifacts]

DIR gets cases.json (launches), arrays.npz (inputs, the emulator's outputs, bounds), cubins, and the artifacts of fa4c.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import operations  # noqa: E402

from fa4c.runtime.emulator import Buffer, EmulatorError, TensorMap, launch  # noqa: E402

ARTIFACTS = [("causal", "bf16", 64), ("causal", "bf16", 128), ("causal", "fp16", 64), ("causal", "fp16", 128), ("full", "fp16", 128),
             ("softcap", "bf16", 64)]
BITWISE, FLOAT, BOUND = operations.BITWISE, operations.FLOAT, "bound"


class Maker:
    """Collects cases; `arrays` by `case/buffer/what`."""

    def __init__(self, folder):
        self.folder, self.cases, self.arrays = folder, [], {}

    def kernel(self, module, entry, grid, block, buffers, params, outputs, *, name=None, smem=0, cluster=(1, 1, 1), rows=None,
               faults=None):
        """One launch. `params`: ("ptr", buffer), ("i32", value) or ("map", buffer, dtype, dims, strides, box, swizzle), innermost first.

        `outputs`: {buffer: how} or {buffer: (BOUND, function of the emulator's result)}; `rows` names the rows of the first output.
        `faults`: what the H200's error must say; the emulator must refuse the launch.
        """
        name = name or entry
        ptx = (self.folder / f"{module}.ptx").read_text()
        given = {b: a.copy() for b, a in buffers.items()}
        live = {b: Buffer(a, name=b) for b, a in given.items()}
        try:
            report = launch(ptx, entry, grid, block, cluster, smem, [_emulated(p, live) for p in params], file=f"{module}.ptx")
            problem, instructions = "" if report.ok else report.text(), report.counters["total"].get("instructions", 0)
        except EmulatorError as e:
            problem, instructions = str(e), 0
        if bool(problem) != bool(faults):
            raise SystemExit(f"{name}: {problem or 'the emulator refuses nothing'}")
        compare = {}
        for b, how in outputs.items():
            if isinstance(how, tuple):
                self.arrays[f"{name}/{b}/bound"] = np.broadcast_to(np.asarray(how[1](given[b]), np.float64), given[b].shape).copy()
                how = how[0]
            compare[b] = how
            self.arrays[f"{name}/{b}/emulator"] = given[b]
        self.arrays |= {f"{name}/{b}/in": a for b, a in buffers.items()}
        self.cases.append(dict(kind="kernel", name=name, cubin=f"{module}.cubin", entry=entry, grid=_three(grid), block=_three(block),
                               cluster=list(cluster), smem=smem, params=params, buffers=list(buffers), outputs=compare, rows=rows,
                               faults=faults))
        print(f"{name}: {'refused' if faults else f'{instructions} warp instructions'}", file=sys.stderr)


def _three(v):
    v = (v,) if isinstance(v, int) else tuple(v)
    return [*v, *(1,) * (3 - len(v))]


def _emulated(p, live):
    if p[0] == "ptr":
        return live[p[1]]
    if p[0] == "i32":
        return int(p[1]).to_bytes(4, "little", signed=True)
    _, buffer, dtype, dims, strides, box, swizzle = p
    return TensorMap(live[buffer], dtype, dims, strides, box, swizzle)


def compile_module(folder, name, source=None, ptx=None):
    """NAME.ptx and NAME.cubin in `folder`, from CUDA C++ (by nvcc) or from PTX text; the cubin comes from that very PTX."""
    target = folder / f"{name}.ptx"
    if source is not None:
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / f"{name}.cu"
            file.write_text(source)
            subprocess.run(["nvcc", "-arch=sm_90a", "--diag-suppress=550", "-ptx", file, "-o", target], check=True)
    else:
        target.write_text(ptx)
    subprocess.run(["ptxas", "-arch=sm_90a", target, "-o", folder / f"{name}.cubin"], check=True)


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def f32(u):
    return (u.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def mma_error(k):
    """Of a sum of k products, relative to the sum of their sizes, emulator and H200 together.

    The tensor core adds 16 products and the accumulator after aligning them to the largest, cutting bits below 2^-23 of it: 18 cuts each
    k16 step. The emulator adds in float32: half a unit (2^-24) each addition.
    """
    return -(-k // 16) * 18 * 2.0**-23 + k * 2.0**-24


def add_operations(maker, rng):
    compile_module(maker.folder, "operations", source="".join(operations.source(g) for g in operations.OPERATIONS))
    n = 2048
    for group, (_, how, instructions) in operations.OPERATIONS.items():
        a, b, c = operations.operands(group, n, rng)
        out = np.zeros((len(instructions), n), a.dtype)
        outputs = {"out": how}
        if how == BOUND:
            errors = np.array([operations.APPROXIMATE[i] for i in instructions])
            # both sides are within the ISA's error of the exact value
            outputs = {"out": (BOUND, lambda got, e=errors: 2 * (e[:, :1] * np.abs(got.view(np.float32).astype(np.float64)) + e[:, 1:]))}
        maker.kernel("operations", group, n // 128, 128, dict(a=a, b=b, c=c, out=out),
                     [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "out"), ("i32", n)], outputs, rows=instructions)


def add_units(maker, rng):
    compile_module(maker.folder, "units", source=(HERE / "kernels.cu").read_text())
    compile_module(maker.folder, "gemm_cute", ptx=(ROOT / "examples/emulate/gemm_cute.ptx").read_text())
    tile = dict(dims=[64, 64], strides=[128], box=[64, 64], swizzle=128)
    for name, x, y in (("wgmma, integers", rng.integers(-8, 9, (64, 64)), rng.integers(-8, 9, (64, 64))),
                       ("wgmma, normal", rng.standard_normal((64, 64)), rng.standard_normal((64, 64)))):
        a, b = bf16(x), bf16(y)
        how = BITWISE if name == "wgmma, integers" else (BOUND, lambda _, a=a, b=b: mma_error(64) * (np.abs(f32(a)) @ np.abs(f32(b)).T))
        maps = [("map", k, "bf16", *tile.values()) for k in "ab"]
        maker.kernel("units", "wgmma_ss", 1, 128, dict(a=a, b=b, c=np.zeros((64, 64), np.float32)), [*maps, ("ptr", "c")], {"c": how},
                     name=name, smem=16384)
    maker.kernel("gemm_cute", "gemm_tile_0", 1, 128, dict(a=a, b=b, c=np.zeros((64, 64), np.float32)),
                 [*maps, ("ptr", "c")], {"c": how}, name="CuTe-DSL gemm", smem=17408)
    ints = rng.integers(-(2**31), 2**31, 1024).astype(np.int32)
    maker.kernel("units", "ring", 8, 128, dict(x=ints, out=np.zeros(1024, np.int32)), [("ptr", "x"), ("ptr", "out")], {"out": BITWISE},
                 name="ring of 4 CTAs", cluster=(4, 1, 1))
    small = rng.integers(-5000, 5000, 512).astype(np.int32)
    maker.kernel("units", "atomics", 4, 128,
                 dict(x=small, ints=np.zeros(24, np.int32), floats=np.zeros(4, np.float32), longs=np.zeros(1, np.uint64)),
                 [("ptr", "x"), ("ptr", "ints"), ("ptr", "floats"), ("ptr", "longs")], dict(ints=BITWISE, floats=BITWISE, longs=BITWISE))
    maker.kernel("units", "warp", 1, 64, dict(x=rng.integers(0, 60, 64).astype(np.int32), out=np.zeros((11, 64), np.int32)),
                 [("ptr", "x"), ("ptr", "out")], {"out": BITWISE}, name="warp operations")
    a, b = bf16(rng.integers(-9, 10, (16, 16))), bf16(rng.integers(-9, 10, (16, 8)))
    maker.kernel("units", "mma", 1, 32, dict(a=a, b=b, d=np.zeros((16, 8), np.float32)), [("ptr", "a"), ("ptr", "b"), ("ptr", "d")],
                 {"d": BITWISE}, name="mma.sync, cp.async, ldmatrix")
    x = rng.integers(-100, 100, (3, 20, 40)).astype(np.float32)
    maps = [("map", b, "f32", [40, 20, 3], [160, 3200], [16, 8, 2], 0) for b in ("x", "out")]
    maker.kernel("units", "tma_edges", (3, 3, 2), 128, dict(x=x, out=np.ones_like(x)), maps, {"out": BITWISE}, name="TMA at the edges",
                 smem=1024)


def add_starts(maker, rng):
    """Where a TMA box may start: pairs of launches that differ in one coordinate."""
    x = rng.integers(-100, 100, (20, 40)).astype(np.float32)
    maps = [("map", b, "f32", [40, 20], [160], [16, 8], 0) for b in ("x", "out")]
    for at in ((-4, -3, 4, 2), (4, 3, 0, 0), (-2, -3, 4, 2), (-4, -3, -4, 2), (-4, -3, 4, -1), (-4, -3, 2, 2)):
        good = not any(c % 4 for c in at[::2]) and min(at[2:]) >= 0
        maker.kernel("units", "tma_start", 1, 1, dict(x=x, out=np.ones_like(x)), [*maps, *(("i32", c) for c in at)],
                     {"out": BITWISE} if good else {}, name=f"TMA {at[:2]} to {at[2:]}", smem=512,
                     faults=None if good else "illegal instruction")


def add_ordered(maker, rng):
    """Vector atomics, and sums whose order a semaphore fixes."""
    values = (rng.standard_normal(512) * 2.0 ** rng.integers(-3, 9, 512)).astype(np.float32)
    values[::16] = np.resize(np.array([1e-40, -1e-40, 2.0**-126, 0.0, -0.0, 3e-39], np.float32), 32)  # subnormal sums and operands
    names = {"one": 128, "in shared": 128, "two": 256, "four": 512, "old": 512, "add bf16x2": 256, "add f16x2": 256, "min f16x2": 256,
             "max bf16x2": 512, "bulk": 128, "bulk min f16x2": 128}  # fmt: skip
    start = {name: np.roll(values, 3 * k + 16 * (k % 2))[:n].copy() for k, (name, n) in enumerate(names.items())}
    start["one"][:32] = np.float32(1e-40)  # beside normal numbers too
    halves = rng.integers(0, 2**32, 512, np.uint32)
    halves[::5] = 0x80000000
    halves[2::5] = 0x00008000
    for name in names:
        if "16x2" in name:
            start[name] = np.roll(halves, len(name))[: names[name]].copy().view(np.float32)
    x = values.copy()
    x[1::4] = halves[::4].view(np.float32)
    maker.kernel("units", "vector_atomics", 1, 128, dict(x=x, **start), [("ptr", "x"), *(("ptr", name) for name in names)],
                 {name: FLOAT for name in names}, name="vector atomics")
    x = (rng.standard_normal((8, 128)) * 10.0 ** rng.integers(-3, 4, (8, 1))).astype(np.float32)
    zeros = {name: np.zeros(128, np.float32) for name in ("sums", "copy")}
    maker.kernel("units", "ordered_sum", 8, 64, dict(x=x, **zeros, turn=np.zeros(1, np.uint32)),
                 [("ptr", "x"), ("ptr", "sums"), ("ptr", "copy"), ("ptr", "turn")], dict(sums=BITWISE, copy=BITWISE, turn=BITWISE),
                 name="sums in order")


def add_nvcc(maker, rng):
    """The kernels of test/emulator/nvcc, as committed there."""
    compile_module(maker.folder, "nvcc", ptx=(ROOT / "test/emulator/nvcc/kernels.ptx").read_text())
    x = (rng.standard_normal((3, 200)) * 3).astype(np.float32)
    # exponent rounded to a float (2^-24 of at most 32), then ex2 (2^-22), above and below the fraction, on both sides
    error = 4 * (32 * 2.0**-24 + 2.0**-22)
    maker.kernel("nvcc", "softmax", 4, 128, dict(x=x, out=np.zeros_like(x)), [("ptr", "x"), ("ptr", "out"), ("i32", 3), ("i32", 200)],
                 {"out": (BOUND, lambda got: error * np.abs(got.astype(np.float64)))})
    ints = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    maker.kernel("nvcc", "integers", 2, 32, dict(x=ints, out=np.zeros(64, np.int32)), [("ptr", "x"), ("ptr", "out")], {"out": BITWISE})
    x = rng.standard_normal((6, 128)).astype(np.float32)
    maker.kernel("nvcc", "pipeline", 1, 64, dict(x=x, out=np.zeros(128, np.float32)), [("ptr", "x"), ("ptr", "out"), ("i32", 6)],
                 {"out": BITWISE}, name="mbarrier pipeline")
    x = rng.standard_normal(256).astype(np.float32)
    maker.kernel("nvcc", "dsmem", 4, 64, dict(x=x, out=np.zeros(256, np.float32), count=np.zeros(1, np.int32)),
                 [("ptr", "x"), ("ptr", "out"), ("ptr", "count")], dict(out=BITWISE, count=BITWISE), cluster=(2, 1, 1))
    x = rng.standard_normal(160).astype(np.float32)
    maker.kernel("nvcc", "last_block", 5, 32,
                 dict(x=x, partial=np.zeros(5, np.float32), ticket=np.zeros(1, np.int32), out=np.zeros(1, np.float32)),
                 [("ptr", "x"), ("ptr", "partial"), ("ptr", "ticket"), ("ptr", "out")], dict(partial=BITWISE, ticket=BITWISE, out=BITWISE))
    x = bf16(rng.standard_normal((64, 128)))
    maps = [("map", b, "bf16", [128, 64], [256], [64, 32], 0) for b in ("x", "out")]
    maker.kernel("nvcc", "tma_double", (2, 2), 128, dict(x=x, out=np.zeros_like(x)), maps, {"out": BITWISE}, smem=4096)
    x = rng.integers(0, 256, 1000).astype(np.uint8)
    maker.kernel("nvcc", "histogram", 1, 64, dict(x=x, out=np.zeros(257, np.int32)), [("ptr", "x"), ("ptr", "out"), ("i32", 1000)],
                 {"out": BITWISE})


def add_artifact(maker, example, dtype, d):
    """fa4c's own kernel: same PTX, so only sums inside an MMA, ex2/tanh and what follows from them may differ."""
    import fa4c
    from fa4c.runtime import artifact as artifacts
    from fa4c.runtime import emulated, execute, inputs

    name = f"{example}-{dtype}-d{d}"
    fa4c.compile(ROOT / "examples" / f"{example}.mlir", target="sm_90a", dtype=dtype, head_dim=(d, d)).save(maker.folder / f"{name}.fa4c")
    artifact = artifacts.load(maker.folder / f"{name}.fa4c")
    sizes = dict(b=1, hq=2, hkv=1, m=200, n=230)
    given = inputs.make_inputs(artifact.semantics, sizes, 5, "cpu")
    wanted = execute.wanted_outputs(artifact, None, None)
    got = emulated.run(artifact, given, wanted)
    q, k = (given[n].double().abs().numpy() for n in "qk")
    scores = np.einsum("bihd,bjd->bhij", q, k[:, :, 0]).max() * 0.125
    delta = scores * mma_error(d) + (2.0**-11 * scores if example == "softcap" else 0)  # of one score, in natural logarithms
    unit = 2.0**-7 if dtype == "bf16" else 2.0**-10  # P and O may round to the neighbour
    weights = execute.run_reference(artifact.semantics, {**given, "v": given["v"].abs()}, wanted)["o"].double().numpy()
    # P is off by a rounding and by its score, the row sum by the score; ex2 and the MMA's sum are smaller than 2^-16
    bounds = {"o": weights * (unit + 4 * delta + 2.0**-16) + unit * got["o"].double().abs().numpy(), "lse": 2 * delta + 2.0**-18}
    for n, t in given.items():
        maker.arrays[f"{name}/{n}/in"] = _bits(t)
    for n, t in got.items():
        maker.arrays[f"{name}/{n}/emulator"] = _bits(t)
        maker.arrays[f"{name}/{n}/bound"] = np.broadcast_to(bounds[n], tuple(t.shape)).astype(np.float32)
    kinds = {n: str(t.dtype).removeprefix("torch.") for n, t in {**given, **got}.items()}
    outputs = {n: BOUND for n in got}
    maker.cases.append(dict(kind="artifact", name=name, file=f"{name}.fa4c", inputs=list(given), outputs=outputs, dtypes=kinds))
    print(name, file=sys.stderr)


def _bits(t):
    import torch

    return t.contiguous().view(torch.int16).numpy() if t.dtype == torch.bfloat16 else t.contiguous().numpy()


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("--no-artifacts", action="store_true", help="the small kernels alone")
    args = ap.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    maker, rng = Maker(args.folder), np.random.default_rng(11)
    add_operations(maker, rng)
    add_units(maker, rng)
    add_starts(maker, rng)
    add_ordered(maker, rng)
    add_nvcc(maker, rng)
    for artifact in () if args.no_artifacts else ARTIFACTS:
        add_artifact(maker, *artifact)
    np.savez_compressed(args.folder / "arrays.npz", **maker.arrays)
    (args.folder / "cases.json").write_text(json.dumps(maker.cases, indent=1) + "\n")
    size = sum(f.stat().st_size for f in args.folder.iterdir())
    print(f"{len(maker.cases)} cases, {size / 1e6:.1f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
