# SPDX-License-Identifier: Apache-2.0
"""Read TFLite files: parse the flatbuffer and check every number in it.

Input: a path, bytes, or a `tflite.Model`. Output: a `TfliteModel` of subgraphs of tensors and
operators. Constants are views of the bytes of the file, except sparse ones, which become dense.

    model = read_model("net.tflite")
    model.main.operators[0].name            # "CONV_2D"
    model.main.tensors[0].scale             # one float32, or one for each element of an axis
    model.subgraph(1)                       # the body of a loop

Offsets in a damaged file may have any value: the flatbuffers package reads numbers at any position
inside the file and raises an exception beyond its end. Counts are compared with the size of the
file before elements are read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Final

import numpy as np
import tflite

from aotc.ir import AotcError, Array, DType, Span, did_you_mean_hint, frozen, open_regular_file, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.tflite.sparse_tensors import (
    CompressedDimension,
    DenseDimension,
    SparseFormat,
    expand_sparse_elements,
)

#: The supported version of the schema, which is stored in every file.
SCHEMA_VERSION: Final = 3
_FILE_IDENTIFIER: Final = b"TFL3"
_MAX_SHOWN_CHARACTERS: Final = 80
#: Exceptions that reading at an invalid position of a damaged file may raise.
_DAMAGED_FILE_EXCEPTIONS: Final = (struct.error, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
_DTYPES: Final = {
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "INT32": "int32",
    "UINT8": "uint8",
    "INT64": "int64",
    "BOOL": "bool",
    "INT16": "int16",
    "INT8": "int8",
    "FLOAT64": "float64",
    "UINT64": "uint64",
    "UINT32": "uint32",
    "UINT16": "uint16",
    "INT4": "int8",
    "BFLOAT16": "bfloat16",
    # a resource is the number of a variable
    "RESOURCE": "int32",
    # real and imaginary parts along a last axis that is added
    "COMPLEX64": "float32",
}
_TYPE_NAMES: Final = {v: k for k, v in vars(tflite.TensorType).items() if isinstance(v, int)}
_OPTION_TABLE_NAMES: Final = {v: k for k, v in vars(tflite.BuiltinOptions).items() if isinstance(v, int)}
_SECOND_OPTION_TABLE_NAMES: Final = {v: k for k, v in vars(tflite.BuiltinOptions2).items() if isinstance(v, int)}
_DAMAGED_FILE_HINT: Final = "the file is damaged; convert or download it again"


@frozen(eq=False)
class TfliteTensor:
    """A tensor as a TFLite file declares it.

    scale, zero   float32 and int32; empty if it is not quantized; one value, or one per element of
                  `axis`
    data          value of a constant, otherwise None
    variable      True if it retains its value between runs; its initial value represents zero
    packed        True if the file stores two 4-bit elements per byte
    scaled        True if the file has a scale; that of 32-bit integers is not stored in `scale`
    resource      True if it is a reference to a resource variable
    is_complex    True if it has a last axis of real and imaginary parts, which the file does not
                  state
    open_axes     axes whose extent the file leaves open: those of -1 in its shape signature
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scale: Array
    zero: Array
    axis: int
    data: Array | None
    variable: bool
    packed: bool = False
    scaled: bool = False
    resource: bool = False
    is_complex: bool = False
    open_axes: tuple[int, ...] = ()

    @property
    def is_quantized(self) -> bool:
        """True if the tensor holds integers with a scale."""
        return self.scale.size > 0 and self.dtype.is_integer


@frozen(eq=False)
class TfliteOperator:
    """An operator of a TFLite model.

    custom            True if `name` is the name of a custom operator
    inputs, outputs   indices of tensors; -1 for an omitted input
    intermediates     indices of tensors that only carry scales
    options           flatbuffer table of its options, None if there is none
    custom_options    options of a custom operator, in a format of its own
    """

    name: str
    custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: Any
    custom_options: bytes = b""

    def option_value(self, name: str) -> Any:
        """Return an option by its name in the schema, or None if the operator has no options.
        Raises AotcError (code "tflite-options") for a list that extends beyond the file.
        """
        vector = getattr(self.options, f"{name}AsNumpy", None)
        with _raise_damaged_file_on_read_error(f"the options of {self.name}", "tflite-options"):
            if vector is not None:
                elements = vector()
                return elements.tolist() if isinstance(elements, np.ndarray) else None
            return None if self.options is None else getattr(self.options, name)()


