# SPDX-License-Identifier: Apache-2.0
"""Only `aotc.driver.pipeline` calls the stages that compile a module into a library, and only
`aotc.driver.kernel_libraries` those that compile kernels without a model.
"""

from __future__ import annotations

import pytest

from tests.arch.sources import imports, modules, tree_of

PIPELINE = "aotc.driver.pipeline"
KERNELS = "aotc.driver.kernel_libraries"
STAGES = {
    "aotc.relay.transform.pipeline.optimize": {PIPELINE},
    "aotc.relay.backend.module_to_program.lower_main_to_program": {PIPELINE},
    "aotc.relay.backend.kernel_deduplication.lower_function_to_kernel": {
        PIPELINE,
        "aotc.relay.backend.module_to_program",
    },
    "aotc.tir.passes.eliminate_copies_pass": {PIPELINE},
    "aotc.tir.passes.run_tensor_passes": {PIPELINE},
    "aotc.tir.schedule.contraction.tiling_choice.use_tiling_chooser": {PIPELINE},
    "aotc.ir.persistent_memo.memoize_results_in_store": {PIPELINE},
    "aotc_codegen.c.host_project.emit_host_project": {PIPELINE},
    "aotc_codegen.c.kernel_library_project.emit_kernel_table_project": {KERNELS},
    "aotc.driver.compile_sources.build_project_library": {
        PIPELINE,
        KERNELS,
        "aotc.measuring.machine_peak",
    },  # the probe measures the machine, with no model
}
"""Who may use what a compilation is made of."""


@pytest.mark.always
def test_stages_are_put_together_in_one_place() -> None:
    users: dict[str, set[str]] = {stage: set() for stage in STAGES}
    for module, path in modules().items():
        for stage in users.keys() & {name for _, name in imports(tree_of(path))}:
            users[stage].add(module)
    assert users == STAGES
