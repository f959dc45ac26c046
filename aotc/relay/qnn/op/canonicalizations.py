# SPDX-License-Identifier: Apache-2.0
"""Relay's module of this name, for compatibility: `create_integer_lookup_op` and `run_const_expr`.

The lowering of the qnn operators is in `aotc.relay.op.qnn`.
"""

from aotc.relay.op.qnn.lookup_table import create_integer_lookup_op as create_integer_lookup_op
from aotc.relay_api.executor import run_const_expr as run_const_expr
