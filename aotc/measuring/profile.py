# SPDX-License-Identifier: Apache-2.0
"""Profile a compiled model: the time of each step of its schedule, compared with the machine's
roofline.

result = profile_library("build/net", repeat=50)
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

from aotc.checking.input_generation import NO_INPUT_RANGES, InputRanges, read_or_draw_session_inputs
from aotc.driver.toolchain import find_toolchain, resolve_target
from aotc.ir import AotcError, Array
from aotc.ir.dimension_formulas import formula_of_name
from aotc.measuring.gpu_timing import DeviceClock
from aotc.measuring.machine_peak import Probe
from aotc.measuring.timing import milliseconds_per_call, min_and_median, repeat_for_seconds
from aotc.runtime.binding import Binding
from aotc.runtime.library import METADATA_FILE_NAME, find_library, read_project_metadata
from aotc.runtime.session import Session, load
from aotc.tir import Target

#: Ratio to the fastest run up to which a run counts as undisturbed.
MAX_QUIET_RUN_RATIO: Final = 1.25
#: Milliseconds from which a run is timed in CPU time: the scheduler interrupts longer runs.
MIN_CPU_TIMED_MILLISECONDS: Final = 1.0
#: Seconds for which each rate of the machine is measured between two runs.
RATE_SAMPLE_SECONDS: Final = 0.005
#: Bytes larger than any cache, beyond which the read bandwidth no longer changes.
MAX_READ_BYTES: Final = 256 << 20
#: Valid range of the operations or bytes of a step.
_COUNT_RANGE: Final = range(1 << 64)
_STEP_SCHEMA: Final = {
    "kernel": str,
    "macs": _COUNT_RANGE,
    "bytes_read": _COUNT_RANGE,
    "bytes_written": _COUNT_RANGE,
    "nodes": [str],
}
#: Schema of the entries of a project's metadata that profiling needs.
_PROJECT_SCHEMA: Final = {"target": str, "steps": [_STEP_SCHEMA], "isas": [{"name": str, "steps": [str]}]}


def _matches_schema(value: object, schema: object) -> bool:
    """Return True if JSON data matches a schema: a type, a range of integers, [schema of items], or
    {key: schema}.
    """
    match schema:
        case dict():
            return isinstance(value, dict) and all(
                _matches_schema(value.get(key), part) for key, part in schema.items()
            )
        case range():
            # a range also matches the sequence pattern below
            return type(value) is int and value in schema
        case [item]:
            return isinstance(value, list) and all(_matches_schema(part, item) for part in value)
        case _:
            return type(value) is schema


def _read_profiling_metadata(library: Path) -> Mapping[str, Any]:
    """Return the metadata of the project that contains a library.

    Raise AotcError (code "profile") if they are missing or lack the target and the steps.
    """
    project = library.resolve().parent.parent
    metadata = read_project_metadata(project)
    if not metadata:
        text = f"{library} is not in an emitted project: {METADATA_FILE_NAME}, which tells the steps, is missing"
        raise AotcError("profile", text, hint="give the directory of a compiled project")
    metadata = {"isas": [], **metadata}
    sound = _matches_schema(metadata, _PROJECT_SCHEMA) and all(
        len(isa["steps"]) == len(metadata["steps"]) for isa in metadata["isas"]
    )
    if not sound:
        raise _stale_project_error(
            f"{project / METADATA_FILE_NAME} does not tell the target and the steps as aotc writes them"
        )
    return metadata


def _stale_project_error(text: str) -> AotcError:
    return AotcError("profile", text, hint="compile the model again")


def _steps_with_kernels_of_isa(metadata: Mapping[str, Any], isa: str) -> list[Mapping[str, Any]]:
    """Return the steps of a project's schedule with the names of the kernels for one instruction
    set.
    """
    versions = {version["name"]: version["steps"] for version in metadata["isas"]}
    rows = metadata["steps"]
    names = versions.get(isa, [row["kernel"] for row in rows])
    return [{**row, "kernel": name} for row, name in zip(rows, names, strict=True)]


def _measure_step_nanoseconds_and_calls(binding: Binding, probe: Probe, step_count: int) -> tuple[Array, Array]:
    """Run the model once; return the time of each step in nanoseconds, and how often it ran, each of
    shape (steps,).

    Both are 0 for a step that does not run, in an arm of a branch that is not taken or in another tier
    of sizes. The time of a step in a loop is the sum over its iterations.
    """
    marks = np.zeros(2 * step_count + 4, np.int64)
    marks[0] = step_count
    binding.run_with_step_callback(probe.step_callback_address, marks.ctypes.data)
    if marks[0] != step_count:
        raise _stale_project_error(
            f"the library has more steps than the {step_count} in its project's {METADATA_FILE_NAME}"
        )
    if marks[1 + step_count] == 0:
        older = "it was compiled by an older aotc, or with -DAOTC_NO_STEPS"
        raise _stale_project_error(f"the library does not report its steps: {older}")
    return marks[1 : 1 + step_count], marks[4 + step_count :]


def _measure_steps_and_peaks_on_cpu(
    binding: Binding, probe: Probe, step_count: int, repeat: int, touched_bytes: int
) -> tuple[Array, Array, float, float]:
    """Measure a CPU: times of steps in milliseconds and how often they ran, each of shape (repeat, steps),
    peak operations and bytes per second of a core.

    The peak rates are measured between the runs, so that a slowdown of the machine affects both.
    """
    measures = probe.make_flops_measurement(), probe.make_read_bandwidth_measurement(min(touched_bytes, MAX_READ_BYTES))
    overhead = probe.clock_overhead_nanoseconds()
    times, calls, rates = np.empty((repeat, step_count)), np.empty((repeat, step_count), np.int64), []
    for k in range(repeat):
        nanoseconds, calls[k] = _measure_step_nanoseconds_and_calls(binding, probe, step_count)
        times[k] = np.maximum(nanoseconds - overhead * calls[k], calls[k] > 0) / 1e6
        rates.append([max(measure() for _ in repeat_for_seconds(3, RATE_SAMPLE_SECONDS)) for measure in measures])
    peak, bandwidth = np.max(rates, axis=0).tolist()
    return times, calls, peak, bandwidth


def undisturbed_run_mask(run_times: Array) -> Array:
    """Find the undisturbed runs: those that took at most `MAX_QUIET_RUN_RATIO` times as long as the
    fastest one.

    run_times    time of each run, shape (runs,)

    Returns a boolean array of shape (runs,).
    """
    return np.asarray(run_times <= MAX_QUIET_RUN_RATIO * run_times.min(initial=np.inf))


def _add_rates_and_roofline_share(row: dict[str, Any], peak: float, bandwidth: float) -> dict[str, Any]:
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


def _steps_with_counts_at_sizes(
    rows: Sequence[Mapping[str, Any]], symbols: Mapping[str, int]
) -> list[Mapping[str, Any]]:
    """Return the steps of a schedule with the operations and bytes of a run, given the values of the symbols in their
    formulas. Where a formula has a symbol without a value, the count is that of the largest sizes.
    """
    return [{**row, **_evaluated_formulas(row.get("by_size"), symbols)} for row in rows]


def _evaluated_formulas(formulas: object, symbols: Mapping[str, int]) -> dict[str, int]:
    """Return the values of the formulas of counts, by the name of the count, as far as they have values."""
    values: dict[str, int] = {}
    for name, text in formulas.items() if isinstance(formulas, dict) else ():
        value = formula_of_name(text).evaluate(symbols) if isinstance(text, str) else None
        if value is not None and value in _COUNT_RANGE and _STEP_SCHEMA.get(name) is _COUNT_RANGE:
            values[name] = value
    return values


def _time_and_cost_row_of_each_step_that_ran(
    rows: Sequence[Mapping[str, Any]], milliseconds: Sequence[float], calls: Array
) -> list[dict[str, Any]]:
    """Return the number in the schedule, kernel, calls, and time, multiply-accumulates and bytes of all its calls, and
    the model nodes of each step that ran.
    """
    return [
        {
            "step": number,
            "kernel": row["kernel"],
            "calls": count,
            "milliseconds": time,
            "macs": count * row["macs"],
            "bytes": count * (row["bytes_read"] + row["bytes_written"]),
            "nodes": row["nodes"],
        }
        for number, (row, time, count) in enumerate(zip(rows, milliseconds, map(int, calls), strict=True))
        if count
    ]


def _sum_steps_by_kernel(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the times, operations and bytes of steps by kernel; the most expensive kernel comes
    first.
    """
    rows: dict[str, dict[str, Any]] = {}
    for step in steps:
        empty = {"kernel": step["kernel"], "calls": 0, "milliseconds": 0.0, "macs": 0, "bytes": 0, "nodes": []}
        row = rows.setdefault(step["kernel"], empty)
        for key in ("calls", "milliseconds", "macs", "bytes", "nodes"):
            row[key] = row[key] + step[key]
    return sorted(rows.values(), key=lambda row: -row["milliseconds"])


