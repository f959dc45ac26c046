# SPDX-License-Identifier: Apache-2.0
"""Types of the inputs of a TFLite model, with sizes and ranges for the dimensions that its shape signature leaves open.

A file states no names of dimensions. The first dimension of an input is called batch, and that along axis 2, for
example, dim2; inputs share these names. A dimension of one input alone is called by the input and the axis, such as
ids_1.

resolve_input_types("net.tflite", [("ids", tensor)], {}, {"batch": 1, "dim1": (1, 128)})
                                                # [Tensor[(1, 1<=dim1<=128), int32]]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from aotc.ir import (
    AotcError,
    Dim,
    DimRange,
    DimSpecification,
    Span,
    SymDim,
    TensorType,
    bind_ranges,
    did_you_mean_hint,
    dim_size_or_range,
    option_text,
)
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.size_operands import is_name_of_found_size, is_name_of_operand_range
from aotc.relay.frontend.tflite.load import TfliteTensor


def names_of_open_dim(input_name: str, axis: int) -> tuple[str, str]:
    """Return the names of an open dimension of an input: the one of this input alone, and the one that inputs share."""
    own = re.sub(r"\W+", "_", f"{input_name}_{axis}", flags=re.ASCII)
    return own, "batch" if axis == 0 else f"dim{axis}"


def resolve_input_types(
    source: str,
    inputs: Sequence[tuple[str, TfliteTensor]],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, DimSpecification],
) -> list[TensorType]:
    """Return the type of each input of a TFLite model: its shape in `shapes`; else that of the file, with the sizes and
    ranges in `dims` of its open dimensions.

    source    name of the model in diagnostics
    inputs    names and declarations of the inputs

    Raises AotcError (code "tflite-pin") if `shapes` names an input that does not exist, and (code "tflite-dim") with
    all entries of `dims` that name no open dimension, or whose values are neither sizes nor ranges.
    """
    names = [name for name, _ in inputs]
    for name in shapes.keys() - set(names):
        text = f"the model has no input {name!r}"
        hint = did_you_mean_hint(name, names) or f"inputs: {', '.join(names)}"
        raise AotcError("tflite-pin", text, span=Span(source), hint=hint)
    opened = {name: list(_open_dims(name, tensor)) for name, tensor in inputs if name not in shapes}
    given = _sizes_and_ranges(source, opened, dims)
    types = []
    for name, tensor in inputs:
        shape: list[Dim] = list(shapes.get(name, tensor.shape))
        for axis, called in opened.get(name, ()):
            symbol = next((n for n in called if n in given), None)
            value = None if symbol is None else given[symbol]
            if isinstance(value, DimRange) and symbol is not None:
                shape[axis] = bind_ranges(SymDim(symbol), {symbol: value})
            elif isinstance(value, int):
                shape[axis] = value
        types.append(TensorType(g.checked_dims(shape, tensor.dtype, f"input {name!r}"), tensor.dtype))
    return types


def _open_dims(name: str, tensor: TfliteTensor) -> Iterator[tuple[int, tuple[str, str]]]:
    return ((axis, names_of_open_dim(name, axis)) for axis in tensor.open_axes)


def operand_ranges(dims: Mapping[str, DimSpecification], inputs: Sequence[str]) -> dict[str, DimRange | int]:
    """Return the ranges of elements of inputs, such as "shape[0]", and of sizes that a run finds, such as "found0",
    among sizes and ranges of dimensions. Raises AotcError (code "tflite-dim") for text that is no range.
    """
    return {name: _size_or_range(name, value) for name, value in dims.items() if _is_of_no_dimension(name, inputs)}


def _is_of_no_dimension(name: str, inputs: Sequence[str]) -> bool:
    return is_name_of_operand_range(name, inputs) or is_name_of_found_size(name)


def _size_or_range(name: str, value: DimSpecification) -> DimRange | int:
    try:
        return dim_size_or_range(value)
    except ValueError as error:
        raise AotcError("tflite-dim", f"dimension {name!r}: {error}") from error


def _sizes_and_ranges(
    source: str, opened: Mapping[str, Sequence[tuple[int, tuple[str, str]]]], dims: Mapping[str, DimSpecification]
) -> dict[str, DimRange | int]:
    """Return the sizes and ranges of open dimensions by name. Raises AotcError with all problems of `dims`."""
    shared = dict.fromkeys(names[1] for rows in opened.values() for _, names in rows)
    known = [*shared, *dict.fromkeys(names[0] for rows in opened.values() for _, names in rows)]
    problems = Problems("tflite-dim")
    found: dict[str, DimRange | int] = {}
    for name, value in dims.items():
        if _is_of_no_dimension(name, list(opened)):
            continue
        with problems.collect_errors_at(Span(source)):
            if name not in known:
                hint = did_you_mean_hint(name, known) or (f"open dimensions: {', '.join(known)}" if known else "")
                hint = hint or "give the shapes of inputs with " + option_text("input_shapes")
                text = f"no open dimension of an input is called {name!r}"
                raise AotcError("tflite-dim", text, hint=hint)
            found[name] = _size_or_range(name, value)
    problems.raise_collected_problems()
    return found
