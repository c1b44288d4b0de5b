/* Stands in for the CUDA driver behind the CuTe-DSL's runtime, so that a peer's own host code runs without a GPU: nothing is launched;
 * grid, cluster, shared memory and parameters of each launch are noted for the emulator. Built by flash_attn_4.py. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LAUNCHES = 16, PARAMETER_BYTES = 65536 };

typedef struct {
  unsigned grid[3], block[3];
  size_t smem;
  void *stream;
  unsigned char *attributes; /* of 72 bytes each: an id, and at byte 8 its value */
  unsigned attribute_count;
} launch_config;

/* Set by Python before a call: the sizes of the kernel's parameters, from its PTX. */
int parameter_sizes[256], parameter_count;

int launch_count;
unsigned launch_shape[LAUNCHES][10]; /* grid, block, cluster; whether the launch before may still run */
size_t launch_smem[LAUNCHES];
unsigned char launch_parameters[LAUNCHES][PARAMETER_BYTES];

int _cudaLaunchKernelEx(launch_config *config, void *kernel, void **parameters) {
  int n = launch_count++ % LAUNCHES;
  size_t at = 0;
  memcpy(launch_shape[n], config->grid, 24);
  for (int i = 6; i < 10; i++) launch_shape[n][i] = i < 9;
  launch_smem[n] = config->smem;
  for (unsigned i = 0; i < config->attribute_count; i++) {
    unsigned *attribute = (unsigned *)(config->attributes + 72 * i);
    if (attribute[0] == 4) memcpy(&launch_shape[n][6], attribute + 2, 12); /* cluster dimension */
    if (attribute[0] == 6) launch_shape[n][9] = attribute[2];              /* programmatic stream serialization */
  }
  for (int i = 0; i < parameter_count && at + parameter_sizes[i] <= PARAMETER_BYTES; at += parameter_sizes[i++])
    memcpy(launch_parameters[n] + at, parameters[i], parameter_sizes[i]);
  return 0;
}

/* The 128 bytes that hold a tensor map, as the emulator decodes them (fa4c/runtime/emulator/tma.py). */
int _cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                            const uint32_t *element_strides, int interleave, int swizzle, int l2, int fill) {
  unsigned char *out = memset(map, 0, 128);
  uint32_t *word = (uint32_t *)out, steps = 0;
  *(uint64_t *)out = (uint64_t)address;
  word[2] = (rank - 1) << 4 | type << 7 | interleave << 11 | swizzle << 13 | fill << 15 | l2 << 17;
  for (unsigned i = 0; i + 1 < rank; i++) {
    word[3 + i] = (uint32_t)(strides[i] >> 4);
    word[7] |= (uint32_t)(strides[i] >> 36 & 15) << 4 * i;
  }
  for (unsigned i = 0; i < rank; i++) {
    word[8 + i] = (uint32_t)(dims[i] - 1);
    steps |= (element_strides[i] - 1) << 3 * i;
    out[55 + i] = box[i] - 1;
  }
  for (int i = 0; i < 3; i++) out[52 + i] = steps >> 8 * i;
  return 0;
}

static int device_attribute(int attribute) { return attribute == 97 ? 232448 : attribute == 16 ? 148 : 0; } /* shared memory, SMs */

static int loaded(void **handle) { *handle = handle; return 0; }
int _cudaLibraryLoadData(void **library, ...) { return loaded(library); }
int _cudaLibraryGetKernel(void **kernel, ...) { return loaded(kernel); }
int _cuLibraryLoadData(void **library, ...) { return loaded(library); }
int _cuLibraryGetKernel(void **kernel, ...) { return loaded(kernel); }
int _cudaDeviceGetAttribute(int *value, int attribute, int device) { return *value = device_attribute(attribute), 0; }
int _cuKernelGetAttribute(int *value, ...) { return *value = 0; }
int _cudaGetDevice(int *device) { return *device = 0; }
int _cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int _cudaLibraryUnload(void *library) { return 0; }
int _cuLibraryUnload(void *library) { return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) { return 0; }
int _cudaFuncSetAttribute(void *kernel, int attribute, int value) { return 0; }
int _cudaSetDevice(int device) { return 0; }
int _cudaDeviceSynchronize(void) { return 0; }
int cuda_dialect_init_library_once(void *a, void *b, void *c, void *d) { return 0; }
int cuda_dialect_unload_library_once(void *a, void *b, void *c, void *d) { return 0; }
void CuteDSLRT_TVMFFISetRaisedCudaError(int error) {}
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(int error) {}
