# SPDX-License-Identifier: Apache-2.0
"""Relay's build module: parameters bound, modules compiled.

from aotc.relay.build_module import bind_params_by_name
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.driver.relay_build import ExecutorFactory as ExecutorFactory
    from aotc.driver.relay_build import build as build
    from aotc.driver.relay_executor import Executor as Executor
    from aotc.driver.relay_executor import create_executor as create_executor
    from aotc.relay.binding import bind_params_by_name as bind_params_by_name

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aotc.driver.relay_build": "ExecutorFactory build",
        "aotc.driver.relay_executor": "Executor create_executor",
        "aotc.relay.binding": "bind_params_by_name",
    },
)
