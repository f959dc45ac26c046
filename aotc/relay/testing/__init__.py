# SPDX-License-Identifier: Apache-2.0
"""Workloads for tests, demos and benchmarks: well-known networks built from operators, with random
weights of a fixed seed.

mod, params = testing.resnet.get_workload(num_layers=18)
"""

from aotc.ir.lazy_exports import lazy_module_getattr_and_dir

__getattr__, __dir__ = lazy_module_getattr_and_dir(__name__)
