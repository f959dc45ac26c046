# SPDX-License-Identifier: Apache-2.0
"""Padding as TVM spells it: a number, one for each axis, one for each side, "VALID" or "SAME".

get_pad_tuple("SAME", (3, 4))                    # (1, 2, 1, 1): top, left, bottom, right
"""

from collections.abc import Sequence
from typing import TypeAlias

from aotc.ir import AotcValueError

Padding: TypeAlias = "int | str | Sequence[int]"


def _padding_before_and_after(padding: Padding, kernel: Sequence[int]) -> tuple[int, ...]:
    """The elements before the first one of each axis, then those after the last one.

    Those that are given for an axis as a whole are as many on both sides; "SAME" adds one less than
    the window has, the greater half before.  Raises AotcValueError for another word or number of
    elements.
    """
    rank = len(kernel)
    if isinstance(padding, str):
        if padding not in ("VALID", "SAME"):
            raise AotcValueError("padding", f"unknown padding {padding!r}", hint='"VALID" or "SAME"')
        total = [(k - 1) * (padding == "SAME") for k in kernel]
        return (*((n + 1) // 2 for n in total), *(n // 2 for n in total))
    sides = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (rank, 2 * rank):
        raise AotcValueError("padding", f"{len(sides)} numbers pad {rank} axes: {rank} or {2 * rank} do")
    return sides * (2 * rank // len(sides))


def get_pad_tuple1d(padding: Padding, kernel: int | Sequence[int]) -> tuple[int, ...]:
    """(left, right)."""
    return _padding_before_and_after(padding, (kernel,) if isinstance(kernel, int) else kernel)


def get_pad_tuple(padding: Padding, kernel: Sequence[int]) -> tuple[int, ...]:
    """(top, left, bottom, right)."""
    return _padding_before_and_after(padding, kernel)


def get_pad_tuple3d(padding: Padding, kernel: Sequence[int]) -> tuple[int, ...]:
    """(front, top, left, back, bottom, right)."""
    return _padding_before_and_after(padding, kernel)
