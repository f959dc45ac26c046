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

from aotc.ir import DictAttrs, Op, Span, Task, assert_never, run_recursive_task
from aotc.relay.adt import Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard, TypeData, subpatterns
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, RefCreate, RefRead
from aotc.relay.graph_api import BlockAssignment, IRModule, RefWrite, ScopeBlock, Tuple, TupleGetItem, Var
from aotc.relay.text import literal_printer
from aotc.relay.text.literal_printer import METADATA_CONSTANT_KEY, constants_to_metadata_json
from aotc.relay.visitor import children, depth_first_post_order, node_kind, post_order

OMITTED_METADATA_NOTE: Final = """
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
    body, constants = print_without_metadata(x, annotate)
    if not constants:
        return body
    if not show_meta_data:
        return f"{body}{OMITTED_METADATA_NOTE}"
    return f"{body}\n#[metadata]\n{constants_to_metadata_json([constant.data for constant in constants])}"


def print_without_metadata(
    x: IRModule | Expr, annotate: Callable[[Expr], str] | None = None
) -> tuple[str, list[Constant]]:
    """Print a program: return its text without the metadata section, and the constants that the
    text refers to by index.
    """
    printer = _Printer(annotate)
    body = f'#[version = "{literal_printer.TEXT_FORMAT_VERSION}"]\n{printer.program_text(x)}'
    return body, list(printer.meta)


def to_text(x: IRModule | Expr) -> str:
    """Return the text of a program for display, without version line and constants; it cannot
    always be parsed.
    """
    printer = _Printer()
    body = printer.program_text(x)
    return f"{body}\n" if printer.meta else body


_INDENT_BEGIN_MARK: Final = "\x1e"
#: Marks of the begin and end of indented text, resolved by `_resolve_indentation_marks`.  They cannot occur in the
#: printed text: strings escape control characters, and spans drop them.
_INDENT_END_MARK: Final = "\x1f"


def _mark_as_indented(text: str) -> str:
    return f"{_INDENT_BEGIN_MARK}{text}{_INDENT_END_MARK}"


def _resolve_indentation_marks(text: str) -> str:
    """Return the text with its lines indented by nesting depth; one pass over the text, since
    blocks may nest deeply.
    """
    depth = {_INDENT_BEGIN_MARK: 1, _INDENT_END_MARK: -1}
    level = 0
    pieces = []
    for piece in re.split(f"([\n{_INDENT_BEGIN_MARK}{_INDENT_END_MARK}])", text):
        level += depth.get(piece, 0)
        if piece not in depth:
            pieces.append("\n" + "  " * level if piece == "\n" else piece)
    return "".join(pieces)


def _span_comment_text(span: Span) -> str:
    """Return a span as `source:line:column`, with comment delimiters escaped so that it fits in a
    comment.
    """
    text = f"{span.node or span.source}:{span.line}:{span.column}"
    return " ".join(text.replace("*/", "*\\/").replace("/*", "/\\*").split())


def _type_and_span_comment(node: Expr, shows_all_types: bool = True) -> str:
    """Return a comment with the type and span of a node as far as known, or "".

    In an untyped program (`shows_all_types` False) the types of constants and tuples are omitted.
    """
    parts = []
    if node.checked_type is not None and (shows_all_types or not isinstance(node, (Constant, Tuple))):
        parts.append(f"ty={literal_printer.type_text(node.checked_type)}".replace("*/", "*\\/"))
    if node.span is not None:
        parts.append(f"span={_span_comment_text(node.span)}")
    return f" /* {' '.join(parts)} */" if parts else ""


def _type_definition_text(data: TypeData) -> str:
    """Return the text of the definition of an algebraic data type."""
    generic = f"[{', '.join(map(str, data.type_vars))}]" if data.type_vars else ""
    if not data.constructors:
        return f"extern type {data.header}{generic}\n"
    rows = ""
    for c in data.constructors:
        rows += (
            f"  {c.name_hint}"
            + (f"({', '.join(map(literal_printer.type_text, c.inputs))})" if c.inputs else "")
            + ",\n"
        )
    return f"type {data.header}{generic} {{\n{rows}}}\n"


class _BlockAssignment:
    """Assigns each node of an expression to the innermost block that contains all of its uses."""

    def __init__(self, root: Expr) -> None:
        order = list(post_order(root))
        blocks = BlockAssignment(order, as_text=True)
        self.home, self.opened = blocks.home, blocks.inner
        self.uses = Counter(child for node in order for child in children(node))
        self.lines: defaultdict[ScopeBlock, list[str]] = defaultdict(list)  # the lines written to each block so far

    def append_line_to_block_of(self, node: Expr, line: str) -> None:
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
        self.scopes = _BlockAssignment(Tuple(()))
        self.used_names: set[str] = set()
        self.suffixes: Counter[str] = Counter()
        self.temps = 0
        self.typed = False  # True if types have been inferred for the function being printed

    def program_text(self, x: IRModule | Expr) -> str:
        """Return the text of a module or expression without the metadata section."""
        if not isinstance(x, IRModule):
            self._reset_for_function(x)
            return _resolve_indentation_marks(
                run_recursive_task(self._definitions_and_result_text(x, self.scopes.home[x]))
            )
        parts = [self._module_attributes_text(x.attrs)] if x.attrs else []
        parts += map(_type_definition_text, sorted(x.type_definitions.values(), key=lambda data: data.header.name))
        for name in sorted(x):
            self._reset_for_function(x[name])
            parts.append(
                _resolve_indentation_marks(
                    run_recursive_task(
                        self._function_text(f"def {literal_printer.global_function_name_text(name)}", x[name])
                    )
                )
                + "\n"
            )
        return "\n".join(parts)

    def _reset_for_function(self, root: Expr) -> None:
        """Reset the state for another function and assign the function's nodes to blocks."""
        self.raw.clear()
        self.memo.clear()
        self.scopes = _BlockAssignment(root)
        self.typed = root.checked_type is not None and not isinstance(root, Constant)

    @staticmethod
    def _module_attributes_text(attrs: Mapping[str, Any]) -> str:
        rows = "".join(
            f"  {literal_printer.quote_string(key)} = {literal_printer.attribute_value_text(value)}\n"
            for key, value in attrs.items()
        )
        return f"attributes {{\n{rows}}}\n"

    # Scopes

    def _definitions_and_result_text(self, node: Expr, scope: ScopeBlock) -> Task[str]:
        """Return the text of a block: the lines that define the block's named nodes, then the text
        of `node`.
        """
        text: str = yield self._text_referring_to_root_after_operands(node, is_block_result=True)
        return "".join(self.scopes.lines[scope]) + text

    def _braced_block_text(self, node: Expr, scope: ScopeBlock) -> Task[str]:
        text: str = yield self._definitions_and_result_text(node, scope)
        return "{" + _mark_as_indented(f"\n{text}") + "\n}"

    def _text_referring_to_root_after_operands(self, root: Expr, is_block_result: bool = False) -> Task[str]:
        """Return the text by which `root` is referred to in the current scope, after writing all
        its operands.
        """
        for node in depth_first_post_order([root], self._children_to_print_before_node):
            if self._has_printed_text(node):
                continue
            if isinstance(node, (Function, If, Let, Match)):
                self.raw[node] = yield self._text_of_node_that_opens_blocks(node)
            else:
                self.raw[node] = self._text_of_node_that_opens_no_block(node)
        return self._reference_text_after_writing_definition(root, is_block_result)

    def _has_printed_text(self, node: Expr) -> bool:
        return node in self.raw or node in self.memo

    def _children_to_print_before_node(self, node: Expr) -> tuple[Expr, ...]:
        """Return the children of a node that are written before it in its block; none for nodes
        that open blocks.
        """
        flat = not isinstance(node, (Function, If, Let, Match)) and not self._has_printed_text(node)
        return children(node) if flat else ()

    def _reference_text_after_writing_definition(self, node: Expr, is_block_result: bool = False) -> str:
        """Return the text by which a visited node is referred to; write a line `%0 = ...;` first if
        it is not inlined.
        """
        if isinstance(node, Var) and node in self.free:
            self.free.remove(node)
            self.scopes.append_line_to_block_of(node, f"free_var {self.raw[node]};")
        if node in self.memo:
            return self.memo[node]
        inline = isinstance(node, (GlobalVar, Op, Constant, Constructor)) or (
            is_block_result and self.scopes.uses[node] <= 1
        )
        text = self.raw[node]
        if isinstance(node, Let) and not inline:
            text = "(" + _mark_as_indented(f"\n{text}") + "\n)"
        if not isinstance(node, (GlobalVar, Op, Let, If, Match, Constructor)):
            text += self._annotation_comment(node)
        if not inline:
            name = f"%{self.temps}"
            self.temps += 1
            self.scopes.append_line_to_block_of(node, f"{name} = {text};")
            text = name
        self.memo[node] = text
        return text

    def _annotation_comment(self, node: Expr) -> str:
        if self.annotate is None:
            return _type_and_span_comment(node, self.typed)
        note = self.annotate(node).replace("*/", "*\\/")
        return f" /* {note} */" if note else ""

    # Nodes

    def _text_of_node_that_opens_no_block(self, node: Expr) -> str:
        """Return the text of a node that opens no block and whose operands have been visited."""
        match node:
            case Call():
                items = [
                    *map(self._reference_text_after_writing_definition, node.args),
                    *literal_printer.attribute_texts(node.attrs.non_default_fields()),
                ]
                if isinstance(node.attrs, DictAttrs):
                    items += literal_printer.attribute_texts({"attrs_type_key": node.attrs.type_key})
                bare = isinstance(node.op, Constructor) and not items
                return self._reference_text_after_writing_definition(node.op) + (
                    "" if bare else f"({', '.join(items)})"
                )
            case Tuple():
                fields = list(map(self._reference_text_after_writing_definition, node.fields))
                return f"({fields[0]},)" if len(fields) == 1 else f"({', '.join(fields)})"
            case TupleGetItem():
                return f"{self._reference_text_after_writing_definition(node.tuple_value)}.{node.index}"
            case Constant():
                return self._constant_text(node)
            case GlobalVar():
                return literal_printer.global_function_name_text(node.name)
            case Op():
                return node.name
            case Constructor():
                return node.name_hint
            case RefCreate() | RefRead() | RefWrite():
                word = node_kind(node).name.replace("ref_create", "ref")
                return f"{word}({', '.join(map(self._reference_text_after_writing_definition, children(node)))})"
            case Var():  # bound variables are known before they are used
                self.free.add(node)
                return self._variable_declaration_text(node, shows_type=False)
            case _:
                raise AssertionError(f"{type(node).__name__} opens scopes")

    def _text_of_node_that_opens_blocks(self, node: Function | If | Let | Match) -> Task[str]:
        """Return the text of a node that opens blocks: function, if, let or match."""
        text: str
        match node:
            case Function():
                text = yield self._function_text("fn ", node)
            case Let():
                text = yield self._let_chain_text(node)
            case If():
                cond = yield self._text_referring_to_root_after_operands(node.cond)
                first, second = self.scopes.opened[node]
                yes = yield self._braced_block_text(node.true_branch, first)
                no = yield self._braced_block_text(node.false_branch, second)
                text = f"if ({cond}) {yes} else {no}"
            case Match():
                text = yield self._match_text(node)
            case _:
                assert_never(node)
        return text

    def _match_text(self, node: Match) -> Task[str]:
        data = yield self._text_referring_to_root_after_operands(node.data)
        clauses = ""
        for clause, scope in zip(node.clauses, self.scopes.opened[node], strict=True):
            pattern = self._pattern_text(clause.lhs)
            clauses += f"\n{pattern} => {(yield self._braced_block_text(clause.rhs, scope))},"
        return f"match{'' if node.complete else '?'} ({data}) {{{_mark_as_indented(clauses)}\n}}"

    def _pattern_text(self, pattern: Pattern) -> str:
        parts = list(map(self._pattern_text, subpatterns(pattern)))
        match pattern:
            case PatternVar():
                return self._variable_declaration_text(pattern.var)
            case PatternConstructor():
                fields = f"({', '.join(parts)})" if parts else ""
                return f"{pattern.constructor.name_hint}{fields}"
            case PatternTuple():
                return f"({', '.join(parts)})"
            case PatternWildcard():
                return "_"

    def _constant_text(self, node: Constant) -> str:
        text = literal_printer.scalar_literal_or_none(node.data) if node.data.ndim == 0 else None
        return (
            text if text is not None else f"meta[{METADATA_CONSTANT_KEY}][{self.meta.setdefault(node, len(self.meta))}]"
        )

    def _function_text(self, prefix: str, node: Function) -> Task[str]:
        params = [*map(self._variable_declaration_text, node.params), *literal_printer.attribute_texts(node.attrs)]
        result = f"-> {literal_printer.type_text(node.ret_type)} " if node.ret_type is not None else ""
        body = yield self._braced_block_text(node.body, *self.scopes.opened[node])
        generic = f"[{', '.join(map(str, node.type_params))}]" if node.type_params else ""
        return f"{prefix}{generic}({', '.join(params)}) {result}{body}"

    def _let_chain_text(self, node: Let) -> Task[str]:
        """Return the text of a chain of lets; the body of each let is a scope that begins after the
        let.
        """
        text = ""
        body: Expr = node
        while isinstance(body, Let) and (body is node or self.scopes.uses[body] <= 1):
            name = self._variable_declaration_text(body.var)
            value = yield self._text_referring_to_root_after_operands(
                body.value, is_block_result=not isinstance(body.value, Let)
            )
            # the caller writes the lines of the scope of the first let
            if body is not node:
                text += "".join(self.scopes.lines[self.scopes.home[body]])
            text += f"let {name} = {value};\n"
            (scope,) = self.scopes.opened[body]
            body = body.body
        rest: str = yield self._definitions_and_result_text(body, scope)
        return text + rest

    def _variable_declaration_text(self, var: Var, shows_type: bool = True) -> str:
        """Return the text that declares a variable, under a unique name by which later uses refer
        to it.
        """
        hint = literal_printer.variable_name_with_v_before_nonletter(var.name)
        name, number = literal_printer.local_variable_name_text(hint), self.suffixes[hint]
        while name in self.used_names:
            number += 1
            name = literal_printer.local_variable_name_text(f"{hint}{number}")
        self.suffixes[hint] = number
        self.used_names.add(name)
        self.memo[var] = name
        annotation = f": {literal_printer.type_text(var.annotation)}" if var.annotation is not None else ""
        return name + annotation + (_type_and_span_comment(var) if shows_type or var.span is not None else "")
