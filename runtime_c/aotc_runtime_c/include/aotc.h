/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every compiled model shares: status codes, descriptors of tensors and
 * models, options of a run.  C99, valid as C++.
 *
 * A model called NAME declares in NAME.h
 *
 *   int NAME_run(const NAME_inputs *, const NAME_outputs *, void *workspace,
 *                const aotc_run_options *);
 *   const aotc_model *NAME_info(void);
 *
 * Buffers are dense and row major.  A pointer to a tensor must be aligned to
 * its element; the workspace to the model's workspace_alignment.  Inputs,
 * outputs and workspace must not overlap.  Nothing is allocated, and all
 * mutable state is in the workspace: calls with different workspaces and
 * outputs may run at the same time.
 */
#ifndef AOTC_H
#define AOTC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a structure below changes in a way old loaders cannot read. */
#define AOTC_ABI_VERSION 3
/* Of models whose shapes depend on sizes: old loaders cannot run them. */
#define AOTC_ABI_VERSION_SIZES 4
#define AOTC_ABI_VERSION_FOUND_SIZES 5 /* and a run finds some of them */

typedef enum aotc_status {
  AOTC_OK = 0,
  AOTC_ERROR_NULL_ARGUMENT = 1, /* an input, output or workspace is missing */
  AOTC_ERROR_ALIGNMENT = 2,     /* a pointer is not aligned as stated above */
  AOTC_ERROR_OPTIONS = 3,       /* options of a size this model cannot read */
  AOTC_ERROR_OPEN = 4,          /* loader: the library cannot be opened */
  AOTC_ERROR_SYMBOL = 5,        /* loader: it is not a compiled model */
  AOTC_ERROR_ABI = 6,           /* loader: compiled for another ABI version */
  AOTC_ERROR_THREADS = 7,       /* a number of threads that cannot be had */
  AOTC_ERROR_CPU = 8, /* the processor lacks instructions of kernels */
  AOTC_ERROR_ISA = 9, /* no kernels for the instruction set named */
  /* of models for GPUs */
  AOTC_ERROR_NO_DRIVER = 10,     /* the GPU's driver cannot be loaded */
  AOTC_ERROR_OLD_DRIVER = 11,    /* it is older than the model needs */
  AOTC_ERROR_NO_DEVICE = 12,     /* no GPU of that number */
  AOTC_ERROR_NO_CODE = 13,       /* the model has no code for that GPU */
  AOTC_ERROR_DEVICE_MEMORY = 14, /* the GPU has not enough memory left */
  AOTC_ERROR_HOST_MEMORY = 15,   /* nor the host for what is opened */
  AOTC_ERROR_CUDA = 16,          /* the driver reports an error */
  AOTC_ERROR_POINTER = 17,       /* not of the GPU's memory, as was promised */
  AOTC_ERROR_BUSY = 18,          /* another thread runs the session */
  AOTC_ERROR_WEIGHTS = 19,       /* parameters damaged or for other code */
  /* 20: of models without an operating system, see aotc_bare.h */
  AOTC_ERROR_STATE = 21, /* not a block of state of this model */
  /* Of models whose shapes depend on sizes.  From bit 8 on, such a status holds
   * the number of the violated condition; NAME_check returns its text. */
  AOTC_ERROR_DIMS = 22,    /* a size outside of its range, or not of its step */
  AOTC_ERROR_SHAPE = 23,   /* sizes or a computed value that do not fit */
  AOTC_ERROR_CAPACITY = 24 /* the state has no room for what a run appends */
} aotc_status;

/* Element types.  Floats below 32 bits are their bits; integers below 8 bits
 * and bool take one byte each. */
typedef enum aotc_dtype {
  AOTC_BOOL = 0,
  AOTC_INT8 = 1,
  AOTC_INT16 = 2,
  AOTC_INT32 = 3,
  AOTC_INT64 = 4,
  AOTC_UINT8 = 5,
  AOTC_UINT16 = 6,
  AOTC_UINT32 = 7,
  AOTC_UINT64 = 8,
  AOTC_FLOAT16 = 9,
  AOTC_FLOAT32 = 10,
  AOTC_FLOAT64 = 11,
  AOTC_BFLOAT16 = 12,
  AOTC_FLOAT8_E4M3FN = 13,
  AOTC_FLOAT8_E4M3FNUZ = 14,
  AOTC_FLOAT8_E5M2 = 15,
  AOTC_FLOAT8_E5M2FNUZ = 16,
  AOTC_FLOAT8_E8M0FNU = 17,
  AOTC_FLOAT4_E2M1FN = 18,
  AOTC_INT4 = 19,
  AOTC_UINT4 = 20,
  AOTC_INT2 = 21,
  AOTC_UINT2 = 22
} aotc_dtype;

