# SPDX-License-Identifier: Apache-2.0
"""The definition of an instruction (`aotc.tir.instruction_table`), and builders for instructions
that are C functions.

row = define_c_vector_instruction("sum2", ("int8x16",), "int32x4", meaning, "$inline ...")
row.texts[0].call                        # "aotc_sum2({0})"
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aotc.ir import DTYPES, DType, frozen, require_known_name
from aotc.tir.processor_features import FEATURES_AND_ARCHITECTURES, CVariant, c_text_for_features


@frozen(kw_only=True)
class InstructionText:
    """The spelling of an instruction in one language.

    call      template of an expression: {0} is the first operand, {0:13} the operand in parentheses
              unless it binds at least as tightly as a product, {f} the suffix of float32 functions
    level     precedence of the call in C; a larger number binds tighter
    dialects  the languages that have this spelling; empty for all languages
    lanes     "one" for scalars, "many" for vectors, "" for both
    function  definition that is printed before kernels that use it; $inline stands for the
              specifiers of inline functions
    requires  what a processor must have, names of
              `aotc.tir.processor_features.FEATURES_AND_ARCHITECTURES`

    Raise AotcError (code "target") if `requires` has an unknown name.
    """

    call: str
    level: int = 16
    dialects: tuple[str, ...] = ()
    lanes: str = ""
    function: str = ""
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.requires:
            require_known_name("target", f"processor feature of {self.call}:", name, FEATURES_AND_ARCHITECTURES)


@frozen(kw_only=True)
class Instruction:
    """A row of the table.

    takes    types of the operands: "float", "single", "integer", "word" or "number" for all types of that
             kind, with any number of lanes; or a type such as "int32x16"
    gives    type of the result; "" for the type of the operands
    meaning  numpy function that computes the instruction on scalars and arrays; never called for
             tensor programs of `aotc.tir.functions`
    block    True if it computes a square block of memory from another block of memory: `takes` has the
             type of the elements, and `meaning` maps a matrix. In `call`, {0} is the address of the
             block that is written and {1} the distance of its rows, {2} and {3} are those of the block
             that is read
    warp     True if the 32 threads of a warp compute it together: in `meaning`, operands and result
             have a leading axis of threads. It is the whole value of a statement, which all threads
             of the warp execute. If the result has several lanes, {0} in `call` is the address of the
             result; the operands follow, those with several lanes by their addresses
    memory   True if it is a micro-kernel: a C function that reads operands from memory and writes its
             result to memory, as in a GEMM. It is the whole value of a `Store`, which names the memory
             that it writes. In `call`, {0} is the address of the result; the addresses of the operands
             follow; {n} and {m} are the lanes of the last and the first operand. "int8x*" in `takes`
             has any number of lanes
    width    function that returns the lanes of the result for given operands
    least    compute capability that a device needs for it, 80 for 8.0
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

    def text_for_dialect(self, dialect: str, lanes: int, features: Collection[str] = ()) -> InstructionText | None:
        """Return the first spelling for a dialect, a number of lanes and a processor; None if there
        is none, as for functions of the language's library.

        features   features and architecture of the processor (`Target.processor_features`)
        """
        kinds = ("", "one" if lanes == 1 else "many")
        texts = (t for t in self.texts if dialect in (t.dialects or (dialect,)) and t.lanes in kinds)
        return next((t for t in texts if set(t.requires).issubset(features)), None)

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


def define_texts_by_features(
    template: InstructionText, variants: Sequence[CVariant], **words: object
) -> tuple[InstructionText, ...]:
    """Return one text for each set of required features of variants, the preferred one first.

    template   the text; VARIANT in its function stands for the variant
    words      words that are replaced in functions, and their replacements
    """
    functions = {
        requires: template.function.replace("VARIANT", c_text_for_features(variants, requires))
        for requires in dict.fromkeys(variant.requires for variant in variants)
    } or {(): template.function}
    return tuple(
        replace(template, requires=requires, function=fill_template(function, **words))
        for requires, function in functions.items()
    )


def define_c_vector_instruction(
    name: str,
    operand_types: Sequence[str],
    result_type: str,
    reference: Callable[..., Any],
    c_template: str,
    variants: Sequence[CVariant] = (),
    **words: object,
) -> Instruction:
    """Return an instruction that is a C function of vectors named aotc_NAME; `words` are replaced
    in its text, and VARIANT by the variant for the processor.
    """
    texts = define_texts_by_features(
        _function_call_text(name, len(operand_types), "gnu-c", c_template), variants, NAME=name, **words
    )
    return Instruction(name=name, takes=tuple(operand_types), gives=result_type, meaning=reference, texts=texts)


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
    variants: Sequence[CVariant],
    **words: object,
) -> Instruction:
    """Return a micro-kernel: a C function aotc_NAME that takes the address of its result, then
    `operand_text`.

    variants   definitions of the function, in which `words` are replaced
    """
    template = InstructionText(call=f"aotc_{name}({{0}}, {operand_text})", function="VARIANT")
    texts = define_texts_by_features(template, variants, NAME=name, **words)
    facts: dict[str, Any] = {"width": result_width, "meaning": reference, "texts": texts, "memory": True}
    return Instruction(name=name, takes=tuple(operand_types), gives=result_type, **facts)
