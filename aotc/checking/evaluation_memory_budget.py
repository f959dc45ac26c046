# SPDX-License-Identifier: Apache-2.0
"""Memory budget of the evaluations that compiled models are compared with, and the error that is
raised if it is exceeded.

    budget = MemoryBudget(2 << 30)
    budget.add_buffers_of_held_value(array)     # counts each buffer once, however many views of it are held
    budget.require_bytes_fit_in_memory_budget("node 'conv' (Conv)", additional_bytes=3 << 30)
    budget.remove_buffers_of_released_value(array)
"""

from collections.abc import Iterator
from typing import Any, Final

from aotc.ir import AotcError, option_text, tensor_types
from aotc.relay.graph_api import Call

#: Largest number of bytes that a float64 evaluation may take unless another budget is given: 2
#: GiB.
DEFAULT_MEMORY_BYTES: Final = 2 << 30
#: Estimated memory of the evaluation of an operator, in multiples of the size of its results,
#: which are included.
EVALUATION_BYTES_PER_RESULT_BYTE: Final = 4


def format_byte_count(byte_count: int) -> str:
    """Return a number of bytes as text in GiB or MiB: "1.5 GiB"."""
    return f"{byte_count / (1 << 30):.1f} GiB" if byte_count >= 1 << 30 else f"{byte_count / (1 << 20):.1f} MiB"


def memory_budget_exceeded_error(
    node_or_tensor: str, needed_bytes: int, budget_bytes: int, purpose: str = "the result in double precision"
) -> AotcError:
    """Return the AotcError (code "memory") for an evaluation that needs more bytes than its budget.

    node_or_tensor    the node or tensor that exceeds the budget
    needed_bytes      bytes that are needed
    budget_bytes      bytes that are allowed
    purpose           the evaluation that is refused
    """
    text = (
        f"{purpose} needs about {format_byte_count(needed_bytes)} at "
        f"{node_or_tensor}: the budget is {format_byte_count(budget_bytes)}"
    )
    return AotcError("memory", text, hint="raise the memory budget, for instance: " + option_text("memory", 4 << 30))


class MemoryBudget:
    """Count of the bytes of the buffers that an evaluation holds: numpy arrays, PyTorch tensors,
    and sequences of them.

    limit     largest number of bytes
    purpose   name of the evaluation, for the error
    held_bytes      number of bytes that are held now
    """

    def __init__(self, limit: int, purpose: str = "the result in double precision") -> None:
        self._limit, self._purpose = limit, purpose
        self._counts: dict[int, int] = {}
        self.held_bytes = 0

    def add_buffers_of_held_value(self, value: Any) -> None:
        """Count the buffers of a value, each buffer once even if several held values share it."""
        for key, size in _buffer_identities_and_sizes(value):
            self._counts[key] = self._counts.get(key, 0) + 1
            self.held_bytes += size if self._counts[key] == 1 else 0

    def remove_buffers_of_released_value(self, value: Any) -> None:
        """Undo one `add_buffers_of_held_value` of a value; a buffer that no held value uses is no
        longer counted.
        """
        for key, size in _buffer_identities_and_sizes(value):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                self.held_bytes -= size

    def require_bytes_fit_in_memory_budget(self, node_or_tensor: str, additional_bytes: int) -> None:
        """Raise AotcError (code "memory") unless `additional_bytes` bytes fit in the budget in
        addition to those held; `node_or_tensor` names the node or tensor in the error.
        """
        if self.held_bytes + additional_bytes > self._limit:
            raise memory_budget_exceeded_error(
                node_or_tensor, self.held_bytes + additional_bytes, self._limit, self._purpose
            )

    def check_before_op_call(self, call: Call) -> None:
        """Raise AotcError (code "memory") unless the results and temporary arrays of an operator
        call in a graph fit in the budget.
        """
        types = tensor_types(call.checked_type) if call.checked_type is not None else []
        sizes = (ty.numel * ty.dtype.itemsize for ty in types if ty.is_static)
        span = call.span or call.op
        self.require_bytes_fit_in_memory_budget(f"operator {span}", EVALUATION_BYTES_PER_RESULT_BYTE * sum(sizes))


def _buffer_identities_and_sizes(value: Any) -> Iterator[tuple[int, int]]:
    """Yield the buffers of an array, a tensor or a nested sequence of them: an integer that
    identifies the buffer, and its size in bytes.
    """
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _buffer_identities_and_sizes(item)
    elif hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif hasattr(value, "nbytes"):
        while getattr(value, "base", None) is not None and hasattr(value.base, "nbytes"):
            value = value.base
        yield id(value), int(value.nbytes)
