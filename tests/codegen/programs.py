# SPDX-License-Identifier: Apache-2.0
"""Small handwritten programs with every kind of storage: y = (x + w) * 2, computed by way of a temporary.

emit(affine("net"), folder, target=C)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir.dtype import DType
from aotc.ir.span import Span
from aotc.tir.expr import Buffer, Expr, Load, Var
from aotc.tir.plan.memory_plan import plan_memory, write_outputs_over_dying_inputs
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import For, Kernel, Store

F32 = DType("float32")


def elementwise(name: str, size: int, make: Any, count: int, span: Span | None = None) -> Kernel:
    """out[i] = make(x0[i], x1[i], ...)"""
    inputs = tuple(Buffer(f"x{k}", F32, size) for k in range(count))
    out, i = Buffer("out", F32, size), Var("i")
    value: Expr = make(*(Load(b, i) for b in inputs))
    return Kernel(name=name, inputs=inputs, outputs=(out,), body=For(i, size, Store(out, i, value)), span=span)


def affine(
    name: str, size: int = 12, *, names: tuple[str, str] = ("x", "y"), node: str = "node", seed: int = 0
) -> Program:
    """y = (x + w) * 2 + w, of shape (size / 4, 4)."""
    shape = (size // 4, 4)
    weights = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    x = Storage(name=names[0], dtype=F32, shape=shape, kind="input")
    y = Storage(name=names[1], dtype=F32, shape=shape, kind="output")
    w = Storage(name="const0", dtype=F32, shape=shape, kind="constant", data=weights)
    t, u = (Storage(name=f"t{k}", dtype=F32, shape=shape) for k in range(2))
    span = Span("model.onnx", node=node)
    add = elementwise("k0_add", size, lambda a, b: a + b, 2, span)
    twice = elementwise("k1_twice", size, lambda a: a * 2.0, 1, span)
    again = elementwise("k2_add", size, lambda a, b: a + b, 2, span)
    steps = (
        Step(add, (View(x), View(w), View(t)), span),
        Step(twice, (View(t), View(u)), span),
        Step(again, (View(u), View(w), View(y)), span),
    )
    return plan_memory(write_outputs_over_dying_inputs(Program(name=name, inputs=(x,), outputs=(y,), body=steps)))


def expected(program: Program, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `affine` gives."""
    weights = program.constants[0].data
    assert weights is not None
    result: np.ndarray[Any, Any] = (x + weights) * np.float32(2) + weights
    return result


def copies(name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Program:
    """For each array two outputs: NAME_in, a copy of an input like it, and NAME_const, a copy of it as a constant."""
    inputs, outputs, steps = [], [], []
    for key, array in arrays.items():
        dtype = DType.from_numpy(array)
        source, target, i = Buffer("source", dtype, array.size), Buffer("target", dtype, array.size), Var("i")
        body = For(i, array.size, Store(target, i, Load(source, i)))
        kernel = Kernel(name=f"copy_{key}", inputs=(source,), outputs=(target,), body=body)
        facts: dict[str, Any] = {"dtype": dtype, "shape": array.shape}
        constant = Storage(name=f"const_{key}", kind="constant", data=array, **facts)
        inputs.append(Storage(name=key, kind="input", **facts))
        for origin, role in ((inputs[-1], "in"), (constant, "const")):
            outputs.append(Storage(name=f"{key}_{role}", kind="output", **facts))
            steps.append(Step(kernel, (View(origin), View(outputs[-1]))))
    return plan_memory(Program(name=name, inputs=tuple(inputs), outputs=tuple(outputs), body=tuple(steps)))
