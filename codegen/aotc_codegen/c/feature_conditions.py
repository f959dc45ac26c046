# SPDX-License-Identifier: Apache-2.0
"""Evaluate preprocessor conditions on instruction sets for a target, so that emitted C has no code
for other processors.

    resolve_feature_conditions(text, isa_feature_macros_of_target(get_target("x86-64-v3")))

Texts of instructions have one branch for each instruction set and a portable one. `#if
defined(__AVX2__)` is decided by the target; conditions on compilers, such as
`defined(__clang__)`, remain in the emitted C.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

from aotc.tir import Target

#: Macros of gcc and clang by the names of x86 features in `Target.features`.
_MACRO_OF_X86_FEATURE: Final = {
    "sse3": "__SSE3__",
    "ssse3": "__SSSE3__",
    "sse4_1": "__SSE4_1__",
    "avx": "__AVX__",
    "f16c": "__F16C__",
    "fma": "__FMA__",
    "avx2": "__AVX2__",
    "avx512f": "__AVX512F__",
    "avx512bw": "__AVX512BW__",
    "avx512vl": "__AVX512VL__",
    "avx512_vnni": "__AVX512VNNI__",
    "avx512_bf16": "__AVX512BF16__",
    "avx_vnni": "__AVXVNNI__",
    "amx_int8": "__AMX_INT8__",
}
#: Macros that all processors of an architecture have.
_MACROS_OF_MACHINE: Final = {"x86_64": ("__SSE2__",), "aarch64": ("__aarch64__",)}
#: Macros of Arm's instruction sets, which `Target.macros` lists where a target has them; no target is big-endian.
_ARM_MACROS: Final = (
    "__ARM_BIG_ENDIAN",
    "__ARM_FEATURE_DOTPROD",
    "__ARM_FEATURE_DSP",
    "__ARM_FEATURE_MATMUL_INT8",
    "__ARM_FEATURE_MVE",
    "__ARM_FEATURE_SAT",
    "__thumb2__",
)
#: Macros whose value is known for every target.
FEATURE_MACROS: Final = frozenset(
    (*_MACRO_OF_X86_FEATURE.values(), *(m for macros in _MACROS_OF_MACHINE.values() for m in macros), *_ARM_MACROS)
)

#: A condition that is decided, or the text of what remains of it.
Condition: TypeAlias = bool | str

_DIRECTIVE_PATTERN: Final = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*)")
#: A condition with all its lines that end with a backslash.
_CONTINUED_CONDITION_PATTERN: Final = re.compile(r"^[ \t]*#[ \t]*(?:el)?if.*\\\n(?:.*\\\n)*", re.MULTILINE)
#: A condition that needs no parentheses as an operand of ! or &&.
_SIMPLE_CONDITION_PATTERN: Final = re.compile(r"!?(\w+|defined\s*\(\s*\w+\s*\)|\w+\(\w+\))")
_TOKEN_PATTERN: Final = re.compile(r"\s*(&&|\|\||!(?!=)|defined\s*\(\s*\w+\s*\)|\w+\(\w+\)|[()]|[^&|()!]+)")


def isa_feature_macros_of_target(target: Target) -> frozenset[str]:
    """Return the macros of `FEATURE_MACROS` that compilers define for a target."""
    features = (_MACRO_OF_X86_FEATURE[f] for f in target.features if f in _MACRO_OF_X86_FEATURE)
    return frozenset((*_MACROS_OF_MACHINE.get(target.machine, ()), *features, *target.macros))


@lru_cache(maxsize=4096)
def resolve_feature_conditions(text: str, defined_macros: frozenset[str]) -> str:
    """Return C text in which conditions on instruction sets are decided.

    text             C with complete #if ... #endif groups
    defined_macros   macros of `FEATURE_MACROS` that are defined; all others of them are undefined
    """
    if "#if" not in text:
        return text
    text = _CONTINUED_CONDITION_PATTERN.sub(lambda match: match[0].replace("\\\n", " "), text)
    return "".join(_resolve_lines_up_to_endif(iter(text.splitlines(keepends=True)), defined_macros))


def _resolve_lines_up_to_endif(lines: Iterator[str], defined_macros: frozenset[str]) -> Iterator[str]:
    """Yield the lines up to the end, or up to the #endif of the group that the lines are in."""
    for line in lines:
        match = _DIRECTIVE_PATTERN.match(line)
        if match is None:
            yield line
        else:
            yield from _resolve_rest_of_if_endif_group(match, lines, defined_macros)


