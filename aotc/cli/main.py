# SPDX-License-Identifier: Apache-2.0
"""The `aotc` command: parses arguments and prints results; `aotc.driver` and other packages do the
work.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from aotc import __version__
from aotc.checking.verify import EXIT_CODE_BY_VERDICT, verify
from aotc.cli import options as options_of
from aotc.cli import result_tables
from aotc.cli.console import Reporter, report_errors_and_exit
from aotc.cli.options import PATH_TYPE, CommandFunction, OptionDecorator, RenamingCommand, declare_flag, declare_option
from aotc.cli.pass_inspection_options import PASS_INSPECTION_OPTIONS, PassInspection, PassProgress, StageTimes
from aotc.cli.standard_streams import exit_if_output_cannot_be_written
from aotc.driver.compile import compile
from aotc.driver.failure_replay import read_failure_report, rerun_failed_step
from aotc.driver.object_cache import user_object_cache
from aotc.driver.toolchain import compiler_version_line, find_toolchain, resolve_target
from aotc.ir import AotcError, PassTimingInstrument, listen_to_progress
from aotc.ir.atomic_write import require_not_an_input_file
from aotc.ir.terminal_safe_text import PreformattedText
from aotc.measuring.bench import benchmark_model
from aotc.measuring.competitors import RIVAL_LOADERS
from aotc.measuring.profile import profile_library
from aotc.measuring.run_library import run_library
from aotc.measuring.tuning import make_dask_cluster_runner, measure_jobs_in_this_process, tune_contractions
from aotc.quantizing.onnxruntime_quantizer import ORT_CALIBRATION_METHODS, ORT_WEIGHT_TYPES
from aotc.quantizing.quantize import quantize
from aotc.reporting.compile_report import PassReport
from aotc.reporting.model_inspection import SHARED_LIBRARY_SUFFIXES, inspect_model, inspect_project
from aotc.reporting.support_tables import config_key_table, supported_operator_table, target_table


class _Program(click.Group):
    """The click group of the `aotc` command, run with handlers for failing output streams."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with exit_if_output_cannot_be_written():
            return super().main(*args, **kwargs)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotc")
def main() -> None:
    """Compile neural networks ahead of time to self-contained C."""


def register_command(
    name: str, *declarations: OptionDecorator, renamed: Mapping[str, str] | None = None
) -> OptionDecorator:
    """Decorator that makes a function a command; it receives a reporter, then arguments and options
    by name.

    renamed    deprecated names of options, see `RenamingCommand`
    """

    def register(function: CommandFunction) -> CommandFunction:
        @main.command(name, cls=RenamingCommand, renamed=renamed or {})
        @options_of.combine_declarations(*declarations, options_of.COMMON_OUTPUT_OPTIONS)
        @wraps(function)
        def run_with_reporter(quiet: bool, verbose: int, as_json: bool, **arguments: Any) -> None:
            with report_errors_and_exit(quiet, as_json, verbose) as out:
                function(out, **arguments)

        return run_with_reporter

    return register


