# SPDX-License-Identifier: Apache-2.0
"""Record on an unexpected exception which pass or kernel the compiler was processing.

with attach_failure_to_exceptions(Failure("pass", "FuseOps", module, options=fuse, context=context)):
    ...                                              # an exception that is no AotcError now has
                                                     `failure_attached_to(error)`
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from aotc.ir.diagnostics import AotcError
from aotc.ir.frozen_dataclass import frozen

_FAILURE_ATTRIBUTE_NAME: Final = "aotc_failure"


@frozen
class Failure:
    """A pass or kernel that raised an unexpected exception (one that is not an AotcError).

    stage     "pass" or "kernel"
    name      of the pass or kernel
    program   the module before the pass, or the function that the kernel implements
    options   the pass object, or the target of the kernel
    context   the pass context
    """

    stage: str
    name: str
    program: Any
    options: Any
    context: Any = None


@contextmanager
def attach_failure_to_exceptions(failure: Failure) -> Iterator[None]:
    """Context manager: attach `failure` to unexpected exceptions from the block.

    Exceptions that already carry a failure, AotcError and MemoryError are not changed.
    """
    try:
        yield
    except (AotcError, MemoryError):
        raise
    except Exception as error:
        if not hasattr(error, _FAILURE_ATTRIBUTE_NAME):
            setattr(error, _FAILURE_ATTRIBUTE_NAME, failure)
        raise


@contextmanager
def exempt_from_failure_attribution() -> Iterator[None]:
    """Context manager for calls of user code: exceptions from the block are not attributed to an
    enclosing `attach_failure_to_exceptions`.
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, _FAILURE_ATTRIBUTE_NAME):
            setattr(error, _FAILURE_ATTRIBUTE_NAME, None)
        raise


def failure_attached_to(error: BaseException) -> Failure | None:
    """Return which pass or kernel an exception was attributed to by `attach_failure_to_exceptions`;
    None if to none.
    """
    failure = getattr(error, _FAILURE_ATTRIBUTE_NAME, None)
    return failure if isinstance(failure, Failure) else None
