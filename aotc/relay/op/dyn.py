# SPDX-License-Identifier: Apache-2.0
"""Operators whose shapes are arguments: dyn.reshape, dyn.strided_slice, dyn.nn.pad, ...

reshape(x, shape)                      # shape: a vector of integers, known when the program runs
reshape.static(attrs, (x, const))      # reshape(x, newshape=(2, 3)): the operator of a shape that is known

Each is made from the operator of that name by one call, which says what attributes
become arguments.  Ranks are known, dimensions are not.  They have no tensor program:
DynamicToStatic turns them into the static ones, and what remains runs on the virtual
machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from aotc.ir import Attrs, Dim, DType, NoAttrs, SymDim, TensorType, Type, check_rank, record
from aotc.ir.op import Arg, AxisMap, Infer, Precision, Types, require
from aotc.relay.expr import Call, Constant, Expr, known_data
from aotc.relay.expr import call as node
from aotc.relay.op import create, index, join, resize, shape, slice, sort
from aotc.relay.op import pad as padding
from aotc.relay.op.opdef import Array, OpDef, Sample
from aotc.relay.op.resample import ResizeAttrs
from aotc.relay.op.rows import replaced
from aotc.relay.op.rules import axis_of, scalar, tensor
from aotc.relay.op.samples import random_array
from aotc.relay.op.signature import signature_of
from aotc.relay.op.window import DATA_LAYOUT, positions

T = TypeVar("T")
NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def _length(ty: Type, what: str) -> int:
    """The extent of a vector of integers, which must be known."""
    vector = tensor(ty, what)
    fits = vector.rank == 1 and vector.dtype.is_integer and isinstance(vector.shape[0], int)
    require("dyn.vector", fits, lambda: f"{what} must be a vector of integers of a known length, got {vector}")
    return int(vector.static_shape[0])


def _check_scalar(ty: Type, what: str, real: bool = False) -> None:
    """One number, as a scalar or a vector of length 1."""
    given = tensor(ty, what)
    fits = given.shape in ((), (1,)) and (given.dtype.is_float if real else given.dtype.is_integer)
    require("dyn.scalar", fits, lambda: f"{what} must be {'a float' if real else 'an integer'}, got {given}")


def _unknown(count: int) -> tuple[Dim, ...]:
    check_rank(count)
    return tuple(SymDim() for _ in range(count))


def _attribute(kind: str, value: Array) -> Any:
    """The attribute of a type that an argument's value stands for."""
    items = tuple(value.reshape(-1).tolist())
    match kind.removesuffix(" | None"):
        case "int" | "float":
            return items[0]
        case "tuple[tuple[int, int], ...]":
            return tuple(zip(items[::2], items[1::2], strict=True))
        case plain:
            return items or (None if "float" in plain else ())


def _argument(name: str, absent: Mapping[str, Array]) -> Arg:
    """The argument that an attribute becomes; `absent` has what stands for None."""
    if name not in absent:
        return Arg(name)
    return Arg(name, "Expr | None", None, lambda given, _: Constant(absent[name]) if given is None else given)


def _attributes(static: OpDef, without: Sequence[str]) -> type[Attrs]:
    left = [field for field in dataclasses.fields(static.attrs) if field.name not in without]
    return record(f"Dyn{static.attrs.__name__}", left) if left else NoAttrs


