# SPDX-License-Identifier: Apache-2.0
"""Products whose rounding is part of a definition, whatever a target makes of products and sums elsewhere.

product(x, y) + z                      # two roundings, on all targets
multiply_add(x, y, z)                  # one rounding, on all targets
"""

from __future__ import annotations

from functools import partial

import numpy as np

from aotc.ir import NO_ATTRS, OpPattern, Precision, args
from aotc.relay.op.opdef import OpDef, Samples
from aotc.relay.op.rows import broadcast, elementwise
from aotc.relay.op.rules import broadcast_rule, pointwise
from aotc.relay.op.samples import exact, random_array, special_values
from aotc.tir import call
from aotc.tir.instructions import INSTRUCTIONS


def _samples(count: int) -> Samples:
    values = special_values("float32")
    others = (values.reshape(-1, 1), np.roll(values, 1))
    yield exact(NO_ATTRS, values, *others[: count - 1])
    for shape in ((), (2, 3), (0, 3)):
        yield exact(NO_ATTRS, *(random_array(shape, "float32", seed) for seed in range(count)))


def _row(name: str, instruction: str, names: str, doc: str) -> OpDef:
    """The operator of floats that is an instruction of tensor programs."""
    return OpDef(
        name=f"qnn.{name}",
        doc=doc,
        args=args(*names.split()),
        infer=broadcast_rule(accept=lambda ty: ty.dtype in ("float32", "float64")),
        reference=elementwise(INSTRUCTIONS[instruction].meaning),
        pattern=OpPattern.BROADCAST,
        precision=Precision.NEVER,
        axes=pointwise,
        element=broadcast(partial(call, instruction)),
        samples=partial(_samples, len(names.split())),
    )


product = _row("product", "product", "lhs rhs", "lhs * rhs, rounded by itself whatever is added to it.")
multiply_add = _row("multiply_add", "fma", "data factor addend", "data * factor + addend, rounded once.")
