# SPDX-License-Identifier: Apache-2.0
"""Operators that make tensors out of nothing, or of one value.

zeros((2, 3), "float32")
arange(0, 10, 2, "int64")              # 0 2 4 6 8
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from aotc.ir import AotcError, AxisMap, DType, OpPattern, TensorType, Type, Types, args, require
from aotc.ir.attrs import NO_ATTRS, REQUIRED, Attrs, attrs, param
from aotc.relay.expr import Constant, Expr
from aotc.relay.op.opdef import Array, OpDef, Sample, Scalar, Tensors
from aotc.relay.op.rules import pointwise, require_dtype, require_same_dtype, tensor
from aotc.relay.op.samples import ANY, exact, random_array
from aotc.relay.op.shape import InitAttrs
from aotc.tir import const, te, wrapped


@attrs
class FilledAttrs(InitAttrs):
    dtype: str = param(default="", given=REQUIRED)


@attrs
class FullAttrs(InitAttrs):
    """A tensor of one value, converted to `dtype` if that is given."""

    shape: tuple[int, ...] = param(given=())


def _dtype(a: InitAttrs) -> DType:
    return DType(a.dtype or "float32")


def _shape(a: InitAttrs) -> tuple[int, ...]:
    require("init.shape", all(d >= 0 for d in a.shape), lambda: f"negative dimension in {a.shape}")
    return a.shape


def _no_axes(a: Any, types: Types) -> AxisMap:
    return AxisMap(((None,) * len(a.shape),) * len(types))


def _init_samples(make: type[InitAttrs], *arguments: Array) -> Iterator[Sample]:
    for shape in ((2, 3), (), (0, 2), (1,)):
        for dtype in (*ANY.examples, ""):
            yield exact(make(shape=shape, dtype=dtype), *arguments)


# --- zeros, ones, full


def _constant(name: str, value: int) -> OpDef:
    return OpDef(
        name=name,
        doc=f"A tensor of {name}.",
        attrs=FilledAttrs,
        args=(),
        infer=lambda a, _: TensorType(_shape(a), _dtype(a)),
        reference=lambda a: np.broadcast_to(np.asarray(value).astype(_dtype(a).numpy), a.shape),
        pattern=OpPattern.ELEMWISE,
        axes=_no_axes,
        compute=lambda a, _: te.compute(a.shape, lambda *_: const(value, _dtype(a)), name),
        samples=lambda: _init_samples(FilledAttrs),
    )


zeros = _constant("zeros", 0)
ones = _constant("ones", 1)


def _full_infer(a: InitAttrs, types: Types) -> Type:
    value = tensor(types[0], "fill value")
    require("full.value", value.rank == 0, lambda: f"the fill value must be a scalar, got {value}")
    return TensorType(_shape(a), DType(a.dtype or value.dtype))


def _full_reference(a: InitAttrs, value: Array) -> Array:
    return np.broadcast_to(value.astype(DType(a.dtype or DType.of(value)).numpy), a.shape)


def _full_compute(a: InitAttrs, args: Tensors) -> te.Tensor:
    (value,) = args
    return te.compute(a.shape, lambda *_: value[()].astype(a.dtype or value.dtype), "full")


full = OpDef(
    name="full",
    attrs=FullAttrs,
    args=args("fill_value"),
    infer=_full_infer,
    reference=_full_reference,
    pattern=OpPattern.ELEMWISE,
    axes=_no_axes,
    compute=_full_compute,
    samples=lambda: _init_samples(FullAttrs, np.array(3, np.int32)),
)


# --- zeros_like, ones_like, full_like


def _like_samples(scalar: bool) -> Iterator[Sample]:
    for dtype in ANY.examples:
        data = random_array((2, 3), "int8").astype(DType(dtype).numpy)
        value = (np.asarray(1).astype(data.dtype),) if scalar else ()
        yield exact(NO_ATTRS, data, *value)
    for shape in ((), (0, 2)):
        value = (np.ones((), np.float32),) if scalar else ()
        yield exact(NO_ATTRS, random_array(shape), *value)


def _like(name: str, value: int) -> OpDef:
    return OpDef(
        name=name,
        doc=f"{name.removesuffix('_like').capitalize()} in the shape and type of `data`.",
        infer=lambda _, types: tensor(types[0]),
        reference=lambda _, x: np.broadcast_to(np.asarray(value).astype(x.dtype), x.shape),
        pattern=OpPattern.ELEMWISE,
        axes=pointwise,
        compute=lambda _, args: te.compute(args[0].shape, lambda *_: const(value, args[0].dtype), name),
        samples=lambda: _like_samples(scalar=False),
    )


zeros_like = _like("zeros_like", 0)
ones_like = _like("ones_like", 1)


def _full_like_infer(_: Any, types: Types) -> Type:
    data, value = tensor(types[0], "data"), tensor(types[1], "fill value")
    require("full.value", value.rank == 0, lambda: f"the fill value must be a scalar, got {value}")
    require_same_dtype(data, value)
    return data


full_like = OpDef(
    name="full_like",
    doc="One value in the shape of `data`.",
    args=args("data", "fill_value"),
    infer=_full_like_infer,
    reference=lambda _, x, value: np.broadcast_to(value, x.shape),
    pattern=OpPattern.ELEMWISE,
    axes=pointwise,
    compute=lambda _, args: te.compute(args[0].shape, lambda *_: args[1][()], "full_like"),
    samples=lambda: _like_samples(scalar=True),
)


# --- arange


def _known(value: Expr | float) -> float:
    if isinstance(value, Constant) and value.data.ndim == 0:
        return value.data.item()  # type: ignore[no-any-return]
    if not isinstance(value, Real):
        text = f"arange: start, stop and step are numbers or scalar constants, not {type(value).__name__}"
        raise AotcError("arange", text, hint="their values decide the shape")
    return float(value) if isinstance(value, np.floating) else value


def _start(value: Any, given: Mapping[str, Any]) -> float:
    return 0 if given["stop"] is None else _known(value)


def _stop(value: Any, given: Mapping[str, Any]) -> float:
    return _known(given["start"] if value is None else value)


@attrs
class ArangeAttrs(Attrs):
    """start, start + step, ... up to but without `stop`; from 0 to `start` where `stop` is None.

    Numbers or scalar constants; AotcError for other expressions.
    """

    start: int | float = param(type="Expr | float", takes=_start)
    stop: int | float = param(type="Expr | float | None", given=None, takes=_stop)
    step: int | float = param(type="Expr | float", given=1, takes=lambda value, _: _known(value))
    dtype: str = param(given="float32")


def _arange_count(a: ArangeAttrs) -> int:
    finite = all(math.isfinite(v) for v in (a.start, a.stop, a.step))
    require("arange.step", finite and a.step != 0, lambda: f"no range from {a.start} to {a.stop} by {a.step}")
    integers = all(isinstance(v, int) for v in (a.start, a.stop, a.step))
    steps = -((a.start - a.stop) // a.step) if integers else math.ceil((a.stop - a.start) / a.step)
    return max(int(steps), 0)


def _arange_infer(a: ArangeAttrs, _: Sequence[Type]) -> Type:
    dtype = DType(a.dtype)
    require_dtype(dtype, not dtype.is_bool)
    whole = dtype.is_float or all(float(v).is_integer() for v in (a.start, a.step))
    require("arange.fraction", whole, lambda: f"a range from {a.start} by {a.step} of integers")
    return TensorType((_arange_count(a),), dtype)


def _arange_work(a: ArangeAttrs) -> DType:
    dtype = DType(a.dtype)
    return dtype if dtype in ("float32", "float64") else DType("float32" if dtype.is_float else "int64")


def _arange_terms(a: ArangeAttrs, work: np.dtype[Any]) -> tuple[int | float, int | float]:
    """First element and step, of integers modulo 2**64 as the elements are."""
    return (a.start, a.step) if work.kind == "f" else (wrapped(int(a.start)), wrapped(int(a.step)))


def _arange_reference(a: ArangeAttrs) -> Array:
    work = _arange_work(a).numpy
    steps = np.arange(_arange_count(a)).astype(work)
    with np.errstate(all="ignore"):
        start, step = _arange_terms(a, work)
        return np.asarray(work.type(start) + steps * work.type(step)).astype(DType(a.dtype).numpy)


def _arange_compute(a: ArangeAttrs, _: Sequence[te.Tensor]) -> te.Tensor:
    work = _arange_work(a)
    start, step = _arange_terms(a, work.numpy)

    def body(i: Scalar) -> Scalar:
        return (i.astype(work) * const(step, work) + const(start, work)).astype(a.dtype)

    return te.compute((_arange_count(a),), body, "arange")


def _arange_samples() -> Iterator[Sample]:
    for start, stop, step, dtype in (
        (0, 10, 2, "int64"),
        (10, 0, -3, "int32"),
        (0, 0, 1, "int32"),
        (5, 0, 1, "int64"),
        (0.0, 1.0, 0.3, "float32"),
        (1, 5, 1, "float32"),
        (2.0, -1.0, -0.25, "float64"),
        (0, 7, 3, "uint8"),
    ):
        yield Sample(args=(), attrs=ArangeAttrs(start=start, stop=stop, step=step, dtype=dtype))


arange = OpDef(
    name="arange",
    attrs=ArangeAttrs,
    args=(),
    infer=_arange_infer,
    reference=_arange_reference,
    axes=lambda _, types: AxisMap(()),
    compute=_arange_compute,
    samples=_arange_samples,
)
