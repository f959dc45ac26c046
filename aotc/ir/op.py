# SPDX-License-Identifier: Apache-2.0
"""Definition of an operator as the graph IR sees it, and the registry of operators by name.

The operators themselves are in `aotc.relay.op`, which adds their lowering to tensor programs.
`aotc.driver.operator_and_pass_registration` says where they are; the first lookup imports them.

    get_op("nn.relu").infer(NO_ATTRS, [TensorType((2,), "float32")])
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, ClassVar, Final, TypeAlias

from aotc.ir.attrs import REQUIRED, Attrs, NoAttrs, Takes
from aotc.ir.compilation_work_and_memory_limits import Cost
from aotc.ir.diagnostics import AotcError, did_you_mean_hint
from aotc.ir.frozen_dataclass import frozen
from aotc.ir.lazy_table import LazyTable
from aotc.ir.span import Span, current_span
from aotc.ir.types import TensorType, Type, tensor_types


class OpPattern(IntEnum):
    """Relay's fusion kinds of operators (elementwise, injective, reduction, ...), with Relay's
    integer values.
    """

    ELEMWISE = 0  # output element i depends on element i of each input
    BROADCAST = 1  # elementwise, with inputs broadcast
    INJECTIVE = 2  # each output element depends on one element of each input, at any position
    COMM_REDUCE = 3  # a reduction
    OUT_ELEMWISE_FUSABLE = 4  # convolution and the like: elementwise operators can be fused into its store
    TUPLE = 7
    OPAQUE = 8  # never fused


class PrecisionTreatment(IntEnum):
    """Treatment of an operator when a program is converted to 16-bit floats; the integer values are
    Relay's.
    """

    ALWAYS = 0  # always in 16 bits: dominates the time, and sums are accumulated in float32
    FOLLOW = 1  # in 16 bits if its arguments are
    NEVER = 2  # always in float32: results much larger than arguments, or long sums


class LayoutTreatment(Enum):
    """Treatment of an operator when the axes of its tensors are reordered."""

    CHOICE = "choice"  # an attribute names the layout, and any supported layout can be chosen
    FOLLOW = "follow"  # an attribute names the layout, which must be that of the data
    CARRY = "carry"  # axes are mapped one to one or named by attributes: any order is possible
    BARRIER = "barrier"  # arguments are needed in their original order


class QuantizationTreatment(Enum):
    """Treatment of an operator when its tensors are quantized to integers with scale and zero
    point.
    """

    PASS = "pass"  # applied to the integers unchanged: results have the arguments' scale and zero point
    RESCALE = "rescale"  # computed on the integers with constants derived from scales and attributes
    REFUSE = "refuse"  # needs dequantized arguments


@frozen
class AxisMap:
    """Correspondence of output axes to input axes: output axis k iterates over axis `inputs[j][k]`
    of input j.

    None means that output axis k does not correspond to one axis of input j (broadcast, window,
    reduction).  An axis may be mapped only if slicing the input along it slices the output and has
    no other effect.
    """

    inputs: tuple[tuple[int | None, ...], ...]


@frozen
class Arg:
    """An argument of an operator, as a parameter of the operator's Python function.

    type    accepted values as text
    given   default value
    takes   conversion of an accepted value to an expression
    """

    name: str
    type: str = "Expr"
    given: Any = REQUIRED
    takes: Takes | None = None


DATA_ARGUMENT: Final = (Arg("data"),)


def declare_arguments(*names_or_args: str | Arg) -> tuple[Arg, ...]:
    """Return the argument declarations of an operator, given as names or `Arg` objects."""
    return tuple(Arg(name) if isinstance(name, str) else name for name in names_or_args)


#: The types of the arguments of a call.
Types: TypeAlias = Sequence[Type]
Infer = Callable[[Any, Types], Type]
Refine = Callable[[Any, "Sequence[Type | None]"], "Sequence[Type | None]"]
Axes = Callable[[Any, Types], "AxisMap | None"]
Scratch = Callable[[Any, Types], int]
Moved = Callable[[Any, Types, Callable[[int], int]], "Attrs | None"]
#: Bytes of the widest element type, in which references may compute.
MAX_ELEMENT_BYTES: Final = 8


@frozen(kw_only=True, eq=False)
class Op:
    """An operator of the graph IR.

    name       Relay's name, e.g. "nn.conv2d"
    attrs      class of the attributes
    args       the arguments; an operator over many tensors (concatenate) has one tuple argument
    order      names of all parameters of the operator's function in order; "": arguments, then attributes
    doc        docstring of the operator's function
    infer      (attrs, argument types) -> result type; raises AotcError for invalid types
    reference  (attrs, *numpy arrays) -> array or tuple of arrays: the executable definition.
               A tuple argument is passed as a tuple of arrays
    pattern    fusion kind
    axes       (attrs, argument types) -> AxisMap, or None if no axis is mapped
    refine     (attrs, argument types, None if unknown) -> the list with types filled in that follow
    scratch    (attrs, argument types) -> number of elements of temporary arrays of the reference, if
               it exceeds the size of arguments and results by far; None otherwise
    finds      for an operator that gives a name to a size which a run finds: the attribute that is the size, and
               the position of the argument whose one element is its value

    The following fields are derived from the pattern, the axis map and names of attributes if None:

    layout     treatment under reordered axes, see `layout_treatment`; or the layout, as letters, that data
               and result of that rank always have
    moved      (attrs, argument types, function from an axis of the data to its new position) ->
               attributes for the reordered data, None if the original order is required.
               If given, no other property of the operator may depend on the order of axes
    precision  treatment in narrower floating types, see `precision_treatment`
    quantized  treatment on quantized tensors, see `quantization_treatment`
    """

    name: str
    attrs: type[Attrs] = NoAttrs
    args: tuple[Arg, ...] = DATA_ARGUMENT
    order: str = ""
    doc: str = ""
    infer: Infer
    reference: Callable[..., Any]
    pattern: OpPattern = OpPattern.OPAQUE
    axes: Axes | None = None
    refine: Refine | None = None
    scratch: Scratch | None = None
    finds: tuple[str, int] | None = None
    layout: LayoutTreatment | str | None = None
    moved: Moved | None = None
    precision: PrecisionTreatment | None = None
    quantized: QuantizationTreatment | None = None

    #: Formats the operator as Relay text; set by package `aotc.relay`.
    astext: ClassVar[Callable[..., str]]
    #: True if there is a reference; operators registered by programs have a type only.
    computed: ClassVar[bool] = True

    @property
    def default_data_and_kernel_layouts(self) -> tuple[str, str]:
        """The default layouts of data and kernel, as named by the attributes; "" for a layout not
        named.
        """
        default = {f.name: f.default for f in fields(self.attrs)}
        data = default.get("data_layout", default.get("layout", ""))
        return str(data), str(default.get("kernel_layout", ""))

    @property
    def layout_treatment(self) -> LayoutTreatment:
        """The treatment under reordered axes: as declared, else CHOICE if attributes name a layout
        of a kernel or a single input, CARRY if axes are mapped, BARRIER otherwise.

        For CARRY, the axis map of each call decides which axes can be reordered.
        """
        if isinstance(self.layout, LayoutTreatment):
            return self.layout
        data, kernel = self.default_data_and_kernel_layouts
        if kernel or (data and self.arity == 1):
            return LayoutTreatment.CHOICE
        return LayoutTreatment.CARRY if self.axes is not None else LayoutTreatment.BARRIER

    @property
    def precision_treatment(self) -> PrecisionTreatment | None:
        """The treatment in 16-bit floats: as declared, else ALWAYS for contractions, FOLLOW for
        elementwise and injective operators, NEVER for other reductions.

        None for opaque operators, about which nothing is known.
        """
        if self.precision is not None or self.pattern is OpPattern.OPAQUE:
            return self.precision
        if self.pattern <= OpPattern.INJECTIVE:
            return PrecisionTreatment.FOLLOW
        return PrecisionTreatment.ALWAYS if self.is_contraction else PrecisionTreatment.NEVER

    @property
    def quantization_treatment(self) -> QuantizationTreatment:
        """The treatment on quantized tensors: as declared, else RESCALE for contractions, PASS for
        operators that only move elements of one tensor, REFUSE for all others.
        """
        if self.quantized is not None:
            return self.quantized
        if self.is_contraction:
            return QuantizationTreatment.RESCALE
        injective = self.arity == 1 and self.pattern in (OpPattern.BROADCAST, OpPattern.INJECTIVE)
        return QuantizationTreatment.PASS if injective else QuantizationTreatment.REFUSE

    @property
    def is_data_movement(self) -> bool:
        """True if the operator only moves or repeats elements of one tensor."""
        injective = self.arity == 1 and self.pattern in (OpPattern.BROADCAST, OpPattern.INJECTIVE)
        return injective and self.quantization_treatment is QuantizationTreatment.PASS

    @property
    def is_contraction(self) -> bool:
        """True if the operator sums products (convolution, matrix product): it has an attribute
        `out_dtype`.
        """
        anchor = self.pattern is OpPattern.OUT_ELEMWISE_FUSABLE
        return anchor and any(f.name == "out_dtype" for f in fields(self.attrs))

    @property
    def arity(self) -> int:
        """The number of arguments of the operator."""
        return len(self.args)

    @property
    def checked_type(self) -> Type | None:
        """Always None: an operator has no type of its own, since `infer` gives one for each call."""
        return None

    @property
    def span(self) -> Span | None:
        return None

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def __str__(self) -> str:
        return self.name

    def reference_operation_count(self, attributes: Attrs, argument_types: Types, result_type: Type) -> int:
        """Return the approximate number of scalar operations of the reference on arguments of
        static types.
        """
        return sum(t.numel for t in _flatten_to_tensor_types((*argument_types, result_type)))

    def reference_cost(self, attributes: Attrs, argument_types: Types, result_type: Type) -> Cost:
        """Return the cost of running the reference: operations, and bytes of temporary arrays."""
        scratch = self.scratch(attributes, argument_types) if self.scratch is not None else 0
        return Cost(
            self.reference_operation_count(attributes, argument_types, result_type), scratch * MAX_ELEMENT_BYTES
        )

    @staticmethod
    def get(op_name: str) -> Op:
        """Return the operator called `op_name`, as `get_op` does; raise AotcError if there is none."""
        return get_op(op_name)

    @property
    def num_inputs(self) -> int:
        """The number of arguments of the operator, under Relay's name."""
        return self.arity

    def get_attr(self, attr_name: str) -> Any:
        """Return the value attached to the operator under a key by `register_op_attr`; None if
        there is none.
        """
        return get_op_attr(self.name, attr_name)

    def set_attr(self, attr_name: str, value: Any, plevel: int = 10) -> None:
        """Attach a value to the operator under a key; see `register_op_attr`."""
        register_op_attr(self.name, attr_name, value, plevel)

    def reset_attr(self, attr_name: str) -> None:
        """Remove the value attached to the operator under a key, if any."""
        reset_op_attr(self.name, attr_name)


