# SPDX-License-Identifier: Apache-2.0
"""qnn.CanonicalizeOps: replace operators of the `qnn` dialect by integer arithmetic.

qnn.conv2d(%x, %w, 3, 0, ...)
subtract(nn.conv2d(nn.pad(%x, 3), %w, out_dtype="int32"), meta[Constant][0])

Input: typed functions. Output: equivalent functions without qnn operators, except products with
their own rounding (`aotc.relay.op.qnn.target_independent_rounding`). An invalid scale or zero point
is an error that names the call; a Python warning is issued for sums that may overflow int32.
"""

from typing import ClassVar

from aotc.ir import AotcError, Diagnostic, span_scope
from aotc.relay.expr import Call, Expr, Function
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.pass_base import FunctionPass, apply_to_fixpoint, rewrite_nodes

_PREFIX = "qnn."


class QnnCanonicalizeOps(FunctionPass):
    """Pass that expands operators of the qnn dialect; all errors in their constants are reported
    together.
    """

    name: ClassVar[str] = "qnn.CanonicalizeOps"

    def rewrite_function_body(self, function: Function) -> Function:
        problems: list[Diagnostic] = []

        def expand_qnn_call(_: Expr, new: Expr) -> Expr:
            op = new.op if isinstance(new, Call) else None
            if not isinstance(op, OpDef) or op.expand is None or not op.name.startswith(_PREFIX):
                return new
            assert isinstance(new, Call)
            try:
                with span_scope(new.span):
                    return op.expand(new.attrs, *new.args)
            except AotcError as error:
                problems.extend(
                    Diagnostic(d.code, f"{op.name}: {d.message}", d.span or new.span, d.notes, d.hint)
                    for d in error.diagnostics
                )
                return new

        function = apply_to_fixpoint(lambda f: f if problems else rewrite_nodes(f, expand_qnn_call), function)
        if problems:
            raise AotcError.collect(problems)
        return function
