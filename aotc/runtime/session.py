# SPDX-License-Identifier: Apache-2.0
"""Load compiled models through cffi and run them on numpy arrays.

session = load("build/net")                                     # a library, or the project that holds one
logits, = session.run(None, {"input": array})
binding = session.bind({"input": array})                        # fixed buffers for repeated runs
binding.run(); binding.outputs["logits"]

Neither a C compiler nor onnx is needed.  Calls into C release the GIL, and several threads may run
one session concurrently, because each run has its own workspace.  Sessions, except on GPUs, can be
used in forked children, and can be pickled: unpickling loads the library from its path with equal
options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir.diagnostics import AotcError, AotcTypeError, Diagnostic
from aotc.ir.dimension_ranges import DimRange
from aotc.ir.option_mentions_in_messages import option_text
from aotc.ir.string_slots import strings_of_slots
from aotc.runtime import tensor_info as tensors
from aotc.runtime.abi import CAPACITY_STATUS, SHAPE_STATUS, STATUS_CODE_MASK, STATUS_MESSAGES, ffi
from aotc.runtime.binding import Binding
from aotc.runtime.dlpack import is_on_gpu
from aotc.runtime.fork_safety import new_fork_safe_lock_for
from aotc.runtime.gpu_session import DeviceSession, open_gpu_for_library
from aotc.runtime.gpu_state import GpuState
from aotc.runtime.gpu_tensors import GpuRunTensors
from aotc.runtime.library import Library, ThreadPool, find_library
from aotc.runtime.plain_run import new_plain_run
from aotc.runtime.run_interface import POINTER_ARRAY_TYPE, RunInterface, memory_of_array
from aotc.runtime.run_sizes import (
    STATE_FULL_CODE,
    arrays_of_found_shapes,
    bytes_of_operands,
    infos_of_typical_run,
    new_array_for_found_shapes,
)
from aotc.runtime.state import MeasuredState, State, require_fitting_state
from aotc.runtime.tensor_info import (
    Array,
    TensorInfo,
    arrays_or_unfilled_c_buffers,
    convert_and_check_inputs,
    copy_array_pairs,
    pairs_of_distinct_arrays,
    raise_if_problems,
)

#: Number of combinations of input shapes whose sizes a session keeps.
_MAX_KNOWN_SIZES: Final = 1024


def load(
    path: str | Path,
    *,
    threads: int | ThreadPool = 1,
    isa: str | None = None,
    device: int | None = None,
    check: bool | str = False,
    weights: str | Path | None = None,
) -> Session:
    """Load a library file, or the library in the directory of an emitted project; return a session.

    threads    number of threads that divide the work of a run, 1 to 64, or the threads of another session
               (`session.threads`), which are then shared: their runs are executed one after another.
               The results are bitwise equal for any number.

    isa        instruction set of the kernels to run, if the library has several (see docs/targets/cpu.md);
               None: $AOTC_ISA, else the best one that the processor supports.  Results of different
               instruction sets may differ by rounding.

    device     number of the GPU that runs a library compiled for GPUs; None: the first

    check      compare the library with this SHA-256; True: with the one that `compile` wrote to the
               project's metadata.  The size of the file is always compared with its headers.

    weights    file of the parameters of a library that does not contain them (compiled with separate_weights);
               None: NAME_weights.bin in the folder of the library or in its project

    Raises AotcError: code "load" if the file is missing, truncated, not a compiled model, or has
    another version of the binary interface; "threads" if the threads cannot be created; "cpu" if
    the processor lacks instructions; "isa" if the library has no kernels for `isa`; "gpu" if there
    is no driver or no suitable GPU; "checksum" if the contents differ or no checksum is known;
    "weights" if the parameters are missing, damaged, or made for other code.
    """
    return Session(Library(find_library(Path(path), check), weights), threads, isa, device)


#: C arrays of pointers to inputs and outputs, pointer to the workspace, owner of the workspace.
_RunFrame: TypeAlias = tuple[Any, Any, Any, Array | DeviceSession]


class Session:
    """A compiled model, ready to run.

    name               name of the model
    version            version of the compiler that built it
    path               path of the library
    threads            threads that divide the work of a run; None: only the calling thread
    isa                instruction set of the kernels that run: the name of a target
    device             the GPU that runs the model; None for a model compiled for CPUs
    workspace_bytes    scratch memory of one run, in bytes
    dims               sizes of a run that shapes depend on, by name, with their ranges; empty if all shapes are known
    size_operands      sizes that are elements of inputs
    state_bytes        size of a state in bytes; 0 for a model that keeps nothing between runs
    weights_bytes      size of the parameters in the library, in bytes
    keep_alive         an object to keep alive with the session, such as a temporary directory

    The library is unloaded when the session and its bindings are no longer referenced.
    """

    def __init__(
        self, library: Library, threads: int | ThreadPool = 1, isa: str | None = None, device: int | None = None
    ) -> None:
        self._library = library
        self.isa = library.choose_instruction_set(isa)
        self._isa = ffi.new("char[]", self.isa.encode()) if len(library.isas) > 1 else ffi.NULL
        self.threads = threads if isinstance(threads, ThreadPool) else library.start_thread_pool(threads)
        self.device = open_gpu_for_library(library, device)
        self._arguments = self.threads or threads, isa, device
        self._options = self._allocate_run_options()
        self._call = library.run
        self._lock = new_fork_safe_lock_for(self)
        #: `next` counts a run. No other thread interrupts it, and it takes less time than a lock.
        self._runs = count()
        self._readings_of_count = 0
        self._frames: list[_RunFrame] = []
        self._sizes = library.sizes
        self._interface = RunInterface(library.inputs, library.outputs) if library.sizes is None else None
        self._interfaces_by_shapes: dict[tuple[Any, ...], RunInterface] = {}
        self._input_names = [info.name for info in library.inputs]
        self._state_position = len(library.inputs) + (library.sizes is not None)
        self._weights_position = self._state_position + bool(library.state_bytes)
        self._direct = all(i.c_memory_dtype == i.dtype.numpy for i in library.inputs)
        self._converted = [
            (k, i.dtype.numpy) for k, i in enumerate(library.outputs) if i.c_memory_dtype != i.dtype.numpy
        ]
        length, sizes = library.state_length_size, library.sizes
        self._length_size = length
        self._has_dims_with_length = length is not None and sizes is not None and sizes.has_dims_with(length)
        self._has_string_inputs = any(info.is_string for info in library.inputs)
        self._string_outputs = [k for k, info in enumerate(library.outputs) if info.is_string]
        is_plain = self._interface is not None and self._direct and self.device is None and not library.state_bytes
        is_plain = is_plain and not self._converted and not self._string_outputs and not self._has_string_inputs
        self._plain_run = None
        if is_plain and self._interface is not None:
            self._plain_run = new_plain_run(self._interface, self._frames, self._options, self._runs)
        self._places = {info.name: k for k, info in enumerate(library.outputs)}
        self.name = library.name
        self.version = library.version
        self.path = library.path
        extra_threads = 0 if self.threads is None else self.threads.count - 1
        self.workspace_bytes = library.workspace_bytes + extra_threads * library.thread_workspace_bytes
        self.weights_bytes = library.weights_bytes
        self.state_bytes = library.state_bytes
        self.dims: Mapping[str, DimRange] = MappingProxyType({}) if library.sizes is None else library.sizes.ranges
        self.size_operands = () if library.sizes is None else tuple(library.sizes.operands.values())
        self.keep_alive: object = None

    def __repr__(self) -> str:
        return f"<Session of {self.name!r} from {str(self.path)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self._library, *self._arguments)

    @property
    def calls(self) -> int:
        """The number of times that the compiled model was run, by all threads and bindings."""
        with self._lock:
            # a reading counts, too
            self._readings_of_count += 1
            return next(self._runs) - self._readings_of_count + 1

    def get_inputs(self) -> list[TensorInfo]:
        """Return the inputs, in order, with `.name`, `.shape`, `.dtype`, and `.type` as in ONNX
        Runtime.
        """
        return [info.as_strings for info in self._library.inputs]

    def typical_inputs(self) -> list[TensorInfo]:
        """Return the inputs as `get_inputs` does, with the shapes of a typical run: for each size, the
        one that the compiler compared costs for.
        """
        return [info.as_strings for info in infos_of_typical_run(self._sizes, self._library.inputs)]

    def get_outputs(self) -> list[TensorInfo]:
        """Return the model's outputs, in order, with `.name`, `.shape`, `.dtype`, and `.type` as in
        ONNX Runtime.
        """
        return [info.as_strings for info in self._library.outputs]

    def new_state(self, data: bytes | None = None) -> State:
        """Return a new state for runs of a model that keeps tensors between runs.

        data    contents, from `bytes(state)` of a state of this model; None: as before the first run

        Raises AotcError (code "state") if the model has no state, or if `data` are not the bytes of one.
        """
        if not self.state_bytes:
            text = f"{self.name} keeps nothing between runs"
            hint = "compile the model with " + option_text("state", {"PAST": "PRESENT"})
            raise AotcError("state", text, hint=hint + " to keep an output as an input of the next run")
        return State(self._library, data) if self.device is None else GpuState(self._library, self.device, data)

    def new_state_or_none(self, *, measured: bool = False) -> State | None:
        """Return a new state; None for a model that keeps nothing between runs.

        measured    True for runs whose times are measured: a state that grows has the typical length before each
        """
        if measured and self._length_size is not None and self._sizes is not None:
            return MeasuredState(self._library, self._sizes.typical[self._length_size])
        return self.new_state() if self.state_bytes else None

    def run(
        self,
        output_names: Iterable[str] | None,
        inputs: Mapping[str, Any],
        *,
        outputs: Any = None,
        stream: Any = None,
        state: State | None = None,
    ) -> list[Any]:
        """Run the model once; return the outputs with the given names, or all outputs for None or no names.

        inputs    an array for each name, of exactly the shape and dtype that `get_inputs` states; sizes of a run
                  (`session.dims`) follow from the shapes.  Arrays that are contiguous, aligned and in native byte
                  order are read in place, others are copied.  Strings are arrays of str objects or of numpy's str
                  type, and outputs arrays of str objects.  For a model that runs on a GPU, contiguous tensors in its
                  memory (with __dlpack__ or __cuda_array_interface__) are also read in place if aligned to 16 bytes
        outputs   None: new arrays; "device": new tensors in GPU memory, `DeviceArray`, which other libraries
                  can import by both protocols; or a mapping from names to arrays or tensors to write to
        stream    CUDA stream for the run: a number or a torch stream; None: the legacy stream, if tensors are
                  in GPU memory.  The results are complete when this function returns
        state     state of a model that keeps tensors between runs, from `new_state`; the run changes it, unless
                  it raises an error (code "state-full" if it has no room for what the run appends).  Another
                  thread must not use it at the same time

        Raises AotcError with one diagnostic for each problem.
        """
        plain = self._plain_run if output_names is outputs is stream is state is None else None
        if plain:
            done = plain(inputs, self._call, self._take_or_create_run_frame, self._failed_run_error)
            if done is not None:
                return done
        if self._has_string_inputs:
            inputs = tensors.with_slots_of_strings(inputs, self._library.inputs)
        interface = self._interface or self._interface_for_inputs(inputs, state)
        sources = interface.buffers_read_in_place(inputs) if self._direct else None
        chosen = self._output_positions_if_valid(output_names)
        if outputs is not None or stream is not None or (sources is None and _has_gpu_inputs(inputs)):
            return self._run_with_gpu_tensors(interface, output_names, inputs, outputs, stream, state)
        if sources is None or chosen is None:
            sources, chosen = self._validate_and_copy_inputs(interface, output_names, inputs)
        require_fitting_state(self._library, state)
        frame = self._take_or_create_run_frame()
        try:
            read, written, workspace, _ = frame
            for k, source in enumerate(sources):
                read[k] = source
            results: list[Array] = []
            if self._sizes is not None:
                read[len(sources)] = interface.sizes
            for k, (shape, dtype) in enumerate(interface.results):
                results.append(result := np.empty(shape, dtype))
                written[k] = memory_of_array(result)
            written[len(results)] = shapes = new_array_for_found_shapes(self._sizes)
            self._invoke_with_state(read, written, workspace, None, state, interface.length)
        finally:
            self._frames.append(frame)
        results = self._with_types_of_outputs(arrays_of_found_shapes(results, self._sizes, shapes))
        return [results[k] for k in chosen]

    def _with_types_of_outputs(self, results: list[Array]) -> list[Array]:
        """Return the arrays that C code wrote, those of other types than C's (16-bit floats, strings) converted."""
        for k, dtype in self._converted:
            results[k] = results[k].astype(dtype)
        for k in self._string_outputs:
            results[k] = strings_of_slots(results[k])
        return results

    def _invoke_with_state(
        self, read: Any, written: Any, workspace: Any, options: Any, state: State | None, length: int | None = None
    ) -> None:
        """Run the compiled model once; for a model with state, with exclusive use of `state`.

        length    length that the state must have; None for any
        """
        if state is None:
            self._invoke_compiled_model(read, written, workspace, options)
            return
        lock = state.require_lock()
        try:
            if length is not None and state.length != length:
                text = f"the shapes of the inputs are those of a state of length {length}; this one has length "
                hint = "bind arrays again after each run, as the shapes depend on the length"
                raise AotcError("state", text + str(state.length), hint=hint)
            read[self._state_position] = state.pointer
            self._invoke_compiled_model(read, written, workspace, options)
            state.end_run()
        finally:
            lock.release()

    def _run_with_gpu_tensors(
        self,
        interface: RunInterface,
        output_names: Iterable[str] | None,
        inputs: Any,
        outputs: Any,
        stream: Any,
        state: State | None,
    ) -> list[Any]:
        """Run the compiled model once, with inputs or outputs in GPU memory; return the outputs."""
        if self.device is None:
            text = f"{self.name} runs on the processor, which cannot use the memory of a GPU"
            hint = "compile with " + option_text("target", "cuda") + ", or copy the tensors to the host"
            raise AotcError("device-array", text, hint=hint)
        self.device.require_process_that_opened_gpu()
        require_fitting_state(self._library, state)
        exchange = GpuRunTensors(self.device, stream)
        numbers = _require_output_positions(self._library.outputs, output_names)
        sources = exchange.input_pointers(inputs, interface.inputs)
        targets = exchange.output_pointers(outputs, interface.outputs)
        if interface.sizes is not None:
            sources.append(interface.sizes)
        options = self._allocate_run_options(cuda=exchange.options)
        frame = self._take_or_create_run_frame()
        try:
            read, written, workspace, _ = frame
            for pointers, given in ((read, sources), (written, targets)):
                for k, pointer in enumerate(given):
                    pointers[k] = pointer
            self._invoke_with_state(read, written, workspace, options, state)
        finally:
            self._frames.append(frame)
        exchange.copy_outputs_to_caller_arrays()
        return [exchange.results[k] for k in numbers]

    def _interface_for_inputs(self, inputs: Mapping[str, Any], state: State | None = None) -> RunInterface:
        """Return the descriptions of tensors for the sizes that follow from the shapes and values of inputs
        and from the length of the state; AotcError if a shape, or another property of an input, does not fit the model.
        """
        assert self._sizes is not None
        tensors.require_mapping("input", inputs)
        length: dict[str, int] = {}
        if self._length_size is not None:
            require_fitting_state(self._library, state)
            assert state is not None
            # the same shapes fit any length if no shape depends on it, and no condition relates it to other sizes
            is_relevant = self._has_dims_with_length or len(self.dims) > 1
            length[self._length_size] = state.length if is_relevant else 0
        shapes: list[tuple[int, ...] | None] = [
            a.shape if type(a := inputs.get(name)) is np.ndarray else None for name in self._input_names
        ]
        key: tuple[Any, ...] = (*shapes, *length.values(), *bytes_of_operands(self._sizes, inputs))
        found = self._interfaces_by_shapes.get(key)
        if found is not None:
            return found
        values, problems = self._sizes.values_from_inputs(inputs, self._library.inputs, length)
        if problems or len(values) < len(self.dims):
            # of the properties of inputs, all but the shapes are compared with the model's
            others = [] if _has_gpu_inputs(inputs) else convert_and_check_inputs(inputs, self._library.inputs)[1]
            raise_if_problems([*(d for d in others if d.code != "input-shape"), *problems])
            text = "the sizes of the run are not known: an input is missing, or has no shape"
            raise AotcError("input-shape", text)
        interface = self._interface_for_sizes(values)
        if None not in key:
            if len(self._interfaces_by_shapes) >= _MAX_KNOWN_SIZES:
                self._interfaces_by_shapes.clear()
            self._interfaces_by_shapes[key] = interface
        return interface

    def _interface_for_sizes(self, values: Mapping[str, int]) -> RunInterface:
        """Return the descriptions of tensors for sizes; AotcError if the model does not run with them."""
        assert self._sizes is not None
        shapes = self._sizes.input_shapes(values), self._sizes.output_shapes(values)
        inputs, outputs = (
            [replace(info, shape=list(shape), bounds=None) for info, shape in zip(infos, sides, strict=True)]
            for infos, sides in zip((self._library.inputs, self._library.outputs), shapes, strict=True)
        )
        length = values[self._length_size] if self._length_size is not None and self._has_dims_with_length else None
        return RunInterface(inputs, outputs, self._sizes.values_array(values), length)

    def _output_positions_if_valid(self, output_names: Iterable[str] | None) -> Iterable[int] | None:
        """Return the positions of the outputs with the given names; None if the names need
        validation.
        """
        if output_names is None:
            return self._places.values()
        try:
            return (
                [self._places[name] for name in output_names] if type(output_names) is list and output_names else None
            )
        except (KeyError, TypeError):
            return None

    def _validate_and_copy_inputs(
        self, interface: RunInterface, output_names: Iterable[str] | None, inputs: Mapping[str, Any]
    ) -> tuple[list[Any], Iterable[int]]:
        """Validate the inputs; return buffers for C, copied if needed, and the positions of the
        named outputs.
        """
        arrays, problems = convert_and_check_inputs(inputs, interface.inputs)
        numbers = _require_output_positions(self._library.outputs, output_names, problems)
        buffers = arrays_or_unfilled_c_buffers(arrays, interface.inputs)
        copy_array_pairs(pairs_of_distinct_arrays(buffers, arrays))
        return list(map(memory_of_array, buffers)), numbers

    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, *, state: State | None = None
    ) -> Binding:
        """Bind arrays to inputs and outputs for repeated runs; the caller changes their contents
        between runs.

        inputs     an array for each name.  Arrays that C can read in place are; others are copied at each run.
                   Strings, also of outputs, are slots of bytes here (`aotc.ir.string_slots`)
        outputs    arrays to write to, by name: contiguous, aligned, writable, and not overlapping each other
                   or an input that is read in place.  Outputs not named get new arrays.
        state      state that each run changes, of a model that keeps tensors between runs

        Raises AotcError with one diagnostic for each problem.
        """
        given = {} if outputs is None else outputs
        interface = self._interface or self._interface_for_inputs(inputs, state)
        arrays, problems = convert_and_check_inputs(inputs, interface.inputs)
        raise_if_problems([*problems, *tensors.diagnose_output_arrays(given, interface.outputs)])
        require_fitting_state(self._library, state)
        return Binding(self, interface, arrays, given, state)

    def _take_or_create_run_frame(self) -> _RunFrame:
        """Return the workspace and pointer arrays of one run: a free one of an earlier run, else a
        new one.

        Taking one is atomic, also with respect to signal handlers.
        """
        try:
            return self._frames.pop()
        except IndexError:
            memory, workspace = self._allocate_workspace()
            # one more for a state and for the parameters, and for the shapes of outputs
            counts = self._state_position + 2, len(self._library.outputs) + 1
            read, written = (ffi.new(POINTER_ARRAY_TYPE, max(1, count)) for count in counts)
            self._set_pointer_to_weights(read)
            return read, written, workspace, memory

    def _set_pointer_to_weights(self, read: Any) -> None:
        """Write the address of the parameters, if they are not in the library, to a C array of pointers to inputs."""
        if self._library.weights is not None:
            read[self._weights_position] = self._library.weights.pointer

    def _allocate_workspace(self) -> tuple[Array | DeviceSession, Any]:
        if self.device is not None:
            session = DeviceSession(self.device)
            return session, ffi.cast("void *", session.pointer)
        memory = tensors.allocate_aligned_bytes(self.workspace_bytes, self._library.workspace_alignment)
        return memory, ffi.cast("void *", tensors.memory_address(memory))

    def _allocate_run_options(self, on_step: Any = ffi.NULL, context: Any = ffi.NULL, cuda: Any = ffi.NULL) -> Any:
        """Allocate the C structure `aotc_run_options` that is passed to a run of the compiled
        model: step callback, threads, instruction set and GPU options.
        """
        size = ffi.sizeof("aotc_run_options")
        threads = ffi.NULL if self.threads is None else self.threads.pointer
        return ffi.new("aotc_run_options *", [size, on_step, context, threads, self._isa, cuda])

    def _invoke_compiled_model(self, inputs: Any, outputs: Any, workspace: Any, options: Any = None) -> None:
        next(self._runs)
        if self.device is not None:
            self.device.require_process_that_opened_gpu()
        status = self._call(inputs, outputs, workspace, self._options if options is None else options)
        if status != 0:
            raise self._failed_run_error(status, workspace)

    def _failed_run_error(self, status: int, workspace: Any) -> AotcError:
        """Return the error for a run that returned a status other than 0."""
        reason = STATUS_MESSAGES.get(status & STATUS_CODE_MASK, "unknown status")
        if self._sizes is not None and (violated := self._sizes.reason(status)):
            # the text of a condition says more than that of the status
            reason = violated if status & STATUS_CODE_MASK == SHAPE_STATUS else f"{reason}: {violated}"
        if self.device is not None:
            reason += self.device.driver_error_text(status, workspace)
        code = STATE_FULL_CODE if status & STATUS_CODE_MASK == CAPACITY_STATUS else "run"
        return AotcError(code, f"{self.name}_run failed with status {status}: {reason}")


def _require_output_positions(
    outputs: Sequence[TensorInfo], names: Iterable[str] | None, problems: Sequence[Diagnostic] = ()
) -> list[int]:
    """Return the positions of the named outputs, of all outputs if there are no names; AotcError for
    unknown names and for earlier `problems`.
    """
    if isinstance(names, str):
        raise AotcTypeError("output-type", "output names must be a list, not a string", hint=f"[{names!r}]")
    places = {info.name: k for k, info in enumerate(outputs)}
    chosen = list(names or ()) or list(places)
    raise_if_problems([*problems, *tensors.diagnose_unknown_names("output", chosen, outputs)])
    return [places[name] for name in chosen]


def _has_gpu_inputs(inputs: object) -> bool:
    return isinstance(inputs, Mapping) and any(map(is_on_gpu, inputs.values()))
