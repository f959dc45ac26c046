# SPDX-License-Identifier: Apache-2.0
"""Sizes of a run: the values of dimensions that are known at run time only, from the shapes of inputs.

sizes = library.sizes                                     # RunSizes, or None if all shapes are known
values, problems = sizes.values_from_inputs(inputs, library.inputs)      # {"batch": 3}, []
outputs = sizes.output_shapes(values)                     # [(3, 10)]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir.diagnostics import AotcError, Diagnostic
from aotc.ir.dimension_formulas import formula_of_name
from aotc.ir.dimension_ranges import DimRange, dim_text_in_sizes, symbol_of_multiples
from aotc.ir.dimensions import Dim, SymDim, dim_of_text, solve_dims
from aotc.ir.size_operands import SizeOperand, size_operand_of_name
from aotc.runtime.abi import CAPACITY_STATUS, STATUS_CODE_MASK, ffi
from aotc.runtime.dlpack import is_on_gpu
from aotc.runtime.tensor_info import Array, TensorInfo

Shapes: TypeAlias = "list[tuple[int, ...]]"
#: Diagnostic code of a run for which a state has no room.
STATE_FULL_CODE: Final = "state-full"
_INT64_ARRAY_TYPE: Final = ffi.typeof("int64_t[]")


class BoundOperands:
    """Sizes that are elements of inputs, and the values for which the outputs of a binding were made."""

    def __init__(self, operands: Sequence[SizeOperand], values: Sequence[int]) -> None:
        self._operands, self._values = operands, values

    def require_unchanged(self, inputs: Mapping[str, Any]) -> None:
        """Raise AotcError (code "input-value") if inputs have other values now."""
        try:
            is_unchanged = [o.size_of(inputs[o.input]) for o in self._operands] == self._values
        except ValueError:
            is_unchanged = False
        if not is_unchanged:
            names = ", ".join(dict.fromkeys(o.input for o in self._operands))
            text = f"the values of {names}, which shapes depend on, have changed"
            raise AotcError("input-value", text, hint="bind again: outputs have another shape")


class RunSizes:
    """The sizes of a run, and the dimensions of tensors that depend on them.

    ranges    the sizes that inputs state, by name, with their ranges, in the order in which C takes them; sizes
              in several tiers have the range from the least to the largest one, and the ranges of the tiers
    found     the sizes that a run finds, with their ranges; in C they follow the others
    """

    def __init__(self, descriptor: Any, has_found: bool = False, tiers: Any = None) -> None:
        self._descriptor = descriptor
        sizes = [descriptor.sizes[k] for k in range(descriptor.num_sizes)]
        names = [bytes(ffi.string(s.name)).decode("utf-8", "replace") for s in sizes]
        ranges = dict(zip(names, map(_range_of_size, sizes), strict=True))
        for k, name in enumerate(names if tiers is not None else ()):
            of_tiers = (_range_of_size(tiers.ranges[t * len(sizes) + k]) for t in range(tiers.num_tiers))
            different = tuple(dict.fromkeys(of_tiers))
            if len(different) > 1:
                ranges[name] = replace(ranges[name], tiers=different)
        stated = len(names) - (int(descriptor.num_found) if has_found else 0)
        self.ranges: Mapping[str, DimRange] = MappingProxyType({name: ranges[name] for name in names[:stated]})
        self.found: Mapping[str, DimRange] = MappingProxyType({name: ranges[name] for name in names[stated:]})
        self._symbols = [symbol_of_multiples(name, r.step) for name, r in self.ranges.items()]
        self.operands: dict[str, SizeOperand] = {}
        self._inputs: list[tuple[Dim, ...]] = []
        self._outputs: list[tuple[Dim, ...]] = []

    def symbolic_infos(
        self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
    ) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        """Return descriptions of tensors whose shapes name the sizes, for those of the largest extents."""
        texts = _dim_texts(self._descriptor)
        self._inputs, self._outputs = (
            [tuple(dim_of_text(next(texts)) for _ in info.shape) for info in infos] for infos in (inputs, outputs)
        )
        stated = {s for dims in self._inputs for d in dims if isinstance(d, SymDim) for s in d.symbols}
        for name, symbol in zip(self.ranges, self._symbols, strict=True):
            operand = None if symbol in stated else size_operand_of_name(name, self.ranges[name].most)
            if operand is not None:
                self.operands[name] = operand
        named = [
            tuple(self._symbolic_info(info, dims) for info, dims in zip(infos, shapes, strict=True))
            for infos, shapes in ((inputs, self._inputs), (outputs, self._outputs))
        ]
        return named[0], named[1]

    def _symbolic_info(self, info: TensorInfo, dims: Sequence[Dim]) -> TensorInfo:
        ranges = self.ranges.values()
        intervals = {s: (r.least // r.step, r.most // r.step) for s, r in zip(self._symbols, ranges, strict=True)}
        intervals |= {name: (r.least, r.most) for name, r in self.found.items()}
        bounds = [
            (d, d) if isinstance(d, int) else (int(formula_of_name(d.name).interval(intervals)[0]), largest)
            for d, largest in zip(dims, info.shape, strict=True)
        ]
        shape = [dim_text_in_sizes(d, self.ranges) if isinstance(d, SymDim) else d for d in dims]
        return replace(info, shape=shape, bounds=tuple(bounds))

    def values_from_inputs(
        self, inputs: Mapping[str, Any], infos: Sequence[TensorInfo], known: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[dict[str, int], list[Diagnostic]]:
        """Return the values of all sizes by name, from the shapes of the inputs, and a diagnostic for each
        shape that does not fit.

        known    sizes that are known without the inputs, such as the length of a state
        """
        shapes = {info.name: _shape_or_none(inputs.get(info.name)) for info in infos}
        rows = [
            (info, shape, dims)
            for info, dims in zip(infos, self._inputs, strict=True)
            if (shape := shapes[info.name]) is not None
        ]
        problems = [_shape_diagnostic(info, shape) for info, shape, dims in rows if len(shape) != len(dims)]
        rows = [row for row in rows if len(row[1]) == len(row[2])]
        symbols = self._solve(rows, problems, self.symbols_of_sizes(known))
        if problems:
            return {}, problems
        for info, shape, dims in rows:
            expected = tuple(_value_or_none(d, symbols) for d in dims)
            if any(e is not None and e != size for e, size in zip(expected, shape, strict=True)):
                problems.append(_shape_diagnostic(info, shape, self._text_of_known_sizes(info, symbols)))
        values = self._sizes_of_symbols(symbols)
        problems += self._range_diagnostics({name: v for name, v in values.items() if name not in known})
        problems += _add_operands(self.operands, inputs, values)
        if not problems and len(values) < len(self.ranges) and None not in shapes.values():
            missing = ", ".join(name for name in self.ranges if name not in values)
            problems.append(Diagnostic("input-shape", f"the shapes of the inputs do not tell the size {missing}"))
        return values, problems

    def _solve(
        self,
        rows: Sequence[tuple[TensorInfo, tuple[int, ...], tuple[Dim, ...]]],
        problems: list[Diagnostic],
        known: Mapping[str, int],
    ) -> dict[str, int]:
        """Return the values of symbols, of which some are known; dimensions that are one symbol come first, and
        the first input that states a size determines it.
        """
        symbols = dict(known)
        for whole in (True, False):
            for info, shape, dims in rows:
                unknown = [
                    (d, size)
                    for d, size in zip(dims, shape, strict=True)
                    if isinstance(d, SymDim) and (len(d.symbols) == 1 or not whole) and not d.symbols <= symbols.keys()
                ]
                values, contradictions = solve_dims(
                    (bound, size) for d, size in unknown if isinstance(bound := d.bind(symbols), SymDim)
                )
                if contradictions:
                    found = _shape_diagnostic(info, shape, self._text_of_ranges(info))
                    problems += [found] if found not in problems else []
                else:
                    symbols = values | symbols
        return symbols

    def _range_diagnostics(self, values: Mapping[str, int]) -> Iterator[Diagnostic]:
        for name, value in values.items():
            if value not in self.ranges[name]:
                text = f"the inputs have the size {name} = {value}, which is not {self._range_text(name)}"
                yield Diagnostic("input-shape", text)

    def _range_text(self, name: str) -> str:
        return self.ranges[name].description

    def _names_in_shape(self, info: TensorInfo) -> list[str]:
        """Return the names of the sizes that the shape of a tensor depends on."""
        used = {name for d in info.shape if isinstance(d, str) for name in formula_of_name(d).symbols}
        return [name for name in self.ranges if name in used]

    def _text_of_ranges(self, info: TensorInfo) -> str:
        return ", ".join(f"{name} is {self._range_text(name)}" for name in self._names_in_shape(info))

    def _text_of_known_sizes(self, info: TensorInfo, symbols: Mapping[str, int]) -> str:
        known = self._sizes_of_symbols(symbols)
        return ", ".join(f"{name} is {known[name]}" for name in self._names_in_shape(info) if name in known)

    def _sizes_of_symbols(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes, by name, for values of symbols, some of which may be unknown."""
        rows = zip(self.ranges.items(), self._symbols, strict=True)
        return {name: symbols[s] * r.step for (name, r), s in rows if s in symbols}

    def symbols_of_sizes(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the values of symbols for some sizes by name."""
        rows = zip(self.ranges.items(), self._symbols, strict=True)
        return {s: values[name] // r.step for (name, r), s in rows if name in values}

    def has_dims_with(self, name: str) -> bool:
        """Return True if the shape of a tensor depends on a size."""
        symbol = dict(zip(self.ranges, self._symbols, strict=True))[name]
        dims = (d for side in (self._inputs, self._outputs) for shape in side for d in shape)
        return any(isinstance(d, SymDim) and symbol in d.symbols for d in dims)

    def values_array(self, values: Mapping[str, int]) -> Any:
        """Return sizes as the array that C takes."""
        largest = [r.most for r in self.found.values()]
        return ffi.new(_INT64_ARRAY_TYPE, [*(values[name] for name in self.ranges), *largest])

    def input_shapes(self, values: Mapping[str, int]) -> Shapes:
        """Return the shapes of the inputs for sizes."""
        symbols = self.symbols_of_sizes(values)
        return [tuple(_value(d, symbols) for d in dims) for dims in self._inputs]

    def output_shapes(self, values: Mapping[str, int]) -> Shapes:
        """Return the shapes of the outputs for sizes; extents that depend on sizes which a run finds are the
        largest ones.

        Raises AotcError (code "input-shape") if the model does not run with these sizes; code "state-full" if a
        state has no room for what the run appends.
        """
        extents = self.new_shapes_array()
        status = int(self._descriptor.shapes(self.values_array(values), extents))
        if status != 0:
            text = ", ".join(self._text_of_size(name, value) for name, value in values.items())
            text = f"the model does not run with the sizes {text}: {self.reason(status)}"
            raise AotcError(code_of_size_status(status), text)
        return self.shapes_of_array(extents)

    def _text_of_size(self, name: str, value: int) -> str:
        return self.operands[name].text_of_size(value) if name in self.operands else f"{name} {value}"

    def new_shapes_array(self) -> Any:
        """Return a C array for the shapes of all outputs, one behind the other."""
        return ffi.new(_INT64_ARRAY_TYPE, max(1, sum(map(len, self._outputs))))

    def shapes_of_array(self, extents: Any) -> Shapes:
        """Return the shapes of the outputs in such an array."""
        flat = iter([int(extents[k]) for k in range(sum(map(len, self._outputs)))])
        return [tuple(next(flat) for _ in dims) for dims in self._outputs]

    def reason(self, status: int) -> str:
        """Return the text of the condition on sizes that a status names; "" for other statuses."""
        return bytes(ffi.string(self._descriptor.check(status))).decode("utf-8", "replace")

    @property
    def typical(self) -> dict[str, int]:
        """The sizes of a typical run."""
        return {name: r.most if r.typical is None else r.typical for name, r in self.ranges.items()}


def _range_of_size(size: Any) -> DimRange:
    return DimRange(size.least, size.most, size.step, size.typical)


def _dim_texts(descriptor: Any) -> Iterator[str]:
    for k in count():
        yield bytes(ffi.string(descriptor.dims[k])).decode("utf-8", "replace")


def infos_of_typical_run(sizes: RunSizes | None, infos: Sequence[TensorInfo]) -> Sequence[TensorInfo]:
    """Return descriptions of inputs with the shapes of a typical run, which the values of inputs may not allow."""
    if sizes is None:
        return infos
    rows = zip(infos, sizes.input_shapes(sizes.typical), strict=True)
    return [replace(info, shape=list(shape), bounds=None) for info, shape in rows]


def code_of_size_status(status: int) -> str:
    """Return the diagnostic code of a status that says that a model does not run with sizes."""
    return STATE_FULL_CODE if status & STATUS_CODE_MASK == CAPACITY_STATUS else "input-shape"


def bytes_of_operands(sizes: RunSizes, inputs: Mapping[str, Any]) -> list[bytes | None]:
    """Return the contents of the inputs whose elements are sizes; None for what is no array."""
    names = dict.fromkeys(operand.input for operand in sizes.operands.values())
    return [a.tobytes() if type(a := inputs.get(name)) is np.ndarray else None for name in names]


def bound_operands(sizes: RunSizes | None, inputs: Mapping[str, Any]) -> BoundOperands | None:
    """Return the sizes that are elements of inputs, with their values; None if there are none."""
    operands = () if sizes is None else tuple(sizes.operands.values())
    return BoundOperands(operands, [o.size_of(inputs[o.input]) for o in operands]) if operands else None


def _add_operands(
    operands: Mapping[str, SizeOperand], inputs: Mapping[str, Any], values: dict[str, int]
) -> Iterator[Diagnostic]:
    """Add the sizes that are elements of inputs; yield a diagnostic for each that is out of range."""
    for name, operand in operands.items():
        given = inputs.get(operand.input)
        if given is None or not hasattr(given, "__array__") or np.size(given) <= operand.element:
            continue  # diagnosed elsewhere
        try:
            values[name] = operand.size_of(given)
        except ValueError as error:
            yield Diagnostic("input-value", str(error))


def _shape_or_none(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array; None for other values, which are diagnosed elsewhere."""
    on_gpu = is_on_gpu(value)
    if not on_gpu and not hasattr(value, "__array__"):
        return None
    shape = getattr(value, "shape", None)
    if on_gpu and not isinstance(shape, Iterable):
        return None
    return tuple(map(int, shape if isinstance(shape, Iterable) else np.asarray(value).shape))


def _value_or_none(dim: Dim, symbols: Mapping[str, int]) -> int | None:
    return formula_of_name(dim.name).evaluate(symbols) if isinstance(dim, SymDim) else dim


def _value(dim: Dim, symbols: Mapping[str, int]) -> int:
    value = _value_or_none(dim, symbols)
    assert value is not None, f"dimension {dim} has no value"
    return value


def _shape_diagnostic(info: TensorInfo, shape: Sequence[int], known: str = "") -> Diagnostic:
    expected = ", ".join(map(str, info.shape))
    text = f"input {info.name!r} has shape {list(shape)}, expected [{expected}]"
    return Diagnostic("input-shape", text + (f", where {known}" if known else ""))


def new_array_for_found_shapes(sizes: RunSizes | None) -> Any:
    """Return a C array for the shapes of outputs; NULL if they do not depend on sizes that a run finds."""
    return ffi.NULL if sizes is None or not sizes.found else sizes.new_shapes_array()


def arrays_of_found_shapes(arrays: list[Array], sizes: RunSizes | None, shapes: Any) -> list[Array]:
    """Return the arrays of outputs in the shapes that a run has found: views of the beginnings of arrays with
    room for the largest ones.

    shapes    the array that the run has written; NULL if the shapes were known before
    """
    if sizes is None or shapes == ffi.NULL:
        return arrays
    rows = zip(arrays, sizes.shapes_of_array(shapes), strict=True)
    return [a if a.shape == shape else a.reshape(-1)[: math.prod(shape)].reshape(shape) for a, shape in rows]
