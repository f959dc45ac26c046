# SPDX-License-Identifier: Apache-2.0
"""Benchmark a compiled model against other implementations in one process.

result = benchmark_model("net.onnx", against=("onnxruntime", "ncnn"), threads=(1, 2), repeat=100)
result["rounds"][0]["contestants"][0]["milliseconds"]["min"]

The implementations are measured alternately, so that a temporary slowdown of the machine affects
all of them.  A turn is one untimed run, which warms the caches, followed by timed runs for
`TURN_SECONDS`.  With several threads each turn begins with a pause, in which spinning workers of
the previous implementation go to sleep.  Inputs and outputs are bound to fixed buffers, so that
runs do not allocate them.
"""

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnx
from aotc_codegen.c.project_metadata import APPROXIMATE_BOUND

from aotc.checking.compare_model_runs import (
    Run,
    compare_runs_grouped_by_input_scale,
    messages_on_inconclusive_or_weak_outputs,
)
from aotc.checking.input_generation import (
    NO_INPUT_RANGES,
    InputRanges,
    InputSet,
    input_types,
    read_or_draw_session_inputs,
    session_input_types,
)
from aotc.checking.model_reference_runs import Reference
from aotc.checking.state_runs import ReferenceState
from aotc.checking.verify import load_model_of_any_format, make_reference_for_model, pin_static_input_shapes
from aotc.driver.compile import CompileOptions, show_compile_options_in_signature
from aotc.driver.import_model import (
    Cut,
    cut_model_at_tensors,
    is_exported_program_or_pt2_path,
    is_relay_text_path,
    is_tflite_path,
    require_tflite_model_is_not_cut,
)
from aotc.driver.pipeline import Compilation, CompiledModel, Progress
from aotc.driver.toolchain import compiler_version_line, find_toolchain, require_cpu_can_run
from aotc.driver.tuning_store import cpu_model_name
from aotc.ir import AotcError, text_for_command_or_python
from aotc.ir.atomic_write import temporary_folder
from aotc.ir.version import VERSION
from aotc.measuring.competitors import (
    RIVAL_LOADERS,
    BenchmarkModel,
    Contestant,
    load_and_time_first_run,
    load_aotc_library,
    load_rival,
    require_known_rivals,
)
from aotc.measuring.timing import format_thread_count, milliseconds_per_call, min_and_median, repeat_for_seconds
from aotc.relay.frontend.onnx import load_model
from aotc.relay.graph_api import output_names_or_default
from aotc.relay.state_pair import StatePair
from aotc.runtime.library import find_library

#: Duration in seconds of the timed runs of one turn, which has at least one run.
TURN_SECONDS: Final = 0.02
#: Pause before a turn with several threads: OpenMP's workers may spin for 20 ms after a run.
PAUSE_SECONDS: Final = 0.03
#: Smallest number of turns, whatever the time limit.
MIN_TURNS: Final = 3
#: Largest relative error of a rival on quantized models, where values may be rounded either way.
MAX_QUANTIZED_RELATIVE_ERROR: Final = 5e-2
_QUANTIZED_OPERATOR_PATTERN: Final = re.compile(r"Quantize|QLinear|Integer$")


def _time_contestant_for_one_turn(contestant: Contestant) -> list[float]:
    """Benchmark one implementation for one turn; return the times of its timed runs in
    milliseconds.
    """
    if contestant.threads > 1:
        time.sleep(PAUSE_SECONDS)
    contestant.run()
    return [milliseconds_per_call(contestant.run) for _ in repeat_for_seconds(1, TURN_SECONDS)]


def time_contestants_in_turns(contestants: Sequence[Contestant], repeat: int, seconds: float) -> list[list[float]]:
    """Measure implementations alternately for `repeat` turns, or fewer when `seconds` are over.

    Return the times of each one's timed runs in milliseconds.  At least `MIN_TURNS` turns are
    measured.
    """
    times: list[list[float]] = [[] for _ in contestants]
    for _ in repeat_for_seconds(MIN_TURNS, seconds, repeat):
        for contestant, record in zip(contestants, times, strict=True):
            record.extend(_time_contestant_for_one_turn(contestant))
    return times


