# SPDX-License-Identifier: Apache-2.0
"""Determine the types of a model's inputs, with symbolic dimensions fixed to the values that the
caller gives.

Input: the inputs of the graph, and the caller's `shape` and `dims`. Output: a TensorType per input.

    resolve_input_types(loaded, names, shape={"x": (1, 3, 224, 224)}, dims={"batch": 1})
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from onnx import ModelProto, TensorProto, ValueInfoProto

from aotc.ir import (
    AotcError,
    Array,
    Dim,
    DimRange,
    DimSpecification,
    DType,
    Span,
    SymDim,
    TensorType,
    bind_ranges,
    did_you_mean_hint,
    dim_of_text,
    dim_size_or_range,
    is_static,
    join_texts,
    option_text,
    require,
    require_static_shape,
    solve_dims,
    symbol_and_sizes,
    symbol_of_multiples,
)
from aotc.ir.dimension_conditions import may_be_equal_dims
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.onnx.load import LoadedModel, dtype_of_onnx_type, read_model
from aotc.relay.frontend.onnx.sequence_inputs import names_of_inputs_with_length, with_tensor_inputs
from aotc.relay.frontend.size_operands import is_name_of_found_size, is_name_of_operand_range

#: The largest size that a `dim_param` may spell; a greater number is the name of a symbol.
MAX_DIM_EXTENT: Final = 1 << 60
#: The largest number of bytes of a string that an input may hold.
MAX_STRING_BYTES: Final = 1 << 20
_Shape: TypeAlias = tuple[Dim, ...]
_DeclaredShapes: TypeAlias = Mapping[str, _Shape | None]
_ShapesByInput: TypeAlias = Mapping[str, Sequence[int]]
_DimValues: TypeAlias = Mapping[str, DimSpecification]


def resolve_input_types(
    loaded: LoadedModel, inputs: Sequence[Any], shape: _ShapesByInput, dims: _DimValues
) -> dict[str, TensorType]:
    """Return the type of each graph input (a ValueInfoProto) by name, with the input shapes `shape`
    and the values or ranges `dims` of symbolic dimensions inserted. An input of strings has the type of
    its slots of bytes, whose size `dims` has under the name of the input.

    Raises AotcError listing every input that is not a tensor or has an unsupported type, and every
    entry of `shape` and `dims` that is unknown or contradicts the model.
    """
    span, problems = Span(loaded.source), Problems("onnx-input")
    slot_sizes = {v.name: dims[v.name] for v in inputs if is_string_input(v) and v.name in dims}
    dims = {name: value for name, value in dims.items() if name not in slot_sizes}
    declared: dict[str, _Shape | None] = {}
    types: dict[str, TensorType] = {}
    for value in inputs:
        with problems.collect_errors_at(span):
            declared[value.name] = _declared_input_shape(value)
    bindings, ranges = _symbolic_dim_values_and_ranges(declared, shape, dims, problems, span)
    for value in inputs:
        if value.name in declared:
            with problems.collect_errors_at(span):
                ty = _resolve_input_type(value, declared[value.name], shape.get(value.name), bindings, ranges)
                types[value.name] = _slots_type(value.name, ty, slot_sizes) if is_string_input(value) else ty
    problems.raise_collected_problems()
    return types


def is_string_input(value: Any) -> bool:
    """Return True if an input of a graph (a ValueInfoProto) is a tensor of strings."""
    return bool(value.type.tensor_type.elem_type == TensorProto.STRING)


def _slots_type(name: str, strings: TensorType, slot_sizes: _DimValues) -> TensorType:
    """Return the type of the slots of strings. Raises AotcError (code "onnx-string") if the size of a slot is
    not known, or not allowed.
    """
    size = slot_sizes.get(name)
    if size is None:
        hint = "give the largest number of bytes of a string in UTF-8, for example: "
        text = f"input {name!r} holds strings, and their largest size is not known"
        raise AotcError("onnx-string", text, hint=hint + option_text("dims", {name: 64}))
    fits = isinstance(size, int) and 0 < size <= MAX_STRING_BYTES
    require("onnx-string", fits, f"the largest size of the strings in {name!r} is {size}, not 1 to {MAX_STRING_BYTES}")
    shape = (*strings.shape, int(str(size)))
    if is_static(shape):
        g.check_tensor_size(require_static_shape(shape), strings.dtype, f"input {name!r}")
    return TensorType(shape, strings.dtype)


def resolve_model_input_types(model: Any, shape: _ShapesByInput, dims: _DimValues) -> dict[str, TensorType]:
    """Return the types of the inputs of an ONNX model (a path or a ModelProto) by name, with the
    input shapes `shape` and the values `dims` of symbolic dimensions inserted; initializers are not
    inputs.
    """
    loaded, dims = with_inputs_as_tensors(read_model(model), dims)
    known = {tensor.name for tensor in loaded.proto.graph.initializer}
    return resolve_input_types(loaded, [v for v in loaded.proto.graph.input if v.name not in known], shape, dims)


def declared_output_types(model: Any) -> dict[str, TensorType]:
    """Return the types of the outputs of an ONNX model (a path or a ModelProto) that are tensors of a declared
    shape, by name.
    """
    loaded = read_model(model)
    declared = [v for v in loaded.proto.graph.output if v.type.tensor_type.HasField("shape") and not is_string_input(v)]
    return resolve_input_types(loaded, declared, {}, {})


def with_inputs_as_tensors(loaded: LoadedModel, dims: _DimValues) -> tuple[LoadedModel, dict[str, DimSpecification]]:
    """Return a model whose inputs are tensors, and the values of its dimensions.

    dims    values of dimensions, and numbers of elements of sequences and maps by the names of the inputs

    Raises AotcError (code "onnx-input") for an input that is a sequence of unknown length.
    """
    lengths = {name: dims[name] for name in names_of_inputs_with_length(loaded.proto) if name in dims}
    for name, length in lengths.items():
        require("onnx-input", isinstance(length, int), f"the length of {name!r} must be one number")
    proto = with_tensor_inputs(loaded.proto, {name: int(str(length)) for name, length in lengths.items()})
    rest = {name: value for name, value in dims.items() if name not in lengths}
    # a model without standard operators gets some where it reads maps
    opsets = {o.domain: o.version for o in proto.opset_import if not o.domain} | dict(loaded.opsets)
    return LoadedModel(proto, loaded.source, opsets, loaded.folder), rest


def operand_ranges(dims: _DimValues, inputs: Sequence[ValueInfoProto]) -> dict[str, DimRange | int]:
    """Return the ranges of elements of inputs, and of sizes that a run finds, among values and ranges of dimensions.
    Raises AotcError (code "onnx-dim") for text that is no range.
    """
    names, symbols = {v.name for v in inputs}, _symbols_of_shapes(map(_declared_input_shape, inputs))
    try:
        return {
            n: dim_size_or_range(value)
            for n, value in dims.items()
            if is_name_of_operand_range(n, names) or (is_name_of_found_size(n) and n not in symbols)
        }
    except ValueError as error:
        raise AotcError("onnx-dim", str(error)) from error


def _declared_input_shape(value: Any) -> _Shape | None:
    """Return the declared shape of an input of an ONNX model, or None if the model declares no
    rank. Raises AotcError (code "onnx-input") if the input is not a tensor.
    """
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        text = {"sequence_type": "a sequence", "optional_type": "an optional value", "map_type": "a map"}
        raise AotcError("onnx-input", f"input {value.name!r} is {text.get(kind, 'of no stated type')}, not a tensor")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    for dim in tensor.shape.dim:
        require("onnx-shape", dim.dim_value >= 0, f"input {value.name!r} has the dimension {dim.dim_value}")
    return tuple(
        int(d.dim_value) if d.HasField("dim_value") else _dim_of_dim_param(d.dim_param) for d in tensor.shape.dim
    )


def _dim_of_dim_param(text: str) -> Dim:
    """Return the dimension that a `dim_param` spells: a symbol, a formula such as "past + 1", or a
    number, which some exporters write for fixed sizes.
    """
    dim = dim_of_text(text)
    return dim if isinstance(dim, SymDim) or dim < MAX_DIM_EXTENT else SymDim(text)


def _symbols_of_shapes(shapes: Iterable[_Shape | None]) -> set[str]:
    return {name for s in shapes for d in s or () if isinstance(d, SymDim) and d.name for name in d.symbols}


def _symbolic_dim_values_and_ranges(
    declared: _DeclaredShapes, shape: _ShapesByInput, dims: _DimValues, problems: Problems, span: Span
) -> tuple[dict[str, int], dict[str, DimRange]]:
    """Return the values of symbolic dimensions of a model, those in `dims` and those that follow from
    the input shapes `shape`, and the ranges in `dims` of other dimensions. Unknown names and
    contradictions are added to `problems`.
    """
    symbols = _symbols_of_shapes(declared.values())
    formulas = {d.name for s in declared.values() for d in s or () if isinstance(d, SymDim) and d.name}
    equations: list[tuple[SymDim, int]] = []
    ranges: dict[str, DimRange] = {}
    for name, specification in dims.items():
        if is_name_of_operand_range(name, declared) or (is_name_of_found_size(name) and name not in symbols):
            continue
        dim = dim_of_text(name)
        try:
            value = dim_size_or_range(specification)
        except ValueError as error:
            problems.add_problem("onnx-dim", f"dimension {name!r}: {error}", span)
            continue
        if not isinstance(dim, SymDim) or dim.name not in symbols | formulas:
            hint = did_you_mean_hint(name, symbols) or (f"dimensions: {', '.join(sorted(symbols))}" if symbols else "")
            problems.add_problem("onnx-dim", f"no input has a dimension called {name!r}", span, hint)
        elif isinstance(value, DimRange) and dim.name not in symbols:
            hint = f"give ranges of its symbols: {', '.join(sorted(dim.symbols))}"
            problems.add_problem("onnx-dim", f"{name!r} is a formula, which has no range of its own", span, hint)
        elif isinstance(value, DimRange) and symbol_of_multiples(dim.name, value.step) in symbols - {dim.name}:
            text = f"a range of {name!r} with the step {value.step} needs the name of another dimension"
            problems.add_problem("onnx-dim", text, span)
        elif isinstance(value, DimRange):
            ranges[dim.name] = value
        elif value < 0:
            problems.add_problem("onnx-dim", f"dimension {name!r} cannot be {value}", span)
        else:
            equations.append((dim, value))
    for name, given in shape.items():
        if name not in declared:
            hint = did_you_mean_hint(name, declared) or f"inputs: {', '.join(declared)}"
            problems.add_problem("onnx-input", f"the model has no input {name!r}", span, hint)
            continue
        sizes = zip(declared[name] or (), map(int, given), strict=False)
        equations += [(d, value) for d, value in sizes if isinstance(d, SymDim) and d.name and value >= 0]
    values, contradictions = solve_dims(equations)
    contradictions += [
        f"dimension {name!r} is {values[name]}, which is not in its range {allowed}"
        for name, allowed in ranges.items()
        if name in values and values[name] not in allowed
    ]
    for text in contradictions:
        problems.add_problem("onnx-dim", text, span)
    return values, {name: allowed for name, allowed in ranges.items() if name not in values}


def _resolve_input_type(
    value: Any,
    declared_shape: _Shape | None,
    given_shape: Sequence[int] | None,
    dim_values: Mapping[str, int],
    dim_ranges: Mapping[str, DimRange],
) -> TensorType:
    label = f"input {value.name!r}"
    is_string = is_string_input(value)
    dtype = DType("uint8") if is_string else dtype_of_onnx_type(value.type.tensor_type.elem_type, label)
    if given_shape is not None:
        shape: tuple[Dim, ...] = g.checked_shape(given_shape, dtype, label)
        if declared_shape is not None and not (
            len(declared_shape) == len(shape) and all(map(may_be_equal_dims, declared_shape, shape))
        ):
            declared = f"{label} is declared ({', '.join(map(str, declared_shape))})"
            raise AotcError("onnx-shape", f"{declared}; shape {tuple(given_shape)} contradicts it")
    elif declared_shape is None:
        hint = "give its shape, for example: " + option_text("input_shapes", {value.name: (1, 3, 224, 224)})
        raise AotcError("onnx-shape", f"the rank of {label} is unknown", hint=hint)
    else:
        try:
            bound = (d.bind(dim_values) if isinstance(d, SymDim) else d for d in declared_shape)
            shape = tuple(bind_ranges(d, dim_ranges) if isinstance(d, SymDim) else d for d in bound)
        except ValueError as error:
            raise AotcError("onnx-dim", f"{label}: {error}") from error
    if is_static(shape):
        g.check_tensor_size(require_static_shape(shape), dtype, label)
    return TensorType(shape, dtype)


def options_to_fix_dims(types: Mapping[str, TensorType]) -> list[str]:
    """Return the options that would fix the dynamic dimensions of the inputs to 1, or to the least size
    that is known to be possible, each with the dimension that it fixes, as texts with references to
    options.
    """
    dims = [d for ty in types.values() for d in ty.shape if isinstance(d, SymDim)]
    least_sizes = {next(iter(d.symbols)): found[:2] for d in dims if (found := symbol_and_sizes(d)) is not None}
    named: dict[str, str] = {}
    unnamed: dict[str, str] = {}
    for name, ty in types.items():
        for axis, dim in enumerate(ty.shape):
            if isinstance(dim, SymDim) and dim.name:
                place = f" (dimension {axis} of input {name!r})"
                for symbol in sorted(dim.symbols):
                    # a formula counts the steps of a dimension that another axis names
                    option, size = least_sizes.get(symbol, (symbol, 1))
                    named.setdefault(symbol, option_text("dims", {option: size}) + place)
            elif isinstance(dim, SymDim):
                sizes = tuple(d if isinstance(d, int) else 1 for d in ty.shape)
                unnamed.setdefault(name, option_text("input_shapes", {name: sizes}))
    return [*named.values(), *unnamed.values()]


def hint_on_options_to_fix_dims(types: Mapping[str, TensorType]) -> str:
    """Return a hint that names the dynamic dimensions of the inputs and the options that fix them,
    or "" if there are none.
    """
    options = options_to_fix_dims(types)
    return "pin the dynamic dimensions, for example: " + join_texts("; ", options) if options else ""


def names_of_inputs_with_default(model: ModelProto) -> list[str]:
    """Return the names of the graph inputs that have initializers, which are their default values."""
    known = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name in known]


def dim_names_of_values(values: Iterable[ValueInfoProto]) -> dict[str, list[str]]:
    """Return the names of the dimensions of each input or output of a graph; "" for dimensions without a name."""
    return {v.name: [d.dim_param for d in v.type.tensor_type.shape.dim] for v in values}


def remove_default_values(model: ModelProto, names: Collection[str]) -> tuple[ModelProto, dict[str, Array]]:
    """Return a copy of a model in which some inputs have no initializers, and the values of these
    initializers by name.
    """
    loaded = read_model(model)
    tensors = list(model.graph.initializer)
    changed = ModelProto()
    changed.CopyFrom(model)
    changed.graph.ClearField("initializer")
    changed.graph.initializer.extend(t for t in tensors if t.name not in names)
    return changed, {t.name: loaded.decode_tensor(t) for t in tensors if t.name in names}
