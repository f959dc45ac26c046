# SPDX-License-Identifier: Apache-2.0
"""Quantize a float ONNX model with calibration data, by ONNX Runtime's static quantizer.

    prepared = prepare_for_quantization(onnx_model, weights="int8")  # constants folded, normalizations in convolutions
    quantized = quantize_prepared_model(prepared, [{"x": array}], Settings(per_channel=True))

Activations become uint8, weights int8 or int4, expressed by pairs of QuantizeLinear and
DequantizeLinear.
"""

import importlib.util
import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import onnx

from aotc.checking.input_generation import Arrays
from aotc.ir import COMPILE_CALL, AotcError, Diagnostic, did_you_mean_hint, frozen, require_known_name
from aotc.ir.atomic_write import temporary_folder

#: ONNX Runtime's names of calibration methods, and of types of weights.
ORT_CALIBRATION_METHODS: Final = {"minmax": "MinMax", "percentile": "Percentile"}
ORT_WEIGHT_TYPES: Final = {"int8": "QInt8", "int4": "QInt4"}
#: First ONNX opsets with int4, and with per-channel scales.
INT4_OPSET, CHANNEL_OPSET = 21, 13
_QUANTIZED_OPERATOR_PATTERN: Final = re.compile(r"Quantize|QLinear|Integer$")
_MAX_MESSAGE_CHARACTERS: Final = 300
_STDERR_FILE_DESCRIPTOR: Final = 2


@frozen
class Settings:
    """Settings of the quantization.

    per_channel   use one scale per output channel of weights instead of one per tensor
    method        range of activations: "minmax" includes all values, "percentile" excludes the most extreme ones
    weights       "int8" or "int4"
    exclude       names of nodes to leave in float

    Raises AotcError for an unknown method or type of weights.
    """

    per_channel: bool = False
    method: str = "minmax"
    weights: str = "int8"
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_known_name("quantize", "calibration method", self.method, ORT_CALIBRATION_METHODS)
        require_known_name("quantize", "type of weights", self.weights, ORT_WEIGHT_TYPES)


def import_onnxruntime_quantizer() -> Any:
    """Return the package onnxruntime.quantization; AotcError if ONNX Runtime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        text = "quantizing needs ONNX Runtime, which is not installed"
        raise AotcError("quantize", text, hint="pip install onnxruntime")
    import onnxruntime.quantization

    return onnxruntime.quantization


class Feed:
    """Calibration data reader for ONNX Runtime's quantizer: iterates over a range of the sets of
    inputs.
    """

    def __init__(self, sets: Sequence[Arrays]) -> None:
        self._sets = sets
        self.set_range(0, len(sets))

    def __len__(self) -> int:
        return len(self._sets)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Restart the iteration over calibration inputs, with the sets from `start_index` up to
        `end_index`.
        """
        self._remaining_sets = iter(self._sets[start_index:end_index])

    def get_next(self) -> Arrays | None:
        """Return the next set of calibration inputs; None after the last one."""
        return next(self._remaining_sets, None)

    def __iter__(self) -> Iterator[Arrays]:
        return self._remaining_sets


@contextmanager
def _discard_stderr_of_native_code() -> Iterator[None]:
    """Context manager: discard what native code writes to the error stream of this process; Python
    code still writes to it.

    ONNX Runtime's log severity is no alternative: it belongs to the whole process, and it can be set
    but not read, so that the caller's value could not be restored.
    """
    try:
        saved = os.dup(_STDERR_FILE_DESCRIPTOR)
    except OSError:
        # the process has no error stream
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        with (
            Path(os.devnull).open("w") as nowhere,
            open(saved, "w", closefd=False, buffering=1, errors="backslashreplace") as original,
        ):
            os.dup2(nowhere.fileno(), _STDERR_FILE_DESCRIPTOR)
            with redirect_stderr(original) if _is_stderr_of_process(sys.stderr) else nullcontext():
                yield
    finally:
        os.dup2(saved, _STDERR_FILE_DESCRIPTOR)
        os.close(saved)


def _is_stderr_of_process(stream: Any) -> bool:
    """Return True if a stream of Python writes to the error stream of this process."""
    try:
        return bool(stream.fileno() == _STDERR_FILE_DESCRIPTOR)
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def _onnxruntime_errors_as_aotc_errors(action: str) -> Iterator[Path]:
    """Context manager: silence ONNX Runtime, yield an empty folder, and turn its exceptions into
    AotcError.

    action    the action, for the message "ONNX Runtime cannot ..."
    """
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # it also logs tracebacks of its exceptions
    try:
        # it also prints to standard output
        with (
            _discard_stderr_of_native_code(),
            redirect_stdout(io.StringIO()),
            temporary_folder("aotc-quantize-") as folder,
        ):
            yield Path(folder)
    except AotcError:
        raise
    except Exception as error:
        # exceptions of many types
        text = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS] or type(error).__name__
        raise AotcError("quantize", f"ONNX Runtime cannot {action}: {text}") from error
    finally:
        logging.disable(level)


def require_no_quantized_operators(model: onnx.ModelProto) -> None:
    """Raise AotcError if a model contains quantized operators already."""
    quantized_nodes = [node for node in model.graph.node if _QUANTIZED_OPERATOR_PATTERN.search(node.op_type)]
    if quantized_nodes:
        text = f"the model is quantized already: node {quantized_nodes[0].name!r} is {quantized_nodes[0].op_type}"
        raise AotcError("quantize", text, hint=COMPILE_CALL + " takes it as it is")


