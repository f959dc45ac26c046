# SPDX-License-Identifier: Apache-2.0
"""The bytecode of programs with control flow: what a virtual machine runs.

Each activation of a function has registers of its own; the first hold the arguments.  Jumps go forward only.

    function = VMFunction("main", ("x",), FuncType([ty], ty), 1, (Instruction(Opcode.RET, args=(0,)),))
    print(function)                                  # main(x) ... 0: ret $0
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import Enum

from aotc.ir.frozen_dataclass import fill, frozen
from aotc.ir.types import FuncType


class Opcode(Enum):
    """What an instruction does with the values of its argument registers and its number `index`."""

    MOVE = "move"  # the argument
    RET = "ret"  # leaves the function
    INVOKE = "invoke"  # calls function `index`
    INVOKE_CLOSURE = "invoke_closure"  # calls the first argument on the others
    INVOKE_PACKED = "invoke_packed"  # calls kernel `index`
    ALLOC_CLOSURE = "alloc_closure"  # function `index` that has captured the arguments
    ALLOC_ADT = "alloc_adt"  # a tuple
    GET_FIELD = "get_field"  # field `index` of a tuple
    LOAD_CONST = "load_const"  # constant `index`
    IF = "if"  # goes on at `index` if the argument is false
    GOTO = "goto"  # goes on at `index`


@frozen
class Instruction:
    """One instruction: the register that it writes (-1: none), those that it reads, and a number."""

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
    """A function: `registers` in number, the first for the parameters.

    dead    for each instruction, the registers that nobody reads any more once its arguments are read
    tail    the calls whose result is the function's own: the frame is not needed any more
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
        tail = frozenset(pc for pc in range(len(code)) if _is_tail(code, pc))
        fill(self, dead=_dead(code, len(self.params)), tail=tail)

    def __str__(self) -> str:
        head = f"{self.name}({', '.join(self.params)})  # {self.registers} registers, {len(self.code)} instructions"
        return "\n".join([head, *(f"{k:4}: {ins}" for k, ins in enumerate(self.code))])


def _is_tail(code: Sequence[Instruction], pc: int) -> bool:
    """Whether nothing but moves and jumps lies between a call and the return of its result."""
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


def _bits(registers: Iterable[int]) -> int:
    return sum(1 << register for register in set(registers))


def _members(mask: int) -> tuple[int, ...]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def _next(pc: int, ins: Instruction) -> tuple[int, ...]:
    """The instructions that may follow."""
    match ins.opcode:
        case Opcode.RET:
            return ()
        case Opcode.GOTO:
            return (ins.index,)
        case Opcode.IF:
            return (pc + 1, ins.index)
        case _:
            return (pc + 1,)


def _dead(code: Sequence[Instruction], params: int) -> tuple[tuple[int, ...], ...]:
    """Liveness of registers as bit sets; one sweep each way is enough, since jumps go forward."""
    size = len(code)
    live_in, live_out = [0] * size, [0] * size
    for pc in reversed(range(size)):
        ins = code[pc]
        for k in _next(pc, ins):
            live_out[pc] |= live_in[k]
        written = 1 << ins.dst if ins.dst >= 0 else 0
        live_in[pc] = live_out[pc] & ~written | _bits(ins.args)
    held = [0] * size
    held[0] = (1 << params) - 1
    for pc, ins in enumerate(code):
        for k in _next(pc, ins):
            held[k] |= live_out[pc] | (1 << ins.dst if ins.dst >= 0 else 0)
    return tuple(_members(held[pc] & ~live_out[pc]) for pc in range(size))
