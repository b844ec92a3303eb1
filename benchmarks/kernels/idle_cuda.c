/* A libcuda.so.1 whose calls succeed and do nothing: it counts launches and encoded tensor maps,
   and digests all that each launch was given. Triton's own launcher runs against it without a GPU,
   so that the host's share of a call can be measured and two ways of launching compared. */

#include <string.h>

#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_FUNCTIONS 512
#define MOST_PARAMETERS 128

EXPORT long idle_launches, idle_maps, idle_pointer_queries;
EXPORT int idle_sizes[MOST_FUNCTIONS][MOST_PARAMETERS]; /* bytes of each parameter, 0 after all */
EXPORT unsigned long long idle_digest;

static long functions;

static void digest(const void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    idle_digest = (idle_digest ^ ((const unsigned char *)data)[i]) * 1099511628211ull;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **extra) {
  long id = (long)f;
  if (id < 1 || id >= MOST_FUNCTIONS) return CUDA_ERROR_INVALID_VALUE;
  idle_launches++;
  digest(&id, sizeof id);
  digest(&c->gridDimX, 6 * sizeof c->gridDimX); /* grid and block lie side by side */
  digest(&c->sharedMemBytes, sizeof c->sharedMemBytes);
  digest(&c->hStream, sizeof c->hStream);
  digest(&c->numAttrs, sizeof c->numAttrs);
  for (int i = 0; idle_sizes[id][i]; i++) digest(p[i], idle_sizes[id][i]);
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
  *m = (CUmodule)++functions;
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
