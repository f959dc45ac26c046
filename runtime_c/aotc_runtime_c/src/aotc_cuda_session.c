/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of each tier becomes a graph of the driver's once, node by node,
 * with the edges of the tables: branches run side by side, and a run with other
 * pointers than the last changes the nodes that have them and no others.
 */
#include "aotc_cuda_driver.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define exchange(word, value) InterlockedExchange(word, value)
#else
#define exchange(word, value) __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST)
#endif

/* --- a session */

enum {
  ROOM_ALIGN = 256,
  TENSOR_ALIGN = 16 /* what kernels rely on */
};

/* The steps of one tier as a graph, if there are any. */
typedef struct schedule {
  CUgraph graph;
  CUgraphExec exec;
  int moved; /* whether tensors have moved since its arguments got values */
} schedule;

/* Of the tensors those of the inputs come first. */
struct aotc_cuda_session {
  aotc_cuda *cuda;
  CUdeviceptr memory;  /* the arena, then room for tensors that are copied */
  CUdeviceptr *room;   /* of each tensor */
  CUdeviceptr *bases;  /* where the last run found each */
  CUdeviceptr state;   /* the block of state that was checked last, or 0 */
  CUdeviceptr *values; /* of all arguments */
  void **params;       /* their addresses */
  CUstream stream;
  schedule *schedules; /* one for each tier */
  CUgraphNode *nodes;  /* one for each step, then as many for edges */
  CUevent done;        /* of the last run, where it was not waited for, ... */
  int pending;         /* ... if this is set */
  CUresult error;
  long busy;
};

static const aotc_tensor *tensor_of(const aotc_model *model, int32_t k) {
  return k < model->num_inputs ? &model->inputs[k]
                               : &model->outputs[k - model->num_inputs];
}

static int32_t count_schedules(const aotc_cuda_program *p) {
  return p->num_tiers > 0 ? p->num_tiers : 1;
}

/* A tier of a program; one of all steps for a program without tiers. */
static aotc_cuda_tier tier_of(const aotc_cuda_program *p, int32_t number) {
  aotc_cuda_tier all;
  if (p->num_tiers > 0) return p->tiers[number];
  all.first_step = 0;
  all.num_steps = p->num_steps;
  all.bytes = NULL;
  return all;
}

/* The bytes that a tensor has in a tier. */
static size_t bytes_of(const aotc_model *model, const aotc_cuda_tier *tier,
                       int32_t k) {
  return tier->bytes != NULL ? (size_t)tier->bytes[k]
                             : tensor_of(model, k)->bytes;
}

