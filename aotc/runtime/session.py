# SPDX-License-Identifier: Apache-2.0
"""Compiled models in Python: loaded through cffi, run on numpy arrays.

session = load("build/net")                                     # a library, or the project that holds one
logits, = session.run(None, {"input": array})
binding = session.bind({"input": array})                        # fixed buffers for repeated runs
binding.run(); binding.outputs["logits"]

Neither a C compiler nor onnx is needed.  Calls into C release the interpreter lock, and threads may run one
session at the same time: each run has a workspace of its own.  Sessions work in forked children, those on GPUs
excepted, and can be pickled: they are loaded again from their path, with the same options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from aotc.ir.diagnostics import AotcError, AotcTypeError, Diagnostic
from aotc.runtime import tensor_info as tensors
from aotc.runtime.abi import STATUS_MESSAGES, ffi
from aotc.runtime.dlpack import is_on_gpu
from aotc.runtime.fork_safety import own_lock
from aotc.runtime.gpu_session import DeviceSession, open_device
from aotc.runtime.gpu_tensors import Exchange
from aotc.runtime.library import Library, Threads, find_library
from aotc.runtime.tensor_info import Array, TensorInfo, check_inputs, moves, own_memory, require_none, transfer

_POINTERS: Final = ffi.typeof("void *[]")
#: Flags of numpy arrays that are aligned and C-contiguous.
_IN_PLACE: Final = 0x101
#: An array's memory, as C sees it.
_memory: Final = ffi.from_buffer


def load(
    path: str | Path,
    *,
    threads: int | Threads = 1,
    isa: str | None = None,
    device: int | None = None,
    check: bool | str = False,
) -> Session:
    """Load a library file, or the library in the directory of an emitted project.

    threads    how many threads share the work of a run, 1 to 64; or those of another session (`session.threads`),
               which then share them: their runs follow one another.  Results are the same bits for any number.

    isa        the instruction set whose kernels run, where a library has several (see docs/targets.md); for None that
               of the environment variable AOTC_ISA, else the best that the processor has.  Results may differ by
               rounding between them.

    device     the GPU that runs a library compiled for GPUs, by its number; the first for None

    check      compare the whole library with its SHA-256 first: the one given, or for True that which `compile` wrote
               into the project's metadata.  In any case its headers are compared with the size of the file.

    Raises AotcError (code "load") for a missing file, one that is no compiled model or was cut short, and one
    compiled for another version of the binary interface; code "threads" for threads that cannot be had; code "cpu"
    where the processor lacks instructions, "isa" for kernels that the library does not have; code "gpu" where there
    is no GPU that can run it, or no driver; code "checksum" for other contents than those that were written, and where
    nothing states these.
    """
    return Session(Library(find_library(Path(path), check)), threads, isa, device)


def _pointers(arrays: Sequence[Array]) -> Any:
    """A C array of addresses; never NULL, since a model without inputs still takes a list of them."""
    return ffi.new(_POINTERS, list(map(_memory, arrays)) or 1)


#: Pointers to inputs, to outputs, to the workspace; what keeps that.
_Frame: TypeAlias = tuple[Any, Any, Any, Array | DeviceSession]


class Session:
    """A compiled model, ready to run.

    name               of the model
    version            of the compiler that made it
    path               of the library
    threads            that share the work of a run; None for the calling thread alone
    isa                the instruction set of the kernels that run: the name of a target
    device             the GPU that runs the model; None for one that was compiled for processors
    workspace_bytes    scratch memory of one run
    weights_bytes      parameters inside the library
    keep_alive         whatever must live as long as the session, such as a temporary directory

    The library is closed when the session and its bindings are no longer referred to.
    """

    def __init__(
        self, library: Library, threads: int | Threads = 1, isa: str | None = None, device: int | None = None
    ) -> None:
        self._library = library
        self.isa = library.choose_isa(isa)
        self._isa = ffi.new("char[]", self.isa.encode()) if len(library.isas) > 1 else ffi.NULL
        self.threads = threads if isinstance(threads, Threads) else library.start_threads(threads)
        self.device = open_device(library, device)
        self._arguments = self.threads or threads, isa, device
        self._options = self._options_with()
        self._call = library.run
        self._lock = own_lock(self)
        self._calls = 0
        self._frames: list[_Frame] = []
        self._expected = [(i.name, i.dtype.numpy, tuple(i.shape)) for i in library.inputs]
        self._direct = all(i.memory == i.dtype.numpy for i in library.inputs)
        self._results = [(tuple(i.shape), i.memory) for i in library.outputs]
        self._converted = [(k, i.dtype.numpy) for k, i in enumerate(library.outputs) if i.memory != i.dtype.numpy]
        self._places = {info.name: k for k, info in enumerate(library.outputs)}
        self.name = library.name
        self.version = library.version
        self.path = library.path
        more = 0 if self.threads is None else self.threads.count - 1
        self.workspace_bytes = library.workspace_bytes + more * library.thread_workspace_bytes
        self.weights_bytes = library.weights_bytes
        self.keep_alive: object = None

    def __repr__(self) -> str:
        return f"<Session of {self.name!r} from {str(self.path)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self._library, *self._arguments)

    @property
    def calls(self) -> int:
        """How many times C was called, by all threads and bindings."""
        return self._calls

    def get_inputs(self) -> list[TensorInfo]:
        """The inputs, in order: `.name`, `.shape`, `.type` as ONNX Runtime spells it, `.dtype`."""
        return list(self._library.inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """The outputs, in order, described like the inputs."""
        return list(self._library.outputs)

    def run(
        self, output_names: Iterable[str] | None, inputs: Mapping[str, Any], *, outputs: Any = None, stream: Any = None
    ) -> list[Any]:
        """Run once: the outputs with these names, or all of them, in order, for None (or no names).

        inputs    an array for each name, of exactly the shape and dtype that `get_inputs` states.  Arrays that
                  are contiguous, aligned and in the machine's byte order are read in place, others copied.  For a
                  model that runs on a GPU, tensors in its memory, which have __dlpack__ or __cuda_array_interface__,
                  are read in place, too, if they begin at a multiple of 16 bytes; they must be contiguous
        outputs   None: new arrays; "device": new tensors in the GPU's memory, `DeviceArray`, which others take by
                  both protocols; or by name arrays or tensors to write into
        stream    of the GPU in which it runs, after what was put into it before: a number, or torch's; the legacy
                  stream for None where tensors lie in the GPU's memory.  Results are there when this returns

        Raises AotcError with one diagnostic for each thing that is wrong.
        """
        sources = self._in_place(inputs)
        chosen = self._chosen(output_names)
        if outputs is not None or stream is not None or (sources is None and _names_gpu(inputs)):
            return self._run_there(output_names, inputs, outputs, stream)
        if sources is None or chosen is None:
            sources, chosen = self._prepared(output_names, inputs)
        frame = self._take_frame()
        try:
            read, written, workspace, _ = frame
            for k, source in enumerate(sources):
                read[k] = source
            results: list[Array] = []
            for k, (shape, dtype) in enumerate(self._results):
                results.append(result := np.empty(shape, dtype))
                written[k] = _memory(result)
            self._invoke(read, written, workspace)
        finally:
            self._frames.append(frame)
        for k, dtype in self._converted:
            results[k] = results[k].astype(dtype)
        return [results[k] for k in chosen]

    def _run_there(self, names: Iterable[str] | None, inputs: Any, outputs: Any, stream: Any) -> list[Any]:
        """A run with tensors in the memory of the GPU."""
        if self.device is None:
            text = f"{self.name} runs on the processor, which cannot use the memory of a GPU"
            raise AotcError("device-array", text, hint="compile with --target cuda, or copy the tensors to the host")
        self.device.require_here()
        exchange = Exchange(self.device, stream)
        numbers = self._numbers(names)
        sources = exchange.inputs(inputs, self._library.inputs)
        targets = exchange.outputs(outputs, self._library.outputs)
        options = self._options_with(cuda=exchange.options)
        frame = self._take_frame()
        try:
            read, written, workspace, _ = frame
            for pointers, given in ((read, sources), (written, targets)):
                for k, pointer in enumerate(given):
                    pointers[k] = pointer
            self._invoke(read, written, workspace, options)
        finally:
            self._frames.append(frame)
        exchange.finish()
        return [exchange.results[k] for k in numbers]

    def _in_place(self, inputs: Mapping[str, Any]) -> list[Any] | None:
        """The memory of inputs that are as they must be and that C can read as they are; None where one is not."""
        if type(inputs) is not dict or len(inputs) != len(self._expected) or not self._direct:
            return None
        found = []
        for name, dtype, shape in self._expected:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.shape != shape:
                return None
            if (array.dtype is not dtype and array.dtype != dtype) or array.flags.num & _IN_PLACE != _IN_PLACE:
                return None
            # while that exists, the array cannot be resized
            found.append(_memory(array))
        return found

    def _chosen(self, names: Iterable[str] | None) -> Iterable[int] | None:
        """The numbers of the outputs with these names; None for what needs a closer look."""
        if names is None:
            return self._places.values()
        try:
            return [self._places[name] for name in names] if type(names) is list and names else None
        except (KeyError, TypeError):
            return None

    def _prepared(self, names: Iterable[str] | None, inputs: Mapping[str, Any]) -> tuple[list[Any], Iterable[int]]:
        """The inputs' memory, copies where C cannot read them as they are, and the numbers of the outputs named."""
        arrays, problems = check_inputs(inputs, self._library.inputs)
        numbers = self._numbers(names, problems)
        buffers = own_memory(arrays, self._library.inputs)
        transfer(moves(buffers, arrays))
        return list(map(_memory, buffers)), numbers

    def _numbers(self, names: Iterable[str] | None, problems: Sequence[Diagnostic] = ()) -> list[int]:
        """Those of the outputs with these names; AotcError for unknown ones, and for problems found before."""
        if isinstance(names, str):
            raise AotcTypeError("output-type", "output names must be a list, not a string", hint=f"[{names!r}]")
        wanted = list(names or ()) or list(self._places)
        require_none([*problems, *tensors.unknown_names("output", wanted, self._library.outputs)])
        return [self._places[name] for name in wanted]

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Binding:
        """Fix the buffers of repeated runs; change the contents of the arrays between them.

        inputs     an array for each name.  Those that C can read in place are; the others are copied anew at
                   each run.
        outputs    arrays to write into, by name: contiguous, aligned, writable, and overlapping neither each
                   other nor an input that is read in place.  Outputs that are not named get new arrays.

        Raises AotcError with one diagnostic for each thing that is wrong.
        """
        given = {} if outputs is None else outputs
        arrays, problems = check_inputs(inputs, self._library.inputs)
        require_none([*problems, *tensors.check_outputs(given, self._library.outputs)])
        return Binding(self, arrays, given)

    def _take_frame(self) -> _Frame:
        """What one run at a time has for itself: kept for the next one, taken by one thread (or one signal handler
        within it) at a time."""
        try:
            return self._frames.pop()
        except IndexError:
            memory, workspace = self._new_workspace()
            sides = self._library.inputs, self._library.outputs
            read, written = (ffi.new(_POINTERS, max(1, len(side))) for side in sides)
            return read, written, workspace, memory

    def _new_workspace(self) -> tuple[Array | DeviceSession, Any]:
        if self.device is not None:
            session = DeviceSession(self.device)
            return session, ffi.cast("void *", session.pointer)
        memory = tensors.aligned(self.workspace_bytes, self._library.workspace_alignment)
        return memory, ffi.cast("void *", tensors.address(memory))

    def _options_with(self, on_step: Any = ffi.NULL, context: Any = ffi.NULL, cuda: Any = ffi.NULL) -> Any:
        """Options of a run: what to call before each step, the threads, the instruction set, those of the GPU."""
        size = ffi.sizeof("aotc_run_options")
        threads = ffi.NULL if self.threads is None else self.threads.pointer
        return ffi.new("aotc_run_options *", [size, on_step, context, threads, self._isa, cuda])

    def _invoke(self, inputs: Any, outputs: Any, workspace: Any, options: Any = None) -> None:
        with self._lock:
            self._calls += 1
        if self.device is not None:
            self.device.require_here()
        status = self._call(inputs, outputs, workspace, self._options if options is None else options)
        if status != 0:
            reason = STATUS_MESSAGES.get(status, "unknown status")
            if self.device is not None:
                reason += self.device.explain(status, workspace)
            raise AotcError("run", f"{self.name}_run failed with status {status}: {reason}")