def describe_machine() -> dict[str, Any]:
    """Describe the machine: CPU, number of processors, operating system and load."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu_model_name(), "processors": os.cpu_count(), "system": platform.system(), "load": load}


class Judge:
    """Compares the outputs of implementations with an independent reference, as `aotc verify` does."""

    def __init__(self, entrant: BenchmarkModel, outputs: Sequence[str], state: Sequence[StatePair] = ()) -> None:
        self._state = ReferenceState(tuple(state), {})
        self._inputs, self._model = entrant.inputs, load_model_of_any_format(entrant.path)
        model_reference = make_reference_for_model(self._model, {}, outputs)
        self.reference, self._expected = model_reference.name, model_reference.run(entrant.inputs)
        self.inconclusive, self.warnings = messages_on_inconclusive_or_weak_outputs([self._expected])
        # the float64 reference is slow and equal for all contestants: compute it once
        exact = cache(lambda: model_reference.exact(entrant.inputs))
        self._judging = Reference(model_reference.name, model_reference.run, lambda _: exact())

    @property
    def allowed_rival_relative_error(self) -> float:
        """Largest allowed error of another implementation, which may use any algorithm and
        rounding.
        """
        nodes = self._model.graph.node if isinstance(self._model, onnx.ModelProto) else ()
        return (
            MAX_QUANTIZED_RELATIVE_ERROR
            if any(_QUANTIZED_OPERATOR_PATTERN.search(n.op_type) for n in nodes)
            else APPROXIMATE_BOUND
        )

    def __call__(self, contestant: Contestant, bound: float) -> dict[str, Any]:
        """Compare the outputs of an implementation with the reference.

        Return {"agrees": bool, "relative": largest error relative to the standard deviation,
        "reason": text}.
        """
        arrays = contestant.outputs()
        expected = self._state.without_state(self._expected) if contestant.name == "aotc" else self._expected
        if len(arrays) != len(expected):
            return {"agrees": False, "relative": None, "reason": f"gives {len(arrays)} outputs"}
        # some implementations leave out dimensions of extent 1
        actual = {
            n: a.reshape(e.shape) if a.size == e.size else a for a, (n, e) in zip(arrays, expected.items(), strict=True)
        }
        run = Run(InputSet("", self._inputs), self._inputs, actual, expected)
        (case,) = compare_runs_grouped_by_input_scale([run], bound, self._judging)
        worst = max(case.outputs, key=lambda o: (not o.ok, o.relative))
        return {"agrees": case.ok, "relative": float(worst.relative), "reason": worst.reason}


@contextmanager
def _prepare_model_and_inputs(
    model: Path, compiled: CompiledModel, inputs: Path | None, ranges: InputRanges, cut: Cut, work: Compilation
) -> Iterator[BenchmarkModel]:
    """Context manager: yield the model and inputs for all implementations, with the first contents
    of state among them.

    Of an ONNX model this is the compiled part with the compiled shapes, written to a temporary file
    if it differs.
    """
    session = compiled.session()
    types, arrays = session_input_types(session), read_or_draw_session_inputs(session, inputs, ranges)
    if work.state:
        types = input_types(work.module)
        arrays = {**arrays, **ReferenceState.at_first_run(work.state, types).arrays}
    with temporary_folder("aotc-bench-") as scratch:
        path = model
        if not (is_exported_program_or_pt2_path(model) or is_tflite_path(model)):
            proto = cut_model_at_tensors(load_model(model), cut)
            pinned = pin_static_input_shapes(proto, types)
            if cut or pinned.graph.input != proto.graph.input:
                path = Path(scratch) / "pinned.onnx"
                onnx.save(pinned, path)
        yield BenchmarkModel(path, arrays, Path(scratch))


@dataclass(frozen=True)
class _Bench:
    """State of a benchmark: the compiled model, its inputs and reference, the rivals and the
    limits.
    """

    compiled: CompiledModel
    entrant: BenchmarkModel
    judge: Judge
    against: tuple[str, ...]
    repeat: int
    seconds: float
    progress: Progress

    def benchmark_all_with_thread_count(self, thread_count: int) -> dict[str, Any]:
        """Measure all implementations with one number of threads; return their figures and the
        skipped ones.
        """
        library, skipped = find_library(self.compiled.path), []
        contestants = [
            load_and_time_first_run(
                "aotc", thread_count, lambda: load_aotc_library(library, self.entrant.inputs, thread_count)
            )
        ]
        for name in self.against:
            self.progress(f"preparing {name}, {format_thread_count(thread_count)}")
            try:
                contestants.append(load_rival(name, self.entrant, thread_count))
            except AotcError as error:
                skipped.append({"name": name, "reason": error.diagnostics[0].message})
        self.progress(f"measuring, {format_thread_count(thread_count)}")
        times = time_contestants_in_turns(contestants, self.repeat, self.seconds)
        rows = [self._contestant_result_row(c, t, min(times[0])) for c, t in zip(contestants, times, strict=True)]
        right = [row for row in rows[1:] if row["agrees"]]
        best = min(right, key=lambda row: float(row["milliseconds"]["min"]), default={"name": None, "ratio": None})
        rival_summary = {"fastest_rival": best["name"], "ratio": best["ratio"]}
        return {"threads": thread_count, "contestants": rows, "skipped": skipped, **rival_summary}

    def _contestant_result_row(
        self, contestant: Contestant, times: list[float], aotc_milliseconds: float
    ) -> dict[str, Any]:
        is_own = contestant.name == "aotc"
        verdict = self.judge(
            contestant, self.compiled.metadata["error_bound"] if is_own else self.judge.allowed_rival_relative_error
        )
        head = {key: getattr(contestant, key) for key in ("name", "version", "threads", "memory")}
        figures = {**min_and_median(times), "all": times, "load": contestant.load, "first": contestant.first}
        return head | {"milliseconds": figures, "ratio": None if is_own else aotc_milliseconds / min(times)} | verdict


def _output_names_of_model(compiled: CompiledModel, work: Compilation) -> Sequence[str]:
    """Return the names of a model's outputs, in order, with those that the compiled model keeps."""
    names = [tensor["name"] for tensor in compiled.metadata["outputs"]]
    return output_names_or_default(work.module, len(names) + len(work.state)) if work.state else names


