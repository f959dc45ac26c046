# SPDX-License-Identifier: Apache-2.0
"""Workloads for tests, demos and benchmarks: well-known networks built from operators, with random
weights of a fixed seed.

mod, params = testing.resnet.get_workload(num_layers=18)
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
