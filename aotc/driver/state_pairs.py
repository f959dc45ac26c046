# SPDX-License-Identifier: Apache-2.0
"""Resolve the option `state` of a compilation: pairs of an input and an output of a model that are
state, which the model keeps between runs.

resolve_state_pairs({"past_*": "present_*"}, module, {})     # (StatePair("past_0", "present_0"), ...)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from aotc.ir import AotcError, Array, Diagnostic, TensorType, did_you_mean_hint, frozen, option_text, tensor_types
from aotc.relay.bind_variables_and_parameters import constant_for_param
from aotc.relay.graph_api import IRModule, infer_module, output_names_or_default, type_of
from aotc.relay.state_pair import StatePair

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
                the * at the same place of the output's name stands for, too
    initial     contents of inputs in the first run, by name; zeros for all others

    Raise AotcError (code "state") with a diagnostic for each pair that the model does not have or
    whose types differ, for each input and output in two pairs, for contents of other inputs, and if
    all outputs are state; code "bind" for contents whose shape or dtype differs from the input's.
    """
    interface = typed_interface(module)
    problems: list[Diagnostic] = []
    pairs: dict[str, str] = {}
    inputs_by_output: dict[str, str] = {}
    for past_pattern, present_pattern in patterns.items():
        for past, present in _name_pairs_of_pattern(past_pattern, present_pattern, interface, problems):
            if pairs.setdefault(past, present) != present:
                text = f"input {past!r} is in two state pairs, with the outputs {pairs[past]!r} and {present!r}"
                problems.append(_state_diagnostic(text, "leave one of them out"))
            elif inputs_by_output.setdefault(present, past) != past:
                text = f"output {present!r} is in two state pairs, with the inputs "
                text += f"{inputs_by_output[present]!r} and {past!r}"
                problems.append(_state_diagnostic(text, "leave one of them out"))
    if not problems:
        problems += (d for past, present in pairs.items() for d in _diagnose_pair_types(past, present, interface))
    if not problems and not interface.outputs.keys() - inputs_by_output.keys():
        text = "all outputs of the model are state, so that no output is left for callers"
        problems.append(_state_diagnostic(text, "leave one pair out, and its output stays an output"))
    for name in initial if not problems else ():
        if name not in pairs:
            hint = did_you_mean_hint(name, interface.inputs) or f"inputs: {', '.join(interface.inputs)}"
            text = f"there are first contents for {name!r}, and the model has no such input"
            problems.append(_state_diagnostic(text, hint))
    contents: dict[str, Array] = {}
    for param in infer_module(module).main.params if not problems else ():
        if param.name in pairs and param.name in initial:
            constant, mismatches = constant_for_param(param, initial[param.name])
            contents[param.name] = constant.data
            problems += mismatches
    if problems:
        raise AotcError.collect(problems)
    return tuple(StatePair(past, present, contents.get(past)) for past, present in pairs.items())


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
    past_pattern: str, present_pattern: str, interface: ModelInterface, problems: list[Diagnostic]
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
    matches = [m for name in interface.inputs if (m := pattern.fullmatch(name))]
    if not matches:
        found = f"no input of the model matches {past_pattern!r}"
        text = found if WILDCARD in past_pattern else f"the model has no input {past_pattern!r}"
        hint = did_you_mean_hint(past_pattern, interface.inputs) or f"inputs: {', '.join(interface.inputs)}"
        problems.append(_state_diagnostic(text + ", of the state pair " + pair, hint))
    for match in matches:
        present = "".join(map("".join, zip_longest(present_pattern.split(WILDCARD), match.groups(), fillvalue="")))
        if present in interface.outputs:
            yield match[0], present
            continue
        hint = did_you_mean_hint(present, interface.outputs) or f"outputs: {', '.join(interface.outputs)}"
        text = f"the model has no output {present!r} for the input {match[0]!r}, of the state pair " + pair
        problems.append(_state_diagnostic(text, hint))


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
        hints = ["a state that grows from run to run is not supported: export the model with state of a fixed size"]
    advice = "pair an input with an output of its type: the model has no other one for either of them"
    yield _state_diagnostic(text, "; ".join(hints) or advice)
