# SPDX-License-Identifier: Apache-2.0
"""Benchmark quantized models against ONNX Runtime and OpenVINO, and against the float32 networks.

Each network of `benchmarks.networks` is quantized by ONNX Runtime's tool with seeded calibration
data: int8 weights with one scale per output channel, uint8 and int8 activations, with
QuantizeLinear and DequantizeLinear nodes (QDQ). MiniLM is quantized dynamically, as is usual for
transformers. Trained quantized models are used unchanged. The decoder has 4-bit weights in blocks
of 32, 126 MB with their scales; its step is also compared with the time in which memory bandwidth
lets the weights be read.

Times are minima of one run in milliseconds; for each engine, the faster signedness counts. *best*
is the faster competitor whose outputs agree with ONNX Runtime's; a star marks times of competitors
with other outputs.

    python -m benchmarks.quantized_models                         # all of them
    python -m benchmarks.quantized_models resnet18 ds_cnn --seconds 5 --json figures.json
    python -m benchmarks.quantized_models decoder
    python -m benchmarks.quantized_models --scaling               # one thread and two, without competitors
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import onnx

from aotc.cli.console import report_errors_and_exit
from aotc.cli.options import PATH_TYPE, declare_option
from aotc.driver.toolchain import find_toolchain
from aotc.measuring.bench import benchmark_model
from aotc.measuring.machine_peak import Probe
from aotc.tir.target import get_target
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS, NetworkBuilder, append_gpt2_decoding_blocks
from benchmarks.run import REPOSITORY_ROOT, measurement_conditions_text

#: Convolutional networks, which are quantized statically, and networks that are quantized
#: dynamically.
STATICALLY_QUANTIZED: Final = ("resnet18", "resnet50", "mobilenet_v2", "ds_cnn", "unet")
DYNAMICALLY_QUANTIZED: Final = ("minilm",)
#: Trained quantized models, and the corresponding float32 models.
FLOAT_MODEL_BY_TRAINED_QUANTIZED: Final = {
    "kws_int8_qdq": "kws_fp32",
    "squeezenet10_int8_qdq": "squeezenet10_fp32",
    "yunet_n_320_int8_qdq": "yunet_n_320",
}
#: Decoder with 4-bit weights: its width, heads and layers, and the number of neighboring weights
#: with a common scale.
DECODER_NAME: Final = "decoder"
DECODER_WIDTH_HEADS_LAYERS: Final = (2048, 32, 4)
WEIGHTS_PER_SCALE: Final = 32
#: Input shapes for models with dynamic dimensions.
INPUT_SHAPES_BY_MODEL: Final = {"kws_int8_qdq": {"serving_default_input:0": [1, 1960]}}
RIVAL_NAMES: Final = ("onnxruntime", "openvino")
CALIBRATION_BATCHES: Final = 4
SCALING_TABLE_HEADER: Final = (
    "model",
    "int8, 1 thread",
    "2 threads",
    "scaling",
    "float32, 1 thread",
    "2 threads",
    "scaling",
)
TABLE_HEADER: Final = (
    "model",
    "aotc int8",
    "aotc float32",
    *RIVAL_NAMES,
    "of best",
    "of float32",
    "arena MB",
    "library MB",
)


def quantize_statically_to_file(model: onnx.ModelProto, folder: Path, *, signed: bool = False, seed: int = 0) -> Path:
    """Quantize a float32 model (QDQ, a scale for each output channel), write it to a file and
    return the path.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    rng = np.random.default_rng(seed)
    name, shape = _only_input_name_and_shape(model)

    class Drawn(CalibrationDataReader):  # type: ignore[misc]
        """Calibration data for ONNX Runtime's quantizer: seeded random batches."""

        def __init__(self) -> None:
            self._left = CALIBRATION_BATCHES

        def get_next(self) -> dict[str, np.ndarray] | None:
            self._left -= 1
            return None if self._left < 0 else {name: rng.standard_normal(shape).astype(np.float32)}

    source, ready, path = (folder / f"{kind}.onnx" for kind in ("float", "ready", f"{'s' if signed else 'u'}8"))
    onnx.save(model, source)
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    kind = QuantType.QInt8 if signed else QuantType.QUInt8
    how = {"quant_format": QuantFormat.QDQ, "activation_type": kind, "weight_type": QuantType.QInt8}
    quantize_static(ready, path, Drawn(), per_channel=True, **how)
    return path


