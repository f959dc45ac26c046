# SPDX-License-Identifier: Apache-2.0
"""Matrix products (nn.dense, nn.contrib_dense_pack, nn.matmul, nn.batch_matmul) and nn.bias_add.

dense(x, w)                            # x (..., K), w (N, K) -> (..., N)
batch_matmul(a, b)                     # a (B, M, K), b (B, N, K) -> (B, M, N)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import add
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    Dim,
    OpPattern,
    QuantizationTreatment,
    SymDim,
    TensorType,
    Type,
    Types,
    attribute_field,
    declare_arguments,
    require,
)
from aotc.relay.op.contraction_accumulator_types import (
    contract_to_dtype,
    contraction_result_dtype,
    matmul_with_accumulator,
)
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Scalar,
    may_be_equal_dims,
    op_with_vector_along_axis,
    parse_layout_with_up_to_two_blocks,
    random_samples_from_rows,
    require_tensor_of_rank,
    require_tensor_type,
)
from aotc.tir import Tensor


class DenseAttrs(Attrs):
    """data (..., K) times the transpose of weight (N, K): a result (..., N)."""

    units: int | SymDim | None = attribute_field(parameter_default=None)
    out_dtype: str = ""


class DensePackAttrs(Attrs):
    """nn.dense with a packed weight in blocks of units, "NC16n": (ceil(N/16), K, 16); `units` is N.

    "NC16n4c" has groups of K innermost: (ceil(N/16), ceil(K/4), 16, 4), zero-padded along K.
    """

    units: int | SymDim | None = attribute_field(parameter_default=None)
    out_dtype: str = ""
    weight_layout: str = "NC"


class MatmulAttrs(Attrs):
    """tensor_a (..., M, K) times a matrix (K, N); each operand may be transposed first."""

    units: int | SymDim | None = attribute_field(parameter_default=None)
    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = False


class BatchMatmulAttrs(Attrs):
    """Batched matrix product: (B, M, K) times (B, N, K) transposed, or (B, K, N) without
    `transpose_b`.

    A batch of 1 is broadcast.
    """

    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = attribute_field(default=False, parameter_default=True)


class BiasAddAttrs(Attrs):
    """data plus a bias vector along one axis."""

    axis: int = 1


def _swap_last_two_dims(shape: Sequence[Any], swap: bool) -> tuple[Any, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else tuple(shape)


def _operand_transpose_flags(attrs: Any) -> tuple[bool, bool]:
    """Return for each of the two operands True if it is transposed before the product."""
    return (False, True) if isinstance(attrs, DenseAttrs) else (attrs.transpose_a, attrs.transpose_b)


def _check_summed_dims_equal(a: Dim, b: Dim) -> None:
    require("matmul.inner", may_be_equal_dims(a, b), lambda: f"the summed dimensions differ: {a} and {b}")


def _require_min_rank(ty: Type, min_rank: int, operand_name: str) -> TensorType:
    data = require_tensor_type(ty, operand_name)
    require(
        "matmul.rank", data.rank >= min_rank, lambda: f"{operand_name} must have rank {min_rank} or more, got {data}"
    )
    return data


# --- nn.dense, nn.matmul, nn.batch_matmul


def _infer_matmul_type(operand_names: str, error_code: str, attrs: Any, types: Types) -> Type:
    """Type rule of a product of rows with any number of leading axes and a matrix, or of two
    batches of matrices.
    """
    batched = isinstance(attrs, BatchMatmulAttrs)
    swap, other = _operand_transpose_flags(attrs)
    first, second = operand_names.split()
    left = (
        require_tensor_of_rank(error_code, types[0], 3, first)
        if batched
        else _require_min_rank(types[0], 1 + swap, first)
    )
    right = require_tensor_of_rank(error_code, types[1], 2 + batched, second)
    *outer, summed = _swap_last_two_dims(left.shape, swap)
    *batch, inner, columns = _swap_last_two_dims(right.shape, other)
    _check_summed_dims_equal(summed, inner)
    if batch:
        fits = outer[0] == 1 or batch[0] == 1 or may_be_equal_dims(outer[0], batch[0])
        require("batch_matmul.batch", fits, f"batches {outer[0]} and {batch[0]} do not broadcast")
        outer[0] = batch[0] if outer[0] == 1 else outer[0]
    else:
        given = attrs.units is None or may_be_equal_dims(attrs.units, columns)
        require("matmul.units", given, f"units is {attrs.units}, but the weight has {columns}")
    return TensorType((*outer, columns), contraction_result_dtype(left, right, attrs.out_dtype))


def _infer_missing_weight_type(attrs: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
    left, right = types
    first, second = _operand_transpose_flags(attrs)
    if right is not None or not isinstance(left, TensorType) or attrs.units is None or left.rank < 1 + first:
        return types
    return [
        left,
        TensorType(_swap_last_two_dims((_swap_last_two_dims(left.shape, first)[-1], attrs.units), second), left.dtype),
    ]


def _dense_axis_map(_: Attrs, types: Types) -> AxisMap:
    """Return the axis map of a dense layer, which maps all axes of the data except the last one."""
    return AxisMap(((*range(require_tensor_type(types[0]).rank - 1), None),))


def _compute_matmul(name: str, attrs: Any, left: Tensor, right: Tensor) -> Tensor:
    """Return the product of the left operand and the right one, which is a matrix or a batch of
    matrices.
    """
    first, second = _operand_transpose_flags(attrs)
    lead = _swap_last_two_dims(left.shape, first)[:-1]
    if right.rank == 3:
        lead = (right.shape[0] if lead[0] == 1 else lead[0], lead[1])
    k, n = _swap_last_two_dims(right.shape[-2:], second)

    def left_index_of_product(*v: Scalar) -> Sequence[Scalar | int]:
        at = _swap_last_two_dims((*v[:-2], v[-1]), first)
        return (0, *at[1:]) if right.rank == 3 and left.shape[0] == 1 else at

    def right_index_of_product(*v: Scalar) -> Sequence[Scalar | int]:
        at = _swap_last_two_dims(v[-2:], not second)
        return at if right.rank == 2 else (0 if right.shape[0] == 1 else v[0], *at)

    lane = None if second else len(lead)
    return contract_to_dtype(
        (*lead, n),
        (k,),
        left,
        left_index_of_product,
        right,
        right_index_of_product,
        out_dtype=attrs.out_dtype,
        name=name,
        lane=lane,
    )


def _matmul_reference(attrs: Any, left: Array, right: Array) -> Array:
    first, second = _operand_transpose_flags(attrs)
    x = left.swapaxes(-1, -2) if first else left
    y = right.swapaxes(-1, -2) if second else right
    return matmul_with_accumulator(x, y, attrs.out_dtype or str(left.dtype))


def _matmul_axis_map(a: MatmulAttrs, types: Types) -> AxisMap:
    rank, right = require_tensor_type(types[0]).rank, 0 if a.transpose_b else 1
    left = (*range(rank - 2), rank - 1) if a.transpose_a else tuple(range(rank - 1))
    # `units` fixes the number of columns
    column = right if a.units is None else None
    return AxisMap(((*left, None), (*(None for _ in left), column)))


def _batch_matmul_axis_map(a: BatchMatmulAttrs, types: Types) -> AxisMap:
    left, right = require_tensor_type(types[0]), require_tensor_type(types[1])
    shared = left.shape[0] == right.shape[0]
    rows, columns = 2 if a.transpose_a else 1, 1 if a.transpose_b else 2
    first = (0 if shared or right.shape[0] == 1 else None, rows, None)
    second = (0 if shared or left.shape[0] == 1 else None, None, columns)
    return AxisMap((first, second))


# --- nn.contrib_dense_pack


def _units_of_packed_weight(a: DensePackAttrs, weight_shape: Sequence[Any], block: int) -> Any:
    return weight_shape[0] * block if a.units is None else a.units


def _packed_weight_block_and_k_group_size(a: DensePackAttrs) -> tuple[int, int]:
    """Return the units per block and the elements of K per group (0 for none) of a packed weight
    layout.
    """
    layout, block, group, _ = parse_layout_with_up_to_two_blocks(a.weight_layout, "n")
    fits = layout == "NC" and block > 0
    require("layout", fits, f"weight_layout must be like NC16n or NC16n4c, got {a.weight_layout!r}")
    return block, group


def _infer_dense_pack_type(a: DensePackAttrs, types: Types) -> Type:
    block, group = _packed_weight_block_and_k_group_size(a)
    data = _require_min_rank(types[0], 1, "data")
    weight = require_tensor_of_rank("dense.weight-rank", types[1], 3 + bool(group), "packed weight")
    _check_summed_dims_equal((data.shape[-1] + (group or 1) - 1) // (group or 1), weight.shape[1])
    require(
        "dense.group",
        not group or may_be_equal_dims(weight.shape[-1], group),
        lambda: f"{weight} has no groups of {group}",
    )
    units = _units_of_packed_weight(a, weight.shape, block)
    blocks = -(-units // block) if isinstance(units, int) else units
    fits = may_be_equal_dims(weight.shape[2], block) and may_be_equal_dims(weight.shape[0], blocks)
    require("dense.block", fits, lambda: f"{units} units in blocks of {block} do not fit {weight}")
    return TensorType((*data.shape[:-1], units), contraction_result_dtype(data, weight, a.out_dtype))


def _compute_dense_pack(a: DensePackAttrs, data: Tensor, weight: Tensor) -> Tensor:
    block, group = _packed_weight_block_and_k_group_size(a)

    def packed_weight_index_of_product(*v: Scalar) -> Sequence[Scalar | int]:
        *_, unit, k = v
        first, *group_indices = (k // group, k % group) if group else (k,)
        return (unit // block, first, unit % block, *group_indices)

    return contract_to_dtype(
        (*data.shape[:-1], _units_of_packed_weight(a, weight.shape, block)),
        (data.shape[-1],),
        data,
        lambda *v: (*v[:-2], v[-1]),
        weight,
        packed_weight_index_of_product,
        out_dtype=a.out_dtype,
        name="dense",
        lane=data.rank - 1,
        block=block,
        group=group,
    )


def _dense_pack_reference(a: DensePackAttrs, data: Array, weight: Array) -> Array:
    if weight.ndim == 4:
        blocks, _, block, _ = weight.shape
        weight = np.moveaxis(weight, 3, 2).reshape(blocks, -1, block)
        weight = weight[:, : data.shape[-1]]
    plain = weight.transpose(1, 0, 2).reshape(weight.shape[1], weight.shape[0] * weight.shape[2])
    return matmul_with_accumulator(data, plain[:, : a.units], a.out_dtype or str(data.dtype))


_GROUPED_SAMPLE_ATTRS: Final = {"weight_layout": "NC16n4c", "out_dtype": "int32"}
_MATMUL_TEST_CASES: Final[dict[str, tuple[Any, ...]]] = {
    "dense": (
        (((3, 17), (5, 17)), {"units": 5}),
        (((2, 3, 8), (4, 8)), {"units": None}),
        (((1, 33), (40, 33)), {"units": 40}),
        (((2, 9), (3, 9)), {"units": 3, "out_dtype": "int32"}, "int8"),
        (((2, 9), (3, 9)), {"units": 3}, "float16"),
    ),
    "contrib_dense_pack": (
        (((3, 9), (2, 9, 4)), {"units": 6, "weight_layout": "NC4n"}),
        (((1, 2, 9), (2, 9, 8)), {"units": None, "weight_layout": "NC8n"}),
        (((3, 12), (2, 3, 4, 4)), _GROUPED_SAMPLE_ATTRS | {"units": 6, "weight_layout": "NC4n4c"}, "int8"),
        (((20, 8), (3, 2, 16, 4)), _GROUPED_SAMPLE_ATTRS | {"units": 40}, "uint8"),
    ),
    "matmul": (
        (((3, 4), (4, 5)), {"units": None}),
        (((4, 3), (5, 4)), {"units": 5, "transpose_a": True, "transpose_b": True}),
        (((2, 3, 4), (4, 5)), {"units": 5}),
        (((4,), (4, 5)), {"units": 5}),
        (((7, 4), (4, 5)), {"units": 5}, "float64"),
    ),
    "batch_matmul": (
        (((2, 3, 4), (2, 4, 5)), {}),
        (((2, 3, 4), (2, 5, 4)), {"transpose_b": True}),
        (((1, 4, 3), (2, 4, 5)), {"transpose_a": True}),
        (((3, 2, 4), (1, 4, 5)), {}),
        (((2, 3, 4), (2, 4, 5)), {"out_dtype": "int32"}, "int8"),
    ),
}
_BIAS_ADD_TEST_CASES: Any = ((((2, 3, 4), (3,)), {}), (((2, 3, 4), (4,)), {"axis": -1}), (((2, 3), (3,)), {}, "int32"))


def _matmul_op(
    name: str, attrs_class: type[Attrs], operand_names: str, axis_map: Any, error_code: str = "", **facets: Any
) -> OpDef:
    """Return the OpDef of a matrix product.

    error_code    code of the diagnostic for an operand of wrong rank
    """
    shared: dict[str, Any] = {
        "infer": partial(_infer_matmul_type, operand_names, error_code),
        "reference": _matmul_reference,
        "compute": partial(_compute_matmul, name),
    }
    return OpDef(
        name=f"nn.{name}",
        attrs=attrs_class,
        args=declare_arguments(*operand_names.split()),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=axis_map,
        samples=random_samples_from_rows(attrs_class, _MATMUL_TEST_CASES[name]),
        **shared | facets,
    )


dense = _matmul_op(
    "dense",
    DenseAttrs,
    "data weight",
    _dense_axis_map,
    "dense.weight-rank",
    refine=_infer_missing_weight_type,
    layout="NC",
)
contrib_dense_pack = _matmul_op(
    "contrib_dense_pack",
    DensePackAttrs,
    "data weight",
    _dense_axis_map,
    order="data weight weight_layout units out_dtype",
    infer=_infer_dense_pack_type,
    reference=_dense_pack_reference,
    compute=_compute_dense_pack,
)
matmul = _matmul_op(
    "matmul", MatmulAttrs, "tensor_a tensor_b", _matmul_axis_map, "matmul.rank", refine=_infer_missing_weight_type
)
batch_matmul = _matmul_op(
    "batch_matmul", BatchMatmulAttrs, "tensor_a tensor_b", _batch_matmul_axis_map, "batch_matmul.rank"
)
bias_add = op_with_vector_along_axis(
    "nn.bias_add",
    BiasAddAttrs,
    "bias",
    add,
    "bias_add.bias",
    _BIAS_ADD_TEST_CASES,
    quantized=QuantizationTreatment.RESCALE,
)
