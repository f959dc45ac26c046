# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of operators on complex tensors, which are pairs of real tensors, and of
Fourier transforms.

    z = COMPLEX_OPS["polar"](x=radius, angle=angle)     # a ComplexTensor
    COMPLEX_OPS["abs"](z)                               # a tensor

Operators that only move elements, and linear ones without products, apply to both parts alike:
`COMPONENTWISE` lists them. Complex tensors can be neither inputs nor outputs of a module.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from aotc.ir import AotcError, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.pytorch import ops_math, ops_shape
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.ops_special import hypot
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue
from aotc.relay.op.dft_as_matrix_product import expand_fourier_transform


@frozen(eq=False)
class ComplexTensor:
    """A complex tensor: its real and imaginary parts, of one shape and data type."""

    real: Expr
    imag: Expr


#: Data type of the parts of a complex data type.
_PART_DTYPES: Final = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}

#: Operators that have one meaning for the parts of complex tensors and for real tensors, and no other
#: arguments with values of elements.
COMPONENTWISE: Final = frozenset({
    "alias", "as_strided", "broadcast_to", "chunk", "clone", "contiguous", "cumsum", "detach",
    "diagonal", "embedding", "expand", "expand_as", "flatten", "flip", "gather", "index", "index_select", "lift",
    "lift_fresh", "mT", "mean", "moveaxis", "movedim", "narrow", "neg", "permute", "ravel", "repeat",
    "repeat_interleave", "reshape", "resolve_conj", "resolve_neg", "roll", "select", "slice", "split",
    "split_with_sizes", "squeeze", "sum", "swapaxes", "swapdims", "t", "take_along_dim", "tile", "transpose", "tril",
    "triu", "unbind", "unflatten", "unfold", "unsqueeze", "view",
})  # fmt: skip


def has_complex_value(args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue]) -> bool:
    """Return True if a complex tensor, number or data type is among the arguments of a call, or in a
    list of them.
    """
    flat = [v for a in (*args, *kwargs.values()) for v in (a if isinstance(a, (list, tuple)) else (a,))]
    return any(
        isinstance(v, (ComplexTensor, complex)) or (isinstance(v, torch.dtype) and v in _PART_DTYPES) for v in flat
    )


def is_componentwise_call(name: str, args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue]) -> bool:
    """Return True if a call of the operator `name` applies to both parts of a complex tensor alike: not
    if only its data type is complex, or if it asks for a real data type.
    """
    values = [*args, *kwargs.values()]
    tensors = [v for a in values for v in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(v, ComplexTensor)]
    return name in COMPONENTWISE and bool(tensors) and not asks_for_real_dtype(args, kwargs)


def asks_for_real_dtype(args: Sequence[TorchValue], kwargs: Mapping[str, TorchValue]) -> bool:
    """Return True if a data type that is not complex is among the arguments of a call."""
    return any(isinstance(v, torch.dtype) and v not in _PART_DTYPES for v in (*args, *kwargs.values()))


def apply_to_parts(
    convert: Callable[[Sequence[TorchValue], Mapping[str, TorchValue]], TorchValue],
    args: Sequence[TorchValue],
    kwargs: Mapping[str, TorchValue],
) -> TorchValue:
    """Convert a call whose operator is in `COMPONENTWISE`, once for each part of its complex tensors;
    `convert` converts the call for real tensors.
    """

    def convert_part(name: str) -> TorchValue:
        return convert([_part(a, name) for a in args], {k: _part(a, name) for k, a in kwargs.items()})

    real, imag = convert_part("real"), convert_part("imag")
    if isinstance(real, list):
        return [ComplexTensor(*parts) for parts in zip(real, imag, strict=True)]
    return ComplexTensor(real, imag)


def _part(value: TorchValue, name: str) -> TorchValue:
    if isinstance(value, (list, tuple)):
        return [_part(v, name) for v in value]
    value = part_dtype_or_value(value)
    return getattr(value, name) if isinstance(value, (ComplexTensor, complex)) else value


def part_dtype_or_value(value: TorchValue) -> TorchValue:
    """Return the data type of the parts for a complex data type, and any other value unchanged."""
    return _PART_DTYPES.get(value, value) if isinstance(value, torch.dtype) else value


