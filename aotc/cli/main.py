# SPDX-License-Identifier: Apache-2.0
"""The `aotc` command: arguments in, text out; all work is done by `aotc.driver`."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich.console import Console

from aotc import __version__
from aotc.checking.verify import verify
from aotc.cli import tables
from aotc.cli.console import Reporter, reporting
from aotc.cli.options import (
    compiler_options,
    output_options,
    quiet_options,
    read_counts,
    read_names,
    read_seconds,
    shape_options,
    target_options,
    tuning_option,
)
from aotc.cli.streams import standard_streams
from aotc.cli.watch import WATCH_OPTIONS, Watch
from aotc.driver.cache import default_cache
from aotc.driver.compilation import CompiledModel
from aotc.driver.compile import compile
from aotc.driver.replay import read_replay, replay
from aotc.driver.toolchain import compiler_version, resolve_target
from aotc.ir import AotcError, PassTimingInstrument
from aotc.measuring.bench import bench
from aotc.measuring.contestants import RIVALS
from aotc.measuring.profile import profile
from aotc.measuring.run import run_library
from aotc.measuring.tuning import cluster_runner, run_here, tune
from aotc.reporting.inspect import inspect_model, inspect_project
from aotc.reporting.support import support_table

MODEL = click.Path(path_type=Path)
inputs_option = click.option(
    "--inputs", type=MODEL, default=None, metavar="FILE.npz", help="Inputs by name [default: random]."
)


class _Program(click.Group):
    """The command, with output that may fail."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with standard_streams():
            return super().main(*args, **kwargs)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotc")
def main() -> None:
    """Compile neural networks ahead of time to self-contained C."""


Command: TypeAlias = Callable[..., None]


