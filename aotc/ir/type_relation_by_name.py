# SPDX-License-Identifier: Apache-2.0
"""Relay's functions that are referred to by name:
`EnvFunc.get("tvm.relay.type_relation.Broadcast")`.
"""

from __future__ import annotations

from typing import Final

from aotc.ir.diagnostics import require_known_name
from aotc.ir.frozen_dataclass import frozen

_TYPE_RELATION_NAMESPACE: Final = "tvm.relay.type_relation."


@frozen
class EnvFunc:
    """Reference to one of Relay's built-in functions by name; equal names are equal functions."""

    name: str

    @staticmethod
    def get(name: str) -> EnvFunc:
        """Return the type relation "Identity" or "Broadcast" by its full name; AotcError (code
        "type") for other names.
        """
        require_known_name(
            "type", "function", name, [f"{_TYPE_RELATION_NAMESPACE}{n}" for n in ("Identity", "Broadcast")]
        )
        return EnvFunc(name)

    @property
    def relation_name(self) -> str:
        """The name of the type relation without its namespace."""
        return self.name.removeprefix(_TYPE_RELATION_NAMESPACE)
