# SPDX-License-Identifier: Apache-2.0
"""The budget of memory of the results that judge a compiled model, and the error where it does not do.

budget = MemoryBudget(2 << 30)
budget.hold(array)                       # counts each buffer once, however many views of it are held
budget.require_fits("node 'conv' (Conv)", more=3 << 30)
budget.release(array)
"""

from collections.abc import Iterator
from typing import Any, Final

from aotc.ir import AotcError, tensor_types
from aotc.relay.graph_api import Call

#: What a result in double precision may take of memory unless another budget is given: 2 GiB.
DEFAULT_MEMORY_BYTES: Final = 2 << 30
#: How many arrays as large as its results an operator makes at the same time, the results among them.
TEMPORARY_RESULTS: Final = 4


def in_units(count: int) -> str:
    """A number of bytes for a reader: "1.5 GiB"."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def memory_error(where: str, needed: int, budget: int, purpose: str = "the result in double precision") -> AotcError:
    """The error (code "memory") that a result takes more bytes than its budget."""
    text = f"{purpose} needs about {in_units(needed)} at {where}: the budget is {in_units(budget)}"
    return AotcError("memory", text, hint="raise the memory budget (--memory), for instance to 4G")


class MemoryBudget:
    """Counts the bytes of the buffers that an evaluation holds: arrays, tensors of PyTorch, and sequences of them.

    limit     the most bytes
    purpose   what is evaluated, for the error
    """

    def __init__(self, limit: int, purpose: str = "the result in double precision") -> None:
        self._limit, self._purpose = limit, purpose
        self._counts: dict[int, int] = {}
        self.held = 0

    def hold(self, value: Any) -> None:
        """Count the buffers of a value that are not held yet."""
        for key, size in _buffers(value):
            self._counts[key] = self._counts.get(key, 0) + 1
            self.held += size if self._counts[key] == 1 else 0

    def release(self, value: Any) -> None:
        """Undo one `hold` of a value."""
        for key, size in _buffers(value):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                self.held -= size

    def require_fits(self, where: str, more: int) -> None:
        """Raise AotcError (code "memory") unless as many bytes can be held besides; `where` names the place."""
        if self.held + more > self._limit:
            raise memory_error(where, self.held + more, self._limit, self._purpose)

    def before(self, call: Call) -> None:
        """Raise AotcError (code "memory") unless a call of an operator in a graph can be evaluated."""
        types = tensor_types(call.checked_type) if call.checked_type is not None else []
        sizes = (ty.numel * ty.dtype.itemsize for ty in types if ty.is_static)
        span = call.span or call.op
        self.require_fits(f"operator {span}", TEMPORARY_RESULTS * sum(sizes))


def _buffers(value: Any) -> Iterator[tuple[int, int]]:
    """The buffers of a value: a number that identifies each, and its bytes."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _buffers(item)
    elif hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif hasattr(value, "nbytes"):
        while getattr(value, "base", None) is not None and hasattr(value.base, "nbytes"):
            value = value.base
        yield id(value), int(value.nbytes)
