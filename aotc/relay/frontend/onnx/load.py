# SPDX-License-Identifier: Apache-2.0
"""Read ONNX files: parse a file to a ModelProto and validate the structure of its graph.

Input: a path, or a ModelProto. Output: a `LoadedModel`. Its tensors are decoded on demand; external
data is read from the folder of the model only.

    loaded = read_model("net.onnx")
    loaded.opsets[""]                       # 17
    loaded.decode_tensor(loaded.proto.graph.initializer[0])
"""

import math
import os
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from aotc.ir import AotcError, Array, DType, Span, frozen, open_regular_file, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.visitor import depth_first_post_order

#: Largest number of characters of a model's text that a message quotes.
MAX_QUOTED_CHARACTERS: Final = 80
#: Largest nesting depth of functions and subgraphs.
MAX_NESTING_DEPTH: Final = 60

#: Data types by ONNX element type code; "" for strings and complex numbers, which are not
#: supported.
_DTYPES: Final = dict(enumerate((
    "", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "", "bool", "float16",
    "float64", "uint32", "uint64", "", "", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu",
    "uint2", "int2",
)))  # fmt: skip
_ELEM_TYPES: Final = {name: code for code, name in _DTYPES.items()}


def dtype_of_onnx_type(elem_type: int, subject: str) -> DType:
    """Return the data type of an ONNX element type code. Raises AotcError (code "onnx-dtype") for
    strings, complex numbers and unknown codes.
    """
    name, known = _DTYPES.get(elem_type), {v: k for k, v in TensorProto.DataType.items()}
    text = f"{subject} has element type {known.get(elem_type, elem_type)}, which is not supported"
    require("onnx-dtype", bool(name), text)
    return DType(name or "")


def decode_string_tensor(tensor: TensorProto) -> Array:
    """Decode a TensorProto of strings to an array of str objects. Raises AotcError (code "onnx-tensor") for
    strings that are not UTF-8, and for data that does not have the declared size.
    """
    label = f"tensor {tensor.name!r}" if tensor.name else "a tensor"
    shape = g.checked_shape(tensor.dims, DType("uint8"), label)
    count = len(tensor.string_data)
    text = f"the data of {label} are {count} strings, not {math.prod(shape)}, as its shape {shape} says"
    require("onnx-tensor", count == math.prod(shape) and not tensor.raw_data, text)
    strings = np.empty(count, object)
    try:
        strings[:] = [value.decode("utf-8") for value in tensor.string_data]
    except UnicodeDecodeError as error:
        raise AotcError("onnx-tensor", f"a string of {label} is not UTF-8") from error
    return strings.reshape(shape)


def onnx_type_of_dtype(dtype: str) -> int:
    """Return the ONNX element type code of a data type."""
    return int(_ELEM_TYPES[dtype])


