/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model for GPUs written by hand: y = x + 1 + the sums of x * w by rows.
 * x + 1 has the memory of x * w, which nothing reads any more then.
 *
 * host MODE prints the status of opening, of a session, of a run, and what is
 * known beyond; then the outputs, a line each.  MODE "moved" prints numbers of
 * nodes that runs with other pointers change in the place of the last status.
 */
#include "aotc_cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRING(text) STRING_OF(text)
#define STRING_OF(text) #text
__asm__(".section .rodata\n.balign 64\nimage:\n.incbin " STRING(
    IMAGE) "\n"
           ".balign 8\nimage_end:\n.previous\n");
extern const unsigned char image[] __asm__("image");
extern const unsigned char image_end[] __asm__("image_end");

enum { ROWS = 4, ROW = 64, SIZE = ROWS * ROW, BYTES = SIZE * 4 };

static float weights[SIZE];
static const int64_t shape[] = {ROWS, ROW};
static const aotc_tensor inputs[] = {
    {"x", shape, BYTES, 2, AOTC_FLOAT32, NULL}};
static const aotc_tensor outputs[] = {
    {"y", shape, BYTES, 2, AOTC_FLOAT32, NULL}};
static aotc_cuda_image images[] = {{80, 0, image, image_end}};
static const aotc_cuda_kernel kernels[] = {
    {"product", ROW, 0}, {"sums", ROW, 0}, {"more", 32, 0}, {"joined", ROW, 0}};
enum { FIRST, SUMS = BYTES };
static const aotc_cuda_arg args[] = {
    {AOTC_CUDA_INPUT, 0, 0},     {AOTC_CUDA_WEIGHTS, 0, 0},
    {AOTC_CUDA_ARENA, 0, FIRST}, {AOTC_CUDA_ARENA, 0, FIRST},
    {AOTC_CUDA_ARENA, 0, SUMS},  {AOTC_CUDA_INPUT, 0, 0},
    {AOTC_CUDA_ARENA, 0, FIRST}, {AOTC_CUDA_ARENA, 0, FIRST},
    {AOTC_CUDA_ARENA, 0, SUMS},  {AOTC_CUDA_OUTPUT, 0, 0}};
#if !defined(MISSING)
#define MISSING -1
#endif
/* Kernel, grid, arguments, and an edge to the step before but for one. */
#define STEP(number, grid, first, count)                                       \
  {number, grid, first, count, number - 1, number > 0 && number != MISSING}
static const aotc_cuda_step steps[] = {STEP(0, ROWS, 0, 3), STEP(1, ROWS, 3, 2),
                                       STEP(2, SIZE / 32, 5, 2),
                                       STEP(3, ROWS, 7, 3)};
static const int32_t edges[] = {0, 1, 2};

static aotc_model model;
static aotc_cuda_program program;

static const aotc_model *info(void) {
  return &model;
}

/* What stands in for a caller who has memory of the device. */
typedef struct caller {
  CUresult (*allocate)(CUdeviceptr *, size_t);
  CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t);
  CUresult (*enter)(CUcontext);
  CUresult (*finish)(void);
} caller;

static void find_caller(caller *c, CUcontext context) {
  void *const driver = dlopen(getenv("AOTC_CUDA_DRIVER"), RTLD_NOW);
  *(void **)&c->allocate = dlsym(driver, "cuMemAlloc_v2");
  *(void **)&c->copy = dlsym(driver, "cuMemcpy");
  *(void **)&c->enter = dlsym(driver, "cuCtxPushCurrent_v2");
  *(void **)&c->finish = dlsym(driver, "cuCtxSynchronize");
  c->enter(context);
}

static int run_on_device(aotc_cuda *opened, aotc_cuda_session *session,
                         const float *x, float *y, aotc_run_options *options,
                         const char *mode) {
  const int odd = strncmp(mode, "odd", 3) == 0;
  const size_t more = odd || strncmp(mode, "shifted", 7) == 0 ? 16 : 0;
  CUdeviceptr given = 0, made = 0;
  caller c;
  const void *in;
  void *out;
  int status;
  find_caller(&c, opened->context);
  if (c.allocate(&given, BYTES + more) != SUCCESS ||
      c.allocate(&made, BYTES + more) != SUCCESS)
    return -1;
  in = (const void *)(uintptr_t)given;
  out = (void *)(uintptr_t)made;
  if (more > 0) { /* from pointers as kernels need them to others */
    if (aotc_cuda_run(session, &in, &out, options) != AOTC_OK) return -1;
    in = (const void *)(uintptr_t)(given += odd ? 1 : 4);
    out = (void *)(uintptr_t)(made += odd ? 3 : 12);
  }
  if (c.copy(given, (uintptr_t)x, BYTES) != SUCCESS) return -1;
  if (strcmp(mode, "touch") == 0) return (int)*(volatile const float *)in;
  if (strcmp(mode, "beyond") == 0) out = (char *)out + 64;
  status = aotc_cuda_run(session, &in, &out, options);
  if (c.copy((uintptr_t)y, made, BYTES) != SUCCESS) return -2;
  return status;
}

static CUresult(CUDAAPI *change)(CUgraphExec, CUgraphNode,
                                 const CUDA_KERNEL_NODE_PARAMS_v2 *);
static int changes;

static CUresult CUDAAPI counted(CUgraphExec graph, CUgraphNode node,
                                const CUDA_KERNEL_NODE_PARAMS_v2 *launch) {
  ++changes;
  return change(graph, node, launch);
}

