/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs on devices: the driver, found at run time, code and weights.
 */
#if !defined(_WIN32) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE 1 /* dlopen under -std=c99 */
#endif
#include "aotc_cuda_driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the system */

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define DRIVER_LIBRARY "nvcuda.dll"
typedef FARPROC symbol_t;
#define open_library(path) (void *)LoadLibraryA(path)
#define find_symbol(handle, name) GetProcAddress((HMODULE)(handle), name)
#else
#include <dlfcn.h>
#define DRIVER_LIBRARY "libcuda.so.1"
typedef void *symbol_t;
#define open_library(path) dlopen(path, RTLD_NOW | RTLD_LOCAL)
#define find_symbol(handle, name) dlsym(handle, name)
#endif

/* --- a program on a device */

static int told(int status, char *message, size_t bytes) {
  if (bytes > 0) snprintf(message, bytes, "%s", aotc_status_message(status));
  return status;
}

/* A status, and a sentence about it with what is known beyond; of an opening
 * the first one stays. */
static int failed(const aotc_cuda *c, int status, const char *format, ...) {
  char detail[256];
  va_list values;
  va_start(values, format);
  vsnprintf(detail, sizeof detail, format, values);
  va_end(values);
  if (c->message_bytes > 0 && *c->message == '\0')
    snprintf(c->message, c->message_bytes, "%s: %s",
             aotc_status_message(status), detail);
  return status;
}

int aotc_cuda_status_of(CUresult result) {
  switch ((int)result) {
  case SUCCESS: return AOTC_OK;
  case ERROR_OUT_OF_MEMORY: return AOTC_ERROR_DEVICE_MEMORY;
  case ERROR_NO_DEVICE:
  case ERROR_INVALID_DEVICE: return AOTC_ERROR_NO_DEVICE;
  case ERROR_NO_BINARY_FOR_GPU: return AOTC_ERROR_NO_CODE;
  default: return AOTC_ERROR_CUDA;
  }
}

const char *aotc_cuda_name_of(const aotc_cuda_driver *call, CUresult result) {
  const char *name = NULL;
  if (call->cuGetErrorName != NULL) call->cuGetErrorName(result, &name);
  return name != NULL ? name : "unknown error";
}

/* The status for a result, and the name of an error. */
static int checked(const aotc_cuda *c, CUresult result) {
  const int status = aotc_cuda_status_of(result);
  if (status == AOTC_OK) return status;
  return failed(c, status, "%s", aotc_cuda_name_of(&c->call, result));
}

