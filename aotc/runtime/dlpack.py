# SPDX-License-Identifier: Apache-2.0
"""Exchange tensors in GPU memory with other libraries, through DLPack or __cuda_array_interface__.

array = view_gpu_tensor(tensor, stream)  # of torch, cupy, numba, jax; None for what lies in the host's memory
array.pointer, array.shape, array.dtype, array.problem
torch.from_dlpack(array), cupy.asarray(array)

No data is copied.  Specifications: DLPack's dlpack.h, the "Python Specification for DLPack", and
numba's "CUDA Array Interface (Version 3)".
"""

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, DType, frozen

_CUDA, _CUDA_MANAGED = 2, 13
_DLPACK_CAPSULE_NAME: Final = b"dltensor"
_DLPACK_CODE_BY_KIND: Final = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_KIND_BY_DLPACK_CODE: Final = {code: kind for kind, code in _DLPACK_CODE_BY_KIND.items()}
#: The legacy default stream, which synchronizes with other streams, in the driver and both protocols.
LEGACY_DEFAULT_STREAM: Final = 1


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        # this and the next field belong to DLManagedTensor
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


def _pycapsule_function(name: str, result_type: Any, *arguments: Any) -> Any:
    """Return a function of Python's C API for capsules, PyCapsule_NAME, callable through ctypes."""
    return ctypes.PYFUNCTYPE(result_type, *arguments)((f"PyCapsule_{name}", ctypes.pythonapi))


_freeing: Final[Any] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new: Final = _pycapsule_function("New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
#: Takes the address of the capsule: a destructor must not create new references to it.
_pointer_in: Final = _pycapsule_function("GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_is_valid: Final = _pycapsule_function("IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
#: Exported tensors by address, with the objects that they point to.
_EXPORTED_TENSORS: Final[dict[int, Any]] = {}


def _free_unconsumed_capsule(capsule_address: int) -> None:
    """Destructor of a DLPack capsule: free the tensor if the capsule was never consumed."""
    if _is_valid(capsule_address, _DLPACK_CAPSULE_NAME):
        _EXPORTED_TENSORS.pop(_pointer_in(capsule_address, _DLPACK_CAPSULE_NAME), None)


_free: Final = _freeing(lambda tensor: _EXPORTED_TENSORS.pop(tensor, None) and None)
_drop: Final = _freeing(_free_unconsumed_capsule)


@frozen
class DeviceArray:
    """A C-contiguous tensor in GPU memory.

    pointer    address of its first element
    shape      dimensions
    dtype      numpy dtype
    device     number of the GPU; None if unknown
    problem    reason why a model cannot read the tensor, such as its strides; "" if it can
    fixed      True if it is read-only
    stream     CUDA stream that produces the values, if it must still be waited for
    owner      object that owns the memory
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int | None
    problem: str = ""
    fixed: bool = False
    stream: int | None = None
    owner: Any = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        """Copy the tensor from GPU to host memory; only for tensors that a run of a model has
        created.
        """
        host_array = np.empty(self.shape, self.dtype)
        self.owner.copy_to_host(host_array.ctypes.data, host_array.nbytes)
        return host_array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind == "V":
            raise AttributeError(f"__cuda_array_interface__ has no {self.dtype.name}: take __dlpack__")
        data = (self.pointer, False)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "strides": None, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device or 0

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Return a DLPack capsule for `from_dlpack`; the values are complete, so no stream needs to
        wait for them.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("memory of a GPU is handed on as it is, not copied")
        return export_dlpack_capsule(self, self.__dlpack_device__())


def export_dlpack_capsule(array: Any, device: tuple[int, int]) -> Any:
    """Return a DLPack capsule for a contiguous array with `pointer`, `shape` and `dtype` on a
    device (kind, number).
    """
    match = re.fullmatch("([a-z]+)([0-9]+)", DType.from_numpy(array.dtype).replace("bool", "bool8"))
    if match is None or match[1] not in _DLPACK_CODE_BY_KIND:
        raise BufferError(f"DLPack has no {array.dtype}")
    shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
    steps = (ctypes.c_int64 * len(array.shape))(*_contiguous_strides(array.shape))
    free = ctypes.cast(_free, ctypes.c_void_p)
    managed_tensor = _DLManagedTensor(
        array.pointer, device, len(shape), _DLPACK_CODE_BY_KIND[match[1]], int(match[2]), 1, shape, steps, 0, None, free
    )
    address = ctypes.addressof(managed_tensor)
    _EXPORTED_TENSORS[address] = managed_tensor, shape, steps, array
    return _new(address, _DLPACK_CAPSULE_NAME, ctypes.cast(_drop, ctypes.c_void_p))


def is_on_gpu(value: Any) -> bool:
    """Return True if a tensor of another library declares that it is in GPU memory."""
    if hasattr(value, "__dlpack_device__"):
        return value.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED)
    return hasattr(value, "__cuda_array_interface__")


def view_gpu_tensor(value: Any, consumer_stream: int) -> DeviceArray | None:
    """Return a view of a tensor in GPU memory; None if it is elsewhere.

    consumer_stream    CUDA stream that will use the tensor: with DLPack it waits for the values; otherwise
                       the result's `consumer_stream` names the stream to wait for

    Raises AotcError (code "device-array") if the tensor's library cannot export it.
    """
    if not is_on_gpu(value):
        return None
    if isinstance(value, DeviceArray):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return _device_array_from_dlpack(value.__dlpack__(stream=consumer_stream))
        return _device_array_from_cuda_interface(value, value.__cuda_array_interface__)
    except (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise AotcError("device-array", f"a {type(value).__name__} cannot be read on the GPU: {error}") from error


def _device_array_from_dlpack(capsule: Any) -> DeviceArray:
    """Return the tensor in a DLPack capsule; the capsule remains its owner and frees it."""
    tensor = _DLManagedTensor.from_address(_pointer_in(id(capsule), _DLPACK_CAPSULE_NAME))
    kind, bits = _KIND_BY_DLPACK_CODE[tensor.code], tensor.bits
    dtype = DType(kind if kind == "bool" else f"{kind}{bits}").numpy
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    problem = _describe_non_contiguity(shape, strides) if tensor.lanes == 1 else "has vectors as elements"
    return DeviceArray((tensor.data or 0) + tensor.offset, shape, dtype, tensor.device[1], problem, owner=capsule)


def _device_array_from_cuda_interface(value: Any, cuda_array_interface: dict[str, Any]) -> DeviceArray:
    shape, dtype, strides = (
        tuple(cuda_array_interface["shape"]),
        np.dtype(cuda_array_interface["typestr"]),
        cuda_array_interface.get("strides"),
    )
    steps = None if strides is None else [step / dtype.itemsize for step in strides]
    pointer, fixed = cuda_array_interface["data"]
    problem = (
        _describe_non_contiguity(shape, steps)
        if cuda_array_interface.get("mask") is None
        else "has a mask, which models do not know"
    )
    return DeviceArray(pointer or 0, shape, dtype, None, problem, fixed, cuda_array_interface.get("stream"), value)


def _contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a C-contiguous tensor, in elements."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _describe_non_contiguity(shape: Sequence[int], strides: Sequence[float] | None) -> str:
    """Return "" if strides (in elements; None means contiguous) are those of a C-contiguous tensor,
    else the problem.
    """
    if strides is None or math.prod(shape) == 0:
        return ""
    ways = zip(shape, strides, _contiguous_strides(shape), strict=True)
    return "" if all(size == 1 or step == dense for size, step, dense in ways) else "is not contiguous"
