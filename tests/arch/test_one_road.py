# SPDX-License-Identifier: Apache-2.0
"""A module becomes a library on one road: nobody but `aotc.driver.pipeline` puts the stages together."""

from __future__ import annotations

import pytest

from tests.arch.sources import imports, modules, tree_of

ROAD = "aotc.driver.pipeline"
STAGES = {
    "aotc.relay.transform.pipeline.optimize": {ROAD},
    "aotc.relay.backend.module_to_program.lower_main_to_program": {ROAD},
    "aotc.relay.backend.kernel_deduplication.lower_function_to_kernel": {ROAD, "aotc.relay.backend.module_to_program"},
    "aotc.tir.passes.eliminate_copies_pass": {ROAD},
    "aotc.tir.passes.run_tensor_passes": {ROAD},
    "aotc.tir.schedule.contraction.tiling_choice.use_tiling_chooser": {ROAD},
    "aotc.ir.persistent_memo.memoize_results_in_store": {ROAD},
    "aotc_codegen.c.host_project.emit_host_project": {ROAD},
    "aotc_codegen.c.kernel_library_project.emit_kernel_table_project": {ROAD},
    "aotc.driver.compile_sources.build_project_library": {
        ROAD,
        "aotc.measuring.machine_peak",
    },  # the probe measures the machine, with no model
}
"""Who may use what a compilation is made of."""


@pytest.mark.parametrize("stage", STAGES)
def test_stages_are_put_together_in_one_place(stage: str) -> None:
    users = {module for module, path in modules().items() if stage in {name for _, name in imports(tree_of(path))}}
    assert users == STAGES[stage]
