# SPDX-License-Identifier: Apache-2.0
"""Functions that programs know by their names: `EnvFunc.get("tvm.relay.type_relation.Broadcast")`."""

from __future__ import annotations

from typing import Final

from aotc.ir.diagnostics import require_known
from aotc.ir.frozen_dataclass import frozen

_PREFIX: Final = "tvm.relay.type_relation."


@frozen
class EnvFunc:
    """A function by its name; equal names are equal functions."""

    name: str

    @staticmethod
    def get(name: str) -> EnvFunc:
        """The function of a name: the relations "Identity" and "Broadcast"; AotcError (code "type") for others."""
        require_known("type", "function", name, [f"{_PREFIX}{n}" for n in ("Identity", "Broadcast")])
        return EnvFunc(name)

    @property
    def relation(self) -> str:
        """The name without the namespace."""
        return self.name.removeprefix(_PREFIX)
