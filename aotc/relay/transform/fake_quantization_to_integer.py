# SPDX-License-Identifier: Apache-2.0
"""FakeQuantizationToInteger: compute operators between qnn.dequantize and qnn.quantize on the
integers themselves.

%0 = qnn.dequantize(%x, 0.5f, 3);                    %0 = qnn.conv2d(%x, %w, 3, 0, 0.5f, 0.1f);
%1 = qnn.dequantize(%w, 0.1f, 0);               =>   qnn.requantize(%0, 0.05f, 0, 0.2f, -7)
%2 = nn.conv2d(%0, %1);
qnn.quantize(%2, 0.2f, -7)

Input: typed functions. Output: functions in which every operator that has an applicable integer
rule is computed on integers. The remaining operators stay on real numbers; `left_real` lists them
with the reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from aotc.ir import AotcError, PassContext, frozen, span_scope
from aotc.relay.expr import Call, Constant, Expr, Function, call, op_of, tensor_type_of
from aotc.relay.graph_api import IRModule, children, post_order, users
from aotc.relay.op.qnn.quant_params import known
from aotc.relay.transform.affine_quantization import Refused, Region, stated
from aotc.relay.transform.integer_lookup_tables import rescaled, tabled
from aotc.relay.transform.integer_operator_rules import RULES, fallback
from aotc.relay.transform.pass_base import FunctionPass, GraphMutator, WhyNot, is_call, op_call, record, typed

_QUANTIZE: Final = "qnn.quantize"
_DEQUANTIZE: Final = "qnn.dequantize"
#: Operators that stay on real numbers unless the option `optional_qnn_ops` names them.
_OPTIONAL: Final = ("nn.softmax",)
_BESIDE: Final = "its operands and its result are not all quantized"


@frozen
class LeftReal:
    """An operator between quantized tensors that stays on real numbers, and the reason."""

    node: Call
    reason: str


@dataclass(eq=False)
class _Unsigned(GraphMutator):
    """Mutator that changes int8 to uint8 between a quantization and its only dequantization, which
    has one user.

    Operators that round around their zero point then round sums of other magnitudes; ONNX Runtime
    does this on x86.
    """

    uses: dict[Expr, list[Expr]]
    made: dict[Expr, Expr] = field(default_factory=dict, init=False)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if is_call(old, _QUANTIZE) and self._fits(old):
            made = call(op_of(new), (*new.args[:2], _raised(new)), new.attrs.replace(out_dtype="uint8"))
            self.made[made] = made.args[2]
            return made
        if is_call(new, _DEQUANTIZE) and new.args[0] in self.made:
            return call(op_of(new), (*new.args[:2], self.made[new.args[0]]), new.attrs)
        return new

    def _fits(self, node: Call) -> bool:
        after = self.uses.get(node, [])
        zero = known(node.args[2])
        if tensor_type_of(node).dtype != "int8" or zero is None or zero.size != 1 or len(after) != 1:
            return False
        other = op_call(after[0], _DEQUANTIZE)
        back = None if other is None else known(other.args[2])
        same = back is not None and np.array_equal(back, zero)
        return same and len(self.uses.get(after[0], [])) == 1


def unsigned(function: Function) -> Function:
    """Return the function with uint8 instead of int8 between each quantization and its only
    dequantization.
    """
    return _Unsigned(users(function)).visit_function(function)


def _raised(node: Call) -> Constant:
    """Return the zero point of an int8 quantization for uint8 values: 128 is added."""
    zero = known(node.args[2])
    assert zero is not None
    return Constant(zero.astype(np.int32).reshape(()) + np.int32(128))


@dataclass(eq=False)
class _Absorb(GraphMutator):
    """Mutator that computes the operators before each quantization on integers."""

    options: FakeQuantizationToInteger
    left: dict[Call, str] = field(default_factory=dict, init=False)
    region: Region = field(init=False)

    def __post_init__(self) -> None:
        off = set(_OPTIONAL).difference(self.options.optional_qnn_ops or ())
        rules = {name: rule for name, rule in RULES.items() if name not in off}
        self.region = Region(rules, fallback, self.options.rounding, rescaled, tabled)

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        inside, node = self.region.inside, op_call(new)
        if node is not None and is_call(node, _QUANTIZE):
            return self._quantized(node)
        if is_call(new, _DEQUANTIZE) or any(c in inside for c in children(new)):
            inside.add(new)
        return new if node is None or node not in inside else self._sums(node)

    def _sums(self, node: Call) -> Expr:
        """Return a sum of products computed on integers, whatever its users are, if the option
        `use_qat` asks for it.
        """
        rule = self.region.rules.get(op_of(node).name)
        if not self.options.use_qat or rule is None or not rule.sums:
            return node
        return self._tried(node, lambda: self.region.real(self.region.exact(node))) or node

    def _quantized(self, node: Call) -> Expr:
        """Return the result of a quantization computed by integer operators, or the node if a rule
        refuses.
        """
        data = node.args[0]
        if data not in self.region.inside:
            return node
        dtype = str(tensor_type_of(node).dtype)
        return self._tried(node, lambda: self.region.rounded(data, stated(node, dtype))) or node

    def _tried(self, node: Call, make: Callable[[], Expr]) -> Expr | None:
        """Return the replacement of a node that `make` computes, or None if an integer rule
        refuses.

        The rewriting, or the reason of the refusal, is recorded in the rewrite report.
        """
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
        """Return the name of the integer rewrite rule for a node, for the rewrite report."""
        inner = op_call(node)
        rule = None if inner is None else self.region.find(inner)
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
    """Pass that computes operators between dequantized and quantized tensors on integers.

    hard_fail          raise AotcError (code "fake-quantization") for an operator that stays on real numbers
    use_qat            compute sums of products on integers even if their results are not quantized
    optional_qnn_ops   operators converted only if they are named here: "nn.softmax"
    rounding           rounding mode: the attribute of qnn.requantize
    unsigned           use uint8 instead of int8 between a quantization and its dequantization
    """

    hard_fail: bool = False
    use_qat: bool = False
    optional_qnn_ops: Sequence[str] | None = None
    rounding: str = "None"
    unsigned: bool = False

    opt_level: ClassVar[int] = 0

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        if not any(is_call(n, _DEQUANTIZE) for n in post_order(function)):
            return function
        return _Absorb(self).visit_function(self.prepared(function))

    def prepared(self, function: Function) -> Function:
        """Return the function prepared for the conversion: with uint8 instead of int8 activations
        if `unsigned` is set.
        """
        return unsigned(function) if self.unsigned else function


def left_real(module: IRModule, chosen: FakeQuantizationToInteger) -> list[LeftReal]:
    """Return the operators between quantized tensors that the pass leaves on real numbers, in graph
    order.
    """
    rows: list[LeftReal] = []
    for function in typed(module).functions.values():
        absorb = _Absorb(chosen)
        result = absorb.visit_function(chosen.prepared(function))
        found = (op_call(node) for node in post_order(result))
        rows += [LeftReal(node, reason) for node in found if node and (reason := _left(node, absorb))]
    return rows


def _left(node: Call, absorb: _Absorb) -> str:
    """Return the reason that a call stays on real numbers; "" for integer calls and calls that no
    quantized tensor reaches.
    """
    if op_of(node).name.startswith("qnn."):
        return ""
    beside = any(is_call(a, _DEQUANTIZE) for a in node.args)
    return absorb.left.get(node, _BESIDE if beside else "")
