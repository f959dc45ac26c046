# SPDX-License-Identifier: Apache-2.0
"""Random typed graphs over all operators, built from the operators' samples by connecting outputs to inputs.

files = make(seed)                      # the module as text, inputs, and how it is to be compiled
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc.checking.input_generation import save_arrays_to_npz
from aotc.checking.output_comparison import Array
from aotc.ir.attrs import Attrs
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, TupleType, tensor_types
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, typed_op_call
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import OpDef, Sample
from aotc.relay.text.printer import astext
from tests.fuzz.case import Files
from tests.fuzz.execute import Setting, targets
from tests.fuzz.mutate_bytes import odds, pick
from tests.ops.harness import type_of_value

Generator = np.random.Generator
MOST_ELEMENTS = 20_000
"""Elements of the largest tensor of a graph."""
DTYPES = (
    "float32", "float32", "float16", "float64", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32",
    "int64", "uint64", "bool",
)  # fmt: skip
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-45, -1e-40, 3.4e38, -3.4e38, 65504.0, 0.5, 1.5, 2.5, -2.5, 88.8,
    -104.0,
)  # fmt: skip
TRANSFORMED = {"nn.contrib_conv2d_winograd_without_weight_transform", "nn.contrib_conv2d_winograd_weight_transform"}
"""Operators that spread NaN over elements that do not depend on it, and take weights that they made."""
INDEXED = {
    "take", "gather", "gather_nd", "scatter_elements", "scatter_nd", "one_hot", "reverse_sequence", "left_shift",
    "right_shift", "arange",
}  # fmt: skip
"""Operators whose integers mean places or counts."""


@functools.cache
def samples_of(name: str) -> Sequence[Sample]:
    """The samples of an operator."""
    return tuple(OPERATORS_BY_NAME[name].samples())


@dataclass
class Graph:
    """A graph under construction.

    special    whether NaN, infinities, bounds and the like are among the inputs
    values     what later calls may take
    dynamic    values whose types do not say their shapes: outputs only
    """

    rng: Generator
    special: bool
    values: list[Expr] = field(default_factory=list)
    params: list[Var] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    dynamic: list[Expr] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    strange: IRModule | None = None

    # --- operands

    def leaf(self, array: Array, special: bool) -> Expr:
        """A new input or constant that holds an array."""
        value = self.with_specials(array) if special and self.special else array
        if odds(self.rng, 0.35):
            return Constant(value)
        self.params.append(Var(f"x{len(self.params)}", type_of_value(value)))
        self.inputs[self.params[-1].name] = value
        if odds(self.rng, 0.5):
            self.values.append(self.params[-1])
        return self.params[-1]

    def with_specials(self, array: Array) -> Array:
        dtype = DType.from_numpy(array)
        if not array.size or dtype.is_bool or dtype.bits < 8:
            return array
        made = array.copy()
        for _ in range(1 + array.size // 20):
            k = int(self.rng.integers(array.size))
            with np.errstate(all="ignore"):
                if dtype.is_float:
                    made.flat[k] = np.asarray(pick(self.rng, SPECIAL)).astype(dtype.numpy)
                else:
                    made.flat[k] = pick(self.rng, (int(dtype.min), int(dtype.max), 0, 1))
        return made

    def operand(self, array: Array, op: str, fixed: bool) -> Expr:
        """An earlier value that can take the place of an array, or the array itself."""
        if fixed:
            return Constant(array)
        wanted = type_of_value(array)
        same = [v for v in self.values if v.checked_type == wanted]
        indexed = op in INDEXED and DType.from_numpy(array).is_integer
        if same and not indexed and odds(self.rng, 0.75):
            return self.take(pick(self.rng, same))
        if self.values and odds(self.rng, 0.4):
            found = self.adapted(pick(self.rng, self.values[-6:]), array)
            if found is not None:
                return found
        return self.leaf(array, special=not indexed)

    def take(self, value: Expr) -> Expr:
        self.used.add(id(value))
        return value

    def adapted(self, value: Expr, array: Array) -> Expr | None:
        """A value of the type of an array, made of another; integers stay within those of the array."""
        ty = value.checked_type
        assert isinstance(ty, TensorType)
        dtype = DType.from_numpy(array)
        if (ty.numel == 0 and array.size) or (dtype.bits < 8 and not dtype.is_bool):
            return None
        try:
            made = self.take(value)
            if ty.static_shape != array.shape:
                made = _shaped(made, ty, array.shape)
            if ty.dtype == dtype:
                return made if dtype.is_float or dtype.is_bool else _clipped(made, array)
            if dtype.is_bool:
                return typed_op_call(OPERATORS_BY_NAME["greater"], [made, Constant(np.zeros((), ty.dtype.numpy))])
            if dtype.is_integer and ty.dtype.is_float:
                made = typed_op_call(OPERATORS_BY_NAME["clip"], [made], _attrs("clip", a_min=-100.0, a_max=100.0))
                zero = Constant(np.zeros((), ty.dtype.numpy))
                made = typed_op_call(
                    OPERATORS_BY_NAME["where"], [typed_op_call(OPERATORS_BY_NAME["isnan"], [made]), zero, made]
                )
            made = typed_op_call(OPERATORS_BY_NAME["cast"], [made], _attrs("cast", dtype=dtype))
            return _clipped(made, array) if dtype.is_integer else made
        except AotcError:
            return None

    # --- steps

    def step(self) -> None:
        """Another call, if its type rule takes what was drawn."""
        name = pick(self.rng, _names())
        sample = pick(self.rng, samples_of(name))
        args, attributes = sample.args, sample.attrs
        free = name not in TRANSFORMED
        if free and odds(self.rng, 0.4):
            args = self.retyped(args)
        if free and odds(self.rng, 0.4):
            args = self.reshaped(args)
        if free and odds(self.rng, 0.3):
            attributes = self.changed(name, attributes)
        self.add(name, args, attributes)

    def add(self, name: str, args: Sequence[Any], attributes: Attrs) -> None:
        op = OPERATORS_BY_NAME[name]
        if (self.special and name in TRANSFORMED) or not self.fits(op, args, attributes):
            return
        operands = []
        for k, value in enumerate(args):
            fixed = k > 0 and (op.static is not None or name in TRANSFORMED)
            if isinstance(value, tuple):
                operands.append(Tuple([self.operand(a, name, fixed) for a in value]))
            else:
                operands.append(self.operand(value, name, fixed))
        made = typed_op_call(op, operands, attributes)
        found = made.checked_type
        fields = [TupleGetItem(made, k) for k in range(len(found.fields))] if isinstance(found, TupleType) else [made]
        static = all(t.is_static for t in tensor_types(found))
        (self.values if static else self.dynamic).extend(fields)

    def fits(self, op: OpDef, args: Sequence[Any], attributes: Attrs) -> bool:
        """Whether the type rule takes arguments, and the result is small."""
        params = [Var(f"a{k}", type_of_value(value)) for k, value in enumerate(args)]
        try:
            fields = [Constant(v) if op.static is not None and k > 0 else params[k] for k, v in enumerate(args)]
            made = typed_op_call(op, fields, attributes)
            if op.static is not None:
                known = op.static(attributes, fields)
                if known is None:
                    return False
                made = known
        except AotcError:
            return False
        except Exception:  # a type rule may raise nothing else: the call alone shows it
            self.strange = IRModule({"main": Function(params, Call(op, params, attributes))})
            return False
        types = list(tensor_types(made.checked_type)) if made.checked_type is not None else []
        return all(t.is_static and t.numel <= MOST_ELEMENTS for t in types)

    def retyped(self, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments of the first one's type in another."""
        first = _first(args)
        old, new = first.dtype, DType(pick(self.rng, DTYPES))

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(changed, value))
            if value.dtype != old:
                return value
            with np.errstate(all="ignore"):
                if new.is_integer:
                    low = 0 if not new.is_signed else -100
                    wide = np.nan_to_num(value.astype(np.float64) * (1 if DType.from_numpy(value).is_integer else 10))
                    return np.clip(wide, low, min(100, int(new.max))).astype(new.numpy)
                return value.astype(new.numpy)

        return [changed(a) for a in args]

    def reshaped(self, args: Sequence[Any]) -> Sequence[Any]:
        """Every axis of one extent with another: 0, 1, or near."""
        extents = sorted({d for a in _flat(args) for d in a.shape})
        if not extents:
            return args
        old = pick(self.rng, extents)
        new = pick(self.rng, (0, 1, 1, 2, 3, 5, 8, 17, old + 1, 2 * old))

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(changed, value))
            shape = tuple(new if d == old else d for d in value.shape)
            if int(np.prod(shape)) > MOST_ELEMENTS:
                return value
            return np.resize(value, shape).astype(value.dtype) if value.size else np.zeros(shape, value.dtype)

        return [changed(a) for a in args]

    def changed(self, name: str, attributes: Attrs) -> Attrs:
        """Attributes with one of another value."""
        fields = dict(attributes.items())
        if not fields:
            return attributes
        key = pick(self.rng, sorted(fields))
        others = [dict(s.attrs.items())[key] for s in samples_of(name) if key in dict(s.attrs.items())]
        value = fields[key]
        match value:
            case bool():
                new: Any = not value
            case int():
                new = value + pick(self.rng, (-1, 1, 2))
            case tuple() if value and all(isinstance(v, int) for v in value) and odds(self.rng, 0.6):
                k = int(self.rng.integers(len(value)))
                new = (*value[:k], value[k] + pick(self.rng, (-1, 1, 1, 2)), *value[k + 1 :])
            case float() if odds(self.rng, 0.5):
                new = pick(self.rng, (0.0, 1.0, -1.0, 1e-5, 100.0, -0.5))
            case _:
                new = pick(self.rng, others)
        return attributes.replace(**{key: new})

    def module(self) -> IRModule:
        """All values that nothing uses are outputs, and some others."""
        outputs = [v for v in self.values if not isinstance(v, Var) and (id(v) not in self.used or odds(self.rng, 0.1))]
        return IRModule({"main": Function(self.params, Tuple([*outputs, *self.dynamic]))})


