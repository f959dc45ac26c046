# SPDX-License-Identifier: Apache-2.0
"""Contractions for tests: convolutions and matrix products as tensor expressions, with numpy's answer.

case = conv(ic=3, oc=8, size=(9, 9), kernel=(3, 3), padding=1)
case.kernel(target)                    # one scheduled kernel
case.expected(*case.values(seed=0))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.tir import te
from aotc.tir.schedule import schedule
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A contraction, its operands, and what it means."""

    a: te.Placeholder
    b: te.Placeholder
    out: te.Contraction
    meaning: Callable[[Array, Array], Array]

    def kernel(self, target: Target) -> Kernel:
        return schedule("contraction", [self.a, self.b], [self.out], target)

    def values(self, seed: int) -> tuple[Array, Array]:
        """Random operands; integers of the whole range of 8 bits."""
        rng = np.random.default_rng(seed)
        return _random(rng, self.a), _random(rng, self.b)

    def expected(self, a: Array, b: Array) -> Array:
        """The result, formed in float64 (or the integer type itself)."""
        work = np.float64 if self.out.dtype.is_float else self.out.dtype.numpy
        return self.meaning(a.astype(work), b.astype(work))


def _random(rng: np.random.Generator, tensor: te.Placeholder) -> Array:
    dtype = tensor.dtype
    if dtype.is_float:
        return rng.standard_normal(tensor.shape).astype(dtype.numpy)
    return rng.integers(max(dtype.min, -128), min(dtype.max, 127), tensor.shape, endpoint=True).astype(dtype.numpy)


def conv(
    *,
    batch: int = 1,
    ic: int = 3,
    oc: int = 4,
    size: tuple[int, int] = (8, 8),
    kernel: tuple[int, int] = (3, 3),
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    block: int = 0,
    dtype: str = "float32",
    acc: str = "",
) -> Case:
    """A 2-d convolution, NCHW; weights OIHW, or OIHW{block}o."""
    (h, w), (kh, kw), inner, per_group = size, kernel, ic // groups, oc // groups
    oh, ow = (1 + (n + 2 * padding - dilation * (k - 1) - 1) // stride for n, k in zip(size, kernel, strict=True))
    x = te.placeholder((batch, ic, h, w), dtype, "x")
    shape = (-(-oc // block), inner, kh, kw, block) if block else (oc, inner, kh, kw)
    weight = te.placeholder(shape, dtype, "w")

    def a_index(n: Any, o: Any, y: Any, q: Any, i: Any, r: Any, s: Any) -> tuple[Any, ...]:
        group = o // per_group * inner if groups > 1 else 0
        return n, i + group, y * stride + r * dilation - padding, q * stride + s * dilation - padding

    def b_index(n: Any, o: Any, y: Any, q: Any, i: Any, r: Any, s: Any) -> tuple[Any, ...]:
        return (o // block, i, r, s, o % block) if block else (o, i, r, s)

    def meaning(data: Array, weights: Array) -> Array:
        if block:
            weights = np.moveaxis(weights, -1, 1).reshape(-1, inner, kh, kw)[:oc]
        data = np.pad(data, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        result = np.zeros((batch, oc, oh, ow), data.dtype)
        for g, r, s in np.ndindex(groups, kh, kw):
            rows = slice(r * dilation, r * dilation + (oh - 1) * stride + 1, stride)
            columns = slice(s * dilation, s * dilation + (ow - 1) * stride + 1, stride)
            outs = slice(g * per_group, (g + 1) * per_group)
            part = data[:, g * inner : (g + 1) * inner, rows, columns]
            result[:, outs] += np.einsum("nihw,oi->nohw", part, weights[outs, :, r, s])
        return result

    lane = 1 if block else None
    out = te.contraction(
        (batch, oc, oh, ow), (inner, kh, kw), x, a_index, weight, b_index, dtype=acc or dtype, lane=lane, block=block
    )
    return Case(x, weight, out, meaning)


def matmul(
    *,
    m: int,
    k: int,
    n: int,
    batch: int = 0,
    block: int = 0,
    transposed: bool = False,
    dtype: str = "float32",
    acc: str = "",
) -> Case:
    """A matrix product, batched if `batch`; the right operand (K, N), its transpose, or (N/block, K, block)."""
    lead = (batch,) if batch else ()
    x = te.placeholder((*lead, m, k), dtype, "x")
    shape = (-(-n // block), k, block) if block else (*lead, n, k) if transposed else (*lead, k, n)
    weight = te.placeholder(shape, dtype, "w")

    def b_index(*v: Any) -> tuple[Any, ...]:
        if block:
            return v[-2] // block, v[-1], v[-2] % block
        return (*v[:-3], v[-2], v[-1]) if transposed else (*v[:-3], v[-1], v[-2])

    def meaning(data: Array, weights: Array) -> Array:
        if block:
            weights = weights.transpose(1, 0, 2).reshape(k, -1)[:, :n]
        return data @ (weights.swapaxes(-1, -2) if transposed else weights)

    lane = None if transposed else len(lead) + 1
    out = te.contraction(
        (*lead, m, n),
        (k,),
        x,
        lambda *v: (*v[:-2], v[-1]),
        weight,
        b_index,
        dtype=acc or dtype,
        lane=lane,
        block=block,
    )
    return Case(x, weight, out, meaning)