@dataclass(frozen=True, slots=True)
class _Twin:
    """The operator `static` with some attributes as arguments.

    infer    (attributes, argument types) -> result type, of unknown dimensions
    args     all arguments
    places   which of them are attributes of `static`
    fixed    attributes of `static` that cannot be given
    """

    static: OpDef
    infer: Infer
    args: tuple[Arg, ...]
    places: Mapping[int, str]
    fixed: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"dyn.{self.static.name}"

    def split(self, a: Attrs, given: Sequence[T], value: Callable[[T], Array | None]) -> tuple[Attrs, list[T]] | None:
        """The attributes and arguments of `static`; None where an attribute's value is not known."""
        kinds = {f.name: str(f.type) for f in dataclasses.fields(self.static.attrs)}
        found = {}
        for k, name in self.places.items():
            data = value(given[k])
            if data is None:
                return None
            found[name] = _attribute(kinds[name], data)
        attributes = self.static.attrs(**self.fixed, **found, **dict(a.items()))
        return attributes, [x for k, x in enumerate(given) if k not in self.places]

    def reference(self, a: Any, *given: Array) -> Any:
        parts = self.split(a, given, lambda x: x)
        assert parts is not None
        attributes, own = parts
        found = self.static.infer(attributes, [TensorType(x.shape, DType.of(x)) for x in own])
        _check_rank(self.name, self.infer(a, [TensorType(x.shape, DType.of(x)) for x in given]), found)
        return self.static.reference(attributes, *own)

    def to_static(self, a: Any, given: Sequence[Expr]) -> Call | None:
        parts = self.split(a, given, known_data)
        if parts is None:
            return None
        result = node(self.static, parts[1], parts[0])
        if result.checked_type is not None:
            types = [x.checked_type for x in given]
            _check_rank(self.name, self.infer(a, [t for t in types if t is not None]), result.checked_type)
        return result

    def axes(self, a: Any, types: Types) -> AxisMap | None:
        result = self.infer(a, types)
        return AxisMap(((None,) * result.rank,) * len(self.args)) if isinstance(result, TensorType) else None


def _dynamic(
    static: OpDef, values: str, infer: Infer, samples: Sequence[Any], absent: Any = NONE, fixed: Any = NONE
) -> OpDef:
    """The operator `static` with the attributes called `values` as arguments; `infer` and `fixed` as in `_Twin`.

    samples   (attributes, *arguments): shapes stand for random data, lists of integers for vectors
    absent    what stands for arguments that are not given
    """
    order = [p for p in signature_of(static).parameters if p not in fixed]
    own = {a.name: a for a in static.args}
    args = tuple(own.get(p) or _argument(p, absent) for p in order if p in own or p in values.split())
    places = {k: a.name for k, a in enumerate(args) if a.name not in own}
    attributes = _attributes(static, [*values.split(), *fixed])
    twin = _Twin(static, infer, args, places, fixed)
    return OpDef(
        name=twin.name,
        doc=f"{static.doc}\n\nThe values of {', '.join(values.split())} may be known only when the program runs.",
        attrs=attributes,
        args=args,
        order=" ".join(order),
        infer=infer,
        reference=twin.reference,
        axes=twin.axes,
        # scales as arguments must be exact
        precision=Precision.NEVER if static in (resize.resize2d, resize.upsampling) else static.precision_kind,
        static=twin.to_static,
        samples=lambda: (_sample(attributes(**fields), *given) for fields, *given in samples),
    )


def _check_rank(name: str, promised: Type, found: Type) -> None:
    """Values such as -2 in a shape may stand for several dimensions: then the rank would be another."""
    if isinstance(promised, TensorType) and isinstance(found, TensorType):
        same = promised.rank == found.rank
        require("dyn.rank", same, lambda: f"{name}: the values give {found}, which is not of rank {promised.rank}")


def _sample(attributes: Attrs, *args: Any) -> Sample:
    """A sample: shapes stand for random data, lists of integers for vectors, everything else is an array."""

    def array(v: Any) -> Array:
        kind = np.int64 if isinstance(v, (list, int)) else np.float32
        return random_array(v) if isinstance(v, tuple) else np.asarray(v, kind)

    return Sample(args=tuple(map(array, args)), attrs=attributes)


# --- reshape, squeeze, expand_dims, broadcast_to, tile


def _infer_reshape(_: Any, types: Types) -> Type:
    return TensorType(_unknown(_length(types[1], "newshape")), tensor(types[0], "data").dtype)


def _infer_squeeze(_: Any, types: Types) -> Type:
    data, count = tensor(types[0], "data"), _length(types[1], "axis")
    require("squeeze.axis", count <= data.rank, lambda: f"{count} axes of {data}")
    return TensorType(_unknown(data.rank - count), data.dtype)


