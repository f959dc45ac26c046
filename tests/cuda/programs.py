# SPDX-License-Identifier: Apache-2.0
"""Small handwritten programs for devices, with their expected results."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir.dtype import DType
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.plan.memory_plan import plan_memory
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Kernel

SIZE = 1000
FLOAT = DType("float32")
Array = np.ndarray[Any, Any]


def pointwise(name: str, value: str, *inputs: str) -> Kernel:
    """A kernel that computes y from its inputs element by element, in blocks of 64 threads."""
    declared = "\n".join(f"  input {x}: float32[{SIZE}]" for x in inputs)
    element = value
    for x in inputs:
        element = element.replace(x, f"{x}[b * 64 + t]")
    return parse_kernel(f"""kernel "{name}" {{
{declared}
  output y: float32[{SIZE}]
  for b in 0..{-(-SIZE // 64)} block {{
    for t in 0..64 thread {{
      if b * 64 + t < {SIZE} {{ y[b * 64 + t] = {element} }}
    }}
  }}
}}
""")


def storage(name: str, kind: str = "temp", data: Array | None = None) -> Storage:
    return Storage(name=name, dtype=FLOAT, shape=(SIZE,), kind=kind, data=data)


def step(kernel: Kernel, *storages: Storage) -> Step:
    return Step(kernel, tuple(map(View, storages)))


WEIGHTS = np.linspace(-1, 1, SIZE, dtype=np.float32)


def diamond(name: str = "net") -> Program:
    """Two branches that join, a third that takes over the memory of what the others no longer need."""
    x, y, z = storage("x", "input"), storage("y", "output"), storage("z", "output")
    w = storage("w", "constant", WEIGHTS)
    a, b, c, d = map(storage, "abcd")
    twice, add = pointwise("twice", "p * 2.0", "p"), pointwise("add", "p + q", "p", "q")
    steps = (
        step(twice, x, a),
        step(add, a, w, b),
        step(pointwise("square", "p * p", "p"), a, c),
        step(add, b, c, y),
        step(twice, y, d),
        step(add, d, x, z),
    )
    return plan_memory(Program(name=name, inputs=(x,), outputs=(y, z), body=steps))


def diamond_results(x: Array) -> list[Array]:
    """In float32, each operation rounded."""
    a = x * np.float32(2)
    y = (a + WEIGHTS) + a * a
    return [y, y * np.float32(2) + x]
