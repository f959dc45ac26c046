# SPDX-License-Identifier: Apache-2.0
"""Memory of compiled attention; `fuse_attention.test` has single cases."""

from __future__ import annotations

from collections.abc import Callable

from passes.graphs import const, module_of, var

from aotc.ir.transform import PassContext
from aotc.relay.backend.module_to_program import lower_main_to_program
from aotc.relay.expr import Expr
from aotc.relay.op.binary_elementwise import multiply
from aotc.relay.op.dense import batch_matmul
from aotc.relay.op.shape import reshape, transpose
from aotc.relay.op.softmax import softmax
from aotc.relay.transform.pipeline import optimize
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


def test_kernels_have_no_scores() -> None:
    """The whole pipeline: the arena is smaller than the scores."""
    _, _, result, params = attention()
    with PassContext(opt_level=3):
        program = lower_main_to_program(optimize(module_of(result, *params), V4), V4, name="attention")  # type: ignore[arg-type]
    (step,) = [s for s in program.steps if s.kernel.macs]
    assert step.kernel.macs == 2 * H * M * T * D
    assert all(b.size < H * M * T for b in step.kernel.workspace)