def quantize_dynamically_to_file(model: onnx.ModelProto, folder: Path) -> Path:
    """Quantize the matrix products of a model dynamically, write it to a file and return the path."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, path = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QInt8, per_channel=True)
    return path


class Int4NetworkBuilder(NetworkBuilder):
    """Builder of an ONNX graph whose linear layers have 4-bit weights."""

    def append_linear_layer(self, x: str, in_width: int, out_width: int) -> str:
        shape = (out_width, in_width // WEIGHTS_PER_SCALE, WEIGHTS_PER_SCALE // 2)
        weight = self.add_constant(self.rng.integers(0, 256, shape), "uint8")
        scale = self.add_constant(self.rng.uniform(0.5, 1.5, out_width * shape[1]) / (4.6 * in_width**0.5))
        sizes = {"K": in_width, "N": out_width, "bits": 4, "block_size": WEIGHTS_PER_SCALE}
        return self.append_node("MatMulNBits", x, weight, scale, domain="com.microsoft", **sizes)


def build_int4_decoder_step() -> onnx.ModelProto:
    """Build a decoding step of a GPT-2-like decoder with 4-bit weights."""
    n = Int4NetworkBuilder()
    hidden, inputs, outputs = append_gpt2_decoding_blocks(n, *DECODER_WIDTH_HEADS_LAYERS)
    n.append_named_node("Identity", hidden, name="hidden")
    return n.build_checked_model(DECODER_NAME, inputs, {"hidden": [1, 1, DECODER_WIDTH_HEADS_LAYERS[0]], **outputs})


def memory_bandwidth_share_text(result: dict[str, Any]) -> str:
    """Return a text that compares the time of a step with the time to read its parameters at memory
    bandwidth.
    """
    nbytes, best = result["weights_bytes"], minimum_milliseconds_of_engine([result], "aotc") or math.inf
    given = Probe(get_target(result["target"]), find_toolchain(None)).peak_read_bytes_per_second(nbytes)
    got = nbytes / best * 1e3
    return f"{nbytes / 1e6:.0f} MB a step: {got / 1e9:.1f} of {given / 1e9:.1f} GB/s, {got / given:.2f}"


def _only_input_name_and_shape(model: onnx.ModelProto) -> tuple[str, list[int]]:
    """Return the name and shape of a model's only input."""
    (value,) = model.graph.input
    return value.name, [d.dim_value for d in value.type.tensor_type.shape.dim]


def create_float_and_quantized_model_files(name: str, folder: Path) -> tuple[Path, list[Path]]:
    """Write a float32 model and its quantized versions into a folder if needed; return their paths."""
    models = Path(os.environ.get("AOTC_MODELS", REPOSITORY_ROOT.parent / "shared" / "models"))
    if name in FLOAT_MODEL_BY_TRAINED_QUANTIZED:
        return models / f"{FLOAT_MODEL_BY_TRAINED_QUANTIZED[name]}.onnx", [models / f"{name}.onnx"]
    if name == DECODER_NAME:
        path = folder / "decoder.onnx"
        onnx.save(build_int4_decoder_step(), path)
        return path, [path]
    model = NETWORK_BUILD_FUNCTIONS[name]()
    if name in DYNAMICALLY_QUANTIZED:
        return folder / "float.onnx", [quantize_dynamically_to_file(model, folder)]
    return folder / "float.onnx", [
        quantize_statically_to_file(model, folder, signed=signed) for signed in (False, True)
    ]


def minimum_milliseconds_of_engine(
    results: list[dict[str, Any]], engine: str, must_agree: bool = True, round_index: int = 0
) -> float | None:
    """Return the minimum time of an engine over the versions of a model, or None.

    Only versions with agreeing outputs count, unless `must_agree` is False; `round_index` is the
    index of the round.
    """
    rows = (row for r in results for row in r["rounds"][round_index]["contestants"] if row.get("milliseconds"))
    matching_rows = (r for r in rows if r["name"] == engine and (r["agrees"] or not must_agree))
    return min((r["milliseconds"]["min"] for r in matching_rows), default=None)


