# SPDX-License-Identifier: Apache-2.0
"""Autotuning: measure the tilings of a model's contractions with the lowest estimated cost, and
record the fastest.

report = tune_contractions("net.onnx", trials=8, seconds=300)  # later compiles look the records up
report["rows"][0]["speedup"]                         # of the fastest over the one with the lowest estimate
# by the workers of a Dask cluster
tune_contractions("net.onnx", runner=make_dask_cluster_runner("tcp://10.0.0.1:8786"))

Each contraction is measured without its epilogue: its candidates are compiled to kernels of one
library and called alternately on the same arrays; the minimum time counts.  All candidates compute
correct results, so a bad record costs only time.  Workers of a cluster need aotc and a C compiler;
results are recorded for the CPU of the worker.

Candidates for GPUs are ranked by their estimated cycles, and not measured; a runner of the caller's
may measure them, and its results are recorded for GPUs.
"""

import logging
import pickle
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.driver.compile import CompileOptions, show_compile_options_in_signature
from aotc.driver.kernel_libraries import check_kernels_against_unoptimized_build, compile_kernel_library
from aotc.driver.toolchain import ToolchainFactory, require_cpu_can_run
from aotc.driver.tuning_store import GPU_PROCESSOR, TuningRecord, TuningStore, cpu_model_name, user_tuning_store_path
from aotc.ir import AotcError, Array, frozen
from aotc.measuring.timing import milliseconds_per_call, repeat_for_seconds
from aotc.tir import (
    Buffer,
    Expr,
    Kernel,
    Stmt,
    Store,
    Target,
    hoist_costly_loop_invariants,
    remove_dead_registers,
    simplify_stmt,
    te,
)
from aotc.tir.schedule.contraction import tiling_candidates
from aotc.tir.schedule.contraction.tiling_choice import TilingSite
from aotc.tir.schedule.contraction.tiling_completion import TilingCandidate

LOG = logging.getLogger("aotc")
#: Number of samples of each candidate; at least 2 if they exceed the time limit.
MAX_SAMPLES_PER_CANDIDATE: Final = 12
#: Approximate duration of a sample in seconds; short calls are repeated.
SAMPLE_SECONDS: Final = 2e-4
#: Approximate time limit for sampling one contraction, in seconds.
MAX_JOB_SECONDS: Final = 2.0
#: Copies of the weights are read cyclically; their total size is this multiple of the L2 cache ...
WEIGHT_BYTES_PER_L2_BYTE: Final = 2
#: ... but there are at most this many copies.
MAX_WEIGHT_COPIES: Final = 256
#: A time above this fraction of that of the tiling with the lowest estimate is measurement noise.
MAX_TIME_RATIO_OF_GAIN: Final = 0.98
BoundCall: TypeAlias = Callable[[], None]
#: Allows one measurement at a time in a process.
_MEASUREMENT_LOCK: Final = threading.Lock()


@frozen
class TuningJob:
    """A contraction to measure: its candidate kernels by name, the one with the lowest estimated
    cost first.
    """

    signature: str
    label: str
    kernels: Mapping[str, Kernel]
    target: Target


@frozen
class CandidateTimes:
    """Result of tuning a contraction: the time per call of each candidate tiling in seconds, and
    the CPU's name.
    """

    cpu: str
    seconds: Mapping[str, float]

    def record_of_first_or_clearly_fastest(self, job: TuningJob) -> TuningRecord:
        """Return the record of the fastest candidate, or of the first one if the gain is within
        measurement noise.
        """
        first = next(iter(job.kernels))
        best = min(self.seconds, key=lambda name: self.seconds[name])
        chosen = best if self.seconds[best] < MAX_TIME_RATIO_OF_GAIN * self.seconds[first] else first
        return TuningRecord(job.signature, self.cpu, chosen, self.seconds[chosen], len(job.kernels))


#: Jobs with their results in any order; the generator may be closed early.
JobResults: TypeAlias = Generator["tuple[TuningJob, CandidateTimes | AotcError]", None, None]
JobRunner: TypeAlias = Callable[[Sequence[TuningJob], ToolchainFactory], JobResults]


# --- what there is to measure