def _flatten_to_tensor_types(types: Types) -> list[TensorType]:
    return [tensor for ty in types for tensor in tensor_types(ty)]


@dataclass(slots=True)
class _Table:
    ops: LazyTable[Op] = field(default_factory=LazyTable)
    attrs: dict[tuple[str, str], tuple[Any, int]] = field(default_factory=dict)


_OP_REGISTRY = _Table()


def install_op_table(ops: Mapping[str, Op] | Callable[[], Mapping[str, Op]]) -> None:
    """Install the table of operators in which `get_op` looks up names.

    ops    operators by name, or a function that returns them, called at the first lookup
    """
    _OP_REGISTRY.ops.install(ops)


def installed_ops() -> Mapping[str, Op]:
    """Return all operators known to the compiler, by name."""
    return _OP_REGISTRY.ops.entries()


def get_op(name: str, extra_suggestions: Iterable[str] = ()) -> Op:
    """Return the operator called `name`; raise AotcError (code "unknown-op") if there is none.

    The hint suggests similar names of operators or of `extra_suggestions`.
    """
    op = installed_ops().get(name)
    if op is None:
        raise AotcError(
            "unknown-op",
            f"operator `{name}` not found",
            hint=did_you_mean_hint(name, [*installed_ops(), *extra_suggestions]),
        )
    return op


