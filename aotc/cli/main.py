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
from aotc.checking.verify import EXIT_CODES, verify
from aotc.cli import options as options_of
from aotc.cli import result_tables
from aotc.cli.console import Reporter, reporting
from aotc.cli.options import PATH, Command, Declaration, RenamingCommand, flag, option
from aotc.cli.pass_inspection_options import WATCH_OPTIONS, PassProgress, StageTimes, Watch
from aotc.cli.standard_streams import standard_streams
from aotc.driver.compile import compile
from aotc.driver.failure_replay import read_replay, replay
from aotc.driver.object_cache import default_cache
from aotc.driver.toolchain import find_toolchain, resolve_target, version_of
from aotc.ir import AotcError, PassTimingInstrument, listening
from aotc.ir.atomic_write import require_other_file
from aotc.measuring.bench import bench
from aotc.measuring.competitors import RIVALS
from aotc.measuring.profile import profile
from aotc.measuring.run import run_library
from aotc.measuring.tuning import cluster_runner, run_here, tune
from aotc.quantizing.quantize import quantize
from aotc.quantizing.quantizer import METHODS, WEIGHTS
from aotc.reporting.compile_report import PassReport
from aotc.reporting.inspect import LIBRARIES, inspect_model, inspect_project
from aotc.reporting.support_tables import config_table, support_table, target_table


