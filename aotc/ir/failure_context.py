# SPDX-License-Identifier: Apache-2.0
"""What the compiler was doing when something failed that should not: kept on the exception on its way up.

with blaming(Failure("pass", "FuseOps", module, options=fuse, context=context)):
    ...                                              # an exception that is no AotcError now has `failure_of(error)`
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from aotc.ir.diagnostics import AotcError
from aotc.ir.frozen_dataclass import frozen

_NAME: Final = "aotc_failure"


@frozen
class Failure:
    """A step of the compiler that raised what is no diagnostic.

    stage     "pass" or "kernel"
    name      the pass's, or the kernel's
    program   the module before the pass, or the function that the kernel is of
    options   the pass itself, or the target of the kernel
    context   the context of the pass
    """

    stage: str
    name: str
    program: Any
    options: Any
    context: Any = None


@contextmanager
def blaming(failure: Failure) -> Iterator[None]:
    """Exceptions from the block carry the failure, the innermost if blocks are nested; diagnostics do not."""
    try:
        yield
    except (AotcError, MemoryError):
        raise
    except Exception as error:
        if not hasattr(error, _NAME):
            setattr(error, _NAME, failure)
        raise


@contextmanager
def pardoning() -> Iterator[None]:
    """Exceptions from the block, which is not the compiler's own, are not blamed on what surrounds it."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, _NAME):
            setattr(error, _NAME, None)
        raise


def failure_of(error: BaseException) -> Failure | None:
    """What an exception says of the step that raised it."""
    found = getattr(error, _NAME, None)
    return found if isinstance(found, Failure) else None
