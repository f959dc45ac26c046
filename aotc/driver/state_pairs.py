# SPDX-License-Identifier: Apache-2.0
"""Resolve the option `state` of a compilation: pairs of an input and an output of a model that are
state, which the model keeps between runs.

resolve_state_pairs({"past_*": "present_*"}, module, {})     # (StatePair("past_0", "present_0"), ...)
resolve_state_pairs({"past_*": "present_*:512"}, module, {}) # states that grow up to a length of 512
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final

from aotc.ir import (
    AotcError,
    Array,
    Diagnostic,
    Dim,
    SymDim,
    TensorType,
    did_you_mean_hint,
    frozen,
    option_text,
    same_dim,
    tensor_types,
)
from aotc.ir.dimension_formulas import Formula, constant, formula_of_name, formula_text
from aotc.relay.bind_variables_and_parameters import constant_for_param
from aotc.relay.graph_api import IRModule, infer_module, output_names_or_default, type_of
from aotc.relay.state_pair import StateGrowth, StatePair

#: Diagnostic code of state pairs that a model cannot have.
STATE_ERROR_CODE: Final = "state"
WILDCARD: Final = "*"


@frozen
class ModelInterface:
    """Types of the inputs and outputs of a model, by name."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


def resolve_state_pairs(
    patterns: Mapping[str, str], module: IRModule, initial: Mapping[str, Any]
) -> tuple[StatePair, ...]:
    """Return the state pairs of a model.

    patterns    names of outputs by names of inputs; each * of an input's name stands for a text, which
                the * at the same place of the output's name stands for, too. Behind the name of the output
                may be the capacity of a state that grows
    initial     contents of inputs in the first run, by name; zeros for all others

    Raise AotcError (code "state") with a diagnostic for each pair that the model does not have or
    whose types do not fit, for each input and output in two pairs, for contents of other inputs and of
    states that grow, for states that grow by different sizes, and if all outputs are state; code "bind"
    for contents whose shape or dtype differs from the input's.
    """
    interface = typed_interface(module)
    problems: list[Diagnostic] = []
    pairs: dict[str, str] = {}
    capacities: dict[str, int | None] = {}
    inputs_by_output: dict[str, str] = {}
    for past_pattern, present_and_capacity in patterns.items():
        present_pattern, capacity = _split_capacity(present_and_capacity, interface.outputs)
        names = interface.inputs.keys(), interface.outputs.keys()
        for past, present in _name_pairs_of_pattern(past_pattern, present_pattern, *names, problems):
            capacities.setdefault(past, capacity)
            if pairs.setdefault(past, present) != present:
                text = f"input {past!r} is in two state pairs, with the outputs {pairs[past]!r} and {present!r}"
                problems.append(_state_diagnostic(text, "leave one of them out"))
            elif inputs_by_output.setdefault(present, past) != past:
                text = f"output {present!r} is in two state pairs, with the inputs "
                text += f"{inputs_by_output[present]!r} and {past!r}"
                problems.append(_state_diagnostic(text, "leave one of them out"))
    growths: dict[str, StateGrowth] = {}
    if not problems:
        growths = _growths_of_pairs(pairs, capacities, interface, problems)
    if not problems and not interface.outputs.keys() - inputs_by_output.keys():
        text = "all outputs of the model are state, so that no output is left for callers"
        problems.append(_state_diagnostic(text, "leave one pair out, and its output stays an output"))
    contents = _contents_of_first_run(module, pairs, growths, initial, problems) if not problems else {}
    if problems:
        raise AotcError.collect(problems)
    return tuple(StatePair(past, present, contents.get(past), growths.get(past)) for past, present in pairs.items())


def _contents_of_first_run(
    module: IRModule,
    pairs: Mapping[str, str],
    growths: Mapping[str, StateGrowth],
    initial: Mapping[str, Any],
    problems: list[Diagnostic],
) -> dict[str, Array]:
    """Return the contents of inputs in the first run, as far as they are given; add diagnostics for those of
    other inputs and of states that grow, and for contents of another type.
    """
    params = infer_module(module).main.params
    inputs = [p.name for p in params]
    for name in initial:
        if name not in pairs:
            hint = did_you_mean_hint(name, inputs) or f"inputs: {', '.join(inputs)}"
            text = f"there are first contents for {name!r}, and the model has no such input"
            problems.append(_state_diagnostic(text, hint))
        elif name in growths:
            text = f"there are first contents for {name!r}, which grows from run to run and begins empty"
            problems.append(_state_diagnostic(text, "leave them out, and run the model on what they were made from"))
    contents: dict[str, Array] = {}
    for param in params:
        if param.name in pairs and param.name in initial:
            constant, mismatches = constant_for_param(param, initial[param.name])
            contents[param.name] = constant.data
            problems += mismatches
    return contents


