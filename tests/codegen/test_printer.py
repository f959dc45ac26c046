# SPDX-License-Identifier: Apache-2.0
"""The C text of kernels is readable, has few parentheses, and has no names or comments that C misinterprets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.c_dialects import GNU_C
from aotc_codegen.c.c_identifiers import (
    RESERVED_IDENTIFIERS,
    UniqueIdentifiers,
    c_identifier_from_text,
    escape_for_c_comment,
    escape_for_c_string,
)
from aotc_codegen.c.kernel_printer import model_node_comment_lines, print_kernel
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.dtype import DTYPES, DType
from aotc.ir.span import Span
from aotc.tir.expr import Broadcast, Buffer, Cast, Const, Expr, Load, Var, binary, bitcast, maximum, select
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Store
from tests.codegen.batch import run_batch

F32 = DType("float32")


def printed(kernel: Kernel) -> str:
    return "\n".join([*model_node_comment_lines(kernel), print_kernel(kernel, GNU_C).definition_with_name(kernel.name)])


def test_a_small_kernel() -> None:
    x, y, i, j = Buffer("x", F32, 12), Buffer("y", F32, 12), Var("i"), Var("j")
    load = Load(x, i * 4 + j)
    value = maximum((load + 1.0) * load - 0.5, 0.0)
    body = For(i, 3, For(j, 4, Store(y, i * 4 + j, value)))
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=body, span=Span("m", node="Conv_0"))
    assert (
        printed(kernel)
        == """\
/* Conv_0 */
void k(const float *AOTC_RESTRICT x, float *AOTC_RESTRICT y) {
  for (ptrdiff_t i = 0; i < 3; ++i) {
    for (ptrdiff_t j = 0; j < 4; ++j) {
      y[i * 4 + j] = aotc_maxc_f32((x[i * 4 + j] + 1.0f) * x[i * 4 + j] - 0.5f, 0.0f);
    }
  }
}
"""
    )


def test_registers_branches_and_vectors() -> None:
    x, y, k = Buffer("x", F32, 64), Buffer("y", F32, 16), Var("k")
    acc = Var("acc", F32, 16)
    step = Assign(acc, acc + Load(x, k * 16, 16) * Broadcast(Load(x, k), 16))
    body = Block((Declare(acc, Const(0.0, F32, 16)), For(k, 4, If(k.not_equal(2), step)), Store(y, 0 * k, acc)))
    assert (
        printed(Kernel(name="k", inputs=(x,), outputs=(y,), body=body))
        == """\
