/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads compiled models from shared libraries at run time.  C99, valid as C++.
 *
 *   aotc_library library;
 *   char message[256];
 *   int status = aotc_library_open(&library, path, message, sizeof message);
 *   if (status != AOTC_OK) return report(path, message);
 *   status = aotc_library_run(&library, inputs, outputs, workspace, NULL);
 *   aotc_library_close(&library);
 *
 * For hosts that have a dynamic linker; link with -ldl where it is a library
 * of its own.  Nothing is allocated here.
 */
#ifndef AOTC_LOADER_H
#define AOTC_LOADER_H

#include "aotc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A loaded model.  `model` and all it points to live until the library is
 * closed. */
typedef struct aotc_library {
  const aotc_model *model;
  void *handle;    /* of the system */
  const char *isa; /* that the environment names; NULL: each run chooses */
  const aotc_sizes *sizes; /* NULL where all shapes are known */
} aotc_library;

/* Opens the library at `path` (UTF-8).  AOTC_OK, or AOTC_ERROR_OPEN, _SYMBOL,
 * _ABI, _CPU, _ISA or _NULL_ARGUMENT; then `library` is empty and nothing is
 * left open.  A file that is shorter than its headers say is not opened (where
 * `path` is one, and not a name for the linker to search).  Where a model has
 * kernels for several instruction sets, runs take the one that the environment
 * variable AOTC_ISA names, if it is set and their options name none.
 *
 * `message` receives what went wrong, in the system's words where it has any,
 * cut to `message_bytes` including the final zero; "" on success.  It may be
 * NULL if `message_bytes` is 0. */
int aotc_library_open(aotc_library *library, const char *path, char *message,
                      size_t message_bytes);

/* Runs the model: pointers in the order of model->inputs, which end with an
 * array of sizes where shapes depend on them, and of model->outputs, a
 * workspace of model->workspace_bytes aligned to model->workspace_alignment.
 * Threads may run one library at once, each with its own workspace and
 * outputs. */
int aotc_library_run(const aotc_library *library, const void *const *inputs,
                     void *const *outputs, void *workspace,
                     const aotc_run_options *options);

/* Closes the library, after the last run has returned; an empty one is left as
 * it is. */
void aotc_library_close(aotc_library *library);

#ifdef __cplusplus
}
#endif

#endif
