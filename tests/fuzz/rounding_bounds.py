# SPDX-License-Identifier: Apache-2.0
"""Bounds of the difference between two results, derived from the rounding of every operator.

expected = Expected.of(module, inputs)
expected.problems(outputs)                         # "" or what differs

The module is interpreted several times, each time with the arguments and results of every operator that rounds changed
by a few units in the last place, at random.  Where the outcomes spread, results may differ as much; where an integer, a
truth or a NaN changes, the element says nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from aotc.checking.output_comparison import Array
from aotc.ir.dtype import DType
from aotc.ir.op import OpPattern
from aotc.relay.expr import Call, Expr
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Accuracy, OpDef
from aotc.relay.visitor import Mutator

RUNS = 5
UNITS = 4.0
"""By how many units in the last place arguments and results are changed."""
LOOSE = 1e-3
"""By how much, relatively, the results of approximations are changed."""
ABOUT = 64.0
"""Units in the last place of the largest element by which other algorithms may differ in any."""
SQUASHED = {"nn.lstm", "nn.gru", "nn.rnn"}
"""Operators whose results are small, however large what they sum is."""
FACTOR = 8.0
"""How much further than the outcomes' spread results may lie apart."""


@functools.cache
def _rounding(name: str) -> float:
    """How exact an operator claims to be: 0 for exact ones, else a factor of units in the last place, or LOOSE."""
    op = OPERATORS_BY_NAME.get(name)
    if op is None:
        return UNITS
    kinds = [s.accuracy for s in op.samples() if any(_is_float(a) for a in _flat(s.args))]
    loose = [k for k in kinds if k is Accuracy.LOOSE]
    if kinds and len(loose) == len(kinds):
        return LOOSE
    return UNITS if any(k is not Accuracy.EXACT for k in kinds) else 0.0


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and DType.from_numpy(array).is_float


def _flat(value: Any) -> list[Any]:
    return [a for v in value for a in _flat(v)] if isinstance(value, (tuple, list)) else [value]


def _shaken(value: Any, rng: np.random.Generator, amount: float, anchored: bool = False) -> Any:
    """Floats changed by some units of their type (`anchored`: of the largest element); everything else as it is."""
    if isinstance(value, (tuple, list)):
        return tuple(_shaken(v, rng, amount, anchored) for v in value)
    array = np.asarray(value)
    if not _is_float(array) or array.itemsize == 1 or not array.size:
        return array
    relative = amount if amount == LOOSE else amount * float(ml_dtypes.finfo(array.dtype).eps)
    wide = array.astype(np.float64)
    sizes = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    sizes = np.maximum(sizes, sizes.max()) if anchored else sizes
    return (wide + relative * sizes * rng.uniform(-1, 1, array.shape)).astype(array.dtype)


def _magnitudes(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_magnitudes, value))
    return np.abs(np.where(np.isfinite(value.astype(np.float64)), value, 0)) if _is_float(value) else value


def _unless_sums_overflow(value: Any, largest: Any, other: float) -> Any:
    """`value` with `other` where `largest`, made of the magnitudes of what is summed, is near the end of its range.

    There some orders of summation reach infinity on the way, others do not.  Infinities among the arguments are left
    out: what they lead to does not depend on the order.
    """
    if isinstance(value, tuple):
        return tuple(_unless_sums_overflow(v, m, other) for v, m in zip(value, largest, strict=True))
    if not _is_float(value) or not _is_float(largest) or value.shape != largest.shape:
        return value
    end = float(ml_dtypes.finfo(value.dtype).max) / 2
    return np.where(np.abs(largest.astype(np.float64)) < end, value, np.asarray(other, value.dtype))


def _without_digits_of_floats(value: Any, other: float) -> Any:
    """Integers beyond those that float64 can tell apart are different ones in different runs."""
    if isinstance(value, tuple):
        return tuple(_without_digits_of_floats(v, other) for v in value)
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int64, np.uint64) or other == 0.0:
        return value
    return np.where(np.abs(value.astype(np.float64)) > 1 << 52, 0, value).astype(value.dtype)


def _is_large(args: Sequence[Any]) -> bool:
    """Whether a thousand products of two of the largest finite arguments may reach the end of the range."""
    arrays = [a for a in _flat(_magnitudes(args)) if _is_float(a) and a.size]
    sizes = sorted(float(a.astype(np.float64).max()) for a in arrays)
    return bool(sizes) and 1000 * math.prod(sizes[-2:]) > float(ml_dtypes.finfo(arrays[0].dtype).max)