/* The digits are how many nodes each run changes: the first, one with the
 * pointers of before, another output, another input, one at no multiple of 16
 * bytes, which has a copy of its own. */
static int count_changes(aotc_cuda *opened, aotc_cuda_session *session,
                         const float *x, float *y) {
  static const int places[][2] = {{0, 1}, {0, 1}, {0, 2}, {3, 2}, {4, 2}};
  CUdeviceptr memory[5];
  caller c;
  int k, digits = 0;
  find_caller(&c, opened->context);
  change = opened->call.cuGraphExecKernelNodeSetParams_v2;
  opened->call.cuGraphExecKernelNodeSetParams_v2 = counted;
  for (k = 0; k < 5; ++k)
    if (c.allocate(&memory[k], BYTES + 16) != SUCCESS) return -1;
  memory[4] += 4;
  for (k = 0; k < 5; ++k) {
    const void *const in = (const void *)(uintptr_t)memory[places[k][0]];
    void *const out = (void *)(uintptr_t)memory[places[k][1]];
    changes = 0;
    if (c.copy((uintptr_t)in, (uintptr_t)x, BYTES) != SUCCESS ||
        aotc_cuda_run(session, &in, &out, NULL) != AOTC_OK)
      return -2;
    digits = 10 * digits + changes;
  }
  return c.copy((uintptr_t)y, memory[2], BYTES) == SUCCESS ? digits : -3;
}

/* Takes away what runs must not call, and for callers who capture a stream all
 * that waits or marks. */
static void forbid(aotc_cuda_driver *call, const char *mode) {
  call->cuMemAlloc_v2 = NULL;
  call->cuModuleLoadData = NULL;
  call->cuStreamCreate = NULL;
  call->cuEventCreate = NULL;
  call->cuGraphInstantiateWithFlags = NULL;
  call->cuGraphUpload = NULL;
  if (strcmp(mode, "captured") != 0) return;
  call->cuStreamSynchronize = NULL;
  call->cuStreamWaitEvent = NULL;
  call->cuEventRecord = NULL;
  call->cuGraphLaunch = NULL;
}

static int run_mode(aotc_cuda *opened, aotc_cuda_session *session,
                    const float *x, float *y, const char *mode) {
  aotc_run_options options;
  aotc_cuda_options how;
  const void *in = x;
  void *out = y;
  memset(&options, 0, sizeof options);
  memset(&how, 0, sizeof how);
  options.size = sizeof options;
  options.cuda = &how;
  how.size = sizeof how;
  if (strstr(mode, "plain") != NULL) how.flags = AOTC_CUDA_PLAIN;
  if (strncmp(mode, "odd", 3) == 0) how.flags |= AOTC_CUDA_DEVICE_POINTERS;
  if (strcmp(mode, "late") == 0 || strcmp(mode, "captured") == 0) {
    caller c;
    how.flags = AOTC_CUDA_NO_WAIT;
    if (strcmp(mode, "captured") == 0) how.flags |= AOTC_CUDA_PLAIN;
    find_caller(&c, opened->context);
    if (aotc_cuda_run(session, &in, &out, &options) != AOTC_OK) return -1;
    if (y[0] != -1.0f) return -2;
    return (int)c.finish();
  }
  if (strcmp(mode, "moved") == 0) return count_changes(opened, session, x, y);
  if (strcmp(mode, "host") == 0 || strcmp(mode, "ptx") == 0 ||
      strcmp(mode, "plain") == 0)
    return aotc_cuda_run(session, &in, &out, &options);
  return run_on_device(opened, session, x, y, &options, mode);
}

int main(int argc, char **argv) {
  static float x[SIZE], y[SIZE];
  aotc_cuda *opened;
  aotc_cuda_session *session;
  char message[256];
  int k, status;
  model.inputs = inputs;
  model.outputs = outputs;
  model.num_inputs = model.num_outputs = 1;
  program.info = info;
  program.images = images;
  images[0].is_ptx = argc > 1 && strcmp(argv[1], "ptx") == 0;
  if (getenv("IMAGE_ARCH") != NULL) images[0].arch = atoi(getenv("IMAGE_ARCH"));
  program.kernels = kernels;
  program.steps = steps;
  program.args = args;
  program.edges = edges;
  program.num_images = 1;
  program.num_kernels = program.num_steps = 4;
  program.num_args = sizeof args / sizeof args[0];
  program.least_driver = 12000;
  program.weights = weights;
  program.weights_bytes = sizeof weights;
  program.arena_bytes = BYTES + 4 * ROWS;
  for (k = 0; k < SIZE; ++k) {
    x[k] = (float)(k % 7);
    weights[k] = (float)(k % 5);
    y[k] = -1.0f;
  }
  status = aotc_cuda_open(&program, 0, &opened, message, sizeof message);
  printf("%d %s\n", status, message);
  if (status != AOTC_OK || argc < 2) return 0;
  status = aotc_cuda_session_open(opened, &session);
  printf("%d\n", status);
  if (status == AOTC_OK) {
    const aotc_cuda_driver all = opened->call;
    forbid(&opened->call, argv[1]);
    status = run_mode(opened, session, x, y, argv[1]);
    opened->call = all;
    printf("%d %s\n", status, aotc_cuda_error(session));
    for (k = 0; k < SIZE; ++k)
      printf("%g\n", (double)y[k]);
  }
  aotc_cuda_session_close(session);
  aotc_cuda_close(opened);
  return 0;
}
