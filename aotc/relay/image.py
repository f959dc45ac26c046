# SPDX-License-Identifier: Apache-2.0
"""Relay's image operators: `relay.image.resize2d(data, (224, 224))` and the rest."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay.op.grid import grid_sample as grid_sample
    from aotc.relay.op.resize import resize1d as resize1d
    from aotc.relay.op.resize import resize2d as resize2d
    from aotc.relay.op.resize import resize3d as resize3d


def _prepare() -> None:
    importlib.import_module("aotc.driver.wiring").install()


def _operators() -> Mapping[str, Any]:
    found: Mapping[str, Any] = importlib.import_module("aotc.relay_api.expr").op_namespace("image")
    return found


__getattr__, __dir__ = lazy_names(__name__, {}, more=_operators, prepare=_prepare)