def copy_with_unique_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of an ONNX model in which nodes have unique names and constants are not inputs.

    Reports and exclusions refer to nodes by name.
    """
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    constants = {t.name for t in copied.graph.initializer}
    inputs = [v for v in copied.graph.input if v.name not in constants]
    del copied.graph.input[:]
    copied.graph.input.extend(inputs)
    # the first IR version in which constants need not be inputs
    copied.ir_version = max(copied.ir_version, 4)
    used_names: set[str] = set()
    for number, node in enumerate(copied.graph.node):
        if not node.name or node.name in used_names:
            node.name = f"{node.name or node.op_type}#{number}"
        used_names.add(node.name)
    return copied


def prepare_for_quantization(model: onnx.ModelProto, weights: str, per_channel: bool = False) -> onnx.ModelProto:
    """Prepare a float model for quantization: fold constants and batch normalizations, and infer
    all shapes.

    The model is converted to a newer opset if int4 weights or per-channel scales need it.
    """
    package = import_onnxruntime_quantizer()
    require_no_quantized_operators(model)
    with _onnxruntime_errors_as_aotc_errors("prepare the model for being quantized") as folder:
        ready = copy_with_unique_node_names(model)
        opset = max((o.version for o in ready.opset_import if o.domain in ("", "ai.onnx")), default=0)
        least = INT4_OPSET if weights == "int4" else CHANNEL_OPSET if per_channel else 0
        if opset < least:
            from onnx import version_converter

            ready = version_converter.convert_version(ready, least)
        source, path = folder / "float.onnx", folder / "prepared.onnx"
        # from a file: for a model in memory, it separates the weights from the graph, and its optimizer
        # then misses unused weights and those shared by the shapes of several nodes
        save_onnx_model(ready, source)
        package.quant_pre_process(str(source), str(path), skip_symbolic_shape=True)
        return copy_with_unique_node_names(_flatten_gemm_biases_in_place(onnx.load(path)))


def _flatten_gemm_biases_in_place(model: onnx.ModelProto) -> onnx.ModelProto:
    """Change Gemm biases of shape (1, N) to (N), which are equivalent, because the quantizer only
    handles the latter.

    ONNX Runtime's optimizer creates them when it fuses a product and a sum.
    """
    readers = [(name, node, k) for node in model.graph.node for k, name in enumerate(node.input)]
    for tensor in model.graph.initializer:
        places = [node.op_type == "Gemm" and k == 2 for name, node, k in readers if name == tensor.name]
        if len(tensor.dims) == 2 and tensor.dims[0] == 1 and places and all(places):
            del tensor.dims[0]
    return model


def save_onnx_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model to a file, with its weights in a separate file if it exceeds the size limit of
    protobuf.
    """
    onnx.save(model, path, save_as_external_data=model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF)


def require_nodes_exist(model: onnx.ModelProto, node_names: Sequence[str]) -> None:
    """Raise AotcError with a diagnostic for each name that is not a node of a prepared model."""
    known = [node.name for node in model.graph.node]
    problems = [
        Diagnostic(
            "quantize",
            f"there is no node {name!r} to exclude",
            hint=did_you_mean_hint(name, known) or _available_nodes_hint(known),
        )
        for name in node_names
        if name not in known
    ]
    if problems:
        raise AotcError.collect(problems)


def _available_nodes_hint(node_names: Sequence[str]) -> str:
    names_text = ", ".join(node_names[:10])
    return f"nodes after constants are folded: {names_text}{', ...' if len(node_names) > 10 else ''}"


def names_of_nodes_to_quantize(model: onnx.ModelProto, settings: Settings) -> set[str]:
    """Return the names of the nodes of a prepared model that are quantized."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    kinds = {*QDQRegistry, *QLinearOpsRegistry}
    nodes = (node for node in model.graph.node if node.op_type in kinds)
    return {node.name for node in nodes}.difference(settings.exclude)


def quantize_prepared_model(model: onnx.ModelProto, sets: Sequence[Arrays], settings: Settings) -> onnx.ModelProto:
    """Quantize a prepared model: return it with pairs of QuantizeLinear and DequantizeLinear.

    Raises AotcError (code "quantize") for an excluded node that does not exist, for errors of ONNX
    Runtime, and if nothing is left to quantize.
    """
    package = import_onnxruntime_quantizer()
    require_nodes_exist(model, settings.exclude)
    # calibrate one set at a time, so that not all activations of all sets are in memory
    extra: dict[str, Any] = {"CalibStridedMinMax": 1, "CalibTensorRangeSymmetric": False}
    with _onnxruntime_errors_as_aotc_errors("quantize the model") as folder:
        source, path = folder / "prepared.onnx", folder / "quantized.onnx"
        # from a file: the quantizer removes the weights from a model in memory
        save_onnx_model(model, source)
        package.quantize_static(
            str(source),
            str(path),
            Feed(sets),
            per_channel=settings.per_channel,
            activation_type=package.QuantType.QUInt8,
            weight_type=package.QuantType[ORT_WEIGHT_TYPES[settings.weights]],
            nodes_to_exclude=list(settings.exclude),
            calibrate_method=package.CalibrationMethod[ORT_CALIBRATION_METHODS[settings.method]],
            extra_options=extra,
        )
        quantized_model = onnx.load(path)
    used = {node.domain for node in quantized_model.graph.node}
    used_opsets = [opset for opset in quantized_model.opset_import if opset.domain in used]
    del quantized_model.opset_import[:]
    quantized_model.opset_import.extend(used_opsets)
    if not any(node.op_type == "QuantizeLinear" for node in quantized_model.graph.node):
        text = "nothing of the model is quantized: ONNX Runtime quantizes none of its operators that are not excluded"
        raise AotcError("quantize", text)
    return quantized_model