class _Shaking(Mutator):
    """Calls of operators that round as calls of others that do so more.

    other   stands for sums that may overflow: NaN in some runs, a number in others
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.other = math.nan if seed % 2 else 0.0

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        op = old.op
        amount = _rounding(op.name) if isinstance(op, OpDef) else 0.0
        if not isinstance(op, OpDef) or not amount:
            return new

        def reference(attributes: Any, *args: Any) -> Any:
            result = op.reference(attributes, *_shaken(args, self.rng, UNITS))
            result = _shaken(result, self.rng, amount, op.pattern > OpPattern.INJECTIVE)
            if "resize" in op.name or "upsampling" in op.name:  # which interpolate integers in float64
                result = _without_digits_of_floats(result, self.other)
            if op.pattern <= OpPattern.INJECTIVE:
                return result
            if op.name in SQUASHED and _is_large(args):
                return tuple(np.full_like(r, self.other) for r in _flat(result))
            return _unless_sums_overflow(result, op.reference(attributes, *_magnitudes(args)), self.other)

        return Call(replace(op, reference=reference), new.args, new.attrs, new.span, new.checked_type)


def outputs_of(module: IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """What @main gives by its definition."""
    with np.errstate(all="ignore"):
        return [np.asarray(a) for a in _flat(evaluate(module, params=dict(inputs)))]


@dataclass(frozen=True)
class Expected:
    """The outputs by definition, and by how much each element may differ from them (NaN: by anything)."""

    values: Sequence[Array]
    slack: Sequence[Array]

    @classmethod
    def of(cls, module: IRModule, inputs: Mapping[str, Array]) -> Expected:
        """The outputs of @main; the same slack each time."""
        values = outputs_of(module, inputs)
        runs = []
        for k in range(RUNS):
            shaking = _Shaking(k)
            shaken = module.with_functions({n: shaking.visit_function(f) for n, f in module.functions.items()})
            runs.append(outputs_of(shaken, inputs))
        return cls(values, [_slack(v, [r[k] for r in runs]) for k, v in enumerate(values)])

    def about(self) -> Expected:
        """The same for other algorithms, whose errors may be as large as the rounding of the largest element."""
        return replace(self, slack=[_widened(v, s) for v, s in zip(self.values, self.slack, strict=True)])

    def problems(self, found: Sequence[Array]) -> str:
        """Return the problems of outputs, one per line; "" if there are none."""
        if len(found) != len(self.values):
            return f"{len(found)} outputs, not {len(self.values)}"
        each = (_problem(a, e, s) for a, e, s in zip(found, self.values, self.slack, strict=True))
        return "\n".join(f"output {k}: {text}" for k, text in enumerate(each) if text)

    def wrong(self, found: Sequence[Array]) -> list[int]:
        """The numbers of the outputs that are wrong."""
        each = zip(found, self.values, self.slack, strict=True)
        return [k for k, (a, e, s) in enumerate(each) if _problem(a, e, s)]


def _slack(value: Array, runs: Sequence[Array]) -> Array:
    """Per element; NaN where runs do not agree on what the element is."""
    if any(r.shape != value.shape for r in runs):
        return np.full(value.shape, np.nan)
    if not _is_float(value):
        steady = functools.reduce(np.logical_and, [r == value for r in runs])
        return np.where(steady, 0.0, np.nan)
    with np.errstate(all="ignore"):
        wide = [np.asarray(r, np.float64) for r in (value, *runs)]
        finite = functools.reduce(np.logical_and, map(np.isfinite, wide))
        stack = np.stack([np.where(finite, w, 0.0) for w in wide])
        info = ml_dtypes.finfo(value.dtype)
        spread = FACTOR * (stack.max(0) - stack.min(0)) + FACTOR * UNITS * float(info.eps) * np.abs(stack[0])
        same = functools.reduce(np.logical_and, [(w == wide[0]) | (np.isnan(w) & np.isnan(wide[0])) for w in wide])
        tiny = FACTOR * float(info.smallest_normal)
        return np.where(finite, spread + tiny, np.where(same, 0.0, np.nan))


def _widened(value: Array, slack: Array) -> Array:
    if not _is_float(value) or not value.size:
        return slack
    with np.errstate(all="ignore"):
        wide = value.astype(np.float64)
        largest = np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0)
        return slack + ABOUT * float(ml_dtypes.finfo(value.dtype).eps) * largest


def _problem(found: Array, expected: Array, slack: Array) -> str:
    if found.shape != expected.shape or DType.from_numpy(found) != DType.from_numpy(expected):
        return f"{found.dtype}{list(found.shape)} for {expected.dtype}{list(expected.shape)}"
    a, e = (x.astype(np.float64) if _is_float(x) else x for x in (found, expected))
    with np.errstate(all="ignore"):
        same = a == e
        if _is_float(expected):
            same |= (np.isnan(a) & np.isnan(e)) | (np.abs(a - e) <= slack)
        else:
            same |= np.isnan(slack)
        same |= np.isnan(slack)
    if np.all(same):
        return ""
    at = tuple(int(k) for k in np.argwhere(~np.asarray(same))[0])
    count = int((~np.asarray(same)).sum())
    return (
        f"{count} of {expected.size} elements of {expected.dtype}{list(expected.shape)} differ, "
        f"the first at {at}: {found[at]!r} for {expected[at]!r}, slack {slack[at]:.3g}"
    )
