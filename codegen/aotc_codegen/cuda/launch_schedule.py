# SPDX-License-Identifier: Apache-2.0
"""Emit the schedule of a GPU program as tables that the C runtime interprets, with the dependences
between steps.

Input: a program with a memory plan. Output: for each step, the earlier steps that it must wait for,
and the rows of the tables declared in aotc_cuda.h.

earlier_steps_each_step_waits_for(program)  # [(), (0,), (0,), (1, 2)]
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import Program, Step, View, launch_of
from aotc.tir.plan.program_nodes import steps_in
from aotc.tir.plan.size_checks import value_of_dim
from aotc_codegen.c.kernel_files import PrintedKernels
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.c.state_block import StateLayout

#: Memory location of a pointer: kind of storage, index of the input, output or state tensor, byte offset.
MemoryLocation: TypeAlias = tuple[str, int, int]
_C_MEMORY_KIND_BY_STORAGE_KIND: Final = {"constant": "WEIGHTS", "input": "INPUT", "output": "OUTPUT", "temp": "ARENA"}


@frozen
class ScheduleTables:
    """Rows of the C tables, by the names of the row types without the prefix `aotc_cuda_`.

    tensor_bytes    for each tier, the bytes of the inputs and outputs; as `tier`, empty for a program without tiers
    """

    kernel: Sequence[str]
    step: Sequence[str]
    arg: Sequence[str]
    edge: Sequence[int]
    tier: Sequence[str]
    tensor_bytes: Sequence[int]


def launch_schedule_tables(
    program: Program, kernels: PrintedKernels, params: ParameterLayout, state: StateLayout | None = None
) -> ScheduleTables:
    """Return the schedule of a program whose kernels have the form of `aotc.tir.gpu_launch`.

    state    layout of the block of state, which is the last input; None for a program without state
    """
    begins = [] if state is None else [member.offset for member in state.members]

    def c_argument(view: View) -> str:
        kind, number, offset = place(view)
        if kind == "state":
            return f"{{AOTC_CUDA_INPUT, {len(program.inputs)}, {begins[number] + offset}}},"
        offset += params.byte_offset_in_file(view.storage) if kind == "constant" else 0
        return f"{{AOTC_CUDA_{_C_MEMORY_KIND_BY_STORAGE_KIND[kind]}, {number}, {offset}}},"

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
        args += map(c_argument, step.args)
        before += needed
    tiers, tensor_bytes = _tier_rows(program)
    rows = [f'{{"{name}", {blocks[name]}, 0}},' for name in numbers]
    return ScheduleTables(rows, steps, args, before, tiers, tensor_bytes)


def _tier_rows(program: Program) -> tuple[list[str], list[int]]:
    """Return the rows of the tiers of a program, each of one size, and the bytes of all tensors in each of them."""
    rows: list[str] = []
    tensor_bytes: list[int] = []
    first = 0
    for tier in program.tiers:
        symbols = program.symbols_of_sizes({name: r.least for name, r in tier.sizes.items()})
        count = len(tuple(steps_in(tier.body)))
        rows.append(f"{{{first}, {count}, tensor_bytes + {len(tensor_bytes)}}},")
        inputs, outputs = (
            [prod(value_of_dim(d, symbols) for d in s.run_time_shape) * s.dtype.itemsize for s in side]
            for side in (program.inputs, program.outputs)
        )
        # the array of sizes, which is an input of generic calls, is not for the device
        tensor_bytes += [*inputs, 0, *outputs]
        first += count
    return rows, tensor_bytes


def make_view_locator(program: Program) -> Callable[[View], MemoryLocation]:
    """Return a function that maps a view to its memory location; offsets in constants count from
    the constant's start, and those in a tensor of the state from its start.
    """
    sides = (program.inputs, program.outputs, [tensor.past for tensor in program.state])
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
    them. A step of a tier waits for steps of this tier only, as no others run.
    """
    waits: list[tuple[int, ...]] = []
    for steps in [tuple(steps_in(tier.body)) for tier in program.tiers] or [program.steps]:
        first = len(waits)
        waits += [tuple(first + k for k in numbers) for numbers in _waits_in_sequence(program, steps)]
    return waits


def _waits_in_sequence(program: Program, steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """Return what `earlier_steps_each_step_waits_for` does for some of the steps, numbered from 0."""
    pieces = _MemoryAccessHistory(program, steps)
    waits: list[tuple[int, ...]] = []
    # for each step, the set of all earlier steps that are known to have ended before it, as a bit
    # mask
    ended_steps: list[int] = []
    for number in range(len(steps)):
        direct_deps, covered = [], 0
        for other in sorted(pieces.record_step_and_return_dependences(number), reverse=True):
            if not covered >> other & 1:
                direct_deps.append(other)
                covered |= ended_steps[other] | 1 << other
        waits.append(tuple(reversed(direct_deps)))
        ended_steps.append(covered)
    return waits


#: Byte range of an input, output, state tensor or the arena: memory, first byte, and end (exclusive).
_ByteRange: TypeAlias = tuple[tuple[str, int], int, int]
_MemoryPiece: TypeAlias = tuple[tuple[str, int], int]


class _MemoryAccessHistory:
    """Memory split at every begin and end of a view; records the last writer of each piece and the
    readers since then.
    """

    def __init__(self, program: Program, steps: Sequence[Step]) -> None:
        place = make_view_locator(program)
        self._ranges = [_read_and_written_byte_ranges(step, place) for step in steps]
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
