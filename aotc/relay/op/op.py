# SPDX-License-Identifier: Apache-2.0
"""Relay's operator registry: look up operators, register custom operators and rewrite hooks.

get("nn.conv2d").get_attr("FTVMLegalize")
register("my_log", "The logarithm.")                 # an operator with a type rule, for an external compiler
get("my_log").add_type_rel("Identity")

@register_legalize("nn.dense")
def legalize(attrs, inputs, types):                  # return a replacement of the call, or None
    return relay.nn.dense(...)

The pass Legalize calls its hooks with (attributes, arguments, types of arguments and result).
AlterOpLayout calls its hooks with (attributes, arguments, types of arguments, type of the result).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

from aotc.ir import AotcError, NoAttrs, Type, frozen, require_known_name
from aotc.ir.op import Arg, Op, Types, get_op, install_op_table, installed_ops, register_op_attr
from aotc.ir.op import OpPattern as OpPattern
from aotc.ir.op import get_op as get
from aotc.relay.expr import const as const
from aotc.relay.op.type_rules import broadcasting_type_rule, elementwise_axis_map

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
    """Return the sorted names of all operators."""
    return sorted(installed_ops())


def register_legalize(op_name: str, legal_op: Rewrite | None = None, level: int = 10) -> Any:
    """Register a function that the pass Legalize calls for each call of an operator; without one,
    return a decorator.

    A later function replaces one of the same or a lower `level`.
    """
    return register_op_attr(op_name, LEGALIZE, legal_op, level)


def register_alter_op_layout(op_name: str, alter_layout: Rewrite | None = None, level: int = 10) -> Any:
    """Register a function that the pass AlterOpLayout calls for each call of an operator; without
    one, return a decorator.

    A later function replaces one of the same or a lower `level`.
    """
    return register_op_attr(op_name, ALTER_OP_LAYOUT, alter_layout, level)


# --- operators of the user's own


#: Relay's type relations by name: functions from (attributes, argument types) to the type of the
#: result.
_TYPE_RELATIONS_BY_NAME: Final[dict[str, Callable[[Any, Types], Type]]] = {
    "Identity": lambda _, types: types[0],
    "Broadcast": broadcasting_type_rule(),
}


@frozen(kw_only=True, eq=False)
class CustomOp(Op):
    """A user-defined operator. Each method that changes it installs a changed copy under its name."""

    support_level: int = 10
    computed: ClassVar[bool] = False

    def _install_op_with_changed_fields(self, **changes: Any) -> None:
        install_op_table({**installed_ops(), self.name: replace(get_op(self.name), **changes)})

    def set_num_inputs(self, n: int) -> None:
        """Set the number of arguments; `add_argument` names them."""
        self._install_op_with_changed_fields(args=tuple(Arg(f"data_{k}") for k in range(n)))

    def add_argument(self, name: str, type: str, description: str) -> None:
        """Give the first unnamed argument a name and a type, or append an argument if all have
        names.
        """
        given = [a for a in get_op(self.name).args if a.type != "Expr"]
        rest = get_op(self.name).args[len(given) + 1 :]
        self._install_op_with_changed_fields(args=(*given, Arg(name, type), *rest))

    def add_type_rel(self, rel_name: str, type_rel_func: Callable[..., Type] | None = None) -> None:
        """Set the type rule: a function of (argument types, None), or the relation of Relay named
        `rel_name`.

        Raise AotcError (code "type") for an unknown relation.
        """
        if type_rel_func is None:
            require_known_name("type", "type relation", rel_name, _TYPE_RELATIONS_BY_NAME)
            self._install_op_with_changed_fields(infer=_TYPE_RELATIONS_BY_NAME[rel_name])
            return
        rule = type_rel_func
        self._install_op_with_changed_fields(infer=lambda _, types: rule(list(types), None))

    def set_support_level(self, level: int) -> None:
        """Store a support level; it has no effect."""
        self._install_op_with_changed_fields(support_level=level)

    def set_attrs_type_key(self, key: str) -> None:
        """Do nothing: custom operators have no attribute class. Exists for compatibility with
        Relay.
        """


def register(op_name: str, describe: str = "") -> None:
    """Register a new operator; raise AotcError (code "type") if an operator with the name exists."""
    if op_name in installed_ops():
        raise AotcError("type", f"Operator {op_name} is registered before")

    def raise_missing_type_relation(attributes: Any, types: Types) -> Type:
        raise AotcError("type", "has no type relation", hint=f'get("{op_name}").add_type_rel states one')

    def raise_missing_implementation(*arguments: Any) -> Any:
        hint = "give its calls to another compiler, or replace them by a pass"
        raise AotcError("no-compute", f"{op_name} has a type rule but no implementation", hint=hint)

    new_op = CustomOp(
        name=op_name,
        attrs=NoAttrs,
        doc=describe,
        infer=raise_missing_type_relation,
        reference=raise_missing_implementation,
    )
    install_op_table({**installed_ops(), op_name: new_op})


def register_pattern(op_name: str, pattern: OpPattern, level: int = 10) -> None:
    """Set the fusion pattern of a custom operator; raise AotcError (code "type") for a built-in
    operator.
    """
    op, chosen = get_op(op_name), OpPattern(pattern)
    if not isinstance(op, CustomOp):
        raise AotcError("type", f"{op_name} has the pattern {op.pattern.name}, which cannot be changed")
    op._install_op_with_changed_fields(
        pattern=chosen, axes=elementwise_axis_map if chosen <= OpPattern.BROADCAST else None
    )
    register_op_attr(op_name, "TOpPattern", chosen, level)


def register_stateful(op_name: str, stateful: bool, level: int = 10) -> None:
    """Accept Relay's declaration that an operator has no side effects; raise AotcError (code
    "type") for True.
    """
    if stateful:
        raise AotcError("type", f"{op_name} cannot have effects: calls may be shared and moved")
    register_op_attr(op_name, "TOpIsStateful", stateful, level)
