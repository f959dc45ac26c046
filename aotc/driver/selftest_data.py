# SPDX-License-Identifier: Apache-2.0
"""Generate test inputs and expected outputs of a model, for the self-test of firmware.

draw_selftest_inputs_and_outputs(work.graph, {})  # SelftestData((image,), (scores,))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from aotc_codegen.c.selftest import SelftestData

from aotc.ir import AotcError, TensorType, option_text
from aotc.relay.graph_api import IRModule, evaluate, output_names_or_default
from aotc.relay.state_pair import StatePair
from aotc.relay.valid_input_values_and_random_arrays import UNCONSTRAINED_DOMAIN, ValueDomain, random_array_in_domain


def draw_selftest_inputs_and_outputs(
    graph: IRModule,
    domains: Mapping[str, ValueDomain],
    state: Sequence[StatePair] = (),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> SelftestData:
    """Draw pseudorandom inputs with a fixed seed, and compute their outputs with the graph
    interpreter.

    Outputs of integer models are exact.

    graph     with optimized functions, so that integer results equal those of the kernels
    domains   suitable values of inputs by name
    state     inputs and outputs that are state: the self-test is the first run
    shapes    shapes of inputs that depend on the sizes of a run, by name

    Raises AotcError (code "selftest") if an output is not finite.
    """
    rng = np.random.default_rng(0)
    kept = {pair.past: pair for pair in state}
    types = {name: TensorType(shapes.get(name, t.shape), t.dtype) for name, t in _graph_input_types(graph).items()}
    inputs = {
        name: kept[name].contents_of_first_run(t)
        if name in kept
        else random_array_in_domain(rng, t, domains.get(name, UNCONSTRAINED_DOMAIN))
        for name, t in types.items()
    }
    graph_result = evaluate(graph, *inputs.values())
    results = graph_result if isinstance(graph_result, tuple) else (graph_result,)
    names, presents = output_names_or_default(graph, len(results)), {pair.present for pair in state}
    outputs = tuple(np.asarray(a) for name, a in zip(names, results, strict=True) if name not in presents)
    if not all(np.isfinite(a.astype(np.float64)).all() for a in outputs):
        text = "what random inputs give is not finite: a self-test cannot compare it"
        raise AotcError("selftest", text, hint="leave " + option_text("selftest") + " out")
    return SelftestData(tuple(a for name, a in inputs.items() if name not in kept), outputs)


def _graph_input_types(graph: IRModule) -> dict[str, TensorType]:
    return {p.name: ty for p in graph.main.params if isinstance(ty := p.checked_type, TensorType)}
