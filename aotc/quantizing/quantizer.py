# SPDX-License-Identifier: Apache-2.0
"""A float model and what it was calibrated on in, the quantized model out: ONNX Runtime's quantizer does it.

    prepared = prepare(onnx_model, weights="int8")                  # constants folded, normalizations in convolutions
    quantized = quantize_prepared(prepared, [{"x": array}], Settings(per_channel=True))

Activations become uint8, weights int8 or int4; the model says so by pairs of QuantizeLinear and DequantizeLinear.
"""

import importlib
import importlib.util
import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

import onnx

from aotc.checking.input_generation import Arrays
from aotc.ir import AotcError, Diagnostic, frozen, nearest, require_known
from aotc.ir.atomic_write import temporary_folder

#: How ranges of activations are found, and what weights become.
METHODS: Final = {"minmax": "MinMax", "percentile": "Percentile"}
WEIGHTS: Final = {"int8": "QInt8", "int4": "QInt4"}
#: The first versions of ONNX with int4, and with a scale for each channel.
INT4_OPSET, CHANNEL_OPSET = 21, 13
_QUANTIZED: Final = re.compile(r"Quantize|QLinear|Integer$")
_MOST_SHOWN: Final = 300
#: ONNX Runtime's numbers of what is logged at least; the second is its default.
_ERRORS, _WARNINGS = 3, 2


@frozen
class Settings:
    """How to quantize.

    per_channel   a scale for each output channel of weights, not one for all
    method        "minmax": ranges hold all values; "percentile": all but the most extreme ones
    weights       "int8" or "int4"
    exclude       names of nodes that stay in float

    Raises AotcError for a method and a type of weights that do not exist.
    """

    per_channel: bool = False
    method: str = "minmax"
    weights: str = "int8"
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_known("quantize", "calibration method", self.method, METHODS)
        require_known("quantize", "type of weights", self.weights, WEIGHTS)


def quantizer() -> Any:
    """ONNX Runtime's package; AotcError where it is missing."""
    if importlib.util.find_spec("onnxruntime") is None:
        text = "quantizing needs ONNX Runtime, which is not installed"
        raise AotcError("quantize", text, hint="pip install 'aotc[quantize]'")
    import onnxruntime.quantization

    return onnxruntime.quantization


class Feed:
    """Sets of inputs as the quantizer takes them: those in a range, one after the other."""

    def __init__(self, sets: Sequence[Arrays]) -> None:
        self._sets = sets
        self.set_range(0, len(sets))

    def __len__(self) -> int:
        return len(self._sets)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Begin anew, with other ones."""
        self._rest = iter(self._sets[start_index:end_index])

    def get_next(self) -> Arrays | None:
        """The next set; None behind the last."""
        return next(self._rest, None)

    def __iter__(self) -> Iterator[Arrays]:
        return self._rest


@contextmanager
def _asked(what: str) -> Iterator[Path]:
    """An empty folder for the quantizer, which is silent meanwhile; AotcError for what it raises."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # it logs tracebacks of what it raises, too
    runtime = importlib.import_module("onnxruntime")
    runtime.set_default_logger_severity(_ERRORS)
    try:
        # it prints, too
        with redirect_stdout(io.StringIO()), temporary_folder("aotc-quantize-") as folder:
            yield Path(folder)
    except AotcError:
        raise
    except Exception as error:
        # errors of many kinds
        text = " ".join(str(error).split())[:_MOST_SHOWN] or type(error).__name__
        raise AotcError("quantize", f"ONNX Runtime cannot {what}: {text}") from error
    finally:
        logging.disable(level)
        runtime.set_default_logger_severity(_WARNINGS)


def require_float(model: onnx.ModelProto) -> None:
    """AotcError for a model that is quantized already."""
    found = [node for node in model.graph.node if _QUANTIZED.search(node.op_type)]
    if found:
        text = f"the model is quantized already: node {found[0].name!r} is {found[0].op_type}"
        raise AotcError("quantize", text, hint="`aotc compile` takes it as it is")


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy where each node has a name of its own: reports and exclusions go by names; constants are no inputs."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    constants = {t.name for t in copied.graph.initializer}
    inputs = [v for v in copied.graph.input if v.name not in constants]
    del copied.graph.input[:]
    copied.graph.input.extend(inputs)
    # the first that allows that
    copied.ir_version = max(copied.ir_version, 4)
    taken: set[str] = set()
    for number, node in enumerate(copied.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}#{number}"
        taken.add(node.name)
    return copied


