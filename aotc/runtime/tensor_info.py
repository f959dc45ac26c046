# SPDX-License-Identifier: Apache-2.0
"""Descriptions of a compiled model's inputs and outputs, and validation of arrays against them.

info = TensorInfo("x", [1, 3], DType("float32"))
info.type                                     # "tensor(float)", as ONNX Runtime spells it
diagnose_dtype_and_shape("input", info, np.zeros(3))  # two diagnostics: the dtype and the shape
arrays_or_unfilled_c_buffers([array], [info])    # the array itself where its bytes are what C reads, else memory for it
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, AotcTypeError, Diagnostic, DType, Quantization, did_you_mean_hint, frozen
from aotc.ir.string_slots import slots_of_strings

Array = np.ndarray[Any, Any]

#: ONNX Runtime's names of dtypes that differ from the dtype's name without underscores.
_ONNX_RUNTIME_DTYPE_NAMES: Final = {
    "float32": "float",
    "float64": "double",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}


@frozen
class TensorInfo:
    """Description of an input or output.

    name           name in the model
    shape          dimensions; a text for one that depends on the sizes of a run, as in ONNX Runtime: the name
                   of a size, or a formula
    dtype          element type
    quantization   quantization parameters of integers: `.scale`, `.zero_point`, `.axis`,
                   `.quantize(array)`, `.dequantize(array)`; None if unknown
    bounds         for each dimension, its least and its largest extent; None if all are known
    is_string      True for strings, which are slots of bytes in memory (`aotc.ir.string_slots`)
    string_bytes   the largest number of bytes of a string in UTF-8, where `shape` counts strings; None for
                   other types, and where the last dimension of `shape` counts the bytes of a slot
    """

    name: str
    shape: list[Any]
    dtype: DType
    quantization: Quantization | None = None
    bounds: tuple[tuple[int, int], ...] | None = None
    is_string: bool = False
    string_bytes: int | None = None

    @property
    def type(self) -> str:
        """The element type as ONNX Runtime writes it, for example "tensor(float)" for float32."""
        if self.is_string:
            return "tensor(string)"
        return f"tensor({_ONNX_RUNTIME_DTYPE_NAMES.get(self.dtype, self.dtype.replace('_', ''))})"

    @property
    def nbytes(self) -> int:
        """The size of the input or output tensor in bytes; the largest one if it depends on sizes."""
        extents = self.shape if self.bounds is None else [largest for _, largest in self.bounds]
        return math.prod(extents) * self.dtype.itemsize * (self.string_bytes or 1)

    @property
    def as_strings(self) -> "TensorInfo":
        """The description of slots of strings as that of a tensor of strings; others as they are."""
        if not self.is_string or self.string_bytes is not None:
            return self
        bounds = None if self.bounds is None else self.bounds[:-1]
        return replace(self, shape=self.shape[:-1], bounds=bounds, string_bytes=self.shape[-1])

    @property
    def c_memory_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the tensor's memory in C.

        C stores integers below 8 bits as sign-extended bytes, whereas ml_dtypes leaves their upper
        bits undefined.
        """
        if self.dtype.is_integer and self.dtype.bits < 8:
            return np.dtype(np.int8 if self.dtype.is_signed else np.uint8)
        return self.dtype.numpy


def with_slots_of_strings(inputs: Mapping[str, Any], infos: Iterable[TensorInfo]) -> dict[str, Any]:
    """Return inputs with arrays of strings (of str objects, or of numpy's str type) converted to slots.

    Raises AotcError (code "input-string") for values that are no strings, have no UTF-8 text, or are too long.
    """
    require_mapping("input", inputs)
    converted, problems = dict(inputs), list[Diagnostic]()
    for info in infos:
        value = inputs.get(info.name)
        if not info.is_string or not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "OUT":
            continue
        try:
            converted[info.name] = slots_of_strings(np.asarray(value), int(info.shape[-1]))
        except ValueError as error:
            problems.append(Diagnostic("input-string", f"input {info.name!r}: {error}"))
    raise_if_problems(problems)
    return converted


def arrays_or_unfilled_c_buffers(arrays: Iterable[Array], infos: Iterable[TensorInfo]) -> list[Array]:
    """Return each array itself if C can use its memory, else a new array in C's memory format (not
    filled).
    """
    return [
        a if _is_memory_usable_by_c(a, i) else np.empty(i.shape, i.c_memory_dtype)
        for a, i in zip(arrays, infos, strict=True)
    ]


def _is_memory_usable_by_c(array: Array, info: TensorInfo) -> bool:
    return (
        array.dtype == info.c_memory_dtype and array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned
    )


def pairs_of_distinct_arrays(targets: Iterable[Array], sources: Iterable[Array]) -> list[tuple[Array, Array]]:
    """Return the pairs of target and source that are different arrays, for `copy_array_pairs` to
    copy.
    """
    return [(t, s) for t, s in zip(targets, sources, strict=False) if t is not s]


