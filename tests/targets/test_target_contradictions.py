# SPDX-License-Identifier: Apache-2.0
"""Targets whose fields contradict each other are rejected, with one diagnostic for each problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aotc_codegen.c.c_dialects import DIALECTS, dialect_for_target

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.tir.micro_kernels import ARM_DSP, ARM_MVE, DOT4, DP4A, MMA_INT8, X86_AMX, BlockShape
from aotc.tir.target import (
    AARCH64,
    CORTEX_M4,
    CUDA,
    TARGETS,
    X86_64_MULTI,
    X86_64_V3,
    X86_64_V4,
    C,
    Gpu,
    Space,
    Target,
    Threads,
    Tiles,
    Winograd,
)
from tests.e2e.projects import DIGITS


@pytest.mark.parametrize(
    ("target", "facts", "message"),
    [
        (X86_64_V3, {"features": ("avx3",)}, "unknown processor feature 'avx3' in features"),
        (X86_64_V3, {"features": ("avx2", "dotprod")}, "feature dotprod belongs to aarch64, but machine is 'x86_64'"),
        (AARCH64, {"features": ("mve",)}, "feature mve belongs to arm, but machine is 'aarch64'"),
        (C, {"features": ("avx2",)}, "feature avx2 belongs to x86_64, but machine is ''"),
        (X86_64_V4, {"micro_kernels": (X86_AMX,)}, "micro-kernel x86_amx requires amx_int8, which the target does"),
        (CORTEX_M4, {"micro_kernels": (ARM_MVE,)}, "micro-kernel arm_mve requires mve, which the target does not"),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, level="vector"),)},
            "unknown level of micro-kernel dot4: 'vector'",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (MMA_INT8,)},
            "micro-kernel mma_int8 has the level 'warp', which needs gpu, which is None",
        ),
        (
            CUDA,
            {"micro_kernels": (DOT4,)},
            "micro-kernel dot4 has the level 'registers', which a target with gpu does not have",
        ),
        (
            CUDA,
            {"micro_kernels": (replace(DP4A, blocks=(BlockShape(16, 16, 0, 4),)),)},
            "micro-kernel dp4a: blocks: high must be positive, got 0",
        ),
        (
            CUDA,
            {"micro_kernels": (replace(DP4A, blocks=(BlockShape(12, 16, 4, 4),)),)},
            "the threads of a block cannot divide a tile of micro-kernel dp4a evenly: BlockShape(rows=12",
        ),
        (
            CUDA,
            {"micro_kernels": (replace(MMA_INT8, blocks=(BlockShape(8, 4, 8, 8),)),)},
            "the threads of a block cannot divide a tile of micro-kernel mma_int8 evenly: BlockShape(rows=8",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(X86_AMX, requires=(), weights="rows"),)},
            "no schedule for micro-kernel x86_amx, which reads 'strided' data and 'rows' weights from memory",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(X86_AMX, requires=(), block=32, positions=8),)},
            "micro-kernel x86_amx has positions=8, block=32, which contradicts its instruction brgemm_{data}_{wei",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(X86_AMX, requires=(), max_positions=8),)},
            "micro-kernel x86_amx: max_positions must be 16 or more, the positions of a tile, got 8",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(X86_AMX, requires=(), multiply="byte_rows", outputs=4, max_outputs=8),)},
            "micro-kernel x86_amx: max_outputs must be 16 or more, the outputs of a block, got 8",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, group=2),)},
            "micro-kernel dot4 has group=2, which contradicts its instruction dot4_{data}_{weights}_x{lanes}",
        ),
        (
            C,
            {"micro_kernels": (replace(ARM_DSP, requires=(), outputs=8),)},
            "micro-kernel arm_dsp has outputs=8, which contradicts its instruction pairs2x4",
        ),
        (
            C,
            {"micro_kernels": (replace(ARM_MVE, requires=(), finish=("requantize_onc",)),)},
            "micro-kernel arm_mve: finish is 'requantize_onc', but there is no instruction 'requantize_onc'",
        ),
        (
            C,
            {"micro_kernels": (replace(ARM_MVE, requires=(), finish=("fma",)),)},
            "micro-kernel arm_mve: finish is 'fma', but there is no instruction 'fma' with a meaning for one element",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, multiply="dot5_{data}_{weights}_x{lanes}"),)},
            "micro-kernel dot4: multiply is 'dot5_{data}_{weights}_x{lanes}', but there is no instruction 'dot5",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, load="words_{type}"),)},
            "micro-kernel dot4: load has no valid placeholders, got 'words_{type}'",
        ),
        (X86_64_V3, {"micro_kernels": (replace(DOT4, multiply=""),)}, "micro-kernel dot4 names no instruction"),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, lanes=4),)},  # type: ignore[arg-type]
            "micro-kernel dot4: lanes must be a tuple, got 4",
        ),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, operands=(("in8", "int8"),)),)},
            "micro-kernel dot4: operands must be pairs of types of data and weights, got ('in8', 'int8')",
        ),
        (CUDA, {"micro_kernels": (replace(DP4A, adjacent=0),)}, "micro-kernel dp4a: adjacent must be positive, got 0"),
        (X86_64_V3, {"activations": "int4"}, "activations must be 'int8', 'uint8' or '', got 'int4'"),
        (X86_64_V3, {"tiles": Tiles(latency=0)}, "tiles.latency must be positive, got 0"),
        (X86_64_V3, {"tiles": Tiles(load=-1.0)}, "tiles.load must be 0 or more, got -1.0"),
        (X86_64_V3, {"tiles": Tiles(scalar_columns=(8, 0))}, "tiles.scalar_columns must be positive, got 0"),
        (X86_64_V3, {"micro_kernels": (replace(DOT4, rate=0),)}, "micro-kernel dot4: rate must be positive, got 0"),
        (
            X86_64_V3,
            {"micro_kernels": (replace(DOT4, rate=float("inf")),)},
            "micro-kernel dot4: rate must be positive, got inf",
        ),
        (X86_64_V3, {"micro_kernels": (replace(DOT4, registers=1.5),)}, "micro-kernel dot4: registers must be a whole"),
        (X86_64_V3, {"winograd": Winograd(macs=float("nan"))}, "winograd.macs must be positive, got nan"),
        (X86_64_V3, {"winograd": Winograd(macs="16")}, "winograd.macs must be a number, got '16'"),
        (X86_64_V3, {"threads": Threads(bytes_per_ns=-80)}, "threads.bytes_per_ns must be positive, got -80"),
        (X86_64_V3, {"threads": Threads(teams=(2, 0))}, "threads.teams must be positive, got 0"),
        (CUDA, {"gpu": Gpu(warp=0)}, "gpu.warp must be positive, got 0"),
        (C, {"gpu": Gpu()}, "gpu needs the dialect cuda, got 'c99'"),
        (CUDA, {"gpu": None}, "the dialect cuda needs gpu, which is None"),
        (CUDA, {"vector_bytes": 16}, "vector_bytes must be 0 with gpu, got 16"),
        (CUDA, {"threads": Threads()}, "kernels are launched on a gpu or divided among threads, not both"),
        (CORTEX_M4, {"threads": Threads()}, "threads need an operating system, but bare is True"),
        (CUDA, {"bare": True}, "a gpu needs an operating system, but bare is True"),
        (C, {"spaces": (Space(name="ram"), Space(name="ram"))}, "2 memories are called ram"),
        (
            X86_64_MULTI,
            {"machine": "x86_64", "versions": (X86_64_V3, X86_64_V3)},
            "versions must have different levels",
        ),
        (AARCH64, {"versions": (X86_64_V3,)}, "its version x86-64-v3 is for 'x86_64', but machine is 'aarch64'"),
    ],
)
def test_each_contradiction(target: Target, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(AotcError) as raised:
        replace(target, name="odd", **facts)
    (problem,) = raised.value.diagnostics
    assert problem.code == "target" and problem.message.startswith(f"target odd: {message}")


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(AotcError) as raised:
        replace(
            X86_64_V3,
            name="odd",
            l1=0,
            features=("avx3",),
            micro_kernels=(replace(DOT4, rate=-1),),
            cflags=("-ffast-math",),
            gpu=Gpu(),
        )
    messages = [f"{d.code}: {d.message}" for d in raised.value.diagnostics]
    expected = [
        "target: target odd: l1 must be 1024 to 67108864 bytes, got 0",
        "target: target odd: micro-kernel dot4: rate must be positive, got -1",
        "target: target odd: unknown processor feature 'avx3' in features",
        "target: target odd: gpu needs the dialect cuda, got 'gnu-c'",
        "target: target odd: kernels are launched on a gpu or divided among threads, not both",
        "target: target odd: vector_bytes must be 0 with gpu, got 32",
    ]
    assert messages[:-1] == expected and messages[-1].startswith("cflags: ")


@pytest.mark.parametrize("dialect", [name for name, row in DIALECTS.items() if row.vectors is None and name != "cuda"])
def test_vectors_that_the_language_lacks(dialect: str) -> None:
    target = replace(X86_64_V3, name="odd", dialect=dialect)
    with pytest.raises(AotcError, match=rf"target odd: vector_bytes is 32, and {dialect} has no vectors") as raised:
        dialect_for_target(target)
    assert raised.value.code == "target" and raised.value.diagnostics[0].hint.endswith("dialect to one of gnu-c")


def test_a_model_is_not_compiled_for_vectors_that_the_language_lacks() -> None:
    with pytest.raises(AotcError, match="target odd: vector_bytes is 32, and c99 has no vectors"):
        aotc.compile(DIGITS, target=replace(X86_64_V3, name="odd", dialect="c99"), build=False)


def test_every_target_of_the_table_has_a_dialect() -> None:
    for target in TARGETS.values():
        assert dialect_for_target(target).features == target.processor_features
