# SPDX-License-Identifier: Apache-2.0
"""Quantize a float model, compile both models, and compare their accuracy, speed and size.

report = quantize("net.onnx", "net_int8.onnx", "samples", per_channel=True)
report["layers"][0], report["suggested_exclusions"], report["ratio"]
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import onnx

from aotc.checking.input_generation import Arrays, input_types, real_values, stored_inputs
from aotc.checking.verify import with_static_inputs
from aotc.driver.compile import CompileOptions, model_name
from aotc.driver.import_model import is_exported_program, is_relay_text, is_tflite, part_of
from aotc.driver.memory_budgets import COUNTED
from aotc.driver.pipeline import CompiledModel, footprint
from aotc.driver.temporary_folders import output_file
from aotc.driver.toolchain import require_cpu
from aotc.ir import AotcError, Array, TensorType
from aotc.ir.atomic_write import require_other_file
from aotc.measuring.bench import take_turns
from aotc.measuring.competitors import Contestant, ours, started
from aotc.measuring.timing import summary
from aotc.quantizing.calibration import Data, calibration_sets
from aotc.quantizing.layers import decibels, layer_errors, power, suggested
from aotc.quantizing.quantizer import Settings, layers_of, prepare, quantize_prepared, quantizer
from aotc.relay.frontend.onnx import load_model
from aotc.relay.frontend.onnx.model_inputs import pin_hint
from aotc.relay.module import IRModule
from aotc.runtime.session import Session

#: Largest number of sets of inputs on which the models are compared, spread evenly over all sets.
MOST_COMPARED: Final = 32
#: Largest number of turns of measuring each model.
TURNS: Final = 100


def quantize(
    model: str | Path | onnx.ModelProto,
    output: str | Path | None,
    calibration: Data,
    *,
    per_channel: bool = False,
    method: str = "minmax",
    weights: str = "int8",
    exclude: Sequence[str] = (),
    seconds: float = 5.0,
    **options: Any,
) -> dict[str, Any]:
    """Quantize an ONNX model, write the result, compile and measure both models; return a report,
    ready for JSON.

    model         path or ModelProto of a float model; `dims` and `input_shapes` fix dynamic dimensions
    output        .onnx file for the quantized model, which `aotc.compile` accepts; None: no file
    calibration   data from which ranges of activations are computed: an .npz file, a folder of them, or
                  mappings from input names to arrays (see `aotc.quantizing.calibration`)
    per_channel, method, weights, exclude   see `aotc.quantizing.quantizer.Settings`
    seconds       time limit for measuring
    options       as for `aotc.compile`.  With `build=False` nothing is compiled and measured; `io_dtype`
                  applies to the quantized model; for bare-metal targets memory is reported instead of times

    In the report, "layers" has the signal-to-noise ratio in dB of each layer if it alone is quantized, the worst first,
    None for no error; "suggested_exclusions" are nodes much worse than most; "outputs" has the errors of the whole
    model; "float32" and "quantized" have sizes and times, and "ratio" is the ratio of times (quantized to float).  For
    a bare-metal target, both have "ram_bytes" and "flash_bytes" instead, with an estimated code size.

    Raises AotcError with a diagnostic for each problem of the model, the settings or the calibration data.
    """
    settings = Settings(per_channel, method, weights, tuple(exclude))
    chosen = CompileOptions(**options)
    quantizer()
    _require_onnx(model, output)
    if chosen.build and not chosen.machine.bare:
        require_cpu(chosen.machine)
    chosen.progress("importing the model")
    types = input_types(chosen.imported(model))
    _require_static(types)
    sets = calibration_sets(calibration, types)
    prepared = prepare(with_static_inputs(part_of(load_model(model), chosen.cut), types), weights, per_channel)
    chosen.progress(f"calibrating on {len(sets)} sets of inputs")
    made = quantize_prepared(prepared, sets, settings)
    compared = sets[:: -(-len(sets) // MOST_COMPARED)]
    chosen.progress("measuring the error of each layer")
    layers = layer_errors(prepared, made, layers_of(prepared, settings), compared)
    if output is not None:
        with output_file(Path(output), "output", [model]) as file:
            file.write(made.SerializeToString())
    report = {
        "model": str(model) if isinstance(model, (str, Path)) else None,
        "output": None if output is None else str(output),
        "settings": asdict(settings),
        "calibration_sets": len(sets),
        "compared_sets": len(compared),
        "layers": [asdict(layer) for layer in layers],
        "suggested_exclusions": suggested(layers),
    }
    return report | _costs(model, made, compared, chosen, seconds)


def _require_onnx(model: object, output: str | Path | None) -> None:
    others = (is_relay_text, is_exported_program, is_tflite)
    if isinstance(model, IRModule) or any(is_other(model) for is_other in others):
        text = "only ONNX models are quantized"
        raise AotcError("quantize", text, hint="export the model to ONNX, or quantize it in its own framework")
    if output is not None and Path(output).suffix != ".onnx":
        text = f"the quantized model is an ONNX file, and {output} is not called such"
        hint = f"for example: {Path(output).with_suffix('.onnx')}"
        raise AotcError("quantize", text, hint=hint)
    if output is not None:
        require_other_file(Path(output), "output", [model])


def _require_static(types: Mapping[str, TensorType]) -> None:
    """Raise AotcError, with the options that fix them, if inputs have dynamic dimensions."""
    if hint := pin_hint(types):
        text = "the model has inputs with dynamic dimensions, and calibration needs fixed ones"
        raise AotcError("quantize", text, hint=hint)


def _both(model: str | Path | onnx.ModelProto, chosen: CompileOptions) -> tuple[CompileOptions, CompileOptions]:
    """Return the compile options for the float model and for the quantized one, whose shapes are
    already static.
    """
    plain = replace(chosen, output=None, name=model_name(model, chosen.name), io_dtype=None)
    return plain, replace(plain, io_dtype=chosen.io_dtype, input_shapes=None, dims=None, cut_before=(), cut_after=())


def _costs(
    model: str | Path | onnx.ModelProto,
    made: onnx.ModelProto,
    sets: Sequence[Arrays],
    chosen: CompileOptions,
    seconds: float,
) -> dict[str, Any]:
    """Compare the costs of the float and the quantized model: memory on bare-metal targets, else
    sizes and times.

    Return {} if the models are not to be built.
    """
    if chosen.machine.bare:
        return _needs(model, made, chosen)
    return _measured(model, made, sets, chosen, seconds) if chosen.build else {}


def _needs(model: str | Path | onnx.ModelProto, made: onnx.ModelProto, chosen: CompileOptions) -> dict[str, Any]:
    """Return the RAM and flash that both models need on a bare-metal target, in bytes."""
    found: dict[str, Any] = {}
    parts = zip(("float32", "quantized"), _both(model, chosen), (model, made), strict=True)
    for what, options, own in parts:
        chosen.progress(f"planning the memory of the {what} model")
        sizes = footprint(options.compilation(own))
        assert sizes is not None, "the target has no operating system"
        found[what] = {f"{kind}_bytes": sum(sizes[part] for part in COUNTED[kind]) for kind in ("ram", "flash")}
    return _both_spellings(found)


def _both_spellings(report: dict[str, Any]) -> dict[str, Any]:
    """Return `report` with "quantized" also under the name "quantised", which release 0.1 used."""
    return {**report, "quantised": report["quantized"]}


def _measured(
    model: str | Path | onnx.ModelProto,
    made: onnx.ModelProto,
    sets: Sequence[Arrays],
    chosen: CompileOptions,
    seconds: float,
) -> dict[str, Any]:
    """Compile both models; return their output errors, sizes, times and the ratio of times."""
    plain, pinned = _both(model, chosen)
    both = plain.compiled(model), pinned.compiled(made)
    before, after = (compiled.session() for compiled in both)
    chosen.progress("comparing outputs")
    outputs = _compared(before, after, sets)
    chosen.progress("measuring both models")
    contestants = [_contestant(c, s, sets[0]) for c, s in zip(both, (before, after), strict=True)]
    times = take_turns(contestants, TURNS, seconds)
    rows = [_facts(compiled, found) for compiled, found in zip(both, times, strict=True)]
    ratio = min(times[1]) / min(times[0])
    return {"outputs": outputs, **_both_spellings({"float32": rows[0], "quantized": rows[1]}), "ratio": ratio}


def _results(session: Session, arrays: Arrays) -> list[Array]:
    """Run a model; return its outputs as real numbers, dequantized if necessary."""
    infos = session.get_outputs()
    made = session.run(None, stored_inputs(session, arrays))
    named = {i.name: value for i, value in zip(infos, made, strict=True)}
    return list(real_values(infos, named).values())


def _compared(plain: Session, quantized: Session, sets: Sequence[Arrays]) -> list[dict[str, Any]]:
    """Return for each output the signal-to-noise ratio and the largest absolute error of the
    quantized model.
    """
    rows = [(_results(plain, arrays), _results(quantized, arrays)) for arrays in sets]
    found = []
    for k, info in enumerate(plain.get_outputs()):
        pairs = [(wanted[k].astype(float), made[k].astype(float)) for wanted, made in rows]
        noise = sum(power(wanted - made) for wanted, made in pairs)
        largest = max(float(abs(wanted - made).max(initial=0)) for wanted, made in pairs)
        snr = decibels(sum(power(wanted) for wanted, _ in pairs), noise)
        found.append({"name": info.name, "snr_db": snr, "max_abs": largest})
    return found


def _contestant(compiled: CompiledModel, session: Session, arrays: Arrays) -> Contestant:
    return started("aotc", 1, lambda: ours(compiled.built, stored_inputs(session, arrays), 1))


def _facts(compiled: CompiledModel, times: Sequence[float]) -> dict[str, Any]:
    """Return the sizes in bytes and the times in milliseconds of a compiled model."""
    return {
        "weights_bytes": compiled.metadata["weights_bytes"],
        "library_bytes": compiled.built.stat().st_size,
        "arena_bytes": compiled.metadata["memory"]["peak"],
        "milliseconds": summary(times),
    }
