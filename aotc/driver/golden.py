# SPDX-License-Identifier: Apache-2.0
"""Inputs and the results that they must give, for the self-test of firmware.

golden(work.graph)                     # Golden((image,), (scores,))
"""

from typing import Any

import numpy as np
from aotc_codegen.c.selftest import Golden

from aotc.ir import AotcError, DType, TensorType
from aotc.relay.graph import IRModule, evaluate

#: Larger integers may be indices, of which small ones are right everywhere.
_SMALL = 2


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    if dtype.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    byte = dtype in ("int8", "uint8")
    least, end = (int(dtype.min), int(dtype.max) + 1) if byte else (0, _SMALL)
    return rng.integers(least, end, shape).astype(dtype.numpy)


def golden(graph: IRModule) -> Golden:
    """Seeded inputs, and what the graph's interpreter makes of them: exact for integers.

    graph   with optimised functions, so that its integers are those of the kernels

    Raises AotcError (code "selftest") where results are not finite.
    """
    rng = np.random.default_rng(0)
    types = [p.checked_type for p in graph.main.params]
    inputs = tuple(_values(rng, t.static_shape, t.dtype) for t in types if isinstance(t, TensorType))
    found = evaluate(graph, *inputs)
    outputs = tuple(map(np.asarray, found if isinstance(found, tuple) else (found,)))
    if not all(np.isfinite(a.astype(np.float64)).all() for a in outputs):
        text = "what random inputs give is not finite: a self-test cannot compare it"
        raise AotcError("selftest", text, hint="leave --selftest out")
    return Golden(inputs, outputs)
