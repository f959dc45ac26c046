# SPDX-License-Identifier: Apache-2.0
"""Relay's debug executor: `create(lib.get_graph_json(), lib, aotc.cpu()).run(data=array)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.runtime.debug_executor import GraphModuleDebug as GraphModuleDebug
    from aotc.runtime.debug_executor import Profile as Profile
    from aotc.runtime.debug_executor import create as create

__getattr__, __dir__ = lazy_names(__name__, {"aotc.runtime.debug_executor": "GraphModuleDebug Profile create"})