static int load_driver(aotc_cuda *c) {
  const char *const given = getenv("AOTC_CUDA_DRIVER");
  const char *const path =
      given != NULL && *given != '\0' ? given : DRIVER_LIBRARY;
  void *const library = open_library(path); /* for good: it has threads */
  const int least = c->program->least_driver;
  symbol_t symbol;
  CUresult result;
  int version = 0;
  if (library == NULL)
    return failed(c, AOTC_ERROR_NO_DRIVER, "there is no %s", path);
#define FIND(name, parameters)                                                 \
  symbol = find_symbol(library, #name);                                        \
  if (symbol == NULL)                                                          \
    return failed(c, AOTC_ERROR_OLD_DRIVER, "it has no %s", #name);            \
  memcpy(&c->call.name, &symbol, sizeof symbol); /* ISO C has no such cast */
  DRIVER_FUNCTIONS(FIND)
#undef FIND
  result = c->call.cuInit(0);
  if (result == SUCCESS) result = c->call.cuDriverGetVersion(&version);
  if (result != SUCCESS) return checked(c, result);
  if (version < least)
    return failed(c, AOTC_ERROR_OLD_DRIVER, "it is for CUDA %d.%d, not %d.%d",
                  version / 1000, version % 1000 / 10, least / 1000,
                  least % 1000 / 10);
  return AOTC_OK;
}

/* Whether machine code of one architecture runs on another one: on those of its
 * major version that are not older.  That of Jetson and DRIVE (8.7, 10.1, which
 * CUDA 13 calls 11.0) is for nothing else, and they take no other. */
static int runs_on(int code, int arch) {
  const int is_tegra = code == 87 || arch == 87 || code == 101 || arch == 101;
  return code == arch || (code < arch && code / 10 == arch / 10 && !is_tegra);
}

/* The best code for a device: that of its own kind and the newest; NULL where
 * there is none. */
static const aotc_cuda_image *find_image(const aotc_cuda_program *p, int arch) {
  const aotc_cuda_image *best = NULL;
  int32_t k;
  for (k = 0; k < p->num_images; ++k) {
    const aotc_cuda_image *const one = &p->images[k];
    const int fits = one->is_ptx ? one->arch <= arch : runs_on(one->arch, arch);
    if (fits && (best == NULL || one->is_ptx < best->is_ptx ||
                 (one->is_ptx == best->is_ptx && one->arch > best->arch)))
      best = one;
  }
  return best;
}

/* The code, its functions and the weights; in the context. */
static CUresult load_code(aotc_cuda *c, const aotc_cuda_image *image) {
  const aotc_cuda_program *const p = c->program;
  const aotc_cuda_driver *const call = &c->call;
  int32_t k;
  TRY(call->cuModuleLoadData(&c->module, image->begin));
  for (k = 0; k < p->num_kernels; ++k) {
    const aotc_cuda_kernel *const kernel = &p->kernels[k];
    TRY(call->cuModuleGetFunction(&c->functions[k], c->module, kernel->name));
    if (kernel->shared_bytes > 0)
      TRY(call->cuFuncSetAttribute(c->functions[k], DYNAMIC_SHARED_BYTES,
                                   kernel->shared_bytes));
  }
  TRY(call->cuMemAlloc_v2(&c->weights,
                          p->weights_bytes > 0 ? (size_t)p->weights_bytes : 1));
  TRY(call->cuPointerGetAttribute(&c->buffer, BUFFER_ID, c->weights));
  if (p->weights_bytes == 0) return SUCCESS;
  TRY(call->cuMemcpyAsync(c->weights, (uintptr_t)p->weights,
                          (size_t)p->weights_bytes, NULL));
  return call->cuStreamSynchronize(NULL);
}

/* After a reset the context may be there again, and memory of others where the
 * weights were; its buffer has another number. */
CUresult aotc_cuda_enter(const aotc_cuda *c) {
  const aotc_cuda_driver *const call = &c->call;
  unsigned long long buffer = 0;
  CUcontext popped;
  CUresult result;
  TRY(call->cuCtxPushCurrent_v2(c->context));
  if (c->buffer == 0) return SUCCESS; /* while it is opened */
  result = call->cuPointerGetAttribute(&buffer, BUFFER_ID, c->weights);
  if (result == SUCCESS && buffer == c->buffer) return SUCCESS;
  call->cuCtxPopCurrent_v2(&popped);
  return result == SUCCESS || result == ERROR_INVALID_VALUE
             ? ERROR_CONTEXT_IS_DESTROYED
             : result;
}

static CUresult open_device(aotc_cuda *c, int32_t device) {
  const aotc_cuda_driver *const call = &c->call;
  const aotc_cuda_image *image;
  CUcontext popped;
  CUresult result;
  int major, minor;
  TRY(call->cuDeviceGet(&c->device, device));
  TRY(call->cuDeviceGetAttribute(&major, CAPABILITY_MAJOR, c->device));
  TRY(call->cuDeviceGetAttribute(&minor, CAPABILITY_MINOR, c->device));
  image = find_image(c->program, 10 * major + minor);
  if (image == NULL) {
    failed(c, AOTC_ERROR_NO_CODE, "its compute capability is %d.%d", major,
           minor);
    return ERROR_NO_BINARY_FOR_GPU;
  }
  TRY(call->cuDevicePrimaryCtxRetain(&c->context, c->device));
  c->retained = 1;
  TRY(call->cuCtxPushCurrent_v2(c->context));
  result = load_code(c, image);
  call->cuCtxPopCurrent_v2(&popped);
  return result;
}

int aotc_cuda_open(const aotc_cuda_program *program, int32_t device,
                   aotc_cuda **opened, char *message, size_t message_bytes) {
  aotc_cuda *c;
  int status;
  if (message_bytes > 0) *message = '\0';
  if (opened != NULL) *opened = NULL;
  if (opened == NULL || program == NULL)
    return told(AOTC_ERROR_NULL_ARGUMENT, message, message_bytes);
  c = (aotc_cuda *)calloc(1, sizeof *c + (size_t)program->num_kernels *
                                             sizeof c->functions[0]);
  if (c == NULL) return told(AOTC_ERROR_HOST_MEMORY, message, message_bytes);
  c->program = program;
  c->model = program->info();
  c->message = message;
  c->message_bytes = message_bytes;
  status = load_driver(c);
  if (status == AOTC_OK) status = checked(c, open_device(c, device));
  c->message_bytes = 0;
  if (status == AOTC_OK)
    *opened = c;
  else
    aotc_cuda_close(c);
  return status;
}

void aotc_cuda_close(aotc_cuda *opened) {
  CUcontext popped;
  if (opened == NULL) return;
  if (opened->retained) {
    const aotc_cuda_driver *const call = &opened->call;
    if (aotc_cuda_enter(opened) == SUCCESS) {
      if (opened->weights != 0) call->cuMemFree_v2(opened->weights);
      if (opened->module != NULL) call->cuModuleUnload(opened->module);
      call->cuCtxPopCurrent_v2(&popped);
    }
    call->cuDevicePrimaryCtxRelease_v2(opened->device);
  }
  free(opened);
}
