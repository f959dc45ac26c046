# SPDX-License-Identifier: Apache-2.0
"""Bind nodes with side effects to variables by lets, which fixes their order of evaluation.

A write to a reference must be evaluated exactly once, in its place. In a program with writes,
passes start from a form in which every effect is bound by a let, so that the nodes that they
remove, share or reorder have no effects.

(ref_write(%r, 1), %y).1                       # a pass may replace it by %y
let %x = ref_write(%r, 1); (%x, %y).1          # a pass may replace it by this %x and %y
"""

from collections.abc import Callable, Mapping

from aotc.ir import Op
from aotc.relay.expr import Call, Constructor, Expr, Function, If, Let, Match, RefWrite, Var, require_function
from aotc.relay.graph_api import BlockAssignment, IRModule, infer_module, is_atom, is_fused_or_external_function
from aotc.relay.visitor import children, node_kind, post_order, with_children


class LetBinder:
    """Binds nodes of a function to variables by lets in their blocks, in the order of first use.

    needs_binding    (node, True if several blocks use it) -> True if it gets a variable; values of lets keep theirs
    """

    def __init__(self, function: Function, wanted: Callable[[Expr, bool], bool]) -> None:
        self.order = list(post_order(function, lambda n: not is_fused_or_external_function(n)))
        self.blocks = BlockAssignment(self.order)
        self.needs_binding = wanted
        self.root = function
        # variables that are aliases of another variable or of a constant
        self.same: dict[Expr, Expr] = {}
        # values of lets, with the variables that they are bound to
        self.claimed: dict[Expr, Var] = {}
        self.bound_expr_by_original: dict[Expr, Expr] = {}
        for node in self.order:
            if isinstance(node, Let):
                self._record_alias_or_variable_of_let(node)

    def _record_alias_or_variable_of_let(self, let: Let) -> None:
        value = let.value
        while isinstance(value, Let):
            value = value.body
        if is_atom(value):
            self.same[let.var] = value
        elif self.claimed.setdefault(value, let.var) is not let.var:
            self.same[let.var] = self.claimed[value]

    def _rewritten_node_or_variable(self, node: Expr) -> Expr:
        while node in self.same:
            node = self.same[node]
        return node if isinstance(node, Var) else self.bound_expr_by_original[node]

    def bind_selected_nodes_by_lets(self) -> Function:
        """Return the function with the selected nodes bound to variables by lets."""
        for node in self.order:
            if not isinstance(node, Var):
                self.bound_expr_by_original[node] = self._bind_node_by_let_or_replace(node)
        return require_function(self.bound_expr_by_original[self.root])

    def _bind_node_by_let_or_replace(self, node: Expr) -> Expr:
        """Return the variable or expression that replaces a node, and add a let to the node's block
        if it gets a variable.
        """
        if isinstance(node, Let):
            return self._rewritten_node_or_variable(node.body)
        value = self._rebuild_with_lets(node)
        if node is self.root or is_atom(node):
            return value
        var = self.claimed.get(node)
        if var is None:
            if not self.needs_binding(node, node in self.blocks.spread):
                return value
            var = Var("x", span=node.span)
        self.blocks.home[node].lets.append((var, value))
        return var

    def _rebuild_with_lets(self, node: Expr) -> Expr:
        if is_fused_or_external_function(node):
            return node
        fresh = [*map(self._rewritten_node_or_variable, children(node))]
        # the last children are the body, or the two branches
        inner = self.blocks.inner.get(node, [])
        for k, block in enumerate(inner, len(fresh) - len(inner)):
            fresh[k] = block.wrap_in_lets(fresh[k])
        return node if fresh == [*children(node)] else with_children(node, tuple(fresh))


# --- effects


def uses_references_or_calls_function(node: Expr) -> bool:
    """Return True if the number and order of evaluations of a node may matter: it uses references
    or calls a function.
    """
    calls = isinstance(node, Call) and not isinstance(node.op, Op | Constructor)
    return calls or node_kind(node).name in ("ref_create", "ref_read", "ref_write")


def has_reference_writes(functions: Mapping[str, Function]) -> bool:
    """Return True if some function writes to a reference; without writes, no node has effects."""
    return any(isinstance(node, RefWrite) for function in functions.values() for node in post_order(function))


def bind_effects_by_lets(module: IRModule) -> IRModule:
    """Return a module in which every effect is the value of a let or the result of a block.

    The result is typed. It is the same object if no function needs a change.
    """
    if not has_reference_writes(module):
        return module
    unnamed = {n: f for n, f in module.items() if _has_effects_outside_lets(f)}
    changed = {
        n: LetBinder(f, lambda node, _: _may_have_effects(node)).bind_selected_nodes_by_lets()
        for n, f in unnamed.items()
    }
    return infer_module(module.with_functions(changed)) if changed else module


def _may_have_effects(node: Expr) -> bool:
    """Return True if a node, or a block inside it, may have effects."""
    return uses_references_or_calls_function(node) or isinstance(node, If | Let | Match)


def _has_effects_outside_lets(function: Function) -> bool:
    """Return True if a node with possible effects is used other than as the value of a let or the
    result of a block.
    """
    order = (
        n
        for n in post_order(function, lambda n: not is_fused_or_external_function(n))
        if not isinstance(n, Function | Let)
    )
    used = (children(n)[: 1 if isinstance(n, If | Match) else None] for n in order)
    return any(_may_have_effects(operand) for operands in used for operand in operands)
