# SPDX-License-Identifier: Apache-2.0
"""How integers of a tensor stand for real numbers: real = scale * (integer - zero point).

pixels = Quantization(DType("uint8"), (0.25,), (128,))
pixels.quantize([0.0, 1.1, 100.0])            # uint8 128, 132, 255
pixels.dequantize(np.uint8([128, 132]))       # float32 0.0, 1.0
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir.dtype import DType
from aotc.ir.frozen_dataclass import frozen

Array = np.ndarray[Any, Any]


@frozen
class Quantization:
    """The meaning of a tensor's integers.

    dtype                 theirs
    scales, zero_points   one of each, or one for each index along `axis`; zero points are the integers that stand for 0
    axis                  None where all elements share a scale and a zero point
    """

    dtype: DType
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None

    @property
    def scale(self) -> float | tuple[float, ...]:
        """The scale, or those along the axis."""
        return self.scales if self.axis is not None else self.scales[0]

    @property
    def zero_point(self) -> int | tuple[int, ...]:
        """The zero point, or those along the axis."""
        return self.zero_points if self.axis is not None else self.zero_points[0]

    def quantize(self, values: Any) -> Array:
        """The integers nearest to real numbers, computed in float32: ties to even; for what is out of range the
        first or the last one; for NaN the first.
        """
        real = np.asarray(values, np.float32)
        with np.errstate(all="ignore"):
            steps = np.rint(real / self._laid(self.scales, real, "float32"))
        whole = steps + self._laid(self.zero_points, real, "float32")
        whole = np.where(np.isnan(whole), np.float32(self.dtype.min), whole)
        bounded: Array = np.clip(whole, self.dtype.min, self.dtype.max)
        return bounded.astype(self.dtype.numpy)

    def dequantize(self, integers: Any) -> Array:
        """The real numbers that integers stand for, as float32."""
        whole = np.asarray(integers).astype(np.int32)
        steps = whole - self._laid(self.zero_points, whole, "int32")
        return np.asarray(steps.astype(np.float32) * self._laid(self.scales, whole, "float32"))

    def _laid(self, numbers: Sequence[float], tensor: Array, dtype: str) -> Array:
        """Numbers so that they meet a tensor."""
        shape = [1] * tensor.ndim
        if self.axis is not None:
            shape[self.axis] = len(numbers)
        return np.asarray(numbers, dtype).reshape(shape)
