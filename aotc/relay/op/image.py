# SPDX-License-Identifier: Apache-2.0
"""Relay's `relay.op.image`: builder functions of the operators whose names begin with "image."."""

from aotc.relay.op.call_builders import module_getattr_and_dir

__getattr__, __dir__ = module_getattr_and_dir(__name__)