def register_op_attr(op_name: str, attr_key: str, value: Any = None, level: int = 10) -> Any:
    """Attach `value` to an operator under a key; without a value, return a decorator that does so.

    level   priority: a value replaces an earlier one of equal or lower level

    Passes use these keys: "target.NAME", a function (call) -> bool that is True if the external
    compiler NAME accepts the call; "FTVMLegalize" and "FTVMAlterOpLayout", see `aotc.relay.op.op`.
    Raises AotcError (code "unknown-op") for an unknown operator.
    """
    if value is None:
        return lambda function: register_op_attr(op_name, attr_key, function, level)
    key = get_op(op_name).name, attr_key
    if level >= _OP_REGISTRY.attrs.get(key, (None, level))[1]:
        _OP_REGISTRY.attrs[key] = value, level
    return value


def get_op_attr(op_name: str, attr_key: str) -> Any:
    """Return the value attached to an operator under a key; None if there is none."""
    return _OP_REGISTRY.attrs.get((op_name, attr_key), (None,))[0]


def is_any_op_attr_registered(attr_key: str) -> bool:
    """Return True if any operator has a value attached under a key."""
    return any(key == attr_key for _, key in _OP_REGISTRY.attrs)


def reset_op_attr(op_name: str, attr_key: str) -> None:
    """Remove the value attached to an operator under a key, if any."""
    _OP_REGISTRY.attrs.pop((op_name, attr_key), None)


