# SPDX-License-Identifier: Apache-2.0
"""Conversions between lets and shared graph nodes (A-normal form, graph normal form), and removal
of unused variables.

DeadCodeElimination: remove variables that nothing uses.

let %a = nn.relu(%x); let %b = exp(%x); %b
let %b = exp(%x); %b

ToANormalForm and ToBasicBlockNormalForm: bind shared nodes to variables.

%0 = nn.relu(%x); add(%0, exp(%0))
let %a = nn.relu(%x); let %b = exp(%a); let %c = add(%a, %b); %c

A block is the body of a function or a branch of an if. A node belongs to the innermost block that
contains all of its uses. A-normal form binds every node that is not a variable or constant, in the
order of first use. Basic block normal form binds only nodes that are used in several blocks, so
that no node is shared between blocks.

ToGraphNormalForm: replace variables by shared nodes.

let %a = nn.relu(%x); let %b = exp(%a); add(%a, %b)
%0 = nn.relu(%x); add(%0, exp(%0))
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aotc.ir import AotcError, PassContext
from aotc.relay.analysis import free_vars
from aotc.relay.graph_api import (
    Expr,
    Function,
    IRModule,
    Let,
    children,
    depth_first_post_order,
    map_children,
    post_order,
    require_function,
)
from aotc.relay.transform.effect_order import LetBinder, has_reference_writes, uses_references_or_calls_function
from aotc.relay.transform.pass_base import FunctionPass, is_not_primitive_function, rewrite_nodes


def _replacement_of_eliminated_let(node: Expr, values: Mapping[Expr, Expr]) -> Expr | None:
    """Return the replacement of a let (its body) or a variable (its value) that `values`
    eliminates; None for other nodes.
    """
    if isinstance(node, Let):
        return node.body if node.var in values else None
    return values.get(node)


def _post_order_through_let_values(root: Expr, values: Mapping[Expr, Expr]) -> Iterator[Expr]:
    """Yield the nodes that `root` needs in dependency order, with the values of used variables in
    place of the variables.
    """

    def dependencies_through_let_values(node: Expr) -> tuple[Expr, ...]:
        meant = _replacement_of_eliminated_let(node, values)
        if meant is not None:
            return (meant,)
        return children(node) if is_not_primitive_function(node) else ()

    return depth_first_post_order([root], dependencies_through_let_values)


@dataclass(frozen=True, repr=False)
class DeadCodeElimination(FunctionPass):
    """Pass that removes lets whose variables do not contribute to the result, directly or through
    other lets.

    Where references are written, lets whose values use references or call functions stay.

    inline_once    replace a variable that is used once, in the function that contains its let, by its value;
                   function values stay, and so do all values in programs that write references
    """

    inline_once: bool = False

    opt_level = 1

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        lets = [n for n in post_order(function) if isinstance(n, Let)]
        fixed = (
            {n for n in lets if any(map(uses_references_or_calls_function, post_order(n.value)))}
            if has_reference_writes(module)
            else set()
        )
        values: dict[Expr, Expr] = {n.var: n.value for n in lets if n not in fixed}
        live = {
            n
            for root in (function, *(let.value for let in fixed))
            for n in _post_order_through_let_values(root, values)
        }
        live.update(let.var for let in fixed)

        def drop_dead_let(_: Expr, new: Expr) -> Expr:
            return new.body if isinstance(new, Let) and new.var not in live else new

        result = rewrite_nodes(function, drop_dead_let)
        return (
            _inline_let_values(result, _single_use_let_values(result))
            if self.inline_once and not has_reference_writes(module)
            else result
        )


def _single_use_let_values(function: Function) -> dict[Expr, Expr]:
    """Return the values of lets that can be inlined: their variables are used once, in the function
    of the let.

    Function values are excluded.
    """
    order = list(post_order(function, is_not_primitive_function))
    home: dict[Expr, Expr] = {}  # the innermost function around a node: inner functions come first
    for literal in (n for n in order if isinstance(n, Function)):
        for node in post_order(literal.body, lambda n: not isinstance(n, Function)):
            home.setdefault(node, literal)
    users: dict[Expr, list[Expr]] = {}
    for node in order:
        for child in children(node)[1:] if isinstance(node, Let) else children(node):
            users.setdefault(child, []).append(node)
    lets = [n for n in order if isinstance(n, Let) and not isinstance(n.value, Function)]
    once = [n for n in lets if len(users.get(n.var, ())) == 1]
    return {n.var: n.value for n in once if home.get(users[n.var][0]) is home.get(n)}


def _inline_let_values(function: Function, values: Mapping[Expr, Expr]) -> Function:
    """Return `function` with the variables in `values` replaced by their values."""
    memo: dict[Expr, Expr] = {}
    for node in _post_order_through_let_values(function, values):
        meant = _replacement_of_eliminated_let(node, values)
        if meant is not None:
            memo[node] = memo[meant]
        else:
            memo[node] = map_children(node, memo.__getitem__) if is_not_primitive_function(node) else node
    return require_function(memo[function])


# --- A-normal form and basic block normal form


class ToANormalForm(FunctionPass):
    """Pass that binds every operation to a variable, in evaluation order; variables, constants and
    fused functions stay.
    """

    opt_level = 1
    required = ()

    def rewrite_function_body(self, function: Function) -> Function:
        return LetBinder(function, lambda _, spread: True).bind_selected_nodes_by_lets()


class ToBasicBlockNormalForm(FunctionPass):
    """Pass that binds nodes shared between blocks (bodies of functions, branches of ifs) to
    variables.
    """

    opt_level = 1
    required = ()

    def rewrite_function_body(self, function: Function) -> Function:
        return LetBinder(function, lambda _, spread: spread).bind_selected_nodes_by_lets()


# --- graph normal form


def is_recursive_let(let: Let) -> bool:
    """Return True if the value of a let is a recursive function: one that uses the let's variable."""
    return isinstance(let.value, Function) and let.var in free_vars(let.value)


class ToGraphNormalForm(FunctionPass):
    """Pass that replaces variables of lets by their values. Lets of recursive functions stay.

    Raise AotcError (code "control-flow") for a function that writes references.
    """

    opt_level = 1
    required = ()

    def rewrite_function_body(self, function: Function) -> Function:
        if has_reference_writes({"": function}):
            text = "a graph without lets does not say when references are written"
            hint = "programs with ref_write keep their lets"
            raise AotcError("control-flow", text, span=function.span, hint=hint)
        lets = (
            n for n in post_order(function, is_not_primitive_function) if isinstance(n, Let) and not is_recursive_let(n)
        )
        values: dict[Expr, Expr] = {let.var: let.value for let in lets}
        return _inline_let_values(function, values)
