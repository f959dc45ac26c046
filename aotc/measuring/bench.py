# SPDX-License-Identifier: Apache-2.0
"""A compiled model measured beside other implementations, in one run.

result = bench("net.onnx", against=("onnxruntime", "ncnn"), threads=(1, 2), repeat=100)
result["rounds"][0]["contestants"][0]["milliseconds"]["min"]

The contestants take turns, so that a machine that is slow for a while is slow for all.  A turn is one untimed run,
which brings the model's memory back into the caches, and timed runs for a moment.  With several threads each turn
begins with a pause, in which workers that still wait actively for the one before come to rest.  Buffers are bound:
nothing is allocated for inputs or outputs.
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

#: Timed runs of one turn: one at least.
TURN_SECONDS: Final = 0.02
#: Before a turn with several threads: OpenMP's workers may spin for 20 ms after a run.
PAUSE_SECONDS: Final = 0.03
#: Turns that no limit of time takes away.
LEAST_TURNS: Final = 3
#: What a rival's error may be on quantized models: a value between two steps may be rounded to either.
QUANTIZED_BOUND: Final = 5e-2
_QUANTIZED: Final = re.compile(r"Quantize|QLinear|Integer$")


def _turn(contestant: Contestant) -> list[float]:
    """Milliseconds of the timed runs of one turn."""
    if contestant.threads > 1:
        time.sleep(PAUSE_SECONDS)
    contestant.run()
    return [milliseconds(contestant.run) for _ in turns(1, TURN_SECONDS)]


def take_turns(contestants: Sequence[Contestant], repeat: int, seconds: float) -> list[list[float]]:
    """Milliseconds of each contestant's timed runs in `repeat` turns, or as many as `seconds` allow."""
    times: list[list[float]] = [[] for _ in contestants]
    for _ in turns(LEAST_TURNS, seconds, repeat):
        for contestant, record in zip(contestants, times, strict=True):
            record.extend(_turn(contestant))
    return times


def machine() -> dict[str, Any]:
    """What the figures depend on besides the model."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu_model(), "processors": os.cpu_count(), "system": platform.system(), "load": load}


class Judge:
    """Whether a contestant's outputs agree with an independent implementation, as in `aotc verify`."""

    def __init__(self, entrant: Entrant, outputs: Sequence[str]) -> None:
        self._inputs, self._model = entrant.inputs, loaded(entrant.path)
        found = reference_of(self._model, {}, outputs)
        self.reference, self._expected = found.name, found.run(entrant.inputs)
        self.inconclusive, self.warnings = worth([self._expected])
        # slow, and one result for all contestants
        exact = cache(lambda: found.exact(entrant.inputs))
        self._judging = Reference(found.name, found.run, lambda _: exact())

    @property
    def bound(self) -> float:
        """What the error of a rival may be: it may use any algorithm."""
        nodes = self._model.graph.node if isinstance(self._model, onnx.ModelProto) else ()
        return QUANTIZED_BOUND if any(_QUANTIZED.search(n.op_type) for n in nodes) else APPROXIMATE_BOUND

    def __call__(self, contestant: Contestant, bound: float) -> dict[str, Any]:
        """{"agrees": bool, "relative": largest error relative to the standard deviation, "reason": text}."""
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
    """What the contestants are given; of ONNX models the part, and the shapes, that were compiled."""
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
    """One model, compiled, and everything to measure it with."""

    compiled: CompiledModel
    entrant: Entrant
    judge: Judge
    against: tuple[str, ...]
    repeat: int
    seconds: float
    progress: Progress

    def round(self, threads: int) -> dict[str, Any]:
        """The figures for one number of threads."""
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
    """What the comparison of our outputs, those of the first contestant of each round, says in all."""
    right = all(turn["contestants"][0]["agrees"] for turn in rounds)
    verdict = "differ" if not right else "inconclusive" if judge.inconclusive else "agree"
    return {"verdict": verdict, "inconclusive": list(judge.inconclusive), "warnings": list(judge.warnings)}


def _require_rivals_read(path: Path) -> None:
    """AotcError (code "rival") for Relay text, which no other implementation can read."""
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
    """Compile a model and measure it beside other implementations; everything that was found, ready for JSON.

    model     a path of ONNX or PyTorch (.pt2)
    against   keys of RIVALS; those that are missing or fail on the model are named with the reason
    threads   numbers of threads, a round for each
    repeat    turns of each contestant in a round, fewer where `seconds` are over before
    inputs    an .npz file; random inputs for None
    input_ranges   the least and the greatest value of random inputs, by name
    options   as for `aotc.compile`

    Times are wall clock in milliseconds: minimum, median and all of the turns, the time until the contestant was ready
    ("load") and that of its first run, before anything else; "memory" is by how many bytes the process grew in the
    meantime.  Ratios are our minimum over theirs, so that below 1 we are faster.
    Rivals with wrong outputs are measured, but are not the fastest.

    "verdict" is that of our outputs, as in `aotc verify`: "agree", "differ", or "inconclusive" where an output of the
    reference is NaN, infinite or empty throughout; sentences on such outputs are "inconclusive", those on constant ones
    "warnings".
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
