# SPDX-License-Identifier: Apache-2.0
"""Float models quantized, compiled and measured beside what they were.

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

#: Sets of inputs on which the models are compared, spread evenly over all.
MOST_COMPARED: Final = 32
#: Turns of each model, at most.
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
    """Quantize an ONNX model, write the result, compile both, measure them in turns; what was found, ready for JSON.

    model         a path or ModelProto of a float model; dynamic dimensions are pinned by `dims` and `input_shapes`
    output        the .onnx file that is written, which `aotc.compile` takes; None for the report alone
    calibration   what ranges of activations are found on: an .npz file, a folder of such, or mappings from the names
                  of inputs to arrays (see `aotc.quantizing.calibration`)
    per_channel, method, weights, exclude   see `aotc.quantizing.quantizer.Settings`
    seconds       to measure, at most
    options       as for `aotc.compile`; with `build=False` nothing is compiled and measured; `io_dtype` is for the
                  quantized model; for a target without an operating system nothing is run, and memories are told

    In the report "layers", the worst first, have the error that each adds if it alone is quantized: signal to noise in
    dB, None for no error; "suggested_exclusions" are nodes that are much worse than others; "outputs" have the error
    of the whole; "float32" and "quantized" tell sizes and times, "ratio" is that of the times. For a target without an
    operating system they have "ram_bytes" and "flash_bytes" instead, with the size of code estimated.

    Raises AotcError, with a diagnostic for each thing that is wrong with model, settings or calibration data.
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
    """Raise AotcError, with the options that pin them, for inputs with dynamic dimensions."""
    if hint := pin_hint(types):
        text = "the model has inputs with dynamic dimensions, and calibration needs fixed ones"
        raise AotcError("quantize", text, hint=hint)


def _both(model: str | Path | onnx.ModelProto, chosen: CompileOptions) -> tuple[CompileOptions, CompileOptions]:
    """The options for the float model and for the quantized one, whose shapes are static."""
    plain = replace(chosen, output=None, name=model_name(model, chosen.name), io_dtype=None)
    return plain, replace(plain, io_dtype=chosen.io_dtype, input_shapes=None, dims=None, cut_before=(), cut_after=())


def _costs(
    model: str | Path | onnx.ModelProto,
    made: onnx.ModelProto,
    sets: Sequence[Arrays],
    chosen: CompileOptions,
    seconds: float,
) -> dict[str, Any]:
    """What both models take: of memories without an operating system, else of time, where they are built."""
    if chosen.machine.bare:
        return _needs(model, made, chosen)
    return _measured(model, made, sets, chosen, seconds) if chosen.build else {}


def _needs(model: str | Path | onnx.ModelProto, made: onnx.ModelProto, chosen: CompileOptions) -> dict[str, Any]:
    """What both models take of the memories of a machine without an operating system."""
    found: dict[str, Any] = {}
    parts = zip(("float32", "quantized"), _both(model, chosen), (model, made), strict=True)
    for what, options, own in parts:
        chosen.progress(f"planning the memory of the {what} model")
        sizes = footprint(options.compilation(own))
        assert sizes is not None, "the target has no operating system"
        found[what] = {f"{kind}_bytes": sum(sizes[part] for part in COUNTED[kind]) for kind in ("ram", "flash")}
    return _both_spellings(found)


def _both_spellings(report: dict[str, Any]) -> dict[str, Any]:
    """`report` with its entry "quantized" under its name of release 0.1, too, for programs that read that one."""
    return {**report, "quantised": report["quantized"]}


def _measured(
    model: str | Path | onnx.ModelProto,
    made: onnx.ModelProto,
    sets: Sequence[Arrays],
    chosen: CompileOptions,
    seconds: float,
) -> dict[str, Any]:
    """What a report says of the two compiled models."""
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
    """The outputs, real numbers where integers stand for such."""
    infos = session.get_outputs()
    made = session.run(None, stored_inputs(session, arrays))
    named = {i.name: value for i, value in zip(infos, made, strict=True)}
    return list(real_values(infos, named).values())


def _compared(plain: Session, quantized: Session, sets: Sequence[Arrays]) -> list[dict[str, Any]]:
    """For each output how large the error of the quantized model is."""
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
    """Sizes in bytes and times in milliseconds."""
    return {
        "weights_bytes": compiled.metadata["weights_bytes"],
        "library_bytes": compiled.built.stat().st_size,
        "arena_bytes": compiled.metadata["memory"]["peak"],
        "milliseconds": summary(times),
    }
