# SPDX-License-Identifier: Apache-2.0
"""Base class of objects that print as program text: graph nodes and modules."""

from collections.abc import Callable
from typing import Any, ClassVar


class Printed:
    """An object that prints as program text. Package `aotc.relay` sets the methods, because the
    printer imports this file.
    """

    __slots__ = ()

    #: Returns Relay text with its version line; see `aotc.relay.text.printer.astext`.
    astext: ClassVar[Callable[..., str]]
    #: Returns text for inspection; see `aotc.relay.text.printer.to_text`.
    to_text: ClassVar[Callable[[Any], str]]

    def same_as(self, other: object) -> bool:
        """Return True if `other` is the same object (not merely an equal one)."""
        return self is other

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
