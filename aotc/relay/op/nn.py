# SPDX-License-Identifier: Apache-2.0
"""Relay's `relay.op.nn`: builder functions of the operators whose names begin with "nn."."""

from aotc.relay.op.call_builders import op_builders_as_module_attributes

__getattr__, __dir__ = op_builders_as_module_attributes(__name__)