static uint64_t rounded(uint64_t bytes) {
  return (bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
}

static CUdeviceptr value_of(const aotc_cuda_session *s,
                            const aotc_cuda_arg *arg) {
  const int32_t inputs = s->cuda->model->num_inputs;
  switch (arg->place) {
  case AOTC_CUDA_INPUT: return s->bases[arg->number] + arg->offset;
  case AOTC_CUDA_OUTPUT: return s->bases[inputs + arg->number] + arg->offset;
  case AOTC_CUDA_ARENA: return s->memory + arg->offset;
  default: return s->cuda->weights + arg->offset;
  }
}

static CUDA_KERNEL_NODE_PARAMS_v2 launch_of(const aotc_cuda_session *s,
                                            const aotc_cuda_step *step) {
  const aotc_cuda_kernel *const kernel =
      &s->cuda->program->kernels[step->kernel];
  CUDA_KERNEL_NODE_PARAMS_v2 made;
  memset(&made, 0, sizeof made);
  made.func = s->cuda->functions[step->kernel];
  made.gridDimX = (unsigned int)step->grid;
  made.blockDimX = (unsigned int)kernel->block;
  made.gridDimY = made.gridDimZ = made.blockDimY = made.blockDimZ = 1;
  made.sharedMemBytes = (unsigned int)kernel->shared_bytes;
  made.kernelParams = s->params + step->first_arg;
  return made;
}

/* Gives the arguments of a tier their values, also in the nodes of a graph that
 * is made. */
static CUresult bind_arguments(aotc_cuda_session *s, int32_t number) {
  const aotc_cuda_program *const p = s->cuda->program;
  const aotc_cuda_tier tier = tier_of(p, number);
  schedule *const made = &s->schedules[number];
  int32_t k, i;
  for (k = tier.first_step; k < tier.first_step + tier.num_steps; ++k) {
    const aotc_cuda_step *const step = &p->steps[k];
    int changed = 0;
    for (i = step->first_arg; i < step->first_arg + step->num_args; ++i) {
      const CUdeviceptr value = value_of(s, &p->args[i]);
      changed |= value != s->values[i];
      s->values[i] = value;
    }
    if (changed && made->exec != NULL) {
      const CUDA_KERNEL_NODE_PARAMS_v2 launch = launch_of(s, step);
      const CUresult result = s->cuda->call.cuGraphExecKernelNodeSetParams_v2(
          made->exec, s->nodes[k], &launch);
      if (result != SUCCESS) {
        s->values[step->first_arg] = 0; /* the next run tries again */
        return result;
      }
    }
  }
  made->moved = 0;
  return SUCCESS;
}

static CUresult make_graph(aotc_cuda_session *s, int32_t number) {
  const aotc_cuda_program *const p = s->cuda->program;
  const aotc_cuda_driver *const call = &s->cuda->call;
  const aotc_cuda_tier tier = tier_of(p, number);
  schedule *const made = &s->schedules[number];
  CUgraphNode *const before = s->nodes + p->num_steps;
  int32_t k, i;
  if (tier.num_steps == 0) return SUCCESS;
  TRY(call->cuGraphCreate(&made->graph, 0));
  for (k = tier.first_step; k < tier.first_step + tier.num_steps; ++k) {
    const aotc_cuda_step *const step = &p->steps[k];
    const CUDA_KERNEL_NODE_PARAMS_v2 launch = launch_of(s, step);
    for (i = 0; i < step->num_edges; ++i)
      before[i] = s->nodes[p->edges[step->first_edge + i]];
    TRY(call->cuGraphAddKernelNode_v2(&s->nodes[k], made->graph, before,
                                      (size_t)step->num_edges, &launch));
  }
  TRY(call->cuGraphInstantiateWithFlags(&made->exec, made->graph, 0));
  TRY(call->cuGraphUpload(made->exec, s->stream));
  return call->cuStreamSynchronize(s->stream);
}

/* Memory on the device, the stream and the graphs; in the context. */
static CUresult prepare(aotc_cuda_session *s) {
  const aotc_cuda_program *const p = s->cuda->program;
  const aotc_cuda_driver *const call = &s->cuda->call;
  const int32_t tensors =
      s->cuda->model->num_inputs + s->cuda->model->num_outputs;
  uint64_t bytes = rounded(p->arena_bytes);
  int32_t k;
  for (k = 0; k < tensors; ++k) {
    s->room[k] = bytes;
    bytes += rounded(tensor_of(s->cuda->model, k)->bytes);
  }
  if (bytes > 0) TRY(call->cuMemAlloc_v2(&s->memory, (size_t)bytes));
  for (k = 0; k < tensors; ++k)
    s->bases[k] = s->room[k] += s->memory;
  for (k = 0; k < p->num_args; ++k)
    s->params[k] = &s->values[k];
  TRY(call->cuStreamCreate(&s->stream, 0));
  if (p->arena_bytes >
      0) /* counts of blocks begin with 0; runs leave it there */
    TRY(call->cuMemsetD8Async(s->memory, 0, (size_t)p->arena_bytes, s->stream));
  TRY(call->cuEventCreate(&s->done, 0));
  for (k = 0; k < count_schedules(p); ++k) {
    TRY(bind_arguments(s, k));
    TRY(make_graph(s, k));
  }
  return SUCCESS;
}

/* A session without anything of the device's; NULL where there is no room. */
static aotc_cuda_session *make_session(aotc_cuda *cuda) {
  const aotc_cuda_program *const p = cuda->program;
  const size_t tensors =
      (size_t)cuda->model->num_inputs + (size_t)cuda->model->num_outputs;
  const size_t args = (size_t)p->num_args, steps = (size_t)p->num_steps;
  aotc_cuda_session *const s = (aotc_cuda_session *)calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->cuda = cuda;
  s->room = (CUdeviceptr *)calloc(2 * tensors + args + 1, sizeof *s->room);
  s->params = (void **)calloc(args + 1, sizeof *s->params);
  s->nodes = (CUgraphNode *)calloc(2 * steps + 1, sizeof *s->nodes);
  s->schedules =
      (schedule *)calloc((size_t)count_schedules(p), sizeof *s->schedules);
  if (s->room == NULL || s->params == NULL || s->nodes == NULL ||
      s->schedules == NULL) {
    aotc_cuda_session_close(s);
    return NULL;
  }
  s->bases = s->room + tensors;
  s->values = s->bases + tensors;
  return s;
}

int aotc_cuda_session_open(aotc_cuda *opened, aotc_cuda_session **session) {
  aotc_cuda_session *s;
  CUcontext popped;
  CUresult result;
  if (session != NULL) *session = NULL;
  if (opened == NULL || session == NULL) return AOTC_ERROR_NULL_ARGUMENT;
  s = make_session(opened);
  if (s == NULL) return AOTC_ERROR_HOST_MEMORY;
  result = aotc_cuda_enter(opened);
  if (result == SUCCESS) {
    result = prepare(s);
    opened->call.cuCtxPopCurrent_v2(&popped);
  }
  if (result == SUCCESS)
    *session = s;
  else
    aotc_cuda_session_close(s);
  return aotc_cuda_status_of(result);
}

void aotc_cuda_session_close(aotc_cuda_session *s) {
  CUcontext popped;
  int32_t k;
  if (s == NULL) return;
  if (aotc_cuda_enter(s->cuda) == SUCCESS) {
    const aotc_cuda_driver *const call = &s->cuda->call;
    if (s->pending) call->cuStreamWaitEvent(s->stream, s->done, 0);
    if (s->stream != NULL) call->cuStreamSynchronize(s->stream);
    for (k = 0; s->schedules != NULL && k < count_schedules(s->cuda->program);
         ++k) {
      const schedule *const made = &s->schedules[k];
      if (made->exec != NULL) call->cuGraphExecDestroy(made->exec);
      if (made->graph != NULL) call->cuGraphDestroy(made->graph);
    }
    if (s->done != NULL) call->cuEventDestroy_v2(s->done);
    if (s->stream != NULL) call->cuStreamDestroy_v2(s->stream);
    if (s->memory != 0) call->cuMemFree_v2(s->memory);
    call->cuCtxPopCurrent_v2(&popped);
  }
  free(s->schedules);
  free(s->nodes);
  free(s->params);
  free(s->room);
  free(s);
}

const char *aotc_cuda_error(const aotc_cuda_session *session) {
  if (session == NULL) return "no session";
  return aotc_cuda_name_of(&session->cuda->call, session->error);
}

const aotc_cuda_calls aotc_cuda_functions = {
    aotc_cuda_open,          aotc_cuda_close, aotc_cuda_session_open,
    aotc_cuda_session_close, aotc_cuda_error,
};

/* --- a run */

typedef struct run {
  const void *const *inputs;
  void *const *outputs;
  aotc_run_options options;
  aotc_cuda_options how;
  int32_t number; /* of the tier */
  aotc_cuda_tier tier;
  CUstream stream;
  int no_wait, plain;
  int by_caller; /* who orders the runs of the session */
} run;

/* Copies as much of options as the caller knows; their size comes first. */
static int read_options(void *to, size_t bytes, const void *from) {
  size_t size;
  if (from == NULL) return 1;
  memcpy(&size, from, sizeof size);
  if (size < sizeof size) return 0;
  memcpy(to, from, size < bytes ? size : bytes);
  return 1;
}

static const void *pointer_of(const run *r, const aotc_model *model,
                              int32_t k) {
  return k < model->num_inputs ? r->inputs[k]
                               : r->outputs[k - model->num_inputs];
}

static int is_on_device(const aotc_cuda_driver *call, CUdeviceptr pointer) {
  unsigned int type = MEMORY_TYPE_HOST; /* what the driver does not know is */
  return call->cuPointerGetAttribute(&type, MEMORY_TYPE, pointer) == SUCCESS &&
         type != MEMORY_TYPE_HOST;
}

/* The number of the input that is the block of state; -1 without one. */
static int32_t state_of(const aotc_cuda_session *s) {
  return s->cuda->program->state_hash != NULL ? s->cuda->model->num_inputs - 1
                                              : -1;
}

/* Whether memory begins as a block of state of the model. */
static int check_state(aotc_cuda_session *s, const run *r, CUdeviceptr pointer,
                       int on_device) {
  const aotc_cuda_driver *const call = &s->cuda->call;
  uint32_t hash[2] = {0, 0};
  if (!on_device) {
    memcpy(hash, (const void *)(uintptr_t)pointer, sizeof hash);
  } else {
    s->error =
        call->cuMemcpyAsync((uintptr_t)hash, pointer, sizeof hash, r->stream);
    if (s->error == SUCCESS) s->error = call->cuStreamSynchronize(r->stream);
    if (s->error != SUCCESS) return AOTC_ERROR_CUDA;
  }
  return memcmp(hash, s->cuda->program->state_hash, sizeof hash) == 0
             ? AOTC_OK
             : AOTC_ERROR_STATE;
}

/* Set the device address of each input and output; return AOTC_OK, or the error
 * of a tensor. */
static int find_tensors(aotc_cuda_session *s, const run *r) {
  const aotc_model *const model = s->cuda->model;
  int32_t k, i;
  for (k = 0; k < model->num_inputs + model->num_outputs; ++k) {
    const aotc_tensor *const tensor = tensor_of(model, k);
    const uintptr_t pointer = (uintptr_t)pointer_of(r, model, k);
    CUdeviceptr base = s->room[k];
    int on_device, status;
    if (bytes_of(model, &r->tier, k) == 0) continue;
    if (pointer == 0) return AOTC_ERROR_NULL_ARGUMENT;
    on_device = is_on_device(&s->cuda->call, pointer);
    if (on_device) {
      if (pointer % TENSOR_ALIGN == 0) base = pointer;
    } else if (r->how.flags & AOTC_CUDA_DEVICE_POINTERS) {
      return AOTC_ERROR_POINTER;
    } else if (pointer % aotc_dtype_bytes(tensor->dtype) != 0) {
      return AOTC_ERROR_ALIGNMENT;
    }
    if (k == state_of(s) &&
        (!on_device || (!r->by_caller && pointer != s->state))) {
      status = check_state(s, r, pointer, on_device);
      if (status != AOTC_OK) return status;
      s->state = on_device ? pointer : 0;
    }
    for (i = 0; base != s->bases[k] && i < count_schedules(s->cuda->program);
         ++i)
      s->schedules[i].moved = 1;
    s->bases[k] = base;
  }
  return AOTC_OK;
}

/* Copies the tensors from `first` on that lie where kernels cannot use them, to
 * the room for them or back. */
static CUresult copy_tensors(const aotc_cuda_session *s, const run *r,
                             int32_t first, int32_t end, int back) {
  const aotc_model *const model = s->cuda->model;
  const aotc_cuda_driver *const call = &s->cuda->call;
  int32_t k;
  for (k = first; k < end; ++k) {
    const size_t bytes = bytes_of(model, &r->tier, k);
    const CUdeviceptr given = (uintptr_t)pointer_of(r, model, k);
    const CUdeviceptr room = s->room[k];
    if (bytes == 0 || s->bases[k] != room) continue;
    TRY(back ? call->cuMemcpyAsync(given, room, bytes, r->stream)
             : call->cuMemcpyAsync(room, given, bytes, r->stream));
  }
  return SUCCESS;
}

/* Tells of a step, or with the number behind those of the tier of the end of a
 * run, after all before have ended. */
static CUresult tell_step(const aotc_cuda_session *s, const run *r,
                          int32_t step) {
  const int is_end = step == r->tier.first_step + r->tier.num_steps;
  if (r->how.events != NULL)
    TRY(s->cuda->call.cuEventRecord((CUevent)r->how.events[step], r->stream));
  if (r->options.on_step == NULL) return SUCCESS;
  TRY(s->cuda->call.cuStreamSynchronize(r->stream));
  r->options.on_step(r->options.step_context,
                     is_end ? s->cuda->program->num_steps : step);
  return SUCCESS;
}

static CUresult launch_steps(const aotc_cuda_session *s, const run *r) {
  const aotc_cuda_program *const p = s->cuda->program;
  const int32_t end = r->tier.first_step + r->tier.num_steps;
  int32_t k;
  for (k = r->tier.first_step; k < end; ++k) {
    const CUDA_KERNEL_NODE_PARAMS_v2 one = launch_of(s, &p->steps[k]);
    TRY(tell_step(s, r, k));
    TRY(s->cuda->call.cuLaunchKernel(one.func, one.gridDimX, 1, 1,
                                     one.blockDimX, 1, 1, one.sharedMemBytes,
                                     r->stream, one.kernelParams, NULL));
  }
  return tell_step(s, r, end);
}

/* All that a run puts into its stream. */
static CUresult submit(aotc_cuda_session *s, const run *r) {
  const aotc_model *const model = s->cuda->model;
  const aotc_cuda_driver *const call = &s->cuda->call;
  const schedule *const made = &s->schedules[r->number];
  const int32_t state = state_of(s);
  if (s->pending && !r->by_caller) /* a number may name another stream now */
    TRY(call->cuStreamWaitEvent(r->stream, s->done, 0));
  if (made->moved) TRY(bind_arguments(s, r->number));
  TRY(copy_tensors(s, r, 0, model->num_inputs, 0));
  if (r->plain)
    TRY(launch_steps(s, r));
  else if (made->exec != NULL)
    TRY(call->cuGraphLaunch(made->exec, r->stream));
  TRY(copy_tensors(s, r, state >= 0 ? state : model->num_inputs,
                   model->num_inputs + model->num_outputs, 1));
  if (!r->no_wait || r->by_caller) return SUCCESS;
  s->pending = 1;
  return call->cuEventRecord(s->done, r->stream);
}

/* A run of a session that is ours alone. */
static int run_alone(aotc_cuda_session *s, const run *r) {
  const aotc_cuda_driver *const call = &s->cuda->call;
  CUcontext popped;
  CUresult waited;
  int status;
  s->error = aotc_cuda_enter(s->cuda);
  if (s->error != SUCCESS) return AOTC_ERROR_CUDA;
  status = find_tensors(s, r);
  if (status == AOTC_OK) {
    s->error = submit(s, r);
    if (s->error != SUCCESS || !r->no_wait) {
      waited = call->cuStreamSynchronize(r->stream);
      if (s->error == SUCCESS) s->error = waited;
      s->pending = 0;
    }
    if (s->error != SUCCESS) status = AOTC_ERROR_CUDA;
  }
  call->cuCtxPopCurrent_v2(&popped);
  return status;
}

int aotc_cuda_run(aotc_cuda_session *session, const void *const *inputs,
                  void *const *outputs, const aotc_run_options *options) {
  return aotc_cuda_run_tier(session, 0, inputs, outputs, options);
}

int aotc_cuda_run_tier(aotc_cuda_session *session, int32_t tier,
                       const void *const *inputs, void *const *outputs,
                       const aotc_run_options *options) {
  run r;
  int status;
  if (session == NULL || inputs == NULL || outputs == NULL)
    return AOTC_ERROR_NULL_ARGUMENT;
  if (tier < 0 || tier >= count_schedules(session->cuda->program))
    return AOTC_ERROR_DIMS;
  memset(&r, 0, sizeof r);
  if (!read_options(&r.options, sizeof r.options, options) ||
      !read_options(&r.how, sizeof r.how, r.options.cuda))
    return AOTC_ERROR_OPTIONS;
  if (exchange(&session->busy, 1) != 0) return AOTC_ERROR_BUSY;
  r.number = tier;
  r.tier = tier_of(session->cuda->program, tier);
  r.inputs = inputs;
  r.outputs = outputs;
  r.stream = r.how.stream != NULL ? (CUstream)r.how.stream : session->stream;
  r.no_wait = (r.how.flags & AOTC_CUDA_NO_WAIT) != 0;
  r.plain = (r.how.flags & AOTC_CUDA_PLAIN) != 0 || r.options.on_step != NULL ||
            r.how.events != NULL;
  r.by_caller = r.no_wait && (r.how.flags & AOTC_CUDA_PLAIN) != 0;
  status = run_alone(session, &r);
  exchange(&session->busy, 0);
  return status;
}
