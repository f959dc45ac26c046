/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUDA's driver interface that models use, as functions that are
 * found at run time.  Where cuda.h is included before, its declarations are
 * taken, which a test compares with these.
 */
#ifndef AOTC_CUDA_DRIVER_H
#define AOTC_CUDA_DRIVER_H

#include "aotc_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(CUDA_VERSION)
#if defined(_WIN32)
#define CUDAAPI __stdcall
#else
#define CUDAAPI
#endif
typedef int CUresult, CUdevice;
typedef int CUdevice_attribute, CUfunction_attribute, CUpointer_attribute;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
  CUfunction func;
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  void **kernelParams;
  void **extra;
  CUkernel kern;
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;
#endif

#define DRIVER_RESULTS(R)                                                      \
  R(SUCCESS, 0)                                                                \
  R(ERROR_INVALID_VALUE, 1)                                                    \
  R(ERROR_OUT_OF_MEMORY, 2)                                                    \
  R(ERROR_NO_DEVICE, 100)                                                      \
  R(ERROR_INVALID_DEVICE, 101)                                                 \
  R(ERROR_INVALID_IMAGE, 200)                                                  \
  R(ERROR_INVALID_CONTEXT, 201)                                                \
  R(ERROR_NO_BINARY_FOR_GPU, 209)                                              \
  R(ERROR_NOT_FOUND, 500)                                                      \
  R(ERROR_ILLEGAL_ADDRESS, 700)                                                \
  R(ERROR_CONTEXT_IS_DESTROYED, 709)                                           \
  R(ERROR_LAUNCH_FAILED, 719)

/* Values of the driver's enumerations. */
enum {
#define VALUE(name, value) name = value,
  DRIVER_RESULTS(VALUE)
#undef VALUE
      CAPABILITY_MAJOR = 75, /* attributes of a device */
  CAPABILITY_MINOR = 76,
  DYNAMIC_SHARED_BYTES = 8, /* attribute of a function */
  MEMORY_TYPE = 2,          /* attribute of a pointer ... */
  MEMORY_TYPE_HOST = 1,     /* ... what host memory has there ... */
  MEMORY_TYPE_DEVICE = 2,   /* ... and that of a device */
  BUFFER_ID = 7,            /* attribute of a pointer: no two allocations of a
                             * process have one number */
  DEVICE_ORDINAL = 9        /* attribute of a pointer */
};

#define DRIVER_FUNCTIONS(F)                                                    \
  F(cuInit, (unsigned int))                                                    \
  F(cuDriverGetVersion, (int *))                                               \
  F(cuGetErrorName, (CUresult, const char **))                                 \
  F(cuDeviceGet, (CUdevice *, int))                                            \
  F(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))               \
  F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                         \
  F(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                  \
  F(cuCtxPushCurrent_v2, (CUcontext))                                          \
  F(cuCtxPopCurrent_v2, (CUcontext *))                                         \
  F(cuModuleLoadData, (CUmodule *, const void *))                              \
  F(cuModuleUnload, (CUmodule))                                                \
  F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))               \
  F(cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))               \
  F(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                    \
  F(cuMemFree_v2, (CUdeviceptr))                                               \
  F(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))               \
  F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))           \
  F(cuPointerGetAttribute, (void *, CUpointer_attribute, CUdeviceptr))         \
  F(cuStreamCreate, (CUstream *, unsigned int))                                \
  F(cuStreamDestroy_v2, (CUstream))                                            \
  F(cuStreamSynchronize, (CUstream))                                           \
  F(cuStreamWaitEvent, (CUstream, CUevent, unsigned int))                      \
  F(cuEventCreate, (CUevent *, unsigned int))                                  \
  F(cuEventDestroy_v2, (CUevent))                                              \
  F(cuEventRecord, (CUevent, CUstream))                                        \
  F(cuLaunchKernel,                                                            \
    (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,       \
     unsigned int, unsigned int, unsigned int, CUstream, void **, void **))    \
  F(cuGraphCreate, (CUgraph *, unsigned int))                                  \
  F(cuGraphDestroy, (CUgraph))                                                 \
  F(cuGraphAddKernelNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *,     \
                              size_t, const CUDA_KERNEL_NODE_PARAMS_v2 *))     \
  F(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
  F(cuGraphExecDestroy, (CUgraphExec))                                         \
  F(cuGraphExecKernelNodeSetParams_v2,                                         \
    (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *))            \
  F(cuGraphUpload, (CUgraphExec, CUstream))                                    \
  F(cuGraphLaunch, (CUgraphExec, CUstream))

typedef struct aotc_cuda_driver {
#define MEMBER(name, parameters) CUresult(CUDAAPI *name) parameters;
  DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} aotc_cuda_driver;

#define TRY(call)                                                              \
  do {                                                                         \
    const CUresult tried = (call);                                             \
    if (tried != SUCCESS) return tried;                                        \
  } while (0)

/* A program on a device. */
struct aotc_cuda {
  const aotc_cuda_program *program;
  const aotc_model *model;
  aotc_cuda_driver call;
  char *message; /* of the caller, while it is opened */
  size_t message_bytes;
  int retained; /* whether there is a context */
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUdeviceptr weights;       /* never 0 on an open device */
  unsigned long long buffer; /* the number of their memory */
  CUfunction functions[1];   /* one for each kernel */
};

/* The name of an error; never NULL. */
const char *aotc_cuda_name_of(const aotc_cuda_driver *call, CUresult result);

/* Enters the context; an error where a reset of the device has freed all that
 * was opened in it. */
CUresult aotc_cuda_enter(const aotc_cuda *c);

/* The aotc_status for a result of the driver's. */
int aotc_cuda_status_of(CUresult result);

#ifdef __cplusplus
}
#endif

#endif
