# SPDX-License-Identifier: Apache-2.0
"""Contractions for tests: convolutions and matrix products as tensor expressions, with numpy's results.

case = conv(ic=3, oc=8, size=(9, 9), kernel=(3, 3), padding=1)
case.kernel(target)                    # one scheduled kernel
case.expected(*case.values(seed=0))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aotc.tir import te
from aotc.tir.micro_kernels import BlockShape
from aotc.tir.schedule import schedule
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target

Array = np.ndarray[Any, Any]


def with_block_shapes(target: Target, *shapes: BlockShape, level: str = "threads") -> Target:
    """The GPU with tiles of these shapes only, each computed by one block, for micro-kernels of a level."""
    assert target.gpu is not None
    kernels = (replace(k, blocks=shapes if k.level == level else ()) for k in target.micro_kernels)
    costs = replace(target.gpu.costs, max_blocks_per_tile=1)
    return replace(target, micro_kernels=tuple(kernels), gpu=replace(target.gpu, costs=costs))


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
    last: bool = False,
    dtype: str = "float32",
    acc: str = "",
    finite: bool = True,
) -> Case:
    """A 2-d convolution, NCHW; weights OIHW, or OIHW{block}o.  With the channels `last`: NHWC, HWOI, OHWI{block}o."""
    (h, w), (kh, kw), inner, per_group = size, kernel, ic // groups, oc // groups
    oh, ow = (1 + (n + 2 * padding - dilation * (k - 1) - 1) // stride for n, k in zip(size, kernel, strict=True))
    x = te.placeholder(_nhwc((batch, ic, h, w), last), dtype, "x")
    outer = -(-oc // block) if block else oc
    axes = (outer, inner, kh, kw)
    order = ((0, 2, 3, 1) if block else (2, 3, 0, 1)) if last else (0, 1, 2, 3)
    weight = te.placeholder((*(axes[k] for k in order), *([block] if block else [])), dtype, "w", finite=finite)

    def split(v: tuple[Any, ...]) -> tuple[Any, ...]:
        """n, o, y, q, i, r, s"""
        n, o, y, q = (v[0], v[3], v[1], v[2]) if last else v[:4]
        i, r, s = (v[6], v[4], v[5]) if last else v[4:]
        return n, o, y, q, i, r, s

    def a_index(*v: Any) -> tuple[Any, ...]:
        n, o, y, q, i, r, s = split(v)
        group = o // per_group * inner if groups > 1 else 0
        return _nhwc((n, i + group, y * stride + r * dilation - padding, q * stride + s * dilation - padding), last)

    def b_index(*v: Any) -> tuple[Any, ...]:
        _, o, _, _, *inside = split(v)
        found = (o // block if block else o, *inside)
        return (*(found[k] for k in order), *([o % block] if block else []))

    def meaning(data: Array, weights: Array) -> Array:
        data = data.transpose(0, 3, 1, 2) if last else data
        weights = np.moveaxis(weights, range(4), order)
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
        return result.transpose(0, 2, 3, 1) if last else result

    out = te.contraction(
        _nhwc((batch, oc, oh, ow), last),
        (kh, kw, inner) if last else (inner, kh, kw),
        x,
        a_index,
        weight,
        b_index,
        dtype=acc or dtype,
        lane=(3 if last else 1) if block else None,
        block=block,
    )
    return Case(x, weight, out, meaning)


def _nhwc(items: tuple[Any, ...], last: bool) -> tuple[Any, ...]:
    return (items[0], *items[2:], items[1]) if last else items


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
        (*lead, m, n), (k,), x, lambda *v: (*v[:-2], v[-1]), weight, b_index, dtype=acc or dtype, lane=lane, block=block
    )
    return Case(x, weight, out, meaning)
