# SPDX-License-Identifier: Apache-2.0
"""State of a compiled model that keeps tensors between runs, such as a streaming model.

state = session.new_state()
frame, = session.run(None, {"audio": samples}, state=state)     # changes the state
saved = bytes(state); fork = state.copy(); state.reset()
state.length; state.truncate(4)                                 # of a state that grows
state = session.new_state(saved)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from threading import Lock
from typing import Any

import numpy as np

from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.runtime.abi import STATE_HASH_BYTES, STATUS_MESSAGES, ffi
from aotc.runtime.fork_safety import new_fork_safe_lock_for
from aotc.runtime.library import Library
from aotc.runtime.tensor_info import allocate_aligned_bytes, memory_address


class State:
    """Contents of the tensors that a model keeps between runs: a block of memory.

    nbytes     size of the block in bytes
    capacity   largest length of a state that grows; None for a state of a fixed size

    Only one run at a time may use a state: give each thread a state of its own. The bytes of a state have no
    addresses, so that they can be stored and loaded by another process with the same library.
    """

    def __init__(self, library: Library, data: bytes | None = None) -> None:
        self._library = library
        self._lock = new_fork_safe_lock_for(self)
        self.nbytes = library.state_bytes
        growing = library.growing_state
        self.capacity: int | None = None if growing is None else int(growing.capacity)
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

    @property
    def length(self) -> int:
        """The length of a state that grows: what runs have appended since the first one, or since `truncate`.

        Raises AotcError (code "state") for a state of a fixed size.
        """
        return int(self._growing.length(self.pointer))

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` of what runs appended to a state that grows.

        Raises AotcError (code "state") if the state is shorter, and for a model that keeps other tensors, too,
        whose earlier contents are not known.
        """
        truncate = self._growing.truncate
        if truncate == ffi.NULL:
            text = f"a state of {self._library.name} cannot be truncated: not all of its tensors grow"
            raise AotcError("state", text, hint="keep copies of the state: state.copy()")
        with self.exclusive_use():
            if isinstance(length, bool) or not isinstance(length, Integral) or not 0 <= length <= self.length:
                text = f"a state of length {self.length} cannot be truncated to {length!r}"
                raise AotcError("state", text, hint="give a length that is not larger")
            truncate(self.pointer, int(length))

    def end_run(self) -> None:
        """Do what follows a run of the compiled model, while the lock is held: nothing."""

    @property
    def _growing(self) -> Any:
        """The C description of the state; AotcError (code "state") for a state of a fixed size."""
        if self._library.growing_state is None:
            raise AotcError("state", f"a state of {self._library.name} has a fixed size, and no length")
        return self._library.growing_state

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
        status = self._library.initialize_state(ffi.cast("void *", memory_address(self._memory)))
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
        if self.capacity is not None and self.length < 0:
            self._initialize()
            text = f"the bytes are not of a state of {self._library.name}: their length exceeds its capacity"
            raise AotcError("state", text, hint="store bytes(state) of a state of this library")


def require_fitting_state(library: Library, state: object) -> None:
    """Raise AotcError (code "state") unless a state is given for a model with state only, and is one of the
    model of a library.
    """
    if state is None:
        if library.state_bytes:
            text = f"{library.name} keeps tensors between runs, and needs a state"
            hint = "make one by state = session.new_state(), and pass it to each run: state=state"
            raise AotcError("state", text, hint=hint)
        return
    if not isinstance(state, State):
        text = f"state must be a State made by session.new_state(), not {type(state).__name__}"
        raise AotcTypeError("state", text)
    if not library.state_bytes:
        raise AotcError("state", f"{library.name} keeps nothing between runs: it takes no state")
    state.require_state_of(library)


class MeasuredState(State):
    """State for measurements: if it grows, it has one length before each run, and zeros as its first contents.

    length_of_runs   length before each run
    """

    def __init__(self, library: Library, length_of_runs: int) -> None:
        super().__init__(library)
        self._length_of_runs = length_of_runs
        self.end_run()

    def end_run(self) -> None:
        """Set the length back, also for models whose states cannot be truncated."""
        if self.capacity is not None:
            word = slice(STATE_HASH_BYTES, STATE_HASH_BYTES + np.dtype(np.uint32).itemsize)
            self._memory[word] = np.frombuffer(np.uint32(self._length_of_runs).tobytes(), np.uint8)
