# SPDX-License-Identifier: Apache-2.0
"""Collect the problems of all nodes of a model and report them in one error.

Input: the conversions of the nodes, one after another. Output: after the last node, an AotcError
with every problem and its location. Nodes that depend on a node with a problem are skipped.

    problems = Problems("onnx-node")
    for node in nodes:
        with problems.collect_errors_at(Span(source, node=node.name)):
            convert(node)               # raises PoisonedError where an input of it has a problem
    problems.raise_collected_problems()
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.ir import AotcError, Diagnostic, Span, UnboundedDimError, option_text, span_scope
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.relay.frontend.size_operands import unbounded_size_error

_LOG: Final = logging.getLogger(__name__)

#: Python exceptions that a converter may raise on a malformed node; they are reported as problems
#: of that node.
MALFORMED_NODE_EXCEPTIONS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError)


#: Suffixes of diagnostic codes for problems that static shapes would avoid.
_RUNTIME_SHAPE_CODE_SUFFIXES: Final = ("-dynamic", "-runtime-shape")
#: Suffixes of diagnostic codes for problems that can be avoided by cutting the node out of the
#: model.
_CUTTABLE_CODE_SUFFIXES: Final = (*_RUNTIME_SHAPE_CODE_SUFFIXES, "-op", "-unsupported", "-output")
#: Largest number of tensors at which a hint proposes to cut a model.
_MAX_PROPOSED_CUT_TENSORS: Final = 4


class PoisonedError(Exception):
    """Raised on reading a value that is missing because the node that computes it could not be
    converted; that problem is already reported.
    """


@dataclass(slots=True)
class Problems:
    """The problems found in a model so far.

    code         diagnostic code for a node on which a converter raises one of the exceptions MALFORMED_NODE_EXCEPTIONS
    hint         hint for problems with dimensions and shapes that are known only at run time
    diagnostics  the problems, in order
    computed     names of tensors that were converted and that nodes with a problem read: the model
                 can be cut there
    """

    code: str
    hint: str = ""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    computed: dict[str, None] = field(default_factory=dict)

    @contextmanager
    def collect_errors_at(
        self, span: Span | None, note: str = "", malformed_message: Callable[[], str] | None = None
    ) -> Iterator[None]:
        """Return a context manager that records errors raised inside it as problems at `span`, with
        the note `note`, and gives `span` to the nodes built inside. `malformed_message` returns the
        message for a malformed node.

        Raises AotcError if the budget for nodes is exhausted, since every further node would fail
        too.
        """
        notes = (note,) if note else ()
        try:
            with span_scope(span):
                yield
        except (AotcError, UnboundedDimError) as error:
            problem = error if isinstance(error, AotcError) else unbounded_size_error(error.dim)
            for d in problem.with_default_span(span).diagnostics:
                hint = self.hint if d.code.endswith(_RUNTIME_SHAPE_CODE_SUFFIXES) else ""
                self.diagnostics.append(replace(d, notes=(*d.notes, *notes), hint=d.hint or hint))
            if current_budget().remaining_compile_time_budget("compile.max_nodes") <= 0:
                raise
        except PoisonedError:
            pass
        except MALFORMED_NODE_EXCEPTIONS:
            _LOG.debug("conversion of %s failed", span, exc_info=True)
            text = "this operation does not take what it is given" if malformed_message is None else malformed_message()
            self.diagnostics.append(Diagnostic(self.code, text, span, notes))

    def add_problem(self, code: str, text: str, span: Span | None, hint: str = "") -> None:
        """Record a diagnostic (code, message, source location, hint) of a problem in the model."""
        self.diagnostics.append(Diagnostic(code, text, span, hint=hint))

    def raise_collected_problems(self) -> None:
        """Raise AotcError with all problems if there are any; the last one gets a hint that names
        tensors at which the model can be cut.
        """
        if not self.diagnostics:
            return
        *rest, last = dict.fromkeys(self.diagnostics)
        if self.computed and any(d.code.endswith(_CUTTABLE_CODE_SUFFIXES) for d in self.diagnostics):
            names = list(self.computed)[:_MAX_PROPOSED_CUT_TENSORS]
            hint = "compile only the nodes before the unsupported ones: " + option_text(
                "cut_after", names, "aotc.compile"
            )
            last = replace(last, hint=last.hint + "; or " + hint if last.hint else hint)
        raise AotcError.collect([*rest, last])
