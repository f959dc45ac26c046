# SPDX-License-Identifier: Apache-2.0
"""Affine quantization of a tensor: real = scale * (integer - zero point).

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
    """Quantization parameters of a tensor.

    dtype         integer dtype of the tensor
    scales        scale factors: one, or one for each index along `axis`
    zero_points   integers that represent 0: one, or one for each index along `axis`
    axis          axis of per-channel parameters; None for one scale and zero point
    """

    dtype: DType
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None

    @property
    def scale(self) -> float | tuple[float, ...]:
        """The quantization scale, or the tuple of scales along the axis for per-channel
        quantization.
        """
        return self.scales if self.axis is not None else self.scales[0]

    @property
    def zero_point(self) -> int | tuple[int, ...]:
        """The quantization zero point, or the tuple of zero points along the axis for per-channel
        quantization.
        """
        return self.zero_points if self.axis is not None else self.zero_points[0]

    def quantize(self, values: Any) -> Array:
        """Quantize real numbers to the nearest integers, in float32, rounding ties to even.

        Values out of range saturate; NaN becomes the smallest integer.
        """
        real = np.asarray(values, np.float32)
        with np.errstate(all="ignore"):
            steps = np.rint(real / self._reshape_channel_values_to_broadcast(self.scales, real, "float32"))
        whole = steps + self._reshape_channel_values_to_broadcast(self.zero_points, real, "float32")
        whole = np.where(np.isnan(whole), np.float32(self.dtype.min), whole)
        bounded: Array = np.clip(whole, self.dtype.min, self.dtype.max)
        return bounded.astype(self.dtype.numpy)

    def dequantize(self, integers: Any) -> Array:
        """Dequantize integers: return scale * (integer - zero point) as float32."""
        whole = np.asarray(integers).astype(np.int32)
        steps = whole - self._reshape_channel_values_to_broadcast(self.zero_points, whole, "int32")
        return np.asarray(
            steps.astype(np.float32) * self._reshape_channel_values_to_broadcast(self.scales, whole, "float32")
        )

    def _reshape_channel_values_to_broadcast(self, channel_values: Sequence[float], tensor: Array, dtype: str) -> Array:
        """Reshape per-channel scales or zero points so that they broadcast against a tensor along
        the axis.
        """
        shape = [1] * tensor.ndim
        if self.axis is not None:
            shape[self.axis] = len(channel_values)
        return np.asarray(channel_values, dtype).reshape(shape)
