# SPDX-License-Identifier: Apache-2.0
"""Tiles for blocks of threads as CUDA C on the CPU: the bits of the interpreter, whoever of the threads goes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from aotc_codegen.cuda.source import device_source, print_device_kernels

from aotc.tir.interp import run_kernel
from aotc.tir.launch import launch_of
from aotc.tir.passes import kernel_passes
from aotc.tir.target import CUDA
from tests.cuda.emulator import build, launch
from tests.tir.contractions import conv, matmul

CASES = {
    "conv": conv(batch=2, ic=3, oc=17, size=(4, 5), kernel=(3, 2), padding=1),
    "product": matmul(m=33, k=20, n=40),
    "half": matmul(m=16, k=3, n=16, dtype="float16", acc="float32"),
}


def test_bits_of_tiles(tmp_path: Path) -> None:
    kernels = {}
    for name, case in CASES.items():
        kernel = replace(case.kernel(CUDA), name=name)
        for one in kernel_passes(CUDA):
            kernel = one.kernel(kernel)
        kernels[name] = kernel
    assert CUDA.gpu is not None
    printed = print_device_kernels([*kernels.values()], "net", CUDA.gpu)
    built = build(device_source(printed, name="net", banner=""), tmp_path)
    for name, kernel in kernels.items():
        a, b = (value.reshape(-1) for value in CASES[name].values(seed=4))
        (expected,) = run_kernel(kernel, [a, b])
        size = launch_of(kernel)
        assert size is not None
        for backwards in (False, True):
            y = np.full_like(expected, np.nan)
            arguments = [a, b, y]
            problem = launch(built, f"net_{name}", arguments, blocks=size.grid, threads=size.block, backwards=backwards)
            assert problem == ""
            assert y.tobytes() == expected.tobytes(), name
