# SPDX-License-Identifier: Apache-2.0
"""Relay's quantized dialect: `relay.qnn.op.conv2d(...)` builds calls, `relay.qnn.transform` has its
passes.

q = relay.qnn.op.quantize(x, relay.const(0.1), relay.const(3), out_dtype="uint8")
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
