# SPDX-License-Identifier: Apache-2.0
"""Names for nodes of graphs, by lets in an order of evaluation; and what needs them: nodes that have effects.

What writes to references must be evaluated once, and in its place.  Where a program does so, passes start from one
with names for all that has to do with it, so that what they drop, share and reorder has no effects.

(ref_write(%r, 1), %y).1                       # a pass may make %y of it
let %x = ref_write(%r, 1); (%x, %y).1          # and of this %x and %y
"""

from collections.abc import Callable, Mapping

from aotc.ir import Op
from aotc.relay.expr import Call, Constructor, Expr, Function, If, Let, Match, RefWrite, Var, as_function
from aotc.relay.graph_api import Blocks, IRModule, infer_module, is_atom, left_alone
from aotc.relay.visitor import children, kind_of, post_order, with_children


class Naming:
    """Gives names to nodes of a function by lets in the blocks where they belong, in the order of first use.

    wanted    (node, whether several blocks use it) -> whether it gets a name; values of lets keep theirs
    """

    def __init__(self, function: Function, wanted: Callable[[Expr, bool], bool]) -> None:
        self.order = list(post_order(function, lambda n: not left_alone(n)))
        self.blocks = Blocks(self.order)
        self.wanted = wanted
        self.root = function
        # variables that stand for another variable or a constant
        self.same: dict[Expr, Expr] = {}
        # values of lets, with the variables that they are bound to
        self.claimed: dict[Expr, Var] = {}
        self.done: dict[Expr, Expr] = {}
        for node in self.order:
            if isinstance(node, Let):
                self._claim(node)

    def _claim(self, let: Let) -> None:
        value = let.value
        while isinstance(value, Let):
            value = value.body
        if is_atom(value):
            self.same[let.var] = value
        elif self.claimed.setdefault(value, let.var) is not let.var:
            self.same[let.var] = self.claimed[value]

    def _new(self, node: Expr) -> Expr:
        while node in self.same:
            node = self.same[node]
        return node if isinstance(node, Var) else self.done[node]

    def run(self) -> Function:
        """The function with these lets."""
        for node in self.order:
            if not isinstance(node, Var):
                self.done[node] = self._finish(node)
        return as_function(self.done[self.root])

    def _finish(self, node: Expr) -> Expr:
        """The atom or expression that stands for a node, its let written down where it gets one."""
        if isinstance(node, Let):
            return self._new(node.body)
        value = self._rebuilt(node)
        if node is self.root or is_atom(node):
            return value
        var = self.claimed.get(node)
        if var is None:
            if not self.wanted(node, node in self.blocks.spread):
                return value
            var = Var("x", span=node.span)
        self.blocks.home[node].lets.append((var, value))
        return var

    def _rebuilt(self, node: Expr) -> Expr:
        if left_alone(node):
            return node
        fresh = [*map(self._new, children(node))]
        # of the last children: a body, or two branches
        inner = self.blocks.inner.get(node, [])
        for k, block in enumerate(inner, len(fresh) - len(inner)):
            fresh[k] = block.around(fresh[k])
        return node if fresh == [*children(node)] else with_children(node, tuple(fresh))


# --- effects


def has_effect(node: Expr) -> bool:
    """Whether it may matter when, and how often, a node is evaluated: it is about references, or calls a function."""
    calls = isinstance(node, Call) and not isinstance(node.op, Op | Constructor)
    return calls or kind_of(node).name in ("ref_create", "ref_read", "ref_write")


def writes(functions: Mapping[str, Function]) -> bool:
    """Whether functions write to references: without that, nothing has effects."""
    return any(isinstance(node, RefWrite) for function in functions.values() for node in post_order(function))


def with_effects_named(module: IRModule) -> IRModule:
    """A module in which all that has effects is the value of a let or the result of a block; typed, or the same one."""
    if not writes(module):
        return module
    unnamed = {n: f for n, f in module.items() if _unnamed(f)}
    changed = {n: Naming(f, lambda node, _: _may_have_effects(node)).run() for n, f in unnamed.items()}
    return infer_module(module.with_functions(changed)) if changed else module


def _may_have_effects(node: Expr) -> bool:
    """Whether a node, or what its blocks hold, may have effects."""
    return has_effect(node) or isinstance(node, If | Let | Match)


def _unnamed(function: Function) -> bool:
    """Whether something uses what may have effects otherwise than as the value of a let or the result of a block."""
    order = (n for n in post_order(function, lambda n: not left_alone(n)) if not isinstance(n, Function | Let))
    used = (children(n)[: 1 if isinstance(n, If | Match) else None] for n in order)
    return any(_may_have_effects(operand) for operands in used for operand in operands)