def _measure_steps_and_peaks(
    session: Session, binding: Binding, step_count: int, repeat: int, touched_bytes: int, target: Target, cc: str | None
) -> tuple[Array, Array, float, float]:
    """Return the times of all steps in milliseconds and how often they ran, each of shape (repeat, steps),
    and the peak operations and bytes per second.
    """
    if session.device is None:
        probe = Probe(target, find_toolchain(cc), milliseconds_per_call(binding.run) >= MIN_CPU_TIMED_MILLISECONDS)
        return _measure_steps_and_peaks_on_cpu(binding, probe, step_count, repeat, touched_bytes)
    if session.device.steps != step_count:
        raise _stale_project_error(
            f"the library has {session.device.steps} steps, not the {step_count} in its project's {METADATA_FILE_NAME}"
        )
    clock = DeviceClock(session.device)
    times = np.array([clock.measure_step_milliseconds(binding) for _ in range(repeat)]).reshape(repeat, step_count)
    ran = ~np.isnan(times)
    return np.where(ran, times, 0), ran.astype(np.int64), clock.peak_flops_per_second(), clock.peak_bytes_per_second()


def _bytes_touched_by_run(session: Session, binding: Binding) -> int:
    """Return the bytes of memory that a run touches: workspace, weights, inputs and outputs."""
    touched = session.workspace_bytes + session.weights_bytes
    return touched + sum(a.nbytes for a in (*binding.inputs.values(), *binding.outputs.values()))


