# SPDX-License-Identifier: Apache-2.0
"""A TFLite operator, and how its inputs and options are passed to a converter.

A converter is a function from inputs and options to expressions. Its signature states which ones it
takes:

    def _gather(x: Expr, indices: Expr, *, axis: int = 0, node: Node) -> Expr: ...

Positional parameters are the inputs in order (`*parts`: all remaining ones). Keyword parameters are
the options by the schema's names in lower case (`stride_w` is StrideW), except `node`, which is the
operator itself. The default of a parameter applies where the operator omits the input or option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Final, Protocol, TypeAlias

import numpy as np

from aotc.ir import AotcError, Array, Dim, frozen, is_static, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr, converter_parameters
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor
from aotc.relay.frontend.size_conditions import require_values_within
from aotc.relay.frontend.size_operands import OperandBounds, operand_bounds
from aotc.relay.frontend.size_values import size_values
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    ACTIVATION_BOUNDS,
    LITERT_BUILTIN,
    LITERT_INT16_PRODUCTS,
    LITERT_RUY,
    IntegerArithmetic,
)
from aotc.relay.frontend.tflite.load import TfliteOperator, TfliteTensor
from aotc.relay.frontend.tflite.resource_variables import ResourceVariables
from aotc.relay.graph_api import Constant, Expr, Function, compile_time_elements

#: Type of a converter's parameter for an input whose value must be known at compile time.
KnownArray: TypeAlias = Annotated[Array, "known"]
#: Type of a converter's parameter for a list of integers that must be known at compile time.
KnownInts: TypeAlias = Annotated[list[int], "known"]
Converted: TypeAlias = Expr | Sequence[Expr]
Converter: TypeAlias = Callable[..., Converted]
Table: TypeAlias = Mapping[str, Converter]

_COMPARISONS: Final = frozenset({"EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"})
#: Operators that support int16 activations.
INT16_OPERATORS: Final = (
    frozenset(
        {
            "ABS",
            "ADD",
            "AVERAGE_POOL_2D",
            "BATCH_MATMUL",
            "CONCATENATION",
            "CONV_2D",
            "DEPTHWISE_CONV_2D",
            "DIV",
            "EXP",
            "FLOOR_DIV",
            "FLOOR_MOD",
            "FULLY_CONNECTED",
            "GELU",
            "LEAKY_RELU",
            "LOG",
            "LOGISTIC",
            "MEAN",
            "MUL",
            "NEG",
            "PRELU",
            "QUANTIZE",
            "REDUCE_PROD",
            "RELU",
            "RELU6",
            "RESIZE_BILINEAR",
            "RSQRT",
            "SOFTMAX",
            "SQRT",
            "SQUARED_DIFFERENCE",
            "SUB",
            "SUM",
            "TANH",
            "TRANSPOSE_CONV",
        }
    )
    | _COMPARISONS
)
#: Operators that add a bias to sums of products.
_BIASED_OPERATORS: Final = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
#: Operators whose input 1 holds weights.
_WEIGHTED_OPERATORS: Final = _BIASED_OPERATORS | {"PRELU"}
#: Operators with two data inputs.
_BINARY_OPERATORS: Final = (
    frozenset({"ADD", "BATCH_MATMUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "MUL", "SQUARED_DIFFERENCE", "SUB"})
    | _COMPARISONS
)
#: Operators whose data or result may be unquantized.
_PARTLY_QUANTIZED_OPERATORS: Final = frozenset({"ARG_MAX", "ARG_MIN", "QUANTIZE"}) | _COMPARISONS
#: Operators whose input and output may be quantized to different data types.
_DTYPE_CHANGING_OPERATORS: Final = frozenset({"QUANTIZE", "SOFTMAX"})
#: Operators whose kernels for integers of 8 and 16 bits compute with scales.
_SCALED_OPERATORS: Final = (
    frozenset({"AVERAGE_POOL_2D", "HARD_SWISH", "MEAN", "RESIZE_BILINEAR", "SUM"})
    | (_BINARY_OPERATORS - _COMPARISONS - {"FLOOR_DIV", "FLOOR_MOD"})
    | _WEIGHTED_OPERATORS
    | ACTIVATION_BOUNDS.keys()
)
#: Operators that LiteRT computes on int16 without a scale as on integers.
_PLAIN_INT16_OPERATORS: Final = frozenset({"ADD", "MUL"})
#: Operators that accept integers of every type, since they do not read them or convert them.
ANY_INTEGER_OPERATORS: Final = frozenset(
    {"BROADCAST_ARGS", "CALL", "CALL_ONCE", "CAST", "DEQUANTIZE", "IF", "RANK", "SHAPE", "VAR_HANDLE", "WHILE"}
)
#: Fused activations, in the order of their codes in the schema.
FUSED_ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")


@frozen(eq=False)
class SizeInput:
    """An input of a TFLite operator whose integers may be known at run time only.

    Used as the type of a converter's parameter: the converter states which values its operator takes.
    """

    node: TfliteNode
    index: int

    @property
    def count(self) -> int:
        """The number of values."""
        return math.prod(g.shape(self.node[self.index], f"input {self.index}"))

    def within(self, least: int | None, most: int | None, *, clipped: bool = False) -> list[Dim]:
        """Return the values: numbers, and dimensions where they are known at run time only.

        least, most    the values that the operator takes of what is known at run time only; None for a
                       largest one that the caller of the compiler must state, and for a smallest one that
                       is as far below 0
        clipped        True if other values count as the nearest one of these

        Raises AotcError (code "tflite-runtime-shape") if they are not known, even as formulas.
        """
        expr = self.node[self.index]
        known = compile_time_elements(expr)
        if known is not None:
            return [int(v) for v in known.reshape(-1)]
        with operand_bounds(OperandBounds(least, most, clipped)):
            found = size_values(expr)
        if found is None:
            text = f"input {self.index} of {self.node.op.name} is not known at compile time"
            raise AotcError("tflite-runtime-shape", text)
        values = list(found.reshape(-1))
        if not clipped:
            text = f"a value of input {self.index} of {self.node.op.name}"
            require_values_within("tflite-runtime-shape", values, least, most, text)
        return values

    def known(self) -> list[int] | None:
        """Return the values if all of them are known when the model is compiled, else None."""
        known = compile_time_elements(self.node[self.index])
        return None if known is None else [int(v) for v in known.reshape(-1)]


class ControlContext(Protocol):
    """The conversion of a model, as operators that run subgraphs or use variables see it.

    variables    the resource variables
    functions    the global functions of the module other than @main, by name
    has_loops    False to unroll a loop wherever its trip count is known
    """

    @property
    def variables(self) -> ResourceVariables: ...

    @property
    def functions(self) -> dict[str, Function]: ...

    @property
    def has_loops(self) -> bool: ...

    def convert_subgraph(self, index: int, inputs: Sequence[Expr]) -> list[Expr]:
        """Convert a subgraph with the given inputs and return its outputs. Raises AotcError with all
        its problems, and for a subgraph that does not exist or that runs itself (code
        "tflite-subgraph").
        """

    def initialize_variables(self, index: int) -> None:
        """Set the contents of variables before the first run: those that a subgraph assigns."""

    def next_unseeded_stream(self) -> tuple[int, int]:
        """Return the key and the stream of the next random operator that states no seeds."""

    def unchanged_values(self, index: int) -> set[int]:
        """Return the positions of the inputs of a subgraph that are its outputs at the same
        positions.
        """


@frozen(eq=False)
class TfliteNode:
    """The TFLite operator that is being converted, with its inputs and declarations.

    args      expressions; None for omitted inputs
    inputs    declarations of the inputs in the file
    results   declarations of the outputs
    inner     declarations of the intermediate tensors, which only carry scales
    rounding  integer arithmetic of the interpreter whose results are reproduced
    control   the conversion of the model, for subgraphs and variables
    """

    op: TfliteOperator
    args: tuple[Expr | None, ...]
    inputs: tuple[TfliteTensor | None, ...]
    results: tuple[TfliteTensor, ...]
    inner: tuple[TfliteTensor | None, ...]
    rounding: IntegerArithmetic
    control: ControlContext

    def __getitem__(self, index: int) -> Expr:
        """Return an input expression of the TFLite operator. Raises AotcError (code "tflite-input")
        if the operator omits it.
        """
        input_expr = self.optional_input(index)
        if input_expr is None:
            raise AotcError("tflite-input", f"{self.op.name} needs input {index}")
        return input_expr

    def optional_input(self, index: int) -> OptionalExpr:
        """Return an input expression of the TFLite operator, or None if the operator omits it."""
        return self.args[index] if index < len(self.args) else None

    def input_declaration(self, index: int) -> TfliteTensor:
        """Return the declaration in the file of an input of the TFLite operator, which must be
        present.
        """
        self[index]
        declaration = self.inputs[index]
        assert declaration is not None
        return declaration

    @property
    def first_output_declaration(self) -> TfliteTensor:
        """The declaration in the file of the first output. Raises AotcError (code "tflite-input")
        if there is none.
        """
        require("tflite-input", bool(self.results), f"{self.op.name} has no output")
        return self.results[0]

    @property
    def has_complex_tensors(self) -> bool:
        """True if an input or an output of the TFLite operator is complex."""
        return any(tensor is not None and tensor.is_complex for tensor in (*self.inputs, *self.results))

    @property
    def has_quantized_output(self) -> bool:
        """True if the first output of the TFLite operator is quantized."""
        return self.first_output_declaration.is_quantized

    @property
    def has_int16_output(self) -> bool:
        """True if the first output of the TFLite operator is quantized to int16."""
        return self.has_quantized_output and self.first_output_declaration.dtype == "int16"

    @property
    def needs_dynamic_quantization(self) -> bool:
        """True if the weights (input 1) are quantized and the data is not, so that the data is
        quantized at run time. Raises AotcError (code "tflite-quant") for weights other than int8.
        """
        weights = self.input_declaration(1)
        dynamic = not self.has_quantized_output and weights.is_quantized
        text = f"{self.op.name} of real numbers takes weights of int8, here it has {weights.dtype}"
        require("tflite-quant", not dynamic or weights.dtype == "int8", text)
        return dynamic

    def compile_time_input_value(self, index: int) -> Array | None:
        """Return the value of an input that must be known at compile time, or None if the operator
        omits it. Raises AotcError (code "tflite-runtime-shape") if it is not known.
        """
        input_expr = self.optional_input(index)
        if input_expr is None:
            return None
        value = compile_time_elements(input_expr)
        if value is None:
            sizes = size_values(input_expr)
            text = f"input {index} of {self.op.name} is not known at compile time"
            if sizes is not None and not is_static(sizes.reshape(-1)):
                text = f"input {index} of {self.op.name} depends on sizes that are known at run time only"
            is_known = sizes is not None and is_static(sizes.reshape(-1))
            require("tflite-runtime-shape", is_known, text)
            assert sizes is not None
            value = sizes.astype(g.dtype(input_expr).numpy)
        return value

    # --- tensors that runs keep

    def kept_tensor(self, index: int) -> Expr:
        """Return the contents of an input that is a variable tensor: zeros before the first run, then what the
        operator assigned last.
        """
        number = self._kept_tensor_number(index)
        return self.control.variables.read(number)

    def replace_kept_tensor(self, index: int, value: Expr) -> None:
        """Assign new contents to an input that is a variable tensor."""
        self.control.variables.assign(self._kept_tensor_number(index), value)

    def _kept_tensor_number(self, index: int) -> int:
        tensor, variables = self.input_declaration(index), self.control.variables
        text = f"input {index} of {self.op.name}, the state, must be a variable tensor"
        require("tflite-input", tensor.variable and tensor.data is None, text)
        number = variables.number(f"tensor {self.op.inputs[index]}", tensor.name)
        variables.initial.setdefault(number, np.zeros(tensor.shape, tensor.dtype.numpy))
        return number

    # --- quantized tensors

    def quantized_input(self, index: int) -> QuantizedTensor:
        """Return a quantized input with its scale and zero point. Raises AotcError (code
        "tflite-quant") if it has none.
        """
        tensor = self.input_declaration(index)
        text = f"input {index} of {self.op.name} ({tensor.dtype}) has no scale; its output has one"
        require("tflite-quant", tensor.is_quantized, text)
        return with_declared_quantization(self[index], tensor)

    def per_tensor_quantized_input(self, index: int) -> QuantizedTensor:
        """Return a quantized input that must have a single scale."""
        operand, tensor = self.quantized_input(index), self.input_declaration(index)
        text = f"input {index} of {self.op.name} has several scales; one is needed"
        require("tflite-quant", tensor.scale.size == 1, text)
        return operand

    def quantized_weights_input(self, index: int, axis: int) -> QuantizedTensor:
        """Return a quantized input that must have a single scale, or one per element of `axis`."""
        operand, tensor = self.quantized_input(index), self.input_declaration(index)
        fits = tensor.scale.size == 1 or tensor.axis == axis
        text = f"input {index} of {self.op.name} has scales along axis {tensor.axis}; axis {axis} is needed"
        require("tflite-quant", fits, text)
        return operand

    def dequantized_or_real_input(self, index: int) -> Expr:
        """Return an input of the TFLite operator as real numbers: dequantized if it is quantized."""
        tensor = self.input_declaration(index)
        return dequantize_as_declared(self[index], tensor) if tensor.is_quantized else self[index]

    def output_quantization(self) -> OutputQuantization:
        """Return the quantization parameters of the first output, which must have a single scale."""
        result = self.first_output_declaration
        is_single_scale = result.scale.size == 1
        require("tflite-quant", is_single_scale, f"the output of {self.op.name} needs one scale")
        scale = g.constant(result.scale[0], "float32")
        return OutputQuantization(scale, g.constant(result.zero[0], "int32"), result.dtype)

    # --- activations

    def apply_fused_activation(self, y: Expr) -> Expr:
        """Apply the activation that is fused into the operator to `y`, which holds integers of the
        first output or real numbers. Raises AotcError (code "tflite-options") for an activation
        that is not supported.
        """
        code = self.op.option_value("FusedActivationFunction") or 0
        known = 0 <= code < len(FUSED_ACTIVATIONS)
        name = FUSED_ACTIVATIONS[code] if known else str(code)
        if name == "NONE":
            return y
        if name == "TANH" and not self.has_quantized_output:
            return g.tanh(y)
        text = f"{self.op.name} with a fused activation {name} is not supported"
        require("tflite-options", name in ACTIVATION_BOUNDS, text)
        return self.clip_to_activation_bounds(
            y, name, self.rounding.name == "litert" and self.op.name != "AVERAGE_POOL_2D"
        )

    def clip_to_activation_bounds(self, y: Expr, activation: str, half_to_even: bool = False) -> Expr:
        """Clip `y` to the interval of RELU, RELU6, RELU_N1_TO_1 or RELU_0_TO_1. For integers the
        bounds are quantized with rounding half away from zero, or with `half_to_even` half to even
        after adding the zero point, as XNNPACK does.
        """
        low, high = ACTIVATION_BOUNDS[activation]
        if not self.has_quantized_output:
            return g.maximum(y, low) if high is None else g.clip(y, low, high)
        ends = [None if v is None else self._quantize_for_output(v, half_to_even) for v in (low, high)]
        dtype = self.first_output_declaration.dtype
        least, most = int(dtype.min), int(dtype.max)
        low, high = (d if v is None else min(max(v, least), most) for v, d in zip(ends, (least, most), strict=True))
        return y if (low, high) == (least, most) else g.clip(y, low, max(low, high))

    def _quantize_for_output(self, value: float, half_to_even: bool) -> int:
        """Quantize a real number with the scale and zero point of the first output."""
        steps, zero = (
            np.float32(value) / self.first_output_declaration.scale[0],
            int(self.first_output_declaration.zero[0]),
        )
        if half_to_even:
            return int(np.rint(steps + np.float32(zero)))
        return zero + int(np.trunc(np.float64(steps) + np.copysign(0.5, steps)))


def arithmetic_for_operator(
    requested: IntegerArithmetic, name: str, tensors: Sequence[TfliteTensor | None]
) -> IntegerArithmetic:
    """Return the integer arithmetic that computes a TFLite operator, given the interpreter
    `requested` whose results are wanted.

    XNNPACK leaves the following to LiteRT's own kernels: uint8 depthwise convolutions, int16,
    convolutions with 4-bit weights, and layers whose bias has no scale.
    """
    quantized_tensors = [t for t in tensors if t is not None and t.is_quantized]
    if requested.name != "litert" or not quantized_tensors:
        return requested
    words = quantized_tensors[0].dtype == "int16"
    if words and name == "MUL":
        return LITERT_INT16_PRODUCTS
    old = name == "DEPTHWISE_CONV_2D" and quantized_tensors[0].dtype == "uint8"
    if old or words:
        return LITERT_BUILTIN
    biases = tensors[2:] if name in _BIASED_OPERATORS else ()
    bare = any(t is not None and t.dtype == "int32" and not t.scaled for t in biases)
    halves = name.endswith("CONV_2D") and any(t.packed for t in quantized_tensors)
    return LITERT_RUY if bare or halves else requested


def with_declared_quantization(x: Expr, tensor: TfliteTensor) -> QuantizedTensor:
    """Return a quantized tensor of the integers `x`, with the scale and zero point that its
    declaration in the file states.
    """
    scale, zero = (Constant(v.reshape(()) if v.size == 1 else v) for v in (tensor.scale, tensor.zero))
    return QuantizedTensor(x, scale, zero)


def dequantize_as_declared(x: Expr, tensor: TfliteTensor) -> Expr:
    """Dequantize the integers `x` with the scale and zero point that their declaration in the file
    states.
    """
    quantization = with_declared_quantization(x, tensor)
    return g.call_op(
        "qnn.dequantize", x, quantization.scale, quantization.zero, axis=tensor.axis if tensor.scale.size > 1 else -1
    )


def call_converter(converter: Converter, node: TfliteNode) -> Converted:
    """Call a converter with the inputs and options of a TFLite operator that its signature demands,
    and return its result.
    """
    inputs: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in converter_parameters(converter):
        match parameter.kind:
            case Parameter.VAR_POSITIONAL:
                inputs += [node[k] for k in range(len(inputs), len(node.args))]
            case Parameter.KEYWORD_ONLY:
                named[parameter.name] = (
                    node if parameter.name == "node" else _converter_argument_from_option(node, parameter)
                )
            case _:
                inputs.append(_converter_argument_from_input(node, len(inputs), parameter))
    return converter(*inputs, **named)


def _converter_argument_from_input(node: TfliteNode, index: int, parameter: Parameter) -> Any:
    needed = parameter.default is Parameter.empty
    if parameter.annotation is SizeInput:
        given = node.optional_input(index) is not None
        require("tflite-input", given or not needed, f"{node.op.name} needs input {index}")
        return SizeInput(node, index) if given else parameter.default
    if parameter.annotation not in (KnownArray, KnownInts):
        return node[index] if needed else node.optional_input(index)
    value = node.compile_time_input_value(index)
    if value is None:
        require("tflite-input", not needed, f"{node.op.name} needs input {index}")
        return parameter.default
    return value if parameter.annotation == KnownArray else [int(v) for v in value.reshape(-1)]


def _converter_argument_from_option(node: TfliteNode, parameter: Parameter) -> Any:
    value = node.op.option_value("".join(map(str.capitalize, parameter.name.split("_"))))
    if value is not None:
        return value
    required = parameter.default is Parameter.empty
    require("tflite-options", not required, f"{node.op.name} needs the option {parameter.name}")
    return parameter.default


def has_equal_quantization(a: TfliteTensor, b: TfliteTensor) -> bool:
    """Return True if the declarations of two tensors have equal scales and zero points."""
    return np.array_equal(a.scale, b.scale) and np.array_equal(a.zero, b.zero)


def check_quantization_support(node: TfliteNode, moves_integers: bool) -> None:
    """Raise AotcError (code "tflite-quant") for quantized tensors that the converter of an operator
    does not support.

    moves_integers    True for an operator that copies integers unchanged: quantized tensors must
                      have equal scales and zero points; False for an operator on real numbers only:
                      no tensor may be quantized
    """
    quantized_tensors = [t for t in (*node.inputs, *node.results) if t is not None and t.is_quantized]
    if not moves_integers:
        text = f"{node.op.name} of quantized tensors is not supported"
        hint = "leave the operator in float when converting the model"
        if quantized_tensors:
            raise AotcError("tflite-quant", text, hint=hint)
    text = f"inputs and outputs of {node.op.name} have different scales or zero points"
    require("tflite-quant", all(has_equal_quantization(t, quantized_tensors[0]) for t in quantized_tensors), text)


def _reject_narrow_integers_without_scale(name: str, data: Sequence[TfliteTensor]) -> None:
    """Raise AotcError (code "tflite-quant") for data of 8 or 16 bits without scales in an operator
    whose kernels for these types compute with scales.
    """
    plain = [t for t in data if t.dtype in ("int8", "uint8", "int16")]
    if name not in _SCALED_OPERATORS or not plain:
        return
    fits = name in _PLAIN_INT16_OPERATORS and plain[0].dtype == "int16"
    text = f"tensor {plain[0].name!r} of {name} is {plain[0].dtype} without a scale; the operator needs one"
    require("tflite-quant", fits, text, hint="quantize the model again, or convert the tensor to int32")


def check_quantized_dtypes(node: TfliteNode) -> None:
    """Raise AotcError (code "tflite-quant") for data types of inputs and outputs that no TFLite
    kernel of the operator supports together.

    Data and results must have one type, of 8 bits or of 16 bits with zero point 0; weights have 8
    bits; all have a scale.
    """
    name, count = node.op.name, len(node.inputs)
    if name in ANY_INTEGER_OPERATORS:
        return
    places = (0, 1) if name in _BINARY_OPERATORS else (2,) if name == "TRANSPOSE_CONV" else (0,)
    data = [t for t in (*(node.inputs[k] for k in places if k < count), *node.results[:1]) if t is not None]
    quantized_tensors = [t for t in data if t.is_quantized]
    if not quantized_tensors:
        _reject_narrow_integers_without_scale(name, data)
        return
    is_partial, weights = (
        name in _PARTLY_QUANTIZED_OPERATORS,
        node.inputs[1] if name in _WEIGHTED_OPERATORS and count > 1 else None,
    )
    kinds = {t.dtype for t in (quantized_tensors if is_partial else data)}
    dtype_names = " ".join(str(t.dtype) for t in (*data, weights) if t is not None)
    text = f"{name} of integers takes and gives one data type, here it has {dtype_names}"
    fits = weights is None or weights.dtype == ("uint8" if "uint8" in kinds else "int8")
    require("tflite-quant", fits and (len(kinds) == 1 or name in _DTYPE_CHANGING_OPERATORS), text)
    text = f"the output of {name} ({node.first_output_declaration.dtype}) has no scale; its inputs have one"
    require("tflite-quant", is_partial or node.has_quantized_output, text)
    centered = name in _DTYPE_CHANGING_OPERATORS or all(
        t.dtype.bits == 8 or not t.zero.any() for t in quantized_tensors
    )
    words = name in INT16_OPERATORS and centered
    if not words and any(t.dtype.bits != 8 for t in quantized_tensors):
        text = f"{name} of integers of more than 8 bits is not supported"
        raise AotcError("tflite-quant", text, hint="quantize its data to 8 bits when converting the model")
