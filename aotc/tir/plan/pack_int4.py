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
from aotc.tir import BYTES, INSTRUCTIONS, Buffer, Call, Intrinsic, Kernel, Program, Storage, View, map_exprs, walk_stmts
from aotc.tir.expr import Const, Expr, Load, call, cast, const, operands, with_operands
from aotc.tir.int4_unpacking import COUNT, halved, nibbles_name, of_nibbles
from aotc.tir.simplify import Linear, linear, simplify

#: Smallest number of elements of a packed constant; for fewer, the unpacking code is larger than
#: the saving.
LEAST_ELEMENTS: Final = 256
_UINT8: Final = DType("uint8")


def narrowed(program: Program, cached: int = 0) -> Program:
    """Return the program with packed constants, unless all packable constants together fit into
    `cached` bytes.
    """
    uses: dict[tuple[Kernel, int], list[View]] = defaultdict(list)
    for step in program.steps:
        for k, view in enumerate(step.args):
            uses[step.kernel, k].append(view)
    least = {s: number for s in program.constants if (number := _least(s)) is not None}
    kernels: dict[Kernel, dict[Buffer, int]] = defaultdict(dict)
    wrong: set[Storage] = set(least)
    while wrong:
        # all constants that a call site reads must be packed alike, and so must they for all
        # kernels that read them
        kernels.clear()
        wrong = set()
        for (kernel, k), views in uses.items():
            found = {least.get(view.storage) for view in views}
            if found == {None}:
                continue
            number, buffer = min(n for n in found if n is not None), kernel.params[k]
            if len(found) > 1 or any(v.offset % 2 for v in views) or not _readable(kernel, buffer):
                wrong |= {view.storage for view in views}
            kernels[kernel][buffer] = number
        least = {s: number for s, number in least.items() if s not in wrong}
    if sum(s.nbytes for s in least) <= cached:
        return program
    stored = {s: _stored(s, number) for s, number in least.items()}
    made = {kernel: _kernel(kernel, kernels.get(kernel, {})) for kernel in program.kernels}
    steps = []
    for step in program.steps:
        args = (View(stored[v.storage], v.offset // 2) if v.storage in stored else v for v in step.args)
        steps.append(replace(step, kernel=made[step.kernel], args=tuple(args)))
    return replace(program, steps=tuple(steps))


def _least(storage: Storage) -> int | None:
    """Return the value that packed 0 stands for, if all values of a constant lie within 16
    consecutive integers, else None.

    The usual ranges (-8 to 7, or 0 to 15) are preferred, so that most constants have equal ranges.
    """
    data = storage.data
    if data is None or storage.dtype not in BYTES or storage.size < LEAST_ELEMENTS:
        return None
    low, high = int(data.min()), int(data.max())
    usual = -COUNT // 2 if storage.dtype.is_signed else 0
    for least in (usual, low):
        if least <= low and high < least + COUNT:
            return least
    return None


def _stored(storage: Storage, least: int) -> Storage:
    data = halved(storage.data, least)
    return replace(storage, dtype=_UINT8, shape=data.shape, data=data, least=least)


class _WholeError(Exception):
    """Internal error: a kernel needs whole bytes of a constant, which cannot be packed as 4-bit
    values.
    """


def _readable(kernel: Kernel, buffer: Buffer) -> bool:
    """Return True if a kernel can read a buffer that is packed as 4-bit values."""
    try:
        _kernel(kernel, {buffer: 0})
    except _WholeError:
        return False
    return kernel.source is None


def _kernel(kernel: Kernel, least: Mapping[Buffer, int]) -> Kernel:
    """Return the kernel that reads the buffers of `least` in packed form; raise _WholeError if it
    cannot.
    """
    if not least:
        return kernel
    fresh = {b: Buffer(b.name, _UINT8, (b.size + 1) // 2, align=b.align) for b in least}

    def taken(expr: Expr) -> Expr:
        if isinstance(expr, Call) and INSTRUCTIONS[expr.name].memory:
            return on_memory(expr)
        expr = with_operands(expr, tuple(map(taken, operands(expr))))
        if not isinstance(expr, Load) or expr.buffer not in fresh:
            return expr
        return _taken_apart(expr, fresh[expr.buffer], least[expr.buffer])

    def on_memory(expr: Call) -> Call:
        found = [isinstance(x, Load) and x.buffer in fresh for x in expr.args]
        if not any(found):
            return expr
        name, (data, weights, *rest) = of_nibbles(expr.name), expr.args
        if name not in INSTRUCTIONS or found.count(True) > 1 or not isinstance(weights, Load) or not found[1]:
            raise _WholeError
        buffer = weights.buffer
        return Call(name, (data, _half(weights, fresh[buffer]), *rest, const(least[buffer], "int32")))

    if any(isinstance(s, Intrinsic) and s.source.buffer in fresh for s in walk_stmts(kernel.body)):
        raise _WholeError
    inputs = tuple(fresh.get(b, b) for b in kernel.inputs)
    return replace(kernel, inputs=inputs, body=map_exprs(kernel.body, taken))


def _half(load: Load, buffer: Buffer) -> Load:
    """Return a load of the bytes that hold the elements of a load; raise _WholeError unless these
    are whole bytes.
    """
    place = linear(load.index, {})
    if load.lanes % 2 or load.stride != 1 or any(c % 2 for c in (place.const, *place.terms.values())):
        raise _WholeError
    half = Linear({a: c // 2 for a, c in place.terms.items()}, place.const // 2)
    return Load(buffer, half.expr(), load.lanes // 2)


def _taken_apart(load: Load, buffer: Buffer, least: int) -> Expr:
    """Return an expression that loads elements packed as 4-bit values and unpacks them."""
    dtype = str(load.dtype)
    if load.lanes == 1:
        odd = simplify(load.index % 2, {})
        byte = Load(buffer, simplify(load.index // 2, {}))
        half = byte >> cast(odd * 4, "uint8") if not isinstance(odd, Const) else byte >> 4 if odd.value else byte & 15
        return cast(half & 15, dtype) + least
    name = nibbles_name(dtype, load.lanes)
    if not name:
        raise _WholeError
    return call(name, _half(load, buffer), const(least, dtype))
