# SPDX-License-Identifier: Apache-2.0
"""Dataflow patterns with the names of Relay's API: match, rewrite and partition expression graphs.

from aotc.relay.dataflow_pattern import is_op, wildcard
conv_relu = is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard()))
conv_relu.match(expr)                            # True or False
conv_relu.partition(mod["main"])                 # extract each match into a function of its own
"""

import importlib

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file
from aotc.relay.dataflow_pattern import find_matches_and_partition as _partition
from aotc.relay.dataflow_pattern import matcher as _matcher
from aotc.relay.dataflow_pattern.patterns import DFPattern as _DFPattern

_DFPattern.match, _DFPattern.partition = _matcher.match, _partition.partition


def _install_operators_and_add_no_names() -> dict[str, object]:
    """Install the operator registry, so that operators are found by name, and return no further
    names.
    """
    importlib.import_module("aotc.driver.operator_and_pass_registration").install_operators_and_passes()
    return {}


__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__, extra_names=_install_operators_and_add_no_names)