@register_command(
    "compile",
    options_of.MODEL_ARGUMENT,
    declare_option("-o --output", "Directory of the C project.", PATH_TYPE),
    declare_option("--name", "Prefix of every C symbol [default: from the file name]."),
    options_of.COMPILATION_OPTIONS,
    declare_flag("--timing", "Print how long each stage, the C compiler included, and each pass took."),
    declare_option("--dump-ir dump", "Write the program after each pass there.", PATH_TYPE, metavar="DIR"),
    options_of.IO_DTYPE_OPTION,
    options_of.BUDGET_OPTIONS,
    options_of.WORKSPACE_IO_FLAG,
    declare_option("--report", "Write what every pass did, as one page.", PATH_TYPE, metavar="FILE.html"),
    declare_option(
        "--print-after", "Print the program after a pass, to the error stream.", multiple=True, metavar="PASS"
    ),
    declare_option("--disable-pass disabled_pass", "Leave a pass out.", multiple=True, metavar="PASS"),
    declare_option("--stop-after", "Print the program after a pass, and write no project.", metavar="PASS"),
    declare_flag("--show-meta-data", "Print and dump the values of constants too, to be read again."),
    declare_flag("--check-passes", "Check every pass: interpret graphs, verify kernels."),
    options_of.THREADS_OPTION,
    options_of.FIRMWARE_OPTIONS,
    declare_flag(
        "--check-compiler", "Build kernels at -O0, too; refuse a C compiler that makes something else of them."
    ),
    declare_flag("--no-build build", "Write sources only; needs no C compiler.", flag_value=False, default=True),
    declare_flag("--overwrite", "Replace files in DIR that aotc did not write, or that were changed since."),
    renamed={"--profile": "--environment"},
)
def compile_command(out: Reporter, model: Path, output: Path | None, timing: bool, build: bool, **options: Any) -> None:
    """Compile MODEL (.onnx, .pt2, .tflite, .relay) to a C project and a library in DIR."""
    watching = {name: options.pop(name) for name in PASS_INSPECTION_OPTIONS}
    stopping = watching["stop_after"] is not None
    if output is None and not stopping:
        raise click.UsageError("Missing option '-o' / '--output'.")
    build = build and not stopping
    facts = _target_and_compiler_for_report_header(build, options) if watching["report"] is not None else {}
    watch = PassInspection(out, model, output, facts, **watching)
    passes, stages = PassTimingInstrument(), StageTimes()
    instruments = [passes, PassProgress(out.show_current_item), *watch.requested_pass_instruments()]
    with watch.write_compilation_report_at_end() as show, listen_to_progress(out.show_progress):
        where = None if stopping else output
        compiled_model = compile(
            model,
            output=where,
            instruments=instruments,
            build=build,
            progress=stages.wrap_callback_to_record_stage_times(show),
            **options,
        )
        result = watch.add_model_to_compilation_report(compiled_model)
    times = PreformattedText(f"{stages}\n{passes.render()}" if timing else "")
    timings: dict[str, Any] = {"stages": stages.stage_time_rows(), "timing": times} if timing else {}
    if watch.stopped is not None:
        out.print_text_or_json({"text": watch.stopped, **timings}, watch.stopped)
        if timing and not out.as_json:
            out.print_to_stderr(times.rstrip())
        return
    library, metadata = str(result.library or ""), dict(result.metadata)
    size = result.library.stat().st_size if result.library else 0
    data = {"path": str(result.path), "library": library, "library_bytes": size, "metadata": metadata, **timings}
    data["unchecked"] = list(result.unchecked)
    if out.quiet and timing:
        out.print_text_or_json(data, times)
    else:
        out.print_result(data, result_tables.render_compile_result)


def _target_and_compiler_for_report_header(build: bool, options: Mapping[str, Any]) -> dict[str, str]:
    """Return facts for the head of a compilation report that the compiler does not know: target, C
    compiler, flags.
    """
    flags = shlex.join(options["cflags"])
    target = resolve_target(options["target"])
    version_line = compiler_version_line(find_toolchain(options["cc"], target=target)) if build else ""
    compiler = {"C compiler": version_line, "C flags": flags} if build else {}
    return {"target": target.name, **compiler}


@register_command(
    "run",
    click.argument("library", type=PATH_TYPE),
    options_of.INPUT_OPTIONS,
    declare_option("-o --output", "File that the outputs are written to.", PATH_TYPE, metavar="FILE.npz"),
    declare_option("--repeat", "Runs to time [default: 1; 20 with --profile].", click.IntRange(1)),
    declare_flag("--profile profiling", "Tell where the time goes, kernel by kernel; needs the project."),
    declare_option("--report", "Write the profile as a roofline there.", PATH_TYPE, metavar="FILE.html"),
    declare_option("--threads", "Threads of a run.", click.IntRange(1), 1),
    declare_option("--isa", "Instruction set, where the library has several [default: the best].", metavar="NAME"),
    declare_option("--device", "Number of the GPU, for a library compiled for GPUs [default: 0].", click.IntRange(0)),
    declare_flag("--check", "Compare the whole library with the checksum in its project first."),
    renamed={"--outputs": "--output"},
)
def run_command(
    out: Reporter,
    library: Path,
    output: Path | None,
    repeat: int | None,
    profiling: bool,
    report: Path | None,
    threads: int,
    **options: Any,
) -> None:
    """Run a compiled library (a project directory or the library file)."""
    if profiling and output is not None:
        raise click.UsageError("--profile and --output exclude each other")
    if profiling and threads > 1:
        raise click.UsageError("--profile tells the times of one thread")
    if report is not None and not profiling:
        raise click.UsageError("--report needs --profile")
    if report is not None:
        require_not_an_input_file(report, "report", [library, options["inputs"]])
    if profiling:
        kernel_profile = profile_library(library, repeat=repeat or 20, **options)
        if report is not None:
            page = PassReport(str(library))
            page.add_profile(kernel_profile)
            page.save_html(report)
        out.print_result(kernel_profile, result_tables.render_kernel_profile)
        return
    result = run_library(library, outputs=output, repeat=repeat or 1, threads=threads, **options)

    out.print_result(result, result_tables.render_run_result)


