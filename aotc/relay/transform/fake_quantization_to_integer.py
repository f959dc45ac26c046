# SPDX-License-Identifier: Apache-2.0
"""FakeQuantizationToInteger: operators between qnn.dequantize and qnn.quantize on the integers themselves.

%0 = qnn.dequantize(%x, 0.5f, 3);                    %0 = qnn.conv2d(%x, %w, 3, 0, 0.5f, 0.1f);
%1 = qnn.dequantize(%w, 0.1f, 0);               =>   qnn.requantize(%0, 0.05f, 0, 0.2f, -7)
%2 = nn.conv2d(%0, %1);
qnn.quantize(%2, 0.2f, -7)

In: typed functions.  Out: what its rules (`affine_rules`) can say with integers is said so.  The rest stays on real
numbers; `left_real` lists it with the reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from aotc.ir import AotcError, PassContext, frozen, span_scope
from aotc.relay.expr import Call, Expr, Function, op_of, tensor_type_of
from aotc.relay.module import IRModule
from aotc.relay.transform.affine import Refused, Region, stated
from aotc.relay.transform.affine_rules import RULES, fallback
from aotc.relay.transform.affine_tables import rescaled
from aotc.relay.transform.base import FunctionPass, GraphMutator, WhyNot, is_call, op_call, record, typed
from aotc.relay.visitor import children, post_order

_QUANTIZE: Final = "qnn.quantize"
_DEQUANTIZE: Final = "qnn.dequantize"
#: Operators that stay on real numbers unless they are named.
_OPTIONAL: Final = ("nn.softmax",)
_BESIDE: Final = "its operands and its result are not all quantised"


@frozen
class LeftReal:
    """An operator between quantised tensors that stays on real numbers, and the reason."""

    node: Call
    reason: str


@dataclass(eq=False)
class _Absorb(GraphMutator):
    """Absorbs what is before each quantisation."""

    options: FakeQuantizationToInteger
    left: dict[Call, str] = field(default_factory=dict, init=False)
    region: Region = field(init=False)

    def __post_init__(self) -> None:
        off = set(_OPTIONAL).difference(self.options.optional_qnn_ops or ())
        rules = {name: rule for name, rule in RULES.items() if name not in off}
        self.region = Region(rules, fallback, self.options.rounding, rescaled)

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        inside, node = self.region.inside, op_call(new)
        if node is not None and is_call(node, _QUANTIZE):
            return self._quantised(node)
        if is_call(new, _DEQUANTIZE) or any(c in inside for c in children(new)):
            inside.add(new)
        return new if node is None or node not in inside else self._sums(node)

    def _sums(self, node: Call) -> Expr:
        """Sums of products of integers, whatever uses them."""
        rule = self.region.rules.get(op_of(node).name)
        if not self.options.use_qat or rule is None or not rule.sums:
            return node
        return self._tried(node, lambda: self.region.real(self.region.exact(node))) or node

    def _quantised(self, node: Call) -> Expr:
        """What a quantisation gives, by operators on integers."""
        data = node.args[0]
        if data not in self.region.inside:
            return node
        dtype = str(tensor_type_of(node).dtype)
        return self._tried(node, lambda: self.region.rounded(data, stated(node, dtype))) or node

    def _tried(self, node: Call, make: Callable[[], Expr]) -> Expr | None:
        """What is made in the place of a node; None where a rule refuses, which is told."""
        start = time.perf_counter()
        try:
            with span_scope(node.span):
                made = make()
        except Refused as refused:
            self._refused(refused, time.perf_counter() - start)
            return None
        root = node.args[0] if is_call(node, _QUANTIZE) else node
        record(self._name(root), made, time.perf_counter() - start)
        return made

    def _name(self, node: Expr) -> str:
        """The rule of a node."""
        call = op_call(node)
        rule = None if call is None else self.region.find(call)
        return "quantize(dequantize(x)) => requantize(x)" if rule is None else rule.name

    def _refused(self, refused: Refused, seconds: float) -> None:
        node = op_call(refused.node)
        record(self._name(refused.node), WhyNot(refused.reason), seconds)
        if node is None:
            return
        self.left.setdefault(node, refused.reason)
        if self.options.hard_fail:
            text = f"{node.op} stays on real numbers: {refused.reason}"
            raise AotcError("fake-quantization", text, span=node.span, hint="hard_fail=False leaves it there")


@dataclass(frozen=True, repr=False)
class FakeQuantizationToInteger(FunctionPass):
    """Compute on integers what stands between dequantised and quantised tensors.

    hard_fail          AotcError (code "fake-quantization") for what stays on real numbers
    use_qat            sums of products become integers even where their results are not quantised
    optional_qnn_ops   operators for which that is done only if they are named: "nn.softmax"
    rounding           of qnn.requantize
    """

    hard_fail: bool = False
    use_qat: bool = False
    optional_qnn_ops: Sequence[str] | None = None
    rounding: str = "None"

    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        if not any(is_call(n, _DEQUANTIZE) for n in post_order(function)):
            return function
        return _Absorb(self).visit_function(function)


def left_real(module: IRModule, chosen: FakeQuantizationToInteger) -> list[LeftReal]:
    """The operators between quantised tensors that the pass leaves on real numbers, in order."""
    rows: list[LeftReal] = []
    for function in typed(module).functions.values():
        absorb = _Absorb(chosen)
        result = absorb.visit_function(function)
        for node in post_order(result):
            reason = _left(node, absorb)
            if reason:
                rows.append(LeftReal(node, reason))
    return rows


def _left(node: Expr, absorb: _Absorb) -> str:
    """Why a node stays on real numbers; "" for what does not, or has nothing to do with integers."""
    call = op_call(node)
    if call is None or op_of(call).name.startswith("qnn."):
        return ""
    beside = any(is_call(a, _DEQUANTIZE) for a in call.args)
    return absorb.left.get(call, _BESIDE if beside else "")
