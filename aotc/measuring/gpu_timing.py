# SPDX-License-Identifier: Apache-2.0
"""Read a GPU's peak rates from its driver, and time kernels with CUDA events.

clock = DeviceClock(session.device)
clock.peak_flops_per_second(), clock.peak_bytes_per_second()  # operations and bytes in a second that it could do
clock.measure_step_milliseconds(binding)          # milliseconds
"""

import ctypes
import math
from typing import Final

from aotc.ir import AotcError
from aotc.runtime.abi import ffi
from aotc.runtime.binding import Binding
from aotc.runtime.gpu_session import OpenGpu

#: CUdevice_attribute numbers; clocks are in kHz, the memory bus width is in bits.
_CLOCK, _PROCESSORS, _MEMORY_CLOCK, _BUS, _MAJOR, _MINOR = 13, 16, 36, 37, 75, 76
#: float32 multiply-adds per cycle and multiprocessor (CUDA C++ Programming Guide, "Arithmetic Instructions").
_FMA_LANES_BY_ARCHITECTURE: Final = {75: 64, 80: 64}
_DEFAULT_FMA_LANES: Final = 128


class DeviceClock:
    """Times the kernels of a run with CUDA events; for very short kernels this is the launch time.

    Raises AotcError (code "gpu") with the name of the driver's error.
    """

    def __init__(self, device: OpenGpu) -> None:
        self._driver, self._steps, self._has_tiers = device.cuda_driver, device.steps, device.has_tiers
        self._events = [ctypes.c_void_p() for _ in range(device.steps + 1)]
        for event in self._events:
            self._driver("cuEventCreate", ctypes.byref(event), 0)

    def peak_flops_per_second(self) -> float:
        """Return the peak float32 rate in operations per second; a multiply-add counts as two."""
        arch = 10 * self._driver.gpu_attribute(_MAJOR) + self._driver.gpu_attribute(_MINOR)
        lanes = _FMA_LANES_BY_ARCHITECTURE.get(arch, _DEFAULT_FMA_LANES) * self._driver.gpu_attribute(_PROCESSORS)
        return 2e3 * lanes * self._driver.gpu_attribute(_CLOCK)

    def peak_bytes_per_second(self) -> float:
        """Return the peak memory bandwidth in bytes per second: two transfers per clock cycle."""
        return 2e3 * self._driver.gpu_attribute(_MEMORY_CLOCK) * self._driver.gpu_attribute(_BUS) / 8

    def measure_step_milliseconds(self, binding: Binding) -> list[float]:
        """Run the model once; return the time of each step in milliseconds, NaN for steps of other tiers of sizes,
        which do not run.
        """
        addresses = [ffi.cast("void *", event.value) for event in self._events]
        binding.run_recording_cuda_events(ffi.new("void *[]", addresses))
        elapsed_ms = ctypes.c_float()
        times = []
        for begin, end in zip(self._events, self._events[1:], strict=False):
            try:
                self._driver("cuEventElapsedTime", ctypes.byref(elapsed_ms), begin, end)
            except AotcError as error:
                # the result for events that were never recorded
                if not self._has_tiers or "CUDA_ERROR_INVALID_HANDLE" not in str(error):
                    raise
                elapsed_ms.value = math.nan
            times.append(elapsed_ms.value)
        return times

    def __del__(self) -> None:
        for event in self._events:
            self._driver("cuEventDestroy_v2", event)
