# SPDX-License-Identifier: Apache-2.0
"""Tensors and devices: `aotc.nd.array(numpy_array)`, `aotc.nd.empty((1, 3))`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.ir.device import Device as Device
    from aotc.ir.device import cpu as cpu
    from aotc.ir.device import cuda as cuda
    from aotc.ir.device import device as device
    from aotc.ir.ndarray import NDArray as NDArray
    from aotc.ir.ndarray import array as array
    from aotc.ir.ndarray import empty as empty

__getattr__, __dir__ = lazy_names(
    __name__, {"aotc.ir.device": "Device cpu cuda device", "aotc.ir.ndarray": "NDArray array empty"}
)
