# SPDX-License-Identifier: Apache-2.0
"""Targets by Relay's names: `Target("llvm")` is this machine, `cuda()` says that it does not exist yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay_api.target import Target as Target
    from aotc.relay_api.target import cuda as cuda
    from aotc.relay_api.target import llvm as llvm

__getattr__, __dir__ = lazy_names(__name__, {"aotc.relay_api.target": "Target cuda llvm"})