void k(const float *AOTC_RESTRICT x, float *AOTC_RESTRICT y) {
  aotc_float32x16 acc = (aotc_float32x16){0};
  for (ptrdiff_t k = 0; k < 4; ++k) {
    if (k != 2) {
      acc = acc + *(const aotc_float32x16u *)(x + k * 16) * aotc_splat_f32x16(x[k]);
    }
  }
  *(aotc_float32x16u *)(y + 0) = acc;
}
"""
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_vectors_agree_with_the_interpreter(dtype: str, tmp_path: Path) -> None:
    """a * b + c - splat(a[0]), and each kind of conversion to and from int32."""
    d, lanes = DType(dtype), 4
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-100 if d.is_signed else 0, 100, 8).astype(d.numpy) for _ in range(3)]
    a, b, c = (Buffer(n, d, 8) for n in "abc")
    out, wide, i = Buffer("out", d, 8), Buffer("wide", DType("int32"), 8), Var("i")
    index = i * lanes
    value = Load(a, index, lanes) * Load(b, index, lanes) + Load(c, index, lanes)
    stores = [Store(out, index, value - Broadcast(Load(a, 0 * i), lanes))]
    if d.is_integer and d.bits < 32:
        stores.append(Store(wide, index, Cast(DType("int32"), Load(a, index, lanes))))
    outputs = (out, wide)[: len(stores)]
    kernel = Kernel(name="k", inputs=(a, b, c), outputs=outputs, body=For(i, 2, Block(stores)))
    (results,) = run_batch([(kernel, arrays)], tmp_path)
    for actual, expected in zip(results, run_kernel(kernel, arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


@given(st.text(max_size=80))
def test_any_text_makes_an_identifier(text: str) -> None:
    name = c_identifier_from_text(text)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and len(name) <= 63 and "__" not in name
    assert name not in RESERVED_IDENTIFIERS and c_identifier_from_text(name) == name


@given(st.lists(st.text(max_size=5), max_size=20))
def test_names_are_unique(texts: list[str]) -> None:
    names = UniqueIdentifiers(any_case=True)
    made = [names.unique_identifier(t).upper() for t in texts]
    assert len(set(made)) == len(made)


@given(st.text(max_size=60))
def test_any_text_is_safe_in_a_comment(text: str) -> None:
    safe = escape_for_c_comment(text)
    assert "*/" not in safe and "/*" not in safe and "??" not in safe and "\\" not in safe
    assert all(" " <= c <= "~" for c in safe)


def test_hostile_strings_reach_c_as_they_are(tmp_path: Path) -> None:
    texts = ['a"b', "back\\slash", "??/ ??=", "new\nline\ttab", "ü模🙂", "\x01" + "2", "%s%n", ""]
    lines = "".join(f'  fwrite("{escape_for_c_string(t)}", 1, {len(t.encode())}, stdout);\n' for t in texts)
    (tmp_path / "s.c").write_text(f"#include <stdio.h>\nint main(void) {{\n{lines}  return 0;\n}}\n")
    subprocess.run(
        [shutil.which("gcc") or "cc", "-std=c99", "-pedantic-errors", "s.c", "-o", "s"], cwd=tmp_path, check=True
    )
    assert subprocess.run(["./s"], cwd=tmp_path, capture_output=True, check=True).stdout == "".join(texts).encode()


@pytest.mark.parametrize("dtype", DTYPES)
def test_literals_are_exact(dtype: DType, tmp_path: Path) -> None:
    """Constants of all kinds, stored by a kernel, are bit for bit what they were."""
    if dtype.is_bool:
        items: list[int | float | bool] = [False, True]
    elif dtype.is_float:
        items = [
            0.0,
            1.0,
            -1.5,
            0.1,
            1 / 3,
            dtype.max,
            dtype.min,
            float("inf"),
            float("-inf"),
            1e-45,
            5e-324,
            1e17,
            3.0,
        ]
    else:
        items = [0, 1, -1 if dtype.is_signed else 2, dtype.min, dtype.max]
    out, i = Buffer("out", dtype, len(items)), Var("i")
    body = Block(Store(out, Const(k, DType("int64")), Const(v, dtype)) for k, v in enumerate(items))
    kernel = Kernel(name="k", inputs=(), outputs=(out,), body=For(i, 1, body))
    ((actual,),) = run_batch([(kernel, [])], tmp_path)
    with np.errstate(all="ignore"):
        if dtype.is_float:
            expected = np.array(items, np.float64).astype(dtype.numpy)
            numbers = ~np.isnan(expected.astype(np.float64))
            assert np.isnan(actual.astype(np.float64))[~numbers].all()
            actual, expected = actual[numbers], expected[numbers]
        else:
            expected = np.array(items, object).astype(dtype.numpy)
    np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))


def test_names_never_shadow_functions_that_kernels_call(tmp_path: Path) -> None:
    """Buffers called exp, aotc_exp_f32, x; a register called like a buffer; loops called alike."""
    e, f, out = Buffer("exp", F32, 4), Buffer("aotc_exp_f32", F32, 4), Buffer("int", F32, 4)
    i, j, r = Var("i"), Var("i"), Var("exp", F32)
    inner = Block((Declare(r, Load(e, i) + Load(f, j)), Store(out, i, select(binary("gt", r, 0.0), r, 0.0))))
    kernel = Kernel(name="k", inputs=(e, f), outputs=(out,), body=For(i, 4, For(j, 4, inner)))
    arrays = [np.arange(4, dtype=np.float32), np.ones(4, np.float32)]
    ((actual,),) = run_batch([(kernel, arrays)], tmp_path, "-Wshadow", "-Werror=shadow")
    np.testing.assert_array_equal(actual, run_kernel(kernel, arrays)[0])


def test_what_a_kernel_repeats_for_other_vectors_is_a_function(tmp_path: Path) -> None:
    """The same bits, less text; twice is not often, and neither is a short expression."""
    x, b, y = Buffer("x", F32, 96), Buffer("b", F32, 8), Buffer("y", F32, 96)

    def kernel(count: int) -> Kernel:
        def value(k: int) -> Expr:
            load = Load(x, Const(8 * k, DType("int64")), 8)
            return maximum((load + Load(b, Const(0, DType("int64")), 8)) * load - Broadcast(Const(0.5, F32), 8), load)

        stores = [Store(y, Const(8 * k, DType("int64")), value(k)) for k in range(count)]
        return Kernel(name="k", inputs=(x, b), outputs=(y,), body=Block(stores))

    made = print_kernel(kernel(12), GNU_C)
    (name,) = (name for name in made.definitions if name.startswith("aotc_step_"))
    assert made.body.count(f"{name}(*(const aotc_float32x8u *)(x + ") == 12
    assert "always_inline" in made.definitions[name]
    assert not any(name.startswith("aotc_step_") for name in print_kernel(kernel(2), GNU_C).definitions)
    inputs = [np.random.default_rng(0).normal(size=n).astype(np.float32) for n in (96, 8)]
    ((found,),) = run_batch([(kernel(12), inputs)], tmp_path)
    np.testing.assert_array_equal(found, run_kernel(kernel(12), inputs)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("to_float", [False, True])
def test_only_called_functions_are_defined(dtype: str, to_float: bool) -> None:
    """clang warns of unused functions, and it is the only compiler for vectors of RISC-V."""
    bits = DType(f"uint{DType(dtype).bits}")
    source, target = (bits, DType(dtype)) if to_float else (DType(dtype), bits)
    x, y, i = Buffer("x", source, 8), Buffer("y", target, 8), Var("i")
    body = For(i, 8, Store(y, i, bitcast(Load(x, i), target)))
    printed = print_kernel(Kernel(name="k", inputs=(x,), outputs=(y,), body=body), GNU_C)
    (name,) = printed.definitions
    assert printed.body.count(f"{name}(") == 1
    assert re.findall(r"(\w+)\(\w+ x\) \{", printed.definitions[name]) == [name]


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ("i * (n // 2)", "i * (n / 2)"),
        ("i * (n % 3)", "i * (n % 3)"),
        ("i * (n // 2 * n)", "i * (n / 2 * n)"),
        ("i * (n * (n // 2))", "i * n * (n / 2)"),
        ("i * n // 2", "i * n / 2"),
    ],
)
def test_products_with_quotients_keep_their_order(index: str, text: str) -> None:
    kernel = parse_kernel(
        f'kernel "k" {{ input x: float32[64] output y: float32[64] number n: int64 in [0, 4] '
        f"for i in 0..4 {{ y[{index}] = x[i] }} }}"
    )
    assert f"y[{text}] = x[i];" in printed(kernel)
