# SPDX-License-Identifier: Apache-2.0
"""AnnotateSpans: places in the program's own text, for programs that were built by Python.

add(%x, %x)                                      # of no span
add(%x, %x) /* span=GeneratedSource:3:6 */
"""

from typing import Any

from aotc.ir import Pass, PassContext
from aotc.relay.graph_api import Expr, IRModule, Var, infer_expr
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import text_and_constants


class AnnotateSpans(Pass[IRModule]):
    """Print the program and read it back: nodes of the new one have their places in that text as spans, but large
    constants, which are the same ones.

    Raises AotcError for attributes that have no text form.
    """

    opt_level = 0

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        text, constants = text_and_constants(module)
        return parse(text, "GeneratedSource", init_meta_table={"relay.Constant": constants})


def InferTypeLocal(expr: Expr) -> Any:
    """The type of one expression, which says it itself from then on; AotcError where it has none.

    What the expression is made of stays as it is.
    """
    ty = infer_expr(expr).checked_type
    if expr.checked_type is None and not isinstance(expr, Var):
        object.__setattr__(expr, "checked_type", ty)
    return ty
