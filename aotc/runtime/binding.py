# SPDX-License-Identifier: Apache-2.0
"""Repeated runs of a compiled model on the same arrays, which a run neither checks nor allocates.

binding = session.bind({"input": array})
binding.run(); binding.outputs["logits"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.runtime.abi import ffi
from aotc.runtime.fork_safety import new_fork_safe_reentrant_lock_for
from aotc.runtime.run_interface import RunInterface, new_ffi_array_of_addresses, require_no_memory_overlap
from aotc.runtime.run_sizes import arrays_of_found_shapes, bound_operands, new_array_for_found_shapes
from aotc.runtime.state import State
from aotc.runtime.tensor_info import (
    Array,
    TensorInfo,
    arrays_or_unfilled_c_buffers,
    copy_array_pairs,
    pairs_of_distinct_arrays,
)

if TYPE_CHECKING:
    from aotc.runtime.session import Session


class Binding:
    """A session with fixed buffers: a run allocates and checks nothing.

    inputs, outputs    the arrays, by name.  An output whose size a run finds has room for the largest one; after
                       a run it is a view of the beginning of the array, of the shape that was found

    A binding has its own workspace.  Runs of one binding by several threads are executed one after
    another.  A run within a run, such as by a function that is called before each step, raises AotcError (code "run").
    """

    def __init__(
        self,
        session: Session,
        interface: RunInterface,
        inputs: Sequence[Array],
        outputs: Mapping[str, Array],
        state: State | None = None,
    ) -> None:
        infos_in, infos_out = interface.inputs, interface.outputs
        results = [outputs[i.name] if i.name in outputs else np.empty(i.shape, i.dtype.numpy) for i in infos_out]
        self._session = session
        self._lock = new_fork_safe_reentrant_lock_for(self)
        self.inputs: Mapping[str, Array] = _arrays_by_tensor_name(infos_in, inputs)
        self.outputs: Mapping[str, Array] = _arrays_by_tensor_name(infos_out, results)
        sources = arrays_or_unfilled_c_buffers(inputs, infos_in)
        targets = arrays_or_unfilled_c_buffers(results, infos_out)
        if outputs:
            require_no_memory_overlap(dict(self.outputs), dict(zip(self.inputs, sources, strict=True)))
        self._loads = pairs_of_distinct_arrays(sources, inputs)
        self._stores = pairs_of_distinct_arrays(results, targets)
        self._memory, workspace = session._allocate_workspace()
        self._keep = sources, targets, interface.sizes
        self._operands = bound_operands(session._sizes, self.inputs)
        given = new_ffi_array_of_addresses(sources, interface.sizes)
        session._set_pointer_to_weights(given)
        self._found, self._results = new_array_for_found_shapes(session._sizes), results
        self._arguments = given, new_ffi_array_of_addresses(targets, self._found), workspace
        self._state, self._length = state, interface.length
        # nothing to check, copy or find out beside the call, which takes about as long as a small model
        work = self._operands, self._loads, self._stores, state, session.device
        self._only_calls = not any(work) and self._found == ffi.NULL
        #: The lock of a run that is not finished. A forked child has another lock, and none of its parent's runs.
        self._lock_of_run: object = None
        self._call, self._runs = session._call, session._runs
        self._arguments_and_options = *self._arguments, session._options

    def __reduce__(self) -> NoReturn:
        text = "a binding cannot be pickled: its buffers are memory of this process"
        raise AotcTypeError("pickle", text, hint="pickle the session, and bind there")

    def run(self) -> None:
        """Run the compiled model once on the arrays bound to its inputs and outputs."""
        if not self._only_calls or self._lock_of_run is not None:
            self._run_with_options(None)
            return
        # A `with` statement takes twice the time of the calls of acquire and release, about as long as a small model.
        # Signals are handled after a call, before what follows it: `acquire` is within `try`.
        lock = self._lock
        try:
            lock.acquire()
            next(self._runs)
            status = self._call(*self._arguments_and_options)
        finally:
            try:  # noqa: SIM105 - a `with` statement takes more time
                lock.release()
            except RuntimeError:
                # The handler of a signal, such as that of Ctrl-C, raised an error while another thread had the lock:
                # it is not this thread's to release.
                pass
        if status != 0:
            raise self._session._failed_run_error(status, self._arguments[2])

    @property
    def symbol_values(self) -> dict[str, int]:
        """The values of the symbols in formulas of the model's metadata, by name; without those that a run finds."""
        sizes, (*_, values) = self._session._sizes, self._keep
        return {} if sizes is None else sizes.symbols_of_sizes(dict(zip(self._session.dims, values, strict=False)))

    def run_with_step_callback(self, on_step: int, context: int) -> None:
        """Run the model once; C calls a function before each step and after the last one.

        on_step    address of an `aotc_step_fn` (see aotc.h)
        context    address passed to it
        """
        self._run_with_options(
            self._session._allocate_run_options(ffi.cast("aotc_step_fn", on_step), ffi.cast("void *", context))
        )

    def run_recording_cuda_events(self, events: Any) -> None:
        """Run the model once on a GPU, recording CUDA events before the first and after each kernel.

        events    C array of event handles, one more than there are steps
        """
        how = ffi.new("aotc_cuda_options *", {"size": ffi.sizeof("aotc_cuda_options"), "events": events})
        self._run_with_options(self._session._allocate_run_options(cuda=how))

    def _run_with_options(self, options: Any) -> None:
        with (lock := self._lock):
            if self._lock_of_run is lock:
                text = f"{self._session.name} runs on these buffers already, in the same thread"
                raise AotcError("run", text, hint="a run within a run needs a binding of its own: session.bind(...)")
            self._lock_of_run = lock
            try:
                self._copy_and_run(options)
            finally:
                self._lock_of_run = None

    def _copy_and_run(self, options: Any) -> None:
        if self._operands:
            self._operands.require_unchanged(self.inputs)
        copy_array_pairs(self._loads)
        self._session._invoke_with_state(*self._arguments, options, self._state, self._length)
        copy_array_pairs(self._stores)
        if self._found != ffi.NULL:
            arrays = arrays_of_found_shapes(self._results, self._session._sizes, self._found)
            self.outputs = MappingProxyType(dict(zip(self.outputs, arrays, strict=True)))


def _arrays_by_tensor_name(infos: Sequence[TensorInfo], arrays: Sequence[Array]) -> Mapping[str, Array]:
    return MappingProxyType({info.name: array for info, array in zip(infos, arrays, strict=True)})