@functools.lru_cache(maxsize=1)
def _names() -> Sequence[str]:
    return sorted(n for n in OPERATORS_BY_NAME if samples_of(n))


def _flat(value: Any) -> list[Array]:
    return [a for v in value for a in _flat(v)] if isinstance(value, (tuple, list)) else [value]


def _first(args: Sequence[Any]) -> Array:
    return next(iter(_flat(list(args))), np.zeros(()))


def _attrs(name: str, **values: Any) -> Attrs:
    return samples_of(name)[0].attrs.replace(**values)


def _shaped(value: Expr, ty: TensorType, shape: tuple[int, ...]) -> Expr:
    """A value's elements in another shape: reshaped, or some of them taken."""
    size = int(np.prod(shape))
    if size == ty.numel:
        return typed_op_call(OPERATORS_BY_NAME["reshape"], [value], _attrs("reshape", newshape=shape))
    flat = typed_op_call(OPERATORS_BY_NAME["reshape"], [value], _attrs("reshape", newshape=(ty.numel,)))
    places = np.arange(size, dtype=np.int32).reshape(shape) % max(ty.numel, 1)
    return typed_op_call(OPERATORS_BY_NAME["take"], [flat, Constant(places)], _attrs("take", axis=0, mode="clip"))


def _clipped(value: Expr, array: Array) -> Expr:
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    return typed_op_call(OPERATORS_BY_NAME["clip"], [value], _attrs("clip", a_min=low, a_max=high))


def make(seed: int) -> Files:
    """A random graph, its inputs and how to compile it."""
    rng = np.random.default_rng(seed)
    graph = Graph(rng, special=odds(rng, 0.35))
    steps = int(rng.integers(3, 16))
    for _ in range(20 * steps):
        if len(graph.values) >= 2 * steps or graph.strange is not None:
            break
        graph.step()
    level = 3 if graph.dynamic else pick(rng, (0, 1, 2, 3, 3, 3))
    setting = Setting(pick(rng, targets()), level, "strict", pick(rng, (1, 1, 2, 3)), odds(rng, 0.25))
    if graph.strange is not None:
        return files_of(graph.strange, {}, setting)
    return files_of(graph.module(), graph.inputs, setting)


def files_of(module: IRModule, inputs: dict[str, Array], setting: Setting) -> Files:
    """A case as files."""
    blob = io.BytesIO()
    save_arrays_to_npz(blob, {k: v for k, v in inputs.items() if k in {p.name for p in module.main.params}})
    options = json.dumps(setting.as_dict()).encode()
    text = re.sub(r" span=[^ ]+", "", astext(module))
    return {"model.relay": text.encode(), "inputs.npz": blob.getvalue(), "setting.json": options}
