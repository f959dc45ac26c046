# SPDX-License-Identifier: Apache-2.0
"""Generate test inputs and expected outputs of a model, for the self-test of firmware.

golden(work.graph, {})                   # Golden((image,), (scores,))
"""

from collections.abc import Mapping

import numpy as np
from aotc_codegen.c.selftest import Golden

from aotc.ir import AotcError, TensorType
from aotc.relay.graph_api import IRModule, evaluate
from aotc.relay.value_domains import FREE, Domain, draw


def golden(graph: IRModule, domains: Mapping[str, Domain]) -> Golden:
    """Draw pseudorandom inputs with a fixed seed, and compute their outputs with the graph
    interpreter.

    Outputs of integer models are exact.

    graph     with optimized functions, so that integer results equal those of the kernels
    domains   suitable values of inputs by name

    Raises AotcError (code "selftest") if an output is not finite.
    """
    rng = np.random.default_rng(0)
    inputs = tuple(draw(rng, t, domains.get(name, FREE)) for name, t in _types(graph).items())
    found = evaluate(graph, *inputs)
    outputs = tuple(map(np.asarray, found if isinstance(found, tuple) else (found,)))
    if not all(np.isfinite(a.astype(np.float64)).all() for a in outputs):
        text = "what random inputs give is not finite: a self-test cannot compare it"
        raise AotcError("selftest", text, hint="leave --selftest out")
    return Golden(inputs, outputs)


def _types(graph: IRModule) -> dict[str, TensorType]:
    return {p.name: ty for p in graph.main.params if isinstance(ty := p.checked_type, TensorType)}
