# SPDX-License-Identifier: Apache-2.0
"""Relay's `contrib`: the executor interface and temporary directories.

from aotc.contrib import graph_executor
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.contrib import debugger as debugger
    from aotc.contrib import external as external
    from aotc.contrib import graph_executor as graph_executor
    from aotc.contrib import utils as utils

__getattr__, __dir__ = lazy_names(__name__, {}, submodules="debugger external graph_executor utils")
