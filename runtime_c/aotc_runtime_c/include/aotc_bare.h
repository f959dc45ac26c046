/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What compiled models without an operating system share: status codes.  C99,
 * valid as C++.
 *
 * A model called NAME declares in NAME.h
 *
 *   int NAME_run(const NAME_inputs *, const NAME_outputs *, void *workspace,
 *                const aotc_run_options *);
 *
 * Buffers are dense and row major.  A pointer to a tensor must be aligned to
 * its element; the workspace to NAME_WORKSPACE_ALIGNMENT.  Inputs, outputs and
 * workspace must not overlap.  Where it lies in several memories, `workspace`
 * is a const NAME_workspace *, which has a pointer to each piece.
 */
#ifndef AOTC_BARE_H
#define AOTC_BARE_H

#include <stddef.h>
#include <stdint.h>

/* Numbered as in aotc.h. */
typedef enum aotc_status {
  AOTC_OK = 0,
  AOTC_ERROR_NULL_ARGUMENT = 1, /* an input, output or workspace is missing */
  AOTC_ERROR_ALIGNMENT = 2,     /* a pointer is not aligned as stated above */
  AOTC_ERROR_OPTIONS = 3,       /* there are no options: they must be NULL */
  AOTC_ERROR_WEIGHTS = 19,      /* parameters damaged or for other code */
  AOTC_ERROR_SELFTEST = 20,     /* a run gave another result than it should */
  AOTC_ERROR_STATE = 21,        /* not a block of state of this model */
  /* Of models whose shapes depend on sizes.  From bit 8 on, such a status holds
   * the number of the violated condition; NAME_check returns its text. */
  AOTC_ERROR_DIMS = 22,    /* a size outside of its range, or not of its step */
  AOTC_ERROR_SHAPE = 23,   /* sizes or a computed value that do not fit */
  AOTC_ERROR_CAPACITY = 24 /* the state has no room for what a run appends */
} aotc_status;

/* Calls look as they do with an operating system; there is none of these. */
typedef struct aotc_run_options aotc_run_options;

#endif
