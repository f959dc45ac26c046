# SPDX-License-Identifier: Apache-2.0
"""The shape of an operator, as the graph sees it, and the table in which operators are found by name.

The graph floor knows what an operator *is*; the operators themselves live in
`aotc.relay.op`, which adds what needs tensor programs.  `install` is called once, by
`aotc.driver.dependency_injection`.

    get_op("nn.relu").infer(NO_ATTRS, [TensorType((2,), "float32")])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from aotc.ir.attrs import REQUIRED, Attrs, NoAttrs, Takes
from aotc.ir.compile_time_limits import Cost
from aotc.ir.diagnostics import AotcError, nearest
from aotc.ir.frozen_dataclass import frozen
from aotc.ir.span import Span, current_span
from aotc.ir.types import TensorType, Type, tensor_types


class OpPattern(IntEnum):
    """How an operator takes part in fusion; the integer values are Relay's."""

    ELEMWISE = 0  # one output element from the element at its place in each input
    BROADCAST = 1  # elementwise, inputs broadcast
    INJECTIVE = 2  # each output element from one element of each input, anywhere
    COMM_REDUCE = 3  # a reduction
    OUT_ELEMWISE_FUSABLE = 4  # an anchor: elementwise work can follow in its store
    TUPLE = 7
    OPAQUE = 8  # never fused


class Precision(IntEnum):
    """What becomes of an operator where a program is computed in 16 bits; the integer values are Relay's."""

    ALWAYS = 0  # in 16 bits: where the time goes, and sums are kept in float32
    FOLLOW = 1  # in 16 bits if what it is computed from is
    NEVER = 2  # in float32: results far larger than arguments, and long sums


class Layout(Enum):
    """What becomes of an operator where tensors get their axes in another order."""

    CHOICE = "choice"  # an attribute names the layout, which the user may choose
    FOLLOW = "follow"  # an attribute names the layout, which is that of the data
    CARRY = "carry"  # axes are mapped one to one, or named by attributes: the order passes through
    BARRIER = "barrier"  # the arguments must be as they were


class Quantized(Enum):
    """What becomes of an operator where its tensors are integers with a scale and a zero point."""

    PASS = "pass"  # the operator itself on the integers: results have the arguments' scale and zero point
    RESCALE = "rescale"  # computed on the integers with numbers worked out from the scales and the attributes
    REFUSE = "refuse"  # the real numbers are needed


@frozen
class AxisMap:
    """How output axes relate to input axes: `inputs[j][k]` is the axis of input j that output axis k walks.

    None means that the output axis does not walk input j one to one there (broadcast,
    window, reduction). An axis may be mapped only if slicing the input along it slices
    the output and nothing else.
    """

    inputs: tuple[tuple[int | None, ...], ...]


@frozen
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


#: The types of the arguments of a call.
Types: TypeAlias = Sequence[Type]
Infer = Callable[[Any, Types], Type]
Refine = Callable[[Any, "Sequence[Type | None]"], "Sequence[Type | None]"]
Axes = Callable[[Any, Types], "AxisMap | None"]
Scratch = Callable[[Any, Types], int]
Moved = Callable[[Any, Types, Callable[[int], int]], "Attrs | None"]
#: Bytes of the widest elements: references may compute in those.
WIDEST: Final = 8


@frozen(kw_only=True, eq=False)
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
    refine     (attrs, argument types, None where unknown) -> that list with what can be solved filled in
    scratch    (attrs, argument types) -> elements of the arrays that the reference makes on the way, where they are
               many more than those of its arguments and results; None where they are not

    What follows is derived where it is None, from the pattern, the axis map and the names of attributes:

    layout     how it behaves when axes are brought into another order, see `layout_kind`; or the layout, as letters,
               that data and result of that rank always have
    moved      (attrs, argument types, where axis k of the data is now) -> the attributes for data in that order, None
               if it must see the data as it was.  Stating it promises that nothing else depends on the order of axes
    precision  how it behaves in narrower floating types, see `precision_kind`
    quantized  how it behaves on quantized tensors, see `quantized_kind`
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
    layout: Layout | str | None = None
    moved: Moved | None = None
    precision: Precision | None = None
    quantized: Quantized | None = None

    #: Its name as a program; package `aotc.relay` says how.
    astext: ClassVar[Callable[..., str]]
    #: Whether there is a reference: operators that programs add have a type alone.
    computed: ClassVar[bool] = True

    @property
    def named_layouts(self) -> tuple[str, str]:
        """The layouts of data and kernel that the attributes name by default; "" for what they do not name."""
        default = {f.name: f.default for f in fields(self.attrs)}
        data = default.get("data_layout", default.get("layout", ""))
        return str(data), str(default.get("kernel_layout", ""))

    @property
    def layout_kind(self) -> Layout:
        """Operators whose attributes name a layout have a choice; axes of others are carried if they are mapped.

        Whether a call really carries them, its axis map tells.
        """
        if isinstance(self.layout, Layout):
            return self.layout
        data, kernel = self.named_layouts
        if kernel or (data and self.arity == 1):
            return Layout.CHOICE
        return Layout.CARRY if self.axes is not None else Layout.BARRIER

    @property
    def precision_kind(self) -> Precision | None:
        """Contractions are reduced, other operators over many elements are not, those over single elements follow.

        None for opaque operators, of which nothing is known.
        """
        if self.precision is not None or self.pattern is OpPattern.OPAQUE:
            return self.precision
        if self.pattern <= OpPattern.INJECTIVE:
            return Precision.FOLLOW
        return Precision.ALWAYS if self.is_contraction else Precision.NEVER

    @property
    def quantized_kind(self) -> Quantized:
        """What is stated, else by the pattern: moves of one tensor pass, contractions are rescaled, others refuse."""
        if self.quantized is not None:
            return self.quantized
        if self.is_contraction:
            return Quantized.RESCALE
        injective = self.arity == 1 and self.pattern in (OpPattern.BROADCAST, OpPattern.INJECTIVE)
        return Quantized.PASS if injective else Quantized.REFUSE

    @property
    def moves(self) -> bool:
        """Whether it does nothing but move elements of one tensor, or repeat them."""
        injective = self.arity == 1 and self.pattern in (OpPattern.BROADCAST, OpPattern.INJECTIVE)
        return injective and self.quantized_kind is Quantized.PASS

    @property
    def is_contraction(self) -> bool:
        """Whether it sums products: an anchor whose attributes name the type of the sums."""
        anchor = self.pattern is OpPattern.OUT_ELEMWISE_FUSABLE
        return anchor and any(f.name == "out_dtype" for f in fields(self.attrs))

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

    @property
    def num_inputs(self) -> int:
        """Relay's word for the number of arguments."""
        return self.arity

    def get_attr(self, attr_name: str) -> Any:
        """What `register_op_attr` attached; None if nothing."""
        return get_op_attr(self.name, attr_name)

    def set_attr(self, attr_name: str, value: Any, plevel: int = 10) -> None:
        """Attach a value; see `register_op_attr`."""
        register_op_attr(self.name, attr_name, value, plevel)

    def reset_attr(self, attr_name: str) -> None:
        """Detach a value; harmless if there is none."""
        reset_op_attr(self.name, attr_name)