@frozen(eq=False)
class TfliteSubgraph:
    """A subgraph of a TFLite file.

    source    name of the model in diagnostics
    index     number of the subgraph; 0 is the one that runs of the model compute
    """

    source: str
    index: int
    tensors: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def operator_span(self, index: int) -> Span:
        """Return the source location of an operator: its number, its name and the name of its first
        result.
        """
        op = self.operators[index]
        name = self.tensors[op.outputs[0]].name if op.outputs else ""
        place = f"subgraph {self.index}: " if self.index else ""
        return Span(self.source, node=f"{place}{op.name}#{index} {name[:_MAX_SHOWN_CHARACTERS]}".rstrip())


@frozen(eq=False)
class TfliteSignature:
    """A function of a TFLite model: a subgraph, and the numbers of its tensors by the names of the
    function's inputs and outputs, in the order of the file.
    """

    subgraph: TfliteSubgraph
    inputs: dict[str, int]
    outputs: dict[str, int]


@frozen(eq=False)
class TfliteModel:
    """A TFLite file. `main` is its first subgraph; `subgraph` reads each other one when it is first called for it."""

    main: TfliteSubgraph
    subgraph_count: int
    _reader: Any
    _subgraphs: dict[int, TfliteSubgraph] = field(default_factory=dict)

    def subgraph(self, index: int) -> TfliteSubgraph:
        """Return a subgraph by its number. Raises AotcError if it does not exist (code
        "tflite-subgraph"), or with all problems of its tensors and operators.
        """
        if index == self.main.index:
            return self.main
        exists = 0 <= index < self.subgraph_count
        text = f"subgraph {index} does not exist, the model has {self.subgraph_count}"
        require_valid_file("tflite-subgraph", exists, text)
        if index not in self._subgraphs:
            self._subgraphs[index] = self._reader.read_subgraph(index)
        return self._subgraphs[index]

    def signature_subgraphs(self) -> dict[str, TfliteSubgraph]:
        """Return the subgraph of each signature by its name, without those that cannot be read.
        Raises AotcError if the table of the signatures is damaged.
        """
        result = {}
        for key, table in self._reader.signature_tables().items():
            with suppress(AotcError):
                result[key] = self.subgraph(table.SubgraphIndex())
        return result

    def signature(self, key: str) -> TfliteSignature:
        """Return the function of the model with a name. Raises AotcError (code "tflite-signature") if
        there is none, or if its inputs are not those of its subgraph.
        """
        reader: _Reader = self._reader
        span = Span(self.main.source)
        tables = reader.signature_tables()
        if key not in tables:
            hint = did_you_mean_hint(key, tables) or f"signatures: {', '.join(tables) or 'none'}"
            raise AotcError("tflite-signature", f"the model has no signature {key!r}", span=span, hint=hint)
        graph = self.subgraph(tables[key].SubgraphIndex())
        inputs, outputs = (
            reader.read_tensor_map(tables[key], side, len(graph.tensors)) for side in ("Inputs", "Outputs")
        )
        same = set(inputs.values()) == set(graph.inputs) and set(outputs.values()) <= set(graph.outputs)
        text = f"the tensors of signature {key!r} are not the inputs and outputs of subgraph {graph.index}"
        require_valid_file("tflite-signature", same and bool(outputs), text)
        return TfliteSignature(graph, inputs, outputs)


def require_valid_file(code: str, condition: bool, text: str, hint: str = _DAMAGED_FILE_HINT) -> None:
    """Raise AotcError with a hint that the file is damaged unless a condition holds that every
    valid TFLite file fulfills.
    """
    if not condition:
        raise AotcError(code, text, hint=hint)


@contextmanager
def _raise_damaged_file_on_read_error(subject: str, code: str = "tflite-file") -> Iterator[None]:
    try:
        yield
    except _DAMAGED_FILE_EXCEPTIONS as error:
        raise AotcError(
            code,
            f"{subject} cannot be read: the file is cut short, or refers to bytes beyond its end",
            hint=_DAMAGED_FILE_HINT,
        ) from error


def _checked_vector_length(length: Any, table: Any, element_bytes: int, subject: str) -> int:
    """Return the length of a flatbuffer vector whose elements have `element_bytes` bytes. Raises
    AotcError (code "tflite-file") if the file is too small for it.
    """
    count, most = int(length), len(table._tab.Bytes) // element_bytes
    require_valid_file("tflite-file", count <= most, f"{subject}: {count} of them are more than the file has room for")
    return count


def _read_number_vector(table: Any, name: str, dtype: Any) -> Array:
    """Return a flatbuffer vector of numbers as an array; an empty array if it is missing."""
    _checked_vector_length(getattr(table, f"{name}Length")(), table, 1, name)
    vector = getattr(table, f"{name}AsNumpy")()
    return np.asarray(vector if isinstance(vector, np.ndarray) else [], dtype)