/* What the integers of a tensor stand for: scale * (integer - zero_point). */
typedef struct aotc_quantization {
  const float *scale; /* `count` of them */
  const int32_t *zero_point;
  int32_t count; /* 1, or the extent of `axis` */
  int32_t axis;  /* -1: all elements share scale and zero point */
} aotc_quantization;

/* One input or output. */
typedef struct aotc_tensor {
  const char *name;     /* as in the model, UTF-8 */
  const int64_t *shape; /* rank dimensions */
  size_t bytes;
  int32_t rank;
  int32_t dtype;                         /* aotc_dtype */
  const aotc_quantization *quantization; /* NULL: none is known */
} aotc_tensor;

/* Called with k before step k of the schedule, and with the number of steps
 * after the last one; the steps are those of metadata.json. */
typedef void (*aotc_step_fn)(void *context, int32_t step);

/* What one thread of a team knows: its number, from 0, and how many there
 * are.  `wait` is a barrier: it returns when all of them have called it. */
typedef struct aotc_team {
  int32_t part;
  int32_t parts;
  void (*wait)(void *context);
  void *context;
} aotc_team;

/* One thread's share of a job. */
typedef void (*aotc_job_fn)(void *argument, const aotc_team *team);

/* Threads that run jobs together: aotc_pool.h makes one of the system's, and
 * a program may give its own.  `run` calls `job` once for each part of
 * 0..parts-1, all at the same time, and returns when all have returned: 0, or
 * a status, and then `job` was not called.  `parts` is 1 to
 * AOTC_MAX_THREADS. */
typedef struct aotc_threads {
  int32_t parts;
  int32_t reserved;
  int (*run)(const struct aotc_threads *threads, aotc_job_fn job,
             void *argument);
  void *state;
} aotc_threads;

#define AOTC_MAX_THREADS 64

/* Options of one run; NULL stands for the defaults.  `size` is
 * sizeof(aotc_run_options) as the caller knows it, so that fields can be
 * added; those that it does not cover have their defaults. */
typedef struct aotc_run_options {
  size_t size;
  aotc_step_fn on_step; /* NULL: nothing is called.  Models compiled with
                         * -DAOTC_NO_STEPS do not call it either. */
  void *step_context;
  const aotc_threads *threads; /* NULL: the calling thread alone.  Otherwise
                                * the workspace has thread_workspace_bytes
                                * more for each part after the first. */
  const char *isa; /* one of model->isas by name; NULL: the best that the
                    * processor has */
  const struct aotc_cuda_options *cuda; /* aotc_cuda.h; NULL: the defaults */
} aotc_run_options;

/* A run through arrays of pointers, in the order of the descriptors. */
typedef int (*aotc_run_fn)(const void *const *inputs, void *const *outputs,
                           void *workspace, const aotc_run_options *options);

/* An instruction set that a model has kernels for. */
typedef struct aotc_isa {
  const char *name; /* of the target, such as "x86-64-v3" */
  uint32_t needs;   /* bit k: the processor must have cpu_features[k] */
} aotc_isa;

/* A compiled model.  Everything but the kernels runs on every processor of
 * the architecture: where this one lacks what the kernels need, `run` gives
 * AOTC_ERROR_CPU, and aotc_model_check says what is missing. */
typedef struct aotc_model {
  uint32_t abi_version; /* first, so that every loader can read it */
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_isas; /* 0: for any processor */
  const char *name;
  const char *version; /* of the compiler */
  const aotc_tensor *inputs;
  const aotc_tensor *outputs;
  size_t workspace_bytes;
  size_t workspace_alignment;
  size_t weights_bytes;
  aotc_run_fn run;
  size_t thread_workspace_bytes;
  const aotc_isa *isas;            /* the best first */
  const char *const *cpu_features; /* names, NULL behind the last */
  uint32_t (*cpu_missing)(void);   /* bit k: there is no cpu_features[k] here */
} aotc_model;

/* A size that callers state for a run: a multiple of `step` from `least` to
 * `most`. */
typedef struct aotc_size {
  const char *name; /* as in the model, UTF-8 */
  int64_t least, most, step;
  int64_t typical; /* what costs were compared at */
} aotc_size;

