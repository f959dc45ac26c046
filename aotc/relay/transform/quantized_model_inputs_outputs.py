# SPDX-License-Identifier: Apache-2.0
"""QuantizedEdges: change float inputs and outputs of a quantized model to integers, on request.

def @main(%x: Tensor[(1, 8), float32]) {
  %0 = qnn.quantize(%x, 0.5f, 3, out_dtype="int8"); ...; qnn.dequantize(%9, 0.25f, 0)
}
def @main(%x: Tensor[(1, 8), int8]) { ...; %9 }             with "compile.io_dtype": "int8"

Calls that only move elements, such as reshape and transpose, may lie between an input or output and
its quantization.

The scales and zero points that are removed from the graph become the module attributes
`input_quantization` and `output_quantization`: for each tensor a list of data type, scales, zero
points and axis. Where int8 is requested and the graph has uint8 (or the reverse), values and zero
points are shifted by 128.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import (
    AotcError,
    Diagnostic,
    DType,
    Pass,
    PassContext,
    Quantization,
    TensorType,
    did_you_mean_hint,
    option_text,
)
from aotc.relay.expr import Call, Expr, Function, Tuple, Var, require_op_of_call, tensor_type_of, type_of, typed_op_call
from aotc.relay.graph_api import (
    IRModule,
    children,
    describe_node_for_message,
    infer_module,
    output_names_or_default,
    post_order,
    rewrite_bottom_up,
)
from aotc.relay.op.layout import may_zero_pad_blocks
from aotc.relay.op.qnn.quant_params import constant_value_or_none
from aotc.relay.state_pair import STATE_PAIRS_ATTRIBUTE
from aotc.relay.transform.fake_quantization_to_integer import convert_int8_quantizations_to_uint8
from aotc.relay.transform.pass_base import WhyNot, as_op_call, is_op_call, with_inferred_types
from aotc.relay.transform.select_signedness import flip_sign_bit_and_signedness

#: Data types that can be requested for inputs and outputs.
FLOAT: Final = "float32"
BYTES: Final = ("int8", "uint8")
#: Diagnostic code for a tensor that cannot have the requested data type.
IO_DTYPE_ERROR_CODE: Final = "io-dtype"
#: Argument number of the scale of an operator; the zero point is the next argument.
_SCALE_ARGUMENT_INDEX: Final = {"qnn.quantize": 1, "qnn.dequantize": 1, "qnn.requantize": 3}

QuantizationOrRefusal: TypeAlias = "Quantization | WhyNot"


@dataclass(frozen=True, repr=False)
class QuantizedEdges(Pass[IRModule]):
    """Pass that makes inputs read only by qnn.quantize, and outputs of qnn.dequantize, integer
    tensors.

    The configuration `compile.io_dtype` is a data type for all float inputs and outputs, or a
    mapping from names to data types in which "" stands for all other tensors. Raise AotcError with
    a diagnostic (code "io-dtype") for each tensor that cannot have the requested type.
    """

    opt_level = 0

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = with_inferred_types(module)
        io_dtypes = _parse_requested_dtypes(ctx.get_config("compile.io_dtype", None))
        if {*io_dtypes.values()} - {FLOAT}:
            # same conversion as for float inputs: operators that round around their zero point then
            # give equal integers
            start = infer_module(start.with_functions({"main": convert_int8_quantizations_to_uint8(start.main)}))
        edges = _Edges(start, io_dtypes)
        if tuples := edges.tuple_inputs_and_outputs():
            if not io_dtypes:
                return module
            text = f"{describe_node_for_message(tuples[0])} is a tuple: only tensors have a data type that can change"
            raise AotcError(IO_DTYPE_ERROR_CODE, text)
        for param in start.main.params:
            edges.convert_input_to_requested_dtype(param)
        for number, name in enumerate(edges.names):
            edges.convert_output_to_requested_dtype(number, name)
        if edges.problems:
            raise AotcError.collect(edges.problems)
        main, attrs = edges.main_with_converted_inputs_and_outputs(), dict(module.attrs)
        if any(edges.inputs):
            attrs["input_quantization"] = _quantizations_as_lists(edges.inputs)
        if any(edges.outputs):
            attrs["output_quantization"] = _quantizations_as_lists(edges.outputs)
        if main is start.main and attrs == module.attrs:
            return module
        functions = {**start.functions, "main": main}
        return infer_module(IRModule(functions, attrs))


def _parse_requested_dtypes(config: object) -> Mapping[str, str]:
    """Return the requested data types by tensor name, "" for all others; raise AotcError for an
    invalid request.
    """
    known = *BYTES, FLOAT
    dtypes: Any = {"": config} if isinstance(config, str) else config or {}
    named = isinstance(dtypes, Mapping)
    if named and all(dtype in known for dtype in dtypes.values()):
        return {**dtypes}
    wrong = [dtype for dtype in dtypes.values() if dtype not in known] if named else [config]
    text = f"{wrong[0]!r} is no data type of inputs and outputs"
    hint = f"known: {', '.join(known)}; " + option_text("io_dtype", {"NAME": known[0]}) + " names one input or output"
    raise AotcError(IO_DTYPE_ERROR_CODE, text, hint=hint)


def convert_byte_signedness(x: Expr, source_dtype: str, target_dtype: str) -> Expr:
    """Return 8-bit integers converted to the other signedness by a shift of 128, so that the order
    is preserved.
    """
    return x if source_dtype == target_dtype else flip_sign_bit_and_signedness(x)


def _quantization_for_dtype(quantization: QuantizationOrRefusal, dtype: str) -> Quantization | None:
    """Return the quantization of a tensor of data type `dtype`, zero points shifted to that type;
    None if it is unknown.
    """
    if isinstance(quantization, WhyNot) or dtype not in BYTES:
        return None
    shift = int(DType(dtype).min) - int(quantization.dtype.min)
    zeros = tuple(zero + shift for zero in quantization.zero_points)
    return Quantization(DType(dtype), quantization.scales, zeros, quantization.axis)


def _integers_before_dequantize(node: Expr) -> Expr:
    """Return the integers that are dequantized to an output, or the output itself if it is not
    float.
    """
    return children(node)[1] if _dtype(node).is_float else node


def _dtype(node: Expr) -> DType:
    return tensor_type_of(node).dtype


def _is_element_move(expr: Expr) -> bool:
    """Return True if an expression only moves elements of one tensor."""
    node = as_op_call(expr)
    if node is None or may_zero_pad_blocks(node):
        return False
    return require_op_of_call(node).is_data_movement and isinstance(type_of(node), TensorType)


def _source_and_element_moves(node: Expr) -> tuple[Expr, list[Expr]]:
    """Return the source of a chain of calls that only move elements, and these calls, the last one
    first.
    """
    moves = list[Expr]()
    while _is_element_move(node):
        moves.append(node)
        node = children(node)[1]
    return node, moves


def _quantization_of_call(node: Expr, integers: Expr, has_moves: bool) -> QuantizationOrRefusal:
    """Return the quantization of integers that a call makes or reads, or the reason why it is
    unknown.

    has_moves    True if calls that move elements lie between the call and the input or output
    """
    assert isinstance(node, Call)
    place = _SCALE_ARGUMENT_INDEX[str(node.op)]
    scale, zero = map(constant_value_or_none, node.args[place : place + 2])
    ty = tensor_type_of(integers)
    if ty.dtype not in BYTES:
        return WhyNot(f"its integers are {ty.dtype}")
    if scale is None or zero is None:
        return WhyNot("its scale or zero point is computed when the model runs")
    several = np.broadcast_arrays(scale.ravel(), zero.ravel())
    scales, zeros = (tuple(part.tolist()) for part in several)
    axis = None
    if len(scales) > 1 and has_moves:
        return WhyNot("its scales differ along an axis of what it is moved to")
    if len(scales) > 1:
        axis = int(node.attrs["axis"]) % ty.rank
    return Quantization(ty.dtype, scales, zeros, axis)


def _quantizations_as_lists(quantizations: Iterable[Quantization | None]) -> list[Any]:
    """Return quantizations as lists for a module attribute, which has a text form."""
    return [m and [str(m.dtype), [*m.scales], [*m.zero_points], m.axis] for m in quantizations]


@dataclass(eq=False)
class _Edges:
    """The function @main of a module while the types of its inputs and outputs are changed.

    names             names of the outputs
    inputs, outputs   the quantization of each tensor, None where it is unknown
    """

    module: IRModule
    dtype_by_tensor: Mapping[str, str]
    problems: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._main = self.module.main
        body = self._main.body
        many = isinstance(body, Tuple)
        self._before = children(body) if many else (body,)
        self._results = list(self._before)
        self.names = output_names_or_default(self.module, len(self._results))
        self.inputs: list[Quantization | None] = []
        self.outputs: list[Quantization | None] = []
        self._params: list[Var] = []
        self._replaced: dict[Expr, Expr] = {}
        self._dropped: dict[Expr, str] = {}
        self._readers: dict[Expr, list[Expr]] = {}
        for node in post_order(body):
            # a value that is only an output has no readers
            for child in () if many and node is body else children(node):
                self._readers.setdefault(child, []).append(node)
        self._kept = {name for pair in self.module.attrs.get(STATE_PAIRS_ATTRIBUTE, ()) for name in pair}
        known = [name for name in (*(p.name for p in self._main.params), *self.names) if name not in self._kept]
        known.append("")
        for name in self.dtype_by_tensor.keys() - {*known}:
            known_text = f"there are {', '.join(known[:-1])}"
            text = f"there is no input or output {name!r}"
            self._add_problem(text, did_you_mean_hint(name, known) or known_text)

    def _add_problem(self, text: str, hint: str) -> None:
        self.problems.append(Diagnostic(IO_DTYPE_ERROR_CODE, text, hint=hint))

    def tuple_inputs_and_outputs(self) -> list[Expr]:
        """Return the inputs and outputs of the model that are tuples rather than tensors."""
        edges: list[Expr] = [*self._main.params, *self._before]
        return [e for e in edges if not isinstance(type_of(e), TensorType)]

    def _choose_input_or_output_dtype(
        self, kind: str, name: str, current_dtype: DType, quantization: QuantizationOrRefusal
    ) -> str:
        """Return the data type that an input or output gets; record a problem if it cannot be the
        requested one.
        """
        if name in self._kept:
            return current_dtype
        usual = self.dtype_by_tensor.get("", current_dtype) if current_dtype.is_float else current_dtype
        dtype = self.dtype_by_tensor.get(name, usual)
        reason = f"the model's is {current_dtype}" if dtype == FLOAT else ""
        if isinstance(quantization, WhyNot):
            reason = quantization.reason
        if dtype == current_dtype or not reason:
            return dtype
        text = f"{kind} {name!r} cannot be {dtype}: {reason}"
        option = option_text("io_dtype", {name: str(current_dtype)})
        known = current_dtype == FLOAT
        self._add_problem(text, option + " leaves it as it is" if known else "")
        return current_dtype

    def convert_input_to_requested_dtype(self, param: Var) -> None:
        """Process one input of the model: replace the parameter if its data type changes, and
        record its quantization.
        """
        current_dtype = _dtype(param)
        quantization = self._input_quantization(param, current_dtype)
        dtype = self._choose_input_or_output_dtype("input", param.name, current_dtype, quantization)
        if dtype != current_dtype and isinstance(quantization, Quantization):
            ty = TensorType(tensor_type_of(param).shape, dtype)
            new = Var(param.name, ty, param.span)
            self._replaced[param] = (
                new if current_dtype.is_float else convert_byte_signedness(new, dtype, current_dtype)
            )
            if current_dtype.is_float:
                self._dropped |= {reader: dtype for reader, _ in self._readers_behind_element_moves(param)}
            param = new
        self._params.append(param)
        self.inputs.append(_quantization_for_dtype(quantization, dtype))

    def convert_output_to_requested_dtype(self, index: int, name: str) -> None:
        """Process one output of the model: replace the result if its data type changes, and record
        its quantization.
        """
        node = self._results[index]
        current_dtype = _dtype(node)
        quantization = self._output_quantization(node, current_dtype)
        dtype = self._choose_input_or_output_dtype("output", name, current_dtype, quantization)
        if dtype != current_dtype and isinstance(quantization, Quantization):
            source, moves = _source_and_element_moves(node)
            inner = _integers_before_dequantize(source)
            for move in reversed(moves):
                assert isinstance(move, Call)
                inner = typed_op_call(require_op_of_call(move), (inner,), move.attrs, move.span)
            self._results[index] = convert_byte_signedness(inner, quantization.dtype, dtype)
        self.outputs.append(_quantization_for_dtype(quantization, dtype))

    def _input_quantization(self, param: Var, current_dtype: DType) -> QuantizationOrRefusal:
        """Return the quantization that the integers of an input have or would have, or the reason
        why there is none.
        """
        name = "qnn.quantize" if current_dtype.is_float else "qnn.dequantize"
        ends = self._readers_behind_element_moves(param)
        other_readers = [r for r, x in ends if not is_op_call(r, name) or children(r)[1] is not x]
        reader_text = describe_node_for_message(other_readers[0]) if other_readers else ""
        if param in self._results:
            reader_text = reader_text or "an output"
        if reader_text or not ends:
            use = f"it is read to compute {reader_text}" if reader_text else "nothing reads it"
            return WhyNot(f"{use}; an input becomes integers only where {name} alone reads it")
        meanings = (_quantization_of_call(r, r if current_dtype.is_float else x, x is not param) for r, x in ends)
        quantizations = {_quantization_for_dtype(m, "uint8") or m for m in meanings}
        if len(quantizations) > 1:
            return WhyNot("it is quantized in several ways")
        return quantizations.pop()

    def _readers_behind_element_moves(self, param: Var) -> list[tuple[Expr, Expr]]:
        """Return the readers of an input that do more than move elements, each with the moved input
        that it reads.
        """
        readers, sources = list[tuple[Expr, Expr]](), list[Expr]([param])
        for source in sources:
            for reader in self._readers.get(source, ()):
                if _is_element_move(reader) and reader in self._readers and reader not in self._before:
                    sources.append(reader)
                else:
                    readers.append((reader, source))
        return readers

    def _output_quantization(self, node: Expr, current_dtype: DType) -> QuantizationOrRefusal:
        """Return the quantization that the integers of an output have or would have, or the reason
        why there is none.
        """
        names = ["qnn.quantize", "qnn.requantize"]
        if current_dtype.is_float:
            names = ["qnn.dequantize"]
        source, moves = _source_and_element_moves(node)
        if is_op_call(source, *names):
            return _quantization_of_call(source, _integers_before_dequantize(source), bool(moves))
        names_text = " or ".join(names)
        return WhyNot(f"it comes from {describe_node_for_message(source)}, not from {names_text}")

    def main_with_converted_inputs_and_outputs(self) -> Function:
        """Return @main with the changed inputs and outputs; the same object if nothing changed."""
        main = self._main
        same = zip(self._results, self._before, strict=True)
        if tuple(self._params) == main.params and all(a is b for a, b in same):
            return main
        body = self._results[0]
        if isinstance(main.body, Tuple):
            body = Tuple(self._results, main.body.span)
        body = rewrite_bottom_up(body, self._replace_node_using_converted_input)
        return replace(main, params=tuple(self._params), body=body, ret_type=None)

    def _replace_node_using_converted_input(self, old: Expr, new: Expr) -> Expr:
        """Return a node over the model's new inputs; a removed qnn.quantize is replaced by its
        operand.
        """
        if old in self._dropped:
            return convert_byte_signedness(children(new)[1], self._dropped[old], _dtype(old))
        return self._replaced.get(old, new)