def _decode_text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def read_model(model: str | Path | bytes | Any, name: str | None = None) -> TfliteModel:
    """Read a TFLite model from a path, bytes or a `tflite.Model` and validate its structure.

    name   name of the model in source locations; None for its file name

    Raises AotcError with all problems found: not a TFLite file, an unsupported version of the
    schema, offsets outside of the file, tensors of unsupported types or sizes, sparse tensors whose
    formats contradict their shapes.
    """
    if isinstance(model, (str, Path)):
        with open_regular_file(Path(model), "tflite-file") as file:
            data = file.read()
        source = name or Path(model).name
    else:
        table = getattr(model, "_tab", None)
        data, source = bytes(model if table is None else table.Bytes), name or "model"
    span = Span(source)
    if data[4:8] != _FILE_IDENTIFIER:
        text = "not a TFLite model: the bytes 4 to 7 are not TFL3"
        raise AotcError("tflite-file", text, span=span, hint="give a complete .tflite file")
    problems = Problems("tflite-file")
    with problems.collect_errors_at(span), _raise_damaged_file_on_read_error("the file"):
        root = tflite.Model.GetRootAs(data, 0)
        version = root.Version()
        hint = "convert the model again with a current version of TensorFlow"
        text = f"version {version} of the schema is not supported (only {SCHEMA_VERSION} is)"
        require_valid_file("tflite-version", version == SCHEMA_VERSION, text, hint)
        count = _checked_vector_length(root.SubgraphsLength(), root, 4, "subgraphs")
        require_valid_file("tflite-file", count > 0, "the model has no subgraph")
        reader = _Reader(root, source)
        return TfliteModel(reader.read_subgraph(0), count, reader)
    problems.raise_collected_problems()
    raise AssertionError


