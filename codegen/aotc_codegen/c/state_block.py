# SPDX-License-Identifier: Apache-2.0
"""Lay out the block of memory in which a model keeps its state between runs, and print the C
expressions that address it.

layout = state_block_layout([program])
layout.bytes, layout.alignment
layout.address(program, storage)      # "state + 64", or an expression with the copy that runs read

The block has no pointers: copies of its bytes are states of their own. It begins with words of 32
bits: a hash of the model and of the layout, the length of tensors that grow, if there are any, and bits
which say where the contents of tensors with two copies are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, frozen, option_text
from aotc.tir import Program, StateTensor, Storage, align_up
from aotc_codegen.c.c_identifiers import escape_for_c_comment, escape_for_c_string
from aotc_codegen.c.template_rendering import render_template

#: Number of words of 32 bits of the hash at the beginning of the block.
HASH_WORDS: Final = 2
BITS_PER_WORD: Final = 32
_BYTES_PER_LINE: Final = 16


@frozen(eq=False)
class StateMember:
    """Tensor in the block of state.

    offset    bytes from the beginning of the block
    bit       number of the bit that says which of two copies runs read; None for a single copy
    grows     True for a tensor that becomes longer in each run
    """

    name: str
    type: str
    offset: int
    nbytes: int
    bit: int | None
    initial: np.ndarray[Any, Any] | None
    grows: bool = False

    @property
    def initial_bytes(self) -> str:
        """C initializer of the bytes that the tensor has before the first run; "" if all are zero.

        A negative zero of a float has a byte that is not zero.
        """
        data = b"" if self.initial is None else np.ascontiguousarray(self.initial).tobytes()
        if not any(data):
            return ""
        lines = (data[k : k + _BYTES_PER_LINE] for k in range(0, len(data), _BYTES_PER_LINE))
        return "{\n" + "".join(f"    {', '.join(map(str, line))},\n" for line in lines) + "}"


@frozen
class StateLength:
    """Length of the tensors that grow, for templates.

    name        name of the size that it is, as a C string without its quotes
    capacity    largest length
    """

    name: str
    capacity: int


@frozen(eq=False)
class StateLayout:
    """Layout of a model's block of state, common to the programs of all instruction sets.

    words     words of 32 bits at the beginning: hash, length and bits
    hash      hexadecimal digits of the hash of the model and of the layout
    length    length of the tensors that grow; None if there are none
    """

    members: tuple[StateMember, ...]
    bytes: int
    alignment: int
    words: int
    hash: str
    length: StateLength | None = None

    @property
    def growing(self) -> list[StateLength]:
        """The length in a list, over which templates loop; empty if no tensor grows."""
        return [] if self.length is None else [self.length]

    @property
    def truncations(self) -> list[StateLength]:
        """The length in a list, over which templates loop, if the state can be truncated because all of its
        tensors grow; empty otherwise.
        """
        return self.growing if all(member.grows for member in self.members) else []

    @property
    def hash_and_length_words(self) -> int:
        """Number of words in front of the bits."""
        return HASH_WORDS + len(self.growing)

    @property
    def bit_offset(self) -> int:
        """Byte of the block at which the bits begin."""
        return 4 * self.hash_and_length_words

    @property
    def hash_words(self) -> str:
        """C initializer of the words of the hash."""
        digits = 8
        words = (self.hash[k : k + digits] for k in range(0, HASH_WORDS * digits, digits))
        return "{" + ", ".join(f"0x{word}u" for word in words) + "}"

    @property
    def hash_bytes(self) -> int:
        """Number of bytes of the hash at the beginning of the block."""
        return 4 * HASH_WORDS

    @property
    def bit_words(self) -> int:
        """Number of words with bits of tensors with two copies; 0 if there are none."""
        return self.words - self.hash_and_length_words

    @property
    def initial_arrays(self) -> list[str]:
        """C definitions of the contents with bytes that are not zero before the first run."""
        rows = [(k, member.initial_bytes) for k, member in enumerate(self.members)]
        return [f"static const unsigned char state_{k}[] = {text};" for k, text in rows if text]

    @property
    def initial_copies(self) -> list[str]:
        """C statements that copy these contents to the block `bytes`."""
        rows = [(k, member) for k, member in enumerate(self.members) if member.initial_bytes]
        return [f"memcpy(bytes + {member.offset}, state_{k}, sizeof state_{k});" for k, member in rows]

    @property
    def comment(self) -> str:
        """Names and types of the tensors, as text for a comment."""
        return ", ".join(f"{escape_for_c_comment(m.name)} {m.type}" for m in self.members)

    @property
    def metadata_entry(self) -> dict[str, Any]:
        """Entry of the state in the metadata."""
        rows = [
            {"name": m.name, "type": m.type, "offset": m.offset, "bytes": m.nbytes, "copies": 1 if m.bit is None else 2}
            for m in self.members
        ]
        growing = {"capacity": length.capacity} if (length := self.length) is not None else {}
        return {"bytes": self.bytes, "alignment": self.alignment, "hash": self.hash, **growing, "tensors": rows}

    def address(self, program: Program, storage: Storage) -> str:
        """Return a C expression for the address of a storage of kind "state" in the block."""
        tensor, member = next(
            (t, m) for t, m in zip(program.state, self.members, strict=True) if storage in (t.past, t.present)
        )
        if member.bit is None:
            return f"state + {member.offset}"
        copy = f"state_copy(state, {member.bit})"
        written = tensor.has_two_copies and storage is tensor.present
        return f"state + {member.offset} + {member.nbytes} * {f'(1 - {copy})' if written else copy}"

    def flipped_bits_of_words(self, program: Program) -> list[str]:
        """Return the bits, by word, of the tensors whose copies change roles after a run."""
        masks = [0] * self.bit_words
        for tensor, member in zip(program.state, self.members, strict=True):
            if tensor.has_two_copies and member.bit is not None:
                masks[member.bit // BITS_PER_WORD] |= 1 << member.bit % BITS_PER_WORD
        return [f"0x{mask:08x}u" for mask in masks]


def state_block_layout(programs: Sequence[Program], numerics: str) -> StateLayout | None:
    """Return the layout of a model's state; None for a model that keeps nothing between runs.

    programs    the program of each instruction set
    numerics    identifier of the numerical behavior, which becomes part of the hash

    Raise AotcError (code "build") if state tensors are still inputs and outputs, or if the
    instruction sets keep a tensor in memory of different sizes.
    """
    program, align = programs[0], programs[0].plan.align
    if not program.state:
        return None
    if any(tensor.past.kind != "state" for tensor in program.state):
        text = "the pass context disables KeepState, which places the state of the model in memory"
        raise AotcError("build", text, hint="leave KeepState out of " + option_text("disabled_pass"))
    rows: list[tuple[StateTensor, ...]] = list(zip(*(p.state for p in programs), strict=True))
    _require_same_sizes(rows)
    doubled = [any(tensor.has_two_copies for tensor in row) for row in rows]
    growing = program.growing
    length = None if growing is None else StateLength(escape_for_c_string(growing.size), growing.capacity)
    words = HASH_WORDS + (length is not None) - (-sum(doubled) // BITS_PER_WORD)
    offset, bit = align_up(words * 4, align), 0
    members: list[StateMember] = []
    for row, has_two in zip(rows, doubled, strict=True):
        past = row[0].past
        extents = [growing.capacity, *past.shape[1:]] if growing is not None and row[0].grows else [*past.shape]
        size = align_up(prod(extents) * past.dtype.itemsize, align)
        shape = f"{past.dtype}{extents}"
        bit_or_none = bit if has_two else None
        members.append(StateMember(past.name, shape, offset, size, bit_or_none, row[0].initial, row[0].grows))
        offset, bit = offset + size * (2 if has_two else 1), bit + has_two
    facts = [program.name, numerics, offset, align, *((m.name, m.type, m.offset, m.nbytes, m.bit) for m in members)]
    facts += [] if length is None else [length.name, length.capacity]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for member in members:
        digest.update(member.initial_bytes.encode())
    return StateLayout(tuple(members), offset, align, words, digest.hexdigest()[: 8 * HASH_WORDS], length)


def _require_same_sizes(rows: Sequence[tuple[StateTensor, ...]]) -> None:
    """Raise AotcError (code "build") if the programs of the instruction sets do not keep each tensor
    in memory of one size; a window has room for new elements.
    """
    for first, *others in rows:
        sizes = {tensor.past.nbytes for tensor in (first, *others)}
        if len(sizes) > 1:
            text = f"the instruction sets keep the state {first.past.name!r} in {min(sizes)} and {max(sizes)} bytes"
            hint = "compile for a target of one instruction set, or leave compile.reorder out of the configuration"
            raise AotcError("build", text, hint=hint)


def state_metadata(layout: StateLayout | None) -> dict[str, Any]:
    """Return the entry "state" of the metadata; empty for a model without state."""
    return {"state": layout.metadata_entry} if layout is not None else {}


def state_template_values(
    layout: StateLayout | None, name: str, program: Program, end_run: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the template values for the state of a model; `layout` is None for a model without it.

    end_run   C statements behind the calls of a run that makes all of them

    states, states_with_copies    the layout, if there is one, and if a tensor has two copies
    growing_states, truncations   the length of the state, if it grows, and if it can be truncated
    truncate                      name of the function that truncates, or "NULL"
    state_functions               C functions for the block of state
    state_status                  C expression for the status of the block of a run
    finish_team_run               C statement that runs the steps by threads
    flipped_bits                  bits of the copies that change roles after a run of the program
    """
    states = [layout] if layout is not None else []
    states_with_copies = [state for state in states if state.bit_words]
    names = {"name": name, "upper": name.upper(), "states_with_copies": states_with_copies}
    truncations = [growing for state in states for growing in state.truncations]
    ends_early = [layout] if program.defined else []
    rows = {"states_with_copies": states_with_copies, "end_run": end_run, "ends_early": ends_early}
    finish = render_template("state_team.c", **rows) if any(rows.values()) else ""
    team_run = "return threads->run(threads, steps[isa], &arguments);"
    return {
        "states": states,
        "growing_states": [growing for state in states for growing in state.growing],
        "truncations": truncations,
        "truncate": f"{name}_state_truncate" if truncations else "NULL",
        "states_with_copies": states_with_copies,
        "state_functions": "".join(render_template("state.c", **names, state=state) for state in states),
        "state_status": "check_state(inputs->state)" if states else "AOTC_OK",
        "finish_team_run": finish.rstrip("\n") or team_run,
        "flipped_bits": [bits for state in states for bits in state.flipped_bits_of_words(program)],
    }


def flipped_bits_table(layout: StateLayout | None, programs: Sequence[Program]) -> list[str]:
    """Return the lines of a C table with the bits that runs of each program flip; none without copies."""
    if layout is None or not layout.bit_words:
        return []
    rows = [f"      {{{', '.join(layout.flipped_bits_of_words(program))}}}," for program in programs]
    return [f"  static const uint32_t flips[NUM_ISAS][{layout.bit_words}] = {{", *rows, "  };"]
