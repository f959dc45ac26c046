# SPDX-License-Identifier: Apache-2.0
"""Emitted C has the texts for the features of the target's processor only."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from aotc_codegen.c.c_dialects import dialect_for_target
from aotc_codegen.c.cpu_feature_check import cpu_feature_check_code

import aotc
from aotc.driver.toolchain import gnu_cross_compiler_name
from aotc.ir.diagnostics import AotcError
from aotc.tir.float_abi import float_abi, with_float_abi
from aotc.tir.instruction_definition import Instruction, InstructionText
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.processor_features import PROCESSOR_FEATURES, CVariant, c_text_for_features
from aotc.tir.target import TARGETS, C, Target
from tests.conftest import skip_or_fail_without
from tests.e2e.projects import DIGITS

GCC, CLANG = "defined(__GNUC__)", "defined(__clang__)"
LADDER = (
    CVariant("a\n", ("avx512f", "avx2")),
    CVariant("b\n", ("avx2",), compiler=CLANG),
    CVariant("c\n", ("avx2",), compiler=GCC),
    CVariant("d\n", ("x86_64",), compiler=GCC),
    CVariant("e\n"),
)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ((), "e\n"),
        (("x86_64",), f"#if {GCC}\nd\n#else\ne\n#endif\n"),
        # the second text for gcc is never compiled
        (("x86_64", "avx2"), f"#if {CLANG}\nb\n#elif {GCC}\nc\n#else\ne\n#endif\n"),
        (("x86_64", "avx2", "avx512f"), "a\n"),
    ],
)
def test_the_first_text_for_a_processor_is_printed(features: tuple[str, ...], expected: str) -> None:
    assert c_text_for_features(LADDER, features) == expected


def test_a_text_that_some_compiler_cannot_compile_is_not_the_last() -> None:
    with pytest.raises(ValueError, match=r"no text for processors with \['avx2'\] and any C compiler"):
        c_text_for_features(LADDER[:4], ("avx2",))


def test_a_row_has_one_text_for_each_set_of_features() -> None:
    fast, portable = InstructionText(call="fast({0})", requires=("avx2",)), InstructionText(call="slow({0})")
    row = Instruction(name="row", takes=("float",), meaning=abs, texts=(fast, portable))
    assert row.text_for_dialect("gnu-c", 1, {"avx2"}) is fast
    assert row.text_for_dialect("gnu-c", 1) is portable
    assert replace(row, texts=(fast,)).text_for_dialect("gnu-c", 1) is None


def test_a_text_that_requires_an_unknown_feature() -> None:
    with pytest.raises(AotcError, match=r"unknown processor feature of fast\(\{0\}\): 'avx3'") as raised:
        InstructionText(call="fast({0})", requires=("avx3",))
    assert raised.value.code == "target" and "'avx2'" in raised.value.diagnostics[0].hint


def test_some_target_has_the_features_of_each_text() -> None:
    processors = [target.processor_features for target in TARGETS.values()]
    for row in INSTRUCTIONS.values():
        for text in row.texts:
            assert any(features.issuperset(text.requires) for features in processors), (row.name, text.requires)


def test_a_dialect_that_does_not_exist() -> None:
    with pytest.raises(AotcError, match="unknown C dialect of target odd: 'c9'") as raised:
        dialect_for_target(replace(C, name="odd", dialect="c9"))
    assert raised.value.code == "target"


# --- targets


SINGLE_TARGETS = {name: t for name, t in TARGETS.items() if t.gpu is None and t.machine and not t.versions}
SOFT_FLOAT_TARGETS = {f"{name}-soft": with_float_abi(t, "soft") for name, t in SINGLE_TARGETS.items() if float_abi(t)}


@pytest.mark.parametrize("target", [pytest.param(t, id=n) for n, t in {**SINGLE_TARGETS, **SOFT_FLOAT_TARGETS}.items()])
def test_compilers_define_the_macros_of_the_features_of_a_target(target: Target) -> None:
    """And of no other feature, except those that no text requires."""
    compiler = "arm-none-eabi-gcc" if target.machine == "arm" else gnu_cross_compiler_name(target.machine)
    if target.machine == "riscv32":
        compiler = "riscv64-unknown-elf-gcc"
    elif target.machine == "wasm32":
        compiler = "clang-19"
    compiler = compiler if shutil.which(compiler) else "gcc" if target.machine == "x86_64" else compiler
    if shutil.which(compiler) is None:
        skip_or_fail_without(compiler)
    machine_flags = ["--target=wasm32-wasi"] if target.machine == "wasm32" else []
    command = [compiler, *machine_flags, *target.cflags, "-dM", "-E", "-x", "c", "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    defined = set(re.findall(r"^#define (\w+)", done.stdout, re.MULTILINE))
    features = {f.name for f in PROCESSOR_FEATURES.values() if f.machine == target.machine and f.macro in defined}
    assert features == set(target.features)


MACROS = "|".join(("__SSE2__", "__aarch64__", *(feature.macro for feature in PROCESSOR_FEATURES.values())))
CONDITIONS = re.compile(rf"#.*\b({MACROS})\b")
SUFFIXES = (".c", ".h", ".cpp", ".hpp", ".cu")
GOLDEN = Path(__file__).parents[1] / "golden"


def conditions_on_instruction_sets(folder: Path) -> list[str]:
    """Lines of C and CUDA files with conditions on instruction sets; checks of compiler flags by #error are none."""
    return [
        f"{path.name}: {line}"
        for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
        for line, following in pairwise(path.read_text(encoding="utf-8").splitlines())
        if CONDITIONS.search(line) and not following.startswith("#error")
    ]


def test_golden_files_have_no_code_for_other_processors() -> None:
    assert not conditions_on_instruction_sets(GOLDEN)


@pytest.mark.parametrize("target", ["x86-64-v4-amx", "x86-64-v3", "aarch64-i8mm", "cortex-m4", "cortex-m55", "c"])
def test_integer_networks_have_no_code_for_other_processors(target: str, tmp_path: Path) -> None:
    aotc.compile(DIGITS.with_name("digits_int8.onnx"), output=tmp_path / "net", target=target, build=False)
    assert not conditions_on_instruction_sets(tmp_path / "net" / "src")


def test_a_length_of_vectors_without_the_vector_extension_is_checked() -> None:
    text = cpu_feature_check_code(("zvl256b",))
    assert '"zvl256b",' in text and re.search(r"cpu_vector_bytes\[\] = \{\s*32,", text)
