# SPDX-License-Identifier: Apache-2.0
"""Runs an operator's sample through a kernel, by an executor chosen by name.

job = kernel_job(OPERATORS_BY_NAME["add"], sample)          # the scheduled kernel and its flat inputs
outputs = EXECUTORS["interpreter"]([job])[0]       # executors take batches: a compiler is slow to start
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, TupleType, Type, tensor_types
from aotc.relay.backend.function_to_kernel import lower_fused_function
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, typed_op_call
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.relay.visitor import post_order, rewrite_bottom_up
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Kernel
from aotc.tir.target import TARGETS, Target
from tests.codegen.batch import finished

Array = np.ndarray[Any, Any]


def type_of_value(value: Any) -> Type:
    """The type of an array or a (nested) tuple of arrays."""
    if isinstance(value, tuple):
        return TupleType(map(type_of_value, value))
    return TensorType(value.shape, DType.from_numpy(value))


def flat(value: Any) -> list[Array]:
    """The arrays of a (nested) tuple."""
    return [a for item in value for a in flat(item)] if isinstance(value, tuple) else [value]


@dataclass(frozen=True)
class Job:
    """One kernel to run: its inputs, and what its outputs are."""

    kernel: Kernel
    inputs: list[Array]
    types: tuple[TensorType, ...]


def expanded(expr: Expr, device: bool = False) -> Expr:
    """`expr` without operators that are compositions of others, where a `device` has no program of their own."""
    done: dict[Expr, Expr] = {}
    for node in post_order(expr):
        match node:
            case Call(op=OpDef() as op):
                args = [done[a] for a in node.args]
                if op.expand is None or (device and op.compute is not None):
                    done[node] = typed_op_call(op, args, node.attrs)
                else:
                    done[node] = expanded(op.expand(node.attrs, *args), device)
            case Tuple():
                done[node] = Tuple(done[f] for f in node.fields)
            case TupleGetItem():
                done[node] = TupleGetItem(done[node.tuple_value], node.index)
            case _:
                done[node] = node
    return done[expr]


def constants(value: Any) -> Expr:
    """An array as a constant, a tuple of them as a tuple of constants."""
    return Tuple(map(constants, value)) if isinstance(value, tuple) else Constant(value)


def as_parameters(body: Expr) -> tuple[Expr, dict[Var, Array]]:
    """`body` with parameters, of which the values are given, in the place of constants that are no single values."""
    tables = {n: n.data for n in post_order(body) if isinstance(n, Constant) and n.data.size > 1 and not n.is_splat}
    params = {n: Var(f"c{k}", type_of_value(data)) for k, (n, data) in enumerate(tables.items())}
    new = rewrite_bottom_up(body, lambda old, made: params.get(old, made))
    return new, {params[n]: data for n, data in tables.items()}


def kernel_job(op: OpDef, sample: Sample, target: Target = TARGETS["c"], *, printed: bool = True) -> Job:
    """The kernel of one call of `op` on the arguments of a sample, as it is printed, or as it is scheduled."""
    args = [constants(v) if k in sample.known else Var(f"a{k}", type_of_value(v)) for k, v in enumerate(sample.args)]
    given = {a: v for a, v in zip(args, sample.args, strict=True) if isinstance(a, Var)}
    body = expanded(typed_op_call(op, args, sample.attrs), target.gpu is not None)
    body, tables = as_parameters(body)
    given |= tables
    finite = [k for k, value in enumerate(given.values()) if all(np.isfinite(x).all() for x in flat(value))]
    function = Function(list(given), body, attrs={"Finite": tuple(finite)})
    kernel = lower_fused_function(function, op.name.replace(".", "_"), target)
    assert body.checked_type is not None
    kernel = finished(kernel, target) if printed else kernel
    return Job(kernel, flat(tuple(given.values())), tensor_types(body.checked_type))


def interpret(jobs: Sequence[Job]) -> list[list[Array]]:
    """The outputs of each job, by the interpreter of tensor programs."""
    results = []
    for job in jobs:
        outputs = run_kernel(job.kernel, job.inputs)
        results.append([o.reshape(t.static_shape) for o, t in zip(outputs, job.types, strict=True)])
    return results


Executor = Callable[[Sequence[Job]], list[list[Array]]]
EXECUTORS: Mapping[str, Executor] = {"interpreter": interpret}
"""Ways to run kernels, by name; tests of operators as C are in `tests.targets`."""


def assert_agrees(actual: Array, expected: Array, accuracy: Accuracy) -> None:
    """Same shape and dtype, and values as close as `accuracy` says; NaN and infinities in the same places."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    dtype = DType.from_numpy(expected)
    a, b = (x.astype(np.float64) if dtype.is_float else x for x in (actual, expected))
    if accuracy is Accuracy.EXACT or not dtype.is_float:
        np.testing.assert_array_equal(a, b)
        return
    finite = np.abs(b[np.isfinite(b)])
    largest = float(finite.max(initial=0.0))
    unit = float(np.spacing(np.ones((), dtype.numpy)).astype(np.float64))
    relative = 64 * unit if accuracy is Accuracy.ROUNDING else max(1e-3, 8 * unit)
    anchor = 16 * unit if accuracy is Accuracy.ROUNDING else relative
    np.testing.assert_allclose(a, b, rtol=relative, atol=anchor * min(largest, 1e6))
