# SPDX-License-Identifier: Apache-2.0
"""State of a model that runs on a GPU: a block of state in the memory of this GPU.

state = session.new_state()             # of a session on a GPU
frame, = session.run(None, {"audio": samples}, state=state)     # changes the block where it is
saved = bytes(state)                    # copies it to the host
"""

from __future__ import annotations

from ctypes import c_size_t, c_uint64
from typing import Any, NoReturn

import numpy as np

from aotc.ir.diagnostics import AotcTypeError
from aotc.runtime.abi import ffi
from aotc.runtime.gpu_session import OpenGpu
from aotc.runtime.library import Library
from aotc.runtime.state import State
from aotc.runtime.tensor_info import memory_address


class GpuState(State):
    """Block of state in the memory of a GPU; see `State`, whose contents are copied where they are read or set.

    Raises AotcError (code "gpu") with the name of the driver's error, such as that of too little memory.
    """

    def __init__(self, library: Library, device: OpenGpu, data: bytes | None = None) -> None:
        device.require_process_that_opened_gpu()
        super().__init__(library, data)
        self._device = device
        self._block = device.cuda_driver.allocate_tensor((self.nbytes,), np.dtype(np.uint8))
        self.pointer: Any = ffi.cast("void *", self._block.pointer)
        self._copy_to_device()

    def __bytes__(self) -> bytes:
        """Return the contents, from which `session.new_state(data)` makes an equal state."""
        with self.exclusive_use():
            self._copy(memory_address(self._memory), self._block.pointer)
            return self._memory.tobytes()

    def __reduce__(self) -> NoReturn:
        text = "a state in the memory of a GPU cannot be pickled"
        raise AotcTypeError("pickle", text, hint="pickle bytes(state), and pass them to session.new_state(data)")

    def reset(self) -> None:
        """Make the state equal to a new one: as it is before the first run."""
        with self.exclusive_use():
            self._initialize()
            self._copy_to_device()

    def copy(self) -> GpuState:
        """Return another state with equal contents; runs with one of them do not change the other."""
        return GpuState(self._library, self._device, bytes(self))

    def _copy_to_device(self) -> None:
        self._copy(self._block.pointer, memory_address(self._memory))

    def _copy(self, to: int, source: int) -> None:
        self._device.require_process_that_opened_gpu()
        self._device.cuda_driver("cuMemcpy", c_uint64(to), c_uint64(source), c_size_t(self.nbytes))
