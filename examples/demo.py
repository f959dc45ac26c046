# SPDX-License-Identifier: Apache-2.0
"""Compile one model, of ONNX or a built-in ResNet-18, to C; run it from C and from Python; compare results and times.

In: nothing (ResNet-18, 224x224, seeded Xavier weights), or a model of yours.  Out: a report, the C project below
build/demo, and an exit code: 0 if C and Python agree with the reference, 1 if not, 2 for what the user
can put right, 3 if an output is NaN, infinite or empty throughout, so that nothing was compared.

    make demo
    make demo-cuda
    make demo MODEL=path.onnx ARGS="--dim batch=1"
    python -m examples.demo --model path.onnx --input-shape x:1,3,48,192
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from onnx import ModelProto
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import aotc
from aotc.checking.compare_model_runs import Run, compare_runs_with_reference, messages_on_inconclusive_or_weak_outputs
from aotc.checking.input_generation import OTHER_INPUTS_HINT, InputRanges, InputSet, read_or_draw_session_inputs
from aotc.checking.model_reference_runs import Reference, make_onnx_reference
from aotc.checking.output_comparison import Comparison
from aotc.checking.verify import EXIT_CODE_BY_VERDICT
from aotc.cli.commands.inspect import render_project_metadata
from aotc.cli.compile_options import CUDA_ARCH_OPTION, SHAPE_OPTIONS, TARGET_OPTIONS
from aotc.cli.console import Reporter, report_errors_and_exit
from aotc.cli.options import INPUT_OPTIONS, PATH_TYPE, declare_option
from aotc.driver.compile import c_name_of_model
from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import find_toolchain, resolve_target
from aotc.ir.diagnostics import AotcError
from aotc.ir.instrument import PassProfile, PassTimingInstrument
from aotc.relay.frontend.onnx import load_model
from aotc.reporting.text_tables import format_milliseconds, format_with_unit_prefix
from aotc.runtime.session import Session
from benchmarks.onnx_graph_builder import resnet18

ROOT = Path(__file__).parents[1]
CONSOLE = Console(highlight=False, soft_wrap=True)
MESSAGE_LINES = 20
"""How much of a failing command's message is shown."""

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Subject:
    """What is compiled: a title, arguments for `aotc.compile`, inputs for the loaded library, and a reference.

    proto    the model in ONNX, which ONNX Runtime is timed on
    """

    title: str
    name: str
    arguments: Mapping[str, Any]
    inputs: Callable[[Session], Arrays]
    reference: Reference
    proto: ModelProto


@dataclass
class Clock:
    """Seconds by stage: a stage lasts until the next one begins."""

    reporter: Reporter
    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str = ""
    _start: float = 0.0

    def __call__(self, stage: str) -> None:
        self.stop()
        self._stage, self._start = stage, time.perf_counter()
        self.reporter.report_stage(stage)

    def stop(self) -> None:
        """The last stage is over."""
        if self._stage:
            self.seconds[self._stage] = time.perf_counter() - self._start
        self._stage = ""


@dataclass(frozen=True)
class CRun:
    """What the example program of the C project wrote, and its fastest run in milliseconds of processor time."""

    outputs: Arrays
    milliseconds: float


def workload() -> Subject:
    """Pre-activation ResNet-18 with seeded weights; the reference is ONNX Runtime, or onnx's own evaluator."""
    model = resnet18()

    def inputs(session: Session) -> Arrays:
        return read_or_draw_session_inputs(session, None, {info.name: (-1, 1) for info in session.get_inputs()})

    return Subject("ResNet-18, 224x224", "resnet18", {"model": model}, inputs, make_onnx_reference(model), model)


def onnx_subject(path: Path, file: Path | None, ranges: InputRanges, pins: Mapping[str, Any]) -> Subject:
    """A model of the user's; the reference is ONNX Runtime, or onnx's own evaluator where that is missing."""

    def inputs(session: Session) -> Arrays:
        return read_or_draw_session_inputs(session, file, ranges)

    arguments = {"model": path, **pins}
    proto = load_model(path)
    return Subject(path.name, c_name_of_model(path, None), arguments, inputs, make_onnx_reference(proto), proto)


