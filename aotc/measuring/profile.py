# SPDX-License-Identifier: Apache-2.0
"""Where the time of a compiled model goes: each step of the real schedule, in the real arena.

result = profile("build/net", repeat=50)
result["kernels"][0]               # the most expensive: milliseconds, calls, gflops, nodes of the model, ...

Between two steps the model calls a function that reads the clock; the time that this takes is subtracted.  The roofline
says how good a time is: no step can be faster than its operations at the machine's peak, or its bytes at the bandwidth
with which as much memory as a run touches can be read.  Both are measured between the runs, by the same clock.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from aotc.checking.input_generation import NO_RANGES, InputRanges, session_inputs
from aotc.driver.toolchain import find_toolchain, resolve_target
from aotc.ir import AotcError, Array
from aotc.measuring.gpu_timing import DeviceClock
from aotc.measuring.machine_peak import Probe
from aotc.measuring.timing import milliseconds, summary, turns
from aotc.runtime.library import MARKER, find_library, read_metadata
from aotc.runtime.session import Binding, Session, load
from aotc.tir import Target

#: Ratio to the fastest run up to which a run counts as undisturbed.
QUIET: Final = 1.25
#: Milliseconds from which on a run is timed by the processor time of its thread: the scheduler interrupts it.
LONG_RUN: Final = 1.0
#: Seconds for which each rate of the machine is measured between two runs.
SAMPLE_SECONDS: Final = 0.005
#: Bytes that no cache holds: reading more is not slower.
MOST_READ: Final = 256 << 20
#: Operations, or bytes, of a step: no step has more.
_COUNT: Final = range(1 << 64)
_STEP: Final = {"kernel": str, "macs": _COUNT, "bytes_read": _COUNT, "bytes_written": _COUNT, "nodes": [str]}
#: What the metadata say of a project, as far as it is needed here.
_PROJECT: Final = {"target": str, "steps": [_STEP], "isas": [{"name": str, "steps": [str]}]}


def _has_form(value: object, form: object) -> bool:
    """Whether JSON data is of a form: a type, a range of integers, [the form of each item], or {key: its form}."""
    match form:
        case dict():
            return isinstance(value, dict) and all(_has_form(value.get(key), part) for key, part in form.items())
        case range():
            # which is a sequence, too
            return type(value) is int and value in form
        case [item]:
            return isinstance(value, list) and all(_has_form(part, item) for part in value)
        case _:
            return type(value) is form


def _metadata(library: Path) -> Mapping[str, Any]:
    """What the compiler said of a library in a project."""
    project = library.resolve().parent.parent
    found = read_metadata(project)
    if not found:
        text = f"{library} is not in an emitted project: {MARKER}, which tells the steps, is missing"
        raise AotcError("profile", text, hint="give the directory that `aotc compile -o` wrote")
    found = {"isas": [], **found}
    sound = _has_form(found, _PROJECT) and all(len(one["steps"]) == len(found["steps"]) for one in found["isas"])
    if not sound:
        raise _stale(f"{project / MARKER} does not tell the target and the steps as aotc writes them")
    return found


def _stale(text: str) -> AotcError:
    return AotcError("profile", text, hint="compile the model again")


def _rows(metadata: Mapping[str, Any], isa: str) -> list[Mapping[str, Any]]:
    """The steps, with the kernels that run on an instruction set."""
    versions = {version["name"]: version["steps"] for version in metadata["isas"]}
    rows = metadata["steps"]
    names = versions.get(isa, [row["kernel"] for row in rows])
    return [{**row, "kernel": name} for row, name in zip(rows, names, strict=True)]


def _step_times(binding: Binding, probe: Probe, steps: int) -> Array:
    """Nanoseconds of each step in a run: (steps,)."""
    marks = np.zeros(steps + 2, np.int64)
    marks[0] = steps
    binding.run_watched(probe.step_function, marks.ctypes.data)
    if marks[0] != steps:
        raise _stale(f"the library has more steps than the {steps} in its project's {MARKER}")
    if marks[-1] == 0:
        older = "it was compiled by an older aotc, or with -DAOTC_NO_STEPS"
        raise _stale(f"the library does not report its steps: {older}")
    return np.diff(marks[1:])


def _measured_here(binding: Binding, probe: Probe, steps: int, repeat: int, touched: int) -> tuple[Array, float, float]:
    """Milliseconds of each step in each run, (repeat, steps); operations and bytes per second that one core can do.

    The rates of the core are measured between the runs: what slows down the one slows down the others.
    """
    measures = probe.arithmetic(), probe.reading(min(touched, MOST_READ))
    overhead = probe.clock_nanoseconds()
    times, rates = np.empty((repeat, steps)), []
    for k in range(repeat):
        times[k] = np.maximum(_step_times(binding, probe, steps) - overhead, 1) / 1e6
        rates.append([max(measure() for _ in turns(3, SAMPLE_SECONDS)) for measure in measures])
    peak, bandwidth = np.max(rates, axis=0).tolist()
    return times, peak, bandwidth


def quiet_runs(totals: Array) -> Array:
    """Find the runs that nothing disturbed: those that took at most `QUIET` times as long as the fastest.

    totals    the time of each run, (runs,)

    Returns an array of truth values, (runs,).
    """
    return np.asarray(totals <= QUIET * totals.min(initial=np.inf))


def _rated(row: dict[str, Any], peak: float, bandwidth: float) -> dict[str, Any]:
    """A step or kernel with its speeds, and the part of its time that the roofline says is needed."""
    seconds, operations = max(row["milliseconds"], 1e-6) / 1e3, 2 * row["macs"]
    return row | {
        "gflops": 1e-9 * operations / seconds,
        "gbytes_per_s": 1e-9 * row["bytes"] / seconds,
        "of_peak": operations / peak / seconds,
        "of_roofline": max(operations / peak, row["bytes"] / bandwidth) / seconds,
    }


def _step_rows(rows: Sequence[Mapping[str, Any]], milliseconds: Sequence[float]) -> list[dict[str, Any]]:
    """The kernel, time, multiply-accumulates, bytes and nodes of each step."""
    return [
        {
            "kernel": row["kernel"],
            "milliseconds": time,
            "macs": row["macs"],
            "bytes": row["bytes_read"] + row["bytes_written"],
            "nodes": row["nodes"],
        }
        for row, time in zip(rows, milliseconds, strict=True)
    ]


def _by_kernel(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The steps summed for each kernel, the most expensive first."""
    rows: dict[str, dict[str, Any]] = {}
    for step in steps:
        empty = {"kernel": step["kernel"], "calls": 0, "milliseconds": 0.0, "macs": 0, "bytes": 0, "nodes": []}
        row = rows.setdefault(step["kernel"], empty)
        row["calls"] += 1
        for key in ("milliseconds", "macs", "bytes", "nodes"):
            row[key] = row[key] + step[key]
    return sorted(rows.values(), key=lambda row: -row["milliseconds"])


