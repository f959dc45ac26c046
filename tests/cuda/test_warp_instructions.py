# SPDX-License-Identifier: Apache-2.0
"""Warp instructions as CUDA C: the emulator has the interpreter's bits, and NVRTC compiles them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file

from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.tir.gpu_launch import launch_of
from aotc.tir.instruction_definition import Instruction
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import Kernel
from aotc.tir.target import CUDA
from tests.conftest import skip_or_fail_without
from tests.cuda.emulator import Array, build, launch
from tests.tir.contractions import matmul
from tests.tir.test_gpu_tensor_cores import TF32
from tests.tir.test_warp_operations import MATRICES, RING

MOVED = """kernel "{dtype}" {{
  input x: {dtype}[64] align 8
  output y: {dtype}[64] align 8
  output z: {dtype}[64] align 8
  for b in 0..1 block {{
    for t in 0..64 thread {{
      let own: {dtype} = x[t]
      let crossed: {dtype} = shuffle_xor(own, 21:int32)
      y[t] = crossed
      let below: {dtype} = shuffle_down(crossed, 5:int32)
      z[t] = below
    }}
  }}
}}
"""
DTYPES = ("float32", "int32", "float64", "int64", "uint64", "float16", "bfloat16", "int8")


def text_of(kernels: list[Kernel]) -> str:
    assert CUDA.gpu is not None
    return render_cuda_source_file(print_cuda_kernels(kernels, "net", CUDA.gpu), name="net", banner="")


def emulate(jobs: Sequence[tuple[Kernel, list[Array]]], folder: Path) -> None:
    """Both orders of the emulator's threads give the interpreter's bits; all that is no number counts as equal."""
    built = build(text_of(list(dict.fromkeys(kernel for kernel, _ in jobs))), folder, "-O1")
    for kernel, values in jobs:
        verify(kernel)
        size = launch_of(kernel)
        assert size is not None
        for backwards in (False, True):
            expected = run_kernel(kernel, values, backwards=backwards)
            made = [np.zeros_like(e) for e in expected]
            arguments = [*values, *made]
            name = f"net_{kernel.name}"
            assert not launch(built, name, arguments, blocks=size.grid, threads=size.block, backwards=backwards)
            for one, other in zip(made, expected, strict=True):
                same = (one == other) & (np.signbit(one) == np.signbit(other)) | ((one != one) & (other != other))
                assert same.all(), kernel.name


def compiles(kernels: list[Kernel]) -> bytes:
    """The PTX of kernels, which NVRTC takes without a warning."""
    try:
        nvrtc = find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")
    return nvrtc.images(text_of(kernels), (80,))["compute_80"]


def test_values_of_other_threads(tmp_path: Path) -> None:
    kernels = [parse_kernel(MOVED.format(dtype=dtype)) for dtype in DTYPES]
    wide = np.random.default_rng(1).integers(-(2**62), 2**62, 64)
    with np.errstate(over="ignore"):
        inputs = [wide.astype(k.inputs[0].dtype.numpy) for k in kernels]
    emulate([(kernel, [x]) for kernel, x in zip(kernels, inputs, strict=True)], tmp_path)
    own = np.arange(64)
    (moved, _) = run_kernel(kernels[3], [wide])
    np.testing.assert_array_equal(moved, wide[own ^ 21])
    assert compiles(kernels).count(b"shfl.sync.bfly.b32") == len(DTYPES) + 3


def test_asynchronous_copies(tmp_path: Path) -> None:
    kernel = parse_kernel(RING)
    emulate([(kernel, [np.random.default_rng(2).standard_normal(1000).astype(np.float32)])], tmp_path)
    ptx = compiles([kernel])
    assert ptx.count(b"cp.async.cg.shared.global [") == 4
    assert ptx.count(b"cp.async.wait_group 1;") >= 3


def test_products_of_matrices(tmp_path: Path) -> None:
    """Numbers of all sizes are on the left, at last infinities and what is no number, too."""
    jobs, rng = [], np.random.default_rng(5)
    for dtype in ("float16", "bfloat16"):
        kernel = parse_kernel(MATRICES.format(dtype=dtype))
        kind = kernel.inputs[0].dtype.numpy
        for turn in range(8):
            x = rng.integers(0, 1 << 16, 256).astype(np.uint16).view(kind)
            if turn < 7:
                x = np.where(np.isfinite(x.astype(np.float32)), x, kind.type(1))
            w, z = (rng.standard_normal(256).astype(k) for k in (kind, np.float32))
            jobs.append((kernel, [x, w, z]))
    kernel = matmul(m=40, k=20, n=24).kernel(TF32)
    a, b = (rng.standard_normal(n).astype(np.float32) for n in (800, 480))
    a[::7] *= np.float32(2.0**100)
    a[5], a[17] = np.inf, np.nan
    emulate([*jobs, (kernel, [a, b])], tmp_path)
    ptx = compiles([kernel, *(kernel for kernel, _ in jobs[::8])])
    assert ptx.count(b"cvt.rna.tf32.f32") >= 16
    assert ptx.count(b"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") >= 8
    for kind in (b"f16", b"bf16"):
        assert ptx.count(b"mma.sync.aligned.m16n8k16.row.col.f32.%s.%s.f32" % (kind, kind)) == 2
    assert ptx.count(b"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == 4


def between_other_elements(row: Instruction) -> Kernel:
    """An instruction of a warp whose operands and result in memory lie between other elements."""
    assert row.execution is not None
    kinds = [kind.rstrip("]").split("[") for kind in (row.execution.result, *row.takes)]
    types = [(dtype, int(elements)) for dtype, elements in kinds]
    shared = row.name.startswith("ldmatrix")
    inputs = "".join(f"input x{k}: {dtype}[{96 * n}] align 16\n" for k, (dtype, n) in enumerate(types))
    arrays = [
        f"shared a{k}: {dtype}[{96 * n}] align 16" if shared and k else f"stack a{k}: {dtype}[{3 * n}] align 16"
        for k, (dtype, n) in enumerate(types)
    ]
    at = [f"{3 * n} * t + " if shared and k else "" for k, (_, n) in enumerate(types)]
    filled = [f"for i in 0..{3 * n} {{ a{k}[{at[k]}i] = x{k}[{3 * n} * t + i] }}" for k, (_, n) in enumerate(types)]
    operands = ", ".join(f"a{k}[{at[k]}{n}:{n}]" for k, (_, n) in enumerate(types) if k)
    dtype, size = types[0]
    body = "\n".join((*filled, "sync" * shared, f"a0[{size}] = {row.name}({operands})"))
    stored = f"for i in 0..{3 * size} {{ y[{3 * size} * t + i] = a0[i] }}"
    return parse_kernel(
        f'kernel "{row.name}" {{ {inputs} output y: {dtype}[{96 * size}] align 16\n'
        + "\n".join(arrays)
        + f"\nfor b in 0..1 block {{ for t in 0..32 thread {{ {body}\n{stored} }} }} }}"
    )


def test_instructions_of_warps_access_what_their_rows_state(tmp_path: Path) -> None:
    """The emulator, which runs the texts, has the bits of the interpreter, which accesses what rows state."""
    rng, jobs = np.random.default_rng(8), []
    for row in INSTRUCTIONS.values():
        if row.execution is not None and row.execution.scope == "warp" and row.execution.writes_memory:
            kernel = between_other_elements(row)
            values = [rng.integers(0, 1 << 7, b.nbytes).astype(np.uint8).view(b.dtype.numpy) for b in kernel.inputs]
            jobs.append((kernel, values))
    assert len(jobs) > 10
    emulate(jobs, tmp_path)