def command(arguments: Sequence[str | Path], cwd: Path) -> str:
    """What a program prints; AotcError (code "command") with its message if it fails or is missing."""
    words = [str(a) for a in arguments]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise AotcError("command", f"cannot run {words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise AotcError("command", f"{words[0]} failed with exit code {done.returncode}", notes=lines[-MESSAGE_LINES:])
    return done.stdout


def build_with_make(project: Path, cc: Sequence[str]) -> None:
    """`make` in the emitted project, as its user would."""
    if shutil.which("make") is None:
        raise AotcError("command", "make not found", hint="install make; the emitted project is built with it")
    command(["make", f"-j{os.cpu_count() or 1}", f"CC={' '.join(cc)}"], project)


def run_from_c(project: Path, session: Session, inputs: Arrays, runs: int) -> CRun:
    """The project's example program on input files; its outputs are read back from files."""
    with tempfile.TemporaryDirectory(prefix="aotc-demo-") as folder:
        given = [Path(folder) / f"input{k}.bin" for k in range(len(inputs))]
        output_paths = [Path(folder) / f"output{k}.bin" for k in range(len(session.get_outputs()))]
        for path, info in zip(given, session.get_inputs(), strict=True):
            path.write_bytes(np.ascontiguousarray(inputs[info.name]).tobytes())
        program = project / "build" / f"{session.name}_example"
        printed = command([program, "-n", str(runs), *given, *output_paths], project)
        outputs = {
            info.name: np.frombuffer(path.read_bytes(), info.dtype.numpy).reshape(info.shape)
            for path, info in zip(output_paths, session.get_outputs(), strict=True)
        }
    best = re.search(r"best ([\d.]+) ms", printed)
    return CRun(outputs, float(best.group(1)) if best else float("nan"))


def times_in_turns(calls: Sequence[Callable[[], object]], runs: int, clock: Callable[[], float]) -> list[list[float]]:
    """Milliseconds of each run of every call, which take turns, after two turns that are not counted.

    clock    gives seconds
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 2):
        for call, call_times in zip(calls, times, strict=True):
            start = clock()
            call()
            call_times.append(1e3 * (clock() - start))
    return [call_times[2:] for call_times in times]


def onnxruntime_call(model: ModelProto, inputs: Arrays) -> Callable[[], object] | None:
    """A run of ONNX Runtime on one thread, on these inputs; None where it is missing or refuses the model."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, dict(inputs))
    except Exception:
        # it has exceptions of its own
        return None
    return lambda: session.run(None, dict(inputs))


def compare_all(
    made: Mapping[str, Arrays], inputs: Arrays, expected: Arrays, reference: Reference, float32_bound: float
) -> dict[str, Sequence[Comparison]]:
    """Every output of every way to run against the reference's `expected`, as `aotc verify` compares."""
    exact, rounded = (cache(lambda run=run: run(inputs)) for run in (reference.exact, reference.rounded))
    runs = [Run(InputSet(where, inputs), inputs, outputs, expected) for where, outputs in made.items()]
    once = replace(reference, exact=lambda _: exact(), rounded=lambda _: rounded())
    cases = compare_runs_with_reference(runs, float32_bound, once)
    return {case.source: case.outputs for case in cases}


def grid(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for k, header in enumerate(headers):
        table.add_column(header, justify="left" if k == 0 else "right")
    return table


def pass_times(pipelines: Sequence[PassProfile]) -> list[tuple[str, float]]:
    """(pass, milliseconds) in the order of the pipelines, and the sum of the type inferences between them.

    `aotc compile --timing` shows all of them, as a tree.
    """
    steps = [step for pipeline in pipelines for step in pipeline.children]
    inference = sum(step.duration for step in steps if step.name == "InferType")
    rows = [(step.name, step.duration) for step in steps if step.name != "InferType"]
    rows += [("InferType, between passes", inference), ("all passes", sum(p.duration for p in pipelines))]
    return [(name, duration / 1e3) for name, duration in rows]


def show_times(console: Console, clock: Clock, timer: PassTimingInstrument) -> None:
    """Seconds of each stage, and milliseconds of each pass."""
    stages = grid("stage", "s")
    for stage, seconds in clock.seconds.items():
        stages.add_row(stage, f"{seconds:.2f}")
    console.print(stages)
    passes = grid("pass", "ms")
    for name, milliseconds in pass_times(timer.profiles):
        passes.add_row(name, f"{milliseconds:.1f}")
    console.print("", passes, "")


def _format_c_time(milliseconds: float) -> str:
    """Format the time that the C program measured; its clock counts whole microseconds."""
    return format_milliseconds(milliseconds) if milliseconds > 0 else "less than 1 us"


def show_facts(
    console: Console, compiled: CompiledModel, library: Path, c: CRun, python: list[float], rival: list[float]
) -> None:
    """Print sizes, and times of one thread; `rival` has those of ONNX Runtime, none where it did not run."""
    facts = compiled.metadata
    memory = facts["memory"]
    console.print(f"project      {compiled.path}", markup=False)
    console.print(
        f"library      {library.name}, "
        f"{format_with_unit_prefix(library.stat().st_size, 'B')}, "
        f"weights {format_with_unit_prefix(facts['weights_bytes'], 'B')}"
    )
    console.print(
        f"arena        {format_with_unit_prefix(memory['peak'], 'B')} (lower bound "
        f"{format_with_unit_prefix(memory['lower_bound'], 'B')})"
    )
    console.print(
        f"work         {format_with_unit_prefix(facts['macs'])} multiply-accumulates, {facts['kernels']} kernels"
    )
    console.print(f"from C       {_format_c_time(c.milliseconds)} (one thread, fastest run, processor time)")
    for where, times in (("from Python ", python), ("ONNX Runtime", rival)):
        if times:
            median = f"median {format_milliseconds(statistics.median(times))}"
            console.print(
                f"{where} {format_milliseconds(min(times))} (one thread, fastest of {len(times)} runs, {median})"
            )
    if rival:
        console.print(f"aotc takes {min(python) / min(rival):.2f} of the time of ONNX Runtime, run by run in turns")


def show_verdict(
    console: Console, reference: str, expected: Arrays, results: Mapping[str, Sequence[Comparison]]
) -> str:
    """The comparisons as a table; "agree", "differ" or "inconclusive", as `aotc verify` says.

    expected    the outputs of the reference
    """
    table = Table("from", "output", "largest error", "relative to std", "", box=None, pad_edge=False)
    for where, comparisons in results.items():
        for c in comparisons:
            verdict = f"[{'green' if c.ok else 'red'}]{escape(c.text)}[/]"
            table.add_row(where, c.name, f"{c.max_abs:.2e}", f"{c.relative:.2e}", verdict)
    console.print("", table)
    wrong = [where for where, comparisons in results.items() if not all(c.ok for c in comparisons)]
    if wrong:
        console.print(f"\n[bold red]{' and '.join(wrong)} DIFFER from {reference}[/]")
        return "differ"
    nothing, little = messages_on_inconclusive_or_weak_outputs([expected])
    for kind, texts in (("inconclusive", nothing), ("warning", little)):
        for text in texts:
            console.print(f"[yellow]{kind}[/]: {escape(text)}")
    if nothing:
        names = " and ".join(results)
        console.print(f"\n[bold yellow]INCONCLUSIVE: {names} and {reference} have nothing to compare[/]")
        console.print(f"hint: {escape(OTHER_INPUTS_HINT)}")
        return "inconclusive"
    verb = "agree" if len(results) > 1 else "agrees"
    console.print(f"\n[bold green]{' and '.join(results)} {verb} with {reference}[/]")
    return "agree"


def demonstrate(subject: Subject, output: Path, cc: str | None, runs: int, reporter: Reporter, **options: Any) -> str:
    """Compile, build, run and compare; the verdict."""
    clock, timer = Clock(reporter), PassTimingInstrument()
    toolchain = find_toolchain(cc)
    arguments = {**subject.arguments, **options, "name": subject.name}
    compiled = aotc.compile(output=output, instruments=[timer], build=False, progress=clock, **arguments)
    clock("building the C project with make")
    build_with_make(compiled.path, toolchain.cc)
    session = aotc.load(compiled.path)
    inputs = subject.inputs(session)
    clock("running from C")
    from_c = run_from_c(compiled.path, session, inputs, runs)
    clock("running from Python")
    names = [o.name for o in session.get_outputs()]
    from_python = dict(zip(names, session.run(None, inputs), strict=True))
    ours, rival = session.bind(inputs).run, onnxruntime_call(subject.proto, inputs)
    times, *rival_times = times_in_turns([ours, *([rival] if rival is not None else [])], runs, time.thread_time)
    clock(f"running {subject.reference.name}")
    expected = subject.reference.run(inputs)
    clock.stop()
    reporter.stop_progress_display()
    show_times(CONSOLE, clock, timer)
    show_facts(CONSOLE, compiled, session.path, from_c, times, rival_times[0] if rival_times else [])
    outputs = {"C": from_c.outputs, "Python": from_python}
    results = compare_all(outputs, inputs, expected, subject.reference, compiled.metadata["error_bound"])
    return show_verdict(CONSOLE, subject.reference.name, expected, results)


def demonstrate_on_gpu(
    subject: Subject, output: Path, cc: str | None, runs: int, reporter: Reporter, **options: Any
) -> str:
    """Compile for GPUs, show what kernels take, run on the first GPU, emulated where there is none, and compare."""
    clock = Clock(reporter)
    arguments = {**subject.arguments, **options, "name": subject.name, "cc": cc, "progress": clock}
    compiled = aotc.compile(output=output, **arguments)
    device = "GPU 0" if aotc.cuda(0).exist else "an emulated GPU"
    session = (compiled if aotc.cuda(0).exist else aotc.compile(emulated=True, **arguments)).session()
    inputs = subject.inputs(session)
    clock(f"running on {device}")
    names = [o.name for o in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, inputs), strict=True))
    # the host waits for the GPU: wall clock
    call = session.bind(inputs).run
    times = times_in_turns([call], runs, time.perf_counter)[0] if aotc.cuda(0).exist else []
    clock(f"running {subject.reference.name}")
    expected = subject.reference.run(inputs)
    clock.stop()
    reporter.stop_progress_display()
    CONSOLE.print(*render_project_metadata(compiled.metadata), f"project      {compiled.path}", sep="\n")
    if times:
        CONSOLE.print(
            f"from Python  {format_milliseconds(statistics.median(times))} (median of {runs} runs, host's memory)"
        )
    results = compare_all({device: outputs}, inputs, expected, subject.reference, compiled.metadata["error_bound"])
    return show_verdict(CONSOLE, subject.reference.name, expected, results)


