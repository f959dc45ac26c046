# SPDX-License-Identifier: Apache-2.0
"""Relay's table of operators, and functions of the user's own that passes ask before they rewrite calls.

get("nn.conv2d").get_attr("FTVMLegalize")
register("my_log", "The logarithm.")                 # a name with a type, for calls that another compiler takes
get("my_log").add_type_rel("Identity")

@register_legalize("nn.dense")
def legalize(attrs, inputs, types):                  # an expression in place of the call, None to leave it
    return relay.nn.dense(...)

The pass Legalize calls (attributes, arguments, types of arguments and result); AlterOpLayout, where the pipeline
runs it or the user does, (attributes, arguments, types of arguments, type of the result).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

from aotc.ir import AotcError, NoAttrs, Type, frozen, require_known
from aotc.ir.op import Arg, Op, Types, get_op, install, installed_ops, register_op_attr
from aotc.ir.op import OpPattern as OpPattern
from aotc.ir.op import get_op as get
from aotc.relay.expr import const as const
from aotc.relay.op.type_rules import broadcast_rule, pointwise

__all__ = [
    "OpPattern",
    "const",
    "get",
    "list_op_names",
    "register",
    "register_alter_op_layout",
    "register_legalize",
    "register_pattern",
    "register_stateful",
]
LEGALIZE, ALTER_OP_LAYOUT = "FTVMLegalize", "FTVMAlterOpLayout"
Rewrite = Callable[..., Any]


def list_op_names() -> list[str]:
    """The names of all operators."""
    return sorted(installed_ops())


def register_legalize(op_name: str, legal_op: Rewrite | None = None, level: int = 10) -> Any:
    """Have the pass Legalize ask a function about calls of an operator; a decorator without one."""
    return register_op_attr(op_name, LEGALIZE, legal_op, level)


def register_alter_op_layout(op_name: str, alter_layout: Rewrite | None = None, level: int = 10) -> Any:
    """Have the pass AlterOpLayout ask a function about calls of an operator; a decorator without one."""
    return register_op_attr(op_name, ALTER_OP_LAYOUT, alter_layout, level)


# --- operators of the user's own


#: Relay's rules by name: (attributes, argument types) -> type of the result.
_RULES: Final[dict[str, Callable[[Any, Types], Type]]] = {
    "Identity": lambda _, types: types[0],
    "Broadcast": broadcast_rule(),
}


@frozen(kw_only=True, eq=False)
class CustomOp(Op):
    """An operator that is made step by step; each step puts a new one in the place of the one before."""

    support_level: int = 10
    computed: ClassVar[bool] = False

    def _changed(self, **changes: Any) -> None:
        install({**installed_ops(), self.name: replace(get_op(self.name), **changes)})

    def set_num_inputs(self, n: int) -> None:
        """Say how many arguments there are; `add_argument` names them."""
        self._changed(args=tuple(Arg(f"data_{k}") for k in range(n)))

    def add_argument(self, name: str, type: str, description: str) -> None:
        """Name the next argument that has no name of its own, or one more."""
        given = [a for a in get_op(self.name).args if a.type != "Expr"]
        rest = get_op(self.name).args[len(given) + 1 :]
        self._changed(args=(*given, Arg(name, type), *rest))

    def add_type_rel(self, rel_name: str, type_rel_func: Callable[..., Type] | None = None) -> None:
        """State the type of the result: by a function of (argument types, None), or as Relay's rule does.

        Raises AotcError (code "type") for a rule that is not known.
        """
        if type_rel_func is None:
            require_known("type", "type relation", rel_name, _RULES)
            self._changed(infer=_RULES[rel_name])
            return
        rule = type_rel_func
        self._changed(infer=lambda _, types: rule(list(types), None))

    def set_support_level(self, level: int) -> None:
        """Note a level, which says nothing here."""
        self._changed(support_level=level)

    def set_attrs_type_key(self, key: str) -> None:
        """Relay's way to name the class of attributes: there are none here."""


def register(op_name: str, describe: str = "") -> None:
    """Add an operator; AotcError (code "type") if there is one of the name."""
    if op_name in installed_ops():
        raise AotcError("type", f"Operator {op_name} is registered before")

    def infer(attributes: Any, types: Types) -> Type:
        raise AotcError("type", "has no type relation", hint=f'get("{op_name}").add_type_rel states one')

    def reference(*arguments: Any) -> Any:
        hint = "give its calls to another compiler, or replace them by a pass"
        raise AotcError("no-compute", f"{op_name} has a type rule but no implementation", hint=hint)

    made = CustomOp(name=op_name, attrs=NoAttrs, doc=describe, infer=infer, reference=reference)
    install({**installed_ops(), op_name: made})


def register_pattern(op_name: str, pattern: OpPattern, level: int = 10) -> None:
    """Say how an operator of the user's own takes part in fusion; AotcError (code "type") for others."""
    op, chosen = get_op(op_name), OpPattern(pattern)
    if not isinstance(op, CustomOp):
        raise AotcError("type", f"{op_name} has the pattern {op.pattern.name}, which cannot be changed")
    op._changed(pattern=chosen, axes=pointwise if chosen <= OpPattern.BROADCAST else None)
    register_op_attr(op_name, "TOpPattern", chosen, level)


def register_stateful(op_name: str, stateful: bool, level: int = 10) -> None:
    """Relay's mark of operators with effects; AotcError (code "type") for True: there are none here."""
    if stateful:
        raise AotcError("type", f"{op_name} cannot have effects: calls may be shared and moved")
    register_op_attr(op_name, "TOpIsStateful", stateful, level)