@frozen
class LoadedModel:
    """A parsed and validated ONNX model. `source` names it in messages, `opsets` holds the operator
    set version of each domain, `folder` is the folder from which external data may be read, None
    for a ModelProto without a file.
    """

    proto: ModelProto
    source: str
    opsets: dict[str, int]
    folder: Path | None = None

    def decode_tensor(self, tensor: TensorProto) -> Array:
        """Decode the value of a TensorProto to an array. Raises AotcError for an unsupported data
        type, for data that does not have the declared size, and for unreadable external data.
        """
        label = f"tensor {tensor.name!r}" if tensor.name else "a tensor"
        dtype = dtype_of_onnx_type(tensor.data_type, label)
        shape = g.checked_shape(tensor.dims, dtype, label)
        tensor = self.tensor_with_embedded_data(tensor)
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, OverflowError) as error:
            text = f"the data of {label} are not {math.prod(shape)} elements of {dtype}, as its shape {shape} says"
            raise AotcError("onnx-tensor", text, hint="the file is damaged; export or download it again") from error
        require(
            "onnx-tensor",
            array.shape == shape,
            f"{label} holds data of shape {array.shape}, but declares the shape {shape}",
        )
        return np.asarray(array)

    def decode_sparse_tensor(self, sparse: SparseTensorProto) -> Array:
        """Decode a SparseTensorProto to a dense array: values at indices, which are positions in row-major order or
        tuples of one index per axis, and zeros elsewhere.

        Raises AotcError (code "onnx-sparse") for indices that do not fit, or that are not sorted.
        """
        values, indices = self.decode_tensor(sparse.values), self.decode_tensor(sparse.indices)
        label = f"sparse tensor {sparse.values.name!r}"
        dtype = DType.from_numpy(values)
        shape = g.checked_shape(sparse.dims, dtype, label)
        g.check_materialization_cost(shape, dtype, label)
        fits = values.ndim == 1 and indices.dtype == np.int64
        fits = fits and indices.shape in ((len(values),), (len(values), len(shape)))
        text = (
            f"{label} of shape {shape} has values of shape {values.shape} and {indices.dtype} indices {indices.shape}"
        )
        require("onnx-sparse", fits, text)
        limits = np.array([math.prod(shape)] if indices.ndim == 1 else shape, np.int64)
        inside = bool(((indices >= 0) & (indices < (limits if indices.ndim == 2 else limits[0]))).all())
        require("onnx-sparse", inside, f"an index of {label} is outside of the shape {shape}")
        places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        require("onnx-sparse", bool((np.diff(places) > 0).all()), f"the indices of {label} are not in ascending order")
        dense = np.zeros(math.prod(shape), values.dtype)
        dense[places] = values
        return dense.reshape(shape)

    def tensor_with_embedded_data(self, tensor: TensorProto) -> TensorProto:
        """Return a TensorProto with its external data read into it; a tensor that contains its data
        is returned unchanged.

        Raises AotcError (code "onnx-external-data") if the data is missing, outside the model's
        folder or of another size.
        """
        if not _is_tensor_with_external_data(tensor):
            return tensor
        label = f"tensor {tensor.name!r}"
        dtype = dtype_of_onnx_type(tensor.data_type, label)
        shape = g.checked_shape(tensor.dims, dtype, label)
        entries = {e.key: e.value for e in tensor.external_data}
        path = self._resolve_external_data_path(entries.get("location", ""), label)
        with open_regular_file(path, "onnx-external-data") as file:
            try:
                offset = int(entries.get("offset", 0))
                size = os.fstat(file.fileno()).st_size
                length = int(entries["length"]) if "length" in entries else size - offset
            except ValueError as error:
                text = f"external data of {label}: the offset or the length that is stated is no number"
                raise AotcError("onnx-external-data", text) from error
            bits = 8 if dtype.bits == 1 else dtype.bits
            needed = math.ceil(math.prod(shape) * bits / 8)
            if offset < 0 or length != needed or offset + length > size:
                text = f"needs {needed} bytes, bytes {offset} to {offset + length} of {size} in {path.name} are named"
                raise AotcError("onnx-external-data", f"external data of {label} does not fit: {text}")
            file.seek(offset)
            data = file.read(length)
        copy = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        copy.raw_data = data
        return copy

    def _resolve_external_data_path(self, location: str, subject: str) -> Path:
        """Return the path of a file with external tensor data. Raises AotcError (code
        "onnx-external-data") unless it exists and is inside the model's folder after symbolic links
        are resolved.
        """
        if self.folder is None:
            raise AotcError(
                "onnx-external-data",
                f"{subject} has external data, but the model was given without a folder",
                hint="pass the path of the .onnx file instead of a ModelProto",
            )
        relative, location_text = Path(location), repr(location[:MAX_QUOTED_CHARACTERS])
        if len(location) > MAX_QUOTED_CHARACTERS:
            location_text += "..."
        if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts or "\\" in location:
            raise AotcError(
                "onnx-external-data", f"{subject} names external data outside the model's folder: {location_text}"
            )
        path = Path(os.path.realpath(self.folder / relative))
        if not path.is_relative_to(os.path.realpath(self.folder)):
            raise AotcError(
                "onnx-external-data", f"external data of {subject} leaves the model's folder: {location_text}"
            )
        try:
            file_exists = path.is_file()
        except (OSError, ValueError) as error:
            # a name longer than the file system allows
            reason = error.strerror if isinstance(error, OSError) else error
            raise AotcError("onnx-external-data", f"external data of {subject} in {location_text}: {reason}") from error
        require("onnx-external-data", file_exists, f"external data of {subject} is missing: no file {location_text}")
        return path


