# SPDX-License-Identifier: Apache-2.0
"""Emit the schedule of a GPU program as tables that the C runtime interprets, with the dependences
between steps.

Input: a program with a memory plan. Output: for each step, the earlier steps that it must wait for,
and the rows of the tables declared in aotc_cuda.h.

earlier_steps_each_step_waits_for(program)  # [(), (0,), (0,), (1, 2)]
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import Program, Step, View, launch_of
from aotc_codegen.c.kernel_files import PrintedKernels
from aotc_codegen.c.parameter_files import ParameterLayout

#: Memory location of a pointer: kind of storage, index of the input or output, byte offset.
MemoryLocation: TypeAlias = tuple[str, int, int]
_C_MEMORY_KIND_BY_STORAGE_KIND: Final = {"constant": "WEIGHTS", "input": "INPUT", "output": "OUTPUT", "temp": "ARENA"}


@frozen
class ScheduleTables:
    """Rows of the C tables, by the names of the row types without the prefix `aotc_cuda_`."""

    kernel: Sequence[str]
    step: Sequence[str]
    arg: Sequence[str]
    edge: Sequence[int]


def launch_schedule_tables(program: Program, kernels: PrintedKernels, params: ParameterLayout) -> ScheduleTables:
    """Return the schedule of a program whose kernels have the form of `aotc.tir.gpu_launch`."""
    numbers = {kernel.name: k for k, kernel in enumerate(kernels.kernels)}
    place = make_view_locator(program)
    blocks: dict[str, int] = {}
    steps: list[str] = []
    args: list[str] = []
    before: list[int] = []
    for step, needed in zip(program.steps, earlier_steps_each_step_waits_for(program), strict=True):
        launch, name = launch_of(step.kernel), kernels.names[step.kernel]
        assert launch is not None, step.kernel.name
        blocks[name] = launch.block
        counts = [numbers[name], launch.grid, len(args), len(step.args), len(before), len(needed)]
        steps.append(f"{{{', '.join(map(str, counts))}}},")
        args += [_c_initializer_of_kernel_argument(view, place, params) for view in step.args]
        before += needed
    rows = [f'{{"{name}", {blocks[name]}, 0}},' for name in numbers]
    return ScheduleTables(rows, steps, args, before)


def _c_initializer_of_kernel_argument(
    view: View, locate: Callable[[View], MemoryLocation], params: ParameterLayout
) -> str:
    kind, number, offset = locate(view)
    first = params.byte_offset_in_file(view.storage) if kind == "constant" else 0
    return f"{{AOTC_CUDA_{_C_MEMORY_KIND_BY_STORAGE_KIND[kind]}, {number}, {first + offset}}},"


def make_view_locator(program: Program) -> Callable[[View], MemoryLocation]:
    """Return a function that maps a view to its memory location; offsets in constants count from
    the constant's start.
    """
    sides = (program.inputs, program.outputs)
    numbers = {storage: k for side in sides for k, storage in enumerate(side)}

    def locate_view(view: View) -> MemoryLocation:
        storage = view.storage
        first = program.plan.offsets[storage] if storage.kind == "temp" else 0
        return storage.kind, numbers.get(storage, 0), first + view.offset * storage.dtype.itemsize

    return locate_view


def earlier_steps_each_step_waits_for(program: Program) -> list[tuple[int, ...]]:
    """Return for each step the earlier steps that it must wait for, without transitively implied
    ones.

    A step waits for the last writers of the memory that it reads or writes, and for the readers of
    the memory that it writes. Dependences are between bytes of memory, whichever tensors occupy
    them.
    """
    pieces = _MemoryAccessHistory(program)
    waits: list[tuple[int, ...]] = []
    # for each step, the set of all earlier steps that are known to have ended before it, as a bit
    # mask
    ended_steps: list[int] = []
    for number in range(len(program.steps)):
        direct_deps, covered = [], 0
        for other in sorted(pieces.record_step_and_return_dependences(number), reverse=True):
            if not covered >> other & 1:
                direct_deps.append(other)
                covered |= ended_steps[other] | 1 << other
        waits.append(tuple(reversed(direct_deps)))
        ended_steps.append(covered)
    return waits


#: Byte range of an input, output or the arena: memory, first byte, and end (exclusive).
_ByteRange: TypeAlias = tuple[tuple[str, int], int, int]
_MemoryPiece: TypeAlias = tuple[tuple[str, int], int]


class _MemoryAccessHistory:
    """Memory split at every begin and end of a view; records the last writer of each piece and the
    readers since then.
    """

    def __init__(self, program: Program) -> None:
        place = make_view_locator(program)
        self._ranges = [_read_and_written_byte_ranges(step, place) for step in program.steps]
        cuts: dict[tuple[str, int], set[int]] = {}
        for reads, writes in self._ranges:
            for key, begin, end in (*reads, *writes):
                cuts.setdefault(key, set()).update((begin, end))
        self._cuts = {key: sorted(places) for key, places in cuts.items()}
        self._writer: dict[_MemoryPiece, int] = {}
        self._readers: dict[_MemoryPiece, set[int]] = {}

    def record_step_and_return_dependences(self, step_index: int) -> set[int]:
        """Return the earlier steps that must have ended before a step, and record its accesses;
        call it in step order.
        """
        reads, writes = (list(self._memory_pieces_inside_byte_ranges(ranges)) for ranges in self._ranges[step_index])
        needed = {self._writer[piece] for piece in (*reads, *writes) if piece in self._writer}
        for piece in writes:
            needed |= self._readers.pop(piece, set())
            self._writer[piece] = step_index
        for piece in reads:
            self._readers.setdefault(piece, set()).add(step_index)
        return needed - {step_index}

    def _memory_pieces_inside_byte_ranges(self, ranges: Iterable[_ByteRange]) -> Iterator[_MemoryPiece]:
        for key, begin, end in ranges:
            cuts = self._cuts[key]
            for k in range(bisect_left(cuts, begin), bisect_left(cuts, end)):
                yield key, k


def _read_and_written_byte_ranges(
    step: Step, locate: Callable[[View], MemoryLocation]
) -> tuple[list[_ByteRange], list[_ByteRange]]:
    """Return the byte ranges that a step reads and the ranges that it writes, without constants."""
    ranges: tuple[list[_ByteRange], list[_ByteRange]] = [], []
    for k, (view, buffer) in enumerate(zip(step.args, step.kernel.params, strict=True)):
        if view.storage.kind != "constant" and buffer.nbytes:
            kind, number, first = locate(view)
            ranges[k >= len(step.kernel.inputs)].append(((kind, number), first, first + buffer.nbytes))
    return ranges
