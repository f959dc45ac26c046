# SPDX-License-Identifier: Apache-2.0
"""ToANormalForm and ToBasicBlockNormalForm: variables instead of sharing of nodes.

%0 = nn.relu(%x); add(%0, exp(%0))
let %a = nn.relu(%x); let %b = exp(%a); let %c = add(%a, %b); %c

A block is the body of a function or a branch of an if.  A node belongs to the innermost block that contains
all of its uses.  A-normal form binds every node that is not a variable or constant, in the order of first use;
basic block normal form binds only nodes that are used in several blocks, so that each block stands on its own.
"""

from __future__ import annotations

from aotc.relay.blocks import Blocks, is_atom, left_alone
from aotc.relay.expr import Expr, Function, If, Let, Var
from aotc.relay.transform.base import FunctionPass
from aotc.relay.visitor import post_order, rebuild, with_children


class _Normalizer:
    def __init__(self, function: Function, everything: bool) -> None:
        self.order = list(post_order(function, lambda n: not left_alone(n)))
        self.blocks = Blocks(self.order)
        self.everything = everything
        self.root = function
        self.same: dict[Expr, Expr] = {}  # variables that stand for another variable or a constant
        self.claimed: dict[Expr, Var] = {}  # values of lets, with the variables that they are bound to
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
        for node in self.order:
            if not isinstance(node, Var):
                self.done[node] = self._finish(node)
        result = self.done[self.root]
        assert isinstance(result, Function)
        return result

    def _finish(self, node: Expr) -> Expr:
        """The atom or expression that stands for a node, its let written down where it gets one."""
        if isinstance(node, Let):
            return self._new(node.body)
        value = self._rebuilt(node)
        if node is self.root or is_atom(node):
            return value
        var = self.claimed.get(node)
        if var is None:
            if not self.everything and node not in self.blocks.spread:
                return value
            var = Var("x", span=node.span)
        self.blocks.home[node].lets.append((var, value))
        return var

    def _rebuilt(self, node: Expr) -> Expr:
        if left_alone(node):
            return node
        inner = self.blocks.inner.get(node, [])
        match node:
            case Function(params=params, body=body) if inner[0].lets:
                return with_children(node, (*params, inner[0].around(self._new(body))))
            case If(cond=cond, true_branch=left, false_branch=right) if any(b.lets for b in inner):
                first, second = inner
                parts = self._new(cond), first.around(self._new(left)), second.around(self._new(right))
                return with_children(node, parts)
            case _:
                return rebuild(node, self._new)


def to_a_normal_form(function: Function) -> Function:
    """`function` with every node that is not an atom bound to a variable; primitive functions stay as they are."""
    return _Normalizer(function, everything=True).run()


def to_basic_block_normal_form(function: Function) -> Function:
    """`function` with every node that several blocks use bound to a variable in the innermost common one."""
    return _Normalizer(function, everything=False).run()


class ToANormalForm(FunctionPass):
    """Every step gets a name, in an order of evaluation.  Variables and constants are used as they are."""

    opt_level = 1
    required = ()

    def rewritten(self, function: Function) -> Function:
        return to_a_normal_form(function)


class ToBasicBlockNormalForm(FunctionPass):
    """No node is shared between blocks (bodies of functions, branches of ifs): what they share gets a name."""

    opt_level = 1
    required = ()

    def rewritten(self, function: Function) -> Function:
        return to_basic_block_normal_form(function)
