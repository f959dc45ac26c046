# SPDX-License-Identifier: Apache-2.0
"""Lowering of a fused function whose sizes are known at run time only, to one kernel that takes them as
numbers.

    sized = lower_function_with_run_time_sizes(fused, "relu", target, {"batch": (1, 8), "seq": (0, 512)})
    sized.kernel.numbers        # (Number(n0, 0, 4096),)
    sized.sizes                 # (batch*seq<=4096,): what a caller passes for n0

Sizes are numbered in the order in which the parameters of the function have them. Dimensions that
differ in a factor and a summand only, such as n and 2*n + 1, share a number. So do all dimensions that
are one formula of symbols which occur in no other way: a function of tensors with `batch*seq` rows has
one number, and the kernel of one resolution, h//2, is that of another, h//4. Functions that differ in
nothing but the names and formulas of their sizes therefore have equal kernels.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.ir import (
    AotcError,
    Dim,
    DimCondition,
    Shape,
    SymDim,
    TensorType,
    are_bounded,
    bound_dim,
    collect_dim_conditions,
    frozen,
    interval_of_dim,
    map_dims_in_attrs,
    option_text,
    symbol_and_sizes,
    tensor_types,
    typical_size,
)
from aotc.ir.dimension_formulas import Formula, Interval, constant, formula_of_name, formula_text, symbol
from aotc.relay.backend.function_to_kernel import (
    Value,
    call_as_tensor_expression,
    diagnose_dynamic_shapes,
    function_as_tensor_expressions,
    kernel_name_from_anchor_operator,
)
from aotc.relay.graph_api import Call, Expr, Function, dims_in_attributes, post_order, type_of
from aotc.relay.op.opdef import OpDef
from aotc.tir import Kernel, Target
from aotc.tir.expr import variable_of_symbol
from aotc.tir.schedule import schedule
from aotc.tir.stmt import Number

#: What lowering of an operator raises where it needs a number in place of a size: sizes have neither a
#: truth value nor an order.
_SIZE_ERRORS: Final = (TypeError, AttributeError, AssertionError)


@frozen
class SizedKernel:
    """A kernel whose numbers are sizes, and what each caller passes for them.

    kernel        the kernel; `kernel.numbers` come after its buffers
    sizes         for each number of the kernel, the dimension whose value is passed: a formula of the
                  symbols in the types of the function
    conditions    conditions without which the types of the function do not hold: to be checked before the
                  kernel is called, as is that no dimension of its parameters and results is negative
    """

    kernel: Kernel
    sizes: tuple[Dim, ...]
    conditions: tuple[DimCondition, ...] = ()


def lower_function_with_run_time_sizes(
    function: Function,
    kernel_name: str,
    target: Target,
    intervals: Mapping[str, Interval],
    computed: Container[str] = (),
) -> SizedKernel:
    """Return the kernel of a fused function with dimensions that are known at run time only.

    function     its attribute `Finite` lists parameters without infinities and NaN
    intervals    the least and the greatest value of each symbol in the types of the function
    computed     names of sizes that a run computes or finds, which callers of the compiler cannot state

    Raise AotcError (code "dynamic-shape") for dimensions without a name or an upper bound, and for an
    operator that has no program for such sizes.
    """
    conditions = _conditions_assumed_by_types(function)
    for condition in conditions:
        if not _can_hold(condition, intervals):
            text = f"{kernel_name}: sizes must be {condition}, which does not hold for any size"
            raise AotcError("dynamic-shape", text, span=function.span)
    intervals = _intervals_within_conditions(intervals, conditions)
    params = [(p, t) for p in function.params for t in tensor_types(type_of(p))]
    dims = [bound_dim(d, intervals) for _, t in params for d in t.shape if isinstance(d, SymDim)]
    if not are_bounded(dims):
        raise AotcError.collect(
            [d for p, t in params for d in diagnose_dynamic_shapes(t, p, f"{kernel_name}: an input")]
        )
    dims += [_with_interval(d, intervals) for d in dims_in_attributes(function)]
    numbering = _Numbering.of_dims(dims, intervals)

    def shape_in_numbers(tensor: TensorType) -> Shape:
        return tuple(
            numbering.in_numbers(bound_dim(d, intervals)) if isinstance(d, SymDim) else d for d in tensor.shape
        )

    def attribute_in_numbers(dim: SymDim) -> Dim:
        return numbering.in_numbers(_with_interval(dim, intervals))

    def call_value(call: Call, args: Sequence[Value]) -> Value:
        try:
            return call_as_tensor_expression(call, args, map_dims_in_attrs(call.attrs, attribute_in_numbers))
        except AotcError as error:
            # ExpandOps has left an operator whose definition needs known sizes
            if error.code == "no-compute" and isinstance(call.op, OpDef) and call.op.expand is not None:
                raise _no_program_error(call, call.op.name, computed) from error
            raise
        except _SIZE_ERRORS as error:
            raise _no_program_error(call, str(getattr(call.op, "name", call.op)), computed) from error

    inputs, outputs = function_as_tensor_expressions(function, shape_in_numbers, call_value)
    try:
        kernel = schedule(kernel_name, inputs, outputs, target, function.span, numbering.numbers)
    except TypeError as error:
        raise _no_program_error(function.body, kernel_name_from_anchor_operator(function), computed) from error
    size_of_name = {number.var.name: size for number, size in zip(numbering.numbers, numbering.sizes, strict=True)}
    sizes = tuple(size_of_name[number.var.name] for number in kernel.numbers)
    return SizedKernel(kernel, sizes, conditions)


def _with_interval(dim: SymDim, intervals: Mapping[str, Interval]) -> SymDim:
    """Return a dimension in an attribute, which may be negative, with the bounds that follow from
    intervals of its symbols.
    """
    low, high = formula_of_name(dim.name).interval(intervals) if dim.name else (-math.inf, math.inf)
    if math.isinf(low) or math.isinf(high):
        raise AotcError("dynamic-shape", f"nothing bounds the attribute {dim}")
    return replace(dim, lower=int(low), upper=int(high))


def _no_program_error(node: Expr, operator: str, computed: Container[str]) -> AotcError:
    """Return the error for an operator whose lowering needs a number in place of a size."""
    types = [type_of(a) for a in node.args] if isinstance(node, Call) else [type_of(node)]
    dims = {d for ty in types for t in tensor_types(ty) for d in t.shape if isinstance(d, SymDim)}
    rows = [item for d in dims if (item := symbol_and_sizes(d)) is not None]
    sizes = {name: most for name, _, most in rows if name not in computed}
    names = ", ".join(sorted(map(str, dims)))
    text = f"operator {operator} has no program for sizes that are known at run time only: {names}"
    hint = "pin them, for example: " + option_text("dims", sizes) if sizes else ""
    return AotcError("dynamic-shape", text, span=node.span, hint=hint)


def _conditions_assumed_by_types(function: Function) -> tuple[DimCondition, ...]:
    """Return the conditions on dimensions that the type rules of a function's calls assume."""
    with collect_dim_conditions() as conditions:
        for node in post_order(function.body):
            if isinstance(node, Call) and isinstance(node.op, OpDef):
                node.op.infer(node.attrs, [type_of(a) for a in node.args])
    return tuple(conditions)