@register_command(
    "verify",
    options_of.MODEL_ARGUMENT,
    options_of.INPUT_OPTIONS,
    declare_option("--seeds", "Random input sets to try.", click.IntRange(1), 3),
    declare_flag("--bisect", "Name the first node and kernel that differ, and "
"whether compiler or schedule is to blame."),
    click.option(
        "--check-compiler/--no-check-compiler",
        default=None,
        help="Build kernels at -O0, too, and compare [default, but for --bisect, which does more], or not.",
    ),
    declare_option(
        "--project", "Compile nothing: run the library of MODEL in a project that is built.", PATH_TYPE, metavar="DIR"
    ),
    declare_option(
        "--memory", "What a result in double precision, which judges doubtful outputs, may take.",
        default="2G", read=options_of.parse_byte_count, write=options_of.format_byte_count_option, metavar="SIZE",
    ),
    options_of.COMPILATION_OPTIONS,
    options_of.IO_DTYPE_OPTION,
)  # fmt: skip
def verify_command(out: Reporter, model: Path, **options: Any) -> None:
    """Compare the compiled MODEL with another implementation.

    An .onnx model with ONNX Runtime (or onnx's reference evaluator), an exported program of PyTorch
    (.pt2) with torch, a TFLite model (.tflite) with the interpreter whose integers are asked for
    (tflite-micro, ai-edge-litert), Relay text (.relay) with the numpy interpreter.

    The exit code is 0 if all outputs agree, 1 if one differs, 3 if the run is inconclusive, since
    an output is NaN, infinite or empty throughout.
    """
    report = verify(model, progress=out.report_stage, **options)
    out.print_result(report.as_dict(), result_tables.render_verify_report)
    if not report.ok:
        raise SystemExit(EXIT_CODE_BY_VERDICT[report.verdict])


@register_command(
    "bench",
    options_of.MODEL_ARGUMENT,
    declare_option(
        "--against", "Implementations to measure beside, where they are installed.",
        default=",".join(RIVAL_LOADERS), read=options_of.parse_comma_separated_names, metavar="NAME,...",
    ),
    declare_option("--threads", "Numbers "
"of threads.", default="1", read=options_of.parse_thread_counts, metavar="N,..."),
    declare_option("--repeat", "Turns of each, at most.", click.IntRange(1), 100),
    declare_option("--seconds", "For each number of threads, at most.", click.FloatRange(0), 20.0),
    options_of.INPUT_OPTIONS,
    declare_option("-o --output", "File that all figures are written to.", PATH_TYPE, metavar="FILE.json"),
    options_of.COMPILATION_OPTIONS,
    renamed={"--json FILE": "--output"},
)  # fmt: skip
def bench_command(out: Reporter, model: Path, output: Path | None, **options: Any) -> None:
    """Measure the compiled MODEL beside other implementations, in turns, and compare the outputs.

    Milliseconds: the minimum and the median of all runs, the first run, and the time until the
    model was loaded.  MB is by how much memory the process grew for both of these.  The ratio is
    our minimum over the rival's.

    The exit code is 1 if an output of ours differs, 3 if the comparison is inconclusive, since an
    output is NaN, infinite or empty throughout.
    """
    if output is not None:
        require_not_an_input_file(output, "output", [model, options["inputs"]])
    result = benchmark_model(model, progress=out.report_stage, **options)
    if output is not None:
        out.write_json_file(output, result)
    out.print_result(result, result_tables.render_bench_result)
    if code := EXIT_CODE_BY_VERDICT[result["verdict"]]:
        raise SystemExit(code)


@register_command(
    "tune",
    options_of.MODEL_ARGUMENT,
    declare_option("--trials", "Tilings of each contraction.", click.IntRange(1), 8),
    declare_option(
        "--time seconds", "The measurement under way then is the last.", None, "5m", read=options_of.parse_seconds
    ),
    declare_flag("--again", "Measure contractions again that have a record."),
    declare_option("--scheduler", "Measure on the workers of a Dask cluster.", metavar="ADDRESS"),
    options_of.SHAPE_OPTIONS,
    options_of.TARGET_OPTIONS,
    options_of.COMPILER_OPTIONS,
)
def tune_command(out: Reporter, model: Path, scheduler: str | None, **options: Any) -> None:
    """Measure tilings of MODEL's contractions on this machine; later compiles take the fastest."""
    with out.progress_bar("measuring contractions") as advance:
        runner = make_dask_cluster_runner(scheduler) if scheduler is not None else measure_jobs_in_this_process
        report = tune_contractions(model, runner=runner, advance=advance, **options)
        out.print_result(report, result_tables.render_tuning_result)