def prepare(model: onnx.ModelProto, weights: str, per_channel: bool = False) -> onnx.ModelProto:
    """The float model as it is quantized: constants folded, normalizations in convolutions, all shapes known."""
    package = quantizer()
    require_float(model)
    with _asked("prepare the model for being quantized") as folder:
        ready = named(model)
        opset = max((o.version for o in ready.opset_import if o.domain in ("", "ai.onnx")), default=0)
        least = INT4_OPSET if weights == "int4" else CHANNEL_OPSET if per_channel else 0
        if opset < least:
            from onnx import version_converter

            ready = version_converter.convert_version(ready, least)
        source, path = folder / "float.onnx", folder / "prepared.onnx"
        # of a model in memory it hands the weights to its optimizer apart from the graph, which then misses those
        # that nothing reads, and those that the shapes of several nodes share
        save(ready, source)
        package.quant_pre_process(str(source), str(path), skip_symbolic_shape=True)
        return named(_with_flat_biases(onnx.load(path)))


def _with_flat_biases(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with biases (1, N) of Gemm as (N), which means the same: of rows, the quantizer finds no scales.

    ONNX Runtime's optimizer makes such a Gemm of a product and a sum.
    """
    readers = [(name, node, k) for node in model.graph.node for k, name in enumerate(node.input)]
    for tensor in model.graph.initializer:
        places = [node.op_type == "Gemm" and k == 2 for name, node, k in readers if name == tensor.name]
        if len(tensor.dims) == 2 and tensor.dims[0] == 1 and places and all(places):
            del tensor.dims[0]
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, with its weights in a file beside it where they are too large for one."""
    onnx.save(model, path, save_as_external_data=model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF)


def require_nodes(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """AotcError with a diagnostic for each name that no node of a prepared model has."""
    known = [node.name for node in model.graph.node]
    problems = [
        Diagnostic("quantize", f"there is no node {name!r} to exclude", hint=nearest(name, known) or _left(known))
        for name in names
        if name not in known
    ]
    if problems:
        raise AotcError.collect(problems)


def _left(known: Sequence[str]) -> str:
    shown = ", ".join(known[:10])
    return f"nodes after constants are folded: {shown}{', ...' if len(known) > 10 else ''}"


def layers_of(model: onnx.ModelProto, settings: Settings) -> set[str]:
    """The names of the nodes of a prepared model that are quantized."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    kinds = {*QDQRegistry, *QLinearOpsRegistry}
    nodes = (node for node in model.graph.node if node.op_type in kinds)
    return {node.name for node in nodes}.difference(settings.exclude)


def quantize_prepared(model: onnx.ModelProto, sets: Sequence[Arrays], settings: Settings) -> onnx.ModelProto:
    """A prepared model with pairs of QuantizeLinear and DequantizeLinear.

    Raises AotcError: code "quantize" for an exclusion of what does not exist, for what ONNX Runtime refuses, and
    where nothing is left to quantize.
    """
    package = quantizer()
    require_nodes(model, settings.exclude)
    # percentiles of one set at a time, so that not all activations of all sets are in memory
    extra: dict[str, Any] = {"CalibStridedMinMax": 1, "CalibTensorRangeSymmetric": False}
    with _asked("quantize the model") as folder:
        source, path = folder / "prepared.onnx", folder / "quantized.onnx"
        # of a model in memory it moves the weights away
        save(model, source)
        package.quantize_static(
            str(source),
            str(path),
            Feed(sets),
            per_channel=settings.per_channel,
            activation_type=package.QuantType.QUInt8,
            weight_type=package.QuantType[WEIGHTS[settings.weights]],
            nodes_to_exclude=list(settings.exclude),
            calibrate_method=package.CalibrationMethod[METHODS[settings.method]],
            extra_options=extra,
        )
        made = onnx.load(path)
    used = {node.domain for node in made.graph.node}
    kept = [opset for opset in made.opset_import if opset.domain in used]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    if not any(node.op_type == "QuantizeLinear" for node in made.graph.node):
        text = "nothing of the model is quantized: ONNX Runtime quantizes none of its operators that are not excluded"
        raise AotcError("quantize", text)
    return made