def create_complex_tensor(
    convert: Callable[[Sequence[TorchValue], Mapping[str, TorchValue]], TorchValue],
    args: Sequence[TorchValue],
    kwargs: Mapping[str, TorchValue],
) -> TorchValue:
    """Convert a call that fills a complex tensor with a number, or a real one if it asks for a real
    data type; `convert` converts the call for a real data type.
    """
    numbers = [a for a in (*args, *kwargs.values()) if isinstance(a, complex) and a.imag]
    require("torch-op", not numbers, f"a tensor that is filled with {numbers} is not supported")
    real = convert([_part(a, "real") for a in args], {k: _part(a, "real") for k, a in kwargs.items()})
    return real if asks_for_real_dtype(args, kwargs) else as_complex(real)


def as_complex(value: TorchValue) -> ComplexTensor:
    """Return a complex tensor, or a real one or a number as a complex tensor."""
    if isinstance(value, ComplexTensor):
        return value
    if tv.is_tensor(value):
        real = tv.cast_integers_to_float32(value)
        return ComplexTensor(real, g.full(0, tv.static_dims(real), str(g.dtype(real))))
    number = complex(value)
    return ComplexTensor(g.constant(number.real, "float32"), g.constant(number.imag, "float32"))


# --- arithmetic


def _real_operand(value: TorchValue) -> TorchValue:
    """Return a real tensor or a number as an operand of both parts; None for complex values."""
    if isinstance(value, ComplexTensor) or (isinstance(value, complex) and value.imag):
        return None
    return value.real if isinstance(value, complex) else value


def _operand_pair(x: TorchValue, other: TorchValue) -> tuple[ComplexTensor, ComplexTensor]:
    """Return both operands as complex tensors; a number takes the data type of the tensor."""
    a, b = as_complex(x), as_complex(other)
    tensors = [v for v in (x, other) if tv.is_tensor(v) or isinstance(v, ComplexTensor)]
    if len(tensors) == 1:
        dtype = str(g.dtype(as_complex(tensors[0]).real))
        a, b = (ComplexTensor(g.cast(v.real, dtype), g.cast(v.imag, dtype)) for v in (a, b))
    return a, b


def _add(x: TorchValue, other: TorchValue, alpha: TorchValue = 1, *, sign: float = 1.0) -> ComplexTensor:
    a, b = _operand_pair(x, _multiply(other, sign * alpha) if sign * alpha != 1 else other)
    return ComplexTensor(_add_real(a.real, b.real), _add_real(a.imag, b.imag))


def _add_real(a: Expr, b: Expr) -> Expr:
    return g.add(*tv.cast_operands_to_promoted_dtype(a, b))


def _sub_real(a: Expr, b: Expr) -> Expr:
    return g.sub(*tv.cast_operands_to_promoted_dtype(a, b))


def _mul_real(a: TorchValue, b: TorchValue) -> Expr:
    return g.mul(*tv.cast_operands_to_promoted_dtype(a, b))


def _product(multiply: Callable[[Any, Any], Expr], x: TorchValue, other: TorchValue) -> TorchValue:
    """Return the product of two values, of which one or both are complex, by a bilinear function of
    real tensors.
    """
    first, second = _real_operand(x), _real_operand(other)
    if first is not None and second is not None:
        return multiply(first, second) if tv.is_tensor(first) or tv.is_tensor(second) else first * second
    if second is not None:
        z = as_complex(x)
        return ComplexTensor(multiply(z.real, second), multiply(z.imag, second))
    if first is not None:
        z = as_complex(other)
        return ComplexTensor(multiply(first, z.real), multiply(first, z.imag))
    a, b = _operand_pair(x, other)
    real = _sub_real(multiply(a.real, b.real), multiply(a.imag, b.imag))
    return ComplexTensor(real, _add_real(multiply(a.real, b.imag), multiply(a.imag, b.real)))


_multiply = partial(_product, _mul_real)


def _matmul_real(a: TorchValue, b: TorchValue) -> Expr:
    first, second = tv.cast_operands_to_promoted_dtype(a, b)
    return matmul(first, second)


def _matmul(x: TorchValue, other: TorchValue, /) -> TorchValue:
    return _product(_matmul_real, x, other)


