# SPDX-License-Identifier: Apache-2.0
"""Relay's quantized dialect: `relay.qnn.op.conv2d(...)` builds calls, `relay.qnn.transform` has its passes.

q = relay.qnn.op.quantize(x, relay.const(0.1), relay.const(3), out_dtype="uint8")
"""

from aotc.ir.lazy_exports import lazy_module_getattr_and_dir

__getattr__, __dir__ = lazy_module_getattr_and_dir(__name__)