@dataclass(slots=True)
class _Collector:
    sites: dict[str, TilingSite] = field(default_factory=dict)
    digest: str = ""

    def __call__(self, site: TilingSite) -> str | None:
        self.sites.setdefault(site.contraction_fingerprint, site)
        return None


def collect_contractions_of_model(model: Any, options: CompileOptions) -> dict[str, TilingSite]:
    """Return the contractions of a model by signature, the most expensive one first."""
    collector = _Collector()
    # no cache: a cached kernel is not scheduled, so the collector would not see its contraction
    assert replace(options, cache=False).start_compilation(model, tilings=collector).scheduled_programs
    return dict(sorted(collector.sites.items(), key=lambda item: -min(c.cost for c in item[1].candidates)))


def make_tuning_job(signature: str, site: TilingSite, max_candidates: int) -> TuningJob:
    """Create kernels, which store their plain results, for the `max_candidates` candidate tilings
    with the lowest estimated cost.
    """
    c = site.c
    a, b, out = (Buffer(name, t.dtype, t.size) for name, t in (("a", c.a), ("b", c.b), ("out", c)))

    def store_plain_result(indices: tuple[Expr, ...], value: Expr) -> Stmt:
        return Store(out, te.flat_index(c.shape, indices), value)

    candidates = sorted(
        tiling_candidates(c, a, b, store_plain_result, site.target), key=lambda candidate: candidate.cost
    )[:max_candidates]
    kernels = {k.name: _candidate_kernel(f"trial{n}", k, (a, b), out, c.macs) for n, k in enumerate(candidates)}
    return TuningJob(signature, _contraction_label(c), kernels, site.target)


def _contraction_label(contraction: te.Contraction) -> str:
    extents = "x".join(str(extent) for _, extent in contraction.axes)
    return f"{contraction.name} {extents} of {contraction.macs // contraction.size} products"


def _candidate_kernel(
    name: str, candidate: TilingCandidate, inputs: tuple[Buffer, Buffer], out: Buffer, macs: int
) -> Kernel:
    nest = candidate.build_loop_nests()
    body = remove_dead_registers(hoist_costly_loop_invariants(simplify_stmt(nest.stmt, {})))
    return Kernel(
        name=name,
        inputs=inputs,
        outputs=(out,),
        body=body,
        workspace=nest.workspace,
        stack=nest.stack,
        shared=nest.shared,
        macs=macs,
    )


# --- measuring