def _measured(
    session: Session, binding: Binding, steps: int, repeat: int, touched: int, target: Target, cc: str | None
) -> tuple[Array, float, float]:
    """Times of steps; operations and bytes in a second that the machine could do."""
    if session.device is None:
        probe = Probe(target, find_toolchain(cc), milliseconds(binding.run) >= LONG_RUN)
        return _measured_here(binding, probe, steps, repeat, touched)
    if session.device.steps != steps:
        raise _stale(f"the library has {session.device.steps} steps, not the {steps} in its project's {MARKER}")
    clock = DeviceClock(session.device)
    times = np.array([clock.step_times(binding) for _ in range(repeat)]).reshape(repeat, steps)
    return times, clock.flops(), clock.bandwidth()


def profile(
    library: str | Path,
    *,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_RANGES,
    repeat: int = 20,
    cc: str | None = None,
    isa: str | None = None,
    device: int | None = None,
    check: bool = False,
) -> dict[str, Any]:
    """Times of a project's steps and kernels, ready for JSON.

    library   the directory of an emitted and built project, or the library in it
    inputs    an .npz file; seeded random inputs for None
    input_ranges   the least and the greatest value of random inputs, by name
    repeat    runs with the clock and runs without it; a step's time is its median over the runs with the clock, without
              those that took more than `QUIET` times as long as the fastest: other programs disturbed them
    cc        the C compiler for the measuring program
    isa, device, check   as for `load`

    In the result, "milliseconds" has the minimum and median of plain runs, and the sum of the times of the steps, which
    are processor time in runs of `LONG_RUN` milliseconds or more; "disturbed" the number of runs that were left out;
    "machine" the peak and bandwidth measured between the runs, those that the driver states for a GPU.  "steps" follow
    the schedule, "kernels" are sums over the steps of one kernel, the most expensive first.  Each has its time,
    multiply-accumulates and bytes (of all its arguments), the rates that follow, the ratio of these to the peak and to
    the roofline, and the names of the model's nodes.  Winograd convolutions count the multiplications of the
    definition, and activations may lie in a cache nearer to the core: then a ratio can be above 1.
    """
    path = find_library(Path(library))
    metadata = _metadata(path)
    session = load(path, isa=isa, device=device, check=check)
    rows = _rows(metadata, session.isa)
    binding = session.bind(session_inputs(session, inputs, input_ranges))
    target = resolve_target(session.isa or metadata["target"])
    binding.run()
    plain = [milliseconds(binding.run) for _ in range(repeat)]
    touched = session.workspace_bytes + session.weights_bytes
    touched += sum(a.nbytes for a in (*binding.inputs.values(), *binding.outputs.values()))
    times, peak, bandwidth = _measured(session, binding, len(rows), repeat, touched, target, cc)
    quiet = quiet_runs(times.sum(axis=1))
    medians = np.median(times[quiet], axis=0).tolist()
    steps = _step_rows(rows, medians)
    return {
        "model": session.name,
        "target": target.name,
        "repeat": repeat,
        "disturbed": int(repeat - quiet.sum()),
        "milliseconds": {**summary(plain), "watched": sum(medians)},
        "machine": {
            "peak_gflops": peak / 1e9,
            "bandwidth_gbytes_per_s": bandwidth / 1e9,
            "touched_bytes": touched,
            "measured": session.device is None,
        },
        "steps": [_rated(step, peak, bandwidth) for step in steps],
        "kernels": [_rated(kernel, peak, bandwidth) for kernel in _by_kernel(steps)],
    }
