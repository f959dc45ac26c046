# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions against ONNX Runtime; their expansion; type rules."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.attrs import Attrs
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.relay.expr import Var, tensor_type_of
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.conv_transpose import (
    Conv1DTransposeAttrs,
    Conv2DTransposeAttrs,
    Conv3DTransposeAttrs,
    conv2d_transpose,
)
from tests.ops.onnxruntime_oracle import close, error_code, evaluate, normal, ort, reference, types_of

ATTRS = {1: Conv1DTransposeAttrs, 2: Conv2DTransposeAttrs, 3: Conv3DTransposeAttrs}


def _case(n: int, seed: int) -> tuple[dict[str, list[int]], int, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(1, 3))
    strides = rng.integers(1, 4, n)
    window = {
        "strides": strides.tolist(),
        "dilations": rng.integers(1, 4, n).tolist(),
        "pads": rng.integers(0, 2, 2 * n).tolist(),
        "output_padding": [int(rng.integers(0, s)) for s in strides],
    }
    x = normal(2, 2 * groups, *rng.integers(2, 6, n), seed=seed)
    return window, groups, x, normal(2 * groups, 3, *rng.integers(2, 5, n), seed=seed + 1)


def _attributes(n: int, window: dict[str, list[int]], groups: int) -> Attrs:
    names = {"strides": "strides", "dilations": "dilation", "pads": "padding", "output_padding": "output_padding"}
    return ATTRS[n](groups=groups, **{names[k]: tuple(v) for k, v in window.items()})


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("n", [1, 2])
def test_transposed_convolution_agrees_with_onnx_runtime(n: int, seed: int) -> None:
    window, groups, x, w = _case(n, seed)
    got = reference(f"nn.conv{n}d_transpose", _attributes(n, window, groups), x, w)
    close(got, ort("ConvTranspose", x, w, group=groups, **window))


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_expansion_means_the_same(n: int, seed: int) -> None:
    window, groups, x, w = _case(n, seed)
    op, attributes = OPERATORS_BY_NAME[f"nn.conv{n}d_transpose"], _attributes(n, window, groups)
    assert op.expand is not None
    variables = [Var(name, ty) for name, ty in zip("xw", types_of(x, w), strict=True)]
    body = op.expand(attributes, *variables)
    want = reference(op.name, attributes, x, w)
    assert tensor_type_of(body) == TensorType(want.shape)
    close(evaluate(body, dict(zip(variables, (x, w), strict=True))), want, 1e-5)


def test_infinity_stays_where_the_kernel_reaches() -> None:
    x, w = normal(1, 1, 4, 4), normal(1, 1, 3, 3, seed=1)
    x[0, 0, 1, 1] = np.inf
    op = OPERATORS_BY_NAME["nn.conv2d_transpose"]
    attributes = Conv2DTransposeAttrs(strides=(2, 2))
    variables = [Var(name, ty) for name, ty in zip("xw", types_of(x, w), strict=True)]
    assert op.expand is not None
    got = evaluate(op.expand(attributes, *variables), dict(zip(variables, (x, w), strict=True)))
    assert np.isfinite(got).sum() == got.size - 9


@pytest.mark.parametrize(
    ("code", "x", "w", "attributes"),
    [
        ("conv.rank", (1, 3, 5), (3, 4, 3, 3), Conv2DTransposeAttrs()),
        ("conv.in-channels", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DTransposeAttrs()),
        ("conv.in-channels", (1, 3, 5, 5), (3, 3, 3, 3), Conv2DTransposeAttrs(groups=2)),
        ("conv.out-channels", (1, 3, 5, 5), (3, 4, 3, 3), Conv2DTransposeAttrs(channels=3)),
        ("conv.kernel", (1, 3, 5, 5), (3, 4, 3, 3), Conv2DTransposeAttrs(kernel_size=(2, 2))),
        ("conv.empty", (1, 3, 1, 1), (3, 4, 2, 2), Conv2DTransposeAttrs(padding=(1, 1))),
    ],
)
def test_ill_typed(code: str, x: tuple[int, ...], w: tuple[int, ...], attributes: Attrs) -> None:
    assert (
        error_code(OPERATORS_BY_NAME["nn.conv2d_transpose"].infer, attributes, [TensorType(x), TensorType(w)]) == code
    )


def test_backward_inference_and_symbols() -> None:
    refine = OPERATORS_BY_NAME["nn.conv2d_transpose"].refine
    assert refine is not None
    attributes = Conv2DTransposeAttrs(channels=6, kernel_size=(2, 3), groups=2)
    assert refine(attributes, [TensorType((1, 4, 5, 5)), None])[1] == TensorType((4, 3, 2, 3))
    x, w = Var("x", TensorType((SymDim("n"), 4, 5, 5))), Var("w", TensorType((4, 3, 1, 1)))
    call = conv2d_transpose(x, w, strides=2)
    assert call.checked_type == TensorType((SymDim("n"), 3, 9, 9))
    expand = OPERATORS_BY_NAME["nn.conv2d_transpose"].expand
    assert error_code(expand, call.attrs, x, w) == "dynamic-shape"