/* The sizes of a model whose shapes depend on them.  In `aotc_model` the input
 * behind the tensors, and before a block of state, is an array of int64_t with
 * a value for each size; shapes and bytes of tensors are the largest ones.  A
 * run finds the last `num_found`; one more output then gets the shapes, too. */
typedef struct aotc_sizes {
  int32_t num_sizes;
  const aotc_size *sizes;
  /* each dimension of the inputs and outputs, in order, as a number or as a
   * formula over sizes; a size with a step occurs as the number of steps,
   * called 'NAME/STEP' */
  const char *const *dims;
  /* Sets the shapes of all outputs, one behind the other, and gives the status
   * that a run with these sizes would give; then nothing is written. */
  int (*shapes)(const int64_t *sizes, int64_t *shapes);
  /* What a status says of sizes; "" for statuses that say nothing of them. */
  const char *(*check)(int status);
  int32_t num_found; /* since AOTC_ABI_VERSION_FOUND_SIZES */
} aotc_sizes;

/* The symbol of libraries whose shapes depend on sizes. */
#define AOTC_SIZES_SYMBOL "aotc_model_sizes"
typedef const aotc_sizes *(*aotc_sizes_fn)(void);

/* Tiers: sets of sizes, each with code of its own.  A run takes the first tier
 * that has its sizes; sizes that no tier has are not allowed. */
typedef struct aotc_tiers {
  int32_t num_tiers;
  const aotc_size *ranges;       /* for each tier, a row for each size */
  const size_t *workspace_bytes; /* for each tier */
} aotc_tiers;

/* The symbol of libraries whose sizes are in several tiers. */
#define AOTC_TIERS_SYMBOL "aotc_model_tiers"
typedef const aotc_tiers *(*aotc_tiers_fn)(void);

/* The block of state of a model that keeps tensors between runs: memory of the
 * caller without pointers in it.  It is the last of the model's inputs in
 * `aotc_model`, one of bytes; a run changes it, and two runs must not use it at
 * the same time.  `init` makes memory a state as it is before the first run,
 * and gives a status. */
typedef struct aotc_state {
  size_t bytes;
  size_t alignment;
  int (*init)(void *state);
} aotc_state;

/* The symbol that libraries of models with state have. */
#define AOTC_STATE_SYMBOL "aotc_model_state"
typedef const aotc_state *(*aotc_state_fn)(void);

/* A state that grows; its length is one of the sizes, which runs find in it. */
typedef struct aotc_growing_state {
  const char *size;                             /* name of this size */
  int64_t capacity;                             /* largest length */
  int64_t (*length)(const void *state);         /* -1: not a state */
  int (*truncate)(void *state, int64_t length); /* NULL: not possible */
} aotc_growing_state;
#define AOTC_GROWING_STATE_SYMBOL "aotc_model_growing_state"

/* The file of parameters of a model that does not contain them.  In
 * `aotc_model` its contents are the last input, one of bytes, which no run
 * changes.  `check` gives AOTC_OK for a file that is whole and made for the
 * model. */
typedef struct aotc_weights {
  size_t bytes;
  size_t alignment;
  int (*check)(const void *weights, size_t bytes);
} aotc_weights;

/* The symbol that libraries of models without their parameters have. */
#define AOTC_WEIGHTS_SYMBOL "aotc_model_weights"
typedef const aotc_weights *(*aotc_weights_fn)(void);

/* The entry that loaders look up in a shared library. */
#define AOTC_ENTRY_SYMBOL "aotc_model_entry"
typedef const aotc_model *(*aotc_entry_fn)(void);

/* A sentence for a status, with or without the number of a violated condition;
 * never NULL. */
const char *aotc_status_message(int status);

/* Whether a model runs on this processor: AOTC_OK, AOTC_ERROR_CPU, or
 * AOTC_ERROR_ISA where it has no kernels for `isa`, the name of an instruction
 * set, or NULL for the best that the processor has.
 *
 * `chosen`, if not NULL, receives the number in model->isas, -1 where there is
 * none.  `message` receives what is wrong, such as the features that are
 * missing, cut to `message_bytes` including the final zero; "" on success.
 * It may be NULL if `message_bytes` is 0. */
int aotc_model_check(const aotc_model *model, const char *isa, int *chosen,
                     char *message, size_t message_bytes);

/* Bytes of one element; 0 for an unknown type. */
size_t aotc_dtype_bytes(int dtype);

#ifdef __cplusplus
}
#endif

#endif
