# SPDX-License-Identifier: Apache-2.0
"""Benchmark a compiled model against other implementations in one process.

result = bench("net.onnx", against=("onnxruntime", "ncnn"), threads=(1, 2), repeat=100)
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
from aotc_codegen.c.metadata import APPROXIMATE_BOUND

from aotc.checking.input_generation import NO_RANGES, InputRanges, InputSet, session_inputs, session_types
from aotc.checking.reference import Reference
from aotc.checking.verify import Run, judged, loaded, reference_of, with_static_inputs, worth
from aotc.driver.compile import CompileOptions
from aotc.driver.import_model import Cut, is_exported_program, is_relay_text, is_tflite, part_of, require_whole_tflite
from aotc.driver.pipeline import CompiledModel, Progress
from aotc.driver.toolchain import find_toolchain, require_cpu, version_of
from aotc.driver.tuning_store import cpu_model
from aotc.ir import AotcError
from aotc.ir.atomic_write import temporary_folder
from aotc.ir.version import VERSION
from aotc.measuring.competitors import RIVALS, Contestant, Entrant, ours, prepare, require_rivals, started
from aotc.measuring.timing import milliseconds, summary, turns
from aotc.relay.frontend.onnx import load_model
from aotc.runtime.library import find_library

#: Duration in seconds of the timed runs of one turn, which has at least one run.
TURN_SECONDS: Final = 0.02
#: Pause before a turn with several threads: OpenMP's workers may spin for 20 ms after a run.
PAUSE_SECONDS: Final = 0.03
#: Smallest number of turns, whatever the time limit.
LEAST_TURNS: Final = 3
#: Largest relative error of a rival on quantized models, where values may be rounded either way.
QUANTIZED_BOUND: Final = 5e-2
_QUANTIZED: Final = re.compile(r"Quantize|QLinear|Integer$")


def _turn(contestant: Contestant) -> list[float]:
    """Benchmark one implementation for one turn; return the times of its timed runs in
    milliseconds.
    """
    if contestant.threads > 1:
        time.sleep(PAUSE_SECONDS)
    contestant.run()
    return [milliseconds(contestant.run) for _ in turns(1, TURN_SECONDS)]


def take_turns(contestants: Sequence[Contestant], repeat: int, seconds: float) -> list[list[float]]:
    """Measure implementations alternately for `repeat` turns, or fewer when `seconds` are over.

    Return the times of each one's timed runs in milliseconds.  At least `LEAST_TURNS` turns are
    measured.
    """
    times: list[list[float]] = [[] for _ in contestants]
    for _ in turns(LEAST_TURNS, seconds, repeat):
        for contestant, record in zip(contestants, times, strict=True):
            record.extend(_turn(contestant))
    return times


def machine() -> dict[str, Any]:
    """Describe the machine: CPU, number of processors, operating system and load."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu_model(), "processors": os.cpu_count(), "system": platform.system(), "load": load}


class Judge:
    """Compares the outputs of implementations with an independent reference, as `aotc verify` does."""

    def __init__(self, entrant: Entrant, outputs: Sequence[str]) -> None:
        self._inputs, self._model = entrant.inputs, loaded(entrant.path)
        found = reference_of(self._model, {}, outputs)
        self.reference, self._expected = found.name, found.run(entrant.inputs)
        self.inconclusive, self.warnings = worth([self._expected])
        # the float64 reference is slow and equal for all contestants: compute it once
        exact = cache(lambda: found.exact(entrant.inputs))
        self._judging = Reference(found.name, found.run, lambda _: exact())

    @property
    def bound(self) -> float:
        """Largest allowed error of another implementation, which may use any algorithm and
        rounding.
        """
        nodes = self._model.graph.node if isinstance(self._model, onnx.ModelProto) else ()
        return QUANTIZED_BOUND if any(_QUANTIZED.search(n.op_type) for n in nodes) else APPROXIMATE_BOUND

    def __call__(self, contestant: Contestant, bound: float) -> dict[str, Any]:
        """Compare the outputs of an implementation with the reference.

        Return {"agrees": bool, "relative": largest error relative to the standard deviation,
        "reason": text}.
        """
        made = contestant.outputs()
        if len(made) != len(self._expected):
            return {"agrees": False, "relative": None, "reason": f"gives {len(made)} outputs"}
        # some implementations leave out dimensions of extent 1
        actual = {
            n: a.reshape(e.shape) if a.size == e.size else a
            for a, (n, e) in zip(made, self._expected.items(), strict=True)
        }
        run = Run(InputSet("", self._inputs), self._inputs, actual, self._expected)
        (case,) = judged([run], bound, self._judging)
        worst = max(case.outputs, key=lambda o: (not o.ok, o.relative))
        return {"agrees": case.ok, "relative": float(worst.relative), "reason": worst.reason}


