# SPDX-License-Identifier: Apache-2.0
"""Tensors and devices: `aotc.nd.array(numpy_array)`, `aotc.nd.empty((1, 3))`."""

from aotc.ir.device import Device as Device
from aotc.ir.device import cpu as cpu
from aotc.ir.device import cuda as cuda
from aotc.ir.device import device as device
from aotc.ir.ndarray import NDArray as NDArray
from aotc.ir.ndarray import array as array
from aotc.ir.ndarray import empty as empty
