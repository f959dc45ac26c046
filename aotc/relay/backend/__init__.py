# SPDX-License-Identifier: Apache-2.0
"""Lowering of fused functions to programs of kernels; and Relay's Executor and Runtime objects.

relay.build(mod, "llvm", executor=relay.backend.Executor("aot"),
runtime=relay.backend.Runtime("crt"))
"""

from aotc.relay.backend import te_compiler as te_compiler
from aotc.relay.backend.executor import Executor as Executor
from aotc.relay.backend.runtime import Runtime as Runtime
