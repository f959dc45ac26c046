# SPDX-License-Identifier: Apache-2.0
"""Relay's `relay.op.vision`: builder functions of the operators whose names begin with "vision."."""

from aotc.relay.op.call_builders import op_builders_as_module_attributes

__getattr__, __dir__ = op_builders_as_module_attributes(__name__)