def _can_hold(condition: DimCondition, intervals: Mapping[str, Interval]) -> bool:
    """Return False if a condition holds for no values of the symbols in their intervals."""
    ends = (
        interval_of_dim(bound_dim(d, intervals) if isinstance(d, SymDim) else d)
        for d in (condition.left, condition.right)
    )
    (low, high), (least, most) = ends
    return high >= least and (condition.relation == ">=" or low <= most)


def _intervals_within_conditions(
    intervals: Mapping[str, Interval], conditions: Sequence[DimCondition]
) -> dict[str, Interval]:
    """Return the intervals of symbols without values for which a condition on one symbol does not hold."""
    narrowed = dict(intervals)
    for condition in conditions:
        if condition.relation != ">=" or not isinstance(condition.left, SymDim) or not condition.left.name:
            continue
        scaled = _scaled_core(condition.left)
        for name, (low, high) in narrowed.items():
            if scaled.core == symbol(name) and isinstance(condition.right, int):
                least = condition.right - scaled.summand
                if scaled.factor > 0:
                    narrowed[name] = max(low, -(-least // scaled.factor)), high
                else:
                    narrowed[name] = low, min(high, least // scaled.factor)
    return narrowed


@frozen
class _ScaledCore:
    """A formula as `factor * core + summand`, where the core has no constant term and no common factor."""

    core: Formula
    factor: int
    summand: int

    def interval_of_core(self, least: int, most: int) -> tuple[int, int]:
        """Return the interval of the core for values of the formula from `least` to `most`."""
        ends = (least - self.summand, most - self.summand)
        low, high = ends if self.factor > 0 else (-ends[1], -ends[0])
        return -(-low // abs(self.factor)), high // abs(self.factor)


def _scaled_core(dim: SymDim) -> _ScaledCore:
    formula = formula_of_name(dim.name)
    summand = formula.constant_term
    symbolic = formula - constant(summand)
    factor = math.gcd(*(number for _, number in symbolic.terms))
    factor = -factor if symbolic.terms[0][1] < 0 else factor
    core = Formula(tuple((factors, number // factor) for factors, number in symbolic.terms))
    return _ScaledCore(core, factor, summand)


@dataclass
class _Numbering:
    """The numbers of a kernel for the dimensions of its parameters.

    numbers         the numbers, named n0, n1, ...
    sizes           their values, as formulas of the model's symbols
    name_of_core    names of numbers by the formula that is their value
    """

    numbers: list[Number] = field(default_factory=list)
    sizes: list[SymDim] = field(default_factory=list)
    name_of_core: dict[Formula, str] = field(default_factory=dict)

    @classmethod
    def of_dims(cls, dims: Sequence[SymDim], intervals: Mapping[str, Interval]) -> _Numbering:
        """Return numbers for dimensions, which have names and upper bounds."""
        numbering = cls()
        cores = list(dict.fromkeys(_scaled_core(d).core for d in dims))
        for core in cores:
            alone = all(other == core or not other.symbols & core.symbols for other in cores)
            for formula in (core,) if alone else map(symbol, sorted(core.symbols)):
                if formula not in numbering.name_of_core:
                    numbering._add_number(formula, dims, intervals)
        return numbering

    def _add_number(self, formula: Formula, dims: Iterable[SymDim], intervals: Mapping[str, Interval]) -> None:
        name = f"n{len(self.numbers)}"
        low, high = formula.interval(intervals)
        low = max(low, 0) if len(formula.terms) == 1 else low
        for dim in dims:
            scaled = _scaled_core(dim)
            if scaled.core == formula and dim.upper is not None:
                least, most = scaled.interval_of_core(dim.lower, dim.upper)
                low, high = max(low, least), min(high, most)
        if math.isinf(low) or math.isinf(high):
            raise AotcError("dynamic-shape", f"nothing bounds the size {formula}")
        self.name_of_core[formula] = name
        size = SymDim(formula_text(formula), int(high), int(low))
        self.numbers.append(Number(variable_of_symbol(name), int(low), int(high), typical_size(size)))
        self.sizes.append(size)

    def in_numbers(self, dim: SymDim) -> Dim:
        """Return a dimension as a formula of the numbers."""
        scaled = _scaled_core(dim)
        name = self.name_of_core.get(scaled.core)
        if name is not None:
            formula = constant(scaled.factor) * symbol(name) + constant(scaled.summand)
        else:
            names = {s: symbol(self.name_of_core[symbol(s)]) for s in dim.symbols}
            formula = formula_of_name(dim.name).substitute(names)
        return replace(dim, name=formula_text(formula))
