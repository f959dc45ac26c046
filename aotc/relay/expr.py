# SPDX-License-Identifier: Apache-2.0
"""Graph expressions: immutable, typed nodes that share freely.

Nodes compare by identity; `aotc.relay.structural.structural_equal` compares programs.  `checked_type` is filled
by type inference; `span` says where a node came from and survives rewrites.

    x = Var("x", TensorType((2, 3), "float32"))
    f = Function((x,), Call(get_op("nn.relu"), (x,)))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np

from aotc.ir.attrs import NO_ATTRS, Attrs
from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.ir.dtype import DType
from aotc.ir.op import Op
from aotc.ir.span import Span, current_span
from aotc.ir.types import FuncType, TensorType, TupleType, Type
from aotc.relay.operators import Operators

EMPTY_ATTRS: Final[Mapping[str, Any]] = MappingProxyType({})


def _set(node: object, span: Span | None, **fields: Any) -> None:
    """Initialise the fields of a frozen node; a missing span is the one in scope."""
    object.__setattr__(node, "span", span if span is not None else current_span())
    for name, value in fields.items():
        object.__setattr__(node, name, value)


class _Text(Operators):
    """What all nodes share: Python's operators, and that they print as the program text they stand for."""

    __slots__ = ()

    def astext(self, show_meta_data: bool = True) -> str:
        """The expression as Relay text with its version line; see `aotc.relay.text.printer.astext`."""
        from aotc.relay.text.printer import astext  # the printer knows expressions, so it comes in late

        return astext(cast("Expr", self), show_meta_data)

    def __str__(self) -> str:
        from aotc.relay.text.printer import to_text

        return to_text(cast("Expr", self))

    __repr__ = __str__


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Var(_Text):
    """A variable.  `annotation` is the declared type, None where inference must find it."""

    name: str
    annotation: Type | None
    span: Span | None
    checked_type: Type | None

    def __init__(self, name: str, annotation: Type | None = None, span: Span | None = None) -> None:
        _set(self, name=name, annotation=annotation, span=span, checked_type=annotation)

    @property
    def name_hint(self) -> str:
        """Relay's word for the name."""
        return self.name

    @property
    def type_annotation(self) -> Type | None:
        """Relay's word for the annotation."""
        return self.annotation

    def __repr__(self) -> str:
        ty = self.annotation
        if isinstance(ty, TensorType):
            return f"Var({self.name}, ty=TensorType([{', '.join(map(str, ty.shape))}], {ty.dtype}))"
        return f"Var({self.name})" if ty is None else f"Var({self.name}, ty={ty})"


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class GlobalVar(_Text):
    """The name of a function of the module."""

    name: str
    span: Span | None
    checked_type: Type | None

    def __init__(self, name: str, span: Span | None = None, checked_type: Type | None = None) -> None:
        _set(self, name=name, span=span, checked_type=checked_type)

    @property
    def name_hint(self) -> str:
        """Relay's word for the name."""
        return self.name


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Constant(_Text):
    """A tensor known at compile time.  `data` is read-only.

    A splat (one value repeated) is a zero-stride array made by `splat`: it takes no memory until someone
    materialises it.
    """

    data: np.ndarray[Any, Any]
    span: Span | None
    checked_type: Type

    def __init__(self, data: np.ndarray[Any, Any], span: Span | None = None) -> None:
        view = np.asarray(data).view()
        view.flags.writeable = False
        _set(self, data=view, span=span, checked_type=TensorType(view.shape, DType.of(view)))

    def __repr__(self) -> str:
        return f"Constant({self.data if self.data.ndim == 0 else self.checked_type})"

    @property
    def is_splat(self) -> bool:
        """True for a multi-element constant that holds one value, repeated through zero strides."""
        return self.data.size > 1 and not any(self.data.strides)


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Call(_Text):
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
        attrs: Attrs = NO_ATTRS,
        span: Span | None = None,
        checked_type: Type | None = None,
    ) -> None:
        _set(self, op=op, args=tuple(args), attrs=attrs, span=span, checked_type=checked_type)

    def __bool__(self) -> bool:
        return True  # whatever its length

    def __len__(self) -> int:
        """The number of fields of a call that gives a tuple, AotcTypeError for others."""
        if not isinstance(self.checked_type, TupleType):
            text = f"not a tuple, but {self.checked_type or 'of a type that is not known yet'}"
            raise AotcTypeError("tuple", text, hint="TupleGetItem takes a field of an expression")
        return len(self.checked_type.fields)

    def __getitem__(self, index: int) -> TupleGetItem:
        """A field; one of a call that has no type yet is checked when types are inferred."""
        if self.checked_type is None and index >= 0:
            return TupleGetItem(self, index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"field {index} of a tuple of {len(self)}")
        return TupleGetItem(self, index % len(self))

    def __iter__(self) -> Iterator[TupleGetItem]:
        return (TupleGetItem(self, k) for k in range(len(self)))


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Tuple(_Text):
    """A tuple of expressions."""

    fields: tuple[Expr, ...]
    span: Span | None
    checked_type: Type | None

    def __init__(self, fields: Iterable[Expr], span: Span | None = None, checked_type: Type | None = None) -> None:
        items = tuple(fields)
        if checked_type is None and all(f.checked_type is not None for f in items):
            checked_type = TupleType(f.checked_type for f in items if f.checked_type is not None)
        _set(self, fields=items, span=span, checked_type=checked_type)

    def __bool__(self) -> bool:
        return True  # whatever its length

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, index: int) -> Expr:
        return self.fields[index]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.fields)


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class TupleGetItem(_Text):
    """One field of a tuple value."""

    tuple_value: Expr
    index: int
    span: Span | None
    checked_type: Type | None

    def __init__(
        self, tuple_value: Expr, index: int, span: Span | None = None, checked_type: Type | None = None
    ) -> None:
        ty = tuple_value.checked_type
        if checked_type is None and isinstance(ty, TupleType) and 0 <= index < len(ty.fields):
            checked_type = ty.fields[index]
        _set(self, tuple_value=tuple_value, index=index, span=span, checked_type=checked_type)


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Let(_Text):
    """`let var = value; body`: names a value (which may be a recursive function)."""

    var: Var
    value: Expr
    body: Expr
    span: Span | None
    checked_type: Type | None

    def __init__(
        self, var: Var, value: Expr, body: Expr, span: Span | None = None, checked_type: Type | None = None
    ) -> None:
        _set(self, var=var, value=value, body=body, span=span, checked_type=checked_type or body.checked_type)


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class If(_Text):
    """A choice between two expressions of one type by a bool scalar."""

    cond: Expr
    true_branch: Expr
    false_branch: Expr
    span: Span | None
    checked_type: Type | None

    def __init__(
        self,
        cond: Expr,
        true_branch: Expr,
        false_branch: Expr,
        span: Span | None = None,
        checked_type: Type | None = None,
    ) -> None:
        _set(
            self,
            cond=cond,
            true_branch=true_branch,
            false_branch=false_branch,
            span=span,
            checked_type=checked_type or true_branch.checked_type,
        )


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Function(_Text):
    """A function value.  `attrs` is a read-only mapping; a fused kernel carries `Primitive=1`.

    `Finite` of a fused function lists the parameters whose arguments are known to hold no infinity and no NaN.
    """

    params: tuple[Var, ...]
    body: Expr
    ret_type: Type | None
    attrs: Mapping[str, Any]
    span: Span | None
    checked_type: Type | None

    def __init__(
        self,
        params: Iterable[Var],
        body: Expr,
        ret_type: Type | None = None,
        attrs: Mapping[str, Any] = EMPTY_ATTRS,
        span: Span | None = None,
    ) -> None:
        items = tuple(params)
        result = ret_type or body.checked_type
        checked: Type | None = None
        if result is not None and all(p.checked_type is not None for p in items):
            checked = FuncType((p.checked_type for p in items if p.checked_type is not None), result)
        frozen = MappingProxyType(dict(attrs))
        _set(self, params=items, body=body, ret_type=ret_type, attrs=frozen, span=span, checked_type=checked)

    def with_attr(self, key: str | Mapping[str, Any], value: Any = None) -> Function:
        """The function with one attribute, or all those of a mapping, added or replaced."""
        changes = {key: value} if isinstance(key, str) else key
        return Function(self.params, self.body, self.ret_type, {**self.attrs, **changes}, self.span)

    @property
    def is_primitive(self) -> bool:
        """True for a fused function: one kernel to be."""
        return bool(self.attrs.get("Primitive", 0))


