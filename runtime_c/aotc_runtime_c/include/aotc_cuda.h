/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs compiled models on GPUs through CUDA's driver, which is loaded when a
 * model is opened: programs link and start where there is none.  C99, valid
 * as C++.  A model called NAME declares in NAME.h what is used here:
 *
 *   aotc_cuda *opened;             // once for each device
 *   aotc_cuda_session *session;    // once for each thread
 *   char message[256];
 *   int status = aotc_cuda_open(NAME_program(), 0, &opened, message, 256);
 *   if (status == AOTC_OK) status = NAME_session_open(opened, &session);
 *   if (status == AOTC_OK) status = NAME_run(&in, &out, session, NULL);
 *   NAME_session_close(session);
 *   aotc_cuda_close(opened);
 *
 * Opening takes memory on the device and in the host; runs take none.
 */
#ifndef AOTC_CUDA_H
#define AOTC_CUDA_H

#include "aotc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- the tables of a compiled model */

/* Code for devices, aligned to 8 bytes.  `arch` is 10 * major + minor of the
 * compute capability: machine code runs on devices of that major version and
 * no smaller minor one, that of Jetson and DRIVE on its own and no other; PTX,
 * a text that ends in a zero, on all that are not older. */
typedef struct aotc_cuda_image {
  int32_t arch;
  int32_t is_ptx;
  const void *begin, *end;
} aotc_cuda_image;

/* A function that all images have; its parameters are pointers. */
typedef struct aotc_cuda_kernel {
  const char *name;
  int32_t block;        /* threads */
  int32_t shared_bytes; /* asked for at the launch, not those declared */
} aotc_cuda_kernel;

/* One launch.  Its arguments are a range of `args`; its edges, a range of
 * `edges`, are the numbers of earlier steps that must have ended before. */
typedef struct aotc_cuda_step {
  int32_t kernel;
  int32_t grid; /* blocks */
  int32_t first_arg, num_args;
  int32_t first_edge, num_edges;
} aotc_cuda_step;

typedef enum aotc_cuda_place {
  AOTC_CUDA_INPUT = 0,
  AOTC_CUDA_OUTPUT = 1,
  AOTC_CUDA_ARENA = 2,
  AOTC_CUDA_WEIGHTS = 3
} aotc_cuda_place;

/* A pointer: so many bytes behind the start of its place. */
typedef struct aotc_cuda_arg {
  int32_t place;  /* aotc_cuda_place */
  int32_t number; /* of the input or output, else 0 */
  uint64_t offset;
} aotc_cuda_arg;

/* What runs with some of a model's sizes: a range of `steps`, which wait for
 * steps of this range only, and the bytes of each input, then of each output,
 * that the aotc_model describes; 0 for what the device does not use. */
typedef struct aotc_cuda_tier {
  int32_t first_step, num_steps;
  const uint64_t *bytes;
} aotc_cuda_tier;

typedef struct aotc_cuda aotc_cuda;
typedef struct aotc_cuda_session aotc_cuda_session;
typedef struct aotc_cuda_calls aotc_cuda_calls;

typedef struct aotc_cuda_program {
  const aotc_model *(*info)(void);
  const aotc_cuda_calls *calls; /* for loaders: those that it was linked with */
  const aotc_cuda_image *images;
  const aotc_cuda_kernel *kernels;
  const aotc_cuda_step *steps;
  const aotc_cuda_arg *args;
  const int32_t *edges;
  int32_t num_images, num_kernels, num_steps, num_args;
  int32_t least_driver; /* 1000 * major + 10 * minor version of CUDA */
  int32_t num_tiers;    /* 0: all steps run, and tensors have one size */
  const void *weights;
  uint64_t weights_bytes;
  uint64_t arena_bytes;
  const aotc_cuda_tier *tiers;
  /* NULL, or what the last input, which runs change, begins with: the block of
   * state */
  const uint32_t *state_hash;
} aotc_cuda_program;

/* --- the calls */

enum {
  /* Return before the results are there.  Pointers stay in use until the
   * stream has come so far. */
  AOTC_CUDA_NO_WAIT = 1,
  /* Launch kernels one by one, not as a graph.  With AOTC_CUDA_NO_WAIT the
   * caller may capture the stream (copies of the host's tensors are part of
   * that) and orders the runs of a session in different streams. */
  AOTC_CUDA_PLAIN = 2,
  /* All pointers must be of memory that the device can read: where one is
   * not, the status is AOTC_ERROR_POINTER. */
  AOTC_CUDA_DEVICE_POINTERS = 4
};

