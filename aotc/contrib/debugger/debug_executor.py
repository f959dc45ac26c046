# SPDX-License-Identifier: Apache-2.0
"""Relay's debug executor: `create(lib.get_graph_json(), lib, aotc.cpu()).run(data=array)`."""

from aotc.runtime.debug_executor import GraphModuleDebug as GraphModuleDebug
from aotc.runtime.debug_executor import Profile as Profile
from aotc.runtime.debug_executor import create as create
