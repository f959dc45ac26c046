# SPDX-License-Identifier: Apache-2.0
"""The definition of an instruction (`aotc.tir.instruction_table`), and builders for instructions
that are C functions.

row = define_c_vector_instruction("sum2", ("int8x16",), "int32x4", meaning, "$inline ...")
row.texts[0].call                        # "aotc_sum2({0})"
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aotc.ir import DTYPES, DType, frozen


@frozen(kw_only=True)
class InstructionText:
    """The spelling of an instruction in one language.

    call      an expression: {0} is the first operand, {0:13} one that binds at least as
              tightly as a product, {f} stands behind functions of float32
    level     how tightly the call binds, in C's order of precedence
    dialects  the languages that say it so; none for all
    lanes     whether it is of one number ("one"), of vectors ("many"), or of both ("")
    function  a definition that stands in front of kernels that use it; $inline is what
              functions begin with
    """

    call: str
    level: int = 16
    dialects: tuple[str, ...] = ()
    lanes: str = ""
    function: str = ""


@frozen(kw_only=True)
class Instruction:
    """A row of the table.

    takes    the types of its operands: "float", "single", "integer", "word" or "number" for those of any one
             type of that kind and any number of lanes, or a type such as "int32x16"
    gives    the type of the result; "" for that of the operands
    meaning  on numpy scalars and arrays, for what is no tensor program of `aotc.tir.functions`
    block    it makes a square block of memory of another one, instead of a value of values:
             its type is that of the elements, its meaning is on a matrix, and its call has
             the addresses of the block that is written, {0}, and of the other one, {2}, each
             followed by the distance of its rows
    warp     the 32 threads of a warp compute it together: in the meaning, operands and result have
             an axis of them in front.  It is the whole value of a statement, which all of them come to.
             Where that has several lanes, its call has the address of what it makes, {0}, then its
             operands, those of several lanes by their addresses
    memory   a function on memory: it is the whole value of a `Store`.  Its call has the address of what it makes,
             {0}, then those of its operands, and {n} and {m}, the lanes of the last one and of the first.  "int8x*" in
             `takes` is any number of lanes
    width    the lanes of its result, from its operands
    least    the compute capability that a device needs for it, 80 for 8.0
    """

    name: str
    takes: tuple[str, ...]
    meaning: Callable[..., Any]
    gives: str = ""
    texts: tuple[InstructionText, ...] = ()
    block: bool = False
    warp: bool = False
    memory: bool = False
    width: Callable[..., int] | None = None
    least: int = 0

    def text_for_dialect(self, dialect: str, lanes: int) -> InstructionText | None:
        """Return the spelling for a dialect and a number of lanes; None if the language's library
        has the function.
        """
        kinds = ("", "one" if lanes == 1 else "many")
        matches = (t for t in self.texts if dialect in (t.dialects or (dialect,)) and t.lanes in kinds)
        return next(matches, None)

    def result_dtype_and_lanes(self, operand_dtype: DType, lanes: int) -> tuple[DType, int]:
        """Return the dtype and lanes of the result for a first operand of this dtype and lanes."""
        return parse_vector_type(self.gives, lanes) if self.gives else (operand_dtype, lanes)

    def operand_type_problem(self, operand_types: Iterable[tuple[DType, int]], is_memory_block: bool = False) -> str:
        """Return the problem with operands of these types and lanes, or with a block's rows; "" if
        valid.
        """
        actual_types = tuple(operand_types)
        if is_memory_block != self.block:
            return f"{self.name} works on {'blocks of memory' if self.block else 'values'}"
        if len(actual_types) != len(self.takes):
            return f"{self.name} with {len(actual_types)} operands"
        rows = list(zip(self.takes, actual_types, strict=True))
        if len({actual for kind, actual in rows if kind in OPERAND_KIND_DTYPES}) > 1:
            return f"{self.name} of operands of different types"
        wrong = (row for row in rows if not _matches_operand_kind(*row))
        return next((f"{self.name} of {dtype}x{lanes}, not of {kind}" for kind, (dtype, lanes) in wrong), "")


#: The types that "float", "single", "integer", "word" and "number" stand for.
OPERAND_KIND_DTYPES: Final[Mapping[str, frozenset[DType]]] = {
    "float": frozenset(d for d in DTYPES if d.is_float),
    "single": frozenset({DType("float32")}),
    "word": frozenset({DType("int32")}),
    "integer": frozenset(d for d in DTYPES if d.is_integer),
    "number": frozenset(d for d in DTYPES if d.is_float or d.is_integer),
}


def parse_vector_type(text: str, default_lanes: int) -> tuple[DType, int]:
    """Return the dtype and lanes of a type such as "int32x16"; types without a number have
    `default_lanes` lanes.
    """
    name, _, count = text.partition("x")
    return DType(name), int(count) if count else default_lanes


def _matches_operand_kind(kind: str, actual: tuple[DType, int]) -> bool:
    if kind.endswith("x*"):
        return actual[0] == kind.removesuffix("x*")
    return (
        actual[0] in OPERAND_KIND_DTYPES[kind] if kind in OPERAND_KIND_DTYPES else actual == parse_vector_type(kind, 1)
    )


def fill_template(text: str, **words: object) -> str:
    """Return a text with words replaced, in the order of the arguments."""
    for word, value in words.items():
        text = text.replace(word, str(value))
    return text


def define_c_vector_instruction(
    name: str,
    operand_types: Sequence[str],
    result_type: str,
    reference: Callable[..., Any],
    c_template: str,
    **words: object,
) -> Instruction:
    """Return an instruction that is a C function of vectors named aotc_NAME; `words` are replaced
    in its text.
    """
    c_text = _function_call_text(name, len(operand_types), "gnu-c", fill_template(c_template, NAME=name, **words))
    return Instruction(name=name, takes=tuple(operand_types), gives=result_type, meaning=reference, texts=(c_text,))


def define_gpu_instruction(
    name: str,
    operand_types: Sequence[str],
    result_type: str,
    reference: Callable[..., Any],
    cuda_template: str,
    *,
    least: int = 0,
    warp: bool = False,
    **words: object,
) -> Instruction:
    """Return an instruction that is a GPU function; a warp-level one takes the address of its
    result first.
    """
    cuda_text = _function_call_text(
        name, len(operand_types) + warp, "cuda", fill_template(cuda_template, NAME=name, **words)
    )
    facts: dict[str, Any] = {"meaning": reference, "texts": (cuda_text,), "least": least}
    return Instruction(name=name, takes=tuple(operand_types), gives=result_type, warp=warp, **facts)


def _function_call_text(name: str, operand_count: int, dialect: str, text: str) -> InstructionText:
    call = f"aotc_{name}({', '.join(f'{{{k}}}' for k in range(operand_count))})"
    return InstructionText(call=call, dialects=(dialect,), function=text)


def define_memory_micro_kernel(
    name: str,
    operand_types: Sequence[str],
    result_type: str,
    result_width: Callable[..., int],
    reference: Callable[..., Any],
    operand_text: str,
    c_template: str,
    **words: object,
) -> Instruction:
    """Return a micro-kernel: a C function aotc_NAME that takes the address of its result, then
    `operand_text`.
    """
    c_text = InstructionText(
        call=f"aotc_{name}({{0}}, {operand_text})", function=fill_template(c_template, NAME=name, **words)
    )
    facts: dict[str, Any] = {"width": result_width, "meaning": reference, "texts": (c_text,), "memory": True}
    return Instruction(name=name, takes=tuple(operand_types), gives=result_type, **facts)
