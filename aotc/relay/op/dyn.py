# SPDX-License-Identifier: Apache-2.0
"""Dynamic operators, which take shapes as arguments: dyn.reshape, dyn.strided_slice, dyn.nn.pad,
...

reshape(x, shape)                      # shape: a vector of integers, known at run time
reshape.static(attrs, (x, const))      # reshape(x, newshape=(2, 3)): the static operator

Each is derived from the static operator of that name by a call of `_dynamic_variant_of`, which
lists the attributes that become arguments. Ranks are known at compile time, extents are not.
Dynamic operators have no tensor program: the pass DynamicToStatic replaces calls with constant
shapes by static operators, and the virtual machine executes the remaining ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    NoAttrs,
    SymDim,
    TensorType,
    TupleType,
    Type,
    attrs_class_from_fields,
    check_rank,
    frozen,
    tensor_types,
)
from aotc.ir.op import Arg, AxisMap, PrecisionTreatment, Types, require
from aotc.relay.expr import typed_op_call as node
from aotc.relay.graph_api import Call, Constant, Expr, compile_time_elements
from aotc.relay.op import concat_split, gather, resize, shape, slice, sorting, sparse_coordinates, tensor_creation
from aotc.relay.op import pad as padding
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    builder_signature_of,
    random_array,
    require_tensor_type,
    tensor_types_of_values,
)

EMPTY_MAPPING: Final[Mapping[str, Any]] = MappingProxyType({})


def _plain_attribute_type(attribute_type: str) -> str:
    """Return the type of an attribute for numbers that are known."""
    return attribute_type.removesuffix(" | None").replace("int | SymDim", "int")


def _placeholder_attribute_value(ty: Type, name: str, attribute_type: str) -> Any:
    """Return a valid attribute value for an argument of type `ty`; raise AotcError if the type does
    not fit `attribute_type`.
    """
    given, plain = require_tensor_type(ty, name), _plain_attribute_type(attribute_type)
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


def _array_to_attribute(value: Array, name: str, attribute_type: str) -> Any:
    """Convert the value of an argument to an attribute of type `attribute_type`."""
    items = tuple(value.reshape(-1).tolist())
    if "int" in attribute_type:
        require("dyn.vector", all(v % 1 == 0 for v in items), f"{name} must be whole numbers, got {items}")
        items = tuple(map(int, items))
    match _plain_attribute_type(attribute_type):
        case "int" | "float":
            return items[0]
        case "tuple[tuple[int, int], ...]":
            return tuple(zip(items[::2], items[1::2], strict=True))
        case plain:
            return items or (None if "float" in plain else ())


def _argument_replacing_attribute(name: str, defaults: Mapping[str, Array]) -> Arg:
    """Return the argument that replaces an attribute; `defaults` has the defaults of optional
    arguments.
    """
    if name not in defaults:
        return Arg(name)
    return Arg(name, "Expr | None", None, lambda given, _: Constant(defaults[name]) if given is None else given)


def _attrs_class_without_fields(static_op: OpDef, removed_names: Sequence[str]) -> type[Attrs]:
    left = [field for field in dataclasses.fields(static_op.attrs) if field.name not in removed_names]
    static = static_op.attrs
    return attrs_class_from_fields(f"Dyn{static.__name__}", left, static.__module__) if left else NoAttrs


@frozen
class _DynamicVariant:
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
    def dynamic_operator_name(self) -> str:
        return f"dyn.{self.static.name}"

    def to_static_attrs_and_args(
        self, attrs: Attrs, arguments: Sequence[Any], to_attribute_value: Callable[[Any, str, str], Any]
    ) -> tuple[Attrs, list[Any]]:
        """Return attributes and arguments of `static` for arguments of the dynamic operator.

        to_attribute_value    (argument, name, type) -> attribute value
        """
        attribute_values = {
            name: to_attribute_value(arguments[k], name, kind) for k, (name, kind) in self.values.items()
        }
        static_args = [x for k, x in enumerate(arguments) if k not in self.values]
        return self.static.attrs(**self.fixed, **attribute_values, **dict(attrs.items())), static_args

    def infer_type_with_dynamic_extents(self, attrs: Any, types: Types) -> Type:
        """Return the result type for shape arguments of the given length but unknown values."""
        attributes, static_types = self.to_static_attrs_and_args(attrs, types, _placeholder_attribute_value)
        # extents of 1 are valid for all attribute values
        if not self.keeps and self.args[0].name == "data":
            data = require_tensor_type(static_types[0], "data")
            static_types[0] = TensorType((1,) * data.rank, data.dtype)
        result = self.static.infer(attributes, static_types)
        axis_map = self.static.axes(attributes, static_types) if self.keeps and self.static.axes is not None else None
        walked = axis_map.inputs[0] if axis_map is not None else repeat(None)
        opened = [
            TensorType((SymDim() if axis is None else d for axis, d in zip(walked, t.shape, strict=False)), t.dtype)
            for t in tensor_types(result)
        ]
        return TupleType(opened) if isinstance(result, TupleType) else opened[0]

    def evaluate_dynamic_reference(self, attrs: Any, *arguments: Array) -> Any:
        attributes, static_args = self.to_static_attrs_and_args(attrs, arguments, _array_to_attribute)
        static_type = self.static.infer(attributes, tensor_types_of_values(static_args))
        _check_inferred_rank(
            self.dynamic_operator_name,
            self.infer_type_with_dynamic_extents(attrs, tensor_types_of_values(arguments)),
            static_type,
        )
        return self.static.reference(attributes, *static_args)

    def to_static_call_or_none(self, attrs: Any, arguments: Sequence[Expr]) -> Call | None:
        known = [compile_time_elements(x) if k in self.values else x for k, x in enumerate(arguments)]
        if any(x is None for x in known):
            return None
        attributes, static_args = self.to_static_attrs_and_args(attrs, known, _array_to_attribute)
        result = node(self.static, static_args, attributes)
        if result.checked_type is not None:
            types = [x.checked_type for x in arguments]
            _check_inferred_rank(
                self.dynamic_operator_name,
                self.infer_type_with_dynamic_extents(attrs, [t for t in types if t is not None]),
                result.checked_type,
            )
        return result

    def dynamic_axis_map(self, attrs: Any, types: Types) -> AxisMap | None:
        result = self.infer_type_with_dynamic_extents(attrs, types)
        return AxisMap(((None,) * result.rank,)) if isinstance(result, TensorType) else None


def _dynamic_variant_of(
    static_op: OpDef,
    attributes_as_arguments: str,
    samples: Sequence[Any],
    *,
    argument_defaults: Mapping[str, Array] = EMPTY_MAPPING,
    fixed_attributes: Mapping[str, Any] = EMPTY_MAPPING,
    keeps_mapped_extents: bool = False,
) -> OpDef:
    """Return the dynamic version of `static_op`, with the attributes named in
    `attributes_as_arguments` as arguments.

    samples                 (attributes, *arguments): tuples are shapes of random data, lists are integer
                            vectors
    argument_defaults       default values of optional arguments
    fixed_attributes        see `_DynamicVariant`
    keeps_mapped_extents    see `_DynamicVariant`
    """
    order = [p for p in builder_signature_of(static_op).parameters if p not in fixed_attributes]
    static_args = {a.name: a for a in static_op.args}
    args = tuple(
        static_args.get(p) or _argument_replacing_attribute(p, argument_defaults)
        for p in order
        if p in static_args or p in attributes_as_arguments.split()
    )
    kinds = {f.name: str(f.type) for f in dataclasses.fields(static_op.attrs)}
    places = {k: (a.name, kinds[a.name]) for k, a in enumerate(args) if a.name not in static_args}
    attributes = _attrs_class_without_fields(static_op, [*attributes_as_arguments.split(), *fixed_attributes])
    twin = _DynamicVariant(static_op, args, places, fixed_attributes, keeps_mapped_extents)
    return OpDef(
        name=twin.dynamic_operator_name,
        doc=f"{static_op.doc}\n\nThe values of "
        f"{', '.join(attributes_as_arguments.split())} may be known only when the program runs.",
        attrs=attributes,
        args=args,
        order=" ".join(order),
        infer=twin.infer_type_with_dynamic_extents,
        reference=twin.evaluate_dynamic_reference,
        axes=twin.dynamic_axis_map,
        # scale arguments must not be rounded to float16
        precision=PrecisionTreatment.NEVER
        if static_op in (resize.resize2d, resize.upsampling, resize.upsampling3d)
        else static_op.precision_treatment,
        static=twin.to_static_call_or_none,
        samples=lambda: (_sample_of_shapes_and_values(attributes(**fields), *given) for fields, *given in samples),
    )


def _check_inferred_rank(name: str, inferred: Type, actual: Type) -> None:
    """Raise AotcError if the rank of the result differs from the inferred one, as with -2 in a
    shape argument.
    """
    if isinstance(inferred, TensorType) and isinstance(actual, TensorType):
        same = inferred.rank == actual.rank
        require("dyn.rank", same, lambda: f"{name}: the values give {actual}, which is not of rank {inferred.rank}")


def _sample_of_shapes_and_values(attributes: Attrs, *args: Any) -> Sample:
    """Return a sample: tuples are shapes of random data, lists are integer vectors, other values
    are arrays.
    """

    def shape_or_value_to_sample_array(v: Any) -> Array:
        kind = np.int64 if isinstance(v, (list, int)) else np.float32
        return random_array(v) if isinstance(v, tuple) else np.asarray(v, kind)

    return Sample(args=tuple(map(shape_or_value_to_sample_array, args)), attrs=attributes)


# --- the operators


reshape = _dynamic_variant_of(
    shape.reshape,
    "newshape",
    (({}, (2, 6), [3, 4]), ({}, (2, 6), [0, -1, 2]), ({}, (1, 1), []), ({"allowzero": True}, (0, 2), [3, 0])),
)
squeeze = _dynamic_variant_of(shape.squeeze, "axis", (({}, (1, 3, 1), [0, -1]), ({}, (2, 1), [1]), ({}, (1, 2), [])))
expand_dims = _dynamic_variant_of(shape.expand_dims, "axis", (({}, (2, 3), -1), ({"num_newaxis": 2}, (2, 3), [1])))
broadcast_to = _dynamic_variant_of(
    shape.broadcast_to, "shape", (({}, (3, 1), [2, 3, 4]), ({}, (), [2])), fixed_attributes={"dtype": ""}
)
tile = _dynamic_variant_of(concat_split.tile, "reps", (({}, (2, 3), [2]), ({}, (2,), [2, 1, 3])))
full = _dynamic_variant_of(tensor_creation.full, "shape", (({"dtype": "int32"}, 2.5, [2, 3]), ({}, 2.5, [])))
_FILL_TEST_CASES: Any = (({"dtype": "int32"}, [2, 3]), ({}, []))
zeros = _dynamic_variant_of(tensor_creation.zeros, "shape", _FILL_TEST_CASES)
ones = _dynamic_variant_of(tensor_creation.ones, "shape", _FILL_TEST_CASES)
one_hot = _dynamic_variant_of(
    gather.one_hot,
    "depth",
    (({}, [0, 2, 5], 1.0, 0.0, 3), ({"axis": 0, "dtype": "int32"}, [[0, 1]], 2.0, -1.0, [4])),
    keeps_mapped_extents=True,
)
strided_slice = _dynamic_variant_of(
    slice.strided_slice,
    "begin end strides",
    (({}, (4, 6), [1, -1], [3, 0], [1, -2]), ({"slice_mode": "size"}, (4, 6), [1], [2], [1])),
    argument_defaults={"strides": np.ones(1, np.int64)},
    fixed_attributes={"axes": None},
    keeps_mapped_extents=True,
)
topk = _dynamic_variant_of(
    sorting.topk,
    "k",
    (
        ({"dtype": "int64"}, (2, 5), 3),
        ({"axis": 0, "ret_type": "values", "is_ascend": True}, (3, 2), [2]),
        ({"ret_type": "indices"}, (4,), 0),
    ),
    keeps_mapped_extents=True,
)
sparse_to_dense = _dynamic_variant_of(
    sparse_coordinates.sparse_to_dense,
    "output_shape",
    (({}, [[0, 1], [2, 2]], [3, 4], (2,), 0.5), ({}, [1, 3], [5], 2.0, 0.0)),
)
pad = _dynamic_variant_of(
    padding.pad,
    "pad_width",
    (({}, (2, 3), [[1, 0], [0, 2]], 5.0), ({"pad_mode": "edge"}, (2, 3), [[1, 0], [0, 2]], 0.0)),
)
_CROP_SAMPLE_ATTRS: Final = {"layout": "NHWC", "coordinate_transformation_mode": "tf_crop_and_resize"}
resize2d = _dynamic_variant_of(
    resize.resize2d,
    "size roi",
    (
        ({}, (1, 2, 4, 5), [8, 3], np.zeros(0)),
        (_CROP_SAMPLE_ATTRS, (1, 4, 5, 2), [3, 3], np.array([0.1, 0.0, 0.9, 1.0])),
    ),
    argument_defaults={"roi": np.zeros(0, np.float32)},
    fixed_attributes={"scales": None, "antialias": False},
    keeps_mapped_extents=True,
)
upsampling3d = _dynamic_variant_of(
    resize.upsampling3d,
    "scale_d scale_h scale_w",
    (
        ({}, (1, 1, 2, 3, 2), 2.0, 3.0, 1.0),
        ({"layout": "NDHWC", "method": "trilinear"}, (1, 2, 3, 2, 1), 1.0, 2.0, 1.5),
    ),
    keeps_mapped_extents=True,
)
upsampling = _dynamic_variant_of(
    resize.upsampling,
    "scale_h scale_w",
    (({}, (1, 2, 3, 4), 2.0, 3.0), ({"layout": "NHWC", "method": "bilinear"}, (1, 3, 4, 2), np.array([2.0]), 1.5)),
    keeps_mapped_extents=True,
)