@register_command(
    "quantize",
    options_of.MODEL_ARGUMENT,
    declare_option("-o --output", "The quantized model.", PATH_TYPE, required=True, metavar="FILE.onnx"),
    declare_option("--calibration", "Inputs: an .npz file, or a "
"folder of such.", PATH_TYPE, required=True, metavar="DIR|FILE.npz"),
    declare_flag("--per-channel", "A scale for each output channel of weights."),
    declare_option("--method", "Range of activations: all values, or all but the most extreme ones.",
        click.Choice(tuple(ORT_CALIBRATION_METHODS)), "minmax"),
    declare_option("--weights", "What weights become.", click.Choice(tuple(ORT_WEIGHT_TYPES)), "int8"),
    declare_option("--exclude", "Leave a node in float.", multiple=True, metavar="NODE"),
    declare_option("--seconds", "To measure, at most.", click.FloatRange(0), 5.0),
    declare_flag("--no-build build", "Compile and measure nothing; needs "
"no C compiler.", flag_value=False, default=True),
    options_of.COMPILATION_OPTIONS,
    options_of.IO_DTYPE_OPTION,
)  # fmt: skip
def quantize_command(out: Reporter, model: Path, **options: Any) -> None:
    """Quantize MODEL (.onnx) with ONNX Runtime, and tell what it costs and gains.

    The errors of layers are what each adds if it alone is quantized.
    """
    report = quantize(model, progress=out.report_stage, **options)
    out.print_result(report, result_tables.render_quantization_report)


@register_command(
    "inspect",
    options_of.MODEL_ARGUMENT,
    declare_flag("--memory", "Show the arena over the steps of the schedule."),
    options_of.SHAPE_OPTIONS,
    options_of.CUT_OPTIONS,
    options_of.TARGET_OPTIONS,
    options_of.THREADS_OPTION,
    options_of.BOARD_OPTIONS,
    options_of.WORKSPACE_IO_FLAG,
    options_of.IO_DTYPE_OPTION,
    renamed={"--profile": "--environment"},
)
def inspect_command(out: Reporter, model: Path, memory: bool, **options: Any) -> None:
    """Show what MODEL (.onnx, .pt2, .tflite, .relay) needs, or what a compiled project or library
    does.

    Parts of a model that cannot be compiled are listed, and the exit code is 0. --json prints the
    metadata of a project.
    """
    if model.is_dir() or model.suffix in SHARED_LIBRARY_SUFFIXES:
        out.print_result(inspect_project(model), result_tables.render_project_metadata)
        return
    out.report_stage("inspecting the model")
    inspection = inspect_model(model, **options)
    out.print_result(
        inspection,
        result_tables.render_memory_per_step
        if memory and "moments" in inspection
        else result_tables.render_model_inspection,
    )


@register_command("replay", click.argument("file", type=PATH_TYPE))
def replay_command(out: Reporter, file: Path) -> None:
    """Do again the pass or the kernel that failed and left FILE, and print the program after it.

    Such files are written to $AOTC_REPLAY_DIR, else to a private folder among the temporary files.
    What the step raises is printed with its traceback to the error stream, and the exit code is 1.
    """
    data = read_failure_report(file)
    step = {key: data[key] for key in ("stage", "name")}
    try:
        text = rerun_failed_step(file)
    except AotcError as error:
        if error.code == "replay":
            raise
        out.print_error(error)
        raise SystemExit(1) from None
    except Exception:
        out.print_to_stderr(traceback.format_exc().rstrip())
        out.print_text_or_json({**step, "fails": True}, "")
        raise SystemExit(1) from None
    out.print_text_or_json({**step, "fails": False, "program": text}, text)


@register_command(
    "cache",
    declare_flag("--info", "Say where it is, and how much it holds (the default)."),
    declare_flag("--clear", "Empty it."),
)
def cache_command(out: Reporter, info: bool, clear: bool) -> None:
    """Look at, or empty, the cache of compiled kernels."""
    if info and clear:
        raise click.UsageError("--info and --clear exclude each other")
    cache = user_object_cache()
    if cache is None:
        raise AotcError("cache", "no home directory exists for the cache", hint="set AOTC_CACHE_DIR")
    entries, used = cache.remove_all_cache_entries() if clear else cache.cache_entry_count_and_total_bytes()
    data = {"folder": str(cache.folder), "entries": entries, "bytes": used, "limit": cache.limit, "cleared": clear}

    out.print_result(data, result_tables.render_object_cache_state)


@register_command("ops")
def ops_command(out: Reporter) -> None:
    """List the operators, and those of ONNX and TFLite that use them."""
    out.print_result(supported_operator_table(), result_tables.render_supported_operators)


@register_command("targets")
def targets_command(out: Reporter) -> None:
    """List the machines that --target can name, and which of them this machine runs code for."""
    out.print_result(target_table(), result_tables.render_target_list)


@register_command("config")
def config_command(out: Reporter) -> None:
    """List the keys that --config can set, with type, default and meaning."""
    out.print_result(config_key_table(), result_tables.render_config_keys)