@click.command()
@declare_option("--model", "An ONNX model [default: ResNet-18].", PATH_TYPE)
@INPUT_OPTIONS
@declare_option("--output", "Where the project goes.", PATH_TYPE, metavar="DIR")
@declare_option("--cc", "C compiler [default: $CC, cc, gcc or clang].")
@declare_option("--runs", "Runs to time.", click.IntRange(1), 20)
@SHAPE_OPTIONS
@TARGET_OPTIONS
@CUDA_ARCH_OPTION
def main(
    model: Path | None,
    inputs: Path | None,
    input_ranges: InputRanges,
    output: Path | None,
    cc: str | None,
    runs: int,
    **options: Any,
) -> None:
    """Compile a model to C, run it from C and from Python, and compare both with a reference."""
    pins = {key: options.pop(key) for key in ("input_shapes", "dims")}
    with report_errors_and_exit() as reporter:
        install_operators_and_passes()
        if model is None and (inputs is not None or input_ranges or any(pins.values())):
            names = "--inputs, --input-range, --input-shape and --dim"
            raise AotcError("demo", f"{names} describe a model of yours", hint="give --model")
        reporter.report_stage("preparing the model")
        subject = workload() if model is None else onnx_subject(model, inputs, input_ranges, pins)
        reporter.stop_progress_display()
        CONSOLE.print(
            f"[bold]{subject.title}[/] for target {options['target']}, optimization level {options['opt_level']}\n"
        )
        place = output or ROOT / "build" / "demo" / subject.name
        run_demo = demonstrate if resolve_target(options["target"]).gpu is None else demonstrate_on_gpu
        verdict = run_demo(subject, place, cc, runs, reporter=reporter, **options)
    if verdict != "agree":
        raise SystemExit(EXIT_CODE_BY_VERDICT[verdict])


if __name__ == "__main__":
    main()