def lengths_of_growing_states(
    patterns: Mapping[str, str], inputs: Mapping[str, Sequence[str]], outputs: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Return the symbols that are lengths of states with a capacity in the option `state`, with the capacity:
    the dimension that differs between the input and the output of a pair.

    inputs, outputs    names of the dimensions of each tensor; "" for those without a name
    """
    lengths: dict[str, int] = {}
    for past_pattern, present_and_capacity in patterns.items():
        present_pattern, capacity = _split_capacity(present_and_capacity, outputs)
        for past, present in _name_pairs_of_pattern(past_pattern, present_pattern, inputs.keys(), outputs.keys(), []):
            before, after = inputs[past], outputs[present]
            if capacity is None or len(before) != len(after):
                continue
            lengths |= {b: capacity for b, a in zip(before, after, strict=True) if b and b != a}
    return lengths


def input_names_matching_state(patterns: Mapping[str, str], input_names: Sequence[str]) -> list[str]:
    """Return the inputs, of those given, that the option `state` names."""
    compiled = [_pattern_with_groups(past) for past in patterns]
    return [name for name in input_names if any(pattern.fullmatch(name) for pattern in compiled)]


def _state_diagnostic(text: str, hint: str) -> Diagnostic:
    return Diagnostic(STATE_ERROR_CODE, text, hint=hint)


def typed_interface(module: IRModule) -> ModelInterface:
    """Return the types of the inputs and outputs of a module that are tensors."""
    main = infer_module(module).main
    types = tensor_types(type_of(main.body))
    inputs = {p.name: p.checked_type for p in main.params if isinstance(p.checked_type, TensorType)}
    return ModelInterface(inputs, dict(zip(output_names_or_default(module, len(types)), types, strict=True)))


def _pattern_with_groups(name: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, name.split(WILDCARD))), re.DOTALL)


def _name_pairs_of_pattern(
    past_pattern: str,
    present_pattern: str,
    inputs: Collection[str],
    outputs: Collection[str],
    problems: list[Diagnostic],
) -> Iterator[tuple[str, str]]:
    """Yield the names of the input and the output of each pair that a pattern stands for; add
    diagnostics for missing ones to `problems`.
    """
    pair = option_text("state", {past_pattern: present_pattern})
    if past_pattern.count(WILDCARD) != present_pattern.count(WILDCARD):
        text = f"{past_pattern!r} and {present_pattern!r} have different numbers of {WILDCARD}"
        hint = "give both names the same number: each stands for the same text in both"
        problems.append(_state_diagnostic(text, hint))
        return
    pattern = _pattern_with_groups(past_pattern)
    matches = [m for name in inputs if (m := pattern.fullmatch(name))]
    if not matches:
        found = f"no input of the model matches {past_pattern!r}"
        text = found if WILDCARD in past_pattern else f"the model has no input {past_pattern!r}"
        hint = did_you_mean_hint(past_pattern, inputs) or f"inputs: {', '.join(inputs)}"
        problems.append(_state_diagnostic(text + ", of the state pair " + pair, hint))
    for match in matches:
        present = "".join(map("".join, zip_longest(present_pattern.split(WILDCARD), match.groups(), fillvalue="")))
        if present in outputs:
            yield match[0], present
            continue
        hint = did_you_mean_hint(present, outputs) or f"outputs: {', '.join(outputs)}"
        text = f"the model has no output {present!r} for the input {match[0]!r}, of the state pair " + pair
        problems.append(_state_diagnostic(text, hint))


def _split_capacity(present: str, outputs: Iterable[str]) -> tuple[str, int | None]:
    """Return the name of an output and the capacity behind it: "present:512" has both, unless the model
    has an output of this name.
    """
    name, colon, digits = present.rpartition(":")
    if not colon or not (digits.isascii() and digits.isdigit()) or not int(digits):
        return present, None
    return (present, None) if _has_name(present, outputs) else (name, int(digits))


def _has_name(pattern: str, names: Iterable[str]) -> bool:
    compiled = _pattern_with_groups(pattern)
    return any(compiled.fullmatch(name) for name in names)


def _growths_of_pairs(
    pairs: Mapping[str, str],
    capacities: Mapping[str, int | None],
    interface: ModelInterface,
    problems: list[Diagnostic],
) -> dict[str, StateGrowth]:
    """Return how the states that grow do so, by names of inputs; add diagnostics for pairs whose types do
    not fit, and for capacities of states of a fixed size.
    """
    growths: dict[str, StateGrowth] = {}
    for past, present in pairs.items():
        before, after = interface.inputs[past], interface.outputs[present]
        axis = _growing_axis(before, after)
        if axis is None:
            problems += _diagnose_pair_types(past, present, interface)
            if before == after and capacities[past] is not None:
                text = f"the state {past!r} has the capacity {capacities[past]}, but does not grow: it is {before}"
                problems.append(_state_diagnostic(text, "leave the capacity out"))
            continue
        length, longer = before.shape[axis], after.shape[axis]
        capacity = capacities[past] or (None if isinstance(longer, int) else longer.upper)
        if capacity is None or not isinstance(length, SymDim):
            text = f"nothing bounds the length of the state {past!r}, which is {before}"
            example = option_text("state", {past: f"{present}:512"})
            problems.append(_state_diagnostic(text, "give its capacity, for example: " + example))
            continue
        if length.lower > 0:
            text = f"the state {past!r} begins empty, but its length {length.name} is at least {length.lower}"
            example = option_text("dims", {length.name: (0, capacity)})
            problems.append(_state_diagnostic(text, "let the range begin with 0, for example: " + example))
        added = _formula_of_dim(longer) - _formula_of_dim(length)
        number = added.constant_or_none
        dim = SymDim(formula_text(added)) if number is None else number
        growths[past] = StateGrowth(axis, length.name, dim, capacity)
    first = next(iter(growths.items()), None)
    for past, growth in growths.items():
        if first is not None and replace(growth, axis=first[1].axis) != first[1]:
            text = "the states of a model grow together, but "
            text += " and ".join(f"{n!r} {_growth_text(g)}" for n, g in (first, (past, growth)))
            hint = "export the model with one name for the length of both, and give both one capacity"
            problems.append(_state_diagnostic(text, hint))
    return growths


def _formula_of_dim(dim: Dim) -> Formula:
    return formula_of_name(dim.name) if isinstance(dim, SymDim) else constant(dim)


def _growth_text(growth: StateGrowth) -> str:
    return f"grows from {growth.size} by {growth.added} up to {growth.capacity}"


def _growing_axis(before: TensorType, after: TensorType) -> int | None:
    """Return the axis along which a state grows: its length is a size of the run and becomes larger by a
    number, or by a formula over other sizes; None if the types differ in another way.
    """
    if before.dtype != after.dtype or before.rank != after.rank:
        return None
    axes = [k for k, (b, a) in enumerate(zip(before.shape, after.shape, strict=True)) if not same_dim(b, a)]
    if len(axes) != 1 or any(isinstance(d, SymDim) for k, d in enumerate(before.shape) if k != axes[0]):
        return None
    length, longer = before.shape[axes[0]], after.shape[axes[0]]
    if not isinstance(length, SymDim) or not isinstance(longer, SymDim) or length.symbols != {length.name}:
        return None
    added = formula_of_name(longer.name) - formula_of_name(length.name)
    return axes[0] if added.interval({})[0] >= 0 and length.name not in added.symbols else None


def _diagnose_pair_types(past: str, present: str, interface: ModelInterface) -> Iterator[Diagnostic]:
    """Yield a diagnostic if the types of a pair differ; its hint names the tensors that would fit."""
    before, after = interface.inputs[past], interface.outputs[present]
    if before == after:
        return
    text = f"input {past!r} is {before} and output {present!r} is {after}: a state pair has one type"
    fitting_outputs = [repr(name) for name, ty in interface.outputs.items() if ty == before]
    fitting_inputs = [repr(name) for name, ty in interface.inputs.items() if ty == after]
    hints = [f"outputs that fit {past!r}: {', '.join(fitting_outputs)}"] if fitting_outputs else []
    hints += [f"inputs that fit {present!r}: {', '.join(fitting_inputs)}"] if fitting_inputs else []
    if not hints and before.dtype == after.dtype and before.rank == after.rank:
        example = option_text("state", {past: f"{present}:512"})
        advice = "a state grows along one axis, whose length is a size of the run; for example: " + example
        yield _state_diagnostic(text, advice)
        return
    none = "pair an input with an output of its type: the model has no other one for either of them"
    yield _state_diagnostic(text, "; ".join(hints) or none)