def _tensors(types: Types) -> list[TensorType]:
    return [tensor for ty in types for tensor in tensor_types(ty)]


@dataclass(slots=True)
class _Table:
    ops: Mapping[str, Op] = field(default_factory=lambda: MappingProxyType({}))
    attrs: dict[tuple[str, str], tuple[Any, int]] = field(default_factory=dict)


_TABLE = _Table()


def install(ops: Mapping[str, Op]) -> None:
    """Make `ops` the table that `get_op` looks names up in."""
    _TABLE.ops = MappingProxyType(dict(ops))


def installed_ops() -> Mapping[str, Op]:
    """The installed operators by name."""
    return _TABLE.ops


def get_op(name: str, others: Iterable[str] = ()) -> Op:
    """The operator called `name`; AotcError (code "unknown-op") if there is none: its hint may be one of `others`."""
    op = _TABLE.ops.get(name)
    if op is None:
        raise AotcError("unknown-op", f"operator `{name}` not found", hint=nearest(name, [*_TABLE.ops, *others]))
    return op


def register_op_attr(op_name: str, attr_key: str, value: Any = None, level: int = 10) -> Any:
    """Attach `value` to an operator under a key, beside what it is; a decorator without a value.

    level   a later value replaces one of the same or a lower level

    Passes know these keys: "target.NAME" holds a function (call) -> bool: whether the external compiler NAME takes
    that call; "FTVMLegalize" and "FTVMAlterOpLayout" what `aotc.relay.op.op` says.  Raises AotcError (code
    "unknown-op") for names that no operator has.
    """
    if value is None:
        return lambda function: register_op_attr(op_name, attr_key, function, level)
    key = get_op(op_name).name, attr_key
    if level >= _TABLE.attrs.get(key, (None, level))[1]:
        _TABLE.attrs[key] = value, level
    return value


def get_op_attr(op_name: str, attr_key: str) -> Any:
    """What `register_op_attr` attached; None if nothing."""
    return _TABLE.attrs.get((op_name, attr_key), (None,))[0]


def is_attached(attr_key: str) -> bool:
    """Whether any operator has something under a key."""
    return any(key == attr_key for _, key in _TABLE.attrs)


def reset_op_attr(op_name: str, attr_key: str) -> None:
    """Detach what `register_op_attr` attached; harmless if there is nothing."""
    _TABLE.attrs.pop((op_name, attr_key), None)


def require(code: str, condition: bool, message: str | Callable[[], str], hint: str = "") -> None:
    """Raise AotcError(code, message) unless `condition`: one numbered constraint of a type rule."""
    if not condition:
        raise AotcError(code, message if isinstance(message, str) else message(), hint=hint)


def _usage(op: Op) -> str:
    """How an operator is called and, in a sentence, what for."""
    names = ", ".join(a.name for a in op.args)
    return f"{op.name}({names}): {' '.join(op.doc.partition(chr(10) * 2)[0].split())}"


def check_arity(op: Op, count: int, span: Span | None = None) -> None:
    """Raises AotcError (code "arity") unless `op` takes `count` arguments."""
    if count != op.arity:
        text = f"{op.name}: expected {op.arity} arguments, got {count}"
        raise AotcError("arity", text, span=span, hint=_usage(op))


def infer_op(op: Op, attrs: Attrs, types: list[Type], span: Span | None = None) -> Type:
    """The result type of `op` on argument types; errors are located at `span` and name the operator."""
    check_arity(op, len(types), span)
    try:
        return op.infer(attrs, types)
    except AotcError as error:
        first = error.diagnostics[0]
        # who wrote the node of a model has not called `op`
        place = span or current_span()
        hint = first.hint or ("" if place and place.node else _usage(op))
        raise AotcError(error.code, f"{op.name}: {first.message}", span=span, hint=hint) from error
