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

    python -m benchmarks.quantized                         # all of them
    python -m benchmarks.quantized resnet18 ds_cnn --seconds 5 --json figures.json
    python -m benchmarks.quantized decoder
    python -m benchmarks.quantized --scaling               # one thread and two, without competitors
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

from aotc.cli.console import reporting
from aotc.cli.options import PATH, option
from aotc.driver.toolchain import find_toolchain
from aotc.measuring.bench import bench
from aotc.measuring.machine_peak import Probe
from aotc.tir.target import get_target
from benchmarks.networks import NETWORKS, Network, steps
from benchmarks.run import ROOT, circumstances

#: Convolutional networks, which are quantized statically, and networks that are quantized
#: dynamically.
STATIC: Final = ("resnet18", "resnet50", "mobilenet_v2", "ds_cnn", "unet")
DYNAMIC: Final = ("minilm",)
#: Trained quantized models, and the corresponding float32 models.
TRAINED: Final = {
    "kws_int8_qdq": "kws_fp32",
    "squeezenet10_int8_qdq": "squeezenet10_fp32",
    "yunet_n_320_int8_qdq": "yunet_n_320",
}
#: Decoder with 4-bit weights: its width, heads and layers, and the number of neighboring weights
#: with a common scale.
DECODER: Final = "decoder"
SIZES: Final = (2048, 32, 4)
BLOCK: Final = 32
#: Input shapes for models with dynamic dimensions.
PINS: Final = {"kws_int8_qdq": {"serving_default_input:0": [1, 1960]}}
AGAINST: Final = ("onnxruntime", "openvino")
CALIBRATION: Final = 4
TWO: Final = ("model", "int8, 1 thread", "2 threads", "scaling", "float32, 1 thread", "2 threads", "scaling")
HEAD: Final = ("model", "aotc int8", "aotc float32", *AGAINST, "of best", "of float32", "arena MB", "library MB")


def quantized(model: onnx.ModelProto, folder: Path, *, signed: bool = False, seed: int = 0) -> Path:
    """Quantize a float32 model (QDQ, a scale for each output channel), write it to a file and
    return the path.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    rng = np.random.default_rng(seed)
    name, shape = _input(model)

    class Drawn(CalibrationDataReader):  # type: ignore[misc]
        """Calibration data for ONNX Runtime's quantizer: seeded random batches."""

        def __init__(self) -> None:
            self._left = CALIBRATION

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


def dynamically_quantized(model: onnx.ModelProto, folder: Path) -> Path:
    """Quantize the matrix products of a model dynamically, write it to a file and return the path."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, path = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QInt8, per_channel=True)
    return path


class Packed(Network):
    """Builder of an ONNX graph whose linear layers have 4-bit weights."""

    def linear(self, x: str, before: int, after: int) -> str:
        shape = (after, before // BLOCK, BLOCK // 2)
        weight = self.constant(self.rng.integers(0, 256, shape), "uint8")
        scale = self.constant(self.rng.uniform(0.5, 1.5, after * shape[1]) / (4.6 * before**0.5))
        sizes = {"K": before, "N": after, "bits": 4, "block_size": BLOCK}
        return self.node("MatMulNBits", x, weight, scale, domain="com.microsoft", **sizes)


def decoder() -> onnx.ModelProto:
    """Build a decoding step of a GPT-2-like decoder with 4-bit weights."""
    n = Packed()
    hidden, inputs, outputs = steps(n, *SIZES)
    n.op("Identity", hidden, name="hidden")
    return n.model(DECODER, inputs, {"hidden": [1, 1, SIZES[0]], **outputs})


def share(result: dict[str, Any]) -> str:
    """Return a text that compares the time of a step with the time to read its parameters at memory
    bandwidth.
    """
    nbytes, best = result["weights_bytes"], least([result], "aotc") or math.inf
    given = Probe(get_target(result["target"]), find_toolchain(None)).bandwidth(nbytes)
    got = nbytes / best * 1e3
    return f"{nbytes / 1e6:.0f} MB a step: {got / 1e9:.1f} of {given / 1e9:.1f} GB/s, {got / given:.2f}"


def _input(model: onnx.ModelProto) -> tuple[str, list[int]]:
    """Return the name and shape of a model's only input."""
    (value,) = model.graph.input
    return value.name, [d.dim_value for d in value.type.tensor_type.shape.dim]


