# SPDX-License-Identifier: Apache-2.0
"""Dynamic operators, which take shapes as arguments: dyn.reshape, dyn.strided_slice, dyn.nn.pad,
...

reshape(x, shape)                      # shape: a vector of integers, known at run time
reshape.static(attrs, (x, const))      # reshape(x, newshape=(2, 3)): the static operator

Each is derived from the static operator of that name by a call of `_dynamic`, which lists the
attributes that become arguments. Ranks are known at compile time, extents are not. Dynamic
operators have no tensor program: the pass DynamicToStatic replaces calls with constant shapes by
static operators, and the virtual machine executes the remaining ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, NoAttrs, SymDim, TensorType, TupleType, Type, check_rank, frozen, record, tensor_types
from aotc.ir.op import Arg, AxisMap, Precision, Types, require
from aotc.relay.expr import call as node
from aotc.relay.graph_api import Call, Constant, Expr, known_data
from aotc.relay.op import concat_split, gather, resize, shape, slice, sorting, sparse, tensor_creation
from aotc.relay.op import pad as padding
from aotc.relay.op.operator_definition import Array, OpDef, Sample, random_array, signature_of, tensor, types_of

NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def _placeholder(ty: Type, name: str, kind: str) -> Any:
    """Return a valid attribute value for an argument of type `ty`; raise AotcError if the type does
    not fit `kind`.
    """
    given, plain = tensor(ty, name), kind.removesuffix(" | None")
    of_floats, pairs = "float" in plain, "tuple[tuple" in plain
    # integers are accepted for floats
    typed = given.dtype.is_float or (given.dtype.is_integer and not of_floats)
    if plain in ("int", "float"):
        fits = typed and given.shape in ((), (1,))
        require("dyn.scalar", fits, lambda: f"{name} must be {'a float' if of_floats else 'an integer'}, got {given}")
        return int(of_floats)
    fits = typed and given.rank > 0 and isinstance(given.shape[0], int) and given.shape[1:] == ((2,) if pairs else ())
    items = "pairs of integers" if pairs else "floats" if of_floats else "integers"
    require("dyn.vector", fits, lambda: f"{name} must be a vector of {items} of a known length, got {given}")
    length = int(given.static_shape[0])
    check_rank(length)
    if of_floats:
        return (0.0,) * length or None
    # the axes must be distinct
    return tuple(range(length)) if name == "axis" else ((0, 0) if pairs else 1,) * length


def _attribute(value: Array, name: str, kind: str) -> Any:
    """Convert the value of an argument to an attribute of type `kind`."""
    items = tuple(value.reshape(-1).tolist())
    if "int" in kind:
        require("dyn.vector", all(v % 1 == 0 for v in items), f"{name} must be whole numbers, got {items}")
        items = tuple(map(int, items))
    match kind.removesuffix(" | None"):
        case "int" | "float":
            return items[0]
        case "tuple[tuple[int, int], ...]":
            return tuple(zip(items[::2], items[1::2], strict=True))
        case plain:
            return items or (None if "float" in plain else ())


def _argument(name: str, absent: Mapping[str, Array]) -> Arg:
    """Return the argument that replaces an attribute; `absent` has the defaults of optional
    arguments.
    """
    if name not in absent:
        return Arg(name)
    return Arg(name, "Expr | None", None, lambda given, _: Constant(absent[name]) if given is None else given)


def _attributes(static: OpDef, without: Sequence[str]) -> type[Attrs]:
    left = [field for field in dataclasses.fields(static.attrs) if field.name not in without]
    return record(f"Dyn{static.attrs.__name__}", left) if left else NoAttrs


@frozen
class _Twin:
    """The dynamic version of the operator `static`, in which some attributes are arguments.

    args     all arguments
    values   position of each argument that is an attribute of `static`, with the attribute's name and type
    fixed    attributes of `static` that the dynamic version does not have, with their values
    keeps    True if axes that `static` maps one to one have the data's extent for all attribute values;
             if False, no extent of the result is known
    """

    static: OpDef
    args: tuple[Arg, ...]
    values: Mapping[int, tuple[str, str]]
    fixed: Mapping[str, Any]
    keeps: bool

    @property
    def name(self) -> str:
        return f"dyn.{self.static.name}"

    def split(self, a: Attrs, given: Sequence[Any], value: Callable[[Any, str, str], Any]) -> tuple[Attrs, list[Any]]:
        """Return attributes and arguments of `static` for arguments of the dynamic operator.

        value  (argument, name, type) -> attribute value
        """
        found = {name: value(given[k], name, kind) for k, (name, kind) in self.values.items()}
        own = [x for k, x in enumerate(given) if k not in self.values]
        return self.static.attrs(**self.fixed, **found, **dict(a.items())), own

    def infer(self, a: Any, types: Types) -> Type:
        """Return the result type for shape arguments of the given length but unknown values."""
        attributes, own = self.split(a, types, _placeholder)
        # extents of 1 are valid for all attribute values
        if not self.keeps and self.args[0].name == "data":
            data = tensor(own[0], "data")
            own[0] = TensorType((1,) * data.rank, data.dtype)
        result = self.static.infer(attributes, own)
        axis_map = self.static.axes(attributes, own) if self.keeps and self.static.axes is not None else None
        walked = axis_map.inputs[0] if axis_map is not None else repeat(None)
        opened = [
            TensorType((SymDim() if axis is None else d for axis, d in zip(walked, t.shape, strict=False)), t.dtype)
            for t in tensor_types(result)
        ]
        return TupleType(opened) if isinstance(result, TupleType) else opened[0]

    def reference(self, a: Any, *given: Array) -> Any:
        attributes, own = self.split(a, given, _attribute)
        found = self.static.infer(attributes, types_of(own))
        _check_rank(self.name, self.infer(a, types_of(given)), found)
        return self.static.reference(attributes, *own)

    def to_static(self, a: Any, given: Sequence[Expr]) -> Call | None:
        known = [known_data(x) if k in self.values else x for k, x in enumerate(given)]
        if any(x is None for x in known):
            return None
        attributes, own = self.split(a, known, _attribute)
        result = node(self.static, own, attributes)
        if result.checked_type is not None:
            types = [x.checked_type for x in given]
            _check_rank(self.name, self.infer(a, [t for t in types if t is not None]), result.checked_type)
        return result

    def axes(self, a: Any, types: Types) -> AxisMap | None:
        result = self.infer(a, types)
        return AxisMap(((None,) * result.rank,)) if isinstance(result, TensorType) else None


def _dynamic(
    static: OpDef,
    values: str,
    samples: Sequence[Any],
    *,
    absent: Mapping[str, Array] = NONE,
    fixed: Mapping[str, Any] = NONE,
    keeps: bool = False,
) -> OpDef:
    """Return the dynamic version of `static`, with the attributes named in `values` as arguments.

    samples   (attributes, *arguments): tuples are shapes of random data, lists are integer vectors
    absent    default values of optional arguments
    fixed     see `_Twin`
    keeps     see `_Twin`
    """
    order = [p for p in signature_of(static).parameters if p not in fixed]
    own = {a.name: a for a in static.args}
    args = tuple(own.get(p) or _argument(p, absent) for p in order if p in own or p in values.split())
    kinds = {f.name: str(f.type) for f in dataclasses.fields(static.attrs)}
    places = {k: (a.name, kinds[a.name]) for k, a in enumerate(args) if a.name not in own}
    attributes = _attributes(static, [*values.split(), *fixed])
    twin = _Twin(static, args, places, fixed, keeps)
    return OpDef(
        name=twin.name,
        doc=f"{static.doc}\n\nThe values of {', '.join(values.split())} may be known only when the program runs.",
        attrs=attributes,
        args=args,
        order=" ".join(order),
        infer=twin.infer,
        reference=twin.reference,
        axes=twin.axes,
        # scale arguments must not be rounded to float16
        precision=Precision.NEVER
        if static in (resize.resize2d, resize.upsampling, resize.upsampling3d)
        else static.precision_kind,
        static=twin.to_static,
        samples=lambda: (_sample(attributes(**fields), *given) for fields, *given in samples),
    )


def _check_rank(name: str, promised: Type, found: Type) -> None:
    """Raise AotcError if the rank of the result differs from the inferred one, as with -2 in a
    shape argument.
    """
    if isinstance(promised, TensorType) and isinstance(found, TensorType):
        same = promised.rank == found.rank
        require("dyn.rank", same, lambda: f"{name}: the values give {found}, which is not of rank {promised.rank}")


def _sample(attributes: Attrs, *args: Any) -> Sample:
    """Return a sample: tuples are shapes of random data, lists are integer vectors, other values
    are arrays.
    """

    def array(v: Any) -> Array:
        kind = np.int64 if isinstance(v, (list, int)) else np.float32
        return random_array(v) if isinstance(v, tuple) else np.asarray(v, kind)

    return Sample(args=tuple(map(array, args)), attrs=attributes)


# --- the operators


reshape = _dynamic(
    shape.reshape,
    "newshape",
    (({}, (2, 6), [3, 4]), ({}, (2, 6), [0, -1, 2]), ({}, (1, 1), []), ({"allowzero": True}, (0, 2), [3, 0])),
)
squeeze = _dynamic(shape.squeeze, "axis", (({}, (1, 3, 1), [0, -1]), ({}, (2, 1), [1]), ({}, (1, 2), [])))
expand_dims = _dynamic(shape.expand_dims, "axis", (({}, (2, 3), -1), ({"num_newaxis": 2}, (2, 3), [1])))
broadcast_to = _dynamic(shape.broadcast_to, "shape", (({}, (3, 1), [2, 3, 4]), ({}, (), [2])), fixed={"dtype": ""})
tile = _dynamic(concat_split.tile, "reps", (({}, (2, 3), [2]), ({}, (2,), [2, 1, 3])))
full = _dynamic(tensor_creation.full, "shape", (({"dtype": "int32"}, 2.5, [2, 3]), ({}, 2.5, [])))
_FILLED: Any = (({"dtype": "int32"}, [2, 3]), ({}, []))
zeros = _dynamic(tensor_creation.zeros, "shape", _FILLED)
ones = _dynamic(tensor_creation.ones, "shape", _FILLED)
one_hot = _dynamic(
    gather.one_hot,
    "depth",
    (({}, [0, 2, 5], 1.0, 0.0, 3), ({"axis": 0, "dtype": "int32"}, [[0, 1]], 2.0, -1.0, [4])),
    keeps=True,
)
strided_slice = _dynamic(
    slice.strided_slice,
    "begin end strides",
    (({}, (4, 6), [1, -1], [3, 0], [1, -2]), ({"slice_mode": "size"}, (4, 6), [1], [2], [1])),
    absent={"strides": np.ones(1, np.int64)},
    fixed={"axes": None},
    keeps=True,
)
topk = _dynamic(
    sorting.topk,
    "k",
    (
        ({"dtype": "int64"}, (2, 5), 3),
        ({"axis": 0, "ret_type": "values", "is_ascend": True}, (3, 2), [2]),
        ({"ret_type": "indices"}, (4,), 0),
    ),
    keeps=True,
)
sparse_to_dense = _dynamic(
    sparse.sparse_to_dense, "output_shape", (({}, [[0, 1], [2, 2]], [3, 4], (2,), 0.5), ({}, [1, 3], [5], 2.0, 0.0))
)
pad = _dynamic(
    padding.pad,
    "pad_width",
    (({}, (2, 3), [[1, 0], [0, 2]], 5.0), ({"pad_mode": "edge"}, (2, 3), [[1, 0], [0, 2]], 0.0)),
)
_CROP: Final = {"layout": "NHWC", "coordinate_transformation_mode": "tf_crop_and_resize"}
resize2d = _dynamic(
    resize.resize2d,
    "size roi",
    (({}, (1, 2, 4, 5), [8, 3], np.zeros(0)), (_CROP, (1, 4, 5, 2), [3, 3], np.array([0.1, 0.0, 0.9, 1.0]))),
    absent={"roi": np.zeros(0, np.float32)},
    fixed={"scales": None, "antialias": False},
    keeps=True,
)
upsampling3d = _dynamic(
    resize.upsampling3d,
    "scale_d scale_h scale_w",
    (
        ({}, (1, 1, 2, 3, 2), 2.0, 3.0, 1.0),
        ({"layout": "NDHWC", "method": "trilinear"}, (1, 2, 3, 2, 1), 1.0, 2.0, 1.5),
    ),
    keeps=True,
)
upsampling = _dynamic(
    resize.upsampling,
    "scale_h scale_w",
    (({}, (1, 2, 3, 4), 2.0, 3.0), ({"layout": "NHWC", "method": "bilinear"}, (1, 3, 4, 2), np.array([2.0]), 1.5)),
    keeps=True,
)
