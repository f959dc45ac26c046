# SPDX-License-Identifier: Apache-2.0
"""Relay's helpers for functions of quantized numbers as tables: `create_integer_lookup_op`, `run_const_expr`."""

from aotc.relay.op.qnn.lookup_table import create_integer_lookup_op as create_integer_lookup_op
from aotc.relay_api.executor import run_const_expr as run_const_expr
