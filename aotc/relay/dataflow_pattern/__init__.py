# SPDX-License-Identifier: Apache-2.0
"""Patterns over graphs under Relay's names: match, rewrite, partition.

from aotc.relay.dataflow_pattern import is_op, wildcard
conv_relu = is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard()))
conv_relu.match(expr)                            # True or False
conv_relu.partition(mod["main"])                 # with a function for each match
"""

import importlib

from aotc.ir.lazy_exports import lazy_names
from aotc.relay.dataflow_pattern import groups as _groups
from aotc.relay.dataflow_pattern import matcher as _matcher
from aotc.relay.dataflow_pattern.patterns import DFPattern as _DFPattern

_DFPattern.match, _DFPattern.partition = _matcher.match, _groups.partition


def _no_more() -> dict[str, object]:
    """No further names, but operators are known by theirs from here on."""
    importlib.import_module("aotc.driver.dependency_injection").install()
    return {}


__getattr__, __dir__ = lazy_names(__name__, more=_no_more)
