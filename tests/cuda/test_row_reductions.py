# SPDX-License-Identifier: Apache-2.0
"""Reductions and row-wise kernels as CUDA C on the CPU: the interpreter's bits for every order of threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin

from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Sample
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import launch_of
from aotc.tir.interpreter import run_kernel
from tests.codegen.batch import finished
from tests.codegen.bit_comparison import wrong
from tests.conftest import skip_or_fail_without
from tests.cuda.device import CUDA, run_batch
from tests.ops.harness import Job, kernel_job
from tests.tir.test_attention_strips import Attention
from tests.tir.test_block_per_row import job

CASES = [
    ("nn.softmax", (9, 100), 1, "float32"),
    ("nn.softmax", (1, 1000), 1, "float32"),
    ("nn.log_softmax", (3, 40, 33), 1, "float32"),
    ("sum", (200, 40), 0, "float32"),
    ("sum", (70_000,), 0, "float32"),
    ("mean", (64, 49), 1, "float16"),
    ("max", (3, 70), 1, "float16"),
    ("prod", (3, 70), 1, "int8"),
    ("argmin", (3, 70), 1, "int32"),
]


def norm(rows: int = 5) -> Job:
    rng = np.random.default_rng(3)
    args = tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 384), (384,), (384,)))
    op = OPERATORS_BY_NAME["nn.layer_norm"]
    return kernel_job(op, Sample(args=args, attrs=op.attrs()), CUDA, printed=False)


def test_bits_of_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    jobs = [job(n, (rng.standard_normal(shape) * 9).astype(dtype), axis)[0] for n, shape, axis, dtype in CASES]
    pairs = [(one.kernel, one.inputs) for one in (*jobs, norm())]
    attention = Attention(rows=40, columns=70, mask="added")
    pairs.append((attention.kernel(CUDA), attention.values()))
    (strips,) = lower_kernel_to_gpu_kernels(pairs[-1][0], CUDA)
    launch = launch_of(strips)
    assert launch is not None and (launch.grid, launch.block) == (4, 1024)
    expected = [run_kernel(finished(kernel, CUDA), inputs) for kernel, inputs in pairs]
    for outputs in run_batch(pairs, tmp_path):
        for (kernel, _), found, values in zip(pairs, outputs, expected, strict=True):
            assert not wrong(kernel, found, values)


#: Registers at most, barriers.
FIGURES = {"softmax": (40, 5), "norm": (40, 4), "columns": (40, 1), "mean": (40, 2)}


def test_everything_is_in_registers() -> None:
    """Machine code of row kernels: values stay in registers; the number of barriers is as expected."""
    try:
        nvrtc = find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")
    assert CUDA.gpu is not None
    shapes = {
        "softmax": ("nn.softmax", (1536, 128), 1),
        "columns": ("max", (300, 64), 0),
        "mean": ("mean", (64, 49), 1),
    }
    jobs = {n: job(name, np.zeros(shape, np.float32), axis)[0] for n, (name, shape, axis) in shapes.items()}
    jobs["norm"] = norm(rows=128)
    kernels = [one for n, j in jobs.items() for one in lower_kernel_to_gpu_kernels(replace(j.kernel, name=n), CUDA)]
    printed = print_cuda_kernels([finished(one, CUDA) for one in kernels], "net", CUDA.gpu)
    text = render_cuda_source_file(printed, name="net", banner="")
    found = read_kernel_resources_from_cubin(nvrtc.images(text, (80,))["sm_80"])
    for name, (registers, barriers) in FIGURES.items():
        one = found[f"net_{name}"]
        assert one.registers <= registers and one.local_bytes == 0, name
        assert text.split(f" net_{name}(")[1].split("\n}")[0].count("__syncthreads()") == barriers, name
