# SPDX-License-Identifier: Apache-2.0
"""Relay's annotations: `relay.annotation.stop_fusion(data)`, `compiler_begin(data, compiler)`, `compiler_end`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay.op.annotation import compiler_begin as compiler_begin
    from aotc.relay.op.annotation import compiler_end as compiler_end
    from aotc.relay.op.annotation import stop_fusion as stop_fusion


def _prepare() -> None:
    importlib.import_module("aotc.driver.wiring").install()


def _operators() -> Mapping[str, Any]:
    found: Mapping[str, Any] = importlib.import_module("aotc.relay_api.expr").op_namespace("annotation")
    return found


__getattr__, __dir__ = lazy_names(__name__, {}, more=_operators, prepare=_prepare)