def copy_array_pairs(target_source_pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy the second array of each pair to the first, converting between numpy's and C's memory
    formats.
    """
    for target, source in target_source_pairs:
        np.copyto(target, source, casting="unsafe")


def memory_address(array: Array) -> int:
    """Return the memory address of the first element of a numpy array."""
    return int(array.__array_interface__["data"][0])


def allocate_aligned_bytes(size: int, alignment: int) -> Array:
    """Return an uninitialized array of `size` bytes, aligned to `alignment` bytes."""
    memory = np.empty(size + alignment, np.uint8)
    skip = -memory_address(memory) % alignment
    return memory[skip : skip + size]


def diagnose_dtype_and_shape(role: str, info: TensorInfo, array: Any) -> Iterable[Diagnostic]:
    """Yield diagnostics for a wrong dtype or shape of a tensor; `role` is "input" or "output"."""
    if info.is_string and array.dtype != np.uint8:
        text = f"{role} {info.name!r} is {array.dtype.name}, expected strings"
        hint = (
            'give an array of str objects, such as np.array(["text"], object); memory that is bound holds their bytes, '
        )
        yield Diagnostic(f"{role}-dtype", text, hint=hint + "as aotc.ir.string_slots.slots_of_strings returns them")
    elif array.dtype.newbyteorder("=") != info.dtype.numpy:
        # in the machine's byte order
        text = f"{role} {info.name!r} is {array.dtype.name}, expected {info.dtype}"
        module = "np" if hasattr(np, info.dtype) or info.dtype.is_bool else "ml_dtypes"
        name = "bool_" if info.dtype.is_bool else info.dtype
        yield Diagnostic(f"{role}-dtype", text, hint=f"convert it with .astype({module}.{name})")
    given, expected = list(array.shape), info.shape
    if given != expected:
        if info.is_string and given[-1:] == expected[-1:]:
            # the caller knows nothing of the dimension of bytes
            given, expected = given[:-1], expected[:-1]
        yield Diagnostic(f"{role}-shape", f"{role} {info.name!r} has shape {given}, expected {expected}")


def diagnose_unknown_names(role: str, names: Iterable[Any], infos: Sequence[TensorInfo]) -> Iterable[Diagnostic]:
    """Yield a diagnostic for every name that is not an input or output (`role`) of the model."""
    known = [info.name for info in infos]
    for name in names:
        if name not in known:
            hint = did_you_mean_hint(str(name), known) or (
                f"{role}s: {', '.join(known)}" if known else f"it has no {role}s"
            )
            yield Diagnostic(f"{role}-unknown", f"the model has no {role} {name!r}", hint=hint)


def require_mapping(role: str, value: object) -> None:
    """Raise AotcTypeError unless a value is a mapping; `role` is "input" or "output"."""
    if not isinstance(value, Mapping):
        text = f"{role}s must be a mapping from names to arrays, not {type(value).__name__}"
        raise AotcTypeError(f"{role}-type", text)


def convert_and_check_inputs(
    inputs: Mapping[str, Any], infos: Sequence[TensorInfo]
) -> tuple[list[Array], list[Diagnostic]]:
    """Return the inputs as arrays in the model's order, and diagnostics for missing, unknown and
    invalid ones.

    Raises AotcTypeError if `inputs` is not a mapping.
    """
    require_mapping("input", inputs)
    arrays: list[Array] = []
    problems = list(diagnose_unknown_names("input", inputs, infos))
    for info in infos:
        value = inputs.get(info.name)
        if info.name not in inputs:
            problems.append(Diagnostic("input-missing", f"input {info.name!r} ({info.dtype}{info.shape}) is missing"))
        elif not hasattr(value, "__array__"):
            problems.append(
                _not_an_array_diagnostic("input", info, value, f"np.asarray(value, {str(info.dtype)!r}) makes one")
            )
        else:
            arrays.append(np.asarray(value))
            problems += diagnose_dtype_and_shape("input", info, arrays[-1])
    return arrays, problems


def diagnose_output_arrays(outputs: Mapping[str, Any], infos: Sequence[TensorInfo]) -> list[Diagnostic]:
    """Return diagnostics for invalid output arrays; AotcTypeError if `outputs` is not a mapping."""
    require_mapping("output", outputs)
    problems = list(diagnose_unknown_names("output", outputs, infos))
    for info, value in ((i, outputs[i.name]) for i in infos if i.name in outputs):
        if not isinstance(value, np.ndarray):
            problems.append(_not_an_array_diagnostic("output", info, value))
            continue
        problems += diagnose_dtype_and_shape("output", info, value)
        flags = value.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable and value.dtype.isnative):
            text = f"output {info.name!r} must be contiguous, aligned, writable and in the machine's byte order"
            problems.append(Diagnostic("output-memory", text, hint="np.empty makes such arrays"))
    return problems


def _not_an_array_diagnostic(role: str, info: TensorInfo, value: object, hint: str = "") -> Diagnostic:
    text = f"{role} {info.name!r} is of type {type(value).__name__}, expected a numpy array"
    return Diagnostic(f"{role}-type", text, hint=hint)


def raise_if_problems(problems: Sequence[Diagnostic]) -> None:
    """Raise one AotcError with all diagnostics in `problems`; return if there are none."""
    if problems:
        raise AotcError.collect(problems)