def read_model(model: str | Path | ModelProto) -> LoadedModel:
    """Read an ONNX model from a path or ModelProto and validate its structure.

    Raises AotcError for an unreadable or non-ONNX file, names that are not UTF-8, an unsupported IR
    or operator set version, a missing graph, and tensors that are defined twice or used but never
    defined.
    """
    if isinstance(model, ModelProto):
        proto, source, folder = model, "model", None
    else:
        path = Path(model)
        proto, source, folder = _parse_onnx_file(path), path.name, path.resolve().parent
    check_strings_are_utf8(proto, source)
    opsets = _read_opset_versions(proto, source)
    if folder is None:
        source = proto.graph.name or source
    check_tensor_definitions(proto.graph, source)
    return LoadedModel(proto, source, opsets, folder)


@g.replace_graph_prefix_of_error_codes("onnx")
def load_model(model: str | Path | ModelProto) -> ModelProto:
    """Return an ONNX model as one self-contained ModelProto: validated as by `read_model`, with
    external data read into its tensors.
    """
    loaded = read_model(model)
    if not any(map(_is_tensor_with_external_data, message_and_nested_protobuf_messages(loaded.proto.graph))):
        return loaded.proto
    proto = ModelProto()
    proto.CopyFrom(loaded.proto)
    for tensor in filter(_is_tensor_with_external_data, message_and_nested_protobuf_messages(proto.graph)):
        tensor.CopyFrom(loaded.tensor_with_embedded_data(tensor))
    return proto


def _is_tensor_with_external_data(message: Any) -> bool:
    return isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL


def message_and_nested_protobuf_messages(root: Any) -> Iterator[Any]:
    """Yield a protobuf message and all messages nested in it."""
    stack = [root]
    while stack:
        current = stack.pop()
        yield current
        for field, value in current.ListFields():
            if field.message_type is not None:
                stack.extend([value] if hasattr(value, "ListFields") else value)


def _parse_onnx_file(path: Path) -> ModelProto:
    with open_regular_file(path, "onnx-file") as file:
        data = file.read()
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        hint = "export or download it again"
        if data.startswith(b"PK"):
            # a zip archive, the format of files that PyTorch writes
            hint = "files of torch.export.save end in .pt2; TorchScript is taken as a module in memory (from_pytorch)"
        elif path.suffix != ".onnx":
            hint = "files that aotc reads end in .onnx, .pt2, .tflite or .relay"
        raise AotcError("onnx-file", f"{path} is not an ONNX file, or is truncated", hint=hint) from error
    return proto


def _read_opset_versions(proto: ModelProto, source: str) -> dict[str, int]:
    """Return the operator set version of each domain of an ONNX model ("" for ai.onnx). Raises
    AotcError if there is no graph (code "onnx-file") or if a version is not supported
    ("onnx-version").
    """
    span = Span(source)
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import):
        raise AotcError("onnx-file", "not an ONNX model: it contains no graph", span=span)
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        message = f"IR version {proto.ir_version} is not supported; the newest known is {onnx.IR_VERSION}"
        raise AotcError("onnx-version", message, span=span, hint="a newer `onnx` package may know it")
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise AotcError(
                "onnx-version", f"domain {domain or 'ai.onnx'!r} is imported with two different versions", span=span
            )
    if not opsets:
        # IR version 2 and older have no opset_import: operator set 1
        opsets[""] = 1
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opsets.get("", 1) <= newest:
        message = f"operator set {opsets['']} is not supported (known: 1 to {newest})"
        raise AotcError("onnx-version", message, span=span, hint="a newer `onnx` package may know it")
    return opsets


#: Fields of protobuf messages that do not affect the computation of a model, so that their text is
#: not checked.
_UNCHECKED_TEXT_FIELDS: Final = frozenset(
    {"doc_string", "producer_name", "producer_version", "metadata_props", "quantization_annotation", "denotation"}
)


def check_strings_are_utf8(proto: Any, source: str) -> None:
    """Raise AotcError (code "onnx-name") if a string in an ONNX model is not UTF-8; protobuf
    returns bytes for it.
    """
    stack: list[tuple[str, Any]] = [("", proto)]
    while stack:
        path, message = stack.pop()
        for field, value in message.ListFields():
            if field.name in _UNCHECKED_TEXT_FIELDS or field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
                continue
            single = isinstance(value, (str, bytes)) or hasattr(value, "ListFields")
            for place, item in enumerate([value] if single else value):
                where = f"{path}{field.name}" if single else f"{path}{field.name}[{place}]"
                if isinstance(item, bytes):
                    text = f"{where} is not UTF-8: {item[:MAX_QUOTED_CHARACTERS]!r}"
                    raise AotcError("onnx-name", text, span=Span(source), hint="rename it, or export the model again")
                if field.type == field.TYPE_MESSAGE:
                    stack.append((f"{where}.", item))