def _infer_expand(a: Any, types: Types) -> Type:
    data = tensor(types[0], "data")
    _check_scalar(types[1], "axis")
    require("expand_dims.count", a.num_newaxis >= 0, f"num_newaxis is {a.num_newaxis}")
    return TensorType(_unknown(data.rank + a.num_newaxis), data.dtype)


def _infer_broadcast(_: Any, types: Types) -> Type:
    data, count = tensor(types[0], "data"), _length(types[1], "shape")
    require("broadcast", data.rank <= count, lambda: f"{data} does not broadcast to rank {count}")
    return TensorType(_unknown(count), data.dtype)


def _infer_tile(_: Any, types: Types) -> Type:
    data, count = tensor(types[0], "data"), _length(types[1], "reps")
    return TensorType(_unknown(max(data.rank, count)), data.dtype)


reshape = _dynamic(
    shape.reshape,
    "newshape",
    _infer_reshape,
    (({}, (2, 6), [3, 4]), ({}, (2, 6), [0, -1, 2]), ({}, (1, 1), []), ({"allowzero": True}, (0, 2), [3, 0])),
)
squeeze = _dynamic(
    shape.squeeze, "axis", _infer_squeeze, (({}, (1, 3, 1), [0, -1]), ({}, (2, 1), [1]), ({}, (1, 2), []))
)
expand_dims = _dynamic(shape.expand_dims, "axis", _infer_expand, (({}, (2, 3), -1), ({"num_newaxis": 2}, (2, 3), [1])))
broadcast_to = _dynamic(
    shape.broadcast_to, "shape", _infer_broadcast, (({}, (3, 1), [2, 3, 4]), ({}, (), [2])), fixed={"dtype": ""}
)
tile = _dynamic(join.tile, "reps", _infer_tile, (({}, (2, 3), [2]), ({}, (2,), [2, 1, 3])))


# --- full, zeros, ones, one_hot


def _infer_full(a: Any, types: Types) -> Type:
    value = scalar("full.value", types[0], "fill value")
    return TensorType(_unknown(_length(types[1], "shape")), a.dtype or value.dtype)


def _infer_init(a: Any, types: Types) -> Type:
    return TensorType(_unknown(_length(types[0], "shape")), a.dtype or "float32")


def _infer_one_hot(a: Any, types: Types) -> Type:
    _check_scalar(types[3], "depth")
    known = index.one_hot.infer(index.OneHotAttrs(axis=a.axis, dtype=a.dtype), types[:3])
    assert isinstance(known, TensorType)
    return TensorType(replaced(known.shape, axis_of(a.axis, known.rank), SymDim()), known.dtype)


full = _dynamic(create.full, "shape", _infer_full, (({"dtype": "int32"}, 2.5, [2, 3]), ({}, 2.5, [])))
_FILLED: Any = (({"dtype": "int32"}, [2, 3]), ({}, []))
zeros = _dynamic(create.zeros, "shape", _infer_init, _FILLED)
ones = _dynamic(create.ones, "shape", _infer_init, _FILLED)
one_hot = _dynamic(
    index.one_hot,
    "depth",
    _infer_one_hot,
    (({}, [0, 2, 5], 1.0, 0.0, 3), ({"axis": 0, "dtype": "int32"}, [[0, 1]], 2.0, -1.0, [4])),
)


# --- strided_slice, topk


def _infer_slice(a: Any, types: Types) -> Type:
    data = tensor(types[0], "data")
    begin, end, strides = (_length(ty, what) for ty, what in zip(types[1:], ("begin", "end", "strides"), strict=True))
    require("slice.mode", a.slice_mode in ("end", "size"), f"slice mode {a.slice_mode!r} is unknown")
    fits = begin == end <= data.rank and strides in (1, begin)
    require("slice.count", fits, lambda: f"{begin} begins, {end} ends, {strides} strides for rank {data.rank}")
    return TensorType((*_unknown(begin), *data.shape[begin:]), data.dtype)


