# SPDX-License-Identifier: Apache-2.0
"""Operators that create tensors: zeros, ones, full, their `_like` variants, and arange.

zeros((2, 3), "float32")
arange(0, 10, 2, "int64")              # 0 2 4 6 8
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from numbers import Real
from typing import Any

import numpy as np

from aotc.ir import AotcError, AxisMap, DType, OpPattern, TensorType, Type, Types, args, require
from aotc.ir.attrs import NO_ATTRS, REQUIRED, Attrs, NoAttrs, param
from aotc.relay.expr import Constant, Expr
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar, of_formula, types_of
from aotc.relay.op.sample_arguments import ANY, exact, random_array
from aotc.relay.op.shape import InitAttrs, no_axes
from aotc.relay.op.type_rules import pointwise, require_dtype, require_same_dtype, scalar, tensor
from aotc.tir import Tensor, const, wrapped


class FilledAttrs(InitAttrs):
    dtype: str = param(default="", given=REQUIRED)


class FullAttrs(InitAttrs):
    shape: tuple[int, ...] = param(given=())


# --- one value: zeros, ones, full, and in the shape of a tensor


def _init_infer(a: InitAttrs, types: Types) -> Type:
    given = scalar("full.value", types[0], "fill value").dtype if types else "float32"
    require("init.shape", all(d >= 0 for d in a.shape), f"negative dimension in {a.shape}")
    return TensorType(a.shape, DType(a.dtype or given))


def _like_infer(_: Any, types: Types) -> Type:
    data = tensor(types[0], "data")
    for value in types[1:]:
        require_same_dtype(data, scalar("full.value", value, "fill value"))
    return data


def _samples(attributes: type[Attrs], given: bool) -> Samples:
    """Yield samples; if `given` is True, the last argument is the fill value."""
    if issubclass(attributes, InitAttrs):
        for shape, dtype in product(((2, 3), (), (0, 2), (1,)), (*ANY.examples, "")):
            yield exact(attributes(shape=shape, dtype=dtype), *[np.array(3, np.int32)] * given)
        return
    floats = [random_array(shape) for shape in ((), (0, 2))]
    for data in (*(random_array((2, 3), "int8").astype(DType(d).numpy) for d in ANY.examples), *floats):
        yield exact(NO_ATTRS, data, *[np.ones((), data.dtype)] * given)


def _filled(name: str, doc: str, value: int | None = None) -> OpDef:
    """Return the OpDef of a constant-filled tensor.

    The fill value is `value`, or the last argument if `value` is None. The shape is an attribute
    or, for a name that ends with "_like", the shape of the first argument.
    """
    like, given = name.endswith("_like"), value is None
    infer = _like_infer if like else _init_infer
    attributes = NoAttrs if like else FullAttrs if given else FilledAttrs

    def result(a: Any, args: Sequence[Any]) -> TensorType:
        return tensor(infer(a, types_of(args)))

    def reference(a: Any, *args: Array) -> Array:
        ty = result(a, args)
        return np.broadcast_to(np.asarray(args[-1] if value is None else value).astype(ty.dtype.numpy), ty.static_shape)

    def element(a: Any, _: Index, *args: Tensor) -> Scalar:
        dtype = result(a, args).dtype
        return args[-1][()].astype(dtype) if value is None else const(value, dtype)

    return OpDef(
        name=name,
        doc=doc,
        attrs=attributes,
        args=args(*["data"] * like, *["fill_value"] * given),
        infer=infer,
        reference=reference,
        pattern=OpPattern.ELEMWISE,
        axes=pointwise if like else no_axes,
        element=element,
        samples=partial(_samples, attributes, given),
    )


zeros = _filled("zeros", "A tensor of zeros.", 0)
ones = _filled("ones", "A tensor of ones.", 1)
zeros_like = _filled("zeros_like", "Zeros in the shape and type of `data`.", 0)
ones_like = _filled("ones_like", "Ones in the shape and type of `data`.", 1)
full = _filled("full", "A tensor of one value, converted to `dtype` if that is given.")
full_like = _filled("full_like", "One value in the shape of `data`.")


# --- arange


def _known(value: Expr | float) -> float:
    if isinstance(value, Constant) and value.data.ndim == 0:
        return value.data.item()  # type: ignore[no-any-return]
    if not isinstance(value, Real):
        text = f"arange: start, stop and step are numbers or scalar constants, not {type(value).__name__}"
        raise AotcError("arange", text, hint="the shape depends on their values")
    return float(value) if isinstance(value, np.floating) else value


def _start(value: Any, given: Mapping[str, Any]) -> float:
    return 0 if given["stop"] is None else _known(value)


def _stop(value: Any, given: Mapping[str, Any]) -> float:
    return _known(given["start"] if value is None else value)


class ArangeAttrs(Attrs):
    """start, start + step, ... up to but excluding `stop`; from 0 to `start` if `stop` is None.

    Arguments are numbers or scalar constants; AotcError for other expressions.
    """

    start: int | float = param(type="Expr | float", takes=_start)
    stop: int | float = param(type="Expr | float | None", given=None, takes=_stop)
    step: int | float = param(type="Expr | float", given=1, takes=lambda value, _: _known(value))
    dtype: str = param(given="float32")


def _arange_count(a: ArangeAttrs) -> int:
    finite = all(math.isfinite(v) for v in (a.start, a.stop, a.step))
    require(
        "arange.step", finite and a.step != 0, f"a range from {a.start} to {a.stop} with step {a.step} is not possible"
    )
    integers = all(isinstance(v, int) for v in (a.start, a.stop, a.step))
    steps = -((a.start - a.stop) // a.step) if integers else math.ceil((a.stop - a.start) / a.step)
    return max(int(steps), 0)


def _arange_infer(a: ArangeAttrs, _: Sequence[Type]) -> Type:
    dtype = DType(a.dtype)
    require_dtype(dtype, not dtype.is_bool)
    whole = dtype.is_float or all(float(v).is_integer() for v in (a.start, a.step))
    require(
        "arange.fraction",
        whole,
        f"a range of integers needs integer bounds and steps, got start {a.start} and step {a.step}",
    )
    return TensorType((_arange_count(a),), dtype)


def _arange_work(a: ArangeAttrs) -> DType:
    dtype = DType(a.dtype)
    return dtype if dtype in ("float32", "float64") else DType("float32" if dtype.is_float else "int64")


def _arange_element(a: ArangeAttrs, i: Index) -> Any:
    work = _arange_work(a)
    # start and step wrap modulo 2**64, as the elements do
    start, step = (v if work.is_float else wrapped(int(v)) for v in (a.start, a.step))
    return (i[0].astype(work) * step + start).astype(a.dtype)


_RANGES: Any = (
    (0, 10, 2, "int64"), (10, 0, -3, "int32"), (0, 0, 1, "int32"), (5, 0, 1, "int64"), (0.0, 1.0, 0.3, "float32"),
    (1, 5, 1, "float32"), (2.0, -1.0, -0.25, "float64"), (0, 7, 3, "uint8"),
)  # fmt: skip


def _arange_samples() -> Samples:
    for start, stop, step, dtype in _RANGES:
        yield Sample(args=(), attrs=ArangeAttrs(start=start, stop=stop, step=step, dtype=dtype))


arange = OpDef(
    name="arange",
    attrs=ArangeAttrs,
    args=(),
    infer=_arange_infer,
    reference=of_formula(_arange_infer, _arange_element),
    axes=lambda _, types: AxisMap(()),
    element=_arange_element,
    samples=_arange_samples,
)