def compile_and_time_candidates(job: TuningJob, toolchain_factory: ToolchainFactory) -> CandidateTimes:
    """Compile the candidates of a job and time them alternately on this machine.

    Raises AotcError if the machine cannot run the target's code, if the C compiler fails, or if the
    fastest candidate gives other results than at -O0.
    """
    if job.target.gpu is not None:
        hint = "without a runner, tilings for GPUs are ranked by their estimated cycles"
        raise AotcError("tuning", "tilings for GPUs cannot be measured by calls of their kernels alone", hint=hint)
    require_cpu_can_run(job.target)
    library = compile_kernel_library({k.name: k for k in job.kernels.values()}, job.target, toolchain_factory())
    with _MEASUREMENT_LOCK:
        a, b, out = (
            _random_or_one_values(buffer, seed)
            for seed, buffer in enumerate(next(iter(job.kernels.values())).params[:3])
        )
        # in a network, the weights of other layers evict a layer's own from the L2 cache between two runs
        weights = [
            b.copy()
            for _ in range(min(MAX_WEIGHT_COPIES, 2 + WEIGHT_BYTES_PER_L2_BYTE * job.target.l2 // max(1, b.nbytes)))
        ]
        bind = library.bind_kernel
        bound = {name: cycle([bind(k.name, [a, b], [out]) for b in weights]) for name, k in job.kernels.items()}
        candidate_times = CandidateTimes(
            cpu_model_name(),
            _minimum_seconds_of_each_call(
                {name: _call_that_cycles_through_calls(calls) for name, calls in bound.items()}
            ),
        )
    check_kernels_against_unoptimized_build(
        [job.kernels[candidate_times.record_of_first_or_clearly_fastest(job).candidate]],
        job.target,
        toolchain_factory(),
    )
    return candidate_times


def _call_that_cycles_through_calls(calls: Iterator[BoundCall]) -> BoundCall:
    return lambda: next(calls)()


def _random_or_one_values(buffer: Buffer, seed: int) -> Array:
    values = np.random.default_rng(seed).random(buffer.size) if buffer.dtype.is_float else np.ones(buffer.size)
    return values.astype(buffer.dtype.numpy)


def _minimum_seconds_of_each_call(calls: Mapping[str, BoundCall]) -> dict[str, float]:
    """Return the smallest time of each call in seconds, sampled alternately."""
    repeats = {
        name: max(1, int(SAMPLE_SECONDS / max(_warm_up_and_time_seconds(call, 1), 1e-7)))
        for name, call in calls.items()
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in repeat_for_seconds(2, MAX_JOB_SECONDS, MAX_SAMPLES_PER_CANDIDATE):
        for name, call in calls.items():
            best[name] = min(best[name], _warm_up_and_time_seconds(call, repeats[name]))
    return best


def _warm_up_and_time_seconds(call: BoundCall, repeat: int) -> float:
    call()
    return milliseconds_per_call(call, repeat) / 1e3


def measure_jobs_in_this_process(jobs: Sequence[TuningJob], toolchain_factory: ToolchainFactory) -> JobResults:
    """Measure the jobs one after another in this process; yield each job with its times or its
    error.
    """
    for job in jobs:
        try:
            yield job, compile_and_time_candidates(job, toolchain_factory)
        except AotcError as error:
            yield job, error


# --- on a cluster

#: Time limit for the scheduler to answer, in seconds.
MAX_CONNECT_SECONDS: Final = 10


def make_dask_cluster_runner(scheduler_address: str) -> JobRunner:
    """Return a runner that measures jobs on the workers of a Dask cluster.

    Raises AotcError (code "scheduler") if the package `distributed` is not installed.
    """
    try:
        version("distributed")
    except PackageNotFoundError as error:
        hint = "pip install distributed"
        raise AotcError("scheduler", "the package distributed is not installed", hint=hint) from error

    def measure_jobs_on_cluster(jobs: Sequence[TuningJob], toolchain_factory: ToolchainFactory) -> JobResults:
        client = _connect_to_dask_scheduler(scheduler_address)
        futures: dict[Any, TuningJob] = {}
        try:
            # pickled here, so that the scheduler needs no aotc; pure=False: a job may be measured again
            futures = {
                client.submit(_measure_pickled_job, pickle.dumps((job, toolchain_factory)), pure=False): job
                for job in jobs
            }
            yield from _results_as_completed(client, futures)
        finally:
            client.cancel(list(futures))
            client.close()

    return measure_jobs_on_cluster


def _measure_pickled_job(pickled_job: bytes) -> CandidateTimes | str:
    """Measure a pickled job on a worker of a cluster; return its times, or the text of an
    AotcError.
    """
    job, compiler = pickle.loads(pickled_job)
    try:
        return compile_and_time_candidates(job, compiler)
    except AotcError as error:
        return str(error)


def _connect_to_dask_scheduler(address: str) -> Any:
    from distributed import Client

    try:
        client = Client(address, timeout=MAX_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise AotcError("scheduler", f"no Dask scheduler answers at {address}: {error}") from error
    end = time.monotonic() + MAX_CONNECT_SECONDS
    while not client.scheduler_info()["workers"]:
        if time.monotonic() > end:
            client.close()
            raise AotcError("scheduler", f"the Dask scheduler at {address} has no workers")
        time.sleep(0.1)
    return client


def _results_as_completed(client: Any, futures: dict[Any, TuningJob]) -> JobResults:
    from distributed import as_completed

    for future in as_completed(list(futures), loop=client.loop):
        error = future.exception()
        result = str(error) if error is not None else future.result()
        yield futures[future], AotcError("tuning", result) if isinstance(result, str) else result


# --- the whole


@show_compile_options_in_signature
def tune_contractions(
    model: Any,
    *,
    trials: int = 8,
    seconds: float = 300.0,
    store: str | Path | None = None,
    again: bool = False,
    runner: JobRunner = measure_jobs_in_this_process,
    advance: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> dict[str, Any]:
    """Measure the contractions of a model and record their fastest tilings.

    model, options    as for `aotc.compile`
    trials     number of candidates per contraction, those with the lowest estimated cost
    seconds    time limit; the measurement that is running then is completed
    store      file of the records; None: the user's file
    again      also measure contractions that have a record of as many trials
    runner     `measure_jobs_in_this_process`, or a result of `make_dask_cluster_runner`
    advance    function called with the numbers of finished and of all contractions

    The result has "store" (None if nothing is recorded), "contractions", "known" (recorded before),
    "measured", "failed", "ranked" and "rows".  For GPUs, `measure_jobs_in_this_process` measures and
    records nothing: the rows have the "signature" of each contraction and the "estimated_cycles" of its
    candidates, the fewest first.  Results of another runner are recorded for GPUs.

    Raises AotcError as `compile` does, if the store cannot be written, and if all
    measurements fail.
    """
    chosen = CompileOptions.from_keywords(options, tune_contractions)
    is_measured = chosen.machine.gpu is None or runner is not measure_jobs_in_this_process
    records = _open_writable_tuning_store(store) if is_measured else None
    sites = collect_contractions_of_model(model, chosen)
    if records is None:
        rows = [_row_of_ranked_candidates(signature, site, trials) for signature, site in sites.items()]
        advance(len(rows), len(rows))
        nothing = dict.fromkeys(("known", "measured", "failed"), 0)
        return {"store": None, "contractions": len(rows), **nothing, "ranked": len(rows), "rows": rows}
    known = (
        {}
        if again or runner is not measure_jobs_in_this_process
        else records.read_records_by_signature(cpu_model_name())
    )
    jobs = [make_tuning_job(signature, site, trials) for signature, site in sites.items()]
    fresh = [job for job in jobs if job.signature not in known or known[job.signature].trials < len(job.kernels)]
    with closing(runner(fresh, chosen.toolchain_factory)) as results:
        rows, failures = _record_results_until_timeout(len(fresh), results, records, seconds, advance)
    if failures and not rows:
        raise failures[0]
    counts = {"contractions": len(jobs), "known": len(jobs) - len(fresh)}
    counts |= {"measured": len(rows), "failed": len(failures), "ranked": 0}
    return {"store": str(records.path), **counts, "rows": rows}


def _row_of_ranked_candidates(signature: str, site: TilingSite, max_candidates: int) -> dict[str, Any]:
    """Return the row of a contraction in the report, with the estimated cycles of its candidates."""
    ranked = sorted(site.candidates, key=lambda candidate: candidate.cost)[:max_candidates]
    cycles = {candidate.name: candidate.cost for candidate in ranked}
    row = {"contraction": _contraction_label(site.c), "signature": signature, "candidate": ranked[0].name}
    return row | {"estimated_cycles": cycles, "trials": len(ranked)}


def _open_writable_tuning_store(path: str | Path | None) -> TuningStore:
    where = Path(path) if path is not None else user_tuning_store_path()
    if where is None:
        raise AotcError("tuning", "no home directory exists for tuning records", hint="set AOTC_TUNING_STORE")
    store = TuningStore(where)
    store.write_records(())
    return store


def _record_results_until_timeout(
    total: int,
    results: Iterable[tuple[TuningJob, CandidateTimes | AotcError]],
    store: TuningStore,
    seconds: float,
    show_progress: Callable[[int, int], None],
) -> tuple[list[dict[str, Any]], list[AotcError]]:
    """Record results as they are completed, until the time limit; return rows of the report, and
    the errors.
    """
    rows: list[dict[str, Any]] = []
    failures: list[AotcError] = []
    end = time.monotonic() + seconds
    show_progress(0, total)
    for job, result in results:
        if isinstance(result, AotcError):
            LOG.warning("%s was not measured: %s", job.label, result)
            failures.append(result)
        else:
            record = result.record_of_first_or_clearly_fastest(job)
            if job.target.gpu is not None:
                record = replace(record, cpu=GPU_PROCESSOR)
            store.write_records([record])
            row = {"contraction": job.label, "candidate": record.candidate, "microseconds": record.seconds * 1e6}
            speedup = result.seconds[next(iter(job.kernels))] / record.seconds
            rows.append(row | {"speedup": speedup, "trials": record.trials, "cpu": result.cpu})
        show_progress(len(rows) + len(failures), total)
        if time.monotonic() > end:
            break
    return rows, failures