Callee: TypeAlias = "Op | Function | GlobalVar | Var | Let | If | TupleGetItem | Call"
Expr: TypeAlias = "Var | GlobalVar | Constant | Call | Tuple | TupleGetItem | Let | If | Function | Op"
ExprT = TypeVar("ExprT", Var, GlobalVar, Constant, Call, Tuple, TupleGetItem, Let, If, Function)


def splat(value: Any, shape: Iterable[int], dtype: str, span: Span | None = None) -> Constant:
    """A constant of one repeated value that takes the memory of one element."""
    return Constant(np.broadcast_to(np.asarray(value, DType(dtype).numpy), tuple(shape)), span)


def type_of(expr: Expr) -> Type:
    """The inferred type of an expression; a TypeError (a bug in a pass) where inference has not run."""
    ty = expr.checked_type
    if ty is None:
        raise TypeError(f"expression has no type yet: {type(expr).__name__}; run InferType first")
    return ty


def tensor_type_of(expr: Expr) -> TensorType:
    """The inferred type of an expression that is a tensor."""
    ty = type_of(expr)
    if not isinstance(ty, TensorType):
        raise TypeError(f"expected a tensor, got {ty}")
    return ty


def known_data(expr: Expr) -> np.ndarray[Any, Any] | None:
    """The elements of a tensor that are known at compile time: a constant's, or none where there are none.

    A tensor of a static shape without elements has one value, whoever computes it; None for all other expressions.
    """
    if isinstance(expr, Constant):
        return expr.data
    ty = expr.checked_type
    if isinstance(ty, TensorType) and ty.is_static and 0 in ty.shape:
        return np.zeros(ty.static_shape, ty.dtype.numpy)
    return None


