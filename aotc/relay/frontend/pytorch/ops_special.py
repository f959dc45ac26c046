# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of special functions, distances between vectors, order statistics, positions in
sorted rows, and products of rows in groups.

OPS["erfinv"](x=a)                      # the inverse of erf
OPS["cummax"](x=a, dim=0)               # running maxima and their positions
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from aotc.ir import AotcError, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis, OptionalExpr
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.ops_math import as_bool
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue
from aotc.relay.frontend.reductions import p_norm

# --- special functions

#: Coefficients, from the highest power on, of the rational approximations of erfinv in PyTorch: for
#: arguments up to 0.7 in y * y, and for greater ones in sqrt(-log((1 - abs(y)) / 2)).
_ERFINV_CENTER: Final = (
    (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
    (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0),
)
_ERFINV_TAIL: Final = ((1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200, 1.0))
_ERFINV_CENTER_BOUND: Final = 0.7

#: Number of factors by which the argument of lgamma is moved to where its series is accurate, and
#: coefficients of this series (Stirling's) in 1 / x**2, from the highest power on.
_LGAMMA_SHIFT: Final = 8
_STIRLING: Final = (1 / 1260, -1 / 360, 1 / 12)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return the polynomial of x with coefficients from the highest power on, by Horner's rule."""
    first, second, *rest = coefficients
    y = g.add(g.mul(x, first), second)
    for coefficient in rest:
        y = g.add(g.mul(y, x), coefficient)
    return y


def _erfinv(x: Expr) -> Expr:
    return g.call_with_narrow_floats_in_float32(_erfinv_of_float, tv.cast_integers_to_float32(x))


def _erfinv_of_float(y: Expr) -> Expr:
    """Return the inverse of erf: rational approximations, then two steps of Newton's method, as in
    PyTorch's scalar implementation.
    """
    size = g.absolute(y)
    center = g.mul(y, g.div(*(_polynomial(g.mul(y, y), c) for c in _ERFINV_CENTER)))
    z = g.sqrt(g.negative(g.log(g.div(g.sub(1.0, size), 2.0))))
    tail = g.mul(g.div(*(_polynomial(z, c) for c in _ERFINV_TAIL)), g.call_op("sign", y))
    root = g.where(g.less_equal(size, _ERFINV_CENTER_BOUND), center, tail)
    for _ in range(2):
        slope = g.mul(g.exp(g.negative(g.mul(root, root))), 2 / math.sqrt(math.pi))
        root = g.sub(root, g.div(g.sub(g.call_op("erf", root), y), slope))
    return g.where(g.equal(size, 1.0), g.mul(y, math.inf), root)


def _lgamma(x: Expr) -> Expr:
    return g.call_with_narrow_floats_in_float32(_lgamma_of_float, tv.cast_integers_to_float32(x))


def _lgamma_of_float(x: Expr) -> Expr:
    """Return log(abs(gamma(x))): Stirling's series for x + 8, less the logarithm of the factors
    between; for x < 0.5 by the reflection formula.
    """
    is_reflected = g.less(x, 0.5)
    y = g.where(is_reflected, g.sub(1.0, x), x)
    factors = y
    for k in range(1, _LGAMMA_SHIFT):
        factors = g.mul(factors, g.add(y, float(k)))
    is_small = g.less(y, float(_LGAMMA_SHIFT))
    z = g.where(is_small, g.add(y, float(_LGAMMA_SHIFT)), y)
    series = g.div(_polynomial(g.div(1.0, g.mul(z, z)), _STIRLING), z)
    log_gamma = g.add(g.mul(g.sub(z, 0.5), g.sub(g.log(z), 1.0)), g.add(series, 0.5 * math.log(2 * math.pi) - 0.5))
    log_gamma = g.sub(log_gamma, g.where(is_small, g.log(factors), 0.0))
    sine = g.absolute(g.call_op("sin", g.mul(g.sub(x, g.call_op("floor", x)), math.pi)))
    reflected = g.sub(g.sub(math.log(math.pi), g.log(sine)), log_gamma)
    result = g.where(is_reflected, reflected, log_gamma)
    is_pole = g.logical_and(g.less_equal(x, 0.0), g.equal(x, g.call_op("floor", x)))
    is_infinite = g.logical_or(is_pole, g.call_op("isinf", x))
    return g.where(is_infinite, math.inf, result)


def hypot(x: Expr, other: Expr) -> Expr:
    """Convert hypot: sqrt(x * x + other * other) without overflow of the squares."""
    a, b = (g.absolute(tv.cast_integers_to_float32(v)) for v in tv.cast_operands_to_promoted_dtype(x, other))
    high, low = g.maximum(a, b), g.minimum(a, b)
    ratio = g.div(low, g.where(g.equal(high, 0.0), 1.0, high))
    length = g.mul(high, g.sqrt(g.add(g.mul(ratio, ratio), 1.0)))
    is_infinite = g.logical_or(g.call_op("isinf", a), g.call_op("isinf", b))
    return g.where(is_infinite, math.inf, length)


def _is_sign_bit_set(x: Expr) -> Expr:
    """Return True for negative numbers, also for -0.0 and NaN with the sign bit."""
    dtype = g.dtype(x)
    if not dtype.is_float:
        return g.less(g.cast(x, "int32"), 0) if dtype.is_bool else g.less(x, 0)
    return g.less(g.call_op("reinterpret", x, dtype=f"int{8 * dtype.itemsize}"), 0)


def _copysign(x: TorchValue, other: TorchValue) -> Expr:
    a, b = (tv.cast_integers_to_float32(v) for v in tv.cast_operands_to_promoted_dtype(x, other))
    size = g.absolute(a)
    return g.where(_is_sign_bit_set(b), g.negative(size), size)


# --- distances


def _distance(differences: Expr, p: float) -> Expr:
    """Return the p-norms over the last axis."""
    axis = (g.rank(differences) - 1,)
    if p == 0:
        return g.call_reduction("sum", g.cast(as_bool(differences), g.dtype(differences)), axis, False)
    if math.isinf(p):
        return g.call_reduction("max", g.absolute(differences), axis, False)
    return p_norm(differences, p, lambda powers: g.call_reduction("sum", powers, axis, False))


def _cdist(x1: Expr, x2: Expr, p: TorchValue = 2.0, compute_mode: int | None = None) -> Expr:
    """Convert cdist: the distance of each row of x1 to each row of x2. `compute_mode` chooses between
    this computation and a faster one with larger errors, and is ignored.
    """
    rows, others = g.unsqueeze(x1, [g.rank(x1) - 1]), g.unsqueeze(x2, [g.rank(x2) - 2])
    return _distance(g.sub(rows, others), float(p))


def _pdist(x: Expr, p: TorchValue = 2.0) -> Expr:
    """Convert pdist: the distances between all pairs of rows, the first row of a pair before the
    second.
    """
    pairs = np.triu_indices(tv.static_dim(x, 0), 1)
    first, second = (g.call_op("take", x, g.constant(rows, "int64"), axis=0) for rows in pairs)
    return _distance(g.sub(first, second), float(p))


# --- running maxima, order statistics, positions in sorted rows


def _cumulative_extremum(comparison: str, x: Expr, dim: Axis) -> list[Expr]:
    """Convert cummax and cummin: the greatest (least) element so far and its last position.

    A scan in log2(n) steps (Hillis and Steele, 1986): after step s an element is the extremum of the
    2**s elements that end at it. NaN counts as the extremum, as in PyTorch.
    """
    if not g.rank(x):
        return [x, g.constant(0, "int64")]
    n, numbers = tv.static_dim(x, dim), g.cast(x, "uint8") if g.dtype(x).is_bool else x
    places = g.broadcast_to(g.reshape_along_axis(g.iota(n), dim, g.rank(x)), tv.static_dims(x))
    shift = 1
    while shift < n:
        values = [_part(numbers, dim, start, start + n - shift) for start in (0, shift)]
        indices = [_part(places, dim, start, start + n - shift) for start in (0, shift)]
        is_later_chosen = g.call_op(comparison, values[1], values[0])
        if g.dtype(x).is_float:
            earlier_nan, later_nan = (g.call_op("isnan", v) for v in values)
            chosen = g.logical_and(g.logical_not(earlier_nan), is_later_chosen)
            is_later_chosen = g.logical_or(later_nan, chosen)
        numbers, places = (
            g.concat([_part(whole, dim, 0, shift), g.where(is_later_chosen, later, earlier)], dim)
            for whole, (earlier, later) in ((numbers, values), (places, indices))
        )
        shift *= 2
    return [g.cast(numbers, str(g.dtype(x))), places]


def _part(x: Expr, axis: int, start: int, end: int) -> Expr:
    return g.strided_slice(x, [start], [end], [axis])


def _kthvalue(x: Expr, k: TorchValue, dim: Axis = -1, keepdim: bool = False) -> list[Expr]:
    """Convert kthvalue: the k-th smallest element of an axis, and its position."""
    place, rank = tv.to_python_int(k), g.rank(x)
    vector = x if rank else g.reshape(x, (1,))
    extent = tv.static_dim(vector, dim)
    require("torch-argument", 1 <= place <= extent, f"k is {place}, but the axis has {extent} elements")
    order = g.call_op("argsort", vector, axis=dim, is_ascend=True, dtype="int64")
    index = _part(order, dim, place - 1, place)
    value = g.call_op("gather", vector, index, axis=dim)
    return _without_axis([value, index], dim, keepdim, rank)


def _without_axis(results: Sequence[Expr], axis: int, keepdim: bool, rank: int) -> list[Expr]:
    """Return results without an axis of extent 1 unless `keepdim`; for a tensor of rank 0, scalars."""
    return [r if keepdim and rank else g.squeeze(r, [axis]) for r in results]


def _median_along_axis(x: Expr, dim: Axis, keepdim: bool = False) -> list[Expr]:
    """Convert median along an axis: the lower middle element and its position, or NaN and its first
    position if there is one.
    """
    rank = g.rank(x)
    vector = x if rank else g.reshape(x, (1,))
    middle = (tv.static_dim(vector, dim) - 1) // 2
    results = _kthvalue(vector, middle + 1, dim, True)
    if g.dtype(x).is_float:
        is_nan = g.call_op("isnan", vector)
        has_nan = g.call_reduction("any", is_nan, (dim,), True)
        place = g.cast(g.call_reduction("argmax", g.cast(is_nan, "int32"), (dim,), True), "int64")
        results = [g.where(has_nan, math.nan, results[0]), g.where(has_nan, place, results[1])]
    return _without_axis(results, dim, keepdim, rank)


def _median(x: Expr) -> Expr:
    return _median_along_axis(g.flatten(x), 0)[0]


def _index_pairs(is_upper: bool, row: int, col: int, offset: int = 0, dtype: str | None = None) -> Expr:
    """Convert tril_indices and triu_indices: (2, count), rows and columns of one half of a matrix."""
    g.check_materialization_cost((2, row, col), "int64", "the indices of a half matrix")
    pairs = np.triu_indices(row, offset, col) if is_upper else np.tril_indices(row, offset, col)
    return g.constant(np.stack(pairs), dtype or "int64")


def _bucketize(x: TorchValue, boundaries: Expr, out_int32: bool = False, right: bool = False) -> Expr:
    """Return for each value the number of boundaries below it (or, if `right`, not above it), as
    torch.bucketize does; all of them for NaN.
    """
    return _searchsorted(boundaries, x, out_int32, right)


def _searchsorted(
    sorted_sequence: Expr,
    x: TorchValue,
    /,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: OptionalExpr = None,
) -> Expr:
    """Convert searchsorted: for each value the number of elements of its sorted row below it (or, if
    `right`, not above it); all of them for NaN.
    """
    rows, values = tv.cast_operands_to_promoted_dtype(sorted_sequence, x)
    if sorter is not None:
        rows = g.call_op("gather", rows, sorter, axis=g.rank(rows) - 1)
    dtype = "int32" if out_int32 else "int64"
    count = g.call_op("searchsorted", rows, values, right=side == "right" if side else right, dtype=dtype)
    if not g.dtype(values).is_float:
        return count
    return g.where(g.call_op("isnan", values), tv.static_dim(rows, g.rank(rows) - 1), count)


def _histc(x: Expr, bins: int = 100, min: TorchValue = 0, max: TorchValue = 0) -> Expr:
    """Convert histc: how many elements lie in each of `bins` intervals of equal width, as floats.

    The intervals divide the range from `min` to `max` or, if these are equal, that of the elements.  An
    element at the upper end counts in the last one; those outside and NaN count nowhere.  As in
    PyTorch, an element's interval is the integer part of (x - min) * bins / (max - min).
    """
    dtype, elements = str(g.dtype(x)), g.flatten(x)
    lower_end, upper_end = tv.to_python_number(min), tv.to_python_number(max)
    if bins <= 0 or not lower_end <= upper_end:
        text = f"histc of {bins} bins from {lower_end} to {upper_end} does not exist"
        raise AotcError("torch-argument", text, hint="the number of bins is positive, and max is not below min")
    if not tv.static_dim(elements, 0):
        return g.full(0, (bins,), dtype)
    low: Expr = g.constant(lower_end, dtype)
    high: Expr = g.constant(upper_end, dtype)
    if lower_end == upper_end:
        least, greatest = (g.call_reduction(kind, elements, (0,), False) for kind in ("min", "max"))
        margin = g.cast(g.equal(least, greatest), dtype)
        low, high = g.sub(least, margin), g.add(greatest, margin)
    place = g.div(g.mul(g.sub(elements, low), float(bins)), g.sub(high, low))
    is_inside = g.logical_and(g.less_equal(low, elements), g.less_equal(elements, high))
    interval = g.cast(g.where(is_inside, place, 0.0), "int64")
    interval = g.call_op("minimum", interval, g.constant(bins - 1, "int64"))
    # counted as integers: sums of ones in narrow floats stop growing
    counts = g.call_op(
        "scatter_elements", g.full(0, (bins,), "int64"), interval, g.cast(is_inside, "int64"), axis=0, reduction="add"
    )
    return g.cast(counts, dtype)


def _grouped_matmul(x: Expr, mat2: Expr, offs: Expr | None = None, bias: Expr | None = None, /) -> Expr:
    """Convert _grouped_mm of rows in groups: row r of x (rows, k) times matrix m of mat2 (groups, k,
    n), where `offs` are the ends of the groups of rows.

    For few rows the matrix of each row is gathered; otherwise each group's matrix is multiplied by
    all rows, and the product of the row's group is selected.
    """
    if offs is None:
        y = g.call_op("nn.batch_matmul", x, mat2, transpose_b=False)
        return y if bias is None else g.add(y, bias)
    if g.rank(x) != 2 or g.rank(mat2) != 3:
        text = f"grouped products of tensors of ranks {g.rank(x)} and {g.rank(mat2)} are not supported"
        raise AotcError("torch-op", text, hint="rows (rows, k) and matrices (groups, k, n) are")
    (rows, _), (groups, inner, columns) = tv.static_dims(x), tv.static_dims(mat2)
    ends = g.cast(offs, "int64")
    group = g.call_op("searchsorted", ends, g.iota(rows), right=True, dtype="int64")
    group = g.call_op("minimum", group, g.constant(groups - 1, "int64"))
    if rows <= groups:
        matrices = g.call_op("take", mat2, group, axis=0, mode="clip")
        y = g.reshape(g.call_op("nn.batch_matmul", g.unsqueeze(x, [1]), matrices, transpose_b=False), (rows, columns))
    else:
        all_groups = g.reshape(g.transpose(mat2, (1, 0, 2)), (inner, groups * columns))
        products = g.reshape(matmul(x, all_groups), (rows, groups, columns))
        place = g.broadcast_to(g.reshape(group, (rows, 1, 1)), (rows, 1, columns))
        y = g.squeeze(g.call_op("gather", products, place, axis=1), [1])
    return y if bias is None else g.add(y, g.call_op("take", bias, group, axis=0, mode="clip"))


OPS: Table = {
    **tv.converter_table_by_function_name(_copysign, _erfinv, _histc, hypot, _kthvalue, _lgamma, _median),
    **tv.converter_table_by_function_name(_bucketize, _searchsorted),
    **dict.fromkeys(("cdist", "_cdist_forward"), _cdist),
    **dict.fromkeys(("pdist", "_pdist_forward"), _pdist),
    **dict.fromkeys(("grouped_mm", "transformers::grouped_mm_fallback"), _grouped_matmul),
    "cummax": partial(_cumulative_extremum, "greater_equal"),
    "cummin": partial(_cumulative_extremum, "less_equal"),
    "median.dim": _median_along_axis,
    "signbit": _is_sign_bit_set,
    "tril_indices": partial(_index_pairs, False),
    "triu_indices": partial(_index_pairs, True),
}
