# SPDX-License-Identifier: Apache-2.0
"""NDArray: a tensor value on a device, Relay's container for parameters, inputs and outputs.

x = array(np.ones((2, 3), "float32"))
x.numpy()                              # a copy as a numpy array
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from aotc.ir.device import Device, require_usable_device
from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, Type

Array: TypeAlias = "np.ndarray[Any, Any]"


class NDArray:
    """A tensor value for a device, as in Relay.

    shape, dtype   of the tensor; the dtype is a string
    device         the device that it is for.  The data is in host memory, and runs on a GPU copy it

    `copyfrom` replaces the value; arrays obtained earlier keep the old value.
    """

    def __init__(self, data: Any, device: Device | None = None) -> None:
        self.device = require_usable_device(device, allow_cuda=True)
        self._data: Array = _read_only_copy(np.asarray(data))
        self.dtype = DType.from_numpy(self._data)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.shape)

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    def numpy(self) -> Array:
        """Return the value of the tensor as a new numpy array."""
        return np.array(self._data)

    asnumpy = numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Implement numpy's array protocol; returns the read-only data without a copy if dtype and
        `copy` allow it.
        """
        result_dtype = self._data.dtype if dtype is None else np.dtype(dtype)
        result: Array = self._data.astype(result_dtype, copy=bool(copy))
        return result

    def copyfrom(self, source: Any) -> NDArray:
        """Replace the value by that of another tensor of equal shape and dtype; AotcError if they
        differ.
        """
        data = np.asarray(source)
        if data.shape != self.shape or DType.from_numpy(data) != self.dtype:
            text = f"cannot copy {data.dtype}{list(data.shape)} into {self.dtype}{list(self.shape)}"
            raise AotcError("ndarray", text, hint="shape and dtype must be equal")
        self._data = _read_only_copy(data)
        return self

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copy the value to another tensor of equal shape and dtype, or to a new tensor on a
        device; return it.
        """
        if isinstance(target, Device):
            return NDArray(self._data, target)
        if not isinstance(target, NDArray):
            raise AotcTypeError("ndarray", f"expected an NDArray or a device, not {type(target).__name__}")
        return target.copyfrom(self)

    def same_as(self, other: object) -> bool:
        """Return True if `other` is this very tensor object, not only an equal one."""
        return self is other

    def __repr__(self) -> str:
        return f"<aotc.nd.NDArray shape={self.shape}, {self.device}>\n{self._data!r}"

    def __str__(self) -> str:
        return str(self._data)


class HostArray(np.ndarray[Any, Any]):
    """A numpy array with the methods `numpy()` and `asnumpy()` of an NDArray."""

    def numpy(self) -> Array:
        """Return a copy of the array as a plain numpy array, without the subclass."""
        return np.array(self)

    asnumpy = numpy


def _read_only_copy(data: Array) -> Array:
    """Return a read-only, C-contiguous copy of an array in native byte order."""
    copy = np.array(data, DType.from_numpy(data).numpy, order="C")
    copy.flags.writeable = False
    return copy


def array(arr: Any, device: Device | None = None) -> NDArray:
    """Create a tensor from a numpy array, tensor, scalar or nested list, with its shape and dtype.

    Raises AotcError for a dtype that tensors do not have, and for a device that does not exist.
    """
    return NDArray(arr, device)


def empty(shape: int | Sequence[int], dtype: str = "float32", device: Device | None = None) -> NDArray:
    """Create a tensor of zeros, whose value is to be set later."""
    return NDArray(np.zeros(shape, DType(dtype).numpy), device)


def convert_arrays_to_ndarrays(value: Any, make_sequence: Callable[[Iterable[Any]], Any] = tuple) -> Any:
    """Convert numpy arrays in a nested result of a model to NDArrays, and tuples to
    `make_sequence`.
    """
    match value:
        case np.ndarray():
            return NDArray(value)
        case tuple():
            return make_sequence(convert_arrays_to_ndarrays(item, make_sequence) for item in value)
        case _:
            return value


def convert_literal_to_array(value: Any, dtype: str | TensorType | None = None) -> Array:
    """Convert a value to a numpy array: Python numbers become int32, float32 or bool; arrays keep
    their dtype.

    dtype   dtype of the result, or a tensor type with that dtype

    Raises AotcError if an integer does not fit the dtype.
    """
    array = np.asarray(value)
    dtype = dtype.dtype if isinstance(dtype, TensorType) else dtype
    result_dtype = DType(dtype).numpy if dtype is not None else array.dtype
    if dtype is None and not isinstance(value, (np.ndarray, np.generic, NDArray)):
        result_dtype = np.dtype({"i": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype))
    DType.from_numpy(array)
    with np.errstate(all="ignore"):
        result = array.astype(result_dtype)
    exact = array.dtype.kind in "iub" and np.issubdtype(result_dtype, np.integer)
    if exact and not np.array_equal(result, array):
        raise AotcError("const", f"{value!r} does not fit {DType.from_numpy(result)}", hint="give a wider dtype")
    return result


def convert_argument_to_array(value: Any, ty: Type | None) -> Array:
    """Convert an argument to an array of type `ty`: numbers and lists get the dtype if it can hold
    them.

    Arrays are returned unchanged, except that integer arrays are converted to another integer dtype
    that can hold all their values.
    """
    array = np.asarray(value)
    if not isinstance(ty, TensorType):
        return array
    if hasattr(value, "__array__") and not (array.dtype.kind in "iu" and ty.dtype.numpy.kind in "iu"):
        return array
    kinds = {"b": ty.dtype.is_bool, "i": not ty.dtype.is_bool, "u": not ty.dtype.is_bool, "f": ty.dtype.is_float}
    if not kinds.get(array.dtype.kind, False) or array.dtype == ty.dtype.numpy:
        return array
    result = array.astype(ty.dtype.numpy)
    return result if ty.dtype.is_float or np.array_equal(result, array) else array
