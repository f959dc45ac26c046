# SPDX-License-Identifier: Apache-2.0
"""Operators whose shapes are arguments: dyn.reshape, dyn.strided_slice, dyn.nn.pad, ...

reshape(x, shape)                      # shape: a vector of integers, known when the program runs
RESHAPE.static(attrs, (x, const))      # reshape(x, newshape=(2, 3)): the same with a shape that is known

Each is the operator of the same name with some attributes as arguments.  Ranks are known, dimensions are not.  They
have no tensor program: DynamicToStatic turns them into the static ones, and what remains runs on the virtual machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir.attrs import NO_ATTRS, Attrs, attrs
from aotc.ir.dims import Dim, SymDim
from aotc.ir.dtype import DType
from aotc.ir.op import AxisMap, OpPattern, args, require
from aotc.ir.types import TensorType, Type, check_rank, tensor_types
from aotc.relay.expr import Call, Constant, Expr, known_data, tensor_type_of
from aotc.relay.expr import call as node
from aotc.relay.op import create, index, join, resize, shape, slice, sort
from aotc.relay.op import pad as padding
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample
from aotc.relay.op.rules import axis_of, tensor
from aotc.relay.op.samples import random_array
from aotc.relay.op.window import DATA_LAYOUT, positions

Values = Sequence[Array]
MAX_BYTES: Final = 1 << 47
"""What 64-bit processors address."""


def _ints(values: Array) -> tuple[int, ...]:
    return tuple(int(v) for v in values.reshape(-1))


def _length(ty: Type, what: str) -> int:
    """The extent of a vector of integers, which must be known."""
    vector = tensor(ty, what)
    fits = vector.rank == 1 and vector.dtype.is_integer and isinstance(vector.shape[0], int)
    require("dyn.vector", fits, lambda: f"{what} must be a vector of integers of a known length, got {vector}")
    return int(vector.static_shape[0])


def _check_scalar(ty: Type, what: str, real: bool = False) -> None:
    """One number, as a scalar or a vector of length 1."""
    scalar = tensor(ty, what)
    kind = scalar.dtype.is_float if real else scalar.dtype.is_integer
    fits = scalar.shape in ((), (1,)) and kind
    require("dyn.scalar", fits, lambda: f"{what} must be {'a float' if real else 'an integer'}, got {scalar}")


def _unknown(count: int) -> tuple[Dim, ...]:
    check_rank(count)
    return tuple(SymDim() for _ in range(count))


def _dynamic(
    target: OpDef,
    attributes: type[Attrs],
    arity: int,
    values: Sequence[int],
    to_static: Callable[[Any, Values], Attrs],
    infer: Callable[[Any, Sequence[Type]], Type],
    samples: Callable[[], Iterable[Sample]],
) -> OpDef:
    """The operator `target` with attributes made `to_static` of the arguments at `values`; the others are its own."""
    kept = [k for k in range(arity) if k not in values]
    name = f"dyn.{target.name}"

    def reference(a: Any, *given: Array) -> Any:
        known = to_static(a, [given[k] for k in values])
        own = [given[k] for k in kept]
        found = target.infer(known, [TensorType(x.shape, DType.of(x)) for x in own])
        _check_rank(name, infer(a, [TensorType(x.shape, DType.of(x)) for x in given]), found)
        _check_size(name, found)
        return target.reference(known, *own)

    def static(a: Any, given: Sequence[Expr]) -> Call | None:
        known = [data for data in (known_data(given[k]) for k in values) if data is not None]
        if len(known) != len(values):
            return None
        result = node(target, [given[k] for k in kept], to_static(a, known))
        types = [arg.checked_type for arg in given]
        if result.checked_type is not None:
            _check_rank(name, infer(a, [t for t in types if t is not None]), result.checked_type)
        return result

    def axes(a: Any, types: Sequence[Type]) -> AxisMap | None:
        result = infer(a, types)
        return AxisMap(((None,) * result.rank,) * arity) if isinstance(result, TensorType) else None

    return OpDef(
        name=name,
        attrs=attributes,
        args=args(*map(str, range(arity))),
        infer=infer,
        reference=reference,
        pattern=OpPattern.OPAQUE,
        axes=axes,
        static=static,
        samples=samples,
    )


def _check_size(name: str, found: Type) -> None:
    """Sizes that come when the program runs: memory has an end."""
    for ty in tensor_types(found):
        size = prod(max(int(d), 1) for d in ty.static_shape) * ty.dtype.itemsize
        require("dyn.size", size < MAX_BYTES, lambda ty=ty: f"{name}: {ty} is larger than any memory")  # type: ignore[misc]


def _check_rank(name: str, promised: Type, found: Type) -> None:
    """Values such as -2 in a shape may stand for several dimensions: then the rank would be another."""
    if isinstance(promised, TensorType) and isinstance(found, TensorType):
        same = promised.rank == found.rank
        require("dyn.rank", same, lambda: f"{name}: the values give {found}, which is not of rank {promised.rank}")


def _sample(attributes: Attrs, *args: Any) -> Sample:
    """A sample: shapes stand for random data, lists of integers for vectors, everything else is an array."""
    arrays = (
        random_array(v)
        if isinstance(v, tuple)
        else np.array(v, np.int64)
        if isinstance(v, (list, int))
        else np.asarray(v, np.float32)
        for v in args
    )
    return Sample(args=tuple(arrays), attrs=attributes, accuracy=Accuracy.ROUNDING)


# --- reshape, squeeze, expand_dims, broadcast_to, tile


@attrs
class DynReshapeAttrs(Attrs):
    allowzero: bool = False


@attrs
class DynExpandDimsAttrs(Attrs):
    num_newaxis: int = 1


def _infer_reshape(_: Any, types: Sequence[Type]) -> Type:
    return TensorType(_unknown(_length(types[1], "newshape")), tensor(types[0], "data").dtype)


def _infer_squeeze(_: Any, types: Sequence[Type]) -> Type:
    data, count = tensor(types[0], "data"), _length(types[1], "axis")
    require("squeeze.axis", count <= data.rank, lambda: f"{count} axes of {data}")
    return TensorType(_unknown(data.rank - count), data.dtype)


def _infer_expand(a: DynExpandDimsAttrs, types: Sequence[Type]) -> Type:
    data = tensor(types[0], "data")
    _check_scalar(types[1], "axis")
    require("expand_dims.count", a.num_newaxis >= 0, lambda: f"num_newaxis is {a.num_newaxis}")
    return TensorType(_unknown(data.rank + a.num_newaxis), data.dtype)


def _infer_broadcast(_: Any, types: Sequence[Type]) -> Type:
    data, count = tensor(types[0], "data"), _length(types[1], "shape")
    require("broadcast", data.rank <= count, lambda: f"{data} does not broadcast to rank {count}")
    return TensorType(_unknown(count), data.dtype)


def _infer_tile(_: Any, types: Sequence[Type]) -> Type:
    data, count = tensor(types[0], "data"), _length(types[1], "reps")
    return TensorType(_unknown(max(data.rank, count)), data.dtype)


RESHAPE = _dynamic(
    shape.RESHAPE,
    DynReshapeAttrs,
    2,
    (1,),
    lambda a, v: shape.ReshapeAttrs(newshape=_ints(v[0]), allowzero=a.allowzero),
    _infer_reshape,
    lambda: (
        _sample(DynReshapeAttrs(), (2, 6), [3, 4]),
        _sample(DynReshapeAttrs(), (2, 6), [0, -1, 2]),
        _sample(DynReshapeAttrs(), (1, 1), []),
        _sample(DynReshapeAttrs(allowzero=True), (0, 2), [3, 0]),
    ),
)
SQUEEZE = _dynamic(
    shape.SQUEEZE,
    type(NO_ATTRS),
    2,
    (1,),
    lambda _, v: shape.SqueezeAttrs(axis=_ints(v[0])),
    _infer_squeeze,
    lambda: (_sample(NO_ATTRS, (1, 3, 1), [0, -1]), _sample(NO_ATTRS, (2, 1), [1]), _sample(NO_ATTRS, (1, 2), [])),
)
EXPAND_DIMS = _dynamic(
    shape.EXPAND_DIMS,
    DynExpandDimsAttrs,
    2,
    (1,),
    lambda a, v: shape.ExpandDimsAttrs(axis=_ints(v[0])[0], num_newaxis=a.num_newaxis),
    _infer_expand,
    lambda: (_sample(DynExpandDimsAttrs(), (2, 3), -1), _sample(DynExpandDimsAttrs(num_newaxis=2), (2, 3), [1])),
)
BROADCAST_TO = _dynamic(
    shape.BROADCAST_TO,
    type(NO_ATTRS),
    2,
    (1,),
    lambda _, v: shape.InitAttrs(shape=_ints(v[0])),
    _infer_broadcast,
    lambda: (_sample(NO_ATTRS, (3, 1), [2, 3, 4]), _sample(NO_ATTRS, (), [2])),
)
TILE = _dynamic(
    join.TILE,
    type(NO_ATTRS),
    2,
    (1,),
    lambda _, v: join.TileAttrs(reps=_ints(v[0])),
    _infer_tile,
    lambda: (_sample(NO_ATTRS, (2, 3), [2]), _sample(NO_ATTRS, (2,), [2, 1, 3])),
)


def reshape(data: Expr, newshape: Expr, allowzero: bool = False) -> Call:
    """`data` under a shape that is computed; 0 keeps a dimension (unless `allowzero`), -1 is what is left."""
    return node(RESHAPE, (data, newshape), DynReshapeAttrs(allowzero=allowzero))


def squeeze(data: Expr, axis: Expr) -> Call:
    """`data` without the axes (of extent 1) that a vector names."""
    return node(SQUEEZE, (data, axis))


def expand_dims(data: Expr, axis: Expr, num_newaxis: int = 1) -> Call:
    """`data` with new axes of extent 1 before the axis that a scalar names (negative: after)."""
    return node(EXPAND_DIMS, (data, axis), DynExpandDimsAttrs(num_newaxis=num_newaxis))


def broadcast_to(data: Expr, shape: Expr) -> Call:
    """`data` repeated to a shape that is computed, as numpy broadcasts."""
    return node(BROADCAST_TO, (data, shape))


def tile(data: Expr, reps: Expr) -> Call:
    """The whole tensor repeated along its axes, as numpy.tile, so often as a vector says."""
    return node(TILE, (data, reps))


# --- full, zeros, ones, one_hot


@attrs
class DynInitAttrs(Attrs):
    dtype: str = ""


@attrs
class DynOneHotAttrs(Attrs):
    axis: int = -1
    dtype: str = ""


def _to_init(a: DynInitAttrs, v: Values) -> Attrs:
    return shape.InitAttrs(shape=_ints(v[0]), dtype=a.dtype)


def _infer_full(a: DynInitAttrs, types: Sequence[Type]) -> Type:
    value = tensor(types[0], "fill value")
    require("full.value", value.rank == 0, lambda: f"the fill value must be a scalar, got {value}")
    return TensorType(_unknown(_length(types[1], "shape")), a.dtype or value.dtype)


def _infer_init(a: DynInitAttrs, types: Sequence[Type]) -> Type:
    return TensorType(_unknown(_length(types[0], "shape")), a.dtype or "float32")


def _infer_one_hot(a: DynOneHotAttrs, types: Sequence[Type]) -> Type:
    _check_scalar(types[3], "depth")
    known = index.ONE_HOT.infer(index.OneHotAttrs(axis=a.axis, dtype=a.dtype), types[:3])
    assert isinstance(known, TensorType)
    axis = axis_of(a.axis, known.rank)
    return TensorType((*known.shape[:axis], SymDim(), *known.shape[axis + 1 :]), known.dtype)


def _init(target: OpDef) -> OpDef:
    return _dynamic(
        target,
        DynInitAttrs,
        1,
        (0,),
        _to_init,
        _infer_init,
        lambda: (_sample(DynInitAttrs(dtype="int32"), [2, 3]), _sample(DynInitAttrs(), [])),
    )


FULL = _dynamic(
    create.FULL,
    DynInitAttrs,
    2,
    (1,),
    _to_init,
    _infer_full,
    lambda: (_sample(DynInitAttrs(dtype="int32"), 2.5, [2, 3]), _sample(DynInitAttrs(), 2.5, [])),
)
ZEROS, ONES = _init(create.ZEROS), _init(create.ONES)
ONE_HOT = _dynamic(
    index.ONE_HOT,
    DynOneHotAttrs,
    4,
    (3,),
    lambda a, v: index.OneHotAttrs(depth=_ints(v[0])[0], axis=a.axis, dtype=a.dtype),
    _infer_one_hot,
    lambda: (
        _sample(DynOneHotAttrs(), [0, 2, 5], 1.0, 0.0, 3),
        _sample(DynOneHotAttrs(axis=0, dtype="int32"), [[0, 1]], 2.0, -1.0, [4]),
    ),
)


def full(fill_value: Expr, shape: Expr, dtype: str = "") -> Call:
    """A tensor of one value whose shape is computed."""
    return node(FULL, (fill_value, shape), DynInitAttrs(dtype=dtype))


def zeros(shape: Expr, dtype: str) -> Call:
    """A tensor of zeros whose shape is computed."""
    return node(ZEROS, (shape,), DynInitAttrs(dtype=dtype))


def ones(shape: Expr, dtype: str) -> Call:
    """A tensor of ones whose shape is computed."""
    return node(ONES, (shape,), DynInitAttrs(dtype=dtype))


def one_hot(indices: Expr, on_value: Expr, off_value: Expr, depth: Expr, axis: int = -1, dtype: str = "") -> Call:
    """`on_value` where a new axis of a computed extent equals the index, `off_value` elsewhere."""
    return node(ONE_HOT, (indices, on_value, off_value, depth), DynOneHotAttrs(axis=axis, dtype=dtype))


# --- strided_slice, topk


@attrs
class DynStridedSliceAttrs(Attrs):
    slice_mode: str = "end"


@attrs
class DynTopkAttrs(Attrs):
    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = ""


def _to_slice(a: DynStridedSliceAttrs, v: Values) -> Attrs:
    begin, end, strides = map(_ints, v)
    return slice.StridedSliceAttrs(begin=begin, end=end, strides=strides, slice_mode=a.slice_mode, axes=None)


def _infer_slice(a: DynStridedSliceAttrs, types: Sequence[Type]) -> Type:
    data = tensor(types[0], "data")
    begin, end, strides = (_length(ty, what) for ty, what in zip(types[1:], ("begin", "end", "strides"), strict=True))
    require("slice.mode", a.slice_mode in ("end", "size"), lambda: f"slice mode {a.slice_mode!r} is unknown")
    fits = begin == end <= data.rank and strides in (1, begin)
    require("slice.count", fits, lambda: f"{begin} begins, {end} ends, {strides} strides for rank {data.rank}")
    return TensorType((*_unknown(begin), *data.shape[begin:]), data.dtype)


def _infer_topk(a: DynTopkAttrs, types: Sequence[Type]) -> Type:
    data = tensor(types[0], "data")
    _check_scalar(types[1], "k")
    axis = axis_of(a.axis, data.rank)
    open_ended = TensorType((*data.shape[:axis], SymDim(), *data.shape[axis + 1 :]), data.dtype)
    return sort.TOPK.infer(_to_topk(a, [np.zeros(())]), [open_ended])


def _to_topk(a: DynTopkAttrs, v: Values) -> Attrs:
    return sort.TopkAttrs(k=_ints(v[0])[0], axis=a.axis, ret_type=a.ret_type, is_ascend=a.is_ascend, dtype=a.dtype)


STRIDED_SLICE = _dynamic(
    slice.STRIDED_SLICE,
    DynStridedSliceAttrs,
    4,
    (1, 2, 3),
    _to_slice,
    _infer_slice,
    lambda: (
        _sample(DynStridedSliceAttrs(), (4, 6), [1, -1], [3, 0], [1, -2]),
        _sample(DynStridedSliceAttrs(slice_mode="size"), (4, 6), [1], [2], [1]),
    ),
)
TOPK = _dynamic(
    sort.TOPK,
    DynTopkAttrs,
    2,
    (1,),
    _to_topk,
    _infer_topk,
    lambda: (
        _sample(DynTopkAttrs(dtype="int64"), (2, 5), 3),
        _sample(DynTopkAttrs(axis=0, ret_type="values", is_ascend=True), (3, 2), [2]),
        _sample(DynTopkAttrs(ret_type="indices"), (4,), 0),
    ),
)


def strided_slice(data: Expr, begin: Expr, end: Expr, strides: Expr | None = None, slice_mode: str = "end") -> Call:
    """data[begin:end:stride] along the leading axes, the bounds being computed; "size": `end` gives extents."""
    if strides is None:
        strides = Constant(np.ones(1, np.int64))
    return node(STRIDED_SLICE, (data, begin, end, strides), DynStridedSliceAttrs(slice_mode=slice_mode))


def topk(
    data: Expr, k: Expr, axis: int = -1, ret_type: str = "both", is_ascend: bool = False, dtype: str = "int32"
) -> Call:
    """The k greatest (least, if `is_ascend`) along an axis, in order; all of them for k < 1."""
    attributes = DynTopkAttrs(axis=axis, ret_type=ret_type, is_ascend=is_ascend, dtype=dtype)
    return node(TOPK, (data, k), attributes)


# --- pad, resize2d, upsampling


@attrs
class DynPadAttrs(Attrs):
    pad_mode: str = "constant"


@attrs
class DynResize2DAttrs(Attrs):
    layout: str = "NCHW"
    method: str = "linear"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = "round"
    cubic_alpha: float = -0.5
    cubic_exclude: int = 0
    extrapolation_value: float = 0.0
    out_dtype: str = ""


@attrs
class DynUpSamplingAttrs(Attrs):
    layout: str = "NCHW"
    method: str = "nearest_neighbor"
    align_corners: bool = False


def _to_pad(a: DynPadAttrs, v: Values) -> Attrs:
    before, after = v[0].reshape(-1, 2).T
    width = tuple(zip(_ints(before), _ints(after), strict=True))
    return padding.PadAttrs(pad_width=width, pad_mode=a.pad_mode)


def _infer_pad(a: DynPadAttrs, types: Sequence[Type]) -> Type:
    data, width = tensor(types[0], "data"), tensor(types[1], "pad_width")
    fits = width.shape == (data.rank, 2) and width.dtype.is_integer
    require("pad.width", fits, lambda: f"pad_width must be integers of shape ({data.rank}, 2), got {width}")
    padding.PAD.infer(padding.PadAttrs(pad_width=((0, 0),) * data.rank, pad_mode=a.pad_mode), (data, types[2]))
    return TensorType(_unknown(data.rank), data.dtype)


def _to_resize(a: DynResize2DAttrs, v: Values) -> Attrs:
    roi = tuple(float(r) for r in v[1].reshape(-1)) or None
    return resize.Resize2DAttrs(size=_ints(v[0]), roi=roi, **dict(a.items()))


def _infer_resize(a: DynResize2DAttrs, types: Sequence[Type]) -> Type:
    roi = tensor(types[2], "roi")
    fits = roi.rank == 1 and roi.dtype.is_float and roi.shape[0] in (0, 4)
    require("resize.roi", fits, lambda: f"roi must be 4 floats, or none, got {roi}")
    require("resize.size", _length(types[1], "size") == 2, lambda: f"size must be 2 integers, got {types[1]}")
    known = _to_resize(a, [np.ones(2), np.zeros(int(roi.static_shape[0]))])
    return _open_space(resize.RESIZE2D.infer(known, types[:1]), a.layout)


def _open_space(known: Type, layout: str) -> Type:
    """A batch of images whose height and width are not known."""
    assert isinstance(known, TensorType)
    space = positions(layout, DATA_LAYOUT[2])[2:]
    return TensorType((SymDim() if k in space else d for k, d in enumerate(known.shape)), known.dtype)


def _to_upsampling(a: DynUpSamplingAttrs, v: Values) -> Attrs:
    scale_h, scale_w = (float(s.reshape(())) for s in v)
    return resize.UpSamplingAttrs(scale_h=scale_h, scale_w=scale_w, **dict(a.items()))


def _infer_upsampling(a: DynUpSamplingAttrs, types: Sequence[Type]) -> Type:
    _check_scalar(types[1], "scale_h", real=True)
    _check_scalar(types[2], "scale_w", real=True)
    return _open_space(resize.UPSAMPLING.infer(_to_upsampling(a, [np.ones(()), np.ones(())]), types[:1]), a.layout)


PAD = _dynamic(
    padding.PAD,
    DynPadAttrs,
    3,
    (1,),
    _to_pad,
    _infer_pad,
    lambda: (
        _sample(DynPadAttrs(), (2, 3), [[1, 0], [0, 2]], 5.0),
        _sample(DynPadAttrs(pad_mode="edge"), (2, 3), [[1, 0], [0, 2]], 0.0),
    ),
)
RESIZE2D = _dynamic(
    resize.RESIZE2D,
    DynResize2DAttrs,
    3,
    (1, 2),
    _to_resize,
    _infer_resize,
    lambda: (
        _sample(DynResize2DAttrs(), (1, 2, 4, 5), [8, 3], np.zeros(0)),
        _sample(
            DynResize2DAttrs(layout="NHWC", coordinate_transformation_mode="tf_crop_and_resize"),
            (1, 4, 5, 2),
            [3, 3],
            np.array([0.1, 0.0, 0.9, 1.0]),
        ),
    ),
)
UPSAMPLING = _dynamic(
    resize.UPSAMPLING,
    DynUpSamplingAttrs,
    3,
    (1, 2),
    _to_upsampling,
    _infer_upsampling,
    lambda: (
        _sample(DynUpSamplingAttrs(), (1, 2, 3, 4), 2.0, 3.0),
        _sample(DynUpSamplingAttrs(layout="NHWC", method="bilinear"), (1, 3, 4, 2), np.array([2.0]), 1.5),
    ),
)


def pad(data: Expr, pad_width: Expr, pad_value: Expr | float = 0.0, pad_mode: str = "constant") -> Call:
    """`data` with (before, after) elements added per axis, numbers that are computed: `pad_width` is (rank, 2)."""
    if isinstance(pad_value, (int, float)):
        pad_value = Constant(np.asarray(pad_value).astype(tensor_type_of(data).dtype.numpy))
    return node(PAD, (data, pad_width, pad_value), DynPadAttrs(pad_mode=pad_mode))


def resize2d(
    data: Expr,
    size: Expr,
    roi: Expr | None = None,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
) -> Call:
    """Images resampled to a size (height, width) that is computed; `roi` has four floats, or none."""
    attributes = DynResize2DAttrs(
        layout=layout,
        method=method,
        coordinate_transformation_mode=coordinate_transformation_mode,
        rounding_method=rounding_method,
        cubic_alpha=cubic_alpha,
        cubic_exclude=cubic_exclude,
        extrapolation_value=extrapolation_value,
        out_dtype=out_dtype,
    )
    region = Constant(np.zeros(0, np.float32)) if roi is None else roi
    return node(RESIZE2D, (data, size, region), attributes)


def upsampling(
    data: Expr,
    scale_h: Expr,
    scale_w: Expr,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Call:
    """Images enlarged by factors that are computed."""
    attributes = DynUpSamplingAttrs(layout=layout, method=method, align_corners=align_corners)
    return node(UPSAMPLING, (data, scale_h, scale_w), attributes)


OPS: tuple[OpDef, ...] = (
    RESHAPE, SQUEEZE, EXPAND_DIMS, BROADCAST_TO, TILE, FULL, ZEROS, ONES, ONE_HOT, STRIDED_SLICE, TOPK,
    PAD, RESIZE2D, UPSAMPLING,
)  # fmt: skip
