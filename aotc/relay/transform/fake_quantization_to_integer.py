# SPDX-License-Identifier: Apache-2.0
"""FakeQuantizationToInteger: compute operators between qnn.dequantize and qnn.quantize on the
integers themselves.

%0 = qnn.dequantize(%x, 0.5f, 3);                    %0 = qnn.conv2d(%x, %w, 3, 0, 0.5f, 0.1f);
%1 = qnn.dequantize(%w, 0.1f, 0);               =>   qnn.requantize(%0, 0.05f, 0, 0.2f, -7)
%2 = nn.conv2d(%0, %1);
qnn.quantize(%2, 0.2f, -7)

Input: typed functions. Output: functions in which every operator that has an applicable integer
rule is computed on integers. The remaining operators stay on real numbers;
`find_operators_left_in_float` lists them with the reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from aotc.ir import AotcError, PassContext, frozen, span_scope
from aotc.relay.expr import Call, Constant, Expr, Function, Var, require_op_of_call, tensor_type_of, typed_op_call
from aotc.relay.graph_api import IRModule, children, post_order, users
from aotc.relay.op.qnn.quant_params import constant_value_or_none
from aotc.relay.transform.fake_quantization_rules import RULES, integer_rule_by_declared_behavior
from aotc.relay.transform.integer_lookup_tables import call_as_table_lookup, rescale_integers
from aotc.relay.transform.pass_base import (
    FunctionPass,
    GraphMutator,
    WhyNot,
    as_op_call,
    is_op_call,
    record_rule_outcome,
    with_inferred_types,
)
from aotc.relay.transform.quantized_region_to_integers import (
    IntegerRegion,
    IntegerRuleRefused,
    affine_type_of_quantize_or_dequantize,
)

_QUANTIZE: Final = "qnn.quantize"
_DEQUANTIZE: Final = "qnn.dequantize"
#: Operators that stay on real numbers unless the option `optional_qnn_ops` names them.
_OPTIONAL_OPERATORS: Final = ("nn.softmax",)
_PARTLY_QUANTIZED_REASON: Final = "its operands and its result are not all quantized"


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
    scale_by_new_quantize: dict[Expr, Expr] = field(default_factory=dict, init=False)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if is_op_call(old, _QUANTIZE) and self._is_quantize_convertible_to_uint8(old):
            new_quantize = typed_op_call(
                require_op_of_call(new),
                (*new.args[:2], _zero_point_plus_128(new)),
                new.attrs.replace(out_dtype="uint8"),
            )
            self.scale_by_new_quantize[new_quantize] = new_quantize.args[2]
            return new_quantize
        if is_op_call(new, _DEQUANTIZE) and new.args[0] in self.scale_by_new_quantize:
            return typed_op_call(
                require_op_of_call(new), (*new.args[:2], self.scale_by_new_quantize[new.args[0]]), new.attrs
            )
        return new

    def _is_quantize_convertible_to_uint8(self, node: Call) -> bool:
        after = self.uses.get(node, [])
        zero = constant_value_or_none(node.args[2])
        if tensor_type_of(node).dtype != "int8" or zero is None or zero.size != 1 or len(after) != 1:
            return False
        other = as_op_call(after[0], _DEQUANTIZE)
        back = None if other is None else constant_value_or_none(other.args[2])
        same = back is not None and np.array_equal(back, zero)
        return same and len(self.uses.get(after[0], [])) == 1


def convert_int8_quantizations_to_uint8(function: Function) -> Function:
    """Return the function with uint8 instead of int8 between each quantization and its only
    dequantization.
    """
    return _Unsigned(users(function)).visit_function(function)


def _zero_point_plus_128(node: Call) -> Constant:
    """Return the zero point of an int8 quantization for uint8 values: 128 is added."""
    zero = constant_value_or_none(node.args[2])
    assert zero is not None
    return Constant(zero.astype(np.int32).reshape(()) + np.int32(128))


@dataclass(eq=False)
class _Absorb(GraphMutator):
    """Mutator that computes the operators before each quantization on integers."""

    options: FakeQuantizationToInteger
    refusal_reasons: dict[Call, str] = field(default_factory=dict, init=False)
    region: IntegerRegion = field(init=False)

    def __post_init__(self) -> None:
        off = set(_OPTIONAL_OPERATORS).difference(self.options.optional_qnn_ops or ())
        rules = {name: rule for name, rule in RULES.items() if name not in off}
        self.region = IntegerRegion(
            rules, integer_rule_by_declared_behavior, self.options.rounding, rescale_integers, call_as_table_lookup
        )

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        inside, node = self.region.inside, as_op_call(new)
        if node is not None and is_op_call(node, _QUANTIZE):
            return self._try_quantize_call_on_integers(node)
        if is_op_call(new, _DEQUANTIZE) or any(c in inside for c in children(new)):
            inside.add(new)
        return new if node is None or node not in inside else self._contraction_on_integers_if_use_qat(node)

    def _contraction_on_integers_if_use_qat(self, node: Call) -> Expr:
        """Return a sum of products computed on integers, whatever its users are, if the option
        `use_qat` asks for it.
        """
        rule = self.region.rules.get(require_op_of_call(node).name)
        if not self.options.use_qat or rule is None or not rule.sums:
            return node
        return (
            self._try_integer_rule(node, lambda: self.region.dequantize_value(self.region.require_exact_integers(node)))
            or node
        )

    def _try_quantize_call_on_integers(self, node: Call) -> Expr:
        """Return the result of a quantization computed by integer operators, or the node if a rule
        refuses.
        """
        data = node.args[0]
        if data not in self.region.inside:
            return node
        dtype = str(tensor_type_of(node).dtype)
        return (
            self._try_integer_rule(
                node,
                lambda: self.region.require_quantized_integers(
                    data, affine_type_of_quantize_or_dequantize(node, dtype)
                ),
            )
            or node
        )

    def _try_integer_rule(self, node: Call, compute: Callable[[], Expr]) -> Expr | None:
        """Return the replacement of a node that `compute` computes, or None if an integer rule
        refuses.

        The rewriting, or the reason of the refusal, is recorded in the rewrite report.
        """
        start = time.perf_counter()
        try:
            with span_scope(node.span):
                replacement = compute()
        except IntegerRuleRefused as refused:
            self._record_refusal_or_raise_if_hard_fail(refused, time.perf_counter() - start)
            return None
        root = node.args[0] if is_op_call(node, _QUANTIZE) else node
        record_rule_outcome(self._integer_rule_name_for_report(root), replacement, time.perf_counter() - start)
        return replacement

    def _integer_rule_name_for_report(self, node: Expr) -> str:
        """Return the name of the integer rewrite rule for a node, for the rewrite report."""
        inner = as_op_call(node)
        rule = None if inner is None else self.region.find_rule(inner)
        return "quantize(dequantize(x)) => requantize(x)" if rule is None else rule.name

    def _record_refusal_or_raise_if_hard_fail(self, refusal: IntegerRuleRefused, seconds: float) -> None:
        node = as_op_call(refusal.node)
        record_rule_outcome(self._integer_rule_name_for_report(refusal.node), WhyNot(refusal.reason), seconds)
        if node is None:
            return
        self.refusal_reasons.setdefault(node, refusal.reason)
        if self.options.hard_fail:
            text = f"{node.op} stays on real numbers: {refusal.reason}"
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
        if not any(is_op_call(n, _DEQUANTIZE) for n in post_order(function)):
            return function
        return _Absorb(self).visit_function(self.convert_int8_to_uint8_if_requested(function))

    def convert_int8_to_uint8_if_requested(self, function: Function) -> Function:
        """Return the function prepared for the conversion: with uint8 instead of int8 activations
        if `unsigned` is set.
        """
        return convert_int8_quantizations_to_uint8(function) if self.unsigned else function


def find_operators_left_in_float(module: IRModule, conversion: FakeQuantizationToInteger) -> list[LeftReal]:
    """Return the operators between quantized tensors that the pass leaves on real numbers, in graph
    order, without those of constants, such as the dequantization of weights with scales of blocks.
    """
    rows: list[LeftReal] = []
    for function in with_inferred_types(module).functions.values():
        absorb = _Absorb(conversion)
        result = absorb.visit_function(conversion.convert_int8_to_uint8_if_requested(function))
        calls = (as_op_call(node) for node in _nodes_that_read_variables(result))
        rows += [
            LeftReal(node, reason)
            for node in calls
            if node and (reason := _reason_call_was_left_in_float(node, absorb))
        ]
    return rows


def _nodes_that_read_variables(function: Function) -> Iterator[Expr]:
    """Yield the nodes of a function whose values depend on its parameters, in graph order."""
    found: set[Expr] = set()
    for node in post_order(function):
        if isinstance(node, Var) or any(child in found for child in children(node)):
            found.add(node)
            yield node


def _reason_call_was_left_in_float(node: Call, absorb: _Absorb) -> str:
    """Return the reason that a call stays on real numbers; "" for integer calls and calls that no
    quantized tensor reaches.
    """
    if require_op_of_call(node).name.startswith("qnn."):
        return ""
    reads_quantized = any(is_op_call(a, _DEQUANTIZE) for a in node.args)
    return absorb.refusal_reasons.get(node, _PARTLY_QUANTIZED_REASON if reads_quantized else "")
