# SPDX-License-Identifier: Apache-2.0
"""FuseAttention: what it takes, what it leaves, and why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, var

from aotc.ir.transform import PassContext
from aotc.relay.analysis import list_op_freqs
from aotc.relay.backend.module_to_program import lower_main_to_program
from aotc.relay.expr import Call, Expr, Function
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply, where
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.concat_split import repeat
from aotc.relay.op.dense import batch_matmul
from aotc.relay.op.elementwise_unary import relu, tanh
from aotc.relay.op.shape import reshape, transpose
from aotc.relay.op.softmax import softmax
from aotc.relay.transform.fuse_attention import RULE, FuseAttention
from aotc.relay.transform.pass_base import rewrite_report
from aotc.relay.transform.pipeline import optimize
from aotc.relay.visitor import post_order
from aotc.tir.target import get_target

B, H, M, T, D = 1, 3, 20, 24, 8
V4 = get_target("x86-64-v4")


def heads(x: Expr, count: int = H) -> Expr:
    """(B, length, heads * D) as (B, heads, length, D)."""
    return transpose(reshape(x, (B, -1, count, D)), (0, 2, 1, 3))


def attention(
    between: Callable[[Expr], Expr] = lambda s: multiply(s, const(0.25)),
    after: Callable[[Expr], Expr] = lambda p: p,
    axis: int = -1,
    key: Callable[[Expr], Expr] = heads,
) -> tuple[Expr, Expr, Expr, list[Expr]]:
    """The scores, their softmax, the result, and the variables."""
    q, k, v = var("q", B, M, H * D), var("k", B, T, H * D), var("v", B, T, H * D)
    q3, k3, v3 = (reshape(f(x), (B * H, -1, D)) for f, x in ((heads, q), (key, k), (heads, v)))
    scores = batch_matmul(q3, k3)
    soft = softmax(between(reshape(scores, (B, H, M, T))), axis=axis)
    result = batch_matmul(reshape(after(soft), (B * H, M, T)), v3, transpose_b=False)
    return scores, soft, result, [q, k, v]


def fused(module: IRModule) -> list[Function]:
    calls = [n for n in post_order(module.main) if isinstance(n, Call) and isinstance(n.op, Function)]
    return [c.op for c in calls if isinstance(c.op, Function)]


def run(result: Expr, *params: Expr) -> IRModule:
    """The module after the pass, checked to compute the same."""
    return checked(FuseAttention(), module_of(result, *params))  # type: ignore[arg-type]


def refused(module: IRModule) -> dict[str, int]:
    """Why the pass leaves a module alone."""
    with rewrite_report() as report, PassContext(opt_level=3):
        assert FuseAttention()(module) is module
    return dict(report[RULE].refused)


MASKS: dict[str, Callable[[Expr], Expr]] = {
    "none": lambda s: s,
    "scaled": lambda s: multiply(s, const(0.25)),
    "added": lambda s: add(multiply(s, const(0.25)), noise(B, 1, 1, T)),
    "added twice": lambda s: add(add(s, noise(1, H, M, T)), noise(M, 1)),
    "chosen": lambda s: where(const(np.tri(M, T), "bool"), s, const(-np.inf)),
    "filled": lambda s: where(const(1 - np.tri(M, T), "bool"), const(np.full((), -1e9)), s),
    "capped": lambda s: multiply(tanh(multiply(s, const(0.1))), const(10.0)),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_and_scales_go_into_the_kernel(mask: str) -> None:
    _, _, result, params = attention(MASKS[mask])
    (function,) = fused(run(result, *params))
    counts = list_op_freqs(function)
    assert (counts["nn.batch_matmul"], counts["nn.softmax"], counts["transpose"]) == (2, 1, 3)


def test_what_follows_the_softmax_goes_with_it() -> None:
    """Rows without any allowed place become zeros, as ONNX defines its Attention."""
    _, _, result, params = attention(
        after=lambda p: where(const([[True]] + [[False]] * (M - 1), "bool"), const(0.0), p)
    )
    assert len(fused(run(result, *params))) == 1


def test_repeated_keys_are_repeated_where_they_are_packed() -> None:
    q, k, v = var("q", 1, 4, M, D), var("k", 1, 2, T, D), var("v", 1, 2, T, D)
    k4, v4 = (reshape(repeat(x, 2, axis=1), (4, T, D)) for x in (k, v))
    soft = softmax(batch_matmul(reshape(q, (4, M, D)), k4))
    (function,) = fused(run(batch_matmul(soft, v4, transpose_b=False), q, k, v))
    assert list_op_freqs(function)["repeat"] == 2


def test_the_result_is_transposed_as_it_is_stored() -> None:
    _, _, result, params = attention()
    merged = reshape(transpose(reshape(result, (B, H, M, D)), (0, 2, 1, 3)), (B, M, H * D))
    (function,) = fused(run(relu(merged), *params))
    assert list_op_freqs(function)["transpose"] == 4


def test_operators_that_are_no_moves_stay_outside() -> None:
    _, _, result, params = attention(key=lambda x: heads(relu(x)))
    assert "nn.relu" not in list_op_freqs(fused(run(result, *params))[0])


def test_two_layers_are_two_kernels() -> None:
    _, _, result, params = attention()
    _, _, other, more = attention()
    assert len(fused(run(add(result, other), *params, *more))) == 2


def test_kernels_have_no_scores() -> None:
    """The whole pipeline: the arena is smaller than the scores."""
    _, _, result, params = attention()
    with PassContext(opt_level=3):
        program = lower_main_to_program(optimize(module_of(result, *params), V4), V4, name="attention")  # type: ignore[arg-type]
    (step,) = [s for s in program.steps if s.kernel.macs]
    assert step.kernel.macs == 2 * H * M * T * D
    assert all(b.size < H * M * T for b in step.kernel.workspace)


# --- what it leaves alone


def test_few_rows() -> None:
    """A step of a decoder: packing the keys would cost what the product does."""
    q, k, v = var("q", H, 1, D), var("k", H, T, D), var("v", H, T, D)
    result = batch_matmul(softmax(batch_matmul(q, k)), v, transpose_b=False)
    assert refused(module_of(result, q, k, v)) == {"the scores have few rows or columns": 1}


@pytest.mark.parametrize("shared", ["scores", "soft"])
def test_scores_that_others_use(shared: str) -> None:
    scores, soft, result, params = attention()
    other = reshape(scores if shared == "scores" else soft, (B * H, M, T))
    module = module_of(add(batch_matmul(other, other), batch_matmul(result, result)), *params)  # type: ignore[arg-type]
    assert refused(module) == {}


def test_softmax_along_another_axis() -> None:
    _, _, result, params = attention(axis=2)
    assert refused(module_of(result, *params)) == {}  # type: ignore[arg-type]


def test_other_data_types() -> None:
    q, k, v = (cast(var(n, H, M, D), "float64") for n in "qkv")
    result = batch_matmul(softmax(batch_matmul(q, k)), v, transpose_b=False)
    module = module_of(result, *(c.args[0] for c in (q, k, v)))  # type: ignore[arg-type]
    assert refused(module) == {"the data type is not float32": 1}
