# SPDX-License-Identifier: Apache-2.0
"""Printer: write a module or expression as Relay text that `aotc.relay.text.parser` parses back to
an equal program.

    fn (%x: Tensor[(2), float32]) -> Tensor[(2), float32] {
      %0 = nn.relu(%x) /* ty=Tensor[(2), float32] */;
      add(%0, %0) /* ty=Tensor[(2), float32] */
    }
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from aotc.ir import DictAttrs, Op, Span, Task, assert_never, run
from aotc.relay.adt import Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard, TypeData, inner
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, RefCreate, RefRead
from aotc.relay.graph_api import Block, Blocks, IRModule, RefWrite, Tuple, TupleGetItem, Var
from aotc.relay.text import literals
from aotc.relay.text.literals import KEY, dump
from aotc.relay.visitor import children, depth_first, kind_of, post_order

OMITTED: Final = """
/* For debugging purposes the metadata section has been omitted.
 * If you would like to see the full metadata section you can set the 
 * option to `True` when invoking `astext`. 
 */
"""  # noqa: W291 - Relay's text, trailing blanks included


def astext(x: IRModule | Expr, show_meta_data: bool = True, annotate: Callable[[Expr], str] | None = None) -> str:
    """Return the complete text of a program: version line, program and the constants that it refers
    to.

    annotate    returns the comment to print after an expression, in place of its type and span

    If `show_meta_data` is False, a note replaces the constants; the text of a program with
    constants in the metadata section can then not be parsed.
    """
    body, constants = text_and_constants(x, annotate)
    if not constants:
        return body
    if not show_meta_data:
        return f"{body}{OMITTED}"
    return f"{body}\n#[metadata]\n{dump([constant.data for constant in constants])}"


def text_and_constants(x: IRModule | Expr, annotate: Callable[[Expr], str] | None = None) -> tuple[str, list[Constant]]:
    """Return the text of a program without its metadata section, and the list of constants it
    refers to by index.
    """
    printer = _Printer(annotate)
    body = f'#[version = "{literals.VERSION}"]\n{printer.program(x)}'
    return body, list(printer.meta)


def to_text(x: IRModule | Expr) -> str:
    """Return the text of a program for display, without version line and constants; it cannot
    always be parsed.
    """
    printer = _Printer()
    body = printer.program(x)
    return f"{body}\n" if printer.meta else body


_DEEPER: Final = "\x1e"
#: Marks of the begin and end of indented text, resolved by `_laid_out`.  They cannot occur in the
#: printed text: strings escape control characters, and spans drop them.
_BACK: Final = "\x1f"


def _indent(text: str) -> str:
    return f"{_DEEPER}{text}{_BACK}"


def _laid_out(text: str) -> str:
    """Return the text with its lines indented by nesting depth; one pass over the text, since
    blocks may nest deeply.
    """
    depth = {_DEEPER: 1, _BACK: -1}
    level = 0
    pieces = []
    for piece in re.split(f"([\n{_DEEPER}{_BACK}])", text):
        level += depth.get(piece, 0)
        if piece not in depth:
            pieces.append("\n" + "  " * level if piece == "\n" else piece)
    return "".join(pieces)


def _span_text(span: Span) -> str:
    """Return a span as `source:line:column`, with comment delimiters escaped so that it fits in a
    comment.
    """
    text = f"{span.node or span.source}:{span.line}:{span.column}"
    return " ".join(text.replace("*/", "*\\/").replace("/*", "/\\*").split())


def _comment(node: Expr, typed: bool = True) -> str:
    """Return a comment with the type and span of a node as far as known, or "".

    In an untyped program (`typed` False) the types of constants and tuples are omitted.
    """
    parts = []
    if node.checked_type is not None and (typed or not isinstance(node, (Constant, Tuple))):
        parts.append(f"ty={literals.type_text(node.checked_type)}".replace("*/", "*\\/"))
    if node.span is not None:
        parts.append(f"span={_span_text(node.span)}")
    return f" /* {' '.join(parts)} */" if parts else ""


def _definition(data: TypeData) -> str:
    """Return the text of the definition of an algebraic data type."""
    generic = f"[{', '.join(map(str, data.type_vars))}]" if data.type_vars else ""
    if not data.constructors:
        return f"extern type {data.header}{generic}\n"
    rows = ""
    for c in data.constructors:
        rows += f"  {c.name_hint}" + (f"({', '.join(map(literals.type_text, c.inputs))})" if c.inputs else "") + ",\n"
    return f"type {data.header}{generic} {{\n{rows}}}\n"


class _Scopes:
    """Assigns each node of an expression to the innermost block that contains all of its uses."""

    def __init__(self, root: Expr) -> None:
        order = list(post_order(root))
        blocks = Blocks(order, as_text=True)
        self.home, self.opened = blocks.home, blocks.inner
        self.uses = Counter(child for node in order for child in children(node))
        self.lines: defaultdict[Block, list[str]] = defaultdict(list)  # the lines written to each block so far

    def write(self, node: Expr, line: str) -> None:
        """Append a line to the block that `node` is assigned to."""
        self.lines[self.home[node]].append(f"{line}\n")


class _Printer:
    """State of the printing of one program.

    Nodes are visited in post-order (the callee before the arguments), which computes the text of
    each node; the line `%0 = ...;` is written when the first user of the node is visited. Relay's
    printer writes lines in this order, too.
    """

    def __init__(self, annotate: Callable[[Expr], str] | None = None) -> None:
        self.annotate = annotate
        self.meta: dict[Constant, int] = {}
        self.raw: dict[Expr, str] = {}  # the text of each visited node
        self.memo: dict[Expr, str] = {}  # the name or inlined text by which users refer to each node
        self.free: set[Var] = set()  # free variables visited but not declared yet
        self.scopes = _Scopes(Tuple(()))
        self.taken: set[str] = set()
        self.suffixes: Counter[str] = Counter()
        self.temps = 0
        self.typed = False  # True if types have been inferred for the function being printed

    def program(self, x: IRModule | Expr) -> str:
        """Return the text of a module or expression without the metadata section."""
        if not isinstance(x, IRModule):
            self._begin(x)
            return _laid_out(run(self._scope(x, self.scopes.home[x])))
        parts = [self._module_attrs(x.attrs)] if x.attrs else []
        parts += map(_definition, sorted(x.type_definitions.values(), key=lambda data: data.header.name))
        for name in sorted(x):
            self._begin(x[name])
            parts.append(_laid_out(run(self._function(f"def {literals.global_name(name)}", x[name]))) + "\n")
        return "\n".join(parts)

    def _begin(self, root: Expr) -> None:
        """Reset the state for another function and assign the function's nodes to blocks."""
        self.raw.clear()
        self.memo.clear()
        self.scopes = _Scopes(root)
        self.typed = root.checked_type is not None and not isinstance(root, Constant)

    @staticmethod
    def _module_attrs(attrs: Mapping[str, Any]) -> str:
        rows = "".join(f"  {literals.quoted(key)} = {literals.value_text(value)}\n" for key, value in attrs.items())
        return f"attributes {{\n{rows}}}\n"

    # Scopes

    def _scope(self, node: Expr, scope: Block) -> Task[str]:
        """Return the text of a block: the lines that define the block's named nodes, then the text
        of `node`.
        """
        text: str = yield self._expr(node, tail=True)
        return "".join(self.scopes.lines[scope]) + text

    def _block(self, node: Expr, scope: Block) -> Task[str]:
        text: str = yield self._scope(node, scope)
        return "{" + _indent(f"\n{text}") + "\n}"

    def _expr(self, root: Expr, tail: bool = False) -> Task[str]:
        """Return the text by which `root` is referred to in the current scope, after writing all
        its operands.
        """
        for node in depth_first([root], self._operands):
            if self._is_known(node):
                continue
            if isinstance(node, (Function, If, Let, Match)):
                self.raw[node] = yield self._nested(node)
            else:
                self.raw[node] = self._flat(node)
        return self._refer(root, tail)

    def _is_known(self, node: Expr) -> bool:
        return node in self.raw or node in self.memo

    def _operands(self, node: Expr) -> tuple[Expr, ...]:
        """Return the children of a node that are written before it in its block; none for nodes
        that open blocks.
        """
        flat = not isinstance(node, (Function, If, Let, Match)) and not self._is_known(node)
        return children(node) if flat else ()

    def _refer(self, node: Expr, tail: bool = False) -> str:
        """Return the text by which a visited node is referred to; write a line `%0 = ...;` first if
        it is not inlined.
        """
        if isinstance(node, Var) and node in self.free:
            self.free.remove(node)
            self.scopes.write(node, f"free_var {self.raw[node]};")
        if node in self.memo:
            return self.memo[node]
        inline = isinstance(node, (GlobalVar, Op, Constant, Constructor)) or (tail and self.scopes.uses[node] <= 1)
        text = self.raw[node]
        if isinstance(node, Let) and not inline:
            text = "(" + _indent(f"\n{text}") + "\n)"
        if not isinstance(node, (GlobalVar, Op, Let, If, Match, Constructor)):
            text += self._note(node)
        if not inline:
            name = f"%{self.temps}"
            self.temps += 1
            self.scopes.write(node, f"{name} = {text};")
            text = name
        self.memo[node] = text
        return text

    def _note(self, node: Expr) -> str:
        if self.annotate is None:
            return _comment(node, self.typed)
        note = self.annotate(node).replace("*/", "*\\/")
        return f" /* {note} */" if note else ""

    # Nodes

    def _flat(self, node: Expr) -> str:
        """Return the text of a node that opens no block and whose operands have been visited."""
        match node:
            case Call():
                items = [*map(self._refer, node.args), *literals.key_values(node.attrs.changed())]
                if isinstance(node.attrs, DictAttrs):
                    items += literals.key_values({"attrs_type_key": node.attrs.type_key})
                bare = isinstance(node.op, Constructor) and not items
                return self._refer(node.op) + ("" if bare else f"({', '.join(items)})")
            case Tuple():
                fields = list(map(self._refer, node.fields))
                return f"({fields[0]},)" if len(fields) == 1 else f"({', '.join(fields)})"
            case TupleGetItem():
                return f"{self._refer(node.tuple_value)}.{node.index}"
            case Constant():
                return self._constant(node)
            case GlobalVar():
                return literals.global_name(node.name)
            case Op():
                return node.name
            case Constructor():
                return node.name_hint
            case RefCreate() | RefRead() | RefWrite():
                word = kind_of(node).name.replace("ref_create", "ref")
                return f"{word}({', '.join(map(self._refer, children(node)))})"
            case Var():  # bound variables are known before they are used
                self.free.add(node)
                return self._define(node, typed=False)
            case _:
                raise AssertionError(f"{type(node).__name__} opens scopes")

    def _nested(self, node: Function | If | Let | Match) -> Task[str]:
        """Return the text of a node that opens blocks: function, if, let or match."""
        text: str
        match node:
            case Function():
                text = yield self._function("fn ", node)
            case Let():
                text = yield self._let(node)
            case If():
                cond = yield self._expr(node.cond)
                first, second = self.scopes.opened[node]
                yes = yield self._block(node.true_branch, first)
                no = yield self._block(node.false_branch, second)
                text = f"if ({cond}) {yes} else {no}"
            case Match():
                text = yield self._match(node)
            case _:
                assert_never(node)
        return text

    def _match(self, node: Match) -> Task[str]:
        data = yield self._expr(node.data)
        clauses = ""
        for clause, scope in zip(node.clauses, self.scopes.opened[node], strict=True):
            pattern = self._pattern(clause.lhs)
            clauses += f"\n{pattern} => {(yield self._block(clause.rhs, scope))},"
        return f"match{'' if node.complete else '?'} ({data}) {{{_indent(clauses)}\n}}"

    def _pattern(self, pattern: Pattern) -> str:
        parts = list(map(self._pattern, inner(pattern)))
        match pattern:
            case PatternVar():
                return self._define(pattern.var)
            case PatternConstructor():
                fields = f"({', '.join(parts)})" if parts else ""
                return f"{pattern.constructor.name_hint}{fields}"
            case PatternTuple():
                return f"({', '.join(parts)})"
            case PatternWildcard():
                return "_"

    def _constant(self, node: Constant) -> str:
        text = literals.scalar_text(node.data) if node.data.ndim == 0 else None
        return text if text is not None else f"meta[{KEY}][{self.meta.setdefault(node, len(self.meta))}]"

    def _function(self, prefix: str, node: Function) -> Task[str]:
        params = [*map(self._define, node.params), *literals.key_values(node.attrs)]
        result = f"-> {literals.type_text(node.ret_type)} " if node.ret_type is not None else ""
        body = yield self._block(node.body, *self.scopes.opened[node])
        generic = f"[{', '.join(map(str, node.type_params))}]" if node.type_params else ""
        return f"{prefix}{generic}({', '.join(params)}) {result}{body}"

    def _let(self, node: Let) -> Task[str]:
        """Return the text of a chain of lets; the body of each let is a scope that begins after the
        let.
        """
        text = ""
        body: Expr = node
        while isinstance(body, Let) and (body is node or self.scopes.uses[body] <= 1):
            name = self._define(body.var)
            value = yield self._expr(body.value, tail=not isinstance(body.value, Let))
            # the caller writes the lines of the scope of the first let
            if body is not node:
                text += "".join(self.scopes.lines[self.scopes.home[body]])
            text += f"let {name} = {value};\n"
            (scope,) = self.scopes.opened[body]
            body = body.body
        rest: str = yield self._scope(body, scope)
        return text + rest

    def _define(self, var: Var, typed: bool = True) -> str:
        """Return the text that declares a variable, under a unique name by which later uses refer
        to it.
        """
        hint = literals.local_hint(var.name)
        name, number = literals.local_name(hint), self.suffixes[hint]
        while name in self.taken:
            number += 1
            name = literals.local_name(f"{hint}{number}")
        self.suffixes[hint] = number
        self.taken.add(name)
        self.memo[var] = name
        annotation = f": {literals.type_text(var.annotation)}" if var.annotation is not None else ""
        return name + annotation + (_comment(var) if typed or var.span is not None else "")
