# SPDX-License-Identifier: Apache-2.0
"""Relay's `relay.op.nn`: builder functions of the operators whose names begin with "nn."."""

from aotc.relay.op.call_builders import of_prefix

__getattr__, __dir__ = of_prefix(__name__)
