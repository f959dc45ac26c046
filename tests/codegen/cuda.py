# SPDX-License-Identifier: Apache-2.0
"""A CUDA dialect whose kernels a C compiler accepts, with a prelude that executes the threads of a block as threads.

library = build(kernels, folder)
launch(library, 0, kernel, arrays, threads=3)      # the outputs of the kernel number 0

One block runs a kernel for teams: its threads are the team, its barrier is theirs.  Indices are ints, 32 bits wide.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from aotc_codegen.c.c_dialects import C99

from aotc.tir.stmt import Kernel
from tests.codegen import batch
from tests.codegen.batch import source_of

Array = np.ndarray[Any, Any]

CUDA: Final = replace(
    C99,
    name="cuda",
    index="int",
    kernel="__global__ void {name}({parameters})",
    restrict="__restrict__ ",
    array="{type} {name}[{size}]",
    inline="__device__ static inline",
    team="",
    team_argument="",
    part="(int)threadIdx.x",
    parts="(int)blockDim.x",
    launch="{name}<<<1, THREADS>>>({arguments});",
)
PRELUDE: Final = """\
#include <pthread.h>
#define __global__ static
#define __device__
#define __forceinline__ inline
static __thread struct { unsigned x; } threadIdx;
static struct { unsigned x; } blockDim;
static pthread_barrier_t barrier;
static void __syncthreads(void) { pthread_barrier_wait(&barrier); }
struct thread { void (*kernel)(void *const *); void *const *arguments; unsigned number; };
static void *run(void *data) {
  const struct thread *t = data;
  threadIdx.x = t->number;
  t->kernel(t->arguments);
  return NULL;
}
static void launch(void (*kernel)(void *const *), void *const *const *arguments, unsigned threads) {
  pthread_t handles[8];
  struct thread team[8];
  blockDim.x = threads;
  pthread_barrier_init(&barrier, NULL, threads);
  for (unsigned k = 0; k < threads; ++k) {
    team[k] = (struct thread){kernel, arguments[k], k};
    pthread_create(&handles[k], NULL, run, &team[k]);
  }
  for (unsigned k = 0; k < threads; ++k) pthread_join(handles[k], NULL);
  pthread_barrier_destroy(&barrier);
}
"""


def build(kernels: Sequence[Kernel], folder: Path) -> ctypes.CDLL:
    """A library that launches each kernel."""
    parts = [PRELUDE, source_of(kernels, CUDA)]
    for k, kernel in enumerate(kernels):
        arguments = ", ".join(f"a[{n}]" for n in range(len(kernel.params)))
        parts.append(f"static void call{k}(void *const *a) {{ kernel{k}({arguments}); }}\n")
        parts.append(f"void launch{k}(void *const *const *a, unsigned n) {{ launch(call{k}, a, n); }}\n")
    return ctypes.CDLL(str(batch.build("".join(parts), folder, "-O1", "-pthread", "-D_GNU_SOURCE")))


def launch(library: ctypes.CDLL, number: int, kernel: Kernel, inputs: Sequence[Array], threads: int) -> list[Array]:
    """Run a kernel by a block of threads; each has scratch of its own where it is private."""
    common = [np.ascontiguousarray(a) for a in inputs]
    results = [np.full(b.nbytes, 0x5A, np.uint8).view(b.dtype.numpy) for b in kernel.outputs]
    shared = {b: np.zeros(b.nbytes, np.uint8) for b in kernel.workspace}
    rows = []
    for _ in range(threads):
        scratch = [np.zeros(b.nbytes, np.uint8) if b in kernel.private else shared[b] for b in kernel.workspace]
        rows.append([*common, *results, *scratch])
    pointers = [(ctypes.c_void_p * len(row))(*(a.ctypes.data for a in row)) for row in rows]
    library[f"launch{number}"]((ctypes.c_void_p * threads)(*map(ctypes.addressof, pointers)), ctypes.c_uint(threads))
    return results
