// Units of the machine for the agreement of emulator and H200: integer-valued data where sums must be exact. Compiled for sm_90a.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cstdint>
namespace cg = cooperative_groups;

__device__ __forceinline__ uint32_t smem(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void mbar_init(uint64_t* b, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(b)), "r"(n)); }
__device__ __forceinline__ void mbar_expect(uint64_t* b, int n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(b)), "r"(n) : "memory"); }
__device__ __forceinline__ void mbar_wait(uint64_t* b, int phase) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(done) : "r"(smem(b)), "r"(phase) : "memory");
}

// C = A B^T, 64 x 64 x 64 in bf16: both operands by TMA in 128-byte rows, swizzled; four wgmma of K = 16.
extern "C" __global__ void wgmma_ss(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) { mbar_init(&bar, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbar_expect(&bar, 16384);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(smem(tiles)), "l"(&a), "r"(0), "r"(smem(&bar)) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(smem(tiles) + 8192), "l"(&b), "r"(0), "r"(smem(&bar)) : "memory");
  }
  mbar_wait(&bar, 0);
  float d[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) { d[i] = 0; asm volatile("" : "+f"(d[i])::"memory"); }  // written before the fence, not moved behind it
  uint64_t da = (uint64_t(1) << 62) | (uint64_t(64) << 32) | (uint64_t(1) << 16) | (smem(tiles) >> 4), db = da + 512;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(da + 2 * k), "l"(db + 2 * k));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) c[(row + (i & 2) * 4) * 64 + i / 4 * 8 + col + (i & 1)] = d[i];
}

// A ring of four CTAs: each sends its 512 bytes to the next one's shared memory by a bulk copy that completes on the receiver's mbarrier.
extern "C" __global__ void __cluster_dims__(4, 1, 1) ring(const int* in, int* out) {
  __shared__ alignas(128) int mine[128];
  __shared__ alignas(128) int got[128];
  __shared__ uint64_t bar;
  cg::cluster_group cluster = cg::this_cluster();
  unsigned next = (cluster.block_rank() + 1) % 4;
  if (threadIdx.x == 0) { mbar_init(&bar, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); mbar_expect(&bar, 512); }
  mine[threadIdx.x] = in[blockIdx.x * 128 + threadIdx.x] * 3 + static_cast<int>(cluster.block_rank());
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  cluster.sync();
  if (threadIdx.x == 0) {
    uint32_t dst, rbar;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(dst) : "r"(smem(got)), "r"(next));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(rbar) : "r"(smem(&bar)), "r"(next));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "r"(smem(mine)), "r"(512), "r"(rbar) : "memory");
  }
  mbar_wait(&bar, 0);
  out[blockIdx.x * 128 + threadIdx.x] = got[127 - threadIdx.x];
  cluster.sync();
}

// Atomics whose result does not depend on the order: integers, and floats that hold integers.
extern "C" __global__ void atomics(const int* in, int* ints, float* floats, unsigned long long* longs) {
  __shared__ int bins[16];
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  int v = in[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&bins[v & 15], 1);
  atomicAdd(&ints[0], v);
  atomicMin(&ints[1], v);
  atomicMax(&ints[2], v);
  atomicAnd(&ints[3], v | 0xf0f0);
  atomicOr(&ints[4], v & 0x7777);
  atomicXor(&ints[5], v);
  atomicInc(reinterpret_cast<unsigned*>(&ints[6]), 100);
  int seen = 0, old;  // a maximum by compare-and-swap, from a guess
  do { old = seen; seen = atomicCAS(&ints[7], old, max(old, v)); } while (seen != old);
  atomicAdd(&floats[v & 3], static_cast<float>(v & 1023));
  atomicAdd(longs, static_cast<unsigned long long>(static_cast<long long>(v)));
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&ints[8 + threadIdx.x], bins[threadIdx.x]);
}

// What a warp does together, partly with half the lanes: shuffles, votes, matches, reductions, a divergent loop.
extern "C" __global__ void warp(const int* in, int* out) {
  int i = threadIdx.x, v = in[i], n = blockDim.x;
  out[i] = __shfl_xor_sync(~0u, v, 5);
  out[n + i] = __shfl_up_sync(~0u, v, 3, 16);
  out[2 * n + i] = __shfl_down_sync(~0u, v, 2, 8);
  out[3 * n + i] = __shfl_sync(~0u, v, v & 31);
  out[4 * n + i] = __ballot_sync(~0u, v & 1);
  out[5 * n + i] = __any_sync(~0u, v == 3) * 2 + __all_sync(~0u, v != 4);
  out[6 * n + i] = __match_any_sync(~0u, v & 7);
  out[7 * n + i] = __reduce_add_sync(~0u, v);
  out[8 * n + i] = __reduce_max_sync(~0u, v) ^ __reduce_min_sync(~0u, v);
  out[9 * n + i] = __reduce_xor_sync(~0u, v);
  int r = 0;
  if (i % 32 < 16) r = __shfl_xor_sync(0xffff, v, 1) + __popc(__activemask() & 0xffff);
  else for (int k = 0; k < (i & 7); ++k) r = r * 31 + (v >> k);
  out[10 * n + i] = r;
}

