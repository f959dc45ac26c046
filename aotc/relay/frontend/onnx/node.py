# SPDX-License-Identifier: Apache-2.0
"""An ONNX node, and how its inputs and attributes are passed to a converter.

A converter is a function from inputs and attributes to expressions. Its signature states which ones
it takes:

    def pool(x: Expr, shape: Ints | None = None, *, axis: Axis, alpha: float = 1.0, node: Node) -> Expr: ...

Positional parameters are the inputs of the node in order (`*parts`: all remaining ones). Keyword
parameters are its attributes (`**rest`: all remaining ones), except `node`, which is the node
itself. The default of a parameter applies where the node omits the input or attribute.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from aotc.ir import AotcError, Array, Dim, DType, SymDim, TensorType, TupleType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis, converter_parameters
from aotc.relay.frontend.onnx import microsoft_operator_schemas
from aotc.relay.frontend.onnx.load import dtype_of_onnx_type, onnx_type_of_dtype
from aotc.relay.frontend.onnx.run_time_values import RunTimeSequences
from aotc.relay.frontend.quantization import is_quantize_call
from aotc.relay.frontend.size_conditions import require_values_within
from aotc.relay.frontend.size_operands import OperandBounds, operand_bounds
from aotc.relay.frontend.size_values import size_values
from aotc.relay.graph_api import Expr, Function, Var, compile_time_elements, tensor_type_of, type_of

#: Type of a converter's parameter for an input whose value must be known at compile time. If a
#: version of the operator has an attribute of this name, its value is passed instead.
KnownArray: TypeAlias = Annotated[Array, "known"]
#: Types of converters' parameters for integers that must be known at compile time: a list, or a
#: single one.
KnownInts: TypeAlias = Annotated[list[int], "known"]
KnownInt: TypeAlias = Annotated[int, "known"]
#: Type of a converter's parameter for a list of numbers, which may be sizes that are known at run time
#: only: numbers and dimensions.
Sizes: TypeAlias = Annotated[list[Dim], "sizes"]
#: Type of a converter's parameter for a data type that is None (code 0 in the model) where the
#: converter chooses it.
OptionalDType: TypeAlias = Annotated[DType | None, "stated"]
#: Type of a converter's parameter for a sequence, passed as a list of tensors.
TensorList: TypeAlias = Annotated[list[Expr], "sequence"]


@dataclass(frozen=True, slots=True)
class SizeInput:
    """An input of an ONNX node, or an attribute, whose values may be known at run time only.

    Used as the type of a converter's parameter: the converter states which values its operator takes.
    """

    node: OnnxNode
    index: int
    name: str

    @property
    def count(self) -> int:
        """The number of values."""
        if self.name in self.node.attrs:
            return int(np.size(self.node.attrs[self.name]))
        return math.prod(g.shape(self.node[self.index], f"`{self.name}`"))

    @property
    def vector(self) -> Expr:
        """The values as an int64 tensor of rank 1."""
        if self.name in self.node.attrs:
            return g.constant(np.reshape(self.node.attrs[self.name], -1), "int64")
        values = g.cast(self.node[self.index], "int64")
        return g.reshape(values, (math.prod(g.shape(values, f"`{self.name}`")),))

    def is_computed(self, least: int | None, most: int | None) -> bool:
        """Return True if a run computes the values, so that they are no sizes; see `within`."""
        if self.name in self.node.attrs or compile_time_elements(self.node[self.index]) is not None:
            return False
        with operand_bounds(OperandBounds(least, most, clipped=True)):
            return size_values(self.node[self.index]) is None

    def within(
        self, least: int | None, most: int | None, *, clipped: bool = False, truncated: bool = False
    ) -> list[Dim]:
        """Return the values: numbers, and dimensions where they are known at run time only.

        least, most    the values that the operator takes of what is known at run time only; None for a
                       largest one that the caller of the compiler must state, and for a smallest one that
                       is as far below 0
        clipped        True if other values count as the nearest one of these
        truncated      True if floats are truncated to integers

        Raises AotcError (code "onnx-runtime-shape") if they are not known, even as formulas.
        """
        with operand_bounds(OperandBounds(least, most, clipped, truncated)):
            values = self.node.sizes_of_attribute_or_input(self.index, self.name)
        assert values is not None
        if not clipped:
            text = f"`{self.name}` of {self.node.op_type}"
            require_values_within("onnx-runtime-shape", values, least, most, text)
        return values


class ClosedSubgraph(NamedTuple):
    """An ONNX subgraph, converted to expressions of its inputs and of new variables.

    outputs   the outputs of the graph
    captured  the expression of an enclosing graph for which each of the new variables stands
    """

    outputs: list[Expr]
    captured: dict[Var, Expr]


@dataclass(frozen=True, slots=True)
class Strings:
    """A tensor of strings that a converter returns, as slots of bytes (`aotc.ir.string_slots`).

    count   an integer of shape (1,): the number of strings along `axis`, of those for which there is room; None if
            all of them exist
    """

    slots: Expr
    count: Expr | None = None
    axis: int = 0


@dataclass(slots=True)
class OnnxNode:
    """The ONNX node that is being converted, with its inputs and attributes.

    inputs           expressions; None for omitted optional inputs
    attrs            attributes by name, with the defaults of the operator's version filled in
    since            operator version: the newest operator set, up to the model's, that changed the
                     operator
    is_output_named  for each output, True if it has a name (an unnamed output need not be computed)
    tensor           function that decodes the value of a tensor attribute
    subgraph         function that converts a graph attribute (a loop body) with given inputs and
                     returns its outputs
    branch           function that converts a graph attribute without inputs, whose outputs may be strings
    closed_subgraph  function that does so with variables for what the graph reads of its enclosing
                     graphs; see ClosedSubgraph
    functions        the global functions of the module other than @main, by name, to which
                     converters add loops
    has_loops        False if a loop is to be unrolled wherever its trip count is known
    next_random_key  function that returns the key of the numbers of a random node without a seed
    string_inputs    positions of the inputs that are tensors of strings, as slots of bytes
    counted_strings  inputs whose number of strings a run finds, with room for all that there may be, by position
    sequences        the expressions that are sequences of run-time length
    """

    op_type: str
    inputs: list[Expr | None]
    attrs: Mapping[str, Any]
    since: int
    is_output_named: list[bool]
    tensor: Callable[[TensorProto], Array]
    subgraph: Callable[[GraphProto, Sequence[Expr]], list[Expr]]
    branch: Callable[[GraphProto], list[Expr | Strings]]
    closed_subgraph: Callable[[GraphProto, Sequence[Expr]], ClosedSubgraph]
    functions: dict[str, Function]
    has_loops: bool
    next_random_key: Callable[[], int]
    string_inputs: frozenset[int] = frozenset()
    counted_strings: Mapping[int, Strings] = field(default_factory=dict)
    sequences: RunTimeSequences = field(default_factory=RunTimeSequences)

    def __getitem__(self, index: int) -> Expr:
        """Return an input expression of the ONNX node. Raises AotcError (code "onnx-input") if the
        node omits it.
        """
        input_expr = self.optional_input(index)
        if input_expr is None:
            raise AotcError("onnx-input", f"{self.op_type} needs input {index}")
        return input_expr

    def optional_input(self, index: int) -> Expr | None:
        """Return an input expression of the ONNX node, or None if the node omits it."""
        return self.inputs[index] if index < len(self.inputs) else None

    def needs_output(self, index: int) -> bool:
        """Return True if the ONNX node names the output `index`, so that it must be computed."""
        return index < len(self.is_output_named) and self.is_output_named[index]

    def constant_value_of_attribute_or_input(self, input_index: int, attribute_name: str) -> Array | None:
        """Return the compile-time value of the attribute `attribute_name` of an ONNX node, or else
        of its input `input_index`; None if the node omits both.

        Raises AotcError (code "onnx-runtime-shape") if the value depends on run-time data.
        """
        if attribute_name in self.attrs:
            return np.asarray(self.attrs[attribute_name])
        input_expr = self.optional_input(input_index)
        if input_expr is None:
            return None
        value = compile_time_elements(input_expr)
        if value is None:
            sizes = self._size_values(input_expr, attribute_name)
            if symbolic := [str(v) for v in sizes.reshape(-1) if isinstance(v, SymDim)]:
                text = f"`{attribute_name}` of {self.op_type} depends on sizes that are known at run time only"
                raise AotcError("onnx-runtime-shape", f"{text}: {', '.join(symbolic)}")
            value = sizes.astype(tensor_type_of(input_expr).dtype.numpy)
        return value

    def _size_values(self, input_expr: Expr, name: str) -> Array:
        """Return the values of an input that holds sizes: numbers and dimensions. Raises AotcError (code
        "onnx-runtime-shape") if they are not known.
        """
        values = size_values(input_expr)
        if values is None:
            raise AotcError("onnx-runtime-shape", f"`{name}` of {self.op_type} is not known at compile time")
        return values

    def sizes_of_attribute_or_input(self, input_index: int, attribute_name: str) -> list[Dim] | None:
        """Return the numbers and dimensions in the attribute `attribute_name` of an ONNX node, or else in
        its input `input_index`; None if the node omits both.

        Raises AotcError (code "onnx-runtime-shape") if they are not known, even as formulas.
        """
        input_expr = self.optional_input(input_index)
        if attribute_name in self.attrs or input_expr is None or compile_time_elements(input_expr) is not None:
            value = self.constant_value_of_attribute_or_input(input_index, attribute_name)
            return None if value is None else [int(v) for v in value.reshape(-1)]
        return list(self._size_values(input_expr, attribute_name).reshape(-1))

    def positional_converter_argument(self, index: int, parameter: Parameter) -> Any:
        """Return the value to pass for a positional parameter of a converter: an input expression,
        the tensors of a sequence, or a value known at compile time, as the parameter's annotation
        demands.
        """
        name, annotation, needed = parameter.name, parameter.annotation, parameter.default is Parameter.empty
        if annotation == TensorList:
            return sequence_elements(self[index])
        if annotation is SizeInput:
            given = name in self.attrs or self.optional_input(index) is not None
            require("onnx-input", given or not needed, f"{self.op_type} requires the input `{name}`, which is missing")
            return SizeInput(self, index, name) if given else parameter.default
        if annotation not in (KnownArray, KnownInts, KnownInt, Sizes):
            return self[index] if needed else self.optional_input(index)
        value: Any
        if annotation == Sizes:
            value = self.sizes_of_attribute_or_input(index, name)
        else:
            value = self.constant_value_of_attribute_or_input(index, name)
        require(
            "onnx-input",
            value is not None or not needed,
            f"{self.op_type} requires the input `{name}`, which is missing",
        )
        if value is None:
            return parameter.default
        if annotation in (KnownArray, Sizes):
            return value
        numbers = [int(v) for v in value.reshape(-1)]
        if annotation == KnownInts:
            return numbers
        require("onnx-input", len(numbers) == 1, f"{self.op_type} requires `{name}` to be a single value")
        return numbers[0]

    def keyword_converter_argument(self, parameter: Parameter) -> Any:
        """Return the value to pass for a keyword parameter of a converter: an attribute, converted
        as the parameter's annotation demands, or the node itself for `node`.

        Data types are stored as codes, and in operator sets 1 to 5 as names.
        """
        if parameter.name == "node":
            return self
        value = self.attrs.get(parameter.name, parameter.default)
        annotation = parameter.annotation
        if annotation == Axis:
            return g.normalize_axis(value, g.rank(self[0]))
        if annotation in (DType, OptionalDType) and type(value) in (int, str) and (value or annotation is DType):
            code = value if isinstance(value, int) else TensorProto.DataType.Value(value)
            return dtype_of_onnx_type(code, f"`{parameter.name}` of {self.op_type}")
        return bool(value) if annotation is bool else value


def sequence_elements(sequence: Expr) -> list[Expr]:
    """Return the tensors of a sequence. Raises AotcError (code "onnx-sequence") for a tensor."""
    ty = type_of(sequence)
    if not isinstance(ty, TupleType):
        raise AotcError("onnx-sequence", "expected a sequence, found a tensor")
    return [g.field(sequence, k) for k in range(len(ty.fields))]


#: One result of a converter; None for an output that is not computed.
ConvertedOutput: TypeAlias = Expr | Strings | None
Converted: TypeAlias = Expr | Strings | Sequence[ConvertedOutput]
#: A function that converts a node to one expression, or to one per output (None for an output that
#: is not computed).
Converter: TypeAlias = Callable[..., Converted]
Table: TypeAlias = Mapping[str, Converter]


def table_by_function_name(*converters: Converter) -> Table:
    """Return a table of ONNX converters by operator names, which are derived from the names of the
    functions: `_max_pool` converts MaxPool.
    """
    return {"".join(map(str.capitalize, c.__name__.split("_"))): c for c in converters}


def call_converter(converter: Converter, node: OnnxNode) -> Converted:
    """Call a converter with the inputs and attributes of an ONNX node that its signature demands,
    and return its result.
    """
    inputs: list[Any] = []
    named: dict[str, Any] = {}
    rest = dict(node.attrs)
    for parameter in converter_parameters(converter):
        match parameter.kind:
            case Parameter.VAR_POSITIONAL:
                inputs += [node[k] for k in range(len(inputs), len(node.inputs))]
            case Parameter.KEYWORD_ONLY:
                named[parameter.name] = node.keyword_converter_argument(parameter)
                rest.pop(parameter.name, None)
            case Parameter.VAR_KEYWORD:
                named |= rest
            case _:
                inputs.append(node.positional_converter_argument(len(inputs), parameter))
    return converter(*inputs, **named)


# --- attributes


def decode_attribute(attribute: AttributeProto) -> Any:
    """Return the Python value of an ONNX attribute, with bytes decoded to text; tensors and graphs
    remain protobuf messages.

    Raises AotcError (code "onnx-attribute") for a list of strings that are not UTF-8: these may be data.
    """
    value = helper.get_attribute_value(attribute)
    if not isinstance(value, list):
        return _decode_if_bytes(value, "replace")
    try:
        return [_decode_if_bytes(v, "strict") for v in value]
    except UnicodeDecodeError as error:
        raise AotcError("onnx-attribute", f"a string of attribute {attribute.name!r} is not UTF-8") from error


def _decode_if_bytes(value: Any, errors: str) -> Any:
    return value.decode("utf-8", errors) if isinstance(value, bytes) else value


@cache
def operator_schema(op_type: str, domain: str, version: int) -> Any:
    """Return the ONNX schema of an operator in a version of its domain, or None if there is none.
    Results are cached.
    """
    if domain == microsoft_operator_schemas.DOMAIN:
        return microsoft_operator_schemas.DEFINITIONS.get(op_type) if version else None
    # its versions are those of the standard
    domain = "" if domain == microsoft_operator_schemas.CHANNELS_LAST_DOMAIN else domain
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return microsoft_operator_schemas.STANDARD_DOMAIN_DEFINITIONS.get(op_type) if not domain and version else None


#: Attributes of operator sets 1 to 5 that are ignored because they never affected a result.
_IGNORED_LEGACY_ATTRIBUTES: Final = frozenset({"consumed_inputs"})


#: Fields that hold the value of an attribute, by its kind.
_VALUE_FIELDS: Final = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
}


def _with_kind(attribute: AttributeProto, kind: int) -> AttributeProto:
    """Return an attribute that states no kind, as in files of 2017, with `kind` if it has a value of it."""
    if _VALUE_FIELDS.get(kind) not in {field.name for field, _ in attribute.ListFields()}:
        return attribute
    stated = AttributeProto()
    stated.CopyFrom(attribute)
    stated.type = kind
    return stated


def node_attributes_with_defaults(node: NodeProto, schema: Any) -> dict[str, Any]:
    """Return the attributes of an ONNX node by name, with defaults of the operator's schema filled
    in.

    Raises AotcError (code "onnx-attribute") for an attribute that is unknown, has the wrong kind or
    is required and missing.
    """
    result = {}
    for attribute in node.attribute:
        name, definition = attribute.name, schema.attributes.get(attribute.name)
        if name in _IGNORED_LEGACY_ATTRIBUTES:
            continue
        if definition is None:
            text = f"{node.op_type} version {schema.since_version} has no attribute {name!r}"
            known = ", ".join(sorted(schema.attributes))
            raise AotcError("onnx-attribute", text, hint=f"known: {known}" if known else "it has none")
        if not attribute.type:
            attribute = _with_kind(attribute, int(definition.type))
        if int(definition.type) != attribute.type:
            expected = str(definition.type).rpartition(".")[2]
            raise AotcError("onnx-attribute", f"attribute {name!r} of {node.op_type} must be of kind {expected}")
        result[name] = decode_attribute(attribute)
    for name, definition in schema.attributes.items():
        if name not in result and name not in _IGNORED_LEGACY_ATTRIBUTES:
            require("onnx-attribute", not definition.required, f"{node.op_type} needs the attribute {name!r}")
            if definition.default_value.type:
                result[name] = decode_attribute(definition.default_value)
    return result


# --- inputs

#: Value of `max_input` in ONNX schemas for any number of inputs.
_UNBOUNDED_INPUT_COUNT: Final = 2**31 - 1
_RANK_AT_LEAST_1: Final = (1, None)
_RECURRENT_INPUT_RANKS: Final = ((3, 3), (3, 3), (3, 3), (2, 2), (1, 1), (3, 3), (3, 3), (2, 2))

#: Smallest and largest rank (None: no limit) of each input, for operators whose converters index
#: axes.
INPUT_RANK_RANGES: Final[Mapping[str, Sequence[tuple[int, int | None]]]] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _RECURRENT_INPUT_RANKS),
    **dict.fromkeys(("Gather", "Slice", "Split", "SplitToSequence", "TopK"), (_RANK_AT_LEAST_1,)),
    **dict.fromkeys(
        ("GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"), (_RANK_AT_LEAST_1, _RANK_AT_LEAST_1)
    ),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), ((2, None),)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), ((3, None),)),
    "Col2Im": ((3, 3), (1, 1), (1, 1)),
    "DecoderMaskedMultiHeadAttention": ((3, 3), (3, 4), (3, 4), (2, 2), (4, 4), *((4, 4),) * 2, (0, 1)),
    "EyeLike": ((2, 2),),
    "GridSample": ((4, 5), (4, 5)),
    "GroupNormalization": ((2, None), (1, 1), (1, 1)),
    "GroupQueryAttention": (*((3, 3),) * 3, *((4, 4),) * 2, (0, None), (0, None), *((2, 2),) * 3, (4, 4), (1, 1)),
    "MultiHeadAttention": ((3, 5), (3, 5), (3, 4), (1, 1), (1, 3), (0, None), *((4, 4),) * 2),
    "RotaryEmbedding": ((3, 4),),
    "STFT": ((2, 3), (0, None), (1, 1)),
    "TensorScatter": ((2, None), (2, None), (1, 1)),
}


def check_node_signature(node: NodeProto, schema: Any, inputs: Sequence[Expr | None]) -> None:
    """Raise AotcError unless an ONNX node fits its operator: the numbers of inputs and outputs
    (code "onnx-input"), the ranks of its inputs ("onnx-rank") and, for quantized operators, the data
    types ("onnx-type").
    """
    op, least, most = node.op_type, schema.min_input, schema.max_input
    if not least <= len(inputs) <= most:
        upper_text = "" if least == most else f" to {most}"
        count_text = f"at least {least}" if most >= _UNBOUNDED_INPUT_COUNT else f"{least}{upper_text}"
        raise AotcError("onnx-input", f"{op} takes {count_text} inputs, but {len(inputs)} are given")
    require("onnx-input", len(node.output) <= schema.max_output, f"{op} has at most {schema.max_output} outputs")
    for index, (value, (low, high)) in enumerate(zip(inputs, INPUT_RANK_RANGES.get(op, ()), strict=False)):
        ty = None if value is None else type_of(value)
        if isinstance(ty, TensorType) and not low <= ty.rank <= (ty.rank if high is None else high):
            rank_text = f"at least {low}" if high is None else " or ".join(map(str, range(low, high + 1)))
            input_label = f"input {index} ({schema.inputs[index].name}) of {op}"
            raise AotcError(
                "onnx-rank", f"{input_label} has shape ({', '.join(map(str, ty.shape))}); rank {rank_text} is required"
            )
    if (
        schema.domain == microsoft_operator_schemas.DOMAIN
        or _QUANTIZED_OP_NAME.search(op)
        or any(map(is_quantize_call, inputs))
    ):
        _check_input_types(op, schema, inputs)


#: Names of operators on quantized integers, whose data types are checked: another type would be
#: computed as other numbers.
_QUANTIZED_OP_NAME: Final = re.compile("^QLinear|Integer$|uantizeLinear$")


def _check_input_types(op: str, schema: Any, inputs: Sequence[Expr | None]) -> None:
    """Raise AotcError (code "onnx-type") if the data type of an input is not in the operator's
    schema, or if inputs that must have equal types differ.
    """
    bound: dict[str, tuple[str, str]] = {}
    formals = [*schema.inputs, *schema.inputs[-1:] * len(inputs)]
    for value, formal in zip(inputs, formals, strict=False):
        if value is None:
            continue
        ty = type_of(value)
        require("onnx-type", isinstance(ty, TensorType), f"{formal.name} of {op} must be a tensor")
        dtype_name = str(tensor_type_of(value).dtype)
        label = f"tensor({TensorProto.DataType.Name(onnx_type_of_dtype(dtype_name)).lower()})"
        known = sorted(t.removeprefix("tensor(").rstrip(")") for t in formal.types)
        text = f"{formal.name} of {op} is of type {dtype_name}; it must be one of {', '.join(known)}"
        if label not in formal.types:
            hint = "QuantizeLinear needs a DequantizeLinear before what takes floats" if is_quantize_call(value) else ""
            raise AotcError("onnx-type", text, hint=hint)
        if formal.is_homogeneous:
            first, name = bound.setdefault(formal.type_str, (dtype_name, formal.name))
            text = f"{formal.name} of {op} is of type {dtype_name}, {name} of {first}: they must be of one type"
            require("onnx-type", dtype_name == first, text)
