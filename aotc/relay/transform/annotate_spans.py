# SPDX-License-Identifier: Apache-2.0
"""AnnotateSpans: give the nodes of a program that was built by Python source positions in its
printed text.

add(%x, %x)                                      # without a span
add(%x, %x) /* span=GeneratedSource:3:6 */
"""

from typing import Any

from aotc.ir import Pass, PassContext
from aotc.relay.graph_api import Expr, IRModule, Var, infer_expr
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import print_without_metadata


class AnnotateSpans(Pass[IRModule]):
    """Pass that prints the program and parses it again, so that each node's span is its position in
    that text.

    Large constants are shared with the old program instead of being printed. Raise AotcError for
    attributes that have no text form.
    """

    opt_level = 0

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        text, constants = print_without_metadata(module)
        return parse(text, "GeneratedSource", init_meta_table={"relay.Constant": constants})


def InferTypeLocal(expr: Expr) -> Any:
    """Return the type of one expression and store it as the expression's checked type; raise
    AotcError if it has none.

    The types of its subexpressions are not stored.
    """
    ty = infer_expr(expr).checked_type
    if expr.checked_type is None and not isinstance(expr, Var):
        object.__setattr__(expr, "checked_type", ty)
    return ty