class Binding:
    """A session with fixed buffers: runs allocate and check nothing.

    inputs, outputs    the arrays, by name

    A binding has a workspace of its own.  Runs of one binding by several threads come one after the other.
    """

    def __init__(self, session: Session, inputs: Sequence[Array], outputs: Mapping[str, Array]) -> None:
        infos_in = session.get_inputs()
        infos_out = session.get_outputs()
        results = [outputs[i.name] if i.name in outputs else np.empty(i.shape, i.dtype.numpy) for i in infos_out]
        self._session = session
        self._lock = own_lock(self)
        self.inputs: Mapping[str, Array] = _by_name(infos_in, inputs)
        self.outputs: Mapping[str, Array] = _by_name(infos_out, results)
        sources = own_memory(inputs, infos_in)
        targets = own_memory(results, infos_out)
        if outputs:
            _require_apart(dict(self.outputs), dict(zip(self.inputs, sources, strict=True)))
        self._loads = moves(sources, inputs)
        self._stores = moves(results, targets)
        self._memory, workspace = session._new_workspace()
        self._keep = sources, targets
        self._arguments = _pointers(sources), _pointers(targets), workspace

    def __reduce__(self) -> NoReturn:
        text = "a binding cannot be pickled: its buffers are memory of this process"
        raise AotcTypeError("pickle", text, hint="pickle the session, and bind there")

    def run(self) -> None:
        """Run once on the bound buffers."""
        self._run(None)

    def run_watched(self, on_step: int, context: int) -> None:
        """Run once; C calls a function before each step of the schedule, and after the last.

        on_step    address of an `aotc_step_fn`, as aotc.h describes it
        context    address that it is given
        """
        self._run(self._session._options_with(ffi.cast("aotc_step_fn", on_step), ffi.cast("void *", context)))

    def run_timed(self, events: Any) -> None:
        """Run once on a GPU, one kernel after the other; an event of its driver's is recorded before them and after
        each.

        events    C's array of their addresses: one more than there are steps
        """
        how = ffi.new("aotc_cuda_options *", {"size": ffi.sizeof("aotc_cuda_options"), "events": events})
        self._run(self._session._options_with(cuda=how))

    def _run(self, options: Any) -> None:
        with self._lock:
            transfer(self._loads)
            self._session._invoke(*self._arguments, options)
            transfer(self._stores)


def _names_gpu(inputs: object) -> bool:
    return isinstance(inputs, Mapping) and any(map(is_on_gpu, inputs.values()))


def _by_name(infos: Sequence[TensorInfo], arrays: Sequence[Array]) -> Mapping[str, Array]:
    return MappingProxyType({info.name: array for info, array in zip(infos, arrays, strict=True)})


def _require_apart(outputs: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
    """Raise AotcError if an output shares bytes with another one or with an input that is read in place."""
    written = [(f"output {name!r}", array) for name, array in outputs.items()]
    read = [(f"input {name!r}", array) for name, array in inputs.items()]
    pairs = chain(combinations(written, 2), product(written, read))
    shared = [f"{first} and {second} share memory" for (first, a), (second, b) in pairs if np.may_share_memory(a, b)]
    require_none([Diagnostic("output-overlap", text, hint="give each its own array") for text in shared])
