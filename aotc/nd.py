# SPDX-License-Identifier: Apache-2.0
"""Tensors and devices: `aotc.nd.array(numpy_array)`, `aotc.nd.empty((1, 3))`."""

from aotc.ir import Device as Device
from aotc.ir import NDArray as NDArray
from aotc.ir import array as array
from aotc.ir import cpu as cpu
from aotc.ir import cuda as cuda
from aotc.ir import empty as empty
from aotc.ir.device import device as device
