# SPDX-License-Identifier: Apache-2.0
"""Relay's `relay.op.image`: the functions of operators whose names begin so."""

from aotc.relay.op.call_builders import of_prefix

__getattr__, __dir__ = of_prefix(__name__)
