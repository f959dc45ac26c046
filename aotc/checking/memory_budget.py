# SPDX-License-Identifier: Apache-2.0
"""The budget of memory of a result in double precision: its default, and the error where it does not do.

raise memory_error("node 'conv' (Conv)", needed=3 << 30, budget=2 << 30)
"""

from typing import Final

from aotc.ir import AotcError

#: What a result in double precision may take of memory unless another budget is given: 2 GiB.
DEFAULT_MEMORY_BYTES: Final = 2 << 30


def in_units(count: int) -> str:
    """A number of bytes for a reader: "1.5 GiB"."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def memory_error(where: str, needed: int, budget: int) -> AotcError:
    """The error (code "memory") that a result in double precision takes more bytes than its budget."""
    text = f"the result in double precision needs about {in_units(needed)} at {where}: the budget is {in_units(budget)}"
    return AotcError("memory", text, hint="raise the memory budget (--memory), for instance to 4G")
