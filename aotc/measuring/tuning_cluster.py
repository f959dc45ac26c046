# SPDX-License-Identifier: Apache-2.0
"""Measuring on the workers of a Dask `distributed` cluster.  A scheduler's address in, a runner of `tune` out.

tune("net.onnx", runner=cluster_runner("tcp://10.0.0.1:8786"))

Workers need aotc and a C compiler; results are recorded under the CPU of the worker that measured.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from aotc.driver.toolchain import Compiler
from aotc.ir.diagnostics import AotcError
from aotc.measuring.tuning import Job, Measured, Results, Runner, measure

CONNECT_SECONDS: Final = 10
"""For the scheduler to answer."""


def cluster_runner(address: str) -> Runner:
    """A runner that gives every job to some worker; AotcError (code "scheduler") where `distributed` is missing."""
    try:
        version("distributed")
    except PackageNotFoundError as error:
        hint = "pip install distributed"
        raise AotcError("scheduler", "the package distributed is not installed", hint=hint) from error

    def run(jobs: Sequence[Job], compiler: Compiler) -> Results:
        client = _connect(address)
        futures: dict[Any, Job] = {}
        try:
            # pickled here: the scheduler need not know our types; not pure: the same job may be measured again
            futures = {client.submit(_measure, pickle.dumps((job, compiler)), pure=False): job for job in jobs}
            yield from _results(client, futures)
        finally:
            client.cancel(list(futures))
            client.close()

    return run


def _measure(work: bytes) -> Measured | str:
    """On a worker: a user's error comes back as text."""
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
