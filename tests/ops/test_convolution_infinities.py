# SPDX-License-Identifier: Apache-2.0
"""Infinities and NaN in data and weights of convolutions: padding adds nothing to a sum, not zero times a weight.

The definition, product by product, beside the numpy reference, the tensor-program interpreter and compiled C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotc_codegen.c.project_metadata import BOUND
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.ir.types import TensorType
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Call, Constant, Function, Var
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.conv import conv2d
from aotc.relay.op.opdef import Array, OpDef, Sample
from aotc.relay.op.pad import pad
from aotc.relay.op.window_attributes import pad_pairs_of_axes
from aotc.relay.text.printer import astext
from aotc.relay.transform import FoldExplicitPadding, FuseOps
from aotc.relay.visitor import post_order
from tests.ops.harness import assert_agrees, interpret, kernel_job
from tests.targets.machines import machine, native_targets

FORMS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    # operator, data, weights, attributes
    ("conv1d", (1, 2, 9), (3, 2, 3), {"padding": (1, 2), "strides": (2,)}),
    ("conv2d", (1, 3, 6, 7), (8, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    ("conv2d", (1, 2, 9, 20), (20, 2, 3, 5), {"padding": (2, 3, 1, 0), "strides": (2, 1)}),
    ("conv2d", (2, 4, 7, 6), (6, 2, 3, 2), {"padding": (2, 2), "dilation": (2, 3), "groups": 2}),
    ("conv2d", (1, 6, 5, 18), (6, 1, 3, 3), {"padding": (1, 1), "groups": 6}),
    ("conv2d", (1, 3, 4, 4), (4, 3, 1, 1), {"padding": (1, 0, 2, 0)}),
    ("conv3d", (1, 2, 3, 4, 5), (3, 2, 2, 3, 3), {"padding": (1, 1, 1), "dilation": (1, 1, 2)}),
    ("conv1d_transpose", (1, 3, 4), (3, 3, 2), {"strides": (2,), "padding": (1, 1), "dilation": (2,)}),
    ("conv1d_transpose", (1, 2, 3), (2, 2, 2), {"strides": (4,), "output_padding": (3,)}),
    ("conv2d_transpose", (1, 2, 4, 5), (2, 3, 3, 3), {"strides": (2, 2), "padding": (1, 1), "output_padding": (1, 0)}),
    ("conv2d_transpose", (1, 4, 3, 4), (4, 2, 2, 3), {"strides": (2, 1), "groups": 2, "dilation": (1, 2)}),
    ("conv2d_transpose", (1, 2, 6, 6), (2, 2, 2, 3), {"strides": (2, 3), "padding": (0, 1, 2, 0)}),
    ("conv3d_transpose", (1, 2, 2, 3, 2), (2, 1, 3, 2, 2), {"strides": (2, 3, 2), "padding": (1, 0, 1)}),
)


def cases() -> Iterator[tuple[OpDef, Sample]]:
    """Every form with one element in eight special, in the data or in the weights."""
    rng = np.random.default_rng(5)
    for name, data, weights, given in FORMS:
        op = OPERATORS_BY_NAME[f"nn.{name}"]
        for place in (0, 1):
            args = [rng.integers(1, 6, shape).astype(np.float32) for shape in (data, weights)]
            chosen = rng.random(args[place].shape) < 0.125
            args[place][chosen] = rng.choice([np.inf, np.inf, -np.inf, np.nan], int(chosen.sum()))
            yield op, Sample(args=tuple(args), attrs=op.attrs(**given))


CASES = tuple(cases())


def defined(op: OpDef, attributes: Any, data: Array, weights: Array) -> Array:
    """The sum of the products that there are."""
    n, transposed = data.ndim - 2, op.name.endswith("transpose")
    ty = op.infer(attributes, [TensorType(x.shape) for x in (data, weights)])
    assert isinstance(ty, TensorType)
    total = np.zeros(ty.static_shape, np.float64)
    few, many = (data, total) if transposed else (total, data)  # a window of `many` for each place of `few`
    pads = [p[0] for p in pad_pairs_of_axes(attributes.padding, n)]
    groups = attributes.groups
    inner, outer = data.shape[1] // groups, total.shape[1] // groups
    for place in np.ndindex(*few.shape[2:]):
        for tap in np.ndindex(*weights.shape[2:]):
            steps = zip(place, attributes.strides, tap, attributes.dilation, pads, strict=True)
            other = tuple(p * s + t * d - b for p, s, t, d, b in steps)
            if not all(0 <= k < size for k, size in zip(other, many.shape[2:], strict=True)):
                continue
            source, target = (place, other) if transposed else (other, place)
            for g in range(groups):
                rows = inner if transposed else outer
                own = weights[(slice(g * rows, (g + 1) * rows), slice(None), *tap)]
                x = data[(slice(None), slice(g * inner, (g + 1) * inner), *source)]
                products = x[:, :, None] * (own if transposed else own.T)
                total[(slice(None), slice(g * outer, (g + 1) * outer), *target)] += products.sum(1)
    return total.astype(np.float32)


@cache
def expected() -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        return tuple(defined(op, sample.attrs, *sample.args) for op, sample in CASES)


def agree(results: Sequence[Array]) -> None:
    for (op, sample), actual, want in zip(CASES, results, expected(), strict=True):
        try:
            assert_agrees(actual.reshape(want.shape), want, sample.accuracy)
        except AssertionError as error:
            raise AssertionError(f"{op.name} {sample.attrs}: {error}") from error


def test_some_results_are_finite_and_some_are_not() -> None:
    finite = np.concatenate([np.isfinite(x).reshape(-1) for x in expected()])
    assert 0.2 < finite.mean() < 0.9


def test_references() -> None:
    with np.errstate(all="ignore"):
        agree([op.reference(sample.attrs, *sample.args) for op, sample in CASES])


@pytest.mark.parametrize("target", [native_targets()[0], native_targets()[-1]])
def test_kernels(target: str, tmp_path: Path) -> None:
    here = machine(target)
    jobs = [kernel_job(op, sample, here.target) for op, sample in CASES]
    agree([outputs[0] for outputs in here.run_kernels([(job.kernel, job.inputs) for job in jobs], tmp_path, "-O1")])
    if target == "c":
        agree([outputs[0] for outputs in interpret(jobs)])


# --- whole models


def model(weights: Array, size: int = 24) -> Any:
    """A convolution of the kind that takes Winograd's algorithm."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    shape = [1, weights.shape[1], size, size]
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, weights.shape[0], size, size])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def sparse(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def run(weights: Array, x: Array, accuracy: str) -> tuple[Array, bool]:
    """The output, and whether Winograd's algorithm gave it."""
    compiled = aotc.compile(model(weights), target="x86-64-v3", accuracy=accuracy, cflags=("-O1",))
    return compiled.session().run(None, {"x": x})[0], bool(compiled.metadata["error_bound"] > BOUND)


@pytest.mark.skipif("x86-64-v3" not in native_targets(), reason="needs vectors of 32 bytes")
@pytest.mark.parametrize("accuracy", ["strict", "fast"])
def test_an_infinite_input(accuracy: str) -> None:
    """Strictly, what does not read it does not see it; Winograd's algorithm lets it into the tiles it is a part of."""
    weights, x = sparse(32, 32, 3, 3), sparse(1, 32, 24, 24, seed=1)
    x[0, 3, 10, 11] = np.inf
    op = OPERATORS_BY_NAME["nn.conv2d"]
    with np.errstate(all="ignore"):
        want = defined(op, op.attrs(padding=(1, 1)), x, weights)
    got, approximate = run(weights, x, accuracy)
    assert approximate == (accuracy == "fast")
    far = np.ones((24, 24), np.bool_)
    far[slice(10 - 5, 10 + 6), slice(11 - 5, 11 + 6)] = False
    seen = (slice(None), slice(None), far) if approximate else ...
    np.testing.assert_allclose(got[seen], want[seen], rtol=1e-3, atol=1e-2)


@pytest.mark.skipif("x86-64-v3" not in native_targets(), reason="needs vectors of 32 bytes")
def test_infinite_weights_take_the_direct_algorithm() -> None:
    weights, x = sparse(32, 32, 3, 3), sparse(1, 32, 24, 24, seed=1)
    weights[5, 7, 0, 1] = np.inf
    op = OPERATORS_BY_NAME["nn.conv2d"]
    with np.errstate(all="ignore"):
        want = defined(op, op.attrs(padding=(1, 1)), x, weights)
    got, approximate = run(weights, x, "fast")
    assert not approximate and np.isfinite(got[0, 5, 0]).all()
    np.testing.assert_allclose(got, want, rtol=1e-5)


# --- what passes know of weights


def convolution(weights: Any, padding: int = 1) -> Function:
    x = Var("x", TensorType((1, 2, 6, 6)))
    params = [x, *([weights] if isinstance(weights, Var) else [])]
    return Function(params, conv2d(x, weights, padding=padding, channels=3, kernel_size=3))


def fused(module: IRModule) -> list[Function]:
    return [n.op for n in post_order(module.main) if isinstance(n, Call) and isinstance(n.op, Function)]


@pytest.mark.parametrize("value", [1.0, np.inf, np.nan, None])
def test_fused_functions_say_that_weights_are_finite(value: float | None) -> None:
    shape = (3, 2, 3, 3)
    weights = Var("w", TensorType(shape)) if value is None else Constant(np.full(shape, value, np.float32))
    module = FuseOps()(IRModule.from_expr(convolution(weights)))
    (function,) = fused(module)
    assert function.attrs.get("Finite", ()) == ((1,) if value == 1.0 else ())
    assert ("Finite=[1]" in astext(module)) == (value == 1.0)
    (other,) = fused(FuseOps()(IRModule.from_expr(convolution(weights, 0))))
    assert "Finite" not in other.attrs


@pytest.mark.parametrize("value", [1.0, np.inf])
def test_zeros_that_a_graph_writes_are_padding_only_beside_finite_weights(value: float) -> None:
    x = Var("x", TensorType((1, 2, 6, 6)))
    weights = Constant(np.full((3, 2, 3, 3), value, np.float32))
    padded = conv2d(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), weights, channels=3, kernel_size=3)
    module = FoldExplicitPadding()(IRModule.from_expr(Function([x], padded)))
    assert ("nn.pad" in list_op_freqs(module.main)) == (value == np.inf)
