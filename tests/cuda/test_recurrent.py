# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers on a device: one launch for all steps, weights in registers, the interpreter's bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin

from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Sample
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule.algorithms import gpu_persistent_recurrence as algorithm
from aotc.tir.stmt import Block, Kernel, Stmt, is_barrier, rebuild_stmt, walk_stmts
from aotc.tir.target import Target
from tests.codegen.batch import finished
from tests.codegen.bit_comparison import wrong
from tests.conftest import skip_or_fail_without
from tests.cuda.device import CUDA, run_batch
from tests.ops.harness import Job, kernel_job

#: Gates, states, and further vectors.
PARTS = {"nn.lstm": (4, 2, 0), "nn.gru": (3, 1, 1), "nn.rnn": (1, 1, 0)}


def layer(name: str, steps: int, batch: int, hidden: int, target: Target = CUDA, *, reverse: bool = False) -> Job:
    gates, states, extras = PARTS[name]
    shapes = [(steps, batch, 5), (5, gates * hidden), (hidden, gates * hidden), (gates * hidden,)]
    shapes += [(batch, hidden)] * states + [(hidden,)] * extras
    rng, op = np.random.default_rng(7), OPERATORS_BY_NAME[name]
    args = tuple((rng.standard_normal(shape) / 4).astype(np.float32) for shape in shapes)
    return kernel_job(op, Sample(args=args, attrs=op.attrs(reverse=reverse)), target, printed=False)


def test_bits_of_layers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights in registers, weights that are fetched, columns and units that threads take in turns."""
    assert CUDA.gpu is not None
    few = replace(CUDA, gpu=replace(CUDA.gpu, registers=96))
    jobs = [layer("nn.lstm", 3, 2, 40, few), layer("nn.gru", 4, 3, 12, reverse=True)]
    monkeypatch.setattr(algorithm, "_MAX_THREADS_PER_BLOCK", 64)
    jobs += [layer("nn.lstm", 3, 1, 20), layer("nn.rnn", 2, 1, 70, few)]
    expected = [run_kernel(finished(job.kernel, CUDA), job.inputs) for job in jobs]
    for outputs in run_batch([(job.kernel, job.inputs) for job in jobs], tmp_path):
        for job, found, values in zip(jobs, outputs, expected, strict=True):
            assert not wrong(job.kernel, found, values)


@pytest.mark.parametrize("name", PARTS)
def test_all_steps_are_one_launch(name: str) -> None:
    projection, steps = lower_kernel_to_gpu_kernels(layer(name, 50, 3, 128).kernel, CUDA)
    launch = launch_of(steps)
    assert launch is not None and launch.grid == 3
    for one in (projection, steps):
        verify(one)
    verify(layer(name, 50, 3, 128).kernel)


@pytest.mark.parametrize(("name", "hidden"), [("nn.lstm", 1300), ("nn.gru", 1755)])
def test_layers_too_large_for_a_block_run_otherwise(name: str, hidden: int) -> None:
    """The other's vectors would fit, if there were nothing between them."""
    assert CUDA.gpu is not None
    for one in lower_kernel_to_gpu_kernels(layer(name, 2, 1, hidden).kernel, CUDA):
        launch = launch_of(one)
        assert launch is not None and launch.shared_bytes <= CUDA.gpu.shared_bytes


def _without_barrier(kernel: Kernel, number: int) -> Kernel:
    dead = [s for s in walk_stmts(kernel.body) if is_barrier(s)][number]

    def kept(stmt: Stmt) -> Stmt:
        return Block(()) if stmt is dead else rebuild_stmt(stmt, kept)

    return replace(kernel, body=kept(kernel.body))


@pytest.mark.parametrize("number", range(3))
def test_each_barrier_is_needed(number: int) -> None:
    _, steps = lower_kernel_to_gpu_kernels(layer("nn.lstm", 5, 1, 32).kernel, CUDA)
    with pytest.raises(AotcError, match=r"may access the same elements|barrier"):
        verify(_without_barrier(steps, number))


def test_weights_are_in_registers() -> None:
    """The machine code of recurrent kernels does not use local memory."""
    try:
        nvrtc = find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")
    assert CUDA.gpu is not None
    sizes = [("nn.lstm", 64), ("nn.lstm", 128), ("nn.lstm", 256), ("nn.gru", 128), ("nn.rnn", 160)]
    pairs = [lower_kernel_to_gpu_kernels(layer(name, 5, 1, hidden).kernel, CUDA) for name, hidden in sizes]
    launches = [finished(steps, CUDA) for _, steps in pairs]
    printed = print_cuda_kernels(launches, "net", CUDA.gpu)
    found = read_kernel_resources_from_cubin(
        nvrtc.images(render_cuda_source_file(printed, name="net", banner=""), (80,))["sm_80"]
    )
    for (name, hidden), one in zip(sizes, launches, strict=True):
        assert found[printed.names[one]].local_bytes == 0, (name, hidden)
