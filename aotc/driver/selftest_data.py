# SPDX-License-Identifier: Apache-2.0
"""Generate test inputs and expected outputs of a model, for the self-test of firmware.

draw_selftest_inputs_and_outputs(work.graph, {})  # SelftestData((image,), (scores,))
"""

from collections.abc import Mapping

import numpy as np
from aotc_codegen.c.selftest import SelftestData

from aotc.ir import AotcError, TensorType, option_text
from aotc.relay.graph_api import IRModule, evaluate
from aotc.relay.valid_input_values_and_random_arrays import UNCONSTRAINED_DOMAIN, ValueDomain, random_array_in_domain


def draw_selftest_inputs_and_outputs(graph: IRModule, domains: Mapping[str, ValueDomain]) -> SelftestData:
    """Draw pseudorandom inputs with a fixed seed, and compute their outputs with the graph
    interpreter.

    Outputs of integer models are exact.

    graph     with optimized functions, so that integer results equal those of the kernels
    domains   suitable values of inputs by name

    Raises AotcError (code "selftest") if an output is not finite.
    """
    rng = np.random.default_rng(0)
    inputs = tuple(
        random_array_in_domain(rng, t, domains.get(name, UNCONSTRAINED_DOMAIN))
        for name, t in _graph_input_types(graph).items()
    )
    graph_result = evaluate(graph, *inputs)
    outputs = tuple(map(np.asarray, graph_result if isinstance(graph_result, tuple) else (graph_result,)))
    if not all(np.isfinite(a.astype(np.float64)).all() for a in outputs):
        text = "what random inputs give is not finite: a self-test cannot compare it"
        raise AotcError("selftest", text, hint="leave " + option_text("selftest") + " out")
    return SelftestData(inputs, outputs)


def _graph_input_types(graph: IRModule) -> dict[str, TensorType]:
    return {p.name: ty for p in graph.main.params if isinstance(ty := p.checked_type, TensorType)}
