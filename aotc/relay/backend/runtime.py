# SPDX-License-Identifier: Apache-2.0
"""Relay's runtimes as objects: `Runtime("crt", {"system-lib": True})`; see `aotc.relay.backend.executor`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from aotc.relay.backend.executor import Choice


class Runtime(Choice):
    """ "cpp" or "crt"."""

    _known: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cpp": {"system-lib": False}, "crt": {"system-lib": False}}
