# SPDX-License-Identifier: Apache-2.0
"""SplitArgs: split concatenations of many tensors into several steps that limit the number of
kernel arguments.

concatenate((%a, %b, %c, %d), axis=1)            # max_function_args=3: two tensors and the result
concatenate((annotation.stop_fusion(concatenate((%a, %b), axis=1)), annotation.stop_fusion(...)), axis=1)

Input: typed functions. Output: functions with equal values.
"""

from dataclasses import dataclass

from aotc.ir import AotcValueError, span_scope
from aotc.relay.expr import Call, Expr, Function, Tuple
from aotc.relay.op.annotation import stop_fusion
from aotc.relay.transform.pass_base import FunctionPass, as_op_call, rebuild_call, rewrite_nodes


@dataclass(frozen=True, repr=False)
class SplitArgs(FunctionPass):
    """Pass that splits concatenations of more than `max_function_args` - 1 tensors; one argument is
    the result.

    max_function_args   largest number of arguments of a kernel, at least 3; 0 for no limit, which changes nothing

    Operators that are fused into a concatenation afterwards may add arguments. Raise AotcValueError
    for other values.
    """

    opt_level = 1

    max_function_args: int = 0

    def __post_init__(self) -> None:
        if self.max_function_args != 0 and self.max_function_args < 3:
            text = f"max_function_args is {self.max_function_args}: two tensors and their concatenation take 3"
            raise AotcValueError("split-args", text)

    def rewrite_function_body(self, function: Function) -> Function:
        return rewrite_nodes(function, self._split_concatenation) if self.max_function_args else function

    def _split_concatenation(self, old: Expr, new: Expr) -> Expr:
        limit, call = self.max_function_args - 1, as_op_call(new, "concatenate")
        if call is None or not isinstance(call.args[0], Tuple) or len(call.args[0].fields) <= limit:
            return new
        fields = call.args[0].fields
        with span_scope(call.span):
            while len(fields) > limit:
                groups = [fields[k : k + limit] for k in range(0, len(fields), limit)]
                fields = tuple(_concatenate_chunk_and_stop_fusion(call, group) for group in groups)
            return rebuild_call(call, (Tuple(fields),))


def _concatenate_chunk_and_stop_fusion(concatenation: Call, operands: tuple[Expr, ...]) -> Expr:
    return stop_fusion(rebuild_call(concatenation, (Tuple(operands),))) if len(operands) > 1 else operands[0]
