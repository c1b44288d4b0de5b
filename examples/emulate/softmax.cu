// Softmax of rows, one warp a row.
//
//     nvcc -arch=sm_90a -ptx examples/emulate/softmax.cu -o examples/emulate/softmax.ptx
//     fa4c emulate examples/emulate/softmax.ptx --launch examples/emulate/softmax.json
extern "C" __global__ void softmax(const float* in, float* out, int rows, int columns) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float top = -INFINITY, sum = 0;
  for (int i = lane; i < columns; i += 32) top = fmaxf(top, in[row * columns + i]);
  for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  for (int i = lane; i < columns; i += 32) sum += __expf(in[row * columns + i] - top);
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (int i = lane; i < columns; i += 32) out[row * columns + i] = __expf(in[row * columns + i] - top) / sum;
}
