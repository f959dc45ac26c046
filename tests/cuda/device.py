# SPDX-License-Identifier: Apache-2.0
"""Maps kernels to blocks and threads, prints them as one CUDA text, and runs them in the emulator.

results = run_batch([(kernel, [x, y])], tmp_path)      # [[out], ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file

from aotc.tir import launch_of
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.expr import Buffer
from aotc.tir.gpu_launch import buffers_of_last_block_counters
from aotc.tir.stmt import Kernel
from aotc.tir.target import TARGETS
from tests.codegen.batch import finished
from tests.cuda.emulator import Kernels, build, launch

Array = np.ndarray[Any, Any]
CUDA: Final = TARGETS["cuda"]
#: What optimizes little, and takes half of the time.
FLAGS: Final = ("-O1", "-w")


def run_batch(
    jobs: Sequence[tuple[Kernel, Sequence[Array]]], folder: Path, *flags: str
) -> tuple[list[list[Array]], list[list[Array]]]:
    """The outputs of scheduled kernels for the device, which are mapped here: in order, and from the last thread on."""
    launches = [[finished(one, CUDA) for one in lower_kernel_to_gpu_kernels(kernel, CUDA)] for kernel, _ in jobs]
    assert CUDA.gpu is not None
    for one in (one for made in launches for one in made):
        size = launch_of(one)
        assert size is not None and size.shared_bytes <= CUDA.gpu.shared_bytes, one.name
    printed = print_cuda_kernels([one for made in launches for one in made], "batch", CUDA.gpu)
    kernels = build(render_cuda_source_file(printed, name="batch", banner="made by a test"), folder, *(flags or FLAGS))

    def outputs(backwards: bool) -> list[list[Array]]:
        pairs = zip(jobs, launches, strict=True)
        return [_run(kernels, printed.names, *job, made, backwards=backwards) for job, made in pairs]

    return outputs(False), outputs(True)


def _run(
    kernels: Kernels,
    names: Mapping[Kernel, str],
    job: Kernel,
    inputs: Sequence[Array],
    launches: Sequence[Kernel],
    *,
    backwards: bool,
) -> list[Array]:
    """What is handed from one launch to the next is a buffer of both; all but inputs holds rubbish before."""
    memory: dict[Buffer, Array] = dict(zip(job.inputs, map(np.ascontiguousarray, inputs), strict=True))
    for kernel in (job, *launches):
        for buffer in kernel.params:
            if buffer not in memory:
                filling = 0 if buffer in buffers_of_last_block_counters(kernel) else 0x5A
                memory[buffer] = np.full(buffer.nbytes, filling, np.uint8).view(buffer.dtype.numpy)
    for kernel in launches:
        sizes = launch_of(kernel)
        assert sizes is not None
        arguments = [memory[b] for b in kernel.params]
        problem = launch(kernels, names[kernel], arguments, blocks=sizes.grid, threads=sizes.block, backwards=backwards)
        assert not problem, f"{kernel.name}: {problem}"
    return [memory[b] for b in job.outputs]
