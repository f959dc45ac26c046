# SPDX-License-Identifier: Apache-2.0
"""Compute an identifier of a program's numerical behavior: programs with equal identifiers give
bit-identical results.

numerics_fingerprint(program)          # "5f3a9c0e21d47b86"
structure_fingerprint(program, place_of_parameter)    # of a program whose parameters are other numbers, too
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from aotc.ir import DType
from aotc.tir import (
    Block,
    Branch,
    Buffer,
    Call,
    Define,
    Kernel,
    Program,
    ProgramNode,
    StateTensor,
    Step,
    Storage,
    Store,
    TierChoice,
    all_exprs_in_stmt,
    as_expr,
    sequences_in,
    strip_loop_kinds,
    to_text,
)
from aotc.tir.functions.elementary_function_table import elementary_function_definition
from aotc.tir.stmt import executions_in

#: Version of the IR semantics, which is increased if a tensor program changes its meaning.
SEMANTICS_VERSION: Final = 1


def numerics_fingerprint(program: Program) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the kernels, called functions, parameters and
    calls of a program, and of its state: the pairs of tensors and their contents before the first run.

    Names and addresses of tensors, aliasing marks and kinds of loops are not included.
    """
    lines, storages = _structure_lines_and_storages(program)
    digest = hashlib.sha256(f"{SEMANTICS_VERSION}".encode())
    digest.update("\n".join(lines).encode())
    for storage in storages:
        if storage.data is not None:
            digest.update(np.ascontiguousarray(storage.data).view(np.uint8).data)
    return digest.hexdigest()[:16]


def structure_fingerprint(program: Program, place_of_parameter: Callable[[Storage], str]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of everything that decides the results of a program except
    the values of its parameters: the code of a program runs with the parameters of another one if their
    identifiers are equal.

    place_of_parameter    returns a text with the properties of a parameter that code relies on, such as its
                          byte offset in a file
    """
    lines, storages = _structure_lines_and_storages(program)
    lines += [place_of_parameter(storage) for storage in storages if storage.kind == "constant"]
    return hashlib.sha256("\n".join([str(SEMANTICS_VERSION), *lines]).encode()).hexdigest()[:16]


def _structure_lines_and_storages(program: Program) -> tuple[list[str], list[Storage]]:
    """Return the text of a program without the values of its parameters, and its storages in the order of use."""
    kernels = {kernel: k for k, kernel in enumerate(program.distinct_kernels)}
    places: dict[Storage, int] = {}
    lines = [_numerics_text_of_kernel(kernel) for kernel in kernels] + _texts_of_called_functions(kernels)
    for storage in program.inputs:
        places.setdefault(storage, len(places))
    lines += _lines_of_calls(program.body, kernels, places)
    lines += [f"{s.kind} {s.dtype} {s.size}" for s in places]
    lines += [f"size {name} {allowed}" for name, allowed in program.sizes.items()]
    lines += [f"check {check}" for check in program.checks]
    lines.append(f"results {[places.get(s, -1) for s in program.outputs]}")
    if program.state:
        pairs = ((places.get(t.past, -1), places.get(t.present, -1), _hash_of_first_contents(t)) for t in program.state)
        lines.append(f"state {sorted(pairs)}")
    return lines, list(places)


def _hash_of_first_contents(tensor: StateTensor) -> str:
    """Return the SHA-256 of the bytes of a state tensor before the first run; that of no bytes for zeros."""
    contents = b"" if tensor.initial is None else np.ascontiguousarray(tensor.initial).tobytes()
    return hashlib.sha256(contents if any(contents) else b"").hexdigest()


def _lines_of_calls(
    nodes: Iterable[ProgramNode], kernels: Mapping[Kernel, int], places: dict[Storage, int]
) -> list[str]:
    """Return the text of a sequence of calls with numbers instead of names; `places` gets the numbers
    of storages.
    """
    lines: list[str] = []
    for node in nodes:
        if isinstance(node, Step):
            args = [(places.setdefault(v.storage, len(places)), v.offset) for v in node.args]
            numbers = "".join(f" {number}" for number in node.numbers)
            lines.append(f"call {kernels[node.kernel]} {args}{numbers}")
            continue
        if isinstance(node, Define):
            at = places.setdefault(node.value.storage, len(places)), node.value.offset
            least = f"{node.least} " if node.least else ""
            lines += [f"size {node.size} {at} {least}{node.most}", *map(str, node.checks)]
            continue
        if isinstance(node, TierChoice):
            lines += [f"tier {tier.sizes} {[*map(str, tier.checks)]}" for tier in node.tiers]
        elif isinstance(node, Branch):
            lines.append(f"if {places.setdefault(node.condition.storage, len(places))} {node.condition.offset}")
        else:
            lines.append(type(node).__name__.lower())
        for sequence in sequences_in(node):
            lines += [*_lines_of_calls(sequence, kernels, places), "end"]
    return lines


def _numerics_text_of_kernel(kernel: Kernel) -> str:
    source = "" if kernel.source is None else repr(kernel.source)
    return strip_loop_kinds(to_text(replace(kernel, name="", span=None, macs=0, overlaps=()))) + source


def _texts_of_called_functions(kernels: Iterable[Kernel]) -> list[str]:
    """Return the texts of the elementary functions that kernels call, directly or through other
    functions, and the names of the instructions that they execute.
    """
    bodies = [kernel.body for kernel in kernels]
    executed = (s for body in bodies for s in executions_in(body) if s.operands)
    texts: dict[tuple[str, DType, bool], str] = {(s.instruction, s.operands[0].dtype, False): "" for s in executed}
    while bodies:
        calls = [n for n in all_exprs_in_stmt(bodies.pop()) if isinstance(n, Call)]
        for key in {(n.name, n.args[0].dtype, n.fused) for n in calls} - texts.keys():
            texts[key] = ""
            if (definition := elementary_function_definition(*key)) is not None:
                result = Buffer("result", definition.result.dtype, 1)
                bodies.append(Block((*definition.body, Store(result, as_expr(0), definition.result))))
                kernel = Kernel(name=key[0], inputs=(), outputs=(result,), body=bodies[-1])
                texts[key] = to_text(kernel)
    return sorted(f"{key} {text}" for key, text in texts.items())
