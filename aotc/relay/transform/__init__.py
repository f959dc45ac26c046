# SPDX-License-Identifier: Apache-2.0
"""Graph passes: one file each, listed by name here; `pipeline` puts them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from aotc.ir.transform import Pass

PASSES: Mapping[str, Callable[[], Pass[Any]]] = MappingProxyType({})
"""Every pass by name."""
