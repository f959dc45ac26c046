# SPDX-License-Identifier: Apache-2.0
"""The speed of a GPU, as its driver states it, and the times of kernels by its clock.

clock = DeviceClock(session.device)
clock.flops(), clock.bandwidth()                  # operations and bytes in a second that it could do
clock.step_times(binding)                         # milliseconds
"""

import ctypes
from typing import Final

from aotc.runtime.abi import ffi
from aotc.runtime.gpu_session import Device
from aotc.runtime.session import Binding

#: The driver's numbers for attributes of devices; clocks are in kHz, the width of the memory's bus is in bits.
_CLOCK, _PROCESSORS, _MEMORY_CLOCK, _BUS, _MAJOR, _MINOR = 13, 16, 36, 37, 75, 76
#: Products of float32 that a processor begins in a cycle ("Arithmetic Instructions" in the CUDA C++ Programming Guide).
_LANES: Final = {75: 64, 80: 64}
_MOST_LANES: Final = 128


class DeviceClock:
    """Times of kernels are from event to event: of those that take less than launching them does, that is told.

    Raises AotcError (code "gpu") with the name of an error of the driver's.
    """

    def __init__(self, device: Device) -> None:
        self._driver, self._steps = device.driver, device.steps
        self._events = [ctypes.c_void_p() for _ in range(device.steps + 1)]
        for event in self._events:
            self._driver("cuEventCreate", ctypes.byref(event), 0)

    def flops(self) -> float:
        """Of float32, products and sums counted each."""
        arch = 10 * self._driver.attribute(_MAJOR) + self._driver.attribute(_MINOR)
        lanes = _LANES.get(arch, _MOST_LANES) * self._driver.attribute(_PROCESSORS)
        return 2e3 * lanes * self._driver.attribute(_CLOCK)

    def bandwidth(self) -> float:
        """Of the memory, in bytes: two transfers in a cycle."""
        return 2e3 * self._driver.attribute(_MEMORY_CLOCK) * self._driver.attribute(_BUS) / 8

    def step_times(self, binding: Binding) -> list[float]:
        """Milliseconds of each step of a run."""
        addresses = [ffi.cast("void *", event.value) for event in self._events]
        binding.run_timed(ffi.new("void *[]", addresses))
        taken = ctypes.c_float()
        times = []
        for begin, end in zip(self._events, self._events[1:], strict=False):
            self._driver("cuEventElapsedTime", ctypes.byref(taken), begin, end)
            times.append(taken.value)
        return times

    def __del__(self) -> None:
        for event in self._events:
            self._driver("cuEventDestroy_v2", event)
