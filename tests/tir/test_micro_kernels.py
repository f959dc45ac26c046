# SPDX-License-Identifier: Apache-2.0
"""Micro-kernels of all levels as candidates of one choice: each is priced, tunable, and computes the contraction."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from aotc.measuring.tuning import make_tuning_job
from aotc.relay.op.dense import contrib_dense_pack, dense
from aotc.relay.op.opdef import Accuracy, Sample
from aotc.tir.schedule.contraction.tiling_choice import TilingSite, use_tiling_chooser
from aotc.tir.target import TARGETS
from tests.ops.harness import Job, interpret, kernel_job
from tests.targets.test_int8_dot_products import packed, some_bytes

#: Target, layout of weights, and the function on memory that reads it.
FUNCTIONS = (
    ("x86-64-v4-amx", "NC16n4c", "x86_amx"),
    ("cortex-m4", "NC4n4c", "arm_dsp"),
    ("cortex-m55", "NC", "arm_mve"),
)


def product(target: str, layout: str) -> tuple[Job, np.ndarray[Any, Any]]:
    """34 rows of 64 bytes by 20 outputs."""
    rng = np.random.default_rng(7)
    data, weight = some_bytes(rng, (34, 64), "int8"), some_bytes(rng, (20, 64), "int8")
    if layout == "NC":
        op, attributes = dense, dense.attrs(units=20, out_dtype="int32")
    else:
        op, attributes = contrib_dense_pack, contrib_dense_pack.attrs(units=20, weight_layout=layout, out_dtype="int32")
        weight = packed(weight, "NC", layout)
    sample = Sample(args=(data, weight), attrs=attributes, accuracy=Accuracy.EXACT)
    return kernel_job(op, sample, TARGETS[target]), op.reference(attributes, *sample.args)


def candidates_of_product(target: str, layout: str) -> TilingSite:
    sites: list[TilingSite] = []
    with use_tiling_chooser(lambda site: sites.append(site)):
        product(target, layout)
    (site,) = sites
    return site


@pytest.mark.parametrize(("target", "layout", "function"), FUNCTIONS)
def test_functions_on_memory_compete_with_register_tiles(target: str, layout: str, function: str) -> None:
    site = candidates_of_product(target, layout)
    costs = {candidate.name: candidate.cost for candidate in site.candidates}
    assert len(costs) == len(site.candidates) and min(costs.values()) > 0
    assert min(costs, key=costs.__getitem__) == function
    others = [name for name in costs if name.startswith("lanes")]
    assert others
    jobs, expected = [], None
    for name in (*(name for name in costs if name.startswith(function)), others[0]):
        with use_tiling_chooser(lambda _, name=name: name):
            job, expected = product(target, layout)
        jobs.append(job)
    assert len({str(job.kernel.body) for job in jobs}) == len(jobs)
    for actual, *_ in interpret(jobs):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("target", "layout", "function"), FUNCTIONS)
def test_functions_on_memory_are_measured_by_the_tuner(target: str, layout: str, function: str) -> None:
    job = make_tuning_job("0", candidates_of_product(target, layout), 2)
    assert next(iter(job.kernels)) == function


def test_records_of_unknown_tilings_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    usual, _ = product("x86-64-v4-amx", "NC16n4c")
    with caplog.at_level(logging.WARNING, "aotc"), use_tiling_chooser(lambda _: "rows axis=1 vectors=9"):
        job, _ = product("x86-64-v4-amx", "NC16n4c")
    assert str(job.kernel.body) == str(usual.kernel.body)
    (record,) = caplog.records
    assert "names the unknown tiling 'rows axis=1 vectors=9' and is ignored" in record.getMessage()