def _summarize_verdict(judge: Judge, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize the comparisons of aotc's outputs (the first contestant of each round) with the
    reference.
    """
    right = all(turn["contestants"][0]["agrees"] for turn in rounds)
    verdict = "differ" if not right else "inconclusive" if judge.inconclusive else "agree"
    return {"verdict": verdict, "inconclusive": list(judge.inconclusive), "warnings": list(judge.warnings)}


def _require_format_readable_by_rivals(path: Path, cut: Cut) -> None:
    """Raise AotcError (code "rival") for a file of Relay text, which no other implementation can
    read; code "cut" for a TFLite model that is cut, which interpreters run as a whole.
    """
    require_tflite_model_is_not_cut(path, cut)
    if is_relay_text_path(path):
        raise AotcError(
            "rival",
            f"{path} is Relay text, which the other implementations cannot read",
            hint=text_for_command_or_python(
                command="`aotc run --repeat`", python="aotc.measuring.run_library.run_library"
            )
            + " measures it",
        )


@show_compile_options_in_signature
def benchmark_model(
    model: str | Path,
    *,
    against: Sequence[str] = tuple(RIVAL_LOADERS),
    threads: Sequence[int] = (1,),
    repeat: int = 100,
    seconds: float = 20.0,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_INPUT_RANGES,
    **options: Any,
) -> dict[str, Any]:
    """Compile a model and benchmark it against other implementations; return all figures, ready for
    JSON.

    model     path of an ONNX, PyTorch (.pt2) or TFLite model
    against   keys of RIVAL_LOADERS; implementations that are missing or fail are listed with the reason
    threads   numbers of threads, with one round of measurements for each
    repeat    turns of each implementation in a round; fewer if `seconds` are over
    seconds   time limit of a round
    inputs    an .npz file; None: random inputs
    input_ranges   smallest and largest value of random inputs, by name
    options   as for `aotc.compile`

    Times are wall-clock times in milliseconds: minimum, median and all times of the turns, the time
    to load the model ("load") and to run it first ("first"); "memory" is the growth of the process
    in bytes during both.  A ratio is aotc's minimum divided by the other implementation's, so below
    1 aotc is faster.  Implementations with wrong outputs are measured, but not counted as fastest.

    "verdict" compares aotc's outputs with the reference, as `aotc verify` does: "agree", "differ",
    or "inconclusive" if an output of the reference is all NaN, infinite or empty.  "inconclusive"
    lists these outputs, "warnings" lists constant ones.
    """
    require_known_rivals(against)
    chosen = CompileOptions.from_keywords(options, benchmark_model)
    require_cpu_can_run(chosen.machine)
    path = Path(model)
    _require_format_readable_by_rivals(path, chosen.graph_cut)
    start = time.perf_counter()
    work = chosen.start_compilation(path, toolchain=chosen.toolchain_factory())
    compiled = work.emit_project_and_build_library(chosen.output_folder)
    build_seconds, metadata = time.perf_counter() - start, compiled.metadata
    with _prepare_model_and_inputs(path, compiled, inputs, input_ranges, chosen.graph_cut, work) as entrant:
        judge = Judge(entrant, _output_names_of_model(compiled, work), work.state)
        bench = _Bench(compiled, entrant, judge, tuple(dict.fromkeys(against)), repeat, seconds, chosen.progress)
        rounds = [bench.benchmark_all_with_thread_count(n) for n in threads]
    compiler, python = compiler_version_line(find_toolchain(chosen.cc)), platform.python_version()
    return {
        "model": str(model),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": {"aotc": VERSION, "compiler": compiler, "python": python},
        "target": metadata["target"],
        "reference": judge.reference,
        **_summarize_verdict(judge, rounds),
        "library_bytes": compiled.library.stat().st_size if compiled.library else 0,
        "weights_bytes": metadata["weights_bytes"],
        "memory": {k: metadata["memory"][k] for k in ("peak", "lower_bound")},
        "build_seconds": build_seconds,
        "rounds": rounds,
    }
