# SPDX-License-Identifier: Apache-2.0
"""Windows of adaptive pools: output i of `count` covers an equal share of the positions along an axis.

AdaptiveWindow(7, 3)                   # outputs cover positions 0 to 2, 2 to 4, and 4 to 6
"""

from math import gcd
from typing import Any

from aotc.ir import SymDim, frozen
from aotc.relay.op.opdef import Scalar


@frozen
class AdaptiveWindow:
    """Adaptive window along one axis: output i covers positions floor(i * extent / count) to
    ceil((i + 1) * extent / count).
    """

    extent: int
    count: int

    def position_range_of_adaptive_window(self, output: Any) -> tuple[Any, Any]:
        """Return the half-open range of positions that output i covers."""
        return output * self.extent // self.count, ((output + 1) * self.extent + (self.count - 1)) // self.count

    @property
    def min_and_max_adaptive_window_width(self) -> tuple[int, int]:
        """Return the smallest and the largest number of positions that an output covers.

        With extent = q * count + r, output i covers q + ceil((i * r % count + r) / count)
        positions, and i * r % count takes every multiple of gcd(r, count).
        """
        if self.count == 1 or isinstance(self.extent, SymDim):
            # the second range holds for each pair of numbers
            whole = self.extent // self.count
            return (whole, whole) if self.count == 1 or self.extent == self.count else (whole, whole + 2)
        whole, rest = divmod(self.extent, self.count)
        if rest == 0:
            return whole, whole
        return whole + 1, whole + (2 if rest > gcd(rest, self.count) else 1)

    @property
    def size(self) -> int:
        return self.min_and_max_adaptive_window_width[1]

    def tap_position(self, output: Scalar, tap: Scalar) -> Scalar:
        return output * self.extent // self.count + tap

    def tap_in_bounds_conditions(self, output: Scalar, tap: Scalar) -> list[Scalar]:
        low, high = self.position_range_of_adaptive_window(output)
        least, most = self.min_and_max_adaptive_window_width
        return [low + tap < high] if least != most else []
