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

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, Array, frozen, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Maybe, parameters
from aotc.relay.frontend.quantization import Onto, Quantized
from aotc.relay.frontend.tflite.integer_semantics import BUILTIN, INTERVALS, PRODUCTS, RUY, Rounding
from aotc.relay.frontend.tflite.load import Operator, Tensor
from aotc.relay.graph_api import Constant, Expr, known_data

#: Type of a converter's parameter for an input whose value must be known at compile time.
Known: TypeAlias = Annotated[Array, "known"]
#: Type of a converter's parameter for a list of integers that must be known at compile time.
Ints: TypeAlias = Annotated[list[int], "known"]
Converted: TypeAlias = Expr | Sequence[Expr]
Converter: TypeAlias = Callable[..., Converted]
Table: TypeAlias = Mapping[str, Converter]

_COMPARISONS: Final = frozenset({"EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"})
#: Operators that support int16 activations.
IN_WORDS: Final = (
    frozenset(
        {
            "ABS",
            "ADD",
            "AVERAGE_POOL_2D",
            "BATCH_MATMUL",
            "CONCATENATION",
            "CONV_2D",
            "DEPTHWISE_CONV_2D",
            "EXP",
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
_LAYERS: Final = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
#: Operators whose input 1 holds weights.
_WEIGHTED: Final = _LAYERS | {"PRELU"}
#: Operators with two data inputs.
_PAIRS: Final = frozenset({"ADD", "BATCH_MATMUL", "DIV", "MUL", "SQUARED_DIFFERENCE", "SUB"}) | _COMPARISONS
#: Operators whose data or result may be unquantized.
_TURNING: Final = frozenset({"ARG_MAX", "ARG_MIN", "QUANTIZE"}) | _COMPARISONS
#: Operators whose input and output may be quantized to different data types.
_CHANGING: Final = frozenset({"QUANTIZE", "SOFTMAX"})
#: Operators that accept integers of every type, since they do not read them or convert them.
_ANY: Final = frozenset({"BROADCAST_ARGS", "CAST", "DEQUANTIZE", "RANK", "SHAPE"})
#: Fused activations, in the order of their codes in the schema.
ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")


@frozen(eq=False)
class Node:
    """The TFLite operator that is being converted, with its inputs and declarations.

    args      expressions; None for omitted inputs
    inputs    declarations of the inputs in the file
    results   declarations of the outputs
    inner     declarations of the intermediate tensors, which only carry scales
    rounding  integer arithmetic of the interpreter whose results are reproduced
    """

    op: Operator
    args: tuple[Expr | None, ...]
    inputs: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    inner: tuple[Tensor | None, ...]
    rounding: Rounding

    def __getitem__(self, index: int) -> Expr:
        """Return an input expression of the TFLite operator. Raises AotcError (code "tflite-input")
        if the operator omits it.
        """
        found = self.optional(index)
        if found is None:
            raise AotcError("tflite-input", f"{self.op.name} needs input {index}")
        return found

    def optional(self, index: int) -> Maybe:
        """Return an input expression of the TFLite operator, or None if the operator omits it."""
        return self.args[index] if index < len(self.args) else None

    def tensor(self, index: int) -> Tensor:
        """Return the declaration in the file of an input of the TFLite operator, which must be
        present.
        """
        self[index]
        found = self.inputs[index]
        assert found is not None
        return found

    @property
    def result(self) -> Tensor:
        """The declaration in the file of the first output. Raises AotcError (code "tflite-input")
        if there is none.
        """
        require("tflite-input", bool(self.results), f"{self.op.name} has no output")
        return self.results[0]

    @property
    def in_integers(self) -> bool:
        """True if the first output of the TFLite operator is quantized."""
        return self.result.quantized

    @property
    def in_words(self) -> bool:
        """True if the first output of the TFLite operator is quantized to int16."""
        return self.in_integers and self.result.dtype == "int16"

    @property
    def is_dynamic(self) -> bool:
        """True if the weights (input 1) are quantized and the data is not, so that the data is
        quantized at run time. Raises AotcError (code "tflite-quant") for weights other than int8.
        """
        weights = self.tensor(1)
        dynamic = not self.in_integers and weights.quantized
        text = f"{self.op.name} of real numbers takes weights of int8, here it has {weights.dtype}"
        require("tflite-quant", not dynamic or weights.dtype == "int8", text)
        return dynamic

    def known(self, index: int) -> Array | None:
        """Return the value of an input that must be known at compile time, or None if the operator
        omits it. Raises AotcError (code "tflite-runtime-shape") if it is not known.
        """
        found = self.optional(index)
        value = None if found is None else known_data(found)
        text = f"input {index} of {self.op.name} is not known at compile time"
        require("tflite-runtime-shape", found is None or value is not None, text)
        return value

    # --- quantized tensors

    def quantized(self, index: int) -> Quantized:
        """Return a quantized input with its scale and zero point. Raises AotcError (code
        "tflite-quant") if it has none.
        """
        tensor = self.tensor(index)
        text = f"input {index} of {self.op.name} ({tensor.dtype}) has no scale; its output has one"
        require("tflite-quant", tensor.quantized, text)
        return stored(self[index], tensor)

    def whole(self, index: int) -> Quantized:
        """Return a quantized input that must have a single scale."""
        found, tensor = self.quantized(index), self.tensor(index)
        text = f"input {index} of {self.op.name} has several scales; one is needed"
        require("tflite-quant", tensor.scale.size == 1, text)
        return found

    def weights(self, index: int, axis: int) -> Quantized:
        """Return a quantized input that must have a single scale, or one per element of `axis`."""
        found, tensor = self.quantized(index), self.tensor(index)
        fits = tensor.scale.size == 1 or tensor.axis == axis
        text = f"input {index} of {self.op.name} has scales along axis {tensor.axis}; axis {axis} is needed"
        require("tflite-quant", fits, text)
        return found

    def real(self, index: int) -> Expr:
        """Return an input of the TFLite operator as real numbers: dequantized if it is quantized."""
        tensor = self.tensor(index)
        return real(self[index], tensor) if tensor.quantized else self[index]

    def onto(self) -> Onto:
        """Return the quantization parameters of the first output, which must have a single scale."""
        result = self.result
        one = result.scale.size == 1
        require("tflite-quant", one, f"the output of {self.op.name} needs one scale")
        scale = g.constant(result.scale[0], "float32")
        return Onto(scale, g.constant(result.zero[0], "int32"), result.dtype)

    # --- activations

    def activated(self, y: Expr) -> Expr:
        """Apply the activation that is fused into the operator to `y`, which holds integers of the
        first output or real numbers. Raises AotcError (code "tflite-options") for an activation
        that is not supported.
        """
        code = self.op.option("FusedActivationFunction") or 0
        known = 0 <= code < len(ACTIVATIONS)
        name = ACTIVATIONS[code] if known else str(code)
        if name == "NONE":
            return y
        if name == "TANH" and not self.in_integers:
            return g.tanh(y)
        text = f"{self.op.name} with a fused activation {name} is not supported"
        require("tflite-options", name in INTERVALS, text)
        return self.within(y, name, self.rounding.name == "litert" and self.op.name != "AVERAGE_POOL_2D")

    def within(self, y: Expr, name: str, even: bool = False) -> Expr:
        """Clip `y` to the interval of RELU, RELU6, RELU_N1_TO_1 or RELU_0_TO_1. For integers the
        bounds are quantized with rounding half away from zero, or with `even` half to even after
        adding the zero point, as XNNPACK does.
        """
        low, high = INTERVALS[name]
        if not self.in_integers:
            return g.maximum(y, low) if high is None else g.clip(y, low, high)
        ends = [None if v is None else self._stored(v, even) for v in (low, high)]
        dtype = self.result.dtype
        least, most = int(dtype.min), int(dtype.max)
        low, high = (d if v is None else min(max(v, least), most) for v, d in zip(ends, (least, most), strict=True))
        return y if (low, high) == (least, most) else g.clip(y, low, max(low, high))

    def _stored(self, value: float, even: bool) -> int:
        """Quantize a real number with the scale and zero point of the first output."""
        steps, zero = np.float32(value) / self.result.scale[0], int(self.result.zero[0])
        if even:
            return int(np.rint(steps + np.float32(zero)))
        return zero + int(np.trunc(np.float64(steps) + np.copysign(0.5, steps)))


def rounding_of(asked: Rounding, name: str, tensors: Sequence[Tensor | None]) -> Rounding:
    """Return the integer arithmetic that computes a TFLite operator, given the interpreter `asked`
    whose results are wanted.

    XNNPACK leaves the following to LiteRT's own kernels: uint8 depthwise convolutions, int16,
    convolutions with 4-bit weights, and layers whose bias has no scale.
    """
    held = [t for t in tensors if t is not None and t.quantized]
    if asked.name != "litert" or not held:
        return asked
    words = held[0].dtype == "int16"
    if words and name == "MUL":
        return PRODUCTS
    old = name == "DEPTHWISE_CONV_2D" and held[0].dtype == "uint8"
    if old or words:
        return BUILTIN
    biases = tensors[2:] if name in _LAYERS else ()
    bare = any(t is not None and t.dtype == "int32" and not t.scaled for t in biases)
    halves = name.endswith("CONV_2D") and any(t.packed for t in held)
    return RUY if bare or halves else asked


def stored(x: Expr, tensor: Tensor) -> Quantized:
    """Return a quantized tensor of the integers `x`, with the scale and zero point that its
    declaration in the file states.
    """
    scale, zero = (Constant(v.reshape(()) if v.size == 1 else v) for v in (tensor.scale, tensor.zero))
    return Quantized(x, scale, zero)


def real(x: Expr, tensor: Tensor) -> Expr:
    """Dequantize the integers `x` with the scale and zero point that their declaration in the file
    states.
    """
    found = stored(x, tensor)
    return g.op("qnn.dequantize", x, found.scale, found.zero, axis=tensor.axis if tensor.scale.size > 1 else -1)


def apply(converter: Converter, node: Node) -> Converted:
    """Call a converter with the inputs and options of a TFLite operator that its signature demands,
    and return its result.
    """
    inputs: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters(converter):
        match parameter.kind:
            case Parameter.VAR_POSITIONAL:
                inputs += [node[k] for k in range(len(inputs), len(node.args))]
            case Parameter.KEYWORD_ONLY:
                named[parameter.name] = node if parameter.name == "node" else _option(node, parameter)
            case _:
                inputs.append(_input(node, len(inputs), parameter))
    return converter(*inputs, **named)


def _input(node: Node, index: int, parameter: Parameter) -> Any:
    needed = parameter.default is Parameter.empty
    if parameter.annotation not in (Known, Ints):
        return node[index] if needed else node.optional(index)
    value = node.known(index)
    if value is None:
        require("tflite-input", not needed, f"{node.op.name} needs input {index}")
        return parameter.default
    return value if parameter.annotation == Known else [int(v) for v in value.reshape(-1)]


def _option(node: Node, parameter: Parameter) -> Any:
    value = node.op.option("".join(map(str.capitalize, parameter.name.split("_"))))
    if value is not None:
        return value
    required = parameter.default is Parameter.empty
    require("tflite-options", not required, f"{node.op.name} needs the option {parameter.name}")
    return parameter.default


def same_scales(a: Tensor, b: Tensor) -> bool:
    """Return True if the declarations of two tensors have equal scales and zero points."""
    return np.array_equal(a.scale, b.scale) and np.array_equal(a.zero, b.zero)


def check_scales(node: Node, moves: bool) -> None:
    """Raise AotcError (code "tflite-quant") if quantized tensors occur in an operator whose
    converter supports only real numbers, or, if it `moves` integers unchanged, if their scales
    differ.
    """
    found = [t for t in (*node.inputs, *node.results) if t is not None and t.quantized]
    if not moves:
        text = f"{node.op.name} of quantized tensors is not supported"
        hint = "leave the operator in float when converting the model"
        if found:
            raise AotcError("tflite-quant", text, hint=hint)
    text = f"inputs and outputs of {node.op.name} have different scales"
    require("tflite-quant", all(same_scales(t, found[0]) for t in found), text)


def check_types(node: Node) -> None:
    """Raise AotcError (code "tflite-quant") for data types of inputs and outputs that no TFLite
    kernel of the operator supports together.

    Data and results must have one type, of 8 bits or of 16 bits with zero point 0; weights have 8
    bits; all have a scale.
    """
    name, count = node.op.name, len(node.inputs)
    if name in _ANY:
        return
    places = (0, 1) if name in _PAIRS else (2,) if name == "TRANSPOSE_CONV" else (0,)
    data = [t for t in (*(node.inputs[k] for k in places if k < count), *node.results[:1]) if t is not None]
    held = [t for t in data if t.quantized]
    if not held:
        return
    turns, weights = name in _TURNING, node.inputs[1] if name in _WEIGHTED and count > 1 else None
    kinds = {t.dtype for t in (held if turns else data)}
    shown = " ".join(str(t.dtype) for t in (*data, weights) if t is not None)
    text = f"{name} of integers takes and gives one data type, here it has {shown}"
    fits = weights is None or weights.dtype == ("uint8" if "uint8" in kinds else "int8")
    require("tflite-quant", fits and (len(kinds) == 1 or name in _CHANGING), text)
    text = f"the output of {name} ({node.result.dtype}) has no scale; its inputs have one"
    require("tflite-quant", turns or node.in_integers, text)
    centered = name in _CHANGING or all(t.dtype.bits == 8 or not t.zero.any() for t in held)
    words = name in IN_WORDS and centered
    if not words and any(t.dtype.bits != 8 for t in held):
        text = f"{name} of integers of more than 8 bits is not supported"
        raise AotcError("tflite-quant", text, hint="quantize its data to 8 bits when converting the model")
