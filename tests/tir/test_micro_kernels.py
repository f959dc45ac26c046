# SPDX-License-Identifier: Apache-2.0
"""Micro-kernels of all levels as candidates of one choice: each is priced, tunable, and computes the contraction."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc.driver.kernel_libraries import compile_kernel_library
from aotc.measuring.tuning import make_tuning_job
from aotc.relay.op.dense import contrib_dense_pack, dense
from aotc.relay.op.opdef import Accuracy, Sample
from aotc.tir import Buffer, te
from aotc.tir.micro_kernels import ARM_MVE, DOT4, MEMORY_LAYOUTS, SMMLA, MicroKernel
from aotc.tir.schedule.contraction import cpu_tiling_candidates
from aotc.tir.schedule.contraction.memory_kernels import DATA_OF_LAYOUT
from aotc.tir.schedule.contraction.tiling_choice import TilingSite, use_tiling_chooser
from aotc.tir.stmt import Store
from aotc.tir.target import TARGETS, Target
from tests.ops.harness import Job, interpret, kernel_job
from tests.targets.test_int8_dot_products import packed, some_bytes

#: Target, layout of weights, and the memory micro-kernel that reads it.
FUNCTIONS = (
    ("x86-64-v4-amx", "NC16n4c", "x86_amx"),
    ("cortex-m4", "NC4n4c", "arm_dsp"),
    ("cortex-m55", "NC", "arm_mve"),
)


def product(target: str | Target, layout: str) -> tuple[Job, np.ndarray[Any, Any]]:
    """34 rows of 64 bytes by 20 outputs."""
    rng = np.random.default_rng(7)
    data, weight = some_bytes(rng, (34, 64), "int8"), some_bytes(rng, (20, 64), "int8")
    if layout == "NC":
        op, attributes = dense, dense.attrs(units=20, out_dtype="int32")
    else:
        op, attributes = contrib_dense_pack, contrib_dense_pack.attrs(units=20, weight_layout=layout, out_dtype="int32")
        weight = packed(weight, "NC", layout)
    sample = Sample(args=(data, weight), attrs=attributes, accuracy=Accuracy.EXACT)
    target = TARGETS[target] if isinstance(target, str) else target
    return kernel_job(op, sample, target), op.reference(attributes, *sample.args)


def candidates_of_product(target: str | Target, layout: str) -> TilingSite:
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


#: A dot product of one instruction on a processor that has several, and rows of bytes on one without vectors.
NEW_ROWS = {
    "registers": ("x86-64-v3", "NC16n4c", replace(DOT4, name="fast_dot4", rate=4, registers=1, split=0)),
    "memory": ("c", "NC", replace(ARM_MVE, name="rows_of_bytes", requires=())),
}


@pytest.mark.parametrize("level", NEW_ROWS)
def test_a_new_row_is_chosen_and_right(level: str) -> None:
    """Found, priced, chosen by its cost alone, and right in the interpreter and in compiled C."""
    name, layout, row = NEW_ROWS[level]
    costs: dict[bool, dict[str, float]] = {}
    for is_dear in (True, False):
        kernel = replace(row, rate=row.rate / 99, tile_cycles=99 * row.tile_cycles) if is_dear else row
        target = with_row(TARGETS[name], kernel)
        costs[is_dear] = {c.name: c.cost for c in candidates_of_product(target, layout).candidates}
        chosen = min(costs[is_dear], key=costs[is_dear].__getitem__)
        assert (row.name in chosen) != is_dear
    assert costs[True].keys() == costs[False].keys()
    job, expected = product(target, layout)
    (actual,), *_ = interpret([job])
    np.testing.assert_array_equal(actual, expected)
    library, compiled = compile_kernel_library({"product": job.kernel}, target), np.empty(expected.size, np.int32)
    library.bind_kernel("product", [np.ravel(x) for x in job.inputs], [compiled])()
    np.testing.assert_array_equal(compiled, np.ravel(expected))


def depthwise_costs(
    target: Target, data: str = "uint8", weights: str = "int8", sums: str = "int32"
) -> dict[str, float]:
    """Costs of the candidates for a depthwise convolution of 28 x 28 positions and 96 channels."""
    x, w = te.placeholder((1, 28, 28, 96), data, "x"), te.placeholder((3, 3, 96), weights, "w")
    total = te.contraction(
        (1, 28, 28, 96),
        (3, 3),
        x,
        lambda n, i, j, c, a, b: (n, i + a - 1, j + b - 1, c),
        w,
        lambda n, i, j, c, a, b: (a, b, c),
        dtype=sums,
        lane=3,
    )
    a, b, y = (Buffer(tensor.name, tensor.dtype, tensor.size) for tensor in (x, w, total))
    found = cpu_tiling_candidates(
        total, a, b, lambda at, value: Store(y, te.flat_index(total.shape, at), value), target
    )
    return {candidate.name: candidate.cost for candidate in found}


def test_depthwise_tilings_are_priced_by_the_micro_kernel() -> None:
    """Four taps at a time compete with products of widened bytes, by the rate of the row."""
    costs = [
        depthwise_costs(replace(TARGETS["x86-64-v3"], name="odd", micro_kernels=(replace(DOT4, vector_rate=rate),)))
        for rate in (0.01, 1)
    ]
    slow, fast = costs
    chosen = [min(found, key=found.__getitem__).partition(" ")[0] for found in costs]
    assert chosen == ["lanes", "taps"]
    assert slow.keys() == fast.keys()
    assert {name for name in slow if slow[name] != fast[name]} == {name for name in slow if name.startswith("taps")}


@pytest.mark.parametrize(("data", "weights", "sums"), [("uint8", "int8", "int32"), ("float32", "float32", "float32")])
def test_walks_over_the_columns_of_bytes_wait_for_cache_lines(data: str, weights: str, sums: str) -> None:
    """Vectors along columns read and store at the distance of the channels; only costs of integers count that."""
    target = TARGETS["x86-64-v3"]
    costs = []
    for line in (2.5, 25.0):
        odd = replace(target, name="odd", tiles=replace(target.tiles, l2_line=line))
        costs.append(depthwise_costs(odd, data, weights, sums))
    near, far = costs
    dearer = {name for name in near if far[name] > near[name]}
    assert dearer == ({name for name in near if name.startswith("pixels")} if data == "uint8" else set())
    assert all(far[name] == near[name] for name in near.keys() - dearer)
    # if all lines fit in the cache, none is read again
    large = [replace(target, name="odd", l1=1 << 20, tiles=replace(target.tiles, l2_line=x)) for x in (2.5, 25.0)]
    assert len({tuple(depthwise_costs(odd, data, weights, sums).items()) for odd in large}) == 1


def test_steps_of_several_groups_need_vectors_of_their_length() -> None:
    """SMMLA has vectors of four sums; those of this target have eight."""
    step = replace(SMMLA, requires=())
    job, expected = product(replace(TARGETS["x86-64-v3"], name="odd", micro_kernels=(step, DOT4)), "NC16n4c")
    (actual,), *_ = interpret([job])
    np.testing.assert_array_equal(actual, expected)


def test_every_layout_of_functions_on_memory_has_a_schedule() -> None:
    assert set(DATA_OF_LAYOUT) == {data for data, _ in MEMORY_LAYOUTS}


def with_row(target: Target, row: MicroKernel) -> Target:
    return replace(target, name="odd", micro_kernels=(*target.micro_kernels, row))