def reported(options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Give a command a reporter before its own arguments; `options` say what it prints."""

    def wrap(command: Command) -> Command:
        @wraps(command)
        def run(quiet: bool, verbose: int, as_json: bool = False, **arguments: Any) -> None:
            with reporting(quiet, as_json, verbose) as out:
                command(out, **arguments)

        return options(run)

    return wrap


@main.command("compile")
@click.argument("model", type=MODEL)
@click.option("-o", "--output", type=MODEL, default=None, help="Directory of the C project.")
@click.option("--name", default=None, help="Prefix of every C symbol [default: from the file name].")
@shape_options
@target_options
@compiler_options
@tuning_option
@click.option("--timing", is_flag=True, help="Print how long each pass took.")
@click.option(
    "--dump-ir", "dump", type=MODEL, default=None, metavar="DIR", help="Write the program after each pass there."
)
@click.option("--report", type=MODEL, default=None, metavar="FILE.html", help="Write what every pass did, as one page.")
@click.option(
    "--print-after", multiple=True, metavar="PASS", help="Print the program after a pass, to the error stream."
)
@click.option("--disable-pass", "disabled_pass", multiple=True, metavar="PASS", help="Leave a pass out.")
@click.option(
    "--stop-after", default=None, metavar="PASS", help="Print the program after a pass, and write no project."
)
@click.option("--show-meta-data", is_flag=True, help="Print and dump the values of constants too, to be read again.")
@click.option("--check-passes", is_flag=True, help="Check every pass: interpret graphs, verify kernels.")
@click.option("--threads/--no-threads", default=True, help="Make kernels that threads can share [default], or not.")
@click.option("--no-build", is_flag=True, help="Write sources only; needs no C compiler.")
@reported(output_options)
def compile_command(
    out: Reporter, model: Path, output: Path | None, timing: bool, no_build: bool, **options: Any
) -> None:
    """Compile MODEL (.onnx, .pt2, .relay) to a C project and a library in DIR."""
    watching = {name: options.pop(name) for name in WATCH_OPTIONS}
    stopping = watching["stop_after"] is not None
    if output is None and not stopping:
        raise click.UsageError("Missing option '-o' / '--output'.")
    build = not (no_build or stopping)
    facts = _facts(build, options) if watching["report"] is not None else {}
    watch = Watch(out, model, output, facts, **watching)
    timer = PassTimingInstrument()
    instruments = [timer, *watch.instruments()]
    with watch.writing() as stage:
        where = None if stopping else output
        made = compile(model, output=where, instruments=instruments, build=build, progress=stage, **options)
        result = watch.done(made)
    passes = timer.render() if timing else ""
    if watch.stopped is not None:
        out.text({"text": watch.stopped} | ({"timing": passes} if timing else {}), watch.stopped)
        if timing and not out.as_json:
            out.note(passes.rstrip())
        return
    data: dict[str, Any] = {
        "path": str(result.path),
        "library": str(result.library or ""),
        "metadata": dict(result.metadata),
    }
    data |= {"timing": passes} if timing else {}
    if out.quiet and timing:
        out.text(data, passes)
    else:
        out.result(data, lambda console: _show_compiled(console, result, passes))


def _facts(build: bool, options: Mapping[str, Any]) -> dict[str, str]:
    """What a report of the compilation says at its head beside what the compiler itself knows."""
    flags = shlex.join(options["cflags"])
    target = resolve_target(options["target"])
    compiler = {"C compiler": compiler_version(options["cc"], target), "C flags": flags} if build else {}
    return {"target": target.name, "accuracy": options["accuracy"], **compiler}


def _show_compiled(console: Console, result: CompiledModel, passes: str) -> None:
    if passes:
        console.print(passes, markup=False, end="")
    memory = result.metadata["memory"]
    console.print(f"project      {result.path}", markup=False)
    if result.library is not None:
        console.print(f"library      {result.library} ({tables.size(result.library.stat().st_size)})", markup=False)
    console.print(f"arena        {tables.size(memory['peak'])} (lower bound {tables.size(memory['lower_bound'])})")


@main.command("run")
@click.argument("library", type=MODEL)
@inputs_option
@click.option("--outputs", type=MODEL, default=None, metavar="FILE.npz", help="Where to write the outputs.")
@click.option("--repeat", type=click.IntRange(1), default=None, help="Runs to time [default: 1; 20 with --profile].")
@click.option(
    "--profile", "profiling", is_flag=True, help="Tell where the time goes, kernel by kernel; needs the project."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of a run.")
@click.option("--isa", metavar="NAME", help="Instruction set, where the library has several [default: the best].")
@click.option("--check", is_flag=True, help="Compare the whole library with the checksum in its project first.")
@reported(output_options)
def run_command(
    out: Reporter,
    library: Path,
    outputs: Path | None,
    repeat: int | None,
    profiling: bool,
    threads: int,
    **options: Any,
) -> None:
    """Run a compiled library (a project directory or the library file)."""
    if profiling and outputs is not None:
        raise click.UsageError("--profile and --outputs exclude each other")
    if profiling and threads > 1:
        raise click.UsageError("--profile tells the times of one thread")
    if profiling:
        found = profile(library, repeat=repeat or 20, **options)
        out.result(found, lambda console: tables.show_profile(console, found))
        return
    result = run_library(library, outputs=outputs, repeat=repeat or 1, threads=threads, **options)

    def show(console: Console) -> None:
        for row in result["outputs"]:
            console.print(f"{row['name']}  {row['dtype']}{row['shape']}  {row['preview']}", markup=False)
        times = result["milliseconds"]
        console.print(f"{result['repeat']} runs: minimum {times['min']:.3f} ms, median {times['median']:.3f} ms")

    out.result(result, show)


@main.command("verify")
@click.argument("model", type=MODEL)
@inputs_option
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Random input sets to try.")
@click.option("--bisect", is_flag=True, help="Name the first node and kernel that differ (of .onnx models).")
@shape_options
@target_options
@compiler_options
@tuning_option
@reported(output_options)
def verify_command(out: Reporter, model: Path, **options: Any) -> None:
    """Compare the compiled MODEL with another implementation.

    An .onnx model with ONNX Runtime (or onnx's reference evaluator), an exported program of PyTorch (.pt2) with torch,
    Relay text (.relay) with the numpy interpreter.
    """
    report = verify(model, progress=out.stage, **options)
    out.result(report.as_dict(), lambda console: tables.show_report(console, report))
    if not report.ok:
        raise SystemExit(1)


@main.command("bench")
@click.argument("model", type=MODEL)
@click.option(
    "--against",
    default=",".join(RIVALS),
    show_default=True,
    callback=read_names,
    metavar="NAME,...",
    help="Implementations to measure beside, where they are installed.",
)
@click.option(
    "--threads", default="1", show_default=True, callback=read_counts, metavar="N,...", help="Numbers of threads."
)
@click.option("--repeat", type=click.IntRange(1), default=100, show_default=True, help="Turns of each, at most.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=20.0, show_default=True, help="For each number of threads, at most."
)
@inputs_option
@click.option("--json", "json_file", type=MODEL, default=None, metavar="FILE", help="Write all figures there.")
@shape_options
@target_options
@compiler_options
@tuning_option
@reported(quiet_options)
def bench_command(out: Reporter, model: Path, json_file: Path | None, **options: Any) -> None:
    """Measure the compiled MODEL beside other implementations, in turns, and compare the outputs.

    Milliseconds: the minimum and the median of all runs, the first run, and the time until the model was loaded.  MB is
    by how much memory the process grew for both of these.  The ratio is our minimum over the rival's.
    """
    result = bench(model, progress=out.stage, **options)
    if json_file is not None:
        out.write(json_file, result)
    out.result(result, lambda console: tables.show_bench(console, result))
    if not all(row["agrees"] for turn in result["rounds"] for row in turn["contestants"] if row["name"] == "aotc"):
        raise SystemExit(1)


@main.command("tune")
@click.argument("model", type=MODEL)
@click.option("--trials", type=click.IntRange(1), default=8, show_default=True, help="Tilings of each contraction.")
@click.option(
    "--time",
    "seconds",
    default="5m",
    show_default=True,
    callback=read_seconds,
    help="The measurement under way then is the last.",
)
@click.option("--again", is_flag=True, help="Measure what has a record, too.")
@click.option("--scheduler", default=None, metavar="ADDRESS", help="Measure on the workers of a Dask cluster.")
@shape_options
@target_options
@compiler_options
@reported(output_options)
def tune_command(out: Reporter, model: Path, scheduler: str | None, **options: Any) -> None:
    """Measure tilings of MODEL's contractions on this machine; later compiles take the fastest."""
    with out.bar("measuring contractions") as advance:
        runner = cluster_runner(scheduler) if scheduler is not None else run_here
        report = tune(model, runner=runner, advance=advance, **options)
        out.result(report, lambda console: tables.show_tuning(console, report))


@main.command("inspect")
@click.argument("model", type=MODEL)
@shape_options
@target_options
@reported(output_options)
def inspect_command(out: Reporter, model: Path, **options: Any) -> None:
    """Show what MODEL (.onnx, .pt2, .relay) needs, or the metadata of a compiled project.

    What of it cannot be compiled is part of the answer: the exit code is 0 then, too.
    """
    if model.is_dir():
        found = inspect_project(model)
        out.result(found, lambda console: console.print_json(data=found))
        return
    out.stage("inspecting the model")
    report = inspect_model(model, **options)
    out.result(report, lambda console: tables.show_model(console, report))


@main.command("replay")
@click.argument("file", type=MODEL)
@reported(output_options)
def replay_command(out: Reporter, file: Path) -> None:
    """Do again the pass or the kernel that failed and left FILE, and print the program after it.

    Such files are written to $AOTC_REPLAY_DIR, else to a private folder among the temporary files.  What the step
    raises is printed with its traceback to the error stream, and the exit code is 1.
    """
    data = read_replay(file)
    try:
        text = replay(file)
    except AotcError as error:
        if error.diagnostics[0].code == "replay":
            raise
        out.failure(error)
        raise SystemExit(1) from None
    except Exception:
        out.note(traceback.format_exc().rstrip())
        out.text({"stage": data["stage"], "name": data["name"], "fails": True}, "")
        raise SystemExit(1) from None
    out.text({"stage": data["stage"], "name": data["name"], "fails": False, "program": text}, text)


@main.command("cache")
@click.option("--info", is_flag=True, help="Say where it is, and how much it holds (the default).")
@click.option("--clear", is_flag=True, help="Empty it.")
@reported(output_options)
def cache_command(out: Reporter, info: bool, clear: bool) -> None:
    """Look at, or empty, the cache of compiled kernels."""
    if info and clear:
        raise click.UsageError("--info and --clear exclude each other")
    cache = default_cache()
    if cache is None:
        raise AotcError("cache", "there is no home directory to keep a cache in", hint="set AOTC_CACHE_DIR")
    entries, used = cache.clear() if clear else cache.usage()
    data = {"folder": str(cache.folder), "entries": entries, "bytes": used, "limit": cache.limit, "cleared": clear}

    def show(console: Console) -> None:
        amount = f"{entries} objects, {tables.size(used)}"
        text = f"removed {amount}" if clear else f"{amount} of at most {tables.size(cache.limit)}"
        console.print(f"{cache.folder}: {text}", markup=False)

    out.result(data, show)


@main.command("ops")
@reported(output_options)
def ops_command(out: Reporter) -> None:
    """List the operators and the ONNX operators that use them."""
    table = support_table()
    out.result(table, lambda console: tables.show_operators(console, table))
