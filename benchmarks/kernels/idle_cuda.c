/* A libcuda.so.1 whose calls succeed and do nothing: it counts launches and encoded tensor maps,
   and keeps the parameters of the last launch. Triton's own launcher runs against it without a GPU,
   so that the host's share of a call can be measured and two ways of launching compared. */

#include <string.h>

#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_BYTES 8192

EXPORT long idle_launches, idle_maps, idle_pointer_queries;
EXPORT int idle_sizes[256], idle_size_count; /* bytes of each kernel parameter, set before */
EXPORT unsigned char idle_parameters[MOST_BYTES];
EXPORT int idle_parameter_bytes;
EXPORT unsigned idle_grid[3], idle_block, idle_shared_bytes;
EXPORT void *idle_stream, *idle_function;

static long modules;

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **extra) {
  idle_launches++;
  idle_grid[0] = c->gridDimX;
  idle_grid[1] = c->gridDimY;
  idle_grid[2] = c->gridDimZ;
  idle_block = c->blockDimX;
  idle_shared_bytes = c->sharedMemBytes;
  idle_stream = c->hStream;
  idle_function = f;
  idle_parameter_bytes = 0;
  for (int i = 0; i < idle_size_count; i++) {
    if (idle_parameter_bytes + idle_sizes[i] > MOST_BYTES) return CUDA_ERROR_INVALID_VALUE;
    memcpy(idle_parameters + idle_parameter_bytes, p[i], idle_sizes[i]);
    idle_parameter_bytes += idle_sizes[i];
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                       void *base, const cuuint64_t *shape,
                                       const cuuint64_t *strides, const cuuint32_t *box,
                                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                       CUtensorMapFloatOOBfill fill) {
  unsigned long long *at = (unsigned long long *)map;
  idle_maps++;
  memset(map, 0, sizeof *map);
  *at++ = (unsigned long long)base;
  *at++ = (unsigned long long)type << 32 | (unsigned long long)swizzle << 8 | fill;
  for (cuuint32_t i = 0; i < rank; i++) {
    *at++ = shape[i];
    *at++ = (unsigned long long)box[i] << 48 ^ (i + 1 < rank ? strides[i] : 0);
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *to, CUpointer_attribute a, CUdeviceptr p) {
  idle_pointer_queries++;
  memcpy(to, &p, sizeof p);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *m, const void *image) {
  *m = (CUmodule)++modules;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  *f = (CUfunction)m;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute a, CUfunction f) {
  *value = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice d) {
  *value = a == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132 : 232448; /* an H200's */
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *c) {
  *c = (CUcontext)1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *d) {
  *d = 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *d, int i) {
  *d = i;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *v) {
  *v = 13000;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult e, const char **text) {
  *text = "refused by the idle driver";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { return cuCtxGetCurrent(c); }
EXPORT CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxSetCurrent(CUcontext c) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleUnload(CUmodule m) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxSetLimit(CUlimit l, size_t v) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetLimit(size_t *v, CUlimit l) { return CUDA_SUCCESS; }
EXPORT CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) {
  *n = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