def _reciprocal(x: ComplexTensor) -> ComplexTensor:
    """Return 1 / x: its conjugate divided by the square of its absolute value, with the greater part
    divided out first so that the square does not overflow.
    """
    size = g.maximum(g.absolute(x.real), g.absolute(x.imag))
    a, b = g.div(x.real, size), g.div(x.imag, size)
    length = g.mul(g.add(g.mul(a, a), g.mul(b, b)), size)
    return ComplexTensor(g.div(a, length), g.div(g.negative(b), length))


def _div(x: TorchValue, other: TorchValue) -> TorchValue:
    divisor = _real_operand(other)
    if divisor is None:
        return _multiply(x, _reciprocal(_operand_pair(x, other)[1]))
    z = as_complex(x)
    return ComplexTensor(*(g.div(*tv.cast_operands_to_promoted_dtype(part, divisor)) for part in (z.real, z.imag)))


def _pow(x: ComplexTensor, exponent: TorchValue) -> TorchValue:
    if not isinstance(exponent, (int, float)) or exponent not in (0.5, 1, 2, 3):
        text = f"the power {exponent!r} of a complex tensor is not supported"
        raise AotcError("torch-op", text, hint="the powers 0.5, 1, 2 and 3 are")
    if exponent == 0.5:
        return _polar(g.sqrt(_abs(x)), g.mul(_angle(x), 0.5))
    result = x
    for _ in range(int(exponent) - 1):
        result = _multiply(result, x)
    return result


def _abs(x: ComplexTensor) -> Expr:
    return hypot(x.real, x.imag)


def _angle(x: TorchValue) -> Expr:
    if isinstance(x, ComplexTensor):
        return g.call_op("atan2", x.imag, x.real)
    real = tv.cast_integers_to_float32(x)
    return g.where(
        g.call_op("isnan", real), real, g.where(g.less(real, 0.0), g.constant(math.pi, str(g.dtype(real))), 0.0)
    )


def _sgn(x: TorchValue) -> TorchValue:
    if not isinstance(x, ComplexTensor):
        return ops_math.sign(x)
    size = _abs(x)
    return _div(x, g.where(g.equal(size, 0.0), 1.0, size))


def _polar(x: Expr, angle: Expr, /) -> ComplexTensor:
    return ComplexTensor(_mul_real(x, g.call_op("cos", angle)), _mul_real(x, g.call_op("sin", angle)))


def _exp(x: ComplexTensor) -> ComplexTensor:
    return _polar(g.exp(x.real), x.imag)


def _log(x: ComplexTensor) -> ComplexTensor:
    return ComplexTensor(g.log(_abs(x)), _angle(x))


def _conjugate(x: TorchValue) -> TorchValue:
    return ComplexTensor(x.real, g.negative(x.imag)) if isinstance(x, ComplexTensor) else x


def _complex(x: Expr, imag: Expr, /) -> ComplexTensor:
    parts = tv.cast_operands_to_promoted_dtype(x, imag)
    if g.dims(x) != g.dims(imag):
        common = np.broadcast_shapes(*map(tv.static_dims, parts))
        parts = [g.broadcast_to(p, common) for p in parts]
    return ComplexTensor(*parts)


def _where(condition: Expr, x: TorchValue, other: TorchValue) -> ComplexTensor:
    a, b = _operand_pair(x, other)
    pairs = (a.real, b.real), (a.imag, b.imag)
    return ComplexTensor(*(ops_math.OPS["where"](condition, *pair) for pair in pairs))


def _concatenate_or_stack(name: str, tensors: Sequence[TorchValue], dim: int = 0) -> ComplexTensor:
    """Convert the operator `name`, cat or stack, of tensors of which some are complex."""
    values = list(map(as_complex, tensors))
    return ComplexTensor(*(ops_shape.OPS[name]([getattr(v, p) for v in values], dim) for p in ("real", "imag")))


def _scattered(name: str, x: TorchValue, src: TorchValue, dim: int = 0, **place: TorchValue) -> ComplexTensor:
    """Convert select_scatter and slice_scatter: write a tensor to a slice of another one."""
    a, b = _operand_pair(x, src)
    write = partial(ops_shape.OPS[name], dim=tv.normalize_axis(dim, a.real), **place)
    return ComplexTensor(write(a.real, b.real), write(a.imag, b.imag))


