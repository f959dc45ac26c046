# SPDX-License-Identifier: Apache-2.0
"""Graph expressions: immutable, typed nodes that may be shared freely.

Nodes compare by identity; `aotc.relay.structural_equality.structural_equal` compares programs. Type
inference sets `checked_type`; `span` is the source position of a node and is preserved by rewrites.

    x = Var("x", TensorType((2, 3), "float32"))
    f = Function((x,), Call(get_op("nn.relu"), (x,)))
    x + x, -x, x < x, x.astype("int32")       # calls of add, negative, less, cast
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np

from aotc.ir import NO_ATTRS, AotcTypeError, Attrs, AxisMap, DType, Op, Span, current_span, get_op, infer_op_result_type
from aotc.ir import types as ir_types
from aotc.ir.frozen_dataclass import dataclass_transform, set_frozen_fields
from aotc.ir.ndarray import HostArray, convert_literal_to_array
from aotc.ir.types import FuncType, GlobalTypeVar, IncompleteType, TensorType, TupleType, Type
from aotc.relay.graph_api import Clause, Printed, TypeData, infer_type_arguments

T = TypeVar("T")
EMPTY_ATTRS: Final[Mapping[str, Any]] = MappingProxyType({})


def require_expression(value: Any) -> Expr:
    """Return `value` if it is an expression, and raise AotcTypeError otherwise.

    Numbers and arrays are rejected because their dtype would have to be guessed; `const` converts
    them.
    """
    if isinstance(value, Node):
        return cast("Expr", value)
    if isinstance(value, (Number, bool, np.ndarray, np.generic)):
        raise AotcTypeError("operand", f'convert "{value}" with `const` first', hint=f"relay.const({value!r}, dtype)")
    raise AotcTypeError("operand", f"expected an expression, not {type(value).__name__}")


def _call_op_by_name(name: str, *args: Any, **attrs: Any) -> Call:
    op = get_op(name)
    return typed_op_call(op, tuple(map(require_expression, args)), op.attrs(**attrs))


def _infix_method_for_op(op_name: str) -> Callable[[Any, Any], Call]:
    return lambda self, other: _call_op_by_name(op_name, self, other)


def _reflected_infix_method_for_op(op_name: str) -> Callable[[Any, Any], Call]:
    return lambda self, other: _call_op_by_name(op_name, other, self)


def _init_node_fields(node: object, span: Span | None, **fields: Any) -> None:
    """Initialize the fields of a frozen expression node; a missing span is replaced by the span in
    scope.
    """
    set_frozen_fields(node, span=span if span is not None else current_span(), **fields)


class Node(Printed):
    """Base class of graph nodes: printing, and Python's operators, which build calls; `==` compares
    identity.

    Operators raise AotcTypeError for operands that are not expressions, such as numbers and arrays.
    """

    __slots__ = ()

    def astuple(self: T) -> T:
        return self  # an expression with a tuple value is used as the tuple

    def __post_init__(self) -> None:
        _init_node_fields(self, getattr(self, "span", None))

    __add__, __radd__ = _infix_method_for_op("add"), _reflected_infix_method_for_op("add")
    __sub__, __rsub__ = _infix_method_for_op("subtract"), _reflected_infix_method_for_op("subtract")
    __mul__, __rmul__ = _infix_method_for_op("multiply"), _reflected_infix_method_for_op("multiply")
    __truediv__, __rtruediv__ = _infix_method_for_op("divide"), _reflected_infix_method_for_op("divide")
    __lt__, __le__ = _infix_method_for_op("less"), _infix_method_for_op("less_equal")
    __gt__, __ge__ = _infix_method_for_op("greater"), _infix_method_for_op("greater_equal")

    def __neg__(self) -> Call:
        return _call_op_by_name("negative", self)

    def astype(self, dtype: str) -> Call:
        """Return a call of `cast` that converts the values to a dtype."""
        return _call_op_by_name("cast", self, dtype=dtype)

    def __call__(self, *args: Any) -> Call:
        """Return a call of this function with the given arguments."""
        return Call(cast("Callee", self), tuple(map(require_expression, args)))


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def _node_dataclass(cls: type[T]) -> type[T]:
    """Class decorator for kinds of nodes: a frozen dataclass, compared by identity."""
    return dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)


@_node_dataclass
class Var(Node):
    """A variable. `annotation` is the declared type, None if inference must find it."""

    name: str
    annotation: Type | None = None
    span: Span | None = None
    checked_type: Type | None = field(init=False)

    def __post_init__(self) -> None:
        known = None if isinstance(self.annotation, IncompleteType) else self.annotation
        _init_node_fields(self, self.span, annotation=known, checked_type=known)

    name_hint = property(attrgetter("name"), doc="Relay's word for the name.")
    type_annotation = property(attrgetter("annotation"), doc="Relay's word for the annotation.")
    vid = property(lambda self: self, doc="What Relay tells variables apart by: they themselves.")

    def __repr__(self) -> str:
        ty = self.annotation
        if isinstance(ty, TensorType):
            return f"Var({self.name}, ty=TensorType([{', '.join(map(str, ty.shape))}], {ty.dtype}))"
        return f"Var({self.name})" if ty is None else f"Var({self.name}, ty={ty})"


@_node_dataclass
class GlobalVar(Node):
    """A reference to a function of the module, by name."""

    name: str
    span: Span | None = None
    checked_type: Type | None = None

    name_hint = property(attrgetter("name"), doc="Relay's word for the name.")


@_node_dataclass
class Constant(Node):
    """A tensor known at compile time. `data` is read-only; `data.numpy()` returns a copy.

    A splat (one repeated value) is a zero-stride array made by `splat_constant`: it takes no memory
    until it is copied.
    """

    data: np.ndarray[Any, Any]
    span: Span | None
    checked_type: Type

    def __init__(self, data: np.ndarray[Any, Any], span: Span | None = None) -> None:
        view = np.asarray(data).view(HostArray)
        view.flags.writeable = False
        _init_node_fields(self, span, data=view, checked_type=TensorType(view.shape, DType.from_numpy(view)))

    def __repr__(self) -> str:
        return f"Constant({self.data if self.data.ndim == 0 else self.checked_type})"

    @property
    def is_splat(self) -> bool:
        """True for a multi-element constant whose one value is repeated through zero strides."""
        return self.data.size > 1 and not any(self.data.strides)

    @property
    def stored_elements(self) -> np.ndarray[Any, Any]:
        """The elements that are stored in memory: all of them, or the one that a splat repeats."""
        return self.data.flat[:1] if self.is_splat else self.data


@_node_dataclass
class Call(Node):
    """An operator, function, or global function applied to arguments."""

    op: Callee
    args: tuple[Expr, ...]
    attrs: Attrs
    span: Span | None
    checked_type: Type | None

    def __init__(
        self,
        op: Callee,
        args: Iterable[Expr],
        attrs: Attrs | None = None,
        type_args: Sequence[Type] | None = None,
        span: Span | None = None,
        checked_type: Type | None = None,
    ) -> None:
        """Create a call node; `type_args` is ignored, since type inference finds them, but Relay's
        signature has it.
        """
        _init_node_fields(
            self, span, op=op, args=tuple(args), attrs=NO_ATTRS if attrs is None else attrs, checked_type=checked_type
        )

    @property
    def type_args(self) -> list[Type]:
        """The types of an operator's arguments, or of a generic function's type arguments, as far
        as inferred.
        """
        types = [a.checked_type for a in self.args if a.checked_type is not None]
        callee = None if isinstance(self.op, Op) else self.op.checked_type
        return types if callee is None else [*infer_type_arguments(cast(FuncType, callee), types).values()]

    def __bool__(self) -> bool:
        return True  # also for calls whose tuple has length 0

    def __len__(self) -> int:
        """Return the number of fields of a call whose value is a tuple; raise AotcTypeError for
        other calls.
        """
        if not isinstance(self.checked_type, TupleType):
            text = f"not a tuple, but {self.checked_type or 'of a type that is not known yet'}"
            raise AotcTypeError("tuple", text, hint="TupleGetItem takes a field of an expression")
        return len(self.checked_type.fields)

    def __getitem__(self, index: int) -> TupleGetItem:
        """Return a field of a call's tuple value; if the call has no type yet, type inference
        checks the index later.
        """
        if self.checked_type is None and index >= 0:
            return TupleGetItem(self, index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"field {index} of a tuple of {len(self)}")
        return TupleGetItem(self, index % len(self))

    def __iter__(self) -> Iterator[TupleGetItem]:
        return (TupleGetItem(self, k) for k in range(len(self)))


class _OfFields(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Call) and isinstance(value.checked_type, TupleType)

    def __call__(cls, tuple_value: Any, size: int) -> Any:
        return tuple_value


class TupleWrapper(metaclass=_OfFields):
    """Relay's class for calls with several results; here it is the call itself."""