def _resolve_rest_of_if_endif_group(
    opening: re.Match[str], lines: Iterator[str], defined_macros: frozenset[str]
) -> Iterator[str]:
    """Yield what remains of a group #if ... #endif, whose first line is `opening`."""
    branches: list[tuple[Condition, list[str]]] = []
    condition = _condition_of_directive(opening, defined_macros)
    body: list[str] = []
    depth = 0
    for line in lines:
        match = _DIRECTIVE_PATTERN.match(line)
        directive = match[1] if match else ""
        if depth == 0 and directive in ("elif", "else", "endif") and match is not None:
            branches.append((condition, body))
            if directive == "endif":
                break
            condition, body = _condition_of_directive(match, defined_macros), []
            continue
        depth += directive.startswith("if")
        depth -= directive == "endif"
        body.append(line)
    yield from _branches_with_undecided_conditions(branches, defined_macros)


def _branches_with_undecided_conditions(
    branches: list[tuple[Condition, list[str]]], defined_macros: frozenset[str]
) -> Iterator[str]:
    """Yield the branches that may be compiled, under the conditions that remain."""
    directive = "#if"
    for condition, body in branches:
        if condition is False:
            continue
        if condition is not True:
            yield f"{directive} {condition}\n"
        elif directive == "#elif":
            yield "#else\n"
        yield from _resolve_lines_up_to_endif(iter(body), defined_macros)
        if condition is True:
            break
        directive = "#elif"
    if directive == "#elif":
        yield "#endif\n"


def _condition_of_directive(match: re.Match[str], defined_macros: frozenset[str]) -> Condition:
    """Return the condition of #if, #ifdef, #ifndef, #elif or #else as far as it is not decided."""
    directive, text = match[1], match[2].strip()
    if directive == "else":
        return True
    if directive in ("ifdef", "ifndef"):
        text = ("!" if directive == "ifndef" else "") + f"defined({text})"
    tokens = [token.strip() for token in _TOKEN_PATTERN.findall(text) if token.strip()]
    condition, rest = _parse_disjunction(tokens, defined_macros)
    assert not rest, text
    return condition


def _parse_disjunction(tokens: list[str], defined_macros: frozenset[str]) -> tuple[Condition, list[str]]:
    return _parse_disjunction_or_conjunction(tokens, "||", defined_macros)


def _parse_disjunction_or_conjunction(
    tokens: list[str], operator: str, defined_macros: frozenset[str]
) -> tuple[Condition, list[str]]:
    """Parse operands of || or &&; return the simplified condition and the tokens after it."""
    decides = operator == "||"
    remaining: list[str] = []
    is_decided = False
    while True:
        if operator == "||":
            operand, tokens = _parse_disjunction_or_conjunction(tokens, "&&", defined_macros)
        else:
            operand, tokens = _parse_atom_negation_or_parentheses(tokens, defined_macros)
        if isinstance(operand, str):
            remaining.append(operand)
        else:
            is_decided |= operand is decides
        if not tokens or tokens[0] != operator:
            break
        tokens = tokens[1:]
    if is_decided or not remaining:
        return decides if is_decided else not decides, tokens
    if operator == "&&" and len(remaining) > 1:
        remaining = [f"({text})" if "||" in text and not _is_in_parentheses(text) else text for text in remaining]
    return f" {operator} ".join(remaining), tokens


def _parse_atom_negation_or_parentheses(
    tokens: list[str], defined_macros: frozenset[str]
) -> tuple[Condition, list[str]]:
    """Parse an atom, a negation or a condition in parentheses."""
    token, *rest = tokens
    if token == "!":
        operand, rest = _parse_atom_negation_or_parentheses(rest, defined_macros)
        return (f"!{operand}" if isinstance(operand, str) else not operand), rest
    if token == "(":
        operand, rest = _parse_disjunction(rest, defined_macros)
        assert rest and rest[0] == ")", tokens
        needs_parentheses = isinstance(operand, str) and _SIMPLE_CONDITION_PATTERN.fullmatch(operand) is None
        return (f"({operand})" if needs_parentheses else operand), rest[1:]
    macro = re.fullmatch(r"defined\s*\(\s*(\w+)\s*\)", token)
    if macro is not None and macro[1] in FEATURE_MACROS:
        return macro[1] in defined_macros, rest
    return token, rest


def _is_in_parentheses(text: str) -> bool:
    """Return True if the first parenthesis of a text is closed by its last character."""
    depth = 0
    for k, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and k < len(text) - 1:
            return False
    return text.startswith("(")
