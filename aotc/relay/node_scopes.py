# SPDX-License-Identifier: Apache-2.0
"""Scopes of nodes: the block (body of a function, branch of an if, clause of a match) to which each
node belongs.

A node belongs to the innermost block that contains all of its uses.

blocks = BlockAssignment(list(post_order(function)))
blocks.home[node]                                # its block
node in blocks.spread                            # several blocks use it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aotc.ir import Op
from aotc.relay.expr import Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, Var
from aotc.relay.graph_api import children, pattern_vars


@dataclass(slots=True, eq=False)
class ScopeBlock:
    """A function body or branch: the enclosing block, the nesting depth, and the lets at its
    beginning.
    """

    outer: ScopeBlock | None = None
    depth: int = 0
    lets: list[tuple[Var, Expr]] = field(default_factory=list)

    def new_nested_scope_block(self) -> ScopeBlock:
        """Return a new block (body or branch) nested in this one."""
        return ScopeBlock(self, self.depth + 1)

    def wrap_in_lets(self, body: Expr) -> Expr:
        """Return `body` wrapped in the lets that were added to the block."""
        for var, value in reversed(self.lets):
            body = Let(var, value, body, value.span)
        return body


def _innermost_common_block(a: ScopeBlock, b: ScopeBlock) -> ScopeBlock:
    """Return the innermost block that encloses two blocks."""
    while a is not b:
        if a.depth < b.depth:
            a, b = b, a
        assert a.outer is not None
        a = a.outer
    return a


def is_fused_or_external_function(node: Expr) -> bool:
    """Return True for a function whose body passes must not change: a fused one, or one for another
    compiler.
    """
    return isinstance(node, Function) and (node.is_primitive or "Compiler" in node.attrs)


def is_not_a_scope(expr: Expr) -> bool:
    """Return True unless `expr` opens a scope: a function, if, let or match, whose contents cannot
    join a region.
    """
    return not isinstance(expr, (Function, If, Let, Match))


def is_atom(node: Expr) -> bool:
    """Return True for a node that needs no let: a variable, constant, operator or constructor."""
    return isinstance(node, (Var, GlobalVar, Constant, Op, Constructor))


def _children_with_using_blocks(
    node: Expr, block: ScopeBlock, lets_are_scopes: bool
) -> Iterator[tuple[Expr, ScopeBlock]]:
    """Yield the children of a node, each with the block in which it is used; bodies and branches
    get new blocks.
    """
    if is_fused_or_external_function(node) and not lets_are_scopes:
        return
    match node:
        case Function():
            inner = block.new_nested_scope_block()
            yield from ((child, inner) for child in children(node))
        case If():
            yield from (
                (node.cond, block),
                (node.true_branch, block.new_nested_scope_block()),
                (node.false_branch, block.new_nested_scope_block()),
            )
        case Match():
            yield node.data, block
            for clause in node.clauses:
                inner = block.new_nested_scope_block()
                yield from ((child, inner) for child in (*pattern_vars(clause.lhs), clause.rhs))
        case Let():
            rest = block.new_nested_scope_block() if lets_are_scopes else block
            yield from ((node.var, rest), (node.value, block), (node.body, rest))
        case _:
            yield from ((child, block) for child in children(node))


class BlockAssignment:
    """Assignment of the nodes of a function to blocks: bodies of functions, branches of ifs,
    clauses of matches.

    home     the block of each node
    inner    the new blocks of a function (one), an if (two), a match (one per clause), and a let if lets are
             treated as scopes
    spread   nodes that are used in several blocks
    """

    def __init__(self, order: list[Expr], as_text: bool = False) -> None:
        """Assign the nodes of a function, given in post order, to blocks.

        as_text    True: the rest after a let is a block, too, and the bodies of all functions are included
        """
        self.home: dict[Expr, ScopeBlock] = {order[-1]: ScopeBlock()}
        self.inner: dict[Expr, list[ScopeBlock]] = {}
        self.spread: set[Expr] = set()
        for node in reversed(order):
            if node not in self.home:
                continue
            uses = list(_children_with_using_blocks(node, self.home[node], as_text))
            self.inner[node] = list(dict.fromkeys(b for _, b in uses if b is not self.home[node]))
            for child, block in uses:
                self._record_use_in_block(child, block)
            if isinstance(node, Let) and node in self.spread:
                self.spread.add(node.body)  # the value of a let is the value of its body

    def _record_use_in_block(self, child: Expr, block: ScopeBlock) -> None:
        known = self.home.setdefault(child, block)
        if known is not block:
            self.home[child] = _innermost_common_block(known, block)
            self.spread.add(child)
