# SPDX-License-Identifier: Apache-2.0
"""Autotuning: measure the tilings of a model's contractions with the lowest estimated cost, and
record the fastest.

report = tune("net.onnx", trials=8, seconds=300)     # later compiles look the records up
report["rows"][0]["speedup"]                         # of the fastest over the one with the lowest estimate
tune("net.onnx", runner=cluster_runner("tcp://10.0.0.1:8786"))                  # by the workers of a Dask cluster

Each contraction is measured without its epilogue: its candidates are compiled to kernels of one
library and called alternately on the same arrays; the minimum time counts.  All candidates compute
correct results, so a bad record costs only time.  Workers of a cluster need aotc and a C compiler;
results are recorded for the CPU of the worker.
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

from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import check_table, compile_table
from aotc.driver.toolchain import FindToolchain, require_cpu
from aotc.driver.tuning_store import Record, TuningStore, cpu_model, store_path
from aotc.ir import AotcError, Array, frozen
from aotc.measuring.timing import milliseconds, turns
from aotc.tir import Buffer, Expr, Kernel, Stmt, Store, Target, drop_dead, hoist_invariants, simplify_stmt, te
from aotc.tir.schedule.contraction import candidates
from aotc.tir.schedule.contraction.tiling_candidate import Candidate
from aotc.tir.schedule.contraction.tiling_choice import Site

LOG = logging.getLogger("aotc")
#: Number of samples of each candidate; at least 2 if they exceed the time limit.
TURNS: Final = 12
#: Approximate duration of a sample in seconds; short calls are repeated.
SAMPLE_SECONDS: Final = 2e-4
#: Approximate time limit for sampling one contraction, in seconds.
JOB_SECONDS: Final = 2.0
#: Copies of the weights are read cyclically; their total size is this multiple of the L2 cache ...
WEIGHTS: Final = 2
#: ... but there are at most this many copies.
MOST_COPIES: Final = 256
#: A time above this fraction of that of the tiling with the lowest estimate is measurement noise.
GAIN: Final = 0.98
Call: TypeAlias = Callable[[], None]
#: Allows one measurement at a time in a process.
_ALONE: Final = threading.Lock()


@frozen
class Job:
    """A contraction to measure: its candidate kernels by name, the one with the lowest estimated
    cost first.
    """

    signature: str
    label: str
    kernels: Mapping[str, Kernel]
    target: Target


@frozen
class Measured:
    """Result of tuning a contraction: the time per call of each candidate tiling in seconds, and
    the CPU's name.
    """

    cpu: str
    seconds: Mapping[str, float]

    def record(self, job: Job) -> Record:
        """Return the record of the fastest candidate, or of the first one if the gain is within
        measurement noise.
        """
        first = next(iter(job.kernels))
        best = min(self.seconds, key=lambda name: self.seconds[name])
        chosen = best if self.seconds[best] < GAIN * self.seconds[first] else first
        return Record(job.signature, self.cpu, chosen, self.seconds[chosen], len(job.kernels))


#: Jobs with their results in any order; the generator may be closed early.
Results: TypeAlias = Generator["tuple[Job, Measured | AotcError]", None, None]
Runner: TypeAlias = Callable[[Sequence[Job], FindToolchain], Results]


# --- what there is to measure


@dataclass(slots=True)
class _Collector:
    sites: dict[str, Site] = field(default_factory=dict)
    digest: str = ""

    def __call__(self, site: Site) -> str | None:
        self.sites.setdefault(site.signature, site)
        return None


def collect(model: Any, options: CompileOptions) -> dict[str, Site]:
    """Return the contractions of a model by signature, the most expensive one first."""
    collector = _Collector()
    # no cache: a cached kernel is not scheduled, so the collector would not see its contraction
    assert replace(options, cache=False).compilation(model, tilings=collector).programs
    return dict(sorted(collector.sites.items(), key=lambda item: -min(c.cost for c in item[1].found)))


def make_job(signature: str, site: Site, trials: int) -> Job:
    """Create kernels, which store their plain results, for the `trials` candidate tilings with the
    lowest estimated cost.
    """
    c = site.c
    a, b, out = (Buffer(name, t.dtype, t.size) for name, t in (("a", c.a), ("b", c.b), ("out", c)))

    def store(indices: tuple[Expr, ...], value: Expr) -> Stmt:
        return Store(out, te.flat_index(c.shape, indices), value)

    found = sorted(candidates(c, a, b, store, site.target), key=lambda candidate: candidate.cost)[:trials]
    kernels = {k.name: _kernel(f"trial{n}", k, (a, b), out, c.macs) for n, k in enumerate(found)}
    extents = "x".join(str(extent) for _, extent in c.axes)
    return Job(signature, f"{c.name} {extents} of {c.macs // c.size} products", kernels, site.target)


def _kernel(name: str, candidate: Candidate, inputs: tuple[Buffer, Buffer], out: Buffer, macs: int) -> Kernel:
    nest = candidate.nest()
    body = drop_dead(hoist_invariants(simplify_stmt(nest.stmt, {})))
    return Kernel(
        name=name, inputs=inputs, outputs=(out,), body=body, workspace=nest.workspace, stack=nest.stack, macs=macs
    )


# --- measuring


def measure(job: Job, compiler: FindToolchain) -> Measured:
    """Compile the candidates of a job and time them alternately on this machine.

    Raises AotcError if the machine cannot run the target's code, if the C compiler fails, or if the
    fastest candidate gives other results than at -O0.
    """
    require_cpu(job.target)
    library = compile_table({k.name: k for k in job.kernels.values()}, job.target, compiler())
    with _ALONE:
        a, b, out = (_values(buffer, seed) for seed, buffer in enumerate(next(iter(job.kernels.values())).params[:3]))
        # in a network, the weights of other layers evict a layer's own from the L2 cache between two runs
        weights = [b.copy() for _ in range(min(MOST_COPIES, 2 + WEIGHTS * job.target.l2 // max(1, b.nbytes)))]
        bind = library.bind
        bound = {name: cycle([bind(k.name, [a, b], [out]) for b in weights]) for name, k in job.kernels.items()}
        found = Measured(cpu_model(), _times({name: _in_turn(calls) for name, calls in bound.items()}))
    check_table([job.kernels[found.record(job).candidate]], job.target, compiler())
    return found


def _in_turn(calls: Iterator[Call]) -> Call:
    return lambda: next(calls)()


def _values(buffer: Buffer, seed: int) -> Array:
    values = np.random.default_rng(seed).random(buffer.size) if buffer.dtype.is_float else np.ones(buffer.size)
    return values.astype(buffer.dtype.numpy)


def _times(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the smallest time of each call in seconds, sampled alternately."""
    repeats = {name: max(1, int(SAMPLE_SECONDS / max(_sample(call, 1), 1e-7))) for name, call in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    for _ in turns(2, JOB_SECONDS, TURNS):
        for name, call in calls.items():
            best[name] = min(best[name], _sample(call, repeats[name]))
    return best


def _sample(call: Call, repeat: int) -> float:
    call()
    return milliseconds(call, repeat) / 1e3


def run_here(jobs: Sequence[Job], compiler: FindToolchain) -> Results:
    """Measure the jobs one after another in this process; yield each job with its times or its
    error.
    """
    for job in jobs:
        try:
            yield job, measure(job, compiler)
        except AotcError as error:
            yield job, error


# --- on a cluster

#: Time limit for the scheduler to answer, in seconds.
CONNECT_SECONDS: Final = 10


def cluster_runner(address: str) -> Runner:
    """Return a runner that measures jobs on the workers of a Dask cluster.

    Raises AotcError (code "scheduler") if the package `distributed` is not installed.
    """
    try:
        version("distributed")
    except PackageNotFoundError as error:
        hint = "pip install distributed"
        raise AotcError("scheduler", "the package distributed is not installed", hint=hint) from error

    def run(jobs: Sequence[Job], compiler: FindToolchain) -> Results:
        client = _connect(address)
        futures: dict[Any, Job] = {}
        try:
            # pickled here, so that the scheduler needs no aotc; pure=False: a job may be measured again
            futures = {client.submit(_measure, pickle.dumps((job, compiler)), pure=False): job for job in jobs}
            yield from _results(client, futures)
        finally:
            client.cancel(list(futures))
            client.close()

    return run


def _measure(work: bytes) -> Measured | str:
    """Measure a pickled job on a worker of a cluster; return its times, or the text of an
    AotcError.
    """
    job, compiler = pickle.loads(work)
    try:
        return measure(job, compiler)
    except AotcError as error:
        return str(error)


def _connect(address: str) -> Any:
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise AotcError("scheduler", f"no Dask scheduler answers at {address}: {error}") from error
    end = time.monotonic() + CONNECT_SECONDS
    while not client.scheduler_info()["workers"]:
        if time.monotonic() > end:
            client.close()
            raise AotcError("scheduler", f"the Dask scheduler at {address} has no workers")
        time.sleep(0.1)
    return client


def _results(client: Any, futures: dict[Any, Job]) -> Results:
    from distributed import as_completed

    for future in as_completed(list(futures), loop=client.loop):
        error = future.exception()
        result = str(error) if error is not None else future.result()
        yield futures[future], AotcError("tuning", result) if isinstance(result, str) else result


# --- the whole


def tune(
    model: Any,
    *,
    trials: int = 8,
    seconds: float = 300.0,
    store: str | Path | None = None,
    again: bool = False,
    runner: Runner = run_here,
    advance: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> dict[str, Any]:
    """Measure the contractions of a model and record their fastest tilings.

    model, options    as for `aotc.compile`
    trials     number of candidates per contraction, those with the lowest estimated cost
    seconds    time limit; the measurement that is running then is completed
    store      file of the records; None: the user's file
    again      also measure contractions that have a record of as many trials
    runner     `run_here`, or a result of `cluster_runner`
    advance    function called with the numbers of finished and of all contractions

    The result has "store", "contractions", "known" (recorded before), "measured", "failed" and
    "rows".  Raises AotcError as `compile` does, if the store cannot be written, and if all
    measurements fail.
    """
    records = _writable_store(store)
    chosen = CompileOptions(**options)
    if chosen.machine.gpu is not None:
        hint = "take a target that runs C; of kernels for GPUs `aotc run --profile` tells the times"
        raise AotcError("tuning", "tuning measures tilings on CPUs only, not on GPUs", hint=hint)
    sites = collect(model, chosen)
    known = {} if again or runner is not run_here else records.choices(cpu_model())
    jobs = [make_job(signature, site, trials) for signature, site in sites.items()]
    fresh = [job for job in jobs if job.signature not in known or known[job.signature].trials < len(job.kernels)]
    with closing(runner(fresh, chosen.toolchain)) as results:
        rows, failures = _measured(len(fresh), results, records, seconds, advance)
    if failures and not rows:
        raise failures[0]
    counts = {"contractions": len(jobs), "known": len(jobs) - len(fresh)}
    counts |= {"measured": len(rows), "failed": len(failures)}
    return {"store": str(records.path), **counts, "rows": rows}


def _writable_store(path: str | Path | None) -> TuningStore:
    where = Path(path) if path is not None else store_path()
    if where is None:
        raise AotcError("tuning", "no home directory exists for tuning records", hint="set AOTC_TUNING_STORE")
    store = TuningStore(where)
    store.write(())
    return store


def _measured(
    total: int,
    results: Iterable[tuple[Job, Measured | AotcError]],
    store: TuningStore,
    seconds: float,
    advance: Callable[[int, int], None],
) -> tuple[list[dict[str, Any]], list[AotcError]]:
    """Record results as they are completed, until the time limit; return rows of the report, and
    the errors.
    """
    rows: list[dict[str, Any]] = []
    failures: list[AotcError] = []
    end = time.monotonic() + seconds
    advance(0, total)
    for job, result in results:
        if isinstance(result, AotcError):
            LOG.warning("%s was not measured: %s", job.label, result)
            failures.append(result)
        else:
            record = result.record(job)
            store.write([record])
            row = {"contraction": job.label, "candidate": record.candidate, "microseconds": record.seconds * 1e6}
            speedup = result.seconds[next(iter(job.kernels))] / record.seconds
            rows.append(row | {"speedup": speedup, "trials": record.trials, "cpu": result.cpu})
        advance(len(rows) + len(failures), total)
        if time.monotonic() > end:
            break
    return rows, failures
