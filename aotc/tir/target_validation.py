# SPDX-License-Identifier: Apache-2.0
"""Find the problems of a target description: figures that no machine has, and fields that
contradict each other.

require_consistent_target(target, DATA_KINDS_OF_ROLE)   # AotcError: target odd: l1 must be 1024 to ... bytes, got 0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import product
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

from aotc.ir import AotcError, Diagnostic, DType, did_you_mean_hint
from aotc.ir.dtype import DTYPES
from aotc.tir.functions.elementary_function_table import ELEMENT_MEANINGS
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.micro_kernels import (
    CPU_LEVELS,
    FIELDS_THAT_NAME_INSTRUCTIONS,
    GPU_LEVELS,
    MEMORY_LAYOUTS,
    BlockShape,
    MicroKernel,
    values_contradicting_instruction,
)
from aotc.tir.processor_features import PROCESSOR_FEATURES
from aotc.tir.reject_fast_math_c_flags import reject_result_changing_c_flags

if TYPE_CHECKING:
    from aotc.tir.target import Target

#: Figures of targets: whether they are whole numbers, the least and the most that can be true, and the unit.
NUMERIC_FIELD_LIMITS: Final[Mapping[str, tuple[bool, float, float, str]]] = {
    "vector_bytes": (True, 0, 256, " bytes"),
    "registers": (True, 1, 4096, ""),
    "fma_bytes": (True, 1, 1 << 20, " bytes"),
    "l1": (True, 1 << 10, 1 << 26, " bytes"),
    "l2": (True, 1 << 10, 1 << 32, " bytes"),
    "line": (True, 8, 1 << 12, " bytes"),
    "l1_stride": (True, 1, 1 << 26, " bytes"),
    "l1_ways": (True, 1, 1 << 20, ""),
    "memory_rate": (False, 1e-6, 1e6, " bytes in a cycle"),
    "copy_rate": (False, 1e-6, 1e6, " bytes in a cycle"),
    "transpose_rate": (False, 1e-6, 1e6, " bytes in a cycle"),
    "store_cost": (True, 0, 1 << 30, " operations"),
    "call_cost": (True, 0, 1 << 30, " operations"),
    "min_shuffled_bytes": (True, 1, 8, " bytes"),
}
#: Widths of vectors in bytes: two numbers of float32 at least.
VECTOR_WIDTHS_BYTES: Final = (0, 8, 16, 32, 64, 128, 256)
#: Fields of a target that are records of costs and limits.
_RECORD_FIELDS: Final = ("tiles", "winograd", "strips", "threads", "gpu", "budget", "code_size")
#: Figures of records that can be zero: costs that a machine may not have, and limits that forbid something.
_FIELDS_THAT_CAN_BE_ZERO: Final = frozenset(
    (
        *("winograd.waiting", "threads.worth_ns", "threads.worth_moving_ns", "threads.barrier_ns"),
        *("tiles.finish", "tiles.finish_vector", "tiles.finish_element", "tiles.broadcast", "tiles.load"),
        "tiles.widened_load",
        *(
            "budget.stack_bytes",
            "budget.row_bytes",
            "budget.array_bytes",
            "budget.parameter_room",
            "budget.unpacked_bytes",
        ),
        *("budget.parameter_saving", "budget.unrolled", "budget.written", "budget.pieces", "budget.piece_nodes"),
        *("budget.group_padding", "budget.block_padding", "tiles.nchw_input_channels", "tiles.min_tap_major_positions"),
        *("code_size.expression_bytes", "code_size.loop_bytes", "code_size.store_bytes", "code_size.call_bytes"),
        *("code_size.schedule_bytes", "code_size.argument_bytes", "code_size.merged_growth"),
        *("code_size.merged_arguments", "code_size.min_int4_elements", "code_size.spilled_registers"),
        *("code_size.frame_words", "code_size.caller_words", "micro-kernel.call_positions"),
        *("gpu.scratch_bytes", "gpu.shared_bytes"),
        *("micro-kernel.split", "micro-kernel.tile_cycles", "micro-kernel.call_cycles", "micro-kernel.run_cycles"),
    )
)
_GPU_DIALECT: Final = "cuda"
#: Words that each thread of a warp loads from shared memory by one instruction.
_LANES_OF_WARP_LOAD: Final = 4


def require_consistent_target(target: Target, roles: Mapping[str, Iterable[str]]) -> None:
    """Raise AotcError with one diagnostic for each problem of a target, if it has any.

    roles   kinds of data that need a memory region together, by the name of their role
    """
    diagnostics = [
        Diagnostic("target", f"target {target.name}: {text}", hint=hint)
        for text, hint in (
            *_figure_problems(target),
            *_contradicting_field_problems(target),
            *_space_problems(target, roles),
        )
    ]
    try:
        reject_result_changing_c_flags((*target.cflags, *target.base_cflags))
    except AotcError as error:
        diagnostics += error.diagnostics
    if diagnostics:
        raise AotcError.collect(diagnostics)


def _figure_problems(target: Target) -> Iterator[tuple[str, str]]:
    """Yield the text and hint of each problem of a single figure."""
    for field, (whole, least, most, unit) in NUMERIC_FIELD_LIMITS.items():
        value = getattr(target, field)
        if not isinstance(value, Integral if whole else Real) or isinstance(value, bool):
            yield _field_problem(field, value, "a whole number" if whole else "a number")
        elif not least <= float(value) <= most:
            yield _field_problem(field, value, f"{least} to {most}{unit}")
        elif field == "vector_bytes" and value not in VECTOR_WIDTHS_BYTES:
            yield _field_problem(field, value, f"one of {', '.join(map(str, VECTOR_WIDTHS_BYTES))}")
        elif field == "line" and isinstance(target.l1, Integral) and value > target.l1 >= 1 << 10:
            yield _field_problem(field, value, f"no more than l1, which is {target.l1} bytes")
    records = {name: getattr(target, name) for name in _RECORD_FIELDS}
    if target.gpu is not None:
        records["gpu.costs"] = target.gpu.costs
    for name, record in records.items():
        if record is not None:
            yield from _record_problems(name, f"{name}.", record)
    for kernel in target.micro_kernels:
        yield from _record_problems("micro-kernel", f"micro-kernel {kernel.name}: ", kernel)


def _record_problems(kind: str, prefix: str, record: Any) -> Iterator[tuple[str, str]]:
    """Yield the problems of the figures of a record.

    kind     the record's kind in `_FIELDS_THAT_CAN_BE_ZERO`
    prefix   text before the names of fields
    """
    for item in fields(record):
        type_name = item.type if isinstance(item.type, str) else getattr(item.type, "__name__", "")
        value, is_whole = getattr(record, item.name), type_name != "float"
        elements = (value,) if type_name in ("int", "float") else value if isinstance(value, tuple) else ()
        for element in elements:
            if type(element) is (int if is_whole else float) and 0 < element < math.inf:
                continue  # most figures; the tests below take longer
            if is_dataclass(element):
                yield from _record_problems(item.name, f"{prefix}{item.name}: ", element)
            elif not isinstance(element, (str, tuple)) or type_name in ("int", "float"):
                can_be_zero = f"{kind}.{item.name}" in _FIELDS_THAT_CAN_BE_ZERO
                yield from _figure_problem(f"{prefix}{item.name}", element, is_whole, can_be_zero)


def _figure_problem(field: str, value: Any, is_whole: bool, can_be_zero: bool) -> Iterator[tuple[str, str]]:
    """Yield the problem of a figure of a record, if it has one."""
    if not isinstance(value, Integral if is_whole else Real) or isinstance(value, bool):
        yield _field_problem(field, value, "a whole number" if is_whole else "a number")
    elif not math.isfinite(value) or value < 0 or (value == 0 and not can_be_zero):
        yield _field_problem(field, value, "0 or more" if can_be_zero else "positive")


def _field_problem(field: str, value: object, requirement: str) -> tuple[str, str]:
    return f"{field} must be {requirement}, got {value!r}", f"leave {field} out where it is not known"


def _contradicting_field_problems(target: Target) -> Iterator[tuple[str, str]]:
    """Yield the text and hint of each pair of fields that contradict each other."""
    for feature in target.features:
        row = PROCESSOR_FEATURES.get(feature)
        if row is None:
            known = ", ".join(name for name, f in PROCESSOR_FEATURES.items() if f.machine == target.machine)
            hint = did_you_mean_hint(feature, PROCESSOR_FEATURES) or f"known for {target.machine or 'any'}: {known}"
            yield f"unknown processor feature {feature!r} in features", hint
        elif row.machine != target.machine:
            text = f"feature {feature} belongs to {row.machine}, but machine is {target.machine!r}"
            yield text, f"set machine to {row.machine!r}, or leave the feature out"
    yield from _micro_kernel_contradictions(target)
    if target.activations not in ("", "int8", "uint8"):
        yield f"activations must be 'int8', 'uint8' or '', got {target.activations!r}", ""
    yield from _environment_contradictions(target)
    levels = [version.level for version in target.versions]
    if len(set(levels)) < len(levels) or "" in levels:
        yield f"versions must have different levels, got {', '.join(map(repr, levels))}", "set level of each version"
    for version in target.versions:
        if version.machine != target.machine:
            yield f"its version {version.name} is for {version.machine!r}, but machine is {target.machine!r}", ""


def _micro_kernel_contradictions(target: Target) -> Iterator[tuple[str, str]]:
    """Yield the micro-kernels that lack features, and those that no schedule can use."""
    for kernel in target.micro_kernels:
        if problems := list(_malformed_tuples(kernel)):
            yield from problems
            continue
        if missing := [name for name in kernel.requires if name not in target.features]:
            text = f"micro-kernel {kernel.name} requires {', '.join(missing)}, which the target does not have"
            yield text, "add the missing names to features, or leave the micro-kernel out"
        levels = CPU_LEVELS if target.gpu is None else GPU_LEVELS
        if kernel.level not in (*CPU_LEVELS, *GPU_LEVELS):
            yield f"unknown level of micro-kernel {kernel.name}: {kernel.level!r}", f"known: {', '.join(levels)}"
        elif kernel.level not in levels and (target.gpu is None) == (target.dialect != _GPU_DIALECT):
            text = f"micro-kernel {kernel.name} has the level {kernel.level!r}, which "
            text += "a target with gpu does not have" if target.gpu is not None else "needs gpu, which is None"
            yield text, f"levels of this target: {', '.join(levels)}"
        for shape in kernel.blocks if kernel.level in GPU_LEVELS else ():
            values: tuple[int, ...] = (
                shape.rows,
                shape.columns,
                shape.high,
                shape.wide,
                shape.reduction_groups,
                shape.depth,
            )
            values += kernel.adjacent, kernel.depth, kernel.group
            if min(values) > 0 and not _does_block_shape_fit(kernel, shape):
                text = f"the threads of a block cannot divide a tile of micro-kernel {kernel.name} evenly: {shape}"
                yield text, "take rows, columns and a depth that the number of threads divides"
        if kernel.level == "memory" and (kernel.data, kernel.weights) not in MEMORY_LAYOUTS:
            known = ", ".join(f"{data} and {weights}" for data, weights in MEMORY_LAYOUTS)
            text = f"no schedule for micro-kernel {kernel.name}, which reads {kernel.data!r} data"
            yield f"{text} and {kernel.weights!r} weights from memory", f"layouts of data and weights: {known}"
        yield from _micro_kernel_size_contradictions(kernel)
        yield from _unknown_instructions(kernel)


def _malformed_tuples(kernel: MicroKernel) -> Iterator[tuple[str, str]]:
    """Yield the fields of a micro-kernel that must be tuples and are not, and pairs of operand types that
    are not pairs of types.
    """
    for item in fields(kernel):
        value = getattr(kernel, item.name)
        if isinstance(item.default, tuple) and not isinstance(value, tuple):
            text = f"micro-kernel {kernel.name}: {item.name} must be a tuple, got {value!r}"
            yield text, f"write ({value!r},) for one element"
    for pair in kernel.operands if isinstance(kernel.operands, tuple) else ():
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(str(dtype) in DTYPES for dtype in pair):
            text = f"micro-kernel {kernel.name}: operands must be pairs of types of data and weights, got {pair!r}"
            yield text, f"known types: {', '.join(map(str, DTYPES))}"


def _unknown_instructions(kernel: MicroKernel) -> Iterator[tuple[str, str]]:
    """Yield the names of instructions of a micro-kernel that do not exist, one for each field."""
    if kernel.multiply == "" and (kernel.level in ("memory", "warp") or kernel.group != 1):
        yield f"micro-kernel {kernel.name} names no instruction", "set multiply to that of its products"
    for field, template in _instruction_names(kernel):
        try:
            names = _names_from_template(kernel, field, template)
        except (AttributeError, IndexError, KeyError, ValueError):
            text = f"micro-kernel {kernel.name}: {field} has no valid placeholders, got {template!r}"
            yield text, "known placeholders: {data}, {weights}, {lanes}, {lane}"
            continue
        known = ELEMENT_MEANINGS if field == "finish" else INSTRUCTIONS
        if unknown := next((name for name in names if name not in known), ""):
            text = f"micro-kernel {kernel.name}: {field} is {template!r}, but there is no instruction {unknown!r}"
            text += " with a meaning for one element" if field == "finish" and unknown in INSTRUCTIONS else ""
            of_field = (
                f"known: {', '.join(known)}" if field == "finish" else "use an instruction of aotc.tir.INSTRUCTIONS"
            )
            yield text, did_you_mean_hint(unknown, known) or of_field


def _instruction_names(kernel: MicroKernel) -> Iterator[tuple[str, str]]:
    """Yield each field of a micro-kernel that names an instruction, and the name."""
    for field in FIELDS_THAT_NAME_INSTRUCTIONS:
        if isinstance(name := getattr(kernel, field), str) and name:
            yield field, name
    yield from (("finish", name) for name in kernel.finish if isinstance(name, str))


def _names_from_template(kernel: MicroKernel, field: str, template: str) -> list[str]:
    """Return the names of a field of a micro-kernel for all operand types, lanes and groups that it
    accepts; the name with placeholders for types is left out where all types are accepted.
    """
    names: list[str] = []
    is_of_types = template.format(data="a", weights="a", lanes=1, lane=0) != template.format(
        data="b", weights="b", lanes=1, lane=0
    )
    operands = kernel.operands or (() if is_of_types else (("", ""),))
    groups = range(kernel.groups) if isinstance(kernel.groups, Integral) else (0,)
    for (data, weights), lanes, lane in product(operands, kernel.lanes or (_LANES_OF_WARP_LOAD,), groups):
        if field == "broadcast" and kernel.group != 1 and DType(data or "int8").is_float:
            data = f"uint{8 * DType(data).itemsize}"  # a group is loaded as words
        names.append(template.format(data=data, weights=weights, lanes=lanes, lane=lane))
    return names


def _micro_kernel_size_contradictions(kernel: MicroKernel) -> Iterator[tuple[str, str]]:
    """Yield the sizes of a micro-kernel that differ from those of its instruction; sizes of calls that
    are smaller than a tile if there are none. Sizes that are no positive numbers are reported elsewhere.
    """
    values = ((item.name, getattr(kernel, item.name)) for item in fields(kernel))
    sizes = {name: int(value) for name, value in values if isinstance(value, Integral) and int(value) > 0}
    expected = {name: size for name, size in values_contradicting_instruction(kernel).items() if name in sizes}
    if expected:
        found = ", ".join(f"{name}={sizes[name]}" for name in expected)
        text = f"micro-kernel {kernel.name} has {found}, which contradicts its instruction {kernel.multiply}"
        yield text, f"the instruction has {', '.join(f'{name}={size}' for name, size in expected.items())}"
        return
    least = [
        ("positions", "max_positions", "the positions of a tile"),
        ("outputs", "max_outputs", "the outputs of a tile"),
    ]
    if kernel.weights == "blocks":
        least.append(("block", "max_outputs", "the outputs of a block"))
    for field, most, name in least if kernel.level == "memory" else ():
        if sizes.get(most, math.inf) < sizes.get(field, 0):
            text = f"micro-kernel {kernel.name}: {most} must be {sizes[field]} or more, {name}, got {sizes[most]}"
            yield text, ""
            return


def _does_block_shape_fit(kernel: MicroKernel, shape: BlockShape) -> bool:
    """Return True if the threads of a block divide the work on a tile evenly: copies of both operands,
    by single elements and by memory sectors, products, and sums.
    """
    per_group, rows, columns = shape.rows * shape.columns, shape.rows * shape.high, shape.columns * shape.wide
    threads, sector = shape.reduction_groups * per_group, 8  # elements of four bytes
    dividends = [
        *((side, kernel.adjacent) for side in (shape.high, shape.wide)),
        *((threads, side) for side in (rows, columns)),
        *((side * shape.depth, threads) for side in (rows, columns)),
        *((threads, sector), (shape.depth, sector), (shape.depth, shape.reduction_groups)),
        (shape.high * shape.wide, shape.reduction_groups),
    ]
    if kernel.level == "warp":
        steps = shape.reduction_groups * kernel.depth // kernel.group
        dividends += [(shape.rows, 8), (shape.columns, 4), (shape.depth, steps), (threads, max(1, shape.depth // 8))]
    is_warp_of_32_columns = kernel.level != "warp" or (shape.high, shape.wide) == (4, 8)
    return is_warp_of_32_columns and not any(a % b for a, b in dividends)


def _environment_contradictions(target: Target) -> Iterator[tuple[str, str]]:
    """Yield the contradictions between GPU, threads, vectors, dialect and environment."""
    if target.gpu is not None and target.dialect != _GPU_DIALECT:
        yield f"gpu needs the dialect {_GPU_DIALECT}, got {target.dialect!r}", f"set dialect to {_GPU_DIALECT!r}"
    if target.gpu is None and target.dialect == _GPU_DIALECT:
        yield f"the dialect {_GPU_DIALECT} needs gpu, which is None", "set gpu to Gpu(...)"
    if target.gpu is not None and target.threads is not None:
        yield "kernels are launched on a gpu or divided among threads, not both", "set gpu or threads to None"
    if target.gpu is not None and target.vector_bytes:
        yield f"vector_bytes must be 0 with gpu, got {target.vector_bytes}", "the threads of a warp are its lanes"
    if target.bare and target.threads is not None:
        yield "threads need an operating system, but bare is True", "set threads to None"
    if target.bare and target.gpu is not None:
        yield "a gpu needs an operating system, but bare is True", "set gpu to None"


def _space_problems(target: Target, roles: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Yield the problems of memory regions: sizes, alignments, names, and roles without a region."""
    names = [space.name for space in target.spaces]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"{names.count(name)} memories are called {name}", "give them different names"
    for space in target.spaces:
        if space.bytes < 0 or space.align < 8 or space.align & (space.align - 1):
            yield f"the memory {space.name} cannot have {space.bytes} bytes, aligned to {space.align}", ""
    for role, parts in roles.items():
        if not target.memory_spaces_for_role(role):
            yield f"no memory space is assigned to {' and '.join(parts)}", ""
