# SPDX-License-Identifier: Apache-2.0
"""FoldExplicitPadding removes the taps of convolutions that meet nothing but padding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aotc.relay.expr import Call, Constant, tensor_type_of
from aotc.relay.graph_api import IRModule, post_order
from aotc.relay.op.conv import conv1d, conv2d, conv3d
from aotc.relay.transform import FoldExplicitPadding
from tests.passes.graphs import checked, module_of, noise, var


def weight_shape(module: IRModule) -> tuple[int, ...]:
    (node,) = (n for n in post_order(module["main"]) if isinstance(n, Call))
    return tuple(int(extent) for extent in tensor_type_of(node.args[1]).shape)


def shape_without_padding_taps(x: Any, w: Any, **attrs: Any) -> tuple[int, ...]:
    """Return the shape of the weights after the pass; `checked` compares results with those before."""
    return weight_shape(checked(FoldExplicitPadding(), module_of(conv2d(x, w, **attrs), x)))


@pytest.mark.parametrize(
    ("data", "attrs", "kernel"),
    [
        ((2, 5), {"padding": (3, 3)}, (3, 7)),
        ((1, 1), {"padding": (3, 3)}, (1, 1)),
        ((2, 2), {"padding": (6, 6), "dilation": (2, 2)}, (1, 1)),
        ((1, 38), {"padding": (3, 3), "strides": (2, 2)}, (1, 7)),
        ((2, 5), {"padding": (5, 0, 0, 3)}, (2, 5)),
        ((1, 5), {"padding": (6, 3, 6, 3)}, (7, 7)),
        ((4, 9), {"padding": (3, 3)}, (7, 7)),
        ((2, 5), {"padding": (3, 3), "kernel_size": (7, 7), "channels": 4}, (3, 7)),
    ],
)
def test_shapes_of_weights(data: tuple[int, int], attrs: dict[str, Any], kernel: tuple[int, int]) -> None:
    assert shape_without_padding_taps(var("x", 1, 3, *data), noise(4, 3, 7, 7), **attrs)[2:] == kernel


def test_layouts() -> None:
    x = var("x", 1, 2, 5, 3)
    attrs = {"padding": (3, 3), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    assert shape_without_padding_taps(x, noise(7, 7, 3, 4), **attrs) == (3, 7, 3, 4)


def test_one_and_three_axes() -> None:
    x = var("x", 1, 4, 2)
    module = checked(FoldExplicitPadding(), module_of(conv1d(x, noise(4, 1, 9), padding=(4,), groups=4), x))
    assert weight_shape(module) == (4, 1, 3)
    x = var("x", 1, 2, 1, 2, 6)
    module = checked(FoldExplicitPadding(), module_of(conv3d(x, noise(3, 2, 3, 5, 3), padding=(1, 2, 1)), x))
    assert weight_shape(module) == (3, 2, 1, 3, 3)


def test_other_convolutions_keep_their_weights() -> None:
    x, w = var("x", 1, 3, 1, 1), var("w", 4, 3, 3, 3)
    module = module_of(conv2d(x, w, padding=(1, 1)), x, w)
    assert weight_shape(FoldExplicitPadding()(module)) == (4, 3, 3, 3)
    x = var("x", 1, 1, 1, 1, dtype="int8")
    ones = Constant(np.ones((1, 1, 3, 3), np.int8))
    module = module_of(conv2d(x, ones, padding=(1, 1), out_dtype="int32", pad_value=-7), x)
    assert weight_shape(FoldExplicitPadding()(module)) == (1, 1, 3, 3)


def test_small_images_under_many_windows() -> None:
    """Results and output shapes are those of the full kernel for sizes, paddings, strides and dilations."""
    for size, before, after, stride, dilation in itertools.product((1, 2, 3), (0, 1, 4), (0, 3), (1, 2), (1, 2, 3)):
        if size + before + after < 2 * dilation + 1:
            continue
        x = var("x", 1, 1, size, 2)
        attrs = {"padding": (before, 0, after, 0), "strides": (stride, 1), "dilation": (dilation, 1)}
        checked(FoldExplicitPadding(), module_of(conv2d(x, noise(2, 1, 3, 1), **attrs), x))
