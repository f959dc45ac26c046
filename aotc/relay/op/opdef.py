# SPDX-License-Identifier: Apache-2.0
"""An operator as one value: the graph's `Op` plus how it becomes a tensor program.

RELU = OpDef(name="nn.relu", infer=same_type, reference=lambda _, x: np.maximum(x, 0),
             pattern=OpPattern.ELEMWISE, axes=pointwise, compute=..., samples=...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from aotc.ir.attrs import NO_ATTRS, Attrs
from aotc.ir.op import Op
from aotc.relay.expr import Expr
from aotc.tir.te import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"
TeArg: TypeAlias = "Tensor | tuple[Tensor, ...]"
"""What `compute` gets for one argument: a tensor, or a tuple of them for a tuple argument."""


class Accuracy(Enum):
    """How closely two executions of a sample must agree."""

    EXACT = "exact"  # bit for bit: data movement, integers, comparisons
    ROUNDING = "rounding"  # a few units in the last place: sums in another order, another libm
    LOOSE = "loose"  # long sums and narrow floats: 1e-3 relative to the largest value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Arguments on which the reference, both interpreters and the compiled code must agree.

    A tuple in `args` is a tuple argument.
    """

    args: tuple[Array | tuple[Array, ...], ...]
    attrs: Attrs = NO_ATTRS
    accuracy: Accuracy = Accuracy.ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpDef(Op):
    """An operator with all its facets.

    compute   (attrs, arguments as te tensors) -> tensor, or a tuple of tensors for a tuple result
    expand    (attrs, argument expressions) -> an expression of other operators
    static    (attrs, argument expressions) -> the operator that has as attributes what are arguments here, None where
              they are not constants: for results whose shape depends on values.  Exactly one of the three is set
    samples   () -> samples; tests of every level are generated from them
    view      True if the result is the first argument's memory in row-major order (reshape and its kin)
    """

    compute: Callable[[Any, Sequence[Any]], Tensor | tuple[Tensor, ...]] | None = None
    expand: Callable[[Any, Sequence[Expr]], Expr] | None = None
    static: Callable[[Any, Sequence[Expr]], Expr | None] | None = None
    samples: Callable[[], Iterable[Sample]]
    view: bool = False