class _Program(click.Group):
    """The click group of the `aotc` command, run with handlers for failing output streams."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with standard_streams():
            return super().main(*args, **kwargs)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotc")
def main() -> None:
    """Compile neural networks ahead of time to self-contained C."""


def command(name: str, *declarations: Declaration, renamed: Mapping[str, str] | None = None) -> Declaration:
    """Decorator that makes a function a command; it receives a reporter, then arguments and options
    by name.

    renamed    deprecated names of options, see `RenamingCommand`
    """

    def declare(function: Command) -> Command:
        @main.command(name, cls=RenamingCommand, renamed=renamed or {})
        @options_of.options(*declarations, options_of.OUTPUT)
        @wraps(function)
        def run(quiet: bool, verbose: int, as_json: bool, **arguments: Any) -> None:
            with reporting(quiet, as_json, verbose) as out:
                function(out, **arguments)

        return run

    return declare


@command(
    "compile",
    options_of.MODEL,
    option("-o --output", "Directory of the C project.", PATH),
    option("--name", "Prefix of every C symbol [default: from the file name]."),
    options_of.COMPILATION,
    flag("--timing", "Print how long each stage, the C compiler included, and each pass took."),
    option("--dump-ir dump", "Write the program after each pass there.", PATH, metavar="DIR"),
    options_of.IO_DTYPE,
    options_of.BUDGETS,
    options_of.WORKSPACE_IO,
    option("--report", "Write what every pass did, as one page.", PATH, metavar="FILE.html"),
    option("--print-after", "Print the program after a pass, to the error stream.", multiple=True, metavar="PASS"),
    option("--disable-pass disabled_pass", "Leave a pass out.", multiple=True, metavar="PASS"),
    option("--stop-after", "Print the program after a pass, and write no project.", metavar="PASS"),
    flag("--show-meta-data", "Print and dump the values of constants too, to be read again."),
    flag("--check-passes", "Check every pass: interpret graphs, verify kernels."),
    options_of.THREADS,
    options_of.FIRMWARE,
    flag("--check-compiler", "Build kernels at -O0, too; refuse a C compiler that makes something else of them."),
    flag("--no-build", "Write sources only; needs no C compiler."),
    flag("--overwrite", "Replace files in DIR that aotc did not write, or that were changed since."),
    renamed={"--profile": "--environment"},
)
def compile_command(
    out: Reporter, model: Path, output: Path | None, timing: bool, no_build: bool, **options: Any
) -> None:
    """Compile MODEL (.onnx, .pt2, .tflite, .relay) to a C project and a library in DIR."""
    watching = {name: options.pop(name) for name in WATCH_OPTIONS}
    stopping = watching["stop_after"] is not None
    if output is None and not stopping:
        raise click.UsageError("Missing option '-o' / '--output'.")
    build = not (no_build or stopping)
    facts = _facts(build, options) if watching["report"] is not None else {}
    watch = Watch(out, model, output, facts, **watching)
    passes, stages = PassTimingInstrument(), StageTimes()
    instruments = [passes, PassProgress(out.step), *watch.instruments()]
    with watch.writing() as show, listening(out.progress):
        where = None if stopping else output
        made = compile(
            model, output=where, instruments=instruments, build=build, progress=stages.before(show), **options
        )
        result = watch.done(made)
    times = f"{stages}\n{passes.render()}" if timing else ""
    timings: dict[str, Any] = {"stages": stages.rows(), "timing": times} if timing else {}
    if watch.stopped is not None:
        out.text({"text": watch.stopped, **timings}, watch.stopped)
        if timing and not out.as_json:
            out.note(times.rstrip())
        return
    library, metadata = str(result.library or ""), dict(result.metadata)
    data = {"path": str(result.path), "library": library, "metadata": metadata, **timings}
    data["unchecked"] = list(result.unchecked)
    if out.quiet and timing:
        out.text(data, times)
    else:
        out.result(data, result_tables.show_compiled)


def _facts(build: bool, options: Mapping[str, Any]) -> dict[str, str]:
    """Return facts for the head of a compilation report that the compiler does not know: target, C
    compiler, flags.
    """
    flags = shlex.join(options["cflags"])
    target = resolve_target(options["target"])
    said = version_of(find_toolchain(options["cc"], target=target)) if build else ""
    compiler = {"C compiler": said, "C flags": flags} if build else {}
    return {"target": target.name, **compiler}


@command(
    "run",
    click.argument("library", type=PATH),
    options_of.INPUTS,
    option("-o --output", "File that the outputs are written to.", PATH, metavar="FILE.npz"),
    option("--repeat", "Runs to time [default: 1; 20 with --profile].", click.IntRange(1)),
    flag("--profile profiling", "Tell where the time goes, kernel by kernel; needs the project."),
    option("--report", "Write the profile as a roofline there.", PATH, metavar="FILE.html"),
    option("--threads", "Threads of a run.", click.IntRange(1), 1),
    option("--isa", "Instruction set, where the library has several [default: the best].", metavar="NAME"),
    option("--device", "Number of the GPU, for a library compiled for GPUs [default: 0].", click.IntRange(0)),
    flag("--check", "Compare the whole library with the checksum in its project first."),
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
        require_other_file(report, "report", [library, options["inputs"]])
    if profiling:
        found = profile(library, repeat=repeat or 20, **options)
        if report is not None:
            page = PassReport(str(library))
            page.add_profile(found)
            page.save_html(report)
        out.result(found, result_tables.show_profile)
        return
    result = run_library(library, outputs=output, repeat=repeat or 1, threads=threads, **options)

    out.result(result, result_tables.show_run)


@command(
    "verify",
    options_of.MODEL,
    options_of.INPUTS,
    option("--seeds", "Random input sets to try.", click.IntRange(1), 3),
    flag("--bisect", "Name the first node and kernel that differ, and whether compiler or schedule is to blame."),
    click.option(
        "--check-compiler/--no-check-compiler",
        default=None,
        help="Build kernels at -O0, too, and compare [default, but for --bisect, which does more], or not.",
    ),
    option(
        "--project", "Compile nothing: run the library of MODEL in a project that is built.", PATH, metavar="DIR"
    ),
    option(
        "--memory", "What a result in double precision, which judges doubtful outputs, may take.",
        default="2G", read=options_of.read_bytes, metavar="SIZE",
    ),
    options_of.COMPILATION,
    options_of.IO_DTYPE,
)  # fmt: skip
def verify_command(out: Reporter, model: Path, **options: Any) -> None:
    """Compare the compiled MODEL with another implementation.

    An .onnx model with ONNX Runtime (or onnx's reference evaluator), an exported program of PyTorch (.pt2) with torch,
    a TFLite model (.tflite) with the interpreter whose integers are asked for (tflite-micro, ai-edge-litert), Relay
    text (.relay) with the numpy interpreter.

    The exit code is 0 if all outputs agree, 1 if one differs, 3 if the run is inconclusive, since an output is NaN,
    infinite or empty throughout.
    """
    report = verify(model, progress=out.stage, **options)
    out.result(report.as_dict(), result_tables.show_report)
    if not report.ok:
        raise SystemExit(EXIT_CODES[report.verdict])


@command(
    "bench",
    options_of.MODEL,
    option(
        "--against", "Implementations to measure beside, where they are installed.",
        default=",".join(RIVALS), read=options_of.read_names, metavar="NAME,...",
    ),
    option("--threads", "Numbers of threads.", default="1", read=options_of.read_counts, metavar="N,..."),
    option("--repeat", "Turns of each, at most.", click.IntRange(1), 100),
    option("--seconds", "For each number of threads, at most.", click.FloatRange(0), 20.0),
    options_of.INPUTS,
    option("-o --output", "File that all figures are written to.", PATH, metavar="FILE.json"),
    options_of.COMPILATION,
    renamed={"--json FILE": "--output"},
)  # fmt: skip
def bench_command(out: Reporter, model: Path, output: Path | None, **options: Any) -> None:
    """Measure the compiled MODEL beside other implementations, in turns, and compare the outputs.

    Milliseconds: the minimum and the median of all runs, the first run, and the time until the model was loaded.  MB is
    by how much memory the process grew for both of these.  The ratio is our minimum over the rival's.

    The exit code is 1 if an output of ours differs, 3 if the comparison is inconclusive, since an output is NaN,
    infinite or empty throughout.
    """
    if output is not None:
        require_other_file(output, "output", [model, options["inputs"]])
    result = bench(model, progress=out.stage, **options)
    if output is not None:
        out.write(output, result)
    out.result(result, result_tables.show_bench)
    if code := EXIT_CODES[result["verdict"]]:
        raise SystemExit(code)


@command(
    "tune",
    options_of.MODEL,
    option("--trials", "Tilings of each contraction.", click.IntRange(1), 8),
    option("--time seconds", "The measurement under way then is the last.", None, "5m", read=options_of.read_seconds),
    flag("--again", "Measure what has a record, too."),
    option("--scheduler", "Measure on the workers of a Dask cluster.", metavar="ADDRESS"),
    options_of.SHAPES,
    options_of.TARGET,
    options_of.COMPILER,
)
def tune_command(out: Reporter, model: Path, scheduler: str | None, **options: Any) -> None:
    """Measure tilings of MODEL's contractions on this machine; later compiles take the fastest."""
    with out.bar("measuring contractions") as advance:
        runner = cluster_runner(scheduler) if scheduler is not None else run_here
        report = tune(model, runner=runner, advance=advance, **options)
        out.result(report, result_tables.show_tuning)


@command(
    "quantize",
    options_of.MODEL,
    option("-o --output", "The quantized model.", PATH, required=True, metavar="FILE.onnx"),
    option("--calibration", "Inputs: an .npz file, or a folder of such.", PATH, required=True, metavar="DIR|FILE.npz"),
    flag("--per-channel", "A scale for each output channel of weights."),
    option("--method", "Range of activations: all values, or all but the most extreme ones.",
        click.Choice(tuple(METHODS)), "minmax"),
    option("--weights", "What weights become.", click.Choice(tuple(WEIGHTS)), "int8"),
    option("--exclude", "Leave a node in float.", multiple=True, metavar="NODE"),
    option("--seconds", "To measure, at most.", click.FloatRange(0), 5.0),
    flag("--no-build build", "Compile and measure nothing; needs no C compiler.", flag_value=False, default=True),
    options_of.COMPILATION,
    options_of.IO_DTYPE,
)  # fmt: skip
def quantize_command(out: Reporter, model: Path, **options: Any) -> None:
    """Quantize MODEL (.onnx) with ONNX Runtime, and tell what it costs and gains.

    The errors of layers are what each adds if it alone is quantized.
    """
    report = quantize(model, progress=out.stage, **options)
    out.result(report, result_tables.show_quantized)


@command(
    "inspect",
    options_of.MODEL,
    flag("--memory", "Show the arena over the steps of the schedule."),
    options_of.SHAPES,
    options_of.CUT,
    options_of.TARGET,
    options_of.THREADS,
    options_of.BOARD,
    options_of.WORKSPACE_IO,
    options_of.IO_DTYPE,
    renamed={"--profile": "--environment"},
)
def inspect_command(out: Reporter, model: Path, memory: bool, **options: Any) -> None:
    """Show what MODEL (.onnx, .pt2, .tflite, .relay) needs, or what a compiled project or library does.

    What of it cannot be compiled is part of the answer: the exit code is 0 then, too. --json prints the metadata of a
    project.
    """
    if model.is_dir() or model.suffix in LIBRARIES:
        out.result(inspect_project(model), result_tables.show_project)
        return
    out.stage("inspecting the model")
    found = inspect_model(model, **options)
    out.result(found, result_tables.show_memory if memory and "moments" in found else result_tables.show_model)


@command("replay", click.argument("file", type=PATH))
def replay_command(out: Reporter, file: Path) -> None:
    """Do again the pass or the kernel that failed and left FILE, and print the program after it.

    Such files are written to $AOTC_REPLAY_DIR, else to a private folder among the temporary files.  What the step
    raises is printed with its traceback to the error stream, and the exit code is 1.
    """
    data = read_replay(file)
    step = {key: data[key] for key in ("stage", "name")}
    try:
        text = replay(file)
    except AotcError as error:
        if error.code == "replay":
            raise
        out.failure(error)
        raise SystemExit(1) from None
    except Exception:
        out.note(traceback.format_exc().rstrip())
        out.text({**step, "fails": True}, "")
        raise SystemExit(1) from None
    out.text({**step, "fails": False, "program": text}, text)


@command("cache", flag("--info", "Say where it is, and how much it holds (the default)."), flag("--clear", "Empty it."))
def cache_command(out: Reporter, info: bool, clear: bool) -> None:
    """Look at, or empty, the cache of compiled kernels."""
    if info and clear:
        raise click.UsageError("--info and --clear exclude each other")
    cache = default_cache()
    if cache is None:
        raise AotcError("cache", "no home directory exists for the cache", hint="set AOTC_CACHE_DIR")
    entries, used = cache.clear() if clear else cache.usage()
    data = {"folder": str(cache.folder), "entries": entries, "bytes": used, "limit": cache.limit, "cleared": clear}

    out.result(data, result_tables.show_cache)


@command("ops")
def ops_command(out: Reporter) -> None:
    """List the operators, and those of ONNX and TFLite that use them."""
    out.result(support_table(), result_tables.show_operators)


@command("targets")
def targets_command(out: Reporter) -> None:
    """List the machines that --target can name, and which of them this machine runs code for."""
    out.result(target_table(), result_tables.show_targets)


@command("config")
def config_command(out: Reporter) -> None:
    """List the keys that --config can set, with type, default and meaning."""
    out.result(config_table(), result_tables.show_config)
