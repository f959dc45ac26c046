# SPDX-License-Identifier: Apache-2.0
"""A module becomes a library on one road: nobody but `aotc.driver.pipeline` puts the stages together."""

from __future__ import annotations

import pytest

from tests.arch.sources import imports, modules, tree_of

ROAD = "aotc.driver.pipeline"
STAGES = {
    "aotc.relay.transform.pipeline.optimize": {ROAD},
    "aotc.relay.backend.lower.lower_calls": {ROAD},
    "aotc.relay.backend.kernel_table.lower_kernel": {ROAD, "aotc.relay.backend.lower"},
    "aotc.tir.passes.called": {ROAD},
    "aotc.tir.passes.scheduled": {ROAD},
    "aotc.tir.schedule.contraction.tiling_choice.choosing": {ROAD},
    "aotc.ir.persistent_memo.remembering": {ROAD},
    "aotc_codegen.c.host_project.emit": {ROAD},
    "aotc_codegen.c.kernel_table.emit_kernels": {ROAD},
    "aotc.driver.compile_sources.build_library": {
        ROAD,
        "aotc.measuring.machine_peak",
    },  # the probe measures the machine, with no model
}
"""Who may use what a compilation is made of."""


@pytest.mark.parametrize("stage", STAGES)
def test_stages_are_put_together_in_one_place(stage: str) -> None:
    users = {module for module, path in modules().items() if stage in {name for _, name in imports(tree_of(path))}}
    assert users == STAGES[stage]