@_node_dataclass
class Tuple(Node):
    """Expression node: a tuple of expressions."""

    fields: tuple[Expr, ...]
    span: Span | None
    checked_type: Type | None

    def __init__(self, fields: Iterable[Expr], span: Span | None = None, checked_type: Type | None = None) -> None:
        items = tuple(f if isinstance(f, Op) else require_expression(f) for f in fields)
        if checked_type is None and all(f.checked_type is not None for f in items):
            checked_type = TupleType(f.checked_type for f in items if f.checked_type is not None)
        _init_node_fields(self, span, fields=items, checked_type=checked_type)

    def __bool__(self) -> bool:
        return True  # also for the empty tuple

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, index: int) -> Expr:
        return self.fields[index]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.fields)


@_node_dataclass
class TupleGetItem(Node):
    """Expression node: one field of a tuple value."""

    tuple_value: Expr
    index: int
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        whole, ty = self.tuple_value.checked_type, self.checked_type
        if ty is None and isinstance(whole, TupleType) and 0 <= self.index < len(whole.fields):
            ty = whole.fields[self.index]
        _init_node_fields(self, self.span, checked_type=ty)


@_node_dataclass
class Let(Node):
    """`let var = value; body`: binds a variable to a value, which may be a recursive function."""

    var: Var
    value: Expr
    body: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        _init_node_fields(self, self.span, checked_type=self.checked_type or self.body.checked_type)


