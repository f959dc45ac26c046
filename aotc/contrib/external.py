# SPDX-License-Identifier: Apache-2.0
"""The user's own C kernels: `register("mine", generator)` for functions with the attribute Compiler="mine"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay.backend.external import register as register
    from aotc.relay.backend.external import registered as registered
    from aotc.relay.backend.external import unregister as unregister

__getattr__, __dir__ = lazy_names(__name__, {"aotc.relay.backend.external": "register registered unregister"})