def node_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the subgraphs (branches, loop bodies) in the attributes of an ONNX node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def initializer_names(graph: GraphProto) -> set[str]:
    """Return the names of the dense and sparse initializers of an ONNX graph."""
    return {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}


def nesting_depth_error() -> AotcError:
    """Return the AotcError for ONNX functions or subgraphs that are nested more than
    MAX_NESTING_DEPTH deep.
    """
    return AotcError("onnx-depth", f"functions and subgraphs are nested more than {MAX_NESTING_DEPTH} deep")


def tensor_names_read(node: NodeProto, depth: int = 0) -> set[str]:
    """Return the names of the tensors that an ONNX node reads: its inputs, and the outer tensors
    that its subgraphs capture.

    Raises AotcError (code "onnx-depth") for subgraphs nested too deeply; `depth` is the nesting
    depth of the node's own graph.
    """
    if depth > MAX_NESTING_DEPTH:
        raise nesting_depth_error()
    names = {name for name in node.input if name}
    for graph in node_subgraphs(node):
        local_names = {v.name for v in graph.input} | initializer_names(graph)
        local_names |= {name for inner in graph.node for name in inner.output}
        for inner in graph.node:
            names |= tensor_names_read(inner, depth + 1) - local_names
        names |= {v.name for v in graph.output} - local_names
    return names


def check_tensor_definitions(graph: GraphProto, source: str) -> None:
    """Raise AotcError listing every tensor of an ONNX graph that is defined twice, and every tensor
    that is used but never defined.
    """
    problems = Problems("onnx-node")
    defined = {v.name for v in graph.input} | initializer_names(graph)
    for kind, values in (("input", graph.input), ("initializer", graph.initializer), ("output", graph.output)):
        for name, count in Counter(v.name for v in values).items():
            if count > 1:
                problems.add_problem("onnx-duplicate", f"{kind} {name!r} is declared {count} times", Span(source))
    spans = [Span(source, node=node_label(node, index)) for index, node in enumerate(graph.node)]
    for span, node in zip(spans, graph.node, strict=True):
        for name in filter(None, node.output):
            if name in defined:
                problems.add_problem("onnx-duplicate", f"tensor {name!r} is defined more than once", span)
            defined.add(name)
    for span, node in zip(spans, graph.node, strict=True):
        for name in sorted(tensor_names_read(node) - defined):
            problems.add_problem("onnx-undefined", f"tensor {name!r} is used, but nothing defines it", span)
    for value in graph.output:
        if value.name not in defined:
            problems.add_problem("onnx-undefined", f"output {value.name!r} is defined by nothing", Span(source))
    problems.raise_collected_problems()


def node_label(node: NodeProto, index: int) -> str:
    """Return the name of an ONNX node for messages, or its operator and index if it has no name."""
    return str(node.name) or f"{node.op_type}#{index}"


def needed_nodes_in_topological_order(graph: GraphProto, source: str) -> list[tuple[int, NodeProto]]:
    """Return the (index, node) pairs of the nodes that the outputs need, in topological order; the
    order of the file is used if it is topological.

    Raises AotcError (code "onnx-cycle") with the names of the nodes of a cycle.
    """
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    reads = [sorted({producer[n] for n in tensor_names_read(node) if n in producer}) for node in graph.node]
    roots = (producer[v.name] for v in graph.output if v.name in producer)
    order = sorted(depth_first_post_order(roots, reads.__getitem__))
    if any(read >= index for index in order for read in reads[index]):
        try:
            order = list(TopologicalSorter({index: reads[index] for index in order}).static_order())
        except CycleError as error:
            names = " -> ".join(node_label(graph.node[i], i) for i in error.args[1][:8])
            raise AotcError("onnx-cycle", f"the graph has a cycle: {names}", span=Span(source)) from None
    return [(i, graph.node[i]) for i in order]
