# SPDX-License-Identifier: Apache-2.0
"""The shape of an operator, as the graph sees it, and the table in which operators are found by name.

The graph floor knows what an operator *is*; the operators themselves live in
`aotc.relay.op`, which adds what needs tensor programs.  `install` is called once, by
`aotc.driver.wiring`.

    get_op("nn.relu").infer(NO_ATTRS, [TensorType((2,), "float32")])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from aotc.ir.attrs import REQUIRED, Attrs, NoAttrs, Takes
from aotc.ir.budget import Cost
from aotc.ir.diagnostics import AotcError, nearest
from aotc.ir.span import Span
from aotc.ir.types import TensorType, Type, tensor_types


class OpPattern(IntEnum):
    """How an operator takes part in fusion; the integer values are Relay's."""

    ELEMWISE = 0  # one output element from the same element of each input
    BROADCAST = 1  # the same, inputs broadcast
    INJECTIVE = 2  # each output element from one element of each input, anywhere
    COMM_REDUCE = 3  # a reduction
    OUT_ELEMWISE_FUSABLE = 4  # an anchor: elementwise work can follow in its store
    TUPLE = 7
    OPAQUE = 8  # never fused


@dataclass(frozen=True, slots=True)
class AxisMap:
    """How output axes relate to input axes: `inputs[j][k]` is the axis of input j that output axis k walks.

    None means that the output axis does not walk input j one to one there (broadcast,
    window, reduction). An axis may be mapped only if slicing the input along it slices
    the output and nothing else.
    """

    inputs: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument as a parameter of the operator's function.

    type    what is accepted, as text
    given   the default
    takes   what makes an expression of what is given
    """

    name: str
    type: str = "Expr"
    given: Any = REQUIRED
    takes: Takes | None = None


DATA: Final = (Arg("data"),)


def args(*names: str | Arg) -> tuple[Arg, ...]:
    """Arguments by their names."""
    return tuple(Arg(name) if isinstance(name, str) else name for name in names)


Types: TypeAlias = Sequence[Type]
"""Of the arguments of a call."""
Infer = Callable[[Any, Types], Type]
Refine = Callable[[Any, "Sequence[Type | None]"], "Sequence[Type | None]"]
Axes = Callable[[Any, Types], "AxisMap | None"]
Scratch = Callable[[Any, Types], int]
WIDEST: Final = 8
"""Bytes of the widest elements: references may compute in those."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Op:
    """One operator.

    name       Relay's name, e.g. "nn.conv2d"
    attrs      the class of its attributes
    args       the arguments; an operator over many tensors (concatenate) takes one tuple
    order      the names of all parameters of the operator's function; "" for the arguments, then the attributes
    doc        what it does: the function's docstring
    infer      (attrs, argument types) -> result type; raises AotcError for what is ill-typed
    reference  (attrs, *numpy arrays) -> array, or a tuple of arrays: the executable meaning.
               A tuple argument arrives as a tuple of arrays
    pattern    fusion kind
    axes       (attrs, argument types) -> AxisMap, or None where no axis is mapped
    refine     (attrs, argument types, None where unknown) -> the same list with what can be solved filled in
    scratch    (attrs, argument types) -> elements of the arrays that the reference makes on the way, where they are
               many more than those of its arguments and results; None where they are not
    """

    name: str
    attrs: type[Attrs] = NoAttrs
    args: tuple[Arg, ...] = DATA
    order: str = ""
    doc: str = ""
    infer: Infer
    reference: Callable[..., Any]
    pattern: OpPattern = OpPattern.OPAQUE
    axes: Axes | None = None
    refine: Refine | None = None
    scratch: Scratch | None = None

    @property
    def arity(self) -> int:
        """The number of arguments."""
        return len(self.args)

    @property
    def checked_type(self) -> Type | None:
        """An operator has no type of its own: its rule gives one per call."""
        return None

    @property
    def span(self) -> Span | None:
        return None

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def __str__(self) -> str:
        return self.name

    def work(self, attributes: Attrs, types: Types, result: Type) -> int:
        """About how many operations on scalars the reference takes for arguments of these static types."""
        return sum(t.numel for t in _tensors((*types, result)))

    def cost(self, attributes: Attrs, types: Types, result: Type) -> Cost:
        """What running the reference takes, the arrays of its arguments and results left out."""
        scratch = self.scratch(attributes, types) if self.scratch is not None else 0
        return Cost(self.work(attributes, types, result), scratch * WIDEST)

    @staticmethod
    def get(op_name: str) -> Op:
        """The operator called `op_name`; see `get_op`."""
        return get_op(op_name)


def _tensors(types: Types) -> list[TensorType]:
    return [tensor for ty in types for tensor in tensor_types(ty)]


@dataclass(slots=True)
class _Table:
    ops: Mapping[str, Op] = field(default_factory=lambda: MappingProxyType({}))
    attrs: dict[tuple[str, str], Any] = field(default_factory=dict)


_TABLE = _Table()


def install(ops: Mapping[str, Op]) -> None:
    """Make `ops` the table that `get_op` looks names up in."""
    _TABLE.ops = MappingProxyType(dict(ops))


def installed_ops() -> Mapping[str, Op]:
    """The installed operators by name."""
    return _TABLE.ops


def get_op(name: str) -> Op:
    """The operator called `name`; AotcError (code "unknown-op") with the nearest names if there is none."""
    op = _TABLE.ops.get(name)
    if op is None:
        raise AotcError("unknown-op", f"operator `{name}` not found", hint=nearest(name, _TABLE.ops))
    return op


def register_op_attr(op_name: str, attr_key: str, value: Any = None) -> Any:
    """Attach `value` to an operator under a key, beside what it is; a decorator without a value.

    The key "target.NAME" holds a function (call) -> bool: whether the external compiler
    NAME takes that call. A later value replaces an earlier one.  Raises AotcError (code
    "unknown-op") for names that no operator has.
    """
    if value is None:
        return lambda function: register_op_attr(op_name, attr_key, function)
    _TABLE.attrs[get_op(op_name).name, attr_key] = value
    return value


def get_op_attr(op_name: str, attr_key: str) -> Any:
    """What `register_op_attr` attached; None if nothing."""
    return _TABLE.attrs.get((op_name, attr_key))


def reset_op_attr(op_name: str, attr_key: str) -> None:
    """Detach what `register_op_attr` attached; harmless if there is nothing."""
    _TABLE.attrs.pop((op_name, attr_key), None)


def require(code: str, condition: bool, message: str | Callable[[], str]) -> None:
    """Raise AotcError(code, message) unless `condition`: one numbered constraint of a type rule."""
    if not condition:
        raise AotcError(code, message if isinstance(message, str) else message())
