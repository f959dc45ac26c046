# SPDX-License-Identifier: Apache-2.0
"""Scopes of nodes: the block (body of a function, branch of an if, clause of a match) to which each
node belongs.

A node belongs to the innermost block that contains all of its uses.

blocks = Blocks(list(post_order(function)))
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
class Block:
    """A function body or branch: the enclosing block, the nesting depth, and the lets at its
    beginning.
    """

    outer: Block | None = None
    depth: int = 0
    lets: list[tuple[Var, Expr]] = field(default_factory=list)

    def inner(self) -> Block:
        """Return a new block (body or branch) nested in this one."""
        return Block(self, self.depth + 1)

    def around(self, body: Expr) -> Expr:
        """Return `body` wrapped in the lets that were added to the block."""
        for var, value in reversed(self.lets):
            body = Let(var, value, body, value.span)
        return body


def _common(a: Block, b: Block) -> Block:
    """Return the innermost block that encloses two blocks."""
    while a is not b:
        if a.depth < b.depth:
            a, b = b, a
        assert a.outer is not None
        a = a.outer
    return a


def left_alone(node: Expr) -> bool:
    """Return True for a function whose body passes must not change: a fused one, or one for another
    compiler.
    """
    return isinstance(node, Function) and (node.is_primitive or "Compiler" in node.attrs)


def outside_scopes(expr: Expr) -> bool:
    """Return True unless `expr` opens a scope: a function, if, let or match, whose contents cannot
    join a region.
    """
    return not isinstance(expr, (Function, If, Let, Match))


def is_atom(node: Expr) -> bool:
    """Return True for a node that needs no let: a variable, constant, operator or constructor."""
    return isinstance(node, (Var, GlobalVar, Constant, Op, Constructor))


def _used_in(node: Expr, block: Block, as_text: bool) -> Iterator[tuple[Expr, Block]]:
    """Yield the children of a node, each with the block in which it is used; bodies and branches
    get new blocks.
    """
    if left_alone(node) and not as_text:
        return
    match node:
        case Function():
            inner = block.inner()
            yield from ((child, inner) for child in children(node))
        case If():
            yield from ((node.cond, block), (node.true_branch, block.inner()), (node.false_branch, block.inner()))
        case Match():
            yield node.data, block
            for clause in node.clauses:
                inner = block.inner()
                yield from ((child, inner) for child in (*pattern_vars(clause.lhs), clause.rhs))
        case Let():
            rest = block.inner() if as_text else block
            yield from ((node.var, rest), (node.value, block), (node.body, rest))
        case _:
            yield from ((child, block) for child in children(node))


class Blocks:
    """Assignment of the nodes of a function to blocks: bodies of functions, branches of ifs,
    clauses of matches.

    home     the block of each node
    inner    the new blocks of a function (one), an if (two), a match (one per clause), and with `as_text` a let
    spread   nodes that are used in several blocks
    """

    def __init__(self, order: list[Expr], as_text: bool = False) -> None:
        """Assign the nodes of a function, given in post order, to blocks.

        as_text    True: the rest after a let is a block, too, and the bodies of all functions are included
        """
        self.home: dict[Expr, Block] = {order[-1]: Block()}
        self.inner: dict[Expr, list[Block]] = {}
        self.spread: set[Expr] = set()
        for node in reversed(order):
            if node not in self.home:
                continue
            uses = list(_used_in(node, self.home[node], as_text))
            self.inner[node] = list(dict.fromkeys(b for _, b in uses if b is not self.home[node]))
            for child, block in uses:
                self._use(child, block)
            if isinstance(node, Let) and node in self.spread:
                self.spread.add(node.body)  # the value of a let is the value of its body

    def _use(self, child: Expr, block: Block) -> None:
        known = self.home.setdefault(child, block)
        if known is not block:
            self.home[child] = _common(known, block)
            self.spread.add(child)