def versions(name: str, folder: Path) -> tuple[Path, list[Path]]:
    """Write a float32 model and its quantized versions into a folder if needed; return their paths."""
    models = Path(os.environ.get("AOTC_MODELS", ROOT.parent / "shared" / "models"))
    if name in TRAINED:
        return models / f"{TRAINED[name]}.onnx", [models / f"{name}.onnx"]
    if name == DECODER:
        path = folder / "decoder.onnx"
        onnx.save(decoder(), path)
        return path, [path]
    model = NETWORKS[name]()
    if name in DYNAMIC:
        return folder / "float.onnx", [dynamically_quantized(model, folder)]
    return folder / "float.onnx", [quantized(model, folder, signed=signed) for signed in (False, True)]


def least(results: list[dict[str, Any]], name: str, agreeing: bool = True, number: int = 0) -> float | None:
    """Return the minimum time of an engine over the versions of a model, or None.

    Only versions with agreeing outputs count, unless `agreeing` is False; `number` is the index of
    the round.
    """
    rows = (row for r in results for row in r["rounds"][number]["contestants"] if row.get("milliseconds"))
    found = (r for r in rows if r["name"] == name and (r["agrees"] or not agreeing))
    return min((r["milliseconds"]["min"] for r in found), default=None)


def _rival(results: list[dict[str, Any]], name: str) -> str:
    """Return the time of a competitor as a table cell; a star marks outputs that differ."""
    right = least(results, name)
    other = least(results, name, agreeing=False) if right is None else None
    return _cell(right, 3) if other is None else f"{_cell(other, 3)} *"


def row(name: str, plain: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return the Markdown row with the times of a quantized network and its competitors."""
    own, twin = least(results, "aotc"), least([plain], "aotc")
    rivals = [least(results, n) for n in AGAINST]
    best = min((r for r in rivals if r is not None), default=None)
    quick = min(results, key=lambda r: r["rounds"][0]["contestants"][0]["milliseconds"]["min"])
    sizes = (quick["memory"]["peak"] / 1e6, quick["library_bytes"] / 1e6)
    ratios = (own / other if own and other else None for other in (best, twin))
    times = [_cell(own, 3), _cell(twin, 3), *(_rival(results, n) for n in AGAINST)]
    cells = [*times, *(_cell(f, 2) for f in (*ratios, *sizes))]
    return f"| {' | '.join([name, *cells])} |"


def scaled(name: str, plain: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return the Markdown row with the times of a network on one and on two threads."""
    cells = [name]
    for versions_of in (results, [plain]):
        one, two = (least(versions_of, "aotc", number=k) for k in range(2))
        cells += [_cell(one, 3), _cell(two, 3), _cell(one / two if one and two else None, 2)]
    return f"| {' | '.join(cells)} |"


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def measured(
    names: tuple[str, ...], seconds: float, scaling: bool
) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Yield the name, the figures of the float32 model and the figures of each quantized version."""
    how: dict[str, Any] = {"seconds": seconds, "cache": False, "threads": (1, 2) if scaling else (1,)}
    against = () if scaling else AGAINST
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            source, quantized_versions = versions(name, Path(scratch))
            pins = PINS.get(name, {})
            results = [bench(p, against=against, input_shapes=pins, **how) for p in quantized_versions]
            yield name, results[0] if name == DECODER else bench(source, against=(), **how), results


@click.command()
@click.argument("names", nargs=-1)
@option("--seconds", "For each version of a model, at most.", click.FloatRange(0), 10.0)
@option("--scaling", "Measure one thread and two, without rivals.", is_flag=True)
@option("--json json_file", "Write all figures there.", PATH)
def main(names: tuple[str, ...], seconds: float, scaling: bool, json_file: Path | None) -> None:
    """Measure the quantized versions of NAMES, or of all networks."""
    logging.disable(logging.WARNING)
    chosen, found = names or (*STATIC, *DYNAMIC, DECODER, *TRAINED), []
    head, made = (TWO, scaled) if scaling else (HEAD, row)
    with reporting():
        for name, plain, results in measured(chosen, seconds, scaling):
            if not found:
                print(circumstances(results[0]))
                print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
            found.append({"name": name, "float32": plain, "quantized": results})
            print(made(name, plain, results), flush=True)
            if name == DECODER and not scaling:
                print(share(results[0]))
            for r in results:
                for c in r["rounds"][0]["contestants"]:
                    if not c["agrees"]:
                        print(f"{name}: {c['name']}: {c['reason']}")
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
