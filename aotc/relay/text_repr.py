# SPDX-License-Identifier: Apache-2.0
"""What prints as the program text it stands for: nodes of graphs, and modules."""

from collections.abc import Callable
from typing import Any, ClassVar


class Printed:
    """What prints as the program text it stands for.  Package `aotc.relay` says how: the printer imports this file."""

    __slots__ = ()

    #: Relay text with its version line; see `aotc.relay.text.printer.astext`.
    astext: ClassVar[Callable[..., str]]
    #: Text to look at; see `aotc.relay.text.printer.to_text`.
    to_text: ClassVar[Callable[[Any], str]]

    def same_as(self, other: object) -> bool:
        """Whether this is that very object."""
        return self is other

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