def _infer_topk(a: Any, types: Types) -> Type:
    data = tensor(types[0], "data")
    _check_scalar(types[1], "k")
    open_ended = TensorType(replaced(data.shape, axis_of(a.axis, data.rank), SymDim()), data.dtype)
    return sort.topk.infer(sort.TopkAttrs(k=0, **dict(a.items())), [open_ended])


strided_slice = _dynamic(
    slice.strided_slice,
    "begin end strides",
    _infer_slice,
    (({}, (4, 6), [1, -1], [3, 0], [1, -2]), ({"slice_mode": "size"}, (4, 6), [1], [2], [1])),
    absent={"strides": np.ones(1, np.int64)},
    fixed={"axes": None},
)
topk = _dynamic(
    sort.topk,
    "k",
    _infer_topk,
    (
        ({"dtype": "int64"}, (2, 5), 3),
        ({"axis": 0, "ret_type": "values", "is_ascend": True}, (3, 2), [2]),
        ({"ret_type": "indices"}, (4,), 0),
    ),
)


# --- pad, resize2d, upsampling


def _infer_pad(a: Any, types: Types) -> Type:
    data, width = tensor(types[0], "data"), tensor(types[1], "pad_width")
    fits = width.shape == (data.rank, 2) and width.dtype.is_integer
    require("pad.width", fits, lambda: f"pad_width must be integers of shape ({data.rank}, 2), got {width}")
    padding.pad.infer(padding.PadAttrs(pad_width=((0, 0),) * data.rank, pad_mode=a.pad_mode), (data, types[2]))
    return TensorType(_unknown(data.rank), data.dtype)


def _infer_resize(a: Any, types: Types) -> Type:
    roi = tensor(types[2], "roi")
    fits = roi.rank == 1 and roi.dtype.is_float and roi.shape[0] in (0, 4)
    require("resize.roi", fits, lambda: f"roi must be 4 floats, or none, got {roi}")
    require("resize.size", _length(types[1], "size") == 2, lambda: f"size must be 2 integers, got {types[1]}")
    region = (0.0,) * 4 if roi.shape[0] else None
    known = ResizeAttrs(size=(1, 1), roi=region, **dict(a.items()))
    return _open_space(resize.resize2d.infer(known, types[:1]), a.layout)


def _open_space(known: Type, layout: str) -> Type:
    """A batch of images whose height and width are not known."""
    assert isinstance(known, TensorType)
    space = positions(layout, DATA_LAYOUT[2])[2:]
    return TensorType((SymDim() if k in space else d for k, d in enumerate(known.shape)), known.dtype)


def _infer_upsampling(a: Any, types: Types) -> Type:
    _check_scalar(types[1], "scale_h", real=True)
    _check_scalar(types[2], "scale_w", real=True)
    known = resize.UpSamplingAttrs(scale_h=1.0, scale_w=1.0, **dict(a.items()))
    return _open_space(resize.upsampling.infer(known, types[:1]), a.layout)


pad = _dynamic(
    padding.pad,
    "pad_width",
    _infer_pad,
    (({}, (2, 3), [[1, 0], [0, 2]], 5.0), ({"pad_mode": "edge"}, (2, 3), [[1, 0], [0, 2]], 0.0)),
)
_CROP: Final = {"layout": "NHWC", "coordinate_transformation_mode": "tf_crop_and_resize"}
resize2d = _dynamic(
    resize.resize2d,
    "size roi",
    _infer_resize,
    (({}, (1, 2, 4, 5), [8, 3], np.zeros(0)), (_CROP, (1, 4, 5, 2), [3, 3], np.array([0.1, 0.0, 0.9, 1.0]))),
    absent={"roi": np.zeros(0, np.float32)},
    fixed={"scales": None, "antialias": False},
)
upsampling = _dynamic(
    resize.upsampling,
    "scale_h scale_w",
    _infer_upsampling,
    (({}, (1, 2, 3, 4), 2.0, 3.0), ({"layout": "NHWC", "method": "bilinear"}, (1, 3, 4, 2), np.array([2.0]), 1.5)),
)
