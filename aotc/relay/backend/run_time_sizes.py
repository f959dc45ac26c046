# SPDX-License-Identifier: Apache-2.0
"""Sizes that are known at run time only, of a module whose @main has dimensions with bounds.

sizes = RunTimeSizes(size_ranges_of_inputs(main, {"batch": 4}))
sizes.ranges                                 # {"batch": DimRange(1, 8, typical=4)}
sizes.add_condition(DimCondition(n, "==", m), span)
sizes.checks                                 # conditions that do not follow from the ranges
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aotc.ir import (
    AotcError,
    Dim,
    DimRange,
    Span,
    SymDim,
    TensorType,
    Type,
    are_bounded,
    bound_dim,
    dim_of_text,
    option_text,
    symbol_of_multiples,
    tensor_types,
)
from aotc.ir.dimension_formulas import Formula, constant, formula_of_name, symbol
from aotc.ir.size_operands import (
    SIZE_CONDITIONS_ATTRIBUTE,
    SIZE_DEFINITIONS_ATTRIBUTE,
    SizeDefinition,
    SizeOperand,
    size_definitions_of_rows,
)
from aotc.relay.backend.function_to_kernel import diagnose_dynamic_shapes
from aotc.relay.graph_api import Expr, Function, IRModule, type_of
from aotc.tir import SizeCheck, Target


def size_ranges_of_inputs(main: Function, typical: Mapping[str, int]) -> dict[str, DimRange]:
    """Return the sizes that the shapes of a function's parameters depend on; see `size_ranges_of_types`."""
    return size_ranges_of_types((t for p in main.params for t in tensor_types(type_of(p))), typical)


def size_ranges_of_types(types: Iterable[TensorType], typical: Mapping[str, int]) -> dict[str, DimRange]:
    """Return the sizes that the shapes of inputs depend on, by name, with their ranges.

    typical    size of a typical run for some of them

    Raise AotcError (code "dims") for a symbol that no dimension bounds.
    """
    dims = [d for ty in types for d in ty.shape if isinstance(d, SymDim)]
    symbols = dict.fromkeys(name for d in dims for name in sorted(d.symbols))
    ranges: dict[str, DimRange] = {}
    for name in symbols:
        least, most = _interval_of_symbol(name, dims)
        base, step = _size_and_step(name, dims)
        usual = typical.get(base)
        ranges[base] = DimRange(least * step, most * step, step)
        if usual is not None and usual in ranges[base]:
            ranges[base] = replace(ranges[base], typical=usual)
    return ranges


