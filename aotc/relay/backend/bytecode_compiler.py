# SPDX-License-Identifier: Apache-2.0
"""Compilation of graph modules to bytecode of the virtual machine.

Input: a typed module in A-normal form, with operators in primitive functions and function literals
lifted. A function with the attribute `Compiler` becomes a kernel as a whole. Output: functions of
instructions, constants, and the primitive functions by number.

    program = compile_bytecode(module)
    program.functions[0].code, program.kernels

Structurally equal primitive functions share one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc.ir import (
    AotcError,
    FuncType,
    Instruction,
    Opcode,
    Task,
    VMFunction,
    did_you_mean_hint,
    frozen,
    run_recursive_task,
)
from aotc.relay.backend.function_to_kernel import reject_interpreter_only_node
from aotc.relay.backend.kernel_deduplication import FunctionTable
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, type_of
from aotc.relay.module import IRModule


@frozen
class Bytecode:
    """A bytecode program: functions in the order of their numbers, constants, and functions to be
    compiled to kernels.
    """

    functions: Sequence[VMFunction]
    constants: Sequence[np.ndarray[Any, Any]]
    kernels: Sequence[Function]


def compile_bytecode(module: IRModule) -> Bytecode:
    """Return the bytecode of all functions of a module.

    Raise AotcError for calls of unknown functions and for expressions that have no bytecode.
    """
    numbers = {name: k for k, name in enumerate(module)}
    constants: dict[Constant, int] = {}
    kernels = FunctionTable()
    functions = [_Assembler(module, name, numbers, constants, kernels).assemble_bytecode_function() for name in module]
    return Bytecode(functions, [np.asarray(node.data, order="C") for node in constants], kernels.functions)


def _inner_closure_literal(body: Expr) -> Function:
    """Return the function literal that a lifted function with captured variables returns, possibly
    bound by a let.
    """
    value = body.value if isinstance(body, Let) else body
    assert isinstance(value, Function)
    return value


@dataclass(slots=True)
class _Assembler:
    """Generator of the virtual machine instructions of one function.

    numbers      numbers of the module's functions
    constants    constants with their numbers, and
    table        kernels with their numbers, both shared by all functions
    kernels      variables that are bound to primitive functions
    """

    module: IRModule
    name: str
    numbers: Mapping[str, int]
    constants: dict[Constant, int]
    table: FunctionTable
    registers: dict[Var, int] = field(default_factory=dict)
    kernels: dict[Expr, Function] = field(default_factory=dict)
    count: int = 0
    code: list[Instruction] = field(default_factory=list)

    def assemble_bytecode_function(self) -> VMFunction:
        whole = self.module[self.name]
        params, inner = whole.params, whole
        if whole.attrs.get("Closure"):  # captured variables come first
            inner = _inner_closure_literal(whole.body)
            params = (*params, *inner.params)
        for param in params:
            self.registers[param] = self._allocate_register()
        result = self._allocate_register()
        if "Compiler" in whole.attrs:  # the function of an external compiler is one kernel
            self._emit_instruction_and_return_position(
                Opcode.INVOKE_PACKED,
                result,
                tuple(range(len(params))),
                self.table.find_or_add_structurally_equal_function(whole),
            )
        else:
            run_recursive_task(self._emit_code_of_let_block(inner.body, result))
        self._emit_instruction_and_return_position(Opcode.RET, args=(result,))
        ty = FuncType(map(type_of, params), type_of(inner.body))
        return VMFunction(str(self.name), tuple(p.name for p in params), ty, self.count, tuple(self.code))

    def _function_number(self, name: GlobalVar) -> int:
        """Return the number of a function of the module. Raises AotcError (code "unknown-function")
        if the module lacks it.
        """
        if name.name not in self.numbers:
            text = f"@{self.name} uses @{name.name}, which the module lacks"
            hint = did_you_mean_hint(name.name, self.numbers) or f"functions: {', '.join(self.numbers)}"
            raise AotcError("unknown-function", text, span=name.span, hint=hint)
        return self.numbers[name.name]

    def _allocate_register(self) -> int:
        self.count += 1
        return self.count - 1

    def _emit_instruction_and_return_position(
        self, opcode: Opcode, dst: int = -1, args: tuple[int, ...] = (), operand_index: int = -1
    ) -> int:
        self.code.append(Instruction(opcode, dst, args, operand_index))
        return len(self.code) - 1

    def _emit_code_of_let_block(self, node: Expr, dst: int) -> Task[None]:
        """Emit code that computes the lets of a block in order, and its result into register `dst`."""
        while isinstance(node, Let):
            if isinstance(node.value, Function) and node.value.is_primitive:
                self.kernels[node.var] = node.value
            else:
                register = self.registers[node.var] = self._allocate_register()
                yield self._emit_code_of_value_into_register(node.value, register)
            node = node.body
        yield self._emit_code_of_value_into_register(node, dst)

    def _emit_code_of_value_into_register(self, node: Expr, dst: int) -> Task[None]:
        reject_interpreter_only_node(node)
        match node:
            case Let():
                yield self._emit_code_of_let_block(node, dst)
            case If():
                yield self._emit_if(node, dst)
            case Call():
                args = yield self._emit_operands_and_return_registers(node.args)
                yield self._emit_call(node, args, dst)
            case Tuple():
                fields = yield self._emit_operands_and_return_registers(node.fields)
                self._emit_instruction_and_return_position(Opcode.ALLOC_ADT, dst, fields)
            case TupleGetItem():
                whole = yield self._emit_operand_and_return_register(node.tuple_value)
                self._emit_instruction_and_return_position(Opcode.GET_FIELD, dst, (whole,), node.index)
            case _:
                self._emit_code_of_leaf_into_register(node, dst)

    def _emit_code_of_leaf_into_register(self, node: Expr, dst: int) -> None:
        match node:
            case Var() if node in self.registers:
                self._emit_instruction_and_return_position(Opcode.MOVE, dst, (self.registers[node],))
            case Constant():
                self._emit_instruction_and_return_position(
                    Opcode.LOAD_CONST, dst, operand_index=self.constants.setdefault(node, len(self.constants))
                )
            case GlobalVar():
                self._emit_instruction_and_return_position(
                    Opcode.ALLOC_CLOSURE, dst, operand_index=self._function_number(node)
                )
            case _:
                text = f"@{self.name}: a {type(node).__name__} used as a value has no bytecode"
                raise AotcError("first-class-function", text, span=node.span, hint="call it, or wrap it in a function")

    def _emit_operands_and_return_registers(self, nodes: Sequence[Expr]) -> Task[tuple[int, ...]]:
        """Emit code for values and return the registers that hold them."""
        registers = []
        for node in nodes:
            registers.append((yield self._emit_operand_and_return_register(node)))
        return tuple(registers)

    def _emit_operand_and_return_register(self, node: Expr) -> Task[int]:
        """Emit code for a value and return the register that holds it."""
        if isinstance(node, Var) and node in self.registers:
            return self.registers[node]
        register = self._allocate_register()
        yield self._emit_code_of_value_into_register(node, register)
        return register

    def _emit_if(self, node: If, dst: int) -> Task[None]:
        cond = yield self._emit_operand_and_return_register(node.cond)
        test = self._emit_instruction_and_return_position(Opcode.IF, args=(cond,))
        yield self._emit_code_of_let_block(node.true_branch, dst)
        leave = self._emit_instruction_and_return_position(Opcode.GOTO)
        self.code[test] = Instruction(Opcode.IF, args=(cond,), index=len(self.code))
        yield self._emit_code_of_let_block(node.false_branch, dst)
        self.code[leave] = Instruction(Opcode.GOTO, index=len(self.code))

    def _emit_call(self, node: Call, args: tuple[int, ...], dst: int) -> Task[None]:
        callee = self.kernels.get(node.op, node.op)
        match callee:
            case Function() if callee.is_primitive:
                self._emit_instruction_and_return_position(
                    Opcode.INVOKE_PACKED, dst, args, self.table.find_or_add_structurally_equal_function(callee)
                )
            case GlobalVar():
                number = self._function_number(callee)
                captures = self.module[callee].attrs.get("Closure")
                self._emit_instruction_and_return_position(
                    Opcode.ALLOC_CLOSURE if captures else Opcode.INVOKE, dst, args, number
                )
            case _:
                closure = yield self._emit_operand_and_return_register(callee)
                self._emit_instruction_and_return_position(Opcode.INVOKE_CLOSURE, dst, (closure, *args))
