# SPDX-License-Identifier: Apache-2.0
"""Bytecode of programs with control flow, which the virtual machine (`aotc.runtime.vm`) runs.

Each call of a function has its own registers, the first of which hold the arguments.  All jumps go
forward.

    function = VMFunction("main", ("x",), FuncType([ty], ty), 1, (Instruction(Opcode.RET, args=(0,)),))
    print(function)                                  # main(x) ... 0: ret $0
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import Enum

from aotc.ir.frozen_dataclass import frozen, set_frozen_fields
from aotc.ir.types import FuncType


class Opcode(Enum):
    """Opcodes of the bytecode; each uses argument registers and the number `index` of an
    instruction.
    """

    MOVE = "move"  # copies the argument
    RET = "ret"  # returns the argument
    INVOKE = "invoke"  # calls function `index`
    INVOKE_CLOSURE = "invoke_closure"  # calls the closure in the first argument with the remaining arguments
    INVOKE_PACKED = "invoke_packed"  # calls kernel `index`
    ALLOC_CLOSURE = "alloc_closure"  # creates a closure of function `index` that captures the arguments
    ALLOC_ADT = "alloc_adt"  # creates a tuple of the arguments
    GET_FIELD = "get_field"  # loads field `index` of a tuple
    LOAD_CONST = "load_const"  # loads constant `index`
    IF = "if"  # jumps to `index` if the argument is false
    GOTO = "goto"  # jumps to `index`


@frozen
class Instruction:
    """One bytecode instruction: opcode, destination register (-1: none), source registers, and a
    number.
    """

    opcode: Opcode
    dst: int = -1
    args: tuple[int, ...] = ()
    index: int = -1

    def __str__(self) -> str:
        target = [f"${self.dst}"] if self.dst >= 0 else []
        number = [f"#{self.index}"] if self.index >= 0 else []
        return " ".join([self.opcode.value, *target, *number, *(f"${a}" for a in self.args)])


@frozen
class VMFunction:
    """A bytecode function with `registers` registers, the first of which hold the parameters.

    dead    for each instruction, the registers that are not read after its arguments are read
    tail    positions of tail calls: the function returns their result, so its frame can be dropped
    """

    name: str
    params: tuple[str, ...]
    type: FuncType
    registers: int
    code: tuple[Instruction, ...]
    dead: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    tail: frozenset[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        code = self.code
        tail = frozenset(pc for pc in range(len(code)) if _is_tail_call(code, pc))
        set_frozen_fields(self, dead=_registers_dying_at_each_instruction(code, len(self.params)), tail=tail)

    def __str__(self) -> str:
        head = f"{self.name}({', '.join(self.params)})  # {self.registers} registers, {len(self.code)} instructions"
        return "\n".join([head, *(f"{k:4}: {ins}" for k, ins in enumerate(self.code))])


def _is_tail_call(code: Sequence[Instruction], pc: int) -> bool:
    """Return True if only moves and jumps lie between the call at `pc` and the return of its
    result.
    """
    register = code[pc].dst
    if code[pc].opcode not in (Opcode.INVOKE, Opcode.INVOKE_CLOSURE):
        return False
    while True:
        pc = code[pc].index if code[pc].opcode is Opcode.GOTO else pc + 1
        ins = code[pc]
        if ins.opcode is Opcode.MOVE and ins.args == (register,):
            register = ins.dst
        elif ins.opcode is not Opcode.GOTO:
            return ins.opcode is Opcode.RET and ins.args == (register,)


def _bit_mask_of_registers(registers: Iterable[int]) -> int:
    return sum(1 << register for register in set(registers))


def _positions_of_set_bits(mask: int) -> tuple[int, ...]:
    positions = []
    while mask:
        low = mask & -mask
        positions.append(low.bit_length() - 1)
        mask ^= low
    return tuple(positions)


def _successor_instruction_positions(pc: int, instruction: Instruction) -> tuple[int, ...]:
    """Return the positions of the bytecode instructions that may be executed after the one at `pc`."""
    match instruction.opcode:
        case Opcode.RET:
            return ()
        case Opcode.GOTO:
            return (instruction.index,)
        case Opcode.IF:
            return (pc + 1, instruction.index)
        case _:
            return (pc + 1,)


def _registers_dying_at_each_instruction(code: Sequence[Instruction], num_params: int) -> tuple[tuple[int, ...], ...]:
    """Compute for each instruction the registers that become dead there.

    Live sets are bit masks; one backward and one forward sweep suffice, because all jumps go
    forward.
    """
    size = len(code)
    live_in, live_out = [0] * size, [0] * size
    for pc in reversed(range(size)):
        ins = code[pc]
        for k in _successor_instruction_positions(pc, ins):
            live_out[pc] |= live_in[k]
        written = 1 << ins.dst if ins.dst >= 0 else 0
        live_in[pc] = live_out[pc] & ~written | _bit_mask_of_registers(ins.args)
    defined_masks = [0] * size
    defined_masks[0] = (1 << num_params) - 1
    for pc, ins in enumerate(code):
        for k in _successor_instruction_positions(pc, ins):
            defined_masks[k] |= live_out[pc] | (1 << ins.dst if ins.dst >= 0 else 0)
    return tuple(_positions_of_set_bits(defined_masks[pc] & ~live_out[pc]) for pc in range(size))