def profile_library(
    library: str | Path,
    *,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_INPUT_RANGES,
    repeat: int = 20,
    cc: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Profile a compiled project: times of its steps and kernels, ready for JSON.

    library   directory of a built project, or the library in it
    inputs    an .npz file; None: random inputs with a fixed seed
    input_ranges   smallest and largest value of random inputs, by name
    repeat    number of profiled runs, and of plain runs.  The time of a step is its median over the profiled
              runs, without those slower than `MAX_QUIET_RUN_RATIO` times the fastest one, which
              other programs disturbed
    cc        C compiler for the measuring program
    options   as for `load`: isa, device, check, weights

    Entries of the result: "milliseconds" has the minimum and median of the plain runs, and the sum
    of the times of all steps ("watched"), which are CPU times if a run takes
    `MIN_CPU_TIMED_MILLISECONDS` milliseconds or more; "disturbed" is the number of runs left out;
    "machine" has the peak rate and bandwidth, measured between the runs, or as stated by the driver
    of a GPU.  "steps" are those that ran, in the order of the schedule: not those of branches that were not
    taken, and of other tiers of sizes; "kernels" are sums over the steps of each kernel, the most expensive
    first.  Each has the number of its calls, their time, multiply-accumulates and bytes of all arguments at
    the sizes that run, the resulting rates, their ratios to the peak and to the roofline, and the names of
    the model's nodes.  A ratio can exceed 1, because Winograd convolutions count the multiplications of the
    definition, and activations may be in a faster cache.
    """
    metadata = _read_profiling_metadata(path := find_library(Path(library)))
    session = load(path, **options)
    rows = _steps_with_kernels_of_isa(metadata, session.isa)
    arrays = read_or_draw_session_inputs(session, inputs, input_ranges)
    binding = session.bind(arrays, state=session.new_state_or_none(measured=True))
    target = resolve_target(session.isa or metadata["target"])
    rows = _steps_with_counts_at_sizes(rows, binding.symbol_values)
    binding.run()
    plain = [milliseconds_per_call(binding.run) for _ in range(repeat)]
    touched = _bytes_touched_by_run(session, binding)
    times, calls, peak, bandwidth = _measure_steps_and_peaks(session, binding, len(rows), repeat, touched, target, cc)
    quiet = undisturbed_run_mask(times.sum(axis=1))
    medians = np.median(times[quiet], axis=0).tolist()
    steps = _time_and_cost_row_of_each_step_that_ran(rows, medians, np.ceil(np.median(calls[quiet], axis=0)))
    return {
        "model": session.name,
        "target": target.name,
        "repeat": repeat,
        "disturbed": int(repeat - quiet.sum()),
        "milliseconds": {**min_and_median(plain), "watched": sum(medians)},
        "machine": {
            "peak_gflops": peak / 1e9,
            "bandwidth_gbytes_per_s": bandwidth / 1e9,
            "touched_bytes": touched,
            "measured": session.device is None,
        },
        "steps": [_add_rates_and_roofline_share(step, peak, bandwidth) for step in steps],
        "kernels": [_add_rates_and_roofline_share(kernel, peak, bandwidth) for kernel in _sum_steps_by_kernel(steps)],
    }