/* How a model runs on a device.  `size` is sizeof(aotc_cuda_options) as the
 * caller knows it. */
typedef struct aotc_cuda_options {
  size_t size;
  void *stream; /* a CUstream of the device's primary context, such as
                 * CU_STREAM_LEGACY; NULL: the session's own */
  uint32_t flags;
  uint32_t reserved;
  void *const *events; /* CUevents that are recorded, the first before the first
                        * step, each of the others behind a step: kernels run
                        * one by one then; may be NULL */
} aotc_cuda_options;

/* Loads the code of a program onto device number `device`, and its weights.
 * Threads may share what is opened.  The driver is what the environment
 * variable AOTC_CUDA_DRIVER names, else the system's.
 *
 * AOTC_OK, or AOTC_ERROR_NO_DRIVER, _OLD_DRIVER, _NO_DEVICE, _NO_CODE,
 * _DEVICE_MEMORY, _HOST_MEMORY, _CUDA or _NULL_ARGUMENT; then `*opened` is
 * NULL.  `message` receives what went wrong, cut to `message_bytes` including
 * the final zero; "" on success.  It may be NULL if `message_bytes` is 0. */
int aotc_cuda_open(const aotc_cuda_program *program, int32_t device,
                   aotc_cuda **opened, char *message, size_t message_bytes);

/* After all of its sessions; NULL is let be.  After a reset of the device
 * (cudaDeviceReset) sessions give AOTC_ERROR_CUDA, and can only be closed. */
void aotc_cuda_close(aotc_cuda *opened);

/* What one run after another needs: memory on the device, a stream, the
 * schedule, or that of each tier, as a graph.  AOTC_OK, or
 * AOTC_ERROR_DEVICE_MEMORY, _HOST_MEMORY, _CUDA or _NULL_ARGUMENT; then
 * `*session` is NULL. */
int aotc_cuda_session_open(aotc_cuda *opened, aotc_cuda_session **session);

/* Waits for what still runs; NULL is let be. */
void aotc_cuda_session_close(aotc_cuda_session *session);

/* Runs the schedule once.  Pointers are in the order of the model's inputs
 * and outputs, each of the host's memory, aligned to its elements, or of the
 * device's.  What lies in the host's is copied, and what lies in the device's
 * at no multiple of 16 bytes, to memory that the session has for it.  Of the
 * options `on_step` and `cuda` count; with `on_step` kernels run one by one,
 * each to its end before the next call.
 *
 * A block of state on the device, a copy of one that NAME_state_init has made,
 * is changed in place; one in the host's memory is copied to the device and
 * back.  Where the block begins with other bytes than those of the model, the
 * status is AOTC_ERROR_STATE: a run with another pointer than the last reads
 * them on the device, unless the caller may capture the stream.
 *
 * AOTC_OK, or AOTC_ERROR_NULL_ARGUMENT, _ALIGNMENT, _OPTIONS, _POINTER, _STATE,
 * _BUSY where another thread runs the session, or _CUDA: then outputs have no
 * meaning. */
int aotc_cuda_run(aotc_cuda_session *session, const void *const *inputs,
                  void *const *outputs, const aotc_run_options *options);

/* The same for one of the program's tiers, by its number; AOTC_ERROR_DIMS if
 * there is none of this number. */
int aotc_cuda_run_tier(aotc_cuda_session *session, int32_t tier,
                       const void *const *inputs, void *const *outputs,
                       const aotc_run_options *options);

/* The driver's name for what the session met last, such as
 * "CUDA_ERROR_ILLEGAL_ADDRESS"; never NULL. */
const char *aotc_cuda_error(const aotc_cuda_session *session);

/* The calls above. */
struct aotc_cuda_calls {
  int (*open)(const aotc_cuda_program *program, int32_t device,
              aotc_cuda **opened, char *message, size_t message_bytes);
  void (*close)(aotc_cuda *opened);
  int (*session_open)(aotc_cuda *opened, aotc_cuda_session **session);
  void (*session_close)(aotc_cuda_session *session);
  const char *(*error)(const aotc_cuda_session *session);
};

extern const aotc_cuda_calls aotc_cuda_functions;

/* What loaders look up in the shared library of a model for GPUs, beside
 * AOTC_ENTRY_SYMBOL; `run` of the aotc_model takes a session as its
 * workspace. */
#define AOTC_CUDA_SYMBOL "aotc_model_cuda_program"
typedef const aotc_cuda_program *(*aotc_cuda_fn)(void);

#ifdef __cplusplus
}
#endif

#endif
