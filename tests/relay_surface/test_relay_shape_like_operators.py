# SPDX-License-Identifier: Apache-2.0
"""Operators that take a shape from another tensor, mask by position, or reorder: compiled results and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib import graph_executor


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_they_are_compiled() -> None:
    """One program of several of them; what only gives a shape is an input that nothing reads."""
    x, like = relay.var("x", shape=(2, 6, 5)), relay.var("like", shape=(3, 4, 2))
    lengths = relay.var("lengths", shape=(3,), dtype="int32")
    body = relay.reshape_like(relay.slice_like(x, like, axes=(2,)), like, lhs_end=2, rhs_end=2)
    body = relay.sequence_mask(relay.broadcast_to_like(body, like), lengths, mask_value=-1.0, axis=1)
    module = aotc.IRModule.from_expr(relay.Function([x, like, lengths], relay.collapse_sum_to(body, (4, 1))))
    built = relay.build(module, "c")
    run = graph_executor.GraphModule(built["default"](aotc.cpu()))
    given, counts = array(2, 6, 5), np.array([1, 4, 0], np.int32)
    run.run(x=given, like=array(3, 4, 2), lengths=counts)
    inside = (np.arange(4) < counts[:, None])[..., None]
    expected = np.where(inside, given[:, :, :2].reshape(3, 4, 2), -1).sum((0, 2))[:, None]
    np.testing.assert_allclose(run.get_output(0).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("align", ["RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"])
def test_diagonals_stand_at_the_end_that_is_asked_for(align: str) -> None:
    """Each diagonal of a matrix, written by numpy one after the other."""
    data, diagonal, (low, high) = array(3, 5), array(4, 3), (-1, 2)
    expected = data.copy()
    for k in range(low, high + 1):
        count = np.diagonal(data, k).size
        side = align.split("_")[k < 0]
        values = diagonal[high - k][-count:] if side == "RIGHT" else diagonal[high - k][:count]
        rows = np.arange(count) - min(k, 0)
        expected[rows, rows + k] = values
    x, d = relay.var("x", shape=(3, 5)), relay.var("d", shape=(4, 3))
    made = relay.Function([x, d], relay.matrix_set_diag(x, d, (low, high), align))
    found = relay.create_executor("debug").evaluate(made)(data, diagonal)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_text_reads_back() -> None:
    x = relay.var("x", shape=(2, 4, 4, 4))
    module = aotc.IRModule.from_expr(relay.Function([x], relay.vision.yolo_reorg(x, stride=2)))
    text = module.astext()
    assert "vision.yolo_reorg(%x, stride=2)" in text
    assert aotc.ir.structural_equal(relay.fromtext(text), module)


def _var(*shape: int) -> Any:
    return relay.var("x", shape=shape)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: relay.reshape_like(_var(2, 3), _var(7)), r"\(2, 3\) cannot become \(7\)"),
        (
            lambda: relay.reshape_like(_var(2, 3), _var(6), lhs_begin=2, lhs_end=1),
            "axes 2 to 1 are not a range of axes",
        ),
        (lambda: relay.slice_like(_var(2, 3), _var(2, 4)), "reaches beyond"),
        (lambda: relay.collapse_sum_like(_var(2, 3), _var(3, 3)), "does not broadcast|do not broadcast"),
        (lambda: relay.broadcast_to_like(_var(2, 3), _var(3)), "does not broadcast"),
        (lambda: relay.reverse_reshape(_var(2, 3), (-4, 1, 2)), "-4"),
        (lambda: relay.sequence_mask(_var(2, 3), _var(2)), "2 lengths"),
        (lambda: relay.matrix_set_diag(_var(2, 3), _var(3)), "diagonal must be"),
        (lambda: relay.matrix_set_diag(_var(2, 3), _var(1), k=3), "do not exist in a 2 x 3 matrix"),
        (lambda: relay.vision.yolo_reorg(_var(1, 4, 3, 4), stride=2), "3 is not a multiple of 2"),
        (lambda: relay.image.affine_grid(_var(1, 2, 3), (1, 4)), "extents of at least 2"),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(aotc.TVMError, match=message):
        build()