def _copy(x: TorchValue, src: TorchValue, /) -> ComplexTensor:
    a, b = _operand_pair(x, src)
    return ComplexTensor(ops_shape.OPS["copy"](a.real, b.real), ops_shape.OPS["copy"](a.imag, b.imag))


def _pad(x: ComplexTensor, pad: TorchValue, /, mode: str = "constant", value: TorchValue = None) -> ComplexTensor:
    fill = complex(value or 0)
    write = ops_shape.OPS["pad"]
    return ComplexTensor(write(x.real, pad, mode, fill.real), write(x.imag, pad, mode, fill.imag))


def _view_dtype(x: TorchValue, dtype: TorchValue, /) -> TorchValue:
    """Convert a view as another data type: of pairs of real numbers as complex ones, or back."""
    part_dtype = tv.dtype_name_of_torch_dtype(part_dtype_or_value(dtype))
    values = x.real if isinstance(x, ComplexTensor) else x
    require("torch-op", part_dtype == g.dtype(values), f"a view of {g.dtype(values)} as {dtype} is not supported")
    if isinstance(x, ComplexTensor):
        if dtype in _PART_DTYPES:
            return x
        *lead, last = tv.static_dims(x.real)
        return g.reshape(_view_as_real(x), (*lead, 2 * last))
    *lead, last = tv.static_dims(x)
    require("torch-shape", last % 2 == 0, f"{last} real numbers are no complex ones")
    return _view_as_complex(g.reshape(x, (*lead, last // 2, 2)))


def _equal(x: TorchValue, other: TorchValue, *, negated: bool = False) -> Expr:
    a, b = _operand_pair(x, other)
    same = g.logical_and(g.equal(a.real, b.real), g.equal(a.imag, b.imag))
    return g.logical_not(same) if negated else same


def _view_as_real(x: ComplexTensor) -> Expr:
    return g.stack([x.real, x.imag], g.rank(x.real))


def _view_as_complex(x: Expr) -> ComplexTensor:
    parts = g.split(x, [1, 1], g.rank(x) - 1)
    return ComplexTensor(*(g.squeeze(part, [g.rank(x) - 1]) for part in parts))


def _convert_dtype(x: TorchValue, dtype: str | None = None) -> TorchValue:
    if not isinstance(x, ComplexTensor) or dtype is None or dtype.startswith("float"):
        z = as_complex(x)
        return z if dtype is None else ComplexTensor(g.cast(z.real, dtype), g.cast(z.imag, dtype))
    raise AotcError("torch-op", f"a cast of a complex tensor to {dtype} is not supported", hint="use x.real")


# --- Fourier transforms


def _transform(parts: Sequence[Expr], axis: int, bins: int, inverse: bool, scale: float) -> ComplexTensor:
    """Return the first `bins` bins of the discrete Fourier transforms along an axis.

    parts      the signals, or their real and imaginary parts
    inverse    True for the inverse transform without division by the length
    scale      factor of the result
    """
    *lead, length = tv.static_dims(_axis_last(parts[0], axis))
    require("torch-shape", length > 0, "a Fourier transform of an empty signal is not possible")
    rows = [g.reshape(_axis_last(p, axis), (math.prod(lead), length, 1)) for p in parts]
    transform = partial(expand_fourier_transform, bins=bins, inverse=inverse, scale=scale)
    spectrum = g.call_with_narrow_floats_in_float32(transform, g.concat(rows, 2))
    halves = g.split(spectrum, [1, 1], 2)
    return ComplexTensor(*(ops_shape.OPS["movedim"](g.reshape(h, (*lead, bins)), -1, axis) for h in halves))


def _axis_last(x: Expr, axis: int) -> Expr:
    result: Expr = ops_shape.OPS["movedim"](x, axis, -1)
    return result


def _scale_of_normalization(normalization: int, count: int) -> float:
    """Return the factor of a transform of `count` elements for PyTorch's number of a normalization:
    none, by the root, or by the number.
    """
    return {0: 1.0, 1: 1.0 / math.sqrt(count), 2: 1.0 / count}[normalization]


def _fft_complex(x: ComplexTensor, dim: TorchValue, normalization: int, forward: bool, /) -> ComplexTensor:
    """Convert _fft_c2c: complex transforms along several axes."""
    axes = tv.normalize_distinct_axes(dim, g.rank(x.real))
    scale = _scale_of_normalization(normalization, math.prod(tv.static_dim(x.real, a) for a in axes))
    for k, axis in enumerate(axes):
        bins = tv.static_dim(x.real, axis)
        x = _transform([x.real, x.imag], axis, bins, not forward, scale if k == 0 else 1.0)
    return x


def _fft_of_real(x: Expr, dim: TorchValue, normalization: int, onesided: bool, /) -> ComplexTensor:
    """Convert _fft_r2c: transforms of real signals; along the last of the axes only the first half of
    the spectrum if `onesided`.
    """
    *others, last = tv.normalize_distinct_axes(dim, g.rank(x))
    data = tv.cast_integers_to_float32(x)
    scale = _scale_of_normalization(normalization, math.prod(tv.static_dim(x, a) for a in (*others, last)))
    length = tv.static_dim(x, last)
    spectrum = _transform([data], last, length // 2 + 1 if onesided else length, False, scale)
    return _fft_complex(spectrum, others, 0, True) if others else spectrum


def _fft_to_real(x: ComplexTensor, dim: TorchValue, normalization: int, last_dim_size: TorchValue, /) -> Expr:
    """Convert _fft_c2r: the inverse of _fft_r2c. The second half of each spectrum is the first one's
    conjugate in reverse order.
    """
    *others, last = tv.normalize_distinct_axes(dim, g.rank(x.real))
    length = tv.to_python_int(last_dim_size)
    if others:
        x = _fft_complex(x, others, 0, False)
    bins = length // 2 + 1
    require("torch-shape", tv.static_dim(x.real, last) >= bins > 0, f"{length} elements need {bins} bins")
    count = length * math.prod(tv.static_dim(x.real, a) for a in others)
    halves = [g.strided_slice(p, [0], [bins], [last]) for p in (x.real, x.imag)]
    tails = [g.call_op("reverse", g.strided_slice(h, [1], [length - bins + 1], [last]), axis=last) for h in halves]
    whole = [g.concat([h, t], last) for h, t in zip(halves, (tails[0], g.negative(tails[1])), strict=True)]
    return _transform(whole, last, length, True, _scale_of_normalization(normalization, count)).real


#: Converters of operators that take or return complex tensors.
COMPLEX_OPS: Table = {
    **tv.converter_table_by_function_name(
        _abs, _add, _angle, _complex, _div, _exp, _log, _polar, _pow, _reciprocal, _sgn,
        _view_as_complex, _view_as_real, _where,
    ),
    **dict.fromkeys(("bmm", "matmul", "mm", "mv"), _matmul),
    **dict.fromkeys(("conj", "conj_physical"), _conjugate),
    **{name: partial(_concatenate_or_stack, name) for name in ("cat", "concat", "stack")},
    **dict.fromkeys(("to", "to_copy"), _convert_dtype),
    **dict.fromkeys(("copy", "fill"), _copy),
    **{name: partial(_scattered, name) for name in ("select_scatter", "slice_scatter")},
    **dict.fromkeys(("constant_pad_nd", "pad"), _pad),
    "view.dtype": _view_dtype,
    "eq": _equal,
    "fft_c2c": _fft_complex,
    "fft_c2r": _fft_to_real,
    "fft_r2c": _fft_of_real,
    "imag": lambda x: x.imag,
    "mul": _multiply,
    "ne": partial(_equal, negated=True),
    "real": lambda x: x.real if isinstance(x, ComplexTensor) else x,
    "rsub": lambda x, other, alpha=1: _add(other, x, alpha, sign=-1.0),
    "square": lambda x: _multiply(x, x),
    "sub": partial(_add, sign=-1.0),
}  # fmt: skip
#: Operators, and their forms `new_...` and `..._like`, that fill a tensor of a given data type.
COMPLEX_CREATION: Final = frozenset({"empty", "full", "ones", "scalar_tensor", "zeros"})
