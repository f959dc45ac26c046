# SPDX-License-Identifier: Apache-2.0
"""Quantize a float model, compile both models, and compare their accuracy, speed and size.

report = quantize("net.onnx", "net_int8.onnx", "samples", per_channel=True)
report["layers"][0], report["suggested_exclusions"], report["ratio"]
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import onnx

from aotc.checking.input_generation import Arrays, dequantize_tensors, input_types, quantize_real_inputs
from aotc.checking.verify import pin_static_input_shapes
from aotc.driver.compile import CompileOptions, c_name_of_model, show_compile_options_in_signature
from aotc.driver.import_model import (
    cut_model_at_tensors,
    is_exported_program_or_pt2_path,
    is_relay_text_path,
    is_tflite_path,
)
from aotc.driver.memory_budgets import FOOTPRINT_KEYS_BY_BUDGET
from aotc.driver.pipeline import CompiledModel, bare_metal_footprint_or_none
from aotc.driver.temporary_folders import open_output_file
from aotc.driver.toolchain import require_cpu_can_run
from aotc.ir import AotcError, AotcTypeError, Array, TensorType, option_text
from aotc.ir.atomic_write import require_not_an_input_file
from aotc.measuring.bench import time_contestants_in_turns
from aotc.measuring.competitors import Contestant, load_and_time_first_run, load_aotc_library
from aotc.measuring.timing import min_and_median
from aotc.quantizing.calibration_data import CalibrationData, load_calibration_sets
from aotc.quantizing.layer_errors import (
    measure_error_of_each_layer,
    power_ratio_decibels,
    suggest_layers_to_leave_in_float,
    sum_of_squares,
)
from aotc.quantizing.onnxruntime_quantizer import (
    Settings,
    import_onnxruntime_quantizer,
    names_of_nodes_to_quantize,
    prepare_for_quantization,
    quantize_prepared_model,
)
from aotc.relay.frontend.onnx import load_model
from aotc.relay.frontend.onnx.model_inputs import hint_on_options_to_fix_dims
from aotc.relay.module import IRModule
from aotc.runtime.session import Session

#: Largest number of sets of inputs on which the models are compared, spread evenly over all sets.
MAX_COMPARED_SETS: Final = 32
#: Largest number of turns of measuring each model.
MAX_TURNS: Final = 100


@show_compile_options_in_signature
def quantize(
    model: str | Path | onnx.ModelProto,
    output: str | Path | None,
    calibration: CalibrationData,
    *,
    per_channel: bool = False,
    method: str = "minmax",
    weights: str = "int8",
    exclude: Sequence[str] = (),
    seconds: float = 5.0,
    **options: Any,
) -> dict[str, Any]:
    """Quantize an ONNX model, write the result, compile and measure both models; return a JSON report.

    model         path or ModelProto of a float model; `dims` and `input_shapes` fix dynamic dimensions
    output        .onnx file for the quantized model, which `aotc.compile` accepts; None: no file
    calibration   data from which ranges of activations are computed: an .npz file, a folder of them, or
                  mappings from input names to arrays (see `aotc.quantizing.calibration_data`)
    per_channel, method, weights, exclude   see `aotc.quantizing.onnxruntime_quantizer.Settings`
    seconds       time limit for measuring
    options       as for `aotc.compile`.  With `build=False` nothing is compiled and measured; `io_dtype`
                  applies to the quantized model; for bare-metal targets memory is reported instead of times

    In the report, "layers" has the signal-to-noise ratio in dB of each layer if it alone is
    quantized, the worst first, None for no error; "suggested_exclusions" are nodes much worse than most;
    "outputs" has the errors of the whole model, over the sets for which both models find equal shapes;
    "float32" and "quantized" have sizes and times, and "ratio" is the ratio of times (quantized to float).
    For a bare-metal target, both have "ram_bytes" and "flash_bytes" instead, with an estimated code size.

    Raises AotcError with a diagnostic for each problem of model, settings or calibration data.
    """
    settings = Settings(per_channel, method, weights, _excluded_node_names_as_tuple(exclude))
    chosen = CompileOptions.from_keywords(options, quantize)
    _require_no_state(chosen)
    import_onnxruntime_quantizer()
    _require_onnx_model_and_output(model, output)
    if chosen.build and not chosen.machine.bare:
        require_cpu_can_run(chosen.machine)
    types = _static_input_types(model, chosen)
    sets = load_calibration_sets(calibration, types)
    static_model = pin_static_input_shapes(cut_model_at_tensors(load_model(model), chosen.graph_cut), types)
    prepared = prepare_for_quantization(static_model, weights, per_channel)
    chosen.progress(f"calibrating on {len(sets)} sets of inputs")
    quantized = quantize_prepared_model(prepared, sets, settings)
    compared = sets[:: -(-len(sets) // MAX_COMPARED_SETS)]
    chosen.progress("measuring the error of each layer")
    layers = measure_error_of_each_layer(prepared, quantized, names_of_nodes_to_quantize(prepared, settings), compared)
    if output is not None:
        with open_output_file(Path(output), "output", [model]) as file:
            file.write(quantized.SerializeToString())
    report = {
        "model": str(model) if isinstance(model, (str, Path)) else None,
        "output": None if output is None else str(output),
        "settings": asdict(settings),
        "calibration_sets": len(sets),
        "compared_sets": len(compared),
        "layers": [asdict(layer) for layer in layers],
        "suggested_exclusions": suggest_layers_to_leave_in_float(layers),
    }
    return report | _compare_memory_or_times(model, quantized, compared, chosen, seconds)


def _excluded_node_names_as_tuple(exclude: Sequence[str]) -> tuple[str, ...]:
    """Return the names of nodes to exclude; AotcTypeError (code "quantize") for a single string."""
    if isinstance(exclude, str):
        hint = "write " + option_text("exclude", [exclude])
        raise AotcTypeError("quantize", "exclude must be a list of names of nodes, not a string", hint=hint)
    return tuple(exclude)


def _require_no_state(options: CompileOptions) -> None:
    """Raise AotcError (code "state") if the option `state` is given."""
    if options.state:
        hint = "leave " + option_text("state") + " out here, and give it where the quantized model is compiled"
        raise AotcError("state", "models are quantized with their state as inputs and outputs", hint=hint)


def _require_onnx_model_and_output(model: object, output: str | Path | None) -> None:
    predicates = (is_relay_text_path, is_exported_program_or_pt2_path, is_tflite_path)
    if isinstance(model, IRModule) or any(is_other(model) for is_other in predicates):
        text = "only ONNX models are quantized"
        raise AotcError("quantize", text, hint="export the model to ONNX, or quantize it in its own framework")
    if output is not None and Path(output).suffix != ".onnx":
        text = f"the quantized model is an ONNX file, and the name {output} does not end in .onnx"
        hint = f"for example: {Path(output).with_suffix('.onnx')}"
        raise AotcError("quantize", text, hint=hint)
    if output is not None:
        require_not_an_input_file(Path(output), "output", [model])


def _static_input_types(model: str | Path | onnx.ModelProto, options: CompileOptions) -> dict[str, TensorType]:
    """Import a model and return the types of its inputs.

    Raise AotcError, with the options that fix them, if inputs have dynamic dimensions.
    """
    options.progress("importing the model")
    types = input_types(options.import_as_graph_module(model))
    if hint := hint_on_options_to_fix_dims(types):
        text = "the model has inputs with dynamic dimensions, and calibration needs fixed ones"
        raise AotcError("quantize", text, hint=hint)
    return types


def _options_for_float_and_quantized(
    model: str | Path | onnx.ModelProto, chosen_options: CompileOptions
) -> tuple[CompileOptions, CompileOptions]:
    """Return the compile options for the float model and for the quantized one, whose shapes are
    already static.
    """
    plain = replace(chosen_options, output=None, name=c_name_of_model(model, chosen_options.name), io_dtype=None)
    return plain, replace(
        plain, io_dtype=chosen_options.io_dtype, input_shapes=None, dims=None, cut_before=(), cut_after=()
    )


def _compare_memory_or_times(
    model: str | Path | onnx.ModelProto,
    quantized_model: onnx.ModelProto,
    sets: Sequence[Arrays],
    chosen_options: CompileOptions,
    seconds: float,
) -> dict[str, Any]:
    """Compare the costs of the float and the quantized model: memory on bare-metal targets, else
    sizes and times.

    Return {} if the models are not to be built.
    """
    if chosen_options.machine.bare:
        return _ram_and_flash_of_both_models(model, quantized_model, chosen_options)
    return (
        _compile_and_compare_both_models(model, quantized_model, sets, chosen_options, seconds)
        if chosen_options.build
        else {}
    )


def _ram_and_flash_of_both_models(
    model: str | Path | onnx.ModelProto, quantized_model: onnx.ModelProto, chosen_options: CompileOptions
) -> dict[str, Any]:
    """Return the RAM and flash that both models need on a bare-metal target, in bytes."""
    report: dict[str, Any] = {}
    parts = zip(
        ("float32", "quantized"),
        _options_for_float_and_quantized(model, chosen_options),
        (model, quantized_model),
        strict=True,
    )
    for label, options, source_model in parts:
        chosen_options.progress(f"planning the memory of the {label} model")
        sizes = bare_metal_footprint_or_none(options.start_compilation(source_model))
        assert sizes is not None, "the target has no operating system"
        report[label] = {
            f"{kind}_bytes": sum(sizes.get(part, 0) for part in FOOTPRINT_KEYS_BY_BUDGET[kind])
            for kind in ("ram", "flash")
        }
    return _add_former_spelling_of_report_key(report)


def _add_former_spelling_of_report_key(report: dict[str, Any]) -> dict[str, Any]:
    """Return `report` with "quantized" also under the name "quantised", which release 0.1 used."""
    return {**report, "quantised": report["quantized"]}


def _compile_and_compare_both_models(
    model: str | Path | onnx.ModelProto,
    quantized_model: onnx.ModelProto,
    sets: Sequence[Arrays],
    chosen_options: CompileOptions,
    seconds: float,
) -> dict[str, Any]:
    """Compile both models; return their output errors, sizes, times and the ratio of times."""
    plain, pinned = _options_for_float_and_quantized(model, chosen_options)
    both = plain.compile_model(model), pinned.compile_model(quantized_model)
    before, after = (compiled.session() for compiled in both)
    chosen_options.progress("comparing outputs")
    outputs = _output_errors_of_quantized_model(before, after, sets)
    chosen_options.progress("measuring both models")
    contestants = [_load_benchmark_contestant(c, s, sets[0]) for c, s in zip(both, (before, after), strict=True)]
    times = time_contestants_in_turns(contestants, MAX_TURNS, seconds)
    rows = [_sizes_and_times_of_model(compiled, durations) for compiled, durations in zip(both, times, strict=True)]
    ratio = min(times[1]) / min(times[0])
    return {
        "outputs": outputs,
        **_add_former_spelling_of_report_key({"float32": rows[0], "quantized": rows[1]}),
        "ratio": ratio,
    }


def _run_and_dequantize_outputs(session: Session, arrays: Arrays) -> list[Array]:
    """Run a model; return its outputs as real numbers, dequantized if necessary."""
    infos = session.get_outputs()
    results = session.run(None, quantize_real_inputs(session, arrays))
    named = {i.name: value for i, value in zip(infos, results, strict=True)}
    return list(dequantize_tensors(infos, named).values())


def _output_errors_of_quantized_model(
    float_session: Session, quantized_session: Session, sets: Sequence[Arrays]
) -> list[dict[str, Any]]:
    """Return for each output the signal-to-noise ratio and the largest absolute error of the
    quantized model over the sets for which both models give it the same shape, and the number of the
    other sets. Both figures are None if all sets are such ones.
    """
    rows = [
        (_run_and_dequantize_outputs(float_session, arrays), _run_and_dequantize_outputs(quantized_session, arrays))
        for arrays in sets
    ]
    errors = []
    for k, info in enumerate(float_session.get_outputs()):
        pairs = [
            (reference[k].astype(float), actual[k].astype(float))
            for reference, actual in rows
            if reference[k].shape == actual[k].shape
        ]
        noise = sum(sum_of_squares(reference - actual) for reference, actual in pairs)
        largest = max((float(abs(reference - actual).max(initial=0)) for reference, actual in pairs), default=None)
        snr = power_ratio_decibels(sum(sum_of_squares(reference) for reference, _ in pairs), noise)
        others = len(rows) - len(pairs)
        errors.append({"name": info.name, "snr_db": snr, "max_abs": largest, "sets_of_other_shape": others})
    return errors


def _load_benchmark_contestant(compiled: CompiledModel, session: Session, arrays: Arrays) -> Contestant:
    return load_and_time_first_run(
        "aotc", 1, lambda: load_aotc_library(compiled.built, quantize_real_inputs(session, arrays), 1)
    )


def _sizes_and_times_of_model(compiled: CompiledModel, times: Sequence[float]) -> dict[str, Any]:
    """Return the sizes in bytes and the times in milliseconds of a compiled model."""
    return {
        "weights_bytes": compiled.metadata["weights_bytes"],
        "library_bytes": compiled.built.stat().st_size,
        "arena_bytes": compiled.metadata["memory"]["peak"],
        "milliseconds": min_and_median(times),
    }
