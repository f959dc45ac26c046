# SPDX-License-Identifier: Apache-2.0
"""State of a compiled model that keeps tensors between runs, such as a streaming model.

state = session.new_state()
frame, = session.run(None, {"audio": samples}, state=state)     # changes the state
saved = bytes(state); fork = state.copy(); state.reset()
state = session.new_state(saved)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.runtime.abi import STATUS_MESSAGES, ffi
from aotc.runtime.fork_safety import new_fork_safe_lock_for
from aotc.runtime.library import Library
from aotc.runtime.tensor_info import allocate_aligned_bytes, memory_address


class State:
    """Contents of the tensors that a model keeps between runs: a block of memory.

    nbytes   size of the block in bytes

    Only one run at a time may use a state: give each thread a state of its own. The bytes of a state have no
    addresses, so that they can be stored and loaded by another process with the same library.
    """

    def __init__(self, library: Library, data: bytes | None = None) -> None:
        self._library = library
        self._lock = new_fork_safe_lock_for(self)
        self.nbytes = library.state_bytes
        self._memory = allocate_aligned_bytes(self.nbytes, library.state_alignment)
        self.pointer: Any = ffi.cast("void *", memory_address(self._memory))
        self._initialize()
        if data is not None:
            self._load(data)

    def __repr__(self) -> str:
        return f"<State of {self._library.name!r}, {self.nbytes} bytes>"

    def __bytes__(self) -> bytes:
        """Return the contents, from which `session.new_state(data)` makes an equal state."""
        with self.exclusive_use():
            return self._memory.tobytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self._library, bytes(self))

    def reset(self) -> None:
        """Make the state equal to a new one: as it is before the first run."""
        with self.exclusive_use():
            self._initialize()

    def copy(self) -> State:
        """Return another state with equal contents; runs with one of them do not change the other."""
        return State(self._library, bytes(self))

    @contextmanager
    def exclusive_use(self) -> Iterator[None]:
        """Context manager for an access to the contents; AotcError (code "state-busy") if another
        thread accesses them.
        """
        lock = self.require_lock()
        try:
            yield
        finally:
            lock.release()

    def require_lock(self) -> Lock:
        """Acquire the lock of the contents and return it, for the caller to release; AotcError (code
        "state-busy") if another thread has it.
        """
        lock = self._lock
        if not lock.acquire(blocking=False):
            text = f"a state of {self._library.name} is in use by another thread"
            raise AotcError("state-busy", text, hint="give each thread a state of its own: state.copy()")
        return lock

    def require_state_of(self, library: Library) -> None:
        """Raise AotcError (code "state") unless the state belongs to a model with this library."""
        if library is not self._library and library.state_header != self._library.state_header:
            text = f"the state belongs to another library (model {self._library.name}) than the session "
            text += f"(model {library.name})"
            raise AotcError("state", text, hint="make one by session.new_state() of the session that runs")

    def _initialize(self) -> None:
        status = self._library.initialize_state(self.pointer)
        if status != 0:
            reason = STATUS_MESSAGES.get(status, "unknown status")
            raise AotcError("state", f"the library cannot initialize a state: {reason}")

    def _load(self, data: object) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            text = f"the contents of a state must be bytes, not {type(data).__name__}"
            raise AotcTypeError("state", text, hint="bytes(state) returns the contents of a state")
        contents = np.frombuffer(memoryview(data).tobytes(), np.uint8)
        header = self._library.state_header
        if contents.size != self.nbytes or contents[: len(header)].tobytes() != header:
            text = f"a state of {self._library.name} has {self.nbytes} bytes, got {contents.size}"
            if contents.size == self.nbytes:
                text = f"the bytes are not of a state of {self._library.name}, or of one of another build"
            raise AotcError("state", text, hint="store bytes(state) of a state of this library")
        self._memory[:] = contents
