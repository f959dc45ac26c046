# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of one run on a GPU, each of which may be in GPU or host memory.

run = GpuRunTensors(device, stream)
sources = run.input_pointers({"x": torch_tensor}, library.inputs)       # pointers for C
targets = run.output_pointers("device", library.outputs)
run.copy_outputs_to_caller_arrays(), run.results  # after the run
"""

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

from aotc.ir import AotcError, Diagnostic
from aotc.runtime import tensor_info as tensors
from aotc.runtime.abi import ffi
from aotc.runtime.dlpack import LEGACY_DEFAULT_STREAM, DeviceArray, view_gpu_tensor
from aotc.runtime.gpu_session import OpenGpu
from aotc.runtime.tensor_info import (
    Array,
    TensorInfo,
    arrays_or_unfilled_c_buffers,
    convert_and_check_inputs,
    copy_array_pairs,
    pairs_of_distinct_arrays,
    raise_if_problems,
)


def cuda_stream_handle(stream: Any) -> int:
    """Return a CUDA stream as the driver's number, from a number or a torch stream; the legacy
    stream for 0 and None.

    Raises AotcError (code "device-array") for anything else.
    """
    handle = getattr(stream, "cuda_stream", stream)
    if handle is not None and (isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < 1 << 64):
        text = f"a CUDA stream must be a number or have one as its cuda_stream, not {type(stream).__name__}"
        hint = "pass a torch stream, such as torch.cuda.current_stream(), or its number"
        raise AotcError("device-array", text, hint=hint)
    return handle or LEGACY_DEFAULT_STREAM


class GpuRunTensors:
    """Inputs and outputs of one run of a model on a GPU, checked and converted to pointers for C.

    options    C structure of the run's options
    results    outputs in order: the arrays given by the caller, and new ones
    """

    def __init__(self, device: OpenGpu, stream: Any) -> None:
        self._driver, self._stream = device.cuda_driver, cuda_stream_handle(stream)
        self.options = ffi.new("aotc_cuda_options *", [ffi.sizeof("aotc_cuda_options")])
        self.options.stream = ffi.cast("void *", self._stream)
        self.results: list[Any] = []
        self._problems: list[Diagnostic] = []
        self._places: dict[str, tuple[int, int]] = {}
        self._objects_alive_until_end: list[Any] = []
        self._stores: list[tuple[Array, Array]] = []

    def input_pointers(self, tensors_by_name: Mapping[str, Any], infos: Sequence[TensorInfo]) -> list[Any]:
        """Return pointers to the inputs for C; inputs that C cannot read in place are copied.

        Raises AotcError listing missing, unknown and mismatched inputs.
        """
        buffer_by_name, host_tensors = self._split_gpu_and_host_tensors("input", tensors_by_name, infos)
        known = [info for info in infos if info.name not in buffer_by_name]
        arrays, problems = convert_and_check_inputs(host_tensors, known)
        raise_if_problems(self._problems + problems)
        buffers = arrays_or_unfilled_c_buffers(arrays, known)
        copy_array_pairs(pairs_of_distinct_arrays(buffers, arrays))
        buffer_by_name |= {info.name: buffer for info, buffer in zip(known, buffers, strict=True)}
        return [self._require_no_overlap_and_return_pointer("input", info, buffer_by_name[info.name]) for info in infos]

    def output_pointers(self, destination: Any, infos: Sequence[TensorInfo]) -> list[Any]:
        """Return pointers to the outputs for C.

        "device" allocates all outputs in GPU memory; otherwise outputs given by name are used, and
        the remaining ones are new arrays in host memory.
        """
        there = isinstance(destination, str) and destination == "device"
        if not there and not isinstance(destination, Mapping | None):
            text = f'outputs go to the "device" or into arrays by their names, not to {destination!r:.80}'
            raise AotcError("device-array", text)
        given = destination if isinstance(destination, Mapping) else {}
        gpu_arrays, host_tensors = self._split_gpu_and_host_tensors("output", given, infos)
        raise_if_problems(self._problems + tensors.diagnose_output_arrays(host_tensors, infos))
        pointers = []
        for info in infos:
            array: Any = gpu_arrays.get(info.name)
            if there:
                array = self._driver.allocate_tensor(tuple(info.shape), info.c_memory_dtype)
            elif array is None:
                result = host_tensors.get(info.name, np.empty(info.shape, info.dtype.numpy))
                (array,) = arrays_or_unfilled_c_buffers([result], [info])
                self._stores += pairs_of_distinct_arrays([result], [array])
                host_tensors[info.name] = result
            self.results.append(given.get(info.name, host_tensors.get(info.name, array)))
            pointers.append(self._require_no_overlap_and_return_pointer("output", info, array))
        return pointers

    def _split_gpu_and_host_tensors(
        self, role: str, tensors_by_name: Mapping[str, Any], infos: Sequence[TensorInfo]
    ) -> tuple[dict[str, Any], ...]:
        """Split the given tensors into those in GPU memory, which are checked, and all others.

        Waits for the streams that produce the GPU tensors.
        """
        arrays = {name: view_gpu_tensor(value, self._stream) for name, value in tensors_by_name.items()}
        gpu_arrays = {name: array for name, array in arrays.items() if array is not None}
        host_tensors = {name: tensors_by_name[name] for name, array in arrays.items() if array is None}
        self._problems += tensors.diagnose_unknown_names(role, gpu_arrays, infos)
        for info in infos:
            if info.name in gpu_arrays:
                self._problems += self._diagnose_gpu_tensor(role, info, gpu_arrays[info.name])
        for array in gpu_arrays.values():
            if array.stream not in (None, self._stream):
                self._driver("cuStreamSynchronize", c_void_p(array.stream))
        return gpu_arrays, host_tensors

    def _diagnose_gpu_tensor(self, role: str, info: TensorInfo, array: DeviceArray) -> Iterator[Diagnostic]:
        yield from tensors.diagnose_dtype_and_shape(role, info, array)
        problem = array.problem
        if array.fixed and role == "output":
            problem = "may not be written"
        if array.nbytes and self._driver.gpu_owning_address(array.pointer) != self._driver.number:
            problem = f"does not lie on GPU {self._driver.number}, which runs the model"
        if problem:
            yield Diagnostic("device-array", f"{role} {info.name!r} {problem}")

    def _require_no_overlap_and_return_pointer(self, role: str, info: TensorInfo, array: Any) -> Any:
        """Return a pointer to an array; AotcError if an output overlaps another output or an input."""
        here = array.pointer if isinstance(array, DeviceArray) else tensors.memory_address(array)
        other_ranges = self._places if role == "output" else {}
        for name, (begin, end) in other_ranges.items():
            if here < end and begin < here + array.nbytes:
                text = f"output {info.name!r} and {name} share memory"
                raise AotcError("output-overlap", text, hint="give each its own array")
        self._places[f"{role} {info.name!r}"] = here, here + array.nbytes
        self._objects_alive_until_end.append(array)
        return ffi.cast("void *", here) if array.nbytes else ffi.NULL

    def copy_outputs_to_caller_arrays(self) -> None:
        """Complete a GPU run: convert outputs in C's memory format to the caller's arrays where
        they differ.
        """
        copy_array_pairs(self._stores)
