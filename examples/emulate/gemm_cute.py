"""A GEMM tile by hand in CuTe-DSL: C (64 x 64, fp32) = A (64 x 64, bf16) B^T, by TMA and one warpgroup's wgmma.

python examples/emulate/gemm_cute.py            writes gemm_cute.ptx beside this file (no GPU needed)
fa4c emulate examples/emulate/gemm_cute.ptx --launch examples/emulate/gemm_cute.json
"""

import pathlib
import tempfile

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import BFloat16, Float32, Int64, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.experimental import primitives as prims

SIZE = 64


@cute.kernel
def gemm_tile(map_a: cutlass.GridConstant[cuda.TensorMap], map_b: cutlass.GridConstant[cuda.TensorMap], mC: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    source, major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    mma = cute.make_tiled_mma(warpgroup.MmaF16BF16Op(BFloat16, Float32, (SIZE, SIZE, 16), source, major, major))
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, BFloat16)
    layout = cute.tile_to_shape(atom, (SIZE, SIZE), (0, 1))
    smem = cutlass.utils.SmemAllocator()
    loaded = smem.allocate_array(Int64, 1)
    sA = smem.allocate_tensor(BFloat16, layout.outer, 1024, swizzle=layout.inner)
    sB = smem.allocate_tensor(BFloat16, layout.outer, 1024, swizzle=layout.inner)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(loaded, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(loaded, 2 * SIZE * SIZE * 2)
            prims.cp_async_bulk_tensor_shared_cta_global(sA.iterator, map_a.get_ptr(), (0, 0), loaded)
            prims.cp_async_bulk_tensor_shared_cta_global(sB.iterator, map_b.get_ptr(), (0, 0), loaded)
    cute.arch.mbarrier_wait(loaded, 0)
    thread = mma.get_slice(tid)
    rA, rB = mma.make_fragment_A(thread.partition_A(sA)), mma.make_fragment_B(thread.partition_B(sB))
    acc = cute.make_rmem_tensor(mma.partition_shape_C((SIZE, SIZE)), Float32)
    warpgroup.fence()
    for k in range_constexpr(SIZE // 16):
        mma.set(warpgroup.Field.ACCUMULATE, k != 0)
        cute.gemm(mma, acc, rA[None, None, k], rB[None, None, k], acc)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    cute.autovec_copy(acc, thread.partition_C(mC))


@cute.jit
def host(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: driver.CUstream):
    swizzle = cuda.TensorMapSwizzle.s128b
    map_a = cuda.create_tensor_map_tiled_from_view(a, box_dims=(SIZE, SIZE), swizzle=swizzle, stride_order=(1, 0))
    map_b = cuda.create_tensor_map_tiled_from_view(b, box_dims=(SIZE, SIZE), swizzle=swizzle, stride_order=(1, 0))
    gemm_tile.set_name_prefix("gemm_tile", keep_mangled_name=False, remove_cutlass_symbol=True)
    gemm_tile(map_a, map_b, c).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)


def main():
    tensor = lambda dtype: make_fake_compact_tensor(dtype, (SIZE, SIZE), stride_order=(1, 0), assumed_align=16)  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch sm_90a --keep-ptx --dump-dir {folder}"
        compiled = cute.compile(host, tensor(BFloat16), tensor(BFloat16), tensor(Float32), make_fake_stream(), options=options)
    out = pathlib.Path(__file__).with_suffix(".ptx")
    out.write_text(compiled.__ptx__)
    print("wrote", out)


if __name__ == "__main__":
    main()