// ldmatrix (plain and transposed), mma.sync m16n8k16 and cp.async: one warp, D = A B with A 16 x 16, B 16 x 8.
extern "C" __global__ void mma(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
  __shared__ alignas(128) __nv_bfloat16 sa[256];
  __shared__ alignas(128) __nv_bfloat16 sb[128];
  int t = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(smem(sa + 8 * t)), "l"(a + 8 * t) : "memory");
  if (t < 16) asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(smem(sb + 8 * t)), "l"(b + 8 * t) : "memory");
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  uint32_t x[4], y[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(smem(sa + (t % 16) * 16 + t / 16 * 8)));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(smem(sb + (t % 16) * 8)));
  float f[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) d[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = f[i];
}

// TMA tiles that hang over the edges of a 3-D tensor: zero fill on the way in at both ends of each dimension, clipped and added on the
// way out at the upper ends. A stored box must not start below zero (an illegal instruction), so it lies (4, 3, 1) behind the loaded one.
extern "C" __global__ void tma_edges(const __grid_constant__ CUtensorMap src, const __grid_constant__ CUtensorMap dst) {
  extern __shared__ __align__(1024) float tile[];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) { mbar_init(&bar, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  int x = static_cast<int>(blockIdx.x) * 16 - 4, y = static_cast<int>(blockIdx.y) * 8 - 3, z = static_cast<int>(blockIdx.z) * 2 - 1;
  if (threadIdx.x == 0) {
    mbar_expect(&bar, 16 * 8 * 2 * 4);
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(smem(tile)), "l"(&src), "r"(x), "r"(y), "r"(z), "r"(smem(&bar)) : "memory");
  }
  mbar_wait(&bar, 0);
  for (int i = threadIdx.x; i < 256; i += blockDim.x) tile[i] += 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&dst), "r"(x + 4), "r"(y + 3), "r"(z + 1), "r"(smem(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// One box from `from` to `to`: where a box may start.
extern "C" __global__ void tma_start(const __grid_constant__ CUtensorMap src, const __grid_constant__ CUtensorMap dst, int from_x, int from_y, int to_x, int to_y) {
  extern __shared__ __align__(1024) float tile[];
  __shared__ uint64_t bar;
  mbar_init(&bar, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  mbar_expect(&bar, 16 * 8 * 4);
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(smem(tile)), "l"(&src), "r"(from_x), "r"(from_y), "r"(smem(&bar)) : "memory");
  mbar_wait(&bar, 0);
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&dst), "r"(to_x), "r"(to_y), "r"(smem(tile)) : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// Atomics on vectors and 16-bit floats, one place a thread, so that no order matters: subnormals, zeros of both signs, what `atom` returns.
extern "C" __global__ void vector_atomics(const float4* x, float* one, float* in_shared, float2* two, float4* four, float2* old, uint2* add_bf16x2, uint2* add_f16x2, uint2* min_f16x2, uint4* max_bf16x2, float* bulk, uint32_t* bulk_min_f16x2) {
  __shared__ float mine[128];
  __shared__ alignas(128) float sent[128];
  __shared__ alignas(128) uint32_t halves[128];
  int t = threadIdx.x;
  float4 v = x[t];
  uint4 w = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(one + t), "f"(v.x) : "memory");
  mine[t] = in_shared[t];
  asm volatile("red.shared.add.f32 [%0], %1;" ::"r"(smem(mine + t)), "f"(v.x) : "memory");
  in_shared[t] = mine[t];
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(two + t), "f"(v.x), "f"(v.y) : "memory");
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(four + t), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
  float2 before;
  asm volatile("atom.global.add.v2.f32 {%0, %1}, [%2], {%3, %4};" : "=f"(before.x), "=f"(before.y) : "l"(old + t), "f"(v.z), "f"(v.w) : "memory");
  old[128 + t] = before;
  asm volatile("red.global.add.noftz.v2.bf16x2 [%0], {%1, %2};" ::"l"(add_bf16x2 + t), "r"(w.x), "r"(w.y) : "memory");
  asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(add_f16x2 + t), "r"(w.x), "r"(w.y) : "memory");
  asm volatile("red.global.min.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(min_f16x2 + t), "r"(w.x), "r"(w.z) : "memory");
  asm volatile("red.global.max.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(max_bf16x2 + t), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) : "memory");
  sent[t] = v.x;
  halves[t] = w.y;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 512;" ::"l"(bulk), "r"(smem(sent)) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f16 [%0], [%1], 512;" ::"l"(bulk_min_f16x2), "r"(smem(halves)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// CTAs add floats to the same sums one after the other, by acquire and release through global memory: the order decides the last bits.
extern "C" __global__ void ordered_sum(const float2* x, float2* sums, float2* copy, unsigned* turn) {
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
  if (threadIdx.x == 0) {
    unsigned now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != gridDim.x - 1 - blockIdx.x);
  }
  __syncthreads();
  float2 v = x[blockIdx.x * blockDim.x + threadIdx.x];
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(sums + threadIdx.x), "f"(v.x), "f"(v.y) : "memory");
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
  if (blockIdx.x == 0) copy[threadIdx.x] = sums[threadIdx.x];  // the last one; each thread reads what it added to
}