def with_type(expr: ExprT, ty: Type | None) -> ExprT:
    """`expr` with `checked_type` set; the same object if it has that type already."""
    if expr.checked_type == ty:
        return expr
    copy = object.__new__(type(expr))
    for f in dataclasses.fields(expr):
        object.__setattr__(copy, f.name, getattr(expr, f.name))
    object.__setattr__(copy, "checked_type", ty)
    return copy


def call(op: Op, args: Iterable[Expr], attrs: Attrs = NO_ATTRS, span: Span | None = None) -> Call:
    """A call of an operator, typed at once where all arguments are typed.

    Raises AotcError (with `span` as location) where the operator's type rule rejects the arguments.
    """
    from_args = tuple(args)
    types = [a.checked_type for a in from_args]
    known = [t for t in types if t is not None]
    if len(known) != len(types):
        return Call(op, from_args, attrs, span)
    return Call(op, from_args, attrs, span, infer_op(op, attrs, known, span))


def check_arity(op: Op, count: int, span: Span | None = None) -> None:
    """Raises AotcError (code "arity") unless `op` takes `count` arguments."""
    if count != op.arity:
        raise AotcError("arity", f"{op.name}: expected {op.arity} arguments, got {count}", span=span)


def infer_op(op: Op, attrs: Attrs, types: list[Type], span: Span | None = None) -> Type:
    """The result type of `op` on argument types; errors are located at `span` and name the operator."""
    check_arity(op, len(types), span)
    try:
        return op.infer(attrs, types)
    except AotcError as error:
        raise AotcError(error.code, f"{op.name}: {error.diagnostics[0].message}", span=span) from error
