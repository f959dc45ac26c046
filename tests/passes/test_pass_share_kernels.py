# SPDX-License-Identifier: Apache-2.0
"""ShareKernels: fused functions that differ in scalars become one function, whose calls pass the scalars."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from passes.graphs import checked, const, module_of, noise, var
from relay.programs import functions, inputs

from aotc import relay
from aotc.relay.analysis import free_vars
from aotc.relay.backend.module_to_program import lower_main_to_program
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, divide, multiply, subtract
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import relu, sigmoid
from aotc.relay.op.qnn.target_independent_rounding import nearest_uint8
from aotc.relay.structural_equality import structural_equal
from aotc.relay.transform import FuseOps, ShareKernels
from aotc.relay.transform.fuse_ops import fuse_operators
from aotc.relay.visitor import post_order
from aotc.tir.target import C

X, Y = var("x", 1, 4, 6, 6), var("y", 1, 4, 6, 6)
BYTES = var("b", 1, 4, 6, 6, dtype="uint8")


def convolve(x: Expr) -> Expr:
    return conv2d(x, noise(4, 4, 3, 3), padding=(1, 1))


def shared(*results: Expr) -> IRModule:
    """The fused module after the pass, which changes no value."""
    fused = FuseOps()(module_of(Tuple(results), *free_vars(Tuple(results))))
    return checked(ShareKernels(), fused)


def calls(*results: Expr) -> list[Call]:
    """The calls of fused functions after the pass."""
    return [n for n in post_order(shared(*results).main) if isinstance(n, Call) and isinstance(n.op, Function)]


def scalars(call: Call) -> list[float]:
    """The scalars that a call passes."""
    return [arg.data.item() for arg in call.args if isinstance(arg, Constant) and not arg.data.ndim]


def requantize(x: Expr, zero: int, scale: float, out_scale: float, out_zero: float) -> Expr:
    """Bytes of another scale and zero point, as layers of quantized networks compute them."""
    whole = subtract(relay.cast(x, dtype="int32"), const(zero, "int32"))
    return nearest_uint8(divide(multiply(relay.cast(whole, dtype="float32"), const(scale)), const(out_scale)), out_zero)


@settings(max_examples=80, deadline=None)
@given(functions())
def test_no_result_changes(function: Function) -> None:
    fused = fuse_operators(function)
    made = ShareKernels()(module_of(fused.body, *fused.params)).main
    for flag in (True, False):
        before, after = (evaluate(f, *inputs(flag=flag)) for f in (function, made))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_scalars_in_which_functions_differ_are_passed() -> None:
    found = calls(*(requantize(BYTES, zero, scale, 0.3, const(7.0)) for zero, scale in ((5, 0.1), (9, 0.1), (9, 0.2))))
    assert [scalars(call) for call in found] == [
        [5, pytest.approx(0.1)],
        [9, pytest.approx(0.1)],
        [9, pytest.approx(0.2)],
    ]
    assert all(call.op is found[0].op for call in found[1:])
    dtypes = [param.checked_type.dtype for param in found[0].op.params]
    assert dtypes == ["uint8", "int32", "float32"]


def test_functions_that_share_a_kernel_are_lowered_once() -> None:
    program = lower_main_to_program(shared(*(multiply(sigmoid(X), const(f)) for f in (0.3, 0.7, 1.7))), C)
    assert [kernel.name for kernel in program.distinct_kernels if kernel.source is None].count("multiply") == 1


def test_scalars_that_are_equal_in_each_function_are_one_parameter() -> None:
    found = calls(*(add(multiply(sigmoid(X), const(f)), const(f)) for f in (0.3, 0.7)))
    assert [scalars(call) for call in found] == [[pytest.approx(0.3)], [pytest.approx(0.7)]]


def test_equal_functions_get_no_parameters() -> None:
    assert [scalars(call) for call in calls(multiply(relu(X), const(0.3)), multiply(relu(Y), const(0.3)))] == [[], []]


def test_parameters_of_convolutions_stay_in_place() -> None:
    found = calls(*(multiply(convolve(x), const(f)) for x, f in ((X, 0.3), (Y, 0.7))))
    assert [scalars(call) for call in found] == [[pytest.approx(0.3)], [pytest.approx(0.7)]]
    assert all(call.op.attrs["Finite"] == (1,) for call in found)


@pytest.mark.parametrize(("op", "a", "b"), [
    (multiply, 1.0, 0.3),  # disappears
    (add, 0.0, 0.3),
    (divide, 4.0, 0.3),  # is a multiplication
    (divide, 4.0, 2.0),
    (multiply, float("inf"), 0.3),
])  # fmt: skip
def test_scalars_that_make_kernels_faster_stay_literals(op: relay.op.Op, a: float, b: float) -> None:
    assert [scalars(call) for call in calls(*(op(sigmoid(X), const(f)) for f in (a, b)))] == [[], []]


def test_integer_divisors_stay_literals() -> None:
    whole = var("n", 1, 4, 6, 6, dtype="int32")
    assert [scalars(call) for call in calls(*(divide(whole, const(n, "int32")) for n in (3, 7)))] == [[], []]


def test_functions_of_other_structure_stay_apart() -> None:
    first, second = add(sigmoid(X), const(0.3)), add(relu(X), const(0.7))
    before = FuseOps()(module_of(Tuple((first, second)), X))
    assert structural_equal(ShareKernels()(before), before)