@_node_dataclass
class If(Node):
    """Expression node: an if with a bool scalar as condition and two branches of one type."""

    cond: Expr
    true_branch: Expr
    false_branch: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        _init_node_fields(self, self.span, checked_type=self.checked_type or self.true_branch.checked_type)


@_node_dataclass
class Function(Node):
    """A function value. `attrs` is a read-only mapping; a fused kernel has the attribute
    `Primitive=1`.

    The attribute `Finite` of a fused function lists the parameters whose arguments hold no infinity
    and no NaN.
    """

    params: tuple[Var, ...]
    body: Expr
    ret_type: Type | None
    type_params: tuple[ir_types.TypeVar, ...]
    attrs: Mapping[str, Any]
    span: Span | None
    checked_type: Type | None = field(init=False)

    def __init__(
        self,
        params: Iterable[Var],
        body: Expr,
        ret_type: Type | None = None,
        type_params: Iterable[ir_types.TypeVar] | None = None,
        attrs: Mapping[str, Any] | None = None,
        span: Span | None = None,
    ) -> None:
        items, generic = tuple(params), tuple(type_params or ())
        result = ret_type or body.checked_type
        checked: Type | None = None
        if result is not None and all(p.checked_type is not None for p in items):
            checked = FuncType((p.checked_type for p in items if p.checked_type is not None), result, generic)
        frozen = MappingProxyType(dict(attrs or {}))
        types = {"ret_type": ret_type, "type_params": generic, "checked_type": checked}
        _init_node_fields(self, span, params=items, body=body, attrs=frozen, **types)

    def with_attr(self, key: str | Mapping[str, Any], value: Any = None) -> Function:
        """Return the function with one attribute, or all attributes of a mapping, added or
        replaced.
        """
        changes = {key: value} if isinstance(key, str) else key
        return dataclasses.replace(self, attrs={**self.attrs, **changes})

    def with_body(self, body: Expr) -> Function:
        """Return the function with another body and unchanged parameters, declared result type and
        attributes.
        """
        return dataclasses.replace(self, body=body)

    @property
    def is_primitive(self) -> bool:
        """True for a fused function, which will become one kernel."""
        return bool(self.attrs.get("Primitive", 0))


@_node_dataclass
class RefCreate(Node):
    """Expression node that creates a mutable reference with an initial value."""

    value: Expr
    span: Span | None = None
    checked_type: Type | None = None


@_node_dataclass
class RefRead(Node):
    """Expression node that reads the value of a mutable reference."""

    ref: Expr
    span: Span | None = None
    checked_type: Type | None = None


@_node_dataclass
class RefWrite(Node):
    """Expression node that writes a mutable reference; its value is the empty tuple."""

    ref: Expr
    value: Expr
    span: Span | None = None
    checked_type: Type | None = None


@_node_dataclass
class Constructor(Node):
    """Constructor of an algebraic data type, with field types `inputs`; `data` is set when the type
    is defined.
    """

    name_hint: str
    inputs: tuple[Type, ...]
    belong_to: GlobalTypeVar
    span: Span | None = None
    checked_type: Type | None = None
    data: TypeData | None = field(init=False, default=None)

    def set_data_type_definition(self, data: TypeData) -> None:
        """Set the definition of the constructor's data type, from which the constructor's type
        follows.
        """
        result = FuncType(self.inputs, data.instance_type, data.type_vars)
        _init_node_fields(self, self.span, inputs=tuple(self.inputs), data=data, checked_type=result)

    @property
    def tag(self) -> int:
        """The tag (a number) of the constructor; -1 if its data type is not defined yet."""
        return -1 if self.data is None else self.data.tag_of_constructor(self)


