# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their transposes against ONNX Runtime; type rules; backward inference."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.attrs import Attrs
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.relay.expr import Var
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.conv import Conv1DAttrs, Conv2DAttrs, Conv3DAttrs, conv2d
from tests.ops.onnxruntime_oracle import close, error_code, normal, ort, reference

RANKS = (1, 2, 3)
CONV = {1: Conv1DAttrs, 2: Conv2DAttrs, 3: Conv3DAttrs}


def _random_window(rng: np.random.Generator, n: int) -> dict[str, list[int]]:
    return {
        "strides": rng.integers(1, 4, n).tolist(),
        "dilations": rng.integers(1, 4, n).tolist(),
        "pads": rng.integers(0, 3, 2 * n).tolist(),
    }


def _fields(window: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    names = {"strides": "strides", "dilations": "dilation", "pads": "padding"}
    return {names[k]: tuple(v) for k, v in window.items() if k in names}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", RANKS)
def test_convolution_agrees_with_onnx_runtime(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(1, 4))
    kernel = rng.integers(1, 4, n)
    window = _random_window(rng, n)
    x = normal(2, 2 * groups, *(7 + rng.integers(0, 4, n)), seed=seed)
    w = normal(3 * groups, 2, *kernel, seed=seed + 1)
    attributes = CONV[n](groups=groups, **_fields(window))
    close(reference(f"nn.conv{n}d", attributes, x, w), ort("Conv", x, w, group=groups, **window))


@pytest.mark.parametrize("layouts", [("NHWC", "HWIO", ""), ("NCHW", "HWIO", "NHWC"), ("CHWN", "OHWI", "NCHW")])
def test_layouts_only_move_axes(layouts: tuple[str, str, str]) -> None:
    data, kernel, out = layouts
    x, w = normal(2, 3, 6, 5), normal(4, 3, 3, 2, seed=1)
    plain = reference("nn.conv2d", Conv2DAttrs(padding=(1, 0)), x, w)
    moved = reference(
        "nn.conv2d",
        Conv2DAttrs(padding=(1, 0), data_layout=data, kernel_layout=kernel, out_layout=out),
        x.transpose(["NCHW".index(c) for c in data]),
        w.transpose(["OIHW".index(c) for c in kernel]),
    )
    close(moved, plain.transpose(["NCHW".index(c) for c in out or data]))


@pytest.mark.parametrize("groups", [1, 2])
def test_packed_kernel_is_the_plain_one_in_blocks(groups: int) -> None:
    outer, block = 16, 4
    channels = 16 if groups > 1 else 14  # the last block is padded where there is one group
    x, w = normal(1, 6, 5, 5), normal(outer, 6 // groups, 3, 3, seed=1)
    packed = np.moveaxis(w.reshape(outer // block, block, *w.shape[1:]), 1, -1)
    plain = Conv2DAttrs(groups=groups, channels=channels, padding=(1, 1))
    want = reference("nn.conv2d", plain, x, w[:channels])
    close(reference("nn.conv2d", plain.replace(kernel_layout="OIHW4o"), x, packed), want)


def test_int8_sums_are_exact() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (1, 64, 9, 9)).astype(np.int8)
    w = rng.integers(-128, 128, (4, 64, 3, 3)).astype(np.int8)
    got = reference("nn.conv2d", Conv2DAttrs(out_dtype="int32"), x, w)
    want = _direct(x.astype(np.int64), w.astype(np.int64))
    np.testing.assert_array_equal(got, want)


def _direct(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = np.zeros((x.shape[0], w.shape[0], x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1), np.int64)
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            part = x[:, :, i : i + out.shape[2], j : j + out.shape[3]]
            out += np.einsum("nchw,oc->nohw", part, w[:, :, i, j])
    return out


@pytest.mark.parametrize(
    ("code", "x", "w", "attributes"),
    [
        ("conv.data-rank", (1, 3, 5), (4, 3, 3, 3), Conv2DAttrs()),
        ("conv.weight-rank", (1, 3, 5, 5), (4, 3, 3), Conv2DAttrs()),
        ("conv.in-channels", (1, 3, 5, 5), (4, 2, 3, 3), Conv2DAttrs()),
        ("conv.out-channels", (1, 4, 5, 5), (3, 2, 3, 3), Conv2DAttrs(groups=2)),
        ("conv.out-channels", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(channels=5)),
        ("conv.kernel", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(kernel_size=(1, 1))),
        ("conv.groups", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(groups=0)),
        ("conv.groups", (1, 4, 5, 5), (1, 3, 3, 1, 4, 4), Conv2DAttrs(groups=0, kernel_layout="OHWI4o4i")),
        ("window", (1, 3, 2, 5), (4, 3, 3, 3), Conv2DAttrs()),
        ("padding", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(padding=(-1, 0))),
        ("layout", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(data_layout="NCHH")),
        ("layout", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(kernel_layout="OIHW4")),
        ("layout.rank", (1, 3, 5, 5), (4, 3, 3, 3), Conv2DAttrs(kernel_layout="OIHW4i")),
        ("conv.block", (1, 3, 5, 5), (2, 3, 3, 3, 4), Conv2DAttrs(kernel_layout="OIHW8o", channels=8)),
        ("conv.block", (1, 3, 5, 5), (2, 3, 3, 3, 4), Conv2DAttrs(kernel_layout="OIHW4o", channels=9)),
        ("conv.block", (1, 4, 5, 5), (3, 2, 3, 3, 4), Conv2DAttrs(kernel_layout="OIHW4o", channels=12, groups=2)),
    ],
)
def test_ill_typed_convolutions(code: str, x: tuple[int, ...], w: tuple[int, ...], attributes: Attrs) -> None:
    assert error_code(OPERATORS_BY_NAME["nn.conv2d"].infer, attributes, [TensorType(x), TensorType(w)]) == code


def test_a_kernel_without_type_is_solved_from_its_use() -> None:
    refine = OPERATORS_BY_NAME["nn.conv2d"].refine
    assert refine is not None
    data = TensorType((1, 6, 8, 8), "float16")
    attributes = Conv2DAttrs(groups=2, channels=4, kernel_size=(3, 1))
    assert refine(attributes, [data, None])[1] == TensorType((4, 3, 3, 1), "float16")
    assert refine(Conv2DAttrs(), [data, None])[1] is None


def test_symbolic_dimensions_pass_through() -> None:
    batch = SymDim("batch")
    x = Var("x", TensorType((batch, 3, 8, SymDim("w", upper=9))))
    w = Var("w", TensorType((4, 3, 3, 3)))
    assert conv2d(x, w, padding=1).checked_type == TensorType((batch, 4, 8, SymDim("w", upper=9)))
    strided = conv2d(x, w, strides=2).checked_type
    assert strided == TensorType((batch, 4, 3, SymDim("(w - 3)//2 + 1", upper=4)))


def test_padding_is_stored_in_full() -> None:
    x, w = Var("x", TensorType((1, 3, 8, 8))), Var("w", TensorType((4, 3, 3, 3)))
    assert conv2d(x, w, padding=(1, 2)).attrs.non_default_fields() == {"padding": (1, 2, 1, 2)}
