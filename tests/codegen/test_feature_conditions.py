# SPDX-License-Identifier: Apache-2.0
"""Conditions on instruction sets are decided for the target: what remains has the same meaning for the preprocessor."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from aotc_codegen.c.feature_conditions import FEATURE_MACROS, isa_feature_macros_of_target, resolve_feature_conditions
from hypothesis import given, settings
from hypothesis import strategies as st

import aotc
from aotc.driver.toolchain import gnu_cross_compiler_name
from aotc.tir.float_abi import float_abi, with_float_abi
from aotc.tir.target import TARGETS, Target
from tests.conftest import skip_or_fail_without
from tests.e2e.projects import DIGITS

AVX2 = frozenset({"__AVX2__"})
EXAMPLES = {
    "#if defined(__AVX2__)\na\n#else\nb\n#endif\n": "a\n",
    "#if defined(__AVX512F__)\na\n#elif defined(__AVX2__)\nb\n#else\nc\n#endif\n": "b\n",
    "#if defined(__AVX512F__)\na\n#endif\n": "",
    "#ifdef __AVX2__\na\n#endif\n": "a\n",
    "#ifndef __AVX2__\na\n#endif\n": "",
    "#if GCC && defined(__AVX2__)\na\n#else\nb\n#endif\n": "#if GCC\na\n#else\nb\n#endif\n",
    "#if defined(X)\na\n#elif defined(__AVX512F__)\nb\n#elif defined(__AVX2__)\nc\n#else\nd\n#endif\n": (
        "#if defined(X)\na\n#else\nc\n#endif\n"
    ),
    "#if defined(__AVX512F__) || (defined(__clang__) && defined(__AVX2__))\na\n#endif\n": (
        "#if defined(__clang__)\na\n#endif\n"
    ),
    "#if defined(__AVX2__) && !defined(__clang__) && __GNUC__ >= 12\na\n#endif\n": (
        "#if !defined(__clang__) && __GNUC__ >= 12\na\n#endif\n"
    ),
    "#if (defined(A) || defined(B)) && defined(__AVX2__) && F(x)\na\n#endif\n": (
        "#if (defined(A) || defined(B)) && F(x)\na\n#endif\n"
    ),
    "#if !(defined(__AVX2__) && defined(A))\na\n#endif\n": "#if !defined(A)\na\n#endif\n",
    "#if defined(__AVX2__) && \\\n    defined(A)\na\n#elif defined(__AVX2__) || \\\n    defined(B)\nb\n#endif\n": (
        "#if defined(A)\na\n#else\nb\n#endif\n"
    ),
    "#if !(A>=12) && !(defined(A)) && defined(__AVX2__)\na\n#endif\n": "#if !(A>=12) && !defined(A)\na\n#endif\n",
    "#if defined(A)\n#if defined(__AVX2__)\na\n#else\nb\n#endif\nc\n#endif\n": "#if defined(A)\na\nc\n#endif\n",
}


@pytest.mark.parametrize(("text", "expected"), EXAMPLES.items())
def test_examples(text: str, expected: str) -> None:
    assert resolve_feature_conditions(text, AVX2) == expected


# --- against a preprocessor

KNOWN, UNKNOWN = ("__AVX2__", "__F16C__", "__ARM_FEATURE_MVE"), ("A", "B")
atoms = st.sampled_from([*KNOWN, *UNKNOWN]).map("defined({})".format)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("!({})".format, inner),
        st.builds("({}) && {}".format, inner, atoms),
        st.builds("{} || ({})".format, atoms, inner),
        st.builds("({} || {}) && {}".format, inner, inner, atoms),
    ),
    max_leaves=5,
)


@st.composite
def ladders(draw: st.DrawFn, depth: int = 2) -> str:
    """Nested groups of conditions, with a line of its own in each branch."""
    lines = []
    for number in range(draw(st.integers(1, 3))):
        lines.append(f"{'#elif' if number else '#if'} {draw(conditions)}\n")
        lines.append(f"line{draw(st.integers(0, 999))}\n")
        if depth and draw(st.booleans()):
            lines.append(draw(ladders(depth - 1)))
    if draw(st.booleans()):
        lines.append(f"#else\nline{draw(st.integers(0, 999))}\n")
    return "".join([*lines, "#endif\n"])


def preprocessed(text: str, defined: set[str]) -> list[str]:
    """The lines that a C preprocessor keeps."""
    flags = [*(f"-D{name}" for name in defined), *(f"-U{name}" for name in {*KNOWN, *UNKNOWN} - defined)]
    done = subprocess.run(["cpp", "-P", *flags], input=text, capture_output=True, text=True, check=True)
    return done.stdout.split()


@settings(max_examples=60, deadline=None)
@given(ladders(), st.sets(st.sampled_from([*KNOWN, *UNKNOWN])))
def test_what_remains_is_what_the_preprocessor_keeps(text: str, defined: set[str]) -> None:
    resolved = resolve_feature_conditions(text, frozenset(defined & set(KNOWN)))
    assert not re.search("|".join(KNOWN), resolved)
    assert preprocessed(resolved, defined) == preprocessed(text, defined)


# --- targets


SINGLE_TARGETS = {name: t for name, t in TARGETS.items() if t.gpu is None and t.machine and not t.versions}
SOFT_FLOAT_TARGETS = {f"{name}-soft": with_float_abi(t, "soft") for name, t in SINGLE_TARGETS.items() if float_abi(t)}


@pytest.mark.parametrize("target", [pytest.param(t, id=n) for n, t in {**SINGLE_TARGETS, **SOFT_FLOAT_TARGETS}.items()])
def test_compilers_define_the_macros_of_a_target(target: Target) -> None:
    compiler = "arm-none-eabi-gcc" if target.machine == "arm" else gnu_cross_compiler_name(target.machine)
    if target.machine == "riscv32":
        compiler = "riscv64-unknown-elf-gcc"
    compiler = compiler if shutil.which(compiler) else "gcc" if target.machine == "x86_64" else compiler
    if shutil.which(compiler) is None:
        skip_or_fail_without(compiler)
    command = [compiler, *target.cflags, "-dM", "-E", "-x", "c", "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    defined = set(re.findall(r"^#define (\w+)", done.stdout, re.MULTILINE))
    assert isa_feature_macros_of_target(target) == defined & FEATURE_MACROS


CONDITIONS = re.compile(rf"#.*defined ?\((?!__ARM_BIG_ENDIAN)({'|'.join(FEATURE_MACROS)})\)")
GOLDEN = Path(__file__).parents[1] / "golden"


def conditions_on_instruction_sets(folder: Path) -> list[str]:
    """The lines of C files that have conditions on instruction sets; checks of compiler flags by #error are none."""
    return [
        f"{path.name}: {line}"
        for path in sorted(folder.rglob("*.[ch]"))
        for line, following in pairwise(path.read_text(encoding="utf-8").splitlines())
        if CONDITIONS.search(line) and not following.startswith("#error")
    ]


def test_golden_files_have_no_code_for_other_processors() -> None:
    assert not conditions_on_instruction_sets(GOLDEN)


@pytest.mark.parametrize("target", ["x86-64-v4-amx", "x86-64-v3", "aarch64-i8mm", "cortex-m4", "cortex-m55", "c"])
def test_integer_networks_have_no_code_for_other_processors(target: str, tmp_path: Path) -> None:
    aotc.compile(DIGITS.with_name("digits_int8.onnx"), output=tmp_path / "net", target=target, build=False)
    assert not conditions_on_instruction_sets(tmp_path / "net" / "src")
