# SPDX-License-Identifier: Apache-2.0
"""Relay's debugger: `from aotc.contrib.debugger import debug_executor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.contrib.debugger import debug_executor as debug_executor

__getattr__, __dir__ = lazy_names(__name__, {}, submodules="debug_executor")