def _rival_time_cell(results: list[dict[str, Any]], engine: str) -> str:
    """Return the time of a competitor as a table cell; a star marks outputs that differ."""
    right = minimum_milliseconds_of_engine(results, engine)
    other = minimum_milliseconds_of_engine(results, engine, must_agree=False) if right is None else None
    return _format_or_dash(right, 3) if other is None else f"{_format_or_dash(other, 3)} *"


def quantized_network_table_row(name: str, float_result: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return the Markdown row with the times of a quantized network and its competitors."""
    aotc_time, twin = (
        minimum_milliseconds_of_engine(results, "aotc"),
        minimum_milliseconds_of_engine([float_result], "aotc"),
    )
    rivals = [minimum_milliseconds_of_engine(results, n) for n in RIVAL_NAMES]
    best = min((r for r in rivals if r is not None), default=None)
    quick = min(results, key=lambda r: r["rounds"][0]["contestants"][0]["milliseconds"]["min"])
    sizes = (quick["memory"]["peak"] / 1e6, quick["library_bytes"] / 1e6)
    ratios = (aotc_time / other if aotc_time and other else None for other in (best, twin))
    times = [
        _format_or_dash(aotc_time, 3),
        _format_or_dash(twin, 3),
        *(_rival_time_cell(results, n) for n in RIVAL_NAMES),
    ]
    cells = [*times, *(_format_or_dash(f, 2) for f in (*ratios, *sizes))]
    return f"| {' | '.join([name, *cells])} |"


def thread_scaling_table_row(name: str, float_result: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return the Markdown row with the times of a network on one and on two threads."""
    cells = [name]
    for versions_of in (results, [float_result]):
        single, two = (minimum_milliseconds_of_engine(versions_of, "aotc", round_index=k) for k in range(2))
        cells += [
            _format_or_dash(single, 3),
            _format_or_dash(two, 3),
            _format_or_dash(single / two if single and two else None, 2),
        ]
    return f"| {' | '.join(cells)} |"


def _format_or_dash(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def benchmark_float_and_quantized(
    names: tuple[str, ...], seconds: float, scaling: bool
) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Yield the name, the figures of the float32 model and the figures of each quantized version."""
    how: dict[str, Any] = {"seconds": seconds, "cache": False, "threads": (1, 2) if scaling else (1,)}
    against = () if scaling else RIVAL_NAMES
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            source, quantized_versions = create_float_and_quantized_model_files(name, Path(scratch))
            pins = INPUT_SHAPES_BY_MODEL.get(name, {})
            results = [benchmark_model(p, against=against, input_shapes=pins, **how) for p in quantized_versions]
            yield name, results[0] if name == DECODER_NAME else benchmark_model(source, against=(), **how), results


@click.command()
@click.argument("names", nargs=-1)
@declare_option("--seconds", "For each version of a model, at most.", click.FloatRange(0), 10.0)
@declare_option("--scaling", "Measure one thread and two, without rivals.", is_flag=True)
@declare_option("--json json_file", "Write all figures there.", PATH_TYPE)
def benchmark_quantized_networks(names: tuple[str, ...], seconds: float, scaling: bool, json_file: Path | None) -> None:
    """Measure the quantized versions of NAMES, or of all networks."""
    logging.disable(logging.WARNING)
    chosen, records = (
        names or (*STATICALLY_QUANTIZED, *DYNAMICALLY_QUANTIZED, DECODER_NAME, *FLOAT_MODEL_BY_TRAINED_QUANTIZED),
        [],
    )
    head, format_row = (
        (SCALING_TABLE_HEADER, thread_scaling_table_row) if scaling else (TABLE_HEADER, quantized_network_table_row)
    )
    with report_errors_and_exit():
        for name, plain, results in benchmark_float_and_quantized(chosen, seconds, scaling):
            if not records:
                print(measurement_conditions_text(results[0]))
                print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
            records.append({"name": name, "float32": plain, "quantized": results})
            print(format_row(name, plain, results), flush=True)
            if name == DECODER_NAME and not scaling:
                print(memory_bandwidth_share_text(results[0]))
            for r in results:
                for c in r["rounds"][0]["contestants"]:
                    if not c["agrees"]:
                        print(f"{name}: {c['name']}: {c['reason']}")
    if json_file is not None:
        json_file.write_text(json.dumps(records, indent=1), encoding="utf-8")


if __name__ == "__main__":
    benchmark_quantized_networks()
