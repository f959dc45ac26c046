# SPDX-License-Identifier: Apache-2.0
"""Relay's Runtime objects, the argument `runtime` of `relay.build`: `Runtime("crt", {"system-lib":
True})`.

See `aotc.relay.backend.executor`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from aotc.relay.backend.executor import NamedVariant


class Runtime(NamedVariant):
    """Relay's runtime, "cpp" or "crt", with its options."""

    _options_by_variant_name: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cpp": {"system-lib": False},
        "crt": {"system-lib": False},
    }
