# SPDX-License-Identifier: Apache-2.0
"""A module becomes a library on one road: nobody but `aotc.driver.compilation` puts the stages together."""

from __future__ import annotations

import pytest

from tests.arch.sources import imports, modules, tree_of

ROAD = "aotc.driver.compilation"
STAGES = {
    "aotc.relay.transform.pipeline.optimize": {ROAD},
    "aotc.relay.backend.lower.lower_calls": {ROAD},
    "aotc.relay.backend.table.lower_kernel": {ROAD, "aotc.relay.backend.lower"},
    "aotc.tir.passes.called": {ROAD},
    "aotc.tir.passes.scheduled": {ROAD},
    "aotc.tir.schedule.contraction.choice.choosing": {ROAD},
    "aotc.ir.memo.remembering": {ROAD},
    "aotc_codegen.c.project.emit": {ROAD},
    "aotc_codegen.c.kernel_table.emit_kernels": {ROAD},
    "aotc.driver.build.build_library": {ROAD, "aotc.measuring.probe"},  # the probe measures the machine, with no model
}
"""Who may use what a compilation is made of."""


@pytest.mark.parametrize("stage", STAGES)
def test_stages_are_put_together_in_one_place(stage: str) -> None:
    users = {module for module, path in modules().items() if stage in {name for _, name in imports(tree_of(path))}}
    assert users == STAGES[stage]
