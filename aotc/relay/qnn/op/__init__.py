# SPDX-License-Identifier: Apache-2.0
"""Relay's quantized operators: `relay.qnn.op.quantize(data, output_scale, output_zero_point)` and
others.
"""

import sys
from functools import partial

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file
from aotc.relay_api.expr import op_functions_with_prefix as _op_namespace

#: Relay's module of the builders, which its users name too.
qnn = sys.modules[__name__]
__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__, extra_names=partial(_op_namespace, "qnn"))
