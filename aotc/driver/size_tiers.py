# SPDX-License-Identifier: Apache-2.0
"""Sizes of a model in tiers, `--dim batch=1,8,32`: what each tier compiles, and one program of all of them.

dims_of_all_tiers({"batch": [1, 8], "seq": (1, 64)})    # {"batch": DimRange(1, 8), "seq": (1, 64)}
dims_of_each_tier({"batch": [1, 8], "seq": (1, 64)})    # [{"batch": 1, "seq": (1, 64)}, {"batch": 8, ...}]

A model is imported once for each tier. Each tier is compiled as if there were no others, except that
large weights have the same layout in all tiers (see `common_weight_layouts`). The model is also imported for all
sizes from the least to the largest one, which gives formulas of the shapes of outputs; where this is not possible,
formulas are fitted to the shapes in the tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from itertools import product
from math import prod
from typing import Final

from aotc.ir import (
    AotcError,
    DimRange,
    DimSpecification,
    Shape,
    TensorType,
    TieredDimSpecification,
    dim_size_range_or_tiers,
    frozen,
    option_text,
    tensor_types,
)
from aotc.relay.backend.run_time_sizes import RunTimeSizes, size_ranges_of_types
from aotc.relay.graph_api import IRModule, Var, infer_module, type_of
from aotc.relay.state_pair import StatePair
from aotc.relay.transform.common_weight_layouts import CommonWeightLayouts, use_common_weight_layouts
from aotc.tir import Program, Target
from aotc.tir.plan.size_tiers import TierProgram, join_tiers

#: Largest number of tiers of a model: each is compiled as a model of its own.
MAX_TIERS: Final = 64


@frozen
class SizeTiers:
    """The tiers of a model.

    sizes      the sizes that shapes depend on, by name, each with the range from the least to the largest one
    ranges     for each tier, the range of each size
    modules    for each tier, the model for these ranges
    inputs     types of the inputs by name, with the sizes as symbols
    whole      the model for all sizes from the least to the largest one; None if it cannot be imported so
    layouts    layouts of weights that the graph of the typical tier chooses and other tiers take over
    """

    sizes: Mapping[str, DimRange]
    ranges: tuple[Mapping[str, DimRange], ...]
    modules: tuple[IRModule, ...]
    inputs: Mapping[str, TensorType]
    whole: IRModule | None = None
    layouts: CommonWeightLayouts = field(default_factory=CommonWeightLayouts, repr=False)

    @property
    def typical(self) -> int:
        """Number of the tier that runs with the typical sizes."""
        usual = {name: r.most if r.typical is None else r.typical for name, r in self.sizes.items()}
        return next(k for k, ranges in enumerate(self.ranges) if all(usual[n] in r for n, r in ranges.items()))

    @property
    def modules_and_typical_sizes(self) -> list[tuple[IRModule, dict[str, int]]]:
        """For each tier the model, and its typical sizes by name, as far as they are known."""
        typical = ({n: r.typical for n, r in ranges.items() if r.typical is not None} for ranges in self.ranges)
        return list(zip(self.modules, typical, strict=True))

    def use_layouts_of_tier(self, number: int) -> AbstractContextManager[object]:
        """Return a context in which the graph of a tier, given by its number, is optimized.

        Enter that of the typical tier before all others: its graph chooses the layouts of weights, and the graphs of
        the other tiers use the same layouts for large weights.
        """
        return use_common_weight_layouts(replace(self.layouts, is_complete=number != self.typical))

    def join_programs(self, programs_of: Callable[[int], Sequence[Program]]) -> tuple[Program, ...]:
        """Return for each version of the target a program that runs one of the programs of the tiers.

        programs_of    function that returns the programs of a tier for all versions of the target, by its number
        """
        programs: dict[int, Sequence[Program]] = {}
        for number in sorted(range(len(self.modules)), key=lambda k: k != self.typical):
            with self.use_layouts_of_tier(number):
                programs[number] = programs_of(number)
        bounds = RunTimeSizes(self.sizes)
        inputs = [bounds.bounded_type(ty, Var(name, ty), "an input").shape for name, ty in self.inputs.items()]
        outputs = self._derived_shapes_of_outputs()
        return tuple(
            join_tiers(self.sizes, list(map(TierProgram, self.ranges, of_version)), inputs, outputs)
            for of_version in zip(*(programs[number] for number in range(len(programs))), strict=True)
        )

    def _derived_shapes_of_outputs(self) -> list[Shape] | None:
        """Return the shapes of the outputs that follow from the model for all sizes; None if there is none."""
        if self.whole is None:
            return None
        try:
            return [ty.shape for ty in tensor_types(type_of(infer_module(self.whole).main.body))]
        except AotcError:  # the shapes in the tiers are known
            return None


def dims_of_all_tiers(dims: Mapping[str, TieredDimSpecification]) -> dict[str, DimSpecification]:
    """Return sizes and ranges of dimensions, with the range from the least to the largest size in place of tiers."""
    found: dict[str, DimSpecification] = {}
    for name, given in dims.items():
        size = dim_size_range_or_tiers(given)
        has_tiers = isinstance(size, DimRange) and size.tiers
        found[name] = DimRange(size.least, size.most) if isinstance(size, DimRange) and has_tiers else size
    return found


def dims_of_each_tier(dims: Mapping[str, TieredDimSpecification]) -> list[dict[str, int | DimRange]]:
    """Return sizes and ranges of dimensions for each tier, in the order in which a run tries them; [] if no
    dimension has tiers. With tiers of several dimensions, there is one for each combination.

    Raise AotcError (code "dims") for too many tiers.
    """
    found = {name: dim_size_range_or_tiers(given) for name, given in dims.items()}
    choices: list[Sequence[int | DimRange]] = [
        (size.tiers or (size,)) if isinstance(size, DimRange) else (size,) for size in found.values()
    ]
    count = prod(map(len, choices))
    if count > MAX_TIERS:
        text = f"the dimensions have {count} tiers together, and a model has at most {MAX_TIERS}"
        raise AotcError("dims", text, hint="give ranges instead of sizes: " + option_text("dims", {"NAME": (1, 8)}))
    if count < 2:
        return []
    return [
        {name: _size_if_single(size) for name, size in zip(found, sizes, strict=True)} for sizes in product(*choices)
    ]


def _size_if_single(size: int | DimRange) -> int | DimRange:
    return size.least if isinstance(size, DimRange) and size.least == size.most else size


def import_tiers(
    dims: Mapping[str, TieredDimSpecification],
    whole: IRModule | None,
    inputs: Mapping[str, TensorType],
    import_for_dims: Callable[[Mapping[str, int | DimRange]], IRModule],
) -> SizeTiers:
    """Import a model for each tier of its dimensions, some of which have several.

    whole              the model for all sizes from the least to the largest one; None if it cannot be imported so
    inputs             types of the inputs by name, with ranges of dimensions inserted
    import_for_dims    function that imports the model for sizes and ranges of dimensions
    """
    tiers = dims_of_each_tier(dims)
    given = {name: dim_size_range_or_tiers(value) for name, value in dims.items()}
    usual = {name: r.typical for name, r in given.items() if isinstance(r, DimRange) and r.typical is not None}
    sizes = size_ranges_of_types(inputs.values(), usual)
    tiered = {name: r for name, r in given.items() if isinstance(r, DimRange) and r.tiers}
    if unknown := [name for name in tiered if name not in sizes]:
        text = f"{', '.join(unknown)} cannot have several tiers: the shape of no input depends on it"
        hint = "give one range: " + option_text(
            "dims", {name: (tiered[name].least, tiered[name].most) for name in unknown}
        )
        raise AotcError("dims", text, hint=hint)
    sizes |= tiered
    ranges: list[Mapping[str, DimRange]] = []
    for tier in tiers:
        stated = {name: tier.get(name, r) for name, r in sizes.items()}
        ranges.append({name: DimRange(r, r) if isinstance(r, int) else r for name, r in stated.items()})
    modules = tuple(map(import_for_dims, tiers))
    names = {param.name for param in modules[0].main.params}  # others are constants
    return SizeTiers(sizes, tuple(ranges), modules, {n: ty for n, ty in inputs.items() if n in names}, whole)


def input_types_without_state(module: IRModule, state: Sequence[StatePair]) -> dict[str, TensorType]:
    """Return the types of the inputs of a model by name. Raise AotcError (code "dims") if it keeps state, which a model
    with tiers cannot.
    """
    params = module_without_state(module, state).main.params
    return {p.name: ty for p in params if isinstance(ty := type_of(p), TensorType)}


def module_without_state(module: IRModule, state: Sequence[StatePair]) -> IRModule:
    """Return the module. Raise AotcError (code "dims") if it keeps state, which a model with tiers cannot."""
    if state:
        text = "a model that keeps state between runs cannot be compiled in several tiers"
        hint = "leave " + option_text("state") + " out, or give one size or range: "
        raise AotcError("dims", text, hint=hint + option_text("dims", {"NAME": (1, 8)}))
    return module


def require_target_supports_tiers(dims: Mapping[str, TieredDimSpecification], target: Target) -> None:
    """Raise AotcError (code "target") for tiers of a range of sizes on a GPU."""
    if target.gpu is None or not dims_of_each_tier(dims):
        return
    stated = {name: dim_size_range_or_tiers(given) for name, given in dims.items()}
    ranges = {n: r for n, r in stated.items() if isinstance(r, DimRange) and any(t.least < t.most for t in r.tiers)}
    if ranges:
        text = f"each tier of code for {target.name} is one size, which the kernels are made for: "
        text += option_text("dims", {n: str(r) for n, r in ranges.items()})
        hint = "give sizes instead of ranges, for example: " + option_text(
            "dims", {n: r.ends for n, r in ranges.items()}
        )
        raise AotcError("target", text, hint=hint)
