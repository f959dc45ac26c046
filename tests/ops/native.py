# SPDX-License-Identifier: Apache-2.0
"""An executor of kernels that compiles them as C, all of a batch in one library.

outputs = compile_and_run([kernel_job(op, sample)])[0]
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from aotc_codegen.c.helpers import Helpers
from aotc_codegen.c.printer import KernelPrinter

from aotc.ir.dtype import DType
from tests.ops.harness import Array, Job

PREAMBLE = """
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define AOTC_RESTRICT restrict
#define AOTC_ALIGNED(n) __attribute__((aligned(n)))
"""
CFLAGS = ("-std=c99", "-O1", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-w")


def compile_and_run(jobs: Sequence[Job]) -> list[list[Array]]:
    """The outputs of each job, by one library of C compiled from all kernels."""
    helpers = Helpers()
    printer = KernelPrinter(helpers)
    kernels = [printer.kernel(job.kernel, f"kernel{k}") for k, job in enumerate(jobs)]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.c"), Path(folder, "libkernels.so")
        source.write_text("\n".join((PREAMBLE, helpers.text(), *kernels)), encoding="utf-8")
        subprocess.run(["cc", *CFLAGS, "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
        functions = ctypes.CDLL(str(library))
        return [_call(functions[f"kernel{k}"], job) for k, job in enumerate(jobs)]


def _call(function: Any, job: Job) -> list[Array]:
    """Run one compiled kernel; outputs and workspace hold rubbish before."""
    inputs = [np.ascontiguousarray(a) for a in job.inputs]
    outputs = [_rubbish(t.static_shape, t.dtype) for t in job.types]
    workspace = [_rubbish((b.size,), b.dtype) for b in job.kernel.workspace]
    function(*(ctypes.c_void_p(a.ctypes.data) for a in (*inputs, *outputs, *workspace)))
    return outputs


def _rubbish(shape: Sequence[int], dtype: DType) -> Array:
    array = np.empty(shape, dtype.numpy)
    array.reshape(-1).view(np.uint8)[:] = 1 if dtype.is_bool else 0x5A
    return array
