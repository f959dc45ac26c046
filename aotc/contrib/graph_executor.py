# SPDX-License-Identifier: Apache-2.0
"""Relay's graph executor: `GraphModule(lib["default"](aotc.cpu()))`."""

from aotc.runtime.graph_executor import BenchmarkResult as BenchmarkResult
from aotc.runtime.graph_executor import GraphModule as GraphModule
from aotc.runtime.graph_executor import create as create
