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


@frozen
class Extent:
    """The elements of an operand in memory that an instruction accesses.

    elements   consecutive elements of a row
    rows       number of rows
    pitch      elements from the begin of a row to the begin of the next one
    """

    elements: int
    rows: int = 1
    pitch: int = 0

    @property
    def span(self) -> int:
        """Number of elements from the first accessed one to the last, both included."""
        return (self.rows - 1) * self.pitch + self.elements


@frozen(kw_only=True)
class Execution:
    """What an instruction does to memory, to other threads and over time.  An instruction that has
    such effects is a statement (`aotc.tir.stmt.Execute`), never a part of an expression.

    result        type of the result: "int32[]" is written to memory, "float32[4]" writes 4 elements; a type
                  without brackets is that of a new register ("number" or "": of the type of the first operand,
                  and no result)
    extents       function that returns the extents of all operands in memory, that of the result first;
                  a number stands for so many consecutive elements. Its arguments are one integer for each
                  operand: the elements of an operand in memory, the value of a literal, 0 for other
                  values. Extents of no elements reject these arguments. None where the types state all
                  extents
    scope         the threads that execute the instruction together: "thread", "warp" (32 threads; operands
                  and results of `meaning` have a leading axis of threads) or "block" (`meaning` is computed
                  once). Control flow must not differ between them
    barrier       True if all threads of the scope wait for each other, and then see each other's stores
    asynchronous  True if the result is complete only after an instruction that `awaits_copies`, and a barrier.
                  An operand may then be a selection between memory and zeros
    awaits_copies True if it ends a group of asynchronous copies of the thread, and waits for all groups but
                  the latest ones, whose number is the operand
    is_aligned    True if the elements of each operand in memory begin at a multiple of their size, as one
                  access of at most 16 bytes
    counts_blocks True if the first operand is a counter of thread blocks in memory, which only such
                  instructions access: `meaning` returns the result and the new value of the counter
    """

    result: str = ""
    extents: Callable[..., tuple[Extent | int, ...]] | None = None
    scope: str = "thread"
    barrier: bool = False
    asynchronous: bool = False
    awaits_copies: bool = False
    is_aligned: bool = False
    counts_blocks: bool = False

    @property
    def needs_gpu(self) -> bool:
        """True if only the threads of a GPU can execute the instruction."""
        return self.scope == "warp" or self.counts_blocks or self.asynchronous or self.awaits_copies

    @property
    def writes_memory(self) -> bool:
        """True if the result is written to memory."""
        return is_memory_type(self.result)


@frozen(kw_only=True)
class Instruction:
    """A row of the table.

    takes      types of the operands: "float", "single", "integer", "word" or "number" for all types of that
               kind, with any number of lanes; or a type such as "int32x16". An instruction that is a
               statement may have operands in memory: "int8[]" is any number of elements, "float16[8]" are
               8, "number[]" are elements of any type
    gives      type of the result of a function; "" for the type of the operands
    meaning    numpy function that computes the instruction on scalars and arrays; never called for
               tensor programs of `aotc.tir.functions`. An operand in memory is an array of its accessed
               elements, with two axes if it has several rows
    texts      the text by language. In `call`, {0} is the first operand; the result of a statement in
               memory comes before the operands, and operands in memory are addresses. {n} and {m} are the
               elements of the last and of the first operand, {bytes} the size of the first operand, and
               {inside} the condition under which it is not replaced by zeros
    execution  effects of an instruction that is a statement; None for a function of values
    least      compute capability that a device needs for it, 80 for 8.0
    """

    name: str
    takes: tuple[str, ...]
    meaning: Callable[..., Any]
    gives: str = ""
    texts: tuple[InstructionText, ...] = ()
    execution: Execution | None = None
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

    def operand_type_problem(self, operand_types: Iterable[tuple[DType, int]]) -> str:
        """Return the problem with operands of these types and lanes (elements, of operands in
        memory); "" if valid.
        """
        actual_types = tuple(operand_types)
        if len(actual_types) != len(self.takes):
            return f"{self.name} with {len(actual_types)} operands"
        rows = list(zip(self.takes, actual_types, strict=True))
        if len({actual for kind, actual in rows if kind in OPERAND_KIND_DTYPES}) > 1:
            return f"{self.name} of operands of different types"
        wrong = (row for row in rows if not _matches_operand_kind(*row))
        return next((f"{self.name} of {dtype}x{lanes}, not of {kind}" for kind, (dtype, lanes) in wrong), "")

    def accessed_extents(self, sizes: Sequence[int]) -> tuple[Extent | None, tuple[Extent | None, ...]]:
        """Return the elements that a statement writes and reads: the extent of its result, and that
        of each operand; None for those that are not in memory.

        `sizes` are the arguments of `Execution.extents`.
        """
        execution = self.execution
        assert execution is not None, f"{self.name} is a function"
        kinds = (execution.result, *self.takes)
        if execution.extents is None:
            stated: Iterable[Extent | int] = (
                _stated_elements(kind) or size
                for kind, size in zip(kinds, (0, *sizes), strict=True)
                if is_memory_type(kind)
            )
        else:
            stated = execution.extents(*sizes)
        rows = iter([extent if isinstance(extent, Extent) else Extent(extent) for extent in stated])
        result, *inputs = [next(rows) if is_memory_type(kind) else None for kind in kinds]
        return result, tuple(inputs)


