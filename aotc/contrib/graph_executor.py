# SPDX-License-Identifier: Apache-2.0
"""Relay's graph executor: `GraphModule(lib["default"](aotc.cpu()))`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.runtime.graph_executor import BenchmarkResult as BenchmarkResult
    from aotc.runtime.graph_executor import GraphModule as GraphModule

__getattr__, __dir__ = lazy_names(__name__, {"aotc.runtime.graph_executor": "BenchmarkResult GraphModule"})