def typical_values_of_symbols(module: IRModule, typical: Mapping[str, int]) -> dict[str, int]:
    """Return the values in a typical run of the symbols in shapes of the parameters of @main; empty if no typical
    size is given, as for modules without @main.

    typical    size of a typical run for some sizes, by name
    """
    if not typical:
        return {}
    try:
        ranges = size_ranges_of_inputs(module.main, typical)
    except AotcError:  # lowering reports what has no bounds
        return {}
    sizes = {name: r.most if r.typical is None else r.typical for name, r in ranges.items()}
    return {symbol_of_multiples(name, r.step): sizes[name] // r.step for name, r in ranges.items()}


def _interval_of_symbol(name: str, dims: Iterable[SymDim]) -> tuple[int, int]:
    """Return the least and the greatest value of a symbol, from the bounds of dimensions that are linear
    in it alone.
    """
    least, most = 0, -1
    for dim in dims:
        formula = formula_of_name(dim.name)
        added = formula.constant_term
        match (formula - constant(added)).terms:
            case [((str() as found,), int() as factor)] if found == name and factor > 0 and dim.upper is not None:
                least = max(least, -((added - dim.lower) // factor))
                upper = (dim.upper - added) // factor
                most = upper if most < 0 else min(most, upper)
    if most < least:
        hint = "give a range of it, for example: " + option_text("dims", {name: (1, 512)})
        raise AotcError("dims", f"nothing bounds the size {name!r}", hint=hint)
    return least, most


def _size_and_step(name: str, dims: Iterable[SymDim]) -> tuple[str, int]:
    """Return the name and the step of the size whose steps a symbol counts: (height, 32) for
    'height/32'; the symbol itself with a step of 1 for others.
    """
    base, _, digits = name.rpartition("/")
    step = int(digits) if digits.isascii() and digits.isdigit() else 1
    if not base or step <= 1 or symbol_of_multiples(base, step) != name:
        return name, 1
    counted = constant(step) * symbol(name)
    return (base, step) if any(formula_of_name(d.name) == counted for d in dims) else (name, 1)


@dataclass
class RunTimeSizes:
    """The sizes of a run, and the conditions on them that a program checks.

    ranges         sizes by name
    definitions    sizes that formulas of others define
    found          sizes that calls find, with their largest values
    checks         conditions that do not follow from the ranges
    in_part        True while conditions are added that only a part of the program needs, such as an arm
    of_parts       texts of the conditions that nothing but such parts needs
    """

    ranges: Mapping[str, DimRange]
    definitions: Sequence[SizeDefinition] = ()
    found: Mapping[str, int] = field(default_factory=dict)
    checks: list[SizeCheck] = field(default_factory=list)
    in_part: bool = False
    of_parts: set[str] = field(default_factory=set)

    @property
    def intervals(self) -> dict[str, tuple[int, int]]:
        """The least and the greatest value of each symbol in dimensions."""
        items = self.ranges.items()
        stated = {symbol_of_multiples(name, r.step): (r.least // r.step, r.most // r.step) for name, r in items}
        found = {name: (0, most) for name, most in self.found.items()}
        return stated | {d.name: (d.least, d.most) for d in self.definitions} | found

    @property
    def computed(self) -> set[str]:
        """The sizes that callers do not state: those that calls find, and those that formulas define."""
        return {*self.found, *(d.name for d in self.definitions)}

    def bounded_type(self, ty: TensorType, node: Expr, description: str) -> TensorType:
        """Return a type with the bounds that follow from the ranges.

        Raise AotcError (code "dynamic-shape") for a dimension without a name or an upper bound.
        """
        if ty.is_static:
            return ty
        dims = tuple(bound_dim(d, self.intervals) if isinstance(d, SymDim) else d for d in ty.shape)
        if not are_bounded(dims):
            raise AotcError.collect(diagnose_dynamic_shapes(ty, node, description))
        return TensorType(dims, ty.dtype)

    def require_not_negative(self, ty: Type, span: Span | None) -> None:
        """Add the condition that no dimension of a type is negative."""
        for tensor in tensor_types(ty):
            for dim in tensor.shape:
                if isinstance(dim, SymDim):
                    self.add_condition(dim, ">=", 0, span)

    def require_declared_bounds(self, ty: TensorType, span: Span | None) -> None:
        """Add the conditions that the dimensions of an input are in their bounds: those of a formula may be
        narrower than what follows from the ranges of its sizes.
        """
        for dim in ty.shape:
            if isinstance(dim, SymDim):
                self.add_condition(dim, ">=", max(dim.lower, 0), span)
                if dim.upper is not None:
                    self.add_condition(dim.upper, ">=", dim, span)

    def add_stated_conditions(self, conditions: Iterable[Sequence[str]], span: Span | None) -> None:
        """Add conditions that a model states: two formulas, the relation between them, and the name of the
        node that needs it.

        span    location of the model
        """
        source = "" if span is None else span.source
        for left, relation, right, node in conditions:
            self.add_condition(_dim_of_condition(left), relation, _dim_of_condition(right), Span(source, node=node))

    def add_condition(self, left: Dim, relation: str, right: Dim, span: Span | None) -> None:
        """Add a condition, unless it follows from the ranges of sizes.

        Raise AotcError (code "dims") for a condition that no sizes in these ranges fulfill.
        """
        check = SizeCheck(left, relation, right, span)
        low, high = (_formula(left) - _formula(right)).interval(self.intervals)
        if low == high == 0 or (relation == ">=" and low >= 0):
            return
        if high < 0 or (relation == "==" and low > 0):
            sizes = ", ".join(f"{name} {r}" for name, r in self.ranges.items())
            raise AotcError("dims", f"no sizes in the ranges {sizes} fulfill {check}", span=span)
        text = str(check)
        if all(text != str(other) for other in self.checks):
            self.checks.append(check)
            if self.in_part:
                self.of_parts.add(text)
        elif not self.in_part:
            self.of_parts.discard(text)


def sizes_of_module(module: IRModule, operands: Sequence[SizeOperand], ranges: Mapping[str, DimRange]) -> RunTimeSizes:
    """Return the sizes that shapes of a module depend on, with the conditions that the model states."""
    definitions = size_definitions_of_rows(module.attrs.get(SIZE_DEFINITIONS_ATTRIBUTE, ()))
    sizes = RunTimeSizes({**ranges} | {o.name: DimRange(0, o.most - o.least) for o in operands}, definitions)
    sizes.add_stated_conditions(module.attrs.get(SIZE_CONDITIONS_ATTRIBUTE, ()), module.main.span)
    return sizes


def _dim_of_condition(text: str) -> Dim:
    """Return what one side of a condition spells: unlike a size, it may be a negative number."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else dim_of_text(text)


def _formula(dim: Dim) -> Formula:
    return formula_of_name(dim.name) if isinstance(dim, SymDim) else constant(dim)


def require_target_supports_sizes(
    sizes: RunTimeSizes, target: Target, main: Function, operands: Iterable[SizeOperand]
) -> None:
    """Raise AotcError (code "target") for sizes that are known at run time only on a GPU.

    operands    the sizes that are elements of inputs
    """
    if not sizes.ranges or target.gpu is None:
        return
    if operands:
        inputs = ", ".join(repr(name) for name in dict.fromkeys(o.input for o in operands))
        text = f"code for {target.name} has no sizes that are values of inputs, as those of {inputs} are"
        hint = "make the values constants of the model, or compile for a processor, for example with "
        raise AotcError("target", text, span=main.span, hint=hint + option_text("target", "host"))
    ranges = ", ".join(f"{name} {r}" for name, r in sizes.ranges.items())
    text = f"code for {target.name} has no sizes that vary at run time within a range: {ranges}"
    hint = "compile one size, for example: " + option_text("dims", {n: r.most for n, r in sizes.ranges.items()})
    hint += ", or several, each with kernels of its own: "
    hint += option_text("dims", {n: r.ends for n, r in sizes.ranges.items()})
    raise AotcError("target", text, span=main.span, hint=hint)