@_node_dataclass
class Match(Node):
    """Expression node: a match, whose value is that of the first clause whose pattern matches
    `data`.

    A `complete` match must have a clause for every value.
    """

    data: Expr
    clauses: tuple[Clause, ...]
    complete: bool = True
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        _init_node_fields(self, self.span, clauses=tuple(self.clauses))


Callee: TypeAlias = "Op | Function | GlobalVar | Var | Let | If | TupleGetItem | Call | Constructor | Match | RefRead"
Expr: TypeAlias = (
    Var | GlobalVar | Constant | Call | Tuple | TupleGetItem | Let | If | Function | Op
    | RefCreate | RefRead | RefWrite | Constructor | Match
)  # fmt: skip
ExprT = TypeVar(
    "ExprT", Var, GlobalVar, Constant, Call, Tuple, TupleGetItem, Let, If, Function,
    RefCreate, RefRead, RefWrite, Constructor, Match
)  # fmt: skip


def const(value: Any, dtype: str | TensorType | None = None, span: Span | None = None) -> Constant:
    """Return a constant with the value of an array, number or list; see
    `aotc.ir.ndarray.convert_literal_to_array`.
    """
    return Constant(convert_literal_to_array(value, dtype), span)


def splat_constant(value: Any, shape: Iterable[int], dtype: str, span: Span | None = None) -> Constant:
    """Return a constant of one repeated value, which takes the memory of one element."""
    return Constant(np.broadcast_to(np.asarray(value, DType(dtype).numpy), tuple(shape)), span)


def type_of(expr: Expr) -> Type:
    """Return the inferred type of an expression; raise TypeError (a bug in a pass) if inference has
    not run.
    """
    ty = expr.checked_type
    if ty is None:
        raise TypeError(f"expression has no type yet: {type(expr).__name__}; run InferType first")
    return ty


def tensor_type_of(expr: Expr) -> TensorType:
    """Return the inferred type of a tensor expression; raise TypeError for values that are not
    tensors.
    """
    if isinstance(ty := type_of(expr), TensorType):
        return ty
    raise TypeError(f"expected a tensor, got {ty}")


def require_function(expr: Expr) -> Function:
    """Return `expr`, which must be a function; raise TypeError (a bug in a pass) if it is not."""
    if not isinstance(expr, Function):
        raise TypeError(f"expected a function, got a {type(expr).__name__}")
    return expr


def require_op_of_call(call: Call) -> Op:
    """Return the operator of a call; raise TypeError (a bug in a pass) if the call is not an
    operator call.
    """
    if not isinstance(call.op, Op):
        raise TypeError(f"expected a call of an operator, not of a {type(call.op).__name__}")
    return call.op


def tuple_item(value: Expr, index: int, span: Span | None = None) -> Expr:
    """Return an item of a tuple value: the field's expression itself if `value` is a Tuple node."""
    return value.fields[index] if isinstance(value, Tuple) else TupleGetItem(value, index, span)


def axis_map_of_call(call: Call) -> AxisMap | None:
    """Return the axis map of an operator call with typed arguments; None if no axis is mapped."""
    axes = require_op_of_call(call).axes
    return axes(call.attrs, [type_of(a) for a in call.args]) if axes is not None else None


def with_checked_type(expr: ExprT, ty: Type | None) -> ExprT:
    """Return `expr` with `checked_type` set; the same object if it has that type already."""
    if expr.checked_type == ty:
        return expr
    copy = object.__new__(type(expr))
    fields = {f.name: getattr(expr, f.name) for f in dataclasses.fields(expr)}
    set_frozen_fields(copy, **{**fields, "checked_type": ty})
    return copy


def typed_op_call(op: Op, args: Iterable[Expr], attrs: Attrs = NO_ATTRS, span: Span | None = None) -> Call:
    """Return a call of an operator, with its type inferred if all arguments have types.

    Raise AotcError (with `span` as location) if the operator's type rule rejects the arguments,
    AotcTypeError if one is not an expression.
    """
    from_args = tuple(args)
    types = [require_expression(a).checked_type for a in from_args]
    known = [t for t in types if t is not None]
    if len(known) != len(types):
        return Call(op, from_args, attrs, span=span)
    return Call(op, from_args, attrs, None, span, infer_op_result_type(op, attrs, known, span))