@frozen(eq=False)
class _Reader:
    """Reads the subgraphs of one TFLite file."""

    root: Any
    source: str

    def read_subgraph(self, index: int) -> TfliteSubgraph:
        """Read a subgraph that exists. Raises AotcError with all problems of its tensors and
        operators.
        """
        place = f"subgraph {index}: " if index else ""
        problems = Problems("tflite-file")
        with problems.collect_errors_at(Span(self.source)), _raise_damaged_file_on_read_error(f"{place}the file"):
            graph = self.root.Subgraphs(index)
            tensors = self.read_tensors(graph, problems, place)
            operators = []
            for number in range(_checked_vector_length(graph.OperatorsLength(), graph, 4, "operators")):
                with (
                    problems.collect_errors_at(Span(self.source, node=f"{place}operator {number}")),
                    _raise_damaged_file_on_read_error(f"operator {number}"),
                ):
                    operators.append(self.read_operator(graph.Operators(number), len(tensors)))
            ends = (self.read_tensor_indices(graph, side, len(tensors)) for side in ("Inputs", "Outputs"))
            inputs, outputs = ends
            require_valid_file("tflite-file", index > 0 or bool(outputs), "the model has no outputs")
            problems.raise_collected_problems()
            return TfliteSubgraph(self.source, index, tuple(tensors), tuple(operators), inputs, outputs)
        problems.raise_collected_problems()
        raise AssertionError

    def signature_tables(self) -> dict[str, Any]:
        """Return the flatbuffer tables of the functions of the file by name."""
        with _raise_damaged_file_on_read_error("the signatures"):
            count = _checked_vector_length(self.root.SignatureDefsLength(), self.root, 4, "signatures")
            tables = [self.root.SignatureDefs(k) for k in range(count)]
            return {_decode_text(table.SignatureKey()): table for table in tables}

    def read_tensor_map(self, table: Any, side: str, tensor_count: int) -> dict[str, int]:
        """Return the numbers of the input or output tensors of a function by name."""
        with _raise_damaged_file_on_read_error("the signatures"):
            count = _checked_vector_length(getattr(table, f"{side}Length")(), table, 4, side)
            rows = [getattr(table, side)(k) for k in range(count)]
            found = {_decode_text(row.Name()): int(row.TensorIndex()) for row in rows}
        fits = len(found) == count and all(0 <= k < tensor_count for k in found.values())
        require_valid_file(
            "tflite-signature", fits, f"the {side.lower()} of a signature do not exist or have equal names"
        )
        return found

    def read_tensor_indices(self, table: Any, name: str, tensor_count: int, min_index: int = 0) -> tuple[int, ...]:
        indices = tuple(_read_number_vector(table, name, np.int64).tolist())
        wrong = [k for k in indices if not min_index <= k < tensor_count]
        text = f"{name.lower()}: tensor {wrong[:1]} does not exist, there are {tensor_count}"
        require_valid_file("tflite-file", not wrong, text)
        return indices

    # --- tensors

    def read_tensors(self, graph: Any, problems: Problems, place: str) -> list[TfliteTensor]:
        tensors = []
        for index in range(_checked_vector_length(graph.TensorsLength(), graph, 4, "tensors")):
            with (
                problems.collect_errors_at(Span(self.source, node=f"{place}tensor {index}")),
                _raise_damaged_file_on_read_error(f"tensor {index}"),
            ):
                tensors.append(self.read_tensor(graph.Tensors(index), index))
        problems.raise_collected_problems()
        return tensors

    def read_tensor(self, table: Any, index: int) -> TfliteTensor:
        name = _decode_text(table.Name()) or f"tensor_{index}"
        kind = _TYPE_NAMES.get(table.Type(), str(table.Type()))
        label = f"tensor {index} ({name[:_MAX_SHOWN_CHARACTERS]!r})"
        text = f"{label} has type {kind}, which is not supported"
        require("tflite-dtype", kind in _DTYPES, text)
        dtype = DType(_DTYPES[kind])
        parts = [2] if kind == "COMPLEX64" else []
        shape = g.checked_shape([*_read_number_vector(table, "Shape", np.int64).tolist(), *parts], dtype, label)
        data = self.read_constant_data(table, dtype, shape, kind == "INT4", label)
        given = table.Quantization()
        scaled = given is not None and _read_number_vector(given, "Scale", np.float32).size > 0
        # scales of 32-bit integers, which are sums, are not used
        scales = None if dtype.bits > 16 else given
        scale, zero, axis = _read_quantization(scales, shape, label)
        zero_fits = not dtype.is_integer or bool(((zero >= int(dtype.min)) & (zero <= int(dtype.max))).all())
        require("tflite-quant", zero_fits, f"{label} has a zero point outside the range of {dtype}")
        variable = bool(table.IsVariable())
        packed = kind == "INT4"
        kinds = {"resource": kind == "RESOURCE", "is_complex": kind == "COMPLEX64"}
        signature = _read_number_vector(table, "ShapeSignature", np.int64).tolist()
        opened = tuple(k for k, d in enumerate(signature) if d == -1 and len(signature) + len(parts) == len(shape))
        return TfliteTensor(
            name, shape, dtype, scale, zero, axis, data, variable, packed, scaled, **kinds, open_axes=opened
        )

    def read_constant_data(
        self, table: Any, dtype: DType, shape: tuple[int, ...], packed: bool, subject: str
    ) -> Array | None:
        place = table.Buffer()
        if place == 0:
            return None
        count = _checked_vector_length(self.root.BuffersLength(), self.root, 4, "buffers")
        text = f"{subject}: buffer {place} does not exist, there are {count}"
        require_valid_file("tflite-file", place < count, text)
        buffer = self.root.Buffers(place)
        text = f"the data of {subject} lie outside of the flatbuffer, which is not supported"
        hint = (
            "TFLite models beyond 2 GB store weights so: convert a smaller or quantized model, or use ONNX or PyTorch"
        )
        require_valid_file("tflite-file", buffer.Size() == 0, text, hint=hint)
        raw = _read_number_vector(buffer, "Data", np.uint8)
        if table.Sparsity() is not None:
            require("tflite-dtype", not packed, f"{subject} is sparse and has 4-bit elements, which is not supported")
            return _read_sparse_elements(raw, table.Sparsity(), dtype, shape, subject)
        size = math.prod(shape)
        if not raw.size:
            return None
        needed = -(-size // 2) if packed else size * dtype.itemsize
        text = f"the data of {subject} have {raw.size} bytes, its shape {shape} and type {dtype} need {needed}"
        require_valid_file("tflite-file", raw.size == needed, text)
        if packed:
            halves = np.stack([raw << 4, raw & 0xF0], -1).astype(np.uint8)
            return (halves.view(np.int8) >> 4).reshape(-1)[:size].reshape(shape)
        return raw.view(dtype.numpy).reshape(shape)

    # --- operators

    def read_operator(self, table: Any, tensor_count: int) -> TfliteOperator:
        codes = _checked_vector_length(self.root.OperatorCodesLength(), self.root, 4, "operator codes")
        place = table.OpcodeIndex()
        require_valid_file("tflite-file", place < codes, f"operator code {place} does not exist")
        code = self.root.OperatorCodes(place)
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = tflite.utils.BUILTIN_OPCODE2NAME.get(number, f"builtin {number}")
        custom = name == "CUSTOM"
        if custom:
            name = _decode_text(code.CustomCode())[:_MAX_SHOWN_CHARACTERS]
        inputs = self.read_tensor_indices(table, "Inputs", tensor_count, -1)
        outputs = self.read_tensor_indices(table, "Outputs", tensor_count)
        inner = self.read_tensor_indices(table, "Intermediates", tensor_count, -1)
        own = _read_number_vector(table, "CustomOptions", np.uint8).tobytes() if custom else b""
        return TfliteOperator(name, custom, code.Version(), inputs, outputs, inner, _typed_option_table(table), own)


def _read_sparse_elements(raw: Array, table: Any, dtype: DType, shape: tuple[int, ...], subject: str) -> Array:
    """Return the dense elements of a sparse constant of which the file stores the elements `raw`."""
    require_valid_file("tflite-file", raw.size % dtype.itemsize == 0, f"the data of {subject} end within an element")
    levels: list[DenseDimension | CompressedDimension] = []
    for k in range(_checked_vector_length(table.DimMetadataLength(), table, 4, "levels")):
        level = table.DimMetadata(k)
        if level.Format() == tflite.DimensionType.DENSE:
            levels.append(DenseDimension(int(level.DenseSize())))
            continue
        vectors = (
            _read_sparse_index_vector(kind, vector, subject)
            for kind, vector in (
                (level.ArraySegmentsType(), level.ArraySegments()),
                (level.ArrayIndicesType(), level.ArrayIndices()),
            )
        )
        levels.append(CompressedDimension(*vectors))
    order, blocked = (_read_number_vector(table, name, np.int64).tolist() for name in ("TraversalOrder", "BlockMap"))
    sparse = SparseFormat(tuple(order), tuple(blocked), tuple(levels))
    return expand_sparse_elements(raw.view(dtype.numpy), shape, sparse, subject)


def _read_sparse_index_vector(kind: int, union: Any, subject: str) -> Array:
    """Return a vector of segments or indices of a sparse tensor, whose elements have the type that
    the union `kind` states.
    """
    name = next((n for n, v in vars(tflite.SparseIndexVector).items() if v == kind), "NONE")
    text = f"{subject} has a sparse dimension without segments or indices"
    require_valid_file("tflite-file", name != "NONE" and union is not None, text)
    vector = getattr(tflite, name)()
    vector.Init(union.Bytes, union.Pos)
    return _read_number_vector(vector, "Values", np.int64)


def _typed_option_table(table: Any) -> Any:
    """Return the options of a TFLite operator as the flatbuffer table type that the file states, or
    None. Newer operators have theirs in a union of its own.
    """
    for names, union in ((_OPTION_TABLE_NAMES, "BuiltinOptions"), (_SECOND_OPTION_TABLE_NAMES, "BuiltinOptions2")):
        kind, found = getattr(table, f"{union}Type")(), getattr(table, union)()
        if kind and found is not None and kind in names:
            options = getattr(tflite, names[kind])()
            options.Init(found.Bytes, found.Pos)
            return options
    return None


def _read_quantization(table: Any, shape: tuple[int, ...], subject: str) -> tuple[Array, Array, int]:
    """Return scales, zero points and their axis of a TFLite tensor; empty arrays if it is not
    quantized. Raises AotcError (code "tflite-quant") for invalid ones.
    """
    none = np.zeros(0, np.float32), np.zeros(0, np.int32), 0
    if table is None:
        return none
    scale = _read_number_vector(table, "Scale", np.float32)
    zero, axis = _read_number_vector(table, "ZeroPoint", np.int64), int(table.QuantizedDimension())
    if not scale.size:
        return none
    require("tflite-quant", table.DetailsType() == 0, f"{subject} has a custom quantization, which is not supported")
    several = scale.size > 1
    fits = not several or (0 <= axis < len(shape) and shape[axis] == scale.size)
    text = f"{subject} of shape {shape} has {scale.size} scales along axis {axis}"
    require("tflite-quant", fits and zero.size in (0, 1, scale.size), text)
    finite = bool(np.all(np.isfinite(scale) & (scale >= 0)))
    bounded = not zero.size or bool((np.abs(zero) < 1 << 31).all())
    require("tflite-quant", finite and bounded, f"{subject} has an invalid scale or zero point")
    # a scale of 0 occurs for a tensor that is 0 everywhere
    scale = np.where(scale == 0, np.float32(1), scale)
    zero = np.zeros(1, np.int64) if not zero.size else zero
    return scale, np.broadcast_to(zero, scale.shape).astype(np.int32), axis
