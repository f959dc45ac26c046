# SPDX-License-Identifier: Apache-2.0
"""A handwritten program whose shapes depend on the sizes of a run: y = (x + 1) * 2 of shape [n, 4], and
w = 2 * z of shape [h].

emit_host_project(sized_program("net"), folder, target=C)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir.dimension_ranges import DimRange
from aotc.ir.dimensions import Dim, SymDim
from aotc.ir.dtype import DType
from aotc.ir.span import Span
from aotc.tir.expr import Buffer, Expr, Load, Var
from aotc.tir.plan.memory_plan import plan_memory, write_outputs_over_dying_inputs
from aotc.tir.plan.program import Program, SizeCheck
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import For, Kernel, Number, Store

F32 = DType("float32")
#: Ranges of the sizes of the program.
RANGES = {"n": DimRange(0, 8, 1, 2), "h": DimRange(32, 96, 32, 64)}


def elementwise(name: str, size: int, value: Any) -> Kernel:
    """out[i] = value(x[i]) for the first `count` of `size` elements"""
    x, out, i, count = Buffer("x", F32, size), Buffer("out", F32, size), Var("i"), Var("count")
    result: Expr = value(Load(x, i))
    body = For(i, count, Store(out, i, result), kind="independent")
    return Kernel(
        name=name, inputs=(x,), outputs=(out,), body=body, numbers=(Number(count, 0, size),), inplace=((0, 0),)
    )


def sized_program(name: str) -> Program:
    """The program, which requires h >= 10 * n."""
    n, h = SymDim("n", 8), SymDim("32*'h/32'", 96, 32)
    count = SymDim("4*n", 32)

    def storage(name: str, kind: str, *dims: Dim) -> Storage:
        shape = tuple(d if isinstance(d, int) else d.upper or 0 for d in dims)
        return Storage(name=name, dtype=F32, shape=shape, kind=kind, dims=dims)

    x, z = storage("x", "input", n, 4), storage("z", "input", h)
    y, w = storage("y", "output", n, 4), storage("w", "output", h)
    t, u = storage("t", "temp", n, 4), storage("u", "temp", n, 4)
    body = (
        Step(elementwise("add", 32, lambda v: v + 1.0), (View(x), View(t)), numbers=(count,)),
        Step(elementwise("twice", 32, lambda v: v * 2.0), (View(t), View(u)), numbers=(count,)),
        Step(elementwise("keep", 32, lambda v: v), (View(u), View(y)), numbers=(count,)),
        Step(elementwise("twice", 96, lambda v: v * 2.0), (View(z), View(w)), numbers=(h,)),
    )
    check = SizeCheck(h, ">=", SymDim("10*n", 80), Span("model.onnx", node="/cat"))
    program = Program(name=name, inputs=(x, z), outputs=(y, w), body=body, sizes=RANGES, checks=(check,))
    return plan_memory(write_outputs_over_dying_inputs(program))


def expected(x: np.ndarray[Any, Any], z: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """What the program gives."""
    return [(x + np.float32(1)) * np.float32(2), z * np.float32(2)]
