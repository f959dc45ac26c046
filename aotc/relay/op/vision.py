# SPDX-License-Identifier: Apache-2.0
"""Relay's `relay.op.vision`: builder functions of the operators whose names begin with "vision."."""

from aotc.relay.op.call_builders import of_prefix

__getattr__, __dir__ = of_prefix(__name__)
