// Small CUDA C++ kernels for the emulator's tests. nvcc -arch=sm_90a -ptx kernels.cu -o kernels.ptx (CUDA 13.0).
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cstdint>
namespace cg = cooperative_groups;

__device__ __forceinline__ uint32_t smem(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void mbar_init(uint64_t* b, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(b)), "r"(n)); }
__device__ __forceinline__ void mbar_arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(b)) : "memory"); }
__device__ __forceinline__ void mbar_expect(uint64_t* b, int n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(b)), "r"(n) : "memory"); }
__device__ __forceinline__ void mbar_wait(uint64_t* b, int phase) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(done) : "r"(smem(b)), "r"(phase) : "memory");
}

// Softmax of rows of 256 floats, one block of 128 threads a row: shuffles, shared memory, exp, divisions, early exit.
extern "C" __global__ void softmax(const float* in, float* out, int rows, int n) {
  __shared__ float part[4];
  int row = blockIdx.x;
  if (row >= rows) return;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, in[row * n + i]);
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
  __syncthreads();
  m = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  __syncthreads();
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += __expf(in[row * n + i] - m);
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = part[0] + part[1] + part[2] + part[3];
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[row * n + i] = __expf(in[row * n + i] - m) / s;
}

// Integer torture: division, modulo, 64-bit products, bit fields, divergent loops.
extern "C" __global__ void integers(const int* in, int* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, x = in[i], r = 0;
  for (int k = 1; k <= (i & 7) + 1; ++k) {
    if ((x ^ k) & 1) r += x / (k + 2);
    else r -= x % (k + 3);
    x = static_cast<int>((static_cast<long long>(x) * 1103515245 + 12345) >> 7);
    r ^= __popc(x) << (k & 15);
    r += __clz(x) + __ffs(x);
  }
  out[i] = r;
}

// Two warps: one copies chunks by bulk copies through two stages, the other adds them up.
extern "C" __global__ void pipeline(const float* in, float* out, int chunks) {
  __shared__ alignas(128) float stage[2][128];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; ++i) { mbar_init(&full[i], 1); mbar_init(&empty[i], 32); }
  __syncthreads();
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0)
      for (int c = 0; c < chunks; ++c) {
        mbar_wait(&empty[c % 2], (c / 2 & 1) ^ 1);
        mbar_expect(&full[c % 2], 512);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem(stage[c % 2])), "l"(in + 128 * c), "r"(512),
                     "r"(smem(&full[c % 2])) : "memory");
      }
  } else {
    int t = threadIdx.x - 32;
    float sum[4] = {0, 0, 0, 0};
    for (int c = 0; c < chunks; ++c) {
      mbar_wait(&full[c % 2], c / 2 & 1);
      for (int i = 0; i < 4; ++i) sum[i] += stage[c % 2][t + 32 * i];
      mbar_arrive(&empty[c % 2]);
    }
    for (int i = 0; i < 4; ++i) out[t + 32 * i] = sum[i];
  }
}

// A cluster of two: each block reads the other's shared memory; then both count themselves in.
extern "C" __global__ void __cluster_dims__(2, 1, 1) dsmem(const float* in, float* out, int* count) {
  __shared__ float mine[64];
  cg::cluster_group cluster = cg::this_cluster();
  int i = blockIdx.x * 64 + threadIdx.x;
  mine[threadIdx.x] = in[i] * 2;
  cluster.sync();
  float* other = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1);
  out[i] = other[63 - threadIdx.x];
  if (threadIdx.x == 0) atomicAdd(count, 1);
  cluster.sync();
}

// The last block to finish adds up what all blocks wrote (threadfence reduction).
extern "C" __global__ void last_block(const float* in, float* partial, int* ticket, float* out) {
  __shared__ bool last;
  float v = in[blockIdx.x * 32 + threadIdx.x];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(ticket, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int b = 0; b < gridDim.x; ++b) s += reinterpret_cast<volatile float*>(partial)[b];
    *out = s;
  }
}

// A 2-D TMA tile, doubled and stored back.
extern "C" __global__ void tma_double(const __grid_constant__ CUtensorMap src, const __grid_constant__ CUtensorMap dst) {
  extern __shared__ __align__(1024) __nv_bfloat16 tile[];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) mbar_init(&bar, 1);
  __syncthreads();
  int x = blockIdx.x * 64, y = blockIdx.y * 32;
  if (threadIdx.x == 0) {
    mbar_expect(&bar, 64 * 32 * 2);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(smem(tile)), "l"(&src), "r"(x), "r"(y), "r"(smem(&bar)) : "memory");
  }
  mbar_wait(&bar, 0);
  for (int i = threadIdx.x; i < 64 * 32; i += blockDim.x) tile[i] = __float2bfloat16(__bfloat162float(tile[i]) * 2.0f);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&dst), "r"(x), "r"(y), "r"(smem(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// Arrays with run-time indices live in local memory; a histogram by shared atomics.
extern "C" __global__ void histogram(const unsigned char* in, int* out, int n) {
  __shared__ int bins[256];
  int local[8];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
  for (int i = 0; i < 8; ++i) local[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    atomicAdd(&bins[in[i]], 1);
    local[in[i] & 7] += 1;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], bins[i]);
  int odd = local[1] + local[3] + local[5] + local[7];
  for (int i = 0; i < 8; ++i) odd += local[(i + n) & 7] * 0;
  atomicAdd(&out[256], odd);
}