def require(error_code: str, condition: bool, message: str | Callable[[], str], hint: str = "") -> None:
    """Raise AotcError with a code and a message unless `condition` is True; used by type rules of
    operators.
    """
    if not condition:
        raise AotcError(error_code, message if isinstance(message, str) else message(), hint=hint)


def _op_usage_hint(op: Op) -> str:
    """Return the usage of an operator for a hint: its name, arguments and the first sentence of its
    docstring.
    """
    names = ", ".join(a.name for a in op.args)
    return f"{op.name}({names}): {' '.join(op.doc.partition(chr(10) * 2)[0].split())}"


def check_arity(op: Op, argument_count: int, span: Span | None = None) -> None:
    """Raise AotcError (code "arity") unless `op` takes `argument_count` arguments."""
    if argument_count != op.arity:
        text = f"{op.name}: expected {op.arity} arguments, got {argument_count}"
        raise AotcError("arity", text, span=span, hint=_op_usage_hint(op))


def infer_op_result_type(op: Op, attrs: Attrs, argument_types: list[Type], span: Span | None = None) -> Type:
    """Infer the result type of `op` from attributes and argument types.

    Errors are located at `span` and name the operator.
    """
    check_arity(op, len(argument_types), span)
    try:
        return op.infer(attrs, argument_types)
    except AotcError as error:
        first = error.diagnostics[0]
        # for a node of an imported model, the usage of `op` would not help the user
        place = span or current_span()
        hint = first.hint or ("" if place and place.node else _op_usage_hint(op))
        raise AotcError(error.code, f"{op.name}: {first.message}", span=span, hint=hint) from error


def __getattr__(name: str) -> type[PrecisionTreatment]:
    if name == "Precision":
        warnings.warn("aotc.ir.op.Precision is now named PrecisionTreatment", DeprecationWarning, stacklevel=2)
        return PrecisionTreatment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
