# SPDX-License-Identifier: Apache-2.0
"""Profile a compiled model: the time of each step of its schedule, compared with the machine's
roofline.

result = profile("build/net", repeat=50)
result["kernels"][0]               # the most expensive: milliseconds, calls, gflops, nodes of the model, ...

The model calls a function that reads the clock between steps; the time of this call is subtracted.
The roofline gives a lower bound on the time of a step: its operations at the machine's peak rate,
or its bytes at the bandwidth of reading as much memory as a run touches.  Both rates are measured
between the runs, by the same clock.
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
#: Milliseconds from which a run is timed in CPU time: the scheduler interrupts longer runs.
LONG_RUN: Final = 1.0
#: Seconds for which each rate of the machine is measured between two runs.
SAMPLE_SECONDS: Final = 0.005
#: Bytes larger than any cache, beyond which the read bandwidth no longer changes.
MOST_READ: Final = 256 << 20
#: Valid range of the operations or bytes of a step.
_COUNT: Final = range(1 << 64)
_STEP: Final = {"kernel": str, "macs": _COUNT, "bytes_read": _COUNT, "bytes_written": _COUNT, "nodes": [str]}
#: Schema of the entries of a project's metadata that profiling needs.
_PROJECT: Final = {"target": str, "steps": [_STEP], "isas": [{"name": str, "steps": [str]}]}


def _has_form(value: object, form: object) -> bool:
    """Return True if JSON data matches a schema: a type, a range of integers, [schema of items], or
    {key: schema}.
    """
    match form:
        case dict():
            return isinstance(value, dict) and all(_has_form(value.get(key), part) for key, part in form.items())
        case range():
            # a range also matches the sequence pattern below
            return type(value) is int and value in form
        case [item]:
            return isinstance(value, list) and all(_has_form(part, item) for part in value)
        case _:
            return type(value) is form


def _metadata(library: Path) -> Mapping[str, Any]:
    """Return the metadata of the project that contains a library.

    Raise AotcError (code "profile") if they are missing or lack the target and the steps.
    """
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
    """Return the steps of a project's schedule with the names of the kernels for one instruction
    set.
    """
    versions = {version["name"]: version["steps"] for version in metadata["isas"]}
    rows = metadata["steps"]
    names = versions.get(isa, [row["kernel"] for row in rows])
    return [{**row, "kernel": name} for row, name in zip(rows, names, strict=True)]


def _step_times(binding: Binding, probe: Probe, steps: int) -> Array:
    """Run the model once; return the time of each step in nanoseconds, shape (steps,)."""
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
    """Measure a CPU: times of steps in milliseconds, shape (repeat, steps), peak operations and
    bytes per second of a core.

    The peak rates are measured between the runs, so that a slowdown of the machine affects both.
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
    """Find the undisturbed runs: those that took at most `QUIET` times as long as the fastest one.

    totals    time of each run, shape (runs,)

    Returns a boolean array of shape (runs,).
    """
    return np.asarray(totals <= QUIET * totals.min(initial=np.inf))


def _rated(row: dict[str, Any], peak: float, bandwidth: float) -> dict[str, Any]:
    """Add to a step or kernel its rates, and the ratios of its lower time bounds (peak, roofline)
    to its time.
    """
    seconds, operations = max(row["milliseconds"], 1e-6) / 1e3, 2 * row["macs"]
    return row | {
        "gflops": 1e-9 * operations / seconds,
        "gbytes_per_s": 1e-9 * row["bytes"] / seconds,
        "of_peak": operations / peak / seconds,
        "of_roofline": max(operations / peak, row["bytes"] / bandwidth) / seconds,
    }


def _step_rows(rows: Sequence[Mapping[str, Any]], milliseconds: Sequence[float]) -> list[dict[str, Any]]:
    """Return the kernel, time, multiply-accumulates, bytes and model nodes of each step."""
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
    """Sum the times, operations and bytes of steps by kernel; the most expensive kernel comes
    first.
    """
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
    """Return the times of all steps in milliseconds, shape (repeat, steps), and the peak operations
    and bytes per second.
    """
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
    """Profile a compiled project: times of its steps and kernels, ready for JSON.

    library   directory of a built project, or the library in it
    inputs    an .npz file; None: random inputs with a fixed seed
    input_ranges   smallest and largest value of random inputs, by name
    repeat    number of profiled runs, and of plain runs.  The time of a step is its median over the profiled
              runs, without those slower than `QUIET` times the fastest one, which other programs disturbed
    cc        C compiler for the measuring program
    isa, device, check   as for `load`

    Entries of the result: "milliseconds" has the minimum and median of the plain runs, and the sum
    of the times of all steps ("watched"), which are CPU times if a run takes `LONG_RUN`
    milliseconds or more; "disturbed" is the number of runs left out; "machine" has the peak rate
    and bandwidth, measured between the runs, or as stated by the driver of a GPU.  "steps" follow
    the schedule; "kernels" are sums over the steps of each kernel, the most expensive first.  Each
    has its time, multiply-accumulates, bytes of all arguments, the resulting rates, their ratios to
    the peak and to the roofline, and the names of the model's nodes.  A ratio can exceed 1, because
    Winograd convolutions count the multiplications of the definition, and activations may be in a
    faster cache.
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
