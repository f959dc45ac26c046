# SPDX-License-Identifier: Apache-2.0
"""What the names of a text mean where they are used: blocks, the variables that they bind, and named nodes.

names = Names(cursor)
with names.block():                    # ends with what it binds
    names.bind("x", Var("x"))
    names.lookup(token)                # AotcError where nothing binds the variable
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from aotc.ir import nearest
from aotc.relay.graph_api import Expr, Var, escaping_vars
from aotc.relay.text.cursor import Cursor
from aotc.relay.text.lexer import Token
from aotc.relay.visitor import free_vars

ExprT = TypeVar("ExprT", bound=Expr)


@dataclass(slots=True)
class _Block:
    """The names of the variables that a block has bound so far, and whether the block goes on."""

    variables: set[str] = field(default_factory=set)
    goes_on: bool = True


class Names:
    """The names of one text.

    A node that a block has named stays known when the block has ended, as long as it depends on no variable of it.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._free: dict[str, Var] = {}
        self._blocks = [_Block()]
        # with the depth of the block, innermost last
        self._bound: dict[str, list[tuple[int, Var]]] = {}
        # nodes called %0, %1 and so on, where they were named
        self._temps: dict[str, tuple[_Block, Expr]] = {}
        self._crossing: list[Token] = []  # uses of temps of blocks that have ended

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block: what is bound within ends with it."""
        self._blocks.append(_Block())
        yield
        block = self._blocks.pop()
        for name in block.variables:
            self._bound[name].pop()
        block.goes_on = False

    def forget_temps(self) -> None:
        """Begin another function, which names its nodes itself."""
        self._temps = {}

    # --- variables

    def binds(self, name: str) -> bool:
        """Whether the innermost block binds a variable of this name."""
        return name in self._blocks[-1].variables

    def bind(self, name: str, var: Var) -> Var:
        """Make a variable what its name means until the innermost block ends; a later one replaces it there."""
        found, depth = self._bound.setdefault(name, []), len(self._blocks)
        if found and found[-1][0] == depth:
            found.pop()
        found.append((depth, var))
        self._blocks[-1].variables.add(name)
        return var

    def bind_free(self, name: str, var: Var) -> None:
        """Make a variable that nothing binds what its name means in the rest of the text, outside of other bindings."""
        self._free[name] = var
        found = self._bound.setdefault(name, [])
        found[:] = [(0, var), *(entry for entry in found if entry[0])]

    def lookup(self, token: Token) -> Var:
        """The variable that a name means."""
        found = self._bound.get(token.text)
        if found:
            return found[-1][1]
        hint = nearest(token.text, [name for name, variables in self._bound.items() if variables])
        hint = hint or f"make it a parameter, or bind it: let %{token.text} = ...;"
        self._cursor.fail(f"variable %{token.text} is not defined", token, code="undefined", hint=hint)

    # --- nodes

    def define(self, token: Token, value: Expr) -> None:
        """Name a node."""
        if token.text in self._temps and self._temps[token.text][0].goes_on:
            self._cursor.fail(f"local variable %{token.text} is defined twice", token, code="redefined")
        self._temps[token.text] = self._blocks[-1], value

    def temp(self, token: Token) -> Expr:
        """The node of a name."""
        if token.text not in self._temps:
            text = f"local variable %{token.text} has not yet been defined"
            self._cursor.fail(text, token, code="undefined", hint=f"write `%{token.text} = ...;` before it")
        block, node = self._temps[token.text]
        if not block.goes_on:
            self._crossing.append(token)
        return node

    def checked(self, root: ExprT) -> ExprT:
        """`root`, in which nodes that are used after their blocks must not depend on variables of those blocks."""
        if not self._crossing:
            return root
        lost = escaping_vars(root).union(free_vars(root)).difference(self._free.values())
        for token in self._crossing:
            for var in (v for v in free_vars(self._temps[token.text][1]) if v in lost):
                text = f"%{token.text} depends on %{var.name}, which is not defined here"
                self._cursor.fail(
                    text, token, code="undefined", hint=f"use %{token.text} inside, where %{var.name} is bound"
                )
        self._crossing = []
        return root
