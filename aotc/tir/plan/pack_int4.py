# SPDX-License-Identifier: Apache-2.0
"""PackInt4: store 8-bit constants with at most 16 consecutive values as 4-bit values, two per byte;
unpack in registers.

    dot4_uint8_int8_x16(sums, x, w[i:64])  ->  dot4_uint8_int8_x16(sums, x, nibbles_int8_x64(w[i / 2:32], -8))

Input: a Program of vectorized kernels. Output: a Program with bit-identical results. Instructions
that read memory directly get a packed constant only if they have a variant for it.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from aotc.ir import DType
from aotc.tir import INSTRUCTIONS, INT8_DTYPES, Buffer, Kernel, Program, Step, Storage, View
from aotc.tir.expr import Const, Expr, Load, call, cast, const, loads_in, operands, with_operands
from aotc.tir.int4_unpacking import (
    INT4_VALUE_COUNT,
    int4_unpack_instruction_name_or_empty,
    int4_variant_of_kernel_name,
    pack_int4,
)
from aotc.tir.simplify import LinearForm, linear_form, simplify
from aotc.tir.stmt import Execute, Stmt, rebuild_stmt

_UINT8: Final = DType("uint8")


def pack_constants_as_int4(program: Program, min_elements: int, cache_bytes: int = 0) -> Program:
    """Return the program with packed constants, unless all packable constants together fit into
    `cache_bytes` bytes.

    min_elements   fewest elements of a packed constant
    """
    uses: dict[tuple[Kernel, int], list[View]] = defaultdict(list)
    for step in program.steps:
        for k, view in enumerate(step.args):
            uses[step.kernel, k].append(view)
    least = {
        s: number for s in program.constants if (number := _least_value_of_int4_range(s, min_elements)) is not None
    }
    kernels: dict[Kernel, dict[Buffer, int]] = defaultdict(dict)
    wrong: set[Storage] = set(least)
    while wrong:
        # all constants that a call site reads must be packed alike, and so must they for all
        # kernels that read them
        kernels.clear()
        wrong = set()
        for (kernel, k), views in uses.items():
            range_starts = {least.get(view.storage) for view in views}
            if range_starts == {None}:
                continue
            number, buffer = min(n for n in range_starts if n is not None), kernel.params[k]
            if (
                len(range_starts) > 1
                or any(v.offset % 2 for v in views)
                or not _can_read_buffer_packed_as_int4(kernel, buffer)
            ):
                wrong |= {view.storage for view in views}
            kernels[kernel][buffer] = number
        least = {s: number for s, number in least.items() if s not in wrong}
    if sum(s.nbytes for s in least) <= cache_bytes:
        return program
    stored = {s: _pack_storage_as_int4(s, number) for s, number in least.items()}
    new_kernels = {
        kernel: _rewrite_kernel_to_read_packed_int4(kernel, kernels.get(kernel, {}))
        for kernel in program.distinct_kernels
    }

    def read_packed_constants(step: Step) -> tuple[Step]:
        args = (View(stored[v.storage], v.offset // 2) if v.storage in stored else v for v in step.args)
        return (replace(step, kernel=new_kernels[step.kernel], args=tuple(args)),)

    return program.map_steps(read_packed_constants)


def _least_value_of_int4_range(storage: Storage, min_elements: int) -> int | None:
    """Return the value that packed 0 stands for, if a constant has enough elements and all of its
    values lie within 16 consecutive integers, else None.

    The usual ranges (-8 to 7, or 0 to 15) are preferred, so that most constants have equal ranges.
    """
    data = storage.data
    if data is None or storage.dtype not in INT8_DTYPES or storage.size < min_elements:
        return None
    low, high = int(data.min()), int(data.max())
    usual = -INT4_VALUE_COUNT // 2 if storage.dtype.is_signed else 0
    for least in (usual, low):
        if least <= low and high < least + INT4_VALUE_COUNT:
            return least
    return None


def _pack_storage_as_int4(storage: Storage, range_start: int) -> Storage:
    data = pack_int4(storage.data, range_start)
    return replace(storage, dtype=_UINT8, shape=data.shape, data=data, least=range_start)


class _NeedsWholeBytesError(Exception):
    """Internal error: a kernel needs whole bytes of a constant, which cannot be packed as 4-bit
    values.
    """


def _can_read_buffer_packed_as_int4(kernel: Kernel, buffer: Buffer) -> bool:
    """Return True if a kernel can read a buffer that is packed as 4-bit values."""
    try:
        _rewrite_kernel_to_read_packed_int4(kernel, {buffer: 0})
    except _NeedsWholeBytesError:
        return False
    return kernel.source is None


def _rewrite_kernel_to_read_packed_int4(kernel: Kernel, range_start_of_buffer: Mapping[Buffer, int]) -> Kernel:
    """Return the kernel that reads the buffers of `range_start_of_buffer` in packed form; raise
    _NeedsWholeBytesError if it cannot.
    """
    if not range_start_of_buffer:
        return kernel
    fresh = {b: Buffer(b.name, _UINT8, (b.size + 1) // 2, align=b.align) for b in range_start_of_buffer}

    def unpack_packed_loads(expr: Expr) -> Expr:
        expr = with_operands(expr, tuple(map(unpack_packed_loads, operands(expr))))
        if not isinstance(expr, Load) or expr.buffer not in fresh:
            return expr
        return _unpack_int4_load(expr, fresh[expr.buffer], range_start_of_buffer[expr.buffer])

    def use_int4_micro_kernel(stmt: Execute) -> Execute:
        packed = [load for x in stmt.operands for load in loads_in(x) if load.buffer in fresh]
        if not packed:
            return stmt
        name, weights = int4_variant_of_kernel_name(stmt.instruction), packed[0]
        if name not in INSTRUCTIONS or len(packed) > 1 or weights is not stmt.operands[1]:
            raise _NeedsWholeBytesError
        data, _, *rest = stmt.operands
        low = const(range_start_of_buffer[weights.buffer], "int32")
        return replace(
            stmt, instruction=name, operands=(data, _load_packed_bytes(weights, fresh[weights.buffer]), *rest, low)
        )

    def rewrite_stmt(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Execute):
            return use_int4_micro_kernel(stmt)
        return rebuild_stmt(stmt, rewrite_stmt, unpack_packed_loads)

    inputs = tuple(fresh.get(b, b) for b in kernel.inputs)
    return replace(kernel, inputs=inputs, body=rewrite_stmt(kernel.body))


def _load_packed_bytes(load: Load, buffer: Buffer) -> Load:
    """Return a load of the bytes that hold the elements of a load; raise _NeedsWholeBytesError
    unless these are whole bytes.
    """
    place = linear_form(load.index, {})
    if load.lanes % 2 or load.stride != 1 or any(c % 2 for c in (place.const, *place.terms.values())):
        raise _NeedsWholeBytesError
    half = LinearForm({a: c // 2 for a, c in place.terms.items()}, place.const // 2)
    return Load(buffer, half.to_expr(), load.lanes // 2)


def _unpack_int4_load(load: Load, buffer: Buffer, range_start: int) -> Expr:
    """Return an expression that loads elements packed as 4-bit values and unpacks them."""
    dtype = str(load.dtype)
    if load.lanes == 1:
        odd = simplify(load.index % 2, {})
        byte = Load(buffer, simplify(load.index // 2, {}))
        half = byte >> cast(odd * 4, "uint8") if not isinstance(odd, Const) else byte >> 4 if odd.value else byte & 15
        return cast(half & 15, dtype) + range_start
    name = int4_unpack_instruction_name_or_empty(dtype, load.lanes)
    if not name:
        raise _NeedsWholeBytesError
    return call(name, _load_packed_bytes(load, buffer), const(range_start, dtype))
