# SPDX-License-Identifier: Apache-2.0
"""Products of matrices: nn.dense, nn.contrib_dense_pack, nn.matmul, nn.batch_matmul, and nn.bias_add.

dense(x, w)                            # x (..., K), w (N, K) -> (..., N)
batch_matmul(a, b)                     # a (B, M, K), b (B, N, K) -> (B, M, N)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aotc.ir import AxisMap, Dim, OpPattern, Quantised, SymDim, TensorType, Type, Types, args, require
from aotc.ir.attrs import Attrs, attrs, param
from aotc.relay.op.contract import contract, dot, result_dtype
from aotc.relay.op.opdef import Array, OpDef, Sample, Scalar, Tensors
from aotc.relay.op.rules import (
    axis_of,
    broadcast_along,
    elements_and_vectors,
    require_same_dtype,
    shape_text,
    tensor,
    vectors_along_axis,
)
from aotc.relay.op.samples import random_sample
from aotc.relay.op.window import blocked, may_equal
from aotc.tir import te


@attrs
class DenseAttrs(Attrs):
    """data (..., K) times the transpose of weight (N, K): (..., N)."""

    units: int | None = param(given=None)
    out_dtype: str = ""


@attrs
class DensePackAttrs(Attrs):
    """nn.dense with the weight in blocks of units, "NC16n": (ceil(N/16), K, 16); `units` is N."""

    units: int | None = param(given=None)
    out_dtype: str = ""
    weight_layout: str = "NC"


@attrs
class MatmulAttrs(Attrs):
    """tensor_a (..., M, K) times a matrix (K, N), either one transposed first."""

    units: int | None = param(given=None)
    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = False


@attrs
class BatchMatmulAttrs(Attrs):
    """(B, M, K) times (B, N, K) transposed (or (B, K, N) if not `transpose_b`); a batch of 1 is repeated."""

    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = param(default=False, given=True)


@attrs
class BiasAddAttrs(Attrs):
    """data plus a vector along one axis."""

    axis: int = 1


def _check_inner(a: Dim, b: Dim) -> None:
    require("matmul.inner", may_equal(a, b), lambda: f"the summed dimensions differ: {a} and {b}")


def _check_units(units: int | None, n: Dim) -> None:
    require("matmul.units", units is None or may_equal(units, n), lambda: f"units is {units}, the weight has {n}")


def _at_least(ty: TensorType, rank: int, what: str) -> None:
    require("matmul.rank", ty.rank >= rank, lambda: f"{what} must have rank {rank} or more, got {ty}")


# --- nn.dense


def _infer_dense(a: DenseAttrs, types: Types) -> Type:
    data, weight = tensor(types[0], "data"), tensor(types[1], "weight")
    _at_least(data, 1, "data")
    require("dense.weight-rank", weight.rank == 2, lambda: f"weight must have rank 2, got {weight}")
    _check_inner(data.shape[-1], weight.shape[1])
    _check_units(a.units, weight.shape[0])
    return TensorType((*data.shape[:-1], weight.shape[0]), result_dtype(data, weight, a.out_dtype))


def _refine_dense(a: DenseAttrs, types: Sequence[Type | None]) -> Sequence[Type | None]:
    data, weight = types
    if weight is not None or not isinstance(data, TensorType) or a.units is None or not data.shape:
        return types
    return [data, TensorType((a.units, data.shape[-1]), data.dtype)]


def _leading_axes(_: Attrs, types: Types) -> AxisMap:
    """All axes of the data but the last."""
    rank = tensor(types[0]).rank
    return AxisMap(((*range(rank - 1), None), (None,) * rank))


def _compute_dense(a: DenseAttrs, args: Tensors) -> te.Tensor:
    data, weight = args
    return contract(
        (*data.shape[:-1], weight.shape[0]),
        (weight.shape[1],),
        data,
        lambda *v: (*v[:-2], v[-1]),
        weight,
        lambda *v: v[-2:],
        out_dtype=a.out_dtype,
        name="dense",
    )


def _reference_dense(a: DenseAttrs, data: Array, weight: Array) -> Array:
    return dot(data, weight.T, a.out_dtype or str(data.dtype))


# --- nn.contrib_dense_pack


def _pack_units(a: DensePackAttrs, shape: Sequence[Dim], block: int) -> Dim:
    if a.units is not None:
        return a.units
    return shape[0] * block if isinstance(shape[0], int) else SymDim()


def _pack_block(a: DensePackAttrs) -> int:
    layout, block = blocked(a.weight_layout, "n")
    require(
        "layout", layout == "NC" and block > 0, lambda: f"weight_layout must be like NC16n, got {a.weight_layout!r}"
    )
    return block


def _infer_pack(a: DensePackAttrs, types: Types) -> Type:
    data, weight = tensor(types[0], "data"), tensor(types[1], "weight")
    block = _pack_block(a)
    _at_least(data, 1, "data")
    require("dense.weight-rank", weight.rank == 3, lambda: f"packed weight must have rank 3, got {weight}")
    _check_inner(data.shape[-1], weight.shape[1])
    units = _pack_units(a, weight.shape, block)
    blocks = -(-units // block) if isinstance(units, int) else units
    fits = may_equal(weight.shape[2], block) and may_equal(weight.shape[0], blocks)
    require("dense.block", fits, lambda: f"{units} units in blocks of {block} do not fit {weight}")
    return TensorType((*data.shape[:-1], units), result_dtype(data, weight, a.out_dtype))


def _compute_pack(a: DensePackAttrs, args: Tensors) -> te.Tensor:
    data, weight = args
    block = _pack_block(a)
    units = a.units if a.units is not None else weight.shape[0] * block
    return contract(
        (*data.shape[:-1], units),
        (weight.shape[1],),
        data,
        lambda *v: (*v[:-2], v[-1]),
        weight,
        lambda *v: (v[-2] // block, v[-1], v[-2] % block),
        out_dtype=a.out_dtype,
        name="dense",
        lane=data.rank - 1,
        block=block,
    )


def _reference_pack(a: DensePackAttrs, data: Array, weight: Array) -> Array:
    plain = weight.transpose(1, 0, 2).reshape(weight.shape[1], weight.shape[0] * weight.shape[2])
    units = a.units if a.units is not None else plain.shape[1]
    return dot(data, plain[:, :units], a.out_dtype or str(data.dtype))


# --- nn.matmul


def _swapped(shape: Sequence[Dim], swap: bool) -> tuple[Dim, ...]:
    *outer, rows, columns = shape
    return (*outer, columns, rows) if swap else (*outer, rows, columns)


def _infer_matmul(a: MatmulAttrs, types: Types) -> Type:
    left, right = tensor(types[0], "tensor_a"), tensor(types[1], "tensor_b")
    _at_least(left, 2 if a.transpose_a else 1, "tensor_a")
    require("matmul.rank", right.rank == 2, lambda: f"tensor_b must have rank 2, got {right}")
    outer, inner = (left.shape[:-1], left.shape[-1]) if not a.transpose_a else _split_transposed(left)
    k, n = _swapped(right.shape, a.transpose_b)
    _check_inner(inner, k)
    _check_units(a.units, n)
    return TensorType((*outer, n), result_dtype(left, right, a.out_dtype))


def _split_transposed(left: TensorType) -> tuple[tuple[Dim, ...], Dim]:
    return (*left.shape[:-2], left.shape[-1]), left.shape[-2]


def _refine_matmul(a: MatmulAttrs, types: Sequence[Type | None]) -> Sequence[Type | None]:
    left, right = types
    if right is not None or not isinstance(left, TensorType) or a.units is None or left.rank < 2:
        return types
    inner = left.shape[-2] if a.transpose_a else left.shape[-1]
    return [left, TensorType(_swapped((inner, a.units), a.transpose_b), left.dtype)]


def _compute_matmul(a: MatmulAttrs, args: Tensors) -> te.Tensor:
    left, right = args
    *outer, rows, columns = left.shape if left.rank > 1 else (1, *left.shape)
    m, k = (columns, rows) if a.transpose_a else (rows, columns)
    n = right.shape[0] if a.transpose_b else right.shape[1]
    lead = (*outer, m) if left.rank > 1 else ()

    def a_index(*v: Scalar) -> Sequence[Scalar]:
        if a.transpose_a:
            return (*v[:-3], v[-1], v[-3])
        return (*v[:-2], v[-1])

    def b_index(*v: Scalar) -> Sequence[Scalar]:
        return v[-2:] if a.transpose_b else (v[-1], v[-2])

    lane = None if a.transpose_b else len(lead)
    return contract(
        (*lead, n), (k,), left, a_index, right, b_index, out_dtype=a.out_dtype, name="matmul", lane=lane
    )  # fmt: skip


def _reference_matmul(a: MatmulAttrs, left: Array, right: Array) -> Array:
    x = left.swapaxes(-1, -2) if a.transpose_a else left
    return dot(x, right.T if a.transpose_b else right, a.out_dtype or str(left.dtype))


def _axes_matmul(a: MatmulAttrs, types: Types) -> AxisMap:
    rank, right = tensor(types[0]).rank, 0 if a.transpose_b else 1
    left = (*range(rank - 2), rank - 1) if a.transpose_a else tuple(range(rank - 1))
    column = right if a.units is None else None  # with `units` given the columns are pinned
    return AxisMap(((*left, None), (*(None for _ in left), column)))


# --- nn.batch_matmul


def _infer_batch(a: BatchMatmulAttrs, types: Types) -> Type:
    left, right = tensor(types[0], "tensor_a"), tensor(types[1], "tensor_b")
    for ty in (left, right):
        require("batch_matmul.rank", ty.rank == 3, f"operands must have rank 3, got {ty}")
    batch, m, k = _swapped(left.shape, a.transpose_a)
    other, inner, n = _swapped(right.shape, a.transpose_b)
    _check_inner(k, inner)
    fits = batch == 1 or other == 1 or may_equal(batch, other)
    require("batch_matmul.batch", fits, lambda: f"batches {batch} and {other} do not broadcast")
    return TensorType((other if batch == 1 else batch, m, n), result_dtype(left, right, a.out_dtype))


def _compute_batch(a: BatchMatmulAttrs, args: Tensors) -> te.Tensor:
    left, right = args
    m, k = left.shape[1:] if not a.transpose_a else left.shape[:0:-1]
    n = right.shape[1 if a.transpose_b else 2]

    def a_index(b: Scalar, i: Scalar, _: Scalar, k: Scalar) -> Sequence[Scalar | int]:
        return (0 if left.shape[0] == 1 else b, *((k, i) if a.transpose_a else (i, k)))

    def b_index(b: Scalar, _: Scalar, j: Scalar, k: Scalar) -> Sequence[Scalar | int]:
        return (0 if right.shape[0] == 1 else b, *((j, k) if a.transpose_b else (k, j)))

    return contract(
        (max(left.shape[0], right.shape[0]) if min(left.shape[0], right.shape[0]) else 0, m, n),
        (k,),
        left,
        a_index,
        right,
        b_index,
        out_dtype=a.out_dtype,
        name="batch_matmul",
        lane=None if a.transpose_b else 2,
    )


def _reference_batch(a: BatchMatmulAttrs, left: Array, right: Array) -> Array:
    x = left.swapaxes(1, 2) if a.transpose_a else left
    return dot(x, right.swapaxes(1, 2) if a.transpose_b else right, a.out_dtype or str(left.dtype))


def _axes_batch(a: BatchMatmulAttrs, types: Types) -> AxisMap:
    left, right = tensor(types[0]), tensor(types[1])
    shared = left.shape[0] == right.shape[0]
    rows, columns = 2 if a.transpose_a else 1, 1 if a.transpose_b else 2
    first = (0 if shared or right.shape[0] == 1 else None, rows, None)
    second = (0 if shared or left.shape[0] == 1 else None, None, columns)
    return AxisMap((first, second))


# --- nn.bias_add


def _infer_bias(a: BiasAddAttrs, types: Types) -> Type:
    data, bias = tensor(types[0], "data"), tensor(types[1], "bias")
    axis = axis_of(a.axis, data.rank)
    fits = bias.rank == 1 and may_equal(bias.shape[0], data.shape[axis])
    require("bias_add.bias", fits, lambda: f"bias {shape_text(bias.shape)} does not fit axis {axis} of {data}")
    require_same_dtype(data, bias)
    return data


def _compute_bias(a: BiasAddAttrs, args: Tensors) -> te.Tensor:
    data, bias = args
    axis = axis_of(a.axis, data.rank)
    return te.compute(data.shape, lambda *i: data[i] + bias[i[axis]], "bias_add")


def _reference_bias(a: BiasAddAttrs, data: Array, bias: Array) -> Array:
    return data + broadcast_along(bias, a.axis, data.ndim)


# --- samples


def _pair(a: tuple[int, ...], b: tuple[int, ...], attributes: Attrs, dtype: str = "float32") -> Sample:
    return random_sample((a, b), attributes, dtype)


def _samples_dense() -> Iterable[Sample]:
    yield _pair((3, 17), (5, 17), DenseAttrs(units=5))
    yield _pair((2, 3, 8), (4, 8), DenseAttrs(units=None))
    yield _pair((1, 33), (40, 33), DenseAttrs(units=40))
    yield _pair((2, 9), (3, 9), DenseAttrs(units=3, out_dtype="int32"), "int8")
    yield _pair((2, 9), (3, 9), DenseAttrs(units=3), "float16")


def _samples_pack() -> Iterable[Sample]:
    yield _pair((3, 9), (2, 9, 4), DensePackAttrs(units=6, weight_layout="NC4n"))
    yield _pair((1, 2, 9), (2, 9, 8), DensePackAttrs(units=None, weight_layout="NC8n"))


def _samples_matmul() -> Iterable[Sample]:
    yield _pair((3, 4), (4, 5), MatmulAttrs(units=None))
    yield _pair((4, 3), (5, 4), MatmulAttrs(units=5, transpose_a=True, transpose_b=True))
    yield _pair((2, 3, 4), (4, 5), MatmulAttrs(units=5))
    yield _pair((4,), (4, 5), MatmulAttrs(units=5))
    yield _pair((7, 4), (4, 5), MatmulAttrs(units=5), "float64")


def _samples_batch() -> Iterable[Sample]:
    yield _pair((2, 3, 4), (2, 4, 5), BatchMatmulAttrs())
    yield _pair((2, 3, 4), (2, 5, 4), BatchMatmulAttrs(transpose_b=True))
    yield _pair((1, 4, 3), (2, 4, 5), BatchMatmulAttrs(transpose_a=True))
    yield _pair((3, 2, 4), (1, 4, 5), BatchMatmulAttrs())
    yield _pair((2, 3, 4), (2, 4, 5), BatchMatmulAttrs(out_dtype="int32"), "int8")


def _samples_bias() -> Iterable[Sample]:
    yield _pair((2, 3, 4), (3,), BiasAddAttrs())
    yield _pair((2, 3, 4), (4,), BiasAddAttrs(axis=-1))
    yield _pair((2, 3), (3,), BiasAddAttrs(), "int32")


dense = OpDef(
    name="nn.dense",
    attrs=DenseAttrs,
    args=args("data", "weight"),
    infer=_infer_dense,
    refine=_refine_dense,
    reference=_reference_dense,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=_leading_axes,
    compute=_compute_dense,
    layout="NC",
    samples=_samples_dense,
)
contrib_dense_pack = OpDef(
    name="nn.contrib_dense_pack",
    attrs=DensePackAttrs,
    order="data weight weight_layout units out_dtype",
    args=args("data", "weight"),
    infer=_infer_pack,
    reference=_reference_pack,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=_leading_axes,
    compute=_compute_pack,
    samples=_samples_pack,
)
matmul = OpDef(
    name="nn.matmul",
    attrs=MatmulAttrs,
    args=args("tensor_a", "tensor_b"),
    infer=_infer_matmul,
    refine=_refine_matmul,
    reference=_reference_matmul,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=_axes_matmul,
    compute=_compute_matmul,
    samples=_samples_matmul,
)
batch_matmul = OpDef(
    name="nn.batch_matmul",
    attrs=BatchMatmulAttrs,
    args=args("tensor_a", "tensor_b"),
    infer=_infer_batch,
    reference=_reference_batch,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=_axes_batch,
    compute=_compute_batch,
    samples=_samples_batch,
)
bias_add = OpDef(
    name="nn.bias_add",
    attrs=BiasAddAttrs,
    args=args("data", "bias"),
    infer=_infer_bias,
    refine=vectors_along_axis,
    reference=_reference_bias,
    pattern=OpPattern.BROADCAST,
    axes=elements_and_vectors,
    compute=_compute_bias,
    quantised=Quantised.RESCALE,
    samples=_samples_bias,
)