@contextmanager
def _entrant(
    model: Path, compiled: CompiledModel, inputs: Path | None, ranges: InputRanges, cut: Cut
) -> Iterator[Entrant]:
    """Context manager: yield the model and inputs for all implementations.

    Of an ONNX model this is the compiled part with the compiled shapes, written to a temporary file
    if it differs.
    """
    session = compiled.session()
    types, arrays = session_types(session), session_inputs(session, inputs, ranges)
    with temporary_folder("aotc-bench-") as scratch:
        path = model
        if not (is_exported_program(model) or is_tflite(model)):
            proto = part_of(load_model(model), cut)
            pinned = with_static_inputs(proto, types)
            if cut or pinned.graph.input != proto.graph.input:
                path = Path(scratch) / "pinned.onnx"
                onnx.save(pinned, path)
        yield Entrant(path, arrays, Path(scratch))


@dataclass(frozen=True)
class _Bench:
    """State of a benchmark: the compiled model, its inputs and reference, the rivals and the
    limits.
    """

    compiled: CompiledModel
    entrant: Entrant
    judge: Judge
    against: tuple[str, ...]
    repeat: int
    seconds: float
    progress: Progress

    def round(self, threads: int) -> dict[str, Any]:
        """Measure all implementations with one number of threads; return their figures and the
        skipped ones.
        """
        library, skipped = find_library(self.compiled.path), []
        contestants = [started("aotc", threads, lambda: ours(library, self.entrant.inputs, threads))]
        for name in self.against:
            self.progress(f"preparing {name}, {threads} threads")
            try:
                contestants.append(prepare(name, self.entrant, threads))
            except AotcError as error:
                skipped.append({"name": name, "reason": error.diagnostics[0].message})
        self.progress(f"measuring, {threads} threads")
        times = take_turns(contestants, self.repeat, self.seconds)
        rows = [self._row(c, t, min(times[0])) for c, t in zip(contestants, times, strict=True)]
        right = [row for row in rows[1:] if row["agrees"]]
        best = min(right, key=lambda row: float(row["milliseconds"]["min"]), default={"name": None, "ratio": None})
        found = {"fastest_rival": best["name"], "ratio": best["ratio"]}
        return {"threads": threads, "contestants": rows, "skipped": skipped, **found}

    def _row(self, contestant: Contestant, times: list[float], own: float) -> dict[str, Any]:
        is_own = contestant.name == "aotc"
        verdict = self.judge(contestant, self.compiled.metadata["error_bound"] if is_own else self.judge.bound)
        head = {key: getattr(contestant, key) for key in ("name", "version", "threads", "memory")}
        figures = {**summary(times), "all": times, "load": contestant.load, "first": contestant.first}
        return head | {"milliseconds": figures, "ratio": None if is_own else own / min(times)} | verdict


def _verdict(judge: Judge, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize the comparisons of aotc's outputs (the first contestant of each round) with the
    reference.
    """
    right = all(turn["contestants"][0]["agrees"] for turn in rounds)
    verdict = "differ" if not right else "inconclusive" if judge.inconclusive else "agree"
    return {"verdict": verdict, "inconclusive": list(judge.inconclusive), "warnings": list(judge.warnings)}


def _require_rivals_read(path: Path) -> None:
    """Raise AotcError (code "rival") for a file of Relay text, which no other implementation can
    read.
    """
    if is_relay_text(path):
        raise AotcError(
            "rival",
            f"{path} is Relay text, which the other implementations cannot read",
            hint="`aotc run --repeat` measures it",
        )


def bench(
    model: str | Path,
    *,
    against: Sequence[str] = tuple(RIVALS),
    threads: Sequence[int] = (1,),
    repeat: int = 100,
    seconds: float = 20.0,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_RANGES,
    **options: Any,
) -> dict[str, Any]:
    """Compile a model and benchmark it against other implementations; return all figures, ready for
    JSON.

    model     path of an ONNX, PyTorch (.pt2) or TFLite model
    against   keys of RIVALS; implementations that are missing or fail are listed with the reason
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
    require_rivals(against)
    chosen = CompileOptions(**options)
    require_cpu(chosen.machine)
    path = Path(model)
    require_whole_tflite(path, chosen.cut)
    _require_rivals_read(path)
    start = time.perf_counter()
    compiled = chosen.compiled(path)
    build_seconds, metadata = time.perf_counter() - start, compiled.metadata
    with _entrant(path, compiled, inputs, input_ranges, chosen.cut) as entrant:
        judge = Judge(entrant, [tensor["name"] for tensor in metadata["outputs"]])
        work = _Bench(compiled, entrant, judge, tuple(dict.fromkeys(against)), repeat, seconds, chosen.progress)
        rounds = [work.round(n) for n in threads]
    compiler, python = version_of(find_toolchain(chosen.cc)), platform.python_version()
    return {
        "model": str(model),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"aotc": VERSION, "compiler": compiler, "python": python},
        "target": metadata["target"],
        "reference": judge.reference,
        **_verdict(judge, rounds),
        "library_bytes": compiled.library.stat().st_size if compiled.library else 0,
        "weights_bytes": metadata["weights_bytes"],
        "memory": {k: metadata["memory"][k] for k in ("peak", "lower_bound")},
        "build_seconds": build_seconds,
        "rounds": rounds,
    }
