# SPDX-License-Identifier: Apache-2.0
"""Kernels that copy memory in vectors of 16 bytes, as CUDA C: their bits on the CPU, and NVRTC's code for them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file
from aotc_codegen.cuda.kernel_resources import read_kernel_resources_from_cubin

from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from aotc.tir.expr import Buffer
from aotc.tir.gpu_launch import launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.passes import run_tensor_passes
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target
from tests.conftest import skip_or_fail_without
from tests.cuda.device import CUDA
from tests.cuda.emulator import Kernels, build, launch
from tests.cuda.test_contractions import disassembled
from tests.tir.programs import program_of
from tests.tir.test_thread_coarsening import SMALL, nest, slid

Array: TypeAlias = "np.ndarray[Any, Any]"
CASES = {
    "copied": ("x[i * {n} + j]", "float16"),
    "scaled": ("x[i * {n} + j] * b[i]", "float32"),
    "bytes": ("max(x[i * {n} + j], 0:int8)", "int8"),
    "narrowed": ("float16(x[i * {n} + j] + b[i])", "float32 float16"),
    "chosen": ("i < 3 ? x[i * {n} + j] : b[i]", "float32"),
    "gathered": ("x[i * {n} + j // 2] + b[j % 5]", "float32"),
    "tested": ("x[i * {n} + j] > b[i]", "float32 bool"),
    "turned": ("x[j * 33 + i] * b[i]", "float32"),
    "spread": ("x[j * 6 + i]", "float16"),
}

#: Those whose rows lie behind each other.
LEFT = ("copied", "scaled", "bytes")


def case(name: str, columns: int) -> Kernel:
    if name == "slid":
        value = f"acc + x[(i + r) * {columns} + j + k - {columns + 1}] * w[r * 3 + k]"
        taps = f"max(1 - j, 0)..min({columns + 1} - j, 3)"
        return parse_kernel(slid(value, columns=columns, taps=taps))
    value, types = CASES[name]
    rows = 33 if name == "turned" else 6
    return replace(parse_kernel(nest(value.format(n=columns), types, rows, columns)), name=name)


def mapped(kernel: Kernel, target: Target) -> Kernel:
    """The launch that a kernel becomes."""
    (made,) = run_tensor_passes(program_of(kernel), target).distinct_kernels
    return made


def source(kernels: list[Kernel]) -> str:
    assert CUDA.gpu is not None
    return render_cuda_source_file(print_cuda_kernels(kernels, "net", CUDA.gpu), name="net", banner="")


def random(buffer: Buffer) -> Array:
    return np.random.default_rng(buffer.size).integers(-9, 9, buffer.size).astype(buffer.dtype.numpy)


def check_bits(originals: list[Kernel], folder: Path) -> tuple[Kernels, list[Kernel]]:
    """Launches of kernels, whose bits are those of the kernels whichever thread goes first."""
    kernels = [mapped(one, SMALL) for one in originals]
    built = build(source(kernels), folder)
    for original, kernel in zip(originals, kernels, strict=True):
        size = launch_of(kernel)
        inputs = [random(b) for b in original.inputs]
        (expected,) = run_kernel(original, inputs)
        given = dict(zip((b.name for b in original.inputs), inputs, strict=True))
        assert size is not None
        for backwards in (False, True):
            y = np.full_like(expected, 1)
            arguments = [*(given[b.name] for b in kernel.inputs), y]
            sizes = {"blocks": size.grid, "threads": size.block}
            problem = launch(built, f"net_{kernel.name}", arguments, **sizes, backwards=backwards)
            assert problem == ""
            assert y.tobytes() == expected.tobytes(), kernel.name
    return built, kernels


def test_bits_of_pieces(tmp_path: Path) -> None:
    built, kernels = check_bits([case(name, 96) for name in (*CASES, "slid")], tmp_path)
    x, b = kernels[1].inputs
    y = np.zeros(kernels[1].outputs[0].size, np.float32)
    arguments = [random(x)[1:], random(b), y]
    assert "multiple of their bytes" in launch(built, "net_scaled", arguments, blocks=1, threads=32)


def accesses(ptx: bytes) -> dict[str, Counter[str]]:
    """How often the kernels of a text access memory, by name: "ldglobal.v4" is a load of 16 bytes."""
    _, *entries = ptx.decode().split(".entry net_")
    form = r"\b(ld|st)\.(global|local|shared)\S*?(\.v4)?\.[fu]\d+\b"
    return {e.partition("(")[0]: Counter("".join(access) for access in re.findall(form, e)) for e in entries}


@pytest.mark.parametrize("columns", [97, 98, 103])
def test_bits_of_pieces_and_what_is_left_over(columns: int, tmp_path: Path) -> None:
    """Rows of odd lengths lie behind each other: pieces go from one to the next."""
    check_bits([case(name, columns) for name in LEFT], tmp_path)


def test_machine_code_of_what_is_left_over(tmp_path: Path) -> None:
    """The processor's own accesses are those of 16 bytes, and those of one element for what is left over."""
    try:
        images = find_nvrtc_compiler().images(source([mapped(case(name, 9601), CUDA) for name in LEFT]), (80,))
    except AotcError:
        skip_or_fail_without("NVRTC")
    assert all(one.local_bytes == 0 for one in read_kernel_resources_from_cubin(images["sm_80"]).values())
    found = {}
    for name, code in disassembled(images["sm_80"], tmp_path):
        words = re.findall(r"\b((?:LD|ST)G)\.E(?:\.(?:CONSTANT|STRONG|GPU|SYS))*(\.\S+)?", code)
        found[name] = {"".join(one).removesuffix(".CONSTANT").replace("S8", "U8") for one in words}
    wide = {"LDG.128", "STG.128"}
    assert found["copied"] == wide | {"LDG.U16", "STG.U16"}
    assert found["scaled"] == wide | {"LDG", "STG"}
    assert found["bytes"] == wide | {"LDG.U8", "STG.U8"}


def test_code_for_devices() -> None:
    """Accesses of 16 bytes, and everything in registers."""
    try:
        nvrtc = find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")
    text = source([mapped(case(name, 9600), CUDA) for name in (*CASES, "slid")])
    images = nvrtc.images(text, (80,))
    assert all(
        one.local_bytes == 0 and one.registers <= 40
        for one in read_kernel_resources_from_cubin(images["sm_80"]).values()
    )
    found = accesses(images["compute_80"])
    once = {"ldglobal.v4": 1, "stglobal.v4": 1}
    assert found["copied"] == found["bytes"] == once
    assert found["scaled"] == once | {"ldglobal": 1}
    assert found["narrowed"] == {"ldglobal.v4": 2, "ldglobal": 1, "stglobal.v4": 1}
    assert found["tested"] == {"ldglobal.v4": 4, "ldglobal": 1, "stglobal.v4": 1}
    assert found["chosen"]["ldglobal.v4"] == 1
    # of a row: four elements at once, one on each side, three weights; two more rows by the loop
    assert found.pop("slid") == {"ldglobal.v4": 1, "ldglobal": 5, "stglobal.v4": 1}
    assert found.pop("spread") == {"ldglobal": 6, "stglobal": 6}
    tiles = found.pop("turned")
    assert tiles.pop("ldglobal") in (4, 8)
    assert tiles == {"stshared": 4, "ldshared": 4, "stglobal": 4}
    assert {access for one in found.values() for access in one} == {"ldglobal", *once}
