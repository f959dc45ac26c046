# SPDX-License-Identifier: Apache-2.0
"""All problems of a model in one error: what walks over its nodes
share.

In: the conversion of one node after another.  Out: an AotcError
with every problem and its place, once the walk is over; what
depends on a node that has a problem is passed over.

    problems = Problems("onnx-node")
    for node in nodes:
        with problems.at(Span(source, node=node.name)):
            convert(node)               # raises PoisonedError where an input of it has a problem
    problems.check()
"""

import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.ir import AotcError, Diagnostic, Span, span_scope
from aotc.ir.compile_time_limits import budget

_LOG: Final = logging.getLogger(__name__)

#: What a converter may stumble over where a node is malformed.
INVALID: Final = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError)


#: Ends of codes of problems that static shapes would solve.
_AT_RUN_TIME: Final = ("-dynamic", "-runtime-shape")
#: Ends of codes of problems that are solved by leaving the node out.
_UNSUPPORTED: Final = (*_AT_RUN_TIME, "-op", "-unsupported", "-output")
#: Tensors that a hint names.
_CUTS: Final = 4


class PoisonedError(Exception):
    """A value is missing because what computes it has a problem
    that is reported already.
    """


@dataclass(slots=True)
class Problems:
    """What is wrong with a model.

    code   of the problem of a node at which a converter stumbles
    hint   for problems with dimensions and shapes that are only known at run time
    computed   names of tensors that could be converted and that nodes with a problem read: the model can be cut there
    """

    code: str
    hint: str = ""
    found: list[Diagnostic] = field(default_factory=list)
    computed: dict[str, None] = field(default_factory=dict)

    @contextmanager
    def at(self, span: Span | None, note: str = "", unfit: Callable[[], str] | None = None) -> Iterator[None]:
        """Record what goes wrong inside; nodes built inside come
        from `span`.

        Raises AotcError where the budget for nodes is spent: every
        further node would be a problem.
        """
        notes = (note,) if note else ()
        try:
            with span_scope(span):
                yield
        except AotcError as error:
            for d in error.at(span).diagnostics:
                hint = self.hint if d.code.endswith(_AT_RUN_TIME) else ""
                self.found.append(replace(d, notes=(*d.notes, *notes), hint=d.hint or hint))
            if budget().left("compile.max_nodes") <= 0:
                raise
        except PoisonedError:
            pass
        except INVALID:
            _LOG.debug("conversion of %s failed", span, exc_info=True)
            text = "this operation does not take what it is given" if unfit is None else unfit()
            self.found.append(Diagnostic(self.code, text, span, notes))

    def add(self, code: str, text: str, span: Span | None, hint: str = "") -> None:
        """Record a problem."""
        self.found.append(Diagnostic(code, text, span, hint=hint))

    def check(self) -> None:
        """AotcError with all problems, if there are any; the last one names tensors at which the model can be cut."""
        if not self.found:
            return
        *others, last = dict.fromkeys(self.found)
        if self.computed and any(d.code.endswith(_UNSUPPORTED) for d in self.found):
            names = " ".join(f"--cut-after {shlex.quote(name)}" for name in list(self.computed)[:_CUTS])
            hint = f"compile the part in front of what is not supported: {names}"
            last = replace(last, hint=f"{last.hint}; or {hint}" if last.hint else hint)
        raise AotcError.collect([*others, last])