def check_instruction_rows(rows: Iterable[Instruction]) -> None:
    """Raise ValueError for a row that lacks a fact, or has facts that contradict each other; it
    names the instruction.
    """
    known_names: set[str] = set()
    for row in rows:
        problem = "another row has this name" if row.name in known_names else _row_problem(row)
        if problem:
            raise ValueError(f"instruction {row.name}: {problem}")
        known_names.add(row.name)


def _row_problem(row: Instruction) -> str:
    """Return what a row lacks, or which of its facts contradict each other; "" if it is valid."""
    execution = row.execution
    if execution is None:
        return "a function of values has no operands in memory" if any(map(is_memory_type, row.takes)) else ""
    unstated = execution.writes_memory and not _stated_elements(execution.result)
    rules = {
        "a statement has the type of its result in Execution.result, not in gives": bool(row.gives),
        f"unknown scope {execution.scope!r}": execution.scope not in ("thread", "warp", "block"),
        "the elements that it writes are stated neither by its type nor by extents": unstated and not execution.extents,
        "extents are of operands in memory, and it has none": bool(execution.extents) and not execution.writes_memory,
        "an asynchronous copy has its result in memory": execution.asynchronous and not execution.writes_memory,
        "a wait for copies has one operand, int64, and no result": execution.awaits_copies
        and (row.takes != ("int64",) or bool(execution.result)),
        "a barrier has the scope block": execution.barrier and execution.scope != "block",
        "a counter of blocks is an int32 operand of a barrier with a result in a register": execution.counts_blocks
        and not (
            execution.barrier and row.takes[:1] == ("int32",) and execution.result and not execution.writes_memory
        ),
    }
    return next((text for text, violated in rules.items() if violated), "")


def is_memory_type(kind: str) -> bool:
    """Return True if an operand or result of a type such as "int8[]" is in memory."""
    return kind.endswith("]")


def _stated_elements(kind: str) -> int:
    """Return the number of elements of a type such as "float16[8]"; 0 for "float16[]"."""
    return int(kind[:-1].partition("[")[2] or 0)


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
    stem, elements = (kind.partition("[")[0], _stated_elements(kind)) if is_memory_type(kind) else (kind, 0)
    if stem in OPERAND_KIND_DTYPES:
        return actual[0] in OPERAND_KIND_DTYPES[stem]
    if stem != kind:
        return actual[0] == stem and elements in (0, actual[1])
    return actual == parse_vector_type(kind, 1)


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
    **words: object,
) -> Instruction:
    """Return an instruction that is a GPU function of values."""
    cuda_text = _function_call_text(name, len(operand_types), "cuda", fill_template(cuda_template, NAME=name, **words))
    facts: dict[str, Any] = {"meaning": reference, "texts": (cuda_text,), "least": least}
    return Instruction(name=name, takes=tuple(operand_types), gives=result_type, **facts)


def define_warp_matrix_instruction(
    name: str,
    operand_types: Sequence[str],
    result_type: str,
    reference: Callable[..., Any],
    cuda_template: str,
    *,
    least: int,
    **words: object,
) -> Instruction:
    """Return an instruction that the threads of a warp execute together: a GPU function that takes
    the addresses of its result and of its operands, all of them in memory.
    """
    text = fill_template(cuda_template, NAME=name, **words)
    return Instruction(
        name=name,
        takes=tuple(operand_types),
        meaning=reference,
        texts=(_function_call_text(name, 1 + len(operand_types), "cuda", text),),
        execution=Execution(result=result_type, scope="warp", is_aligned=True),
        least=least,
    )


def _function_call_text(name: str, operand_count: int, dialect: str, text: str) -> InstructionText:
    call = f"aotc_{name}({', '.join(f'{{{k}}}' for k in range(operand_count))})"
    return InstructionText(call=call, dialects=(dialect,), function=text)


def define_memory_micro_kernel(
    name: str,
    operand_types: Sequence[str],
    result_type: str,
    extents: Callable[..., tuple[Extent | int, ...]],
    reference: Callable[..., Any],
    operand_text: str,
    variants: Sequence[CVariant],
    **words: object,
) -> Instruction:
    """Return a micro-kernel: a C function aotc_NAME that takes the address of its result, then
    `operand_text`.

    extents    see `Execution.extents`
    variants   definitions of the function, in which `words` are replaced
    """
    template = InstructionText(call=f"aotc_{name}({{0}}, {operand_text})", function="VARIANT")
    return Instruction(
        name=name,
        takes=tuple(operand_types),
        meaning=reference,
        texts=define_texts_by_features(template, variants, NAME=name, **words),
        execution=Execution(result=result_type, extents=extents),
    )
