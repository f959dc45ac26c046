# SPDX-License-Identifier: Apache-2.0
"""Every operation on every data type has the interpreter's results in C, without undefined behavior."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotc_codegen.c.c_dialects import Dialect

from aotc.ir.dtype import DTYPES, DType
from aotc.relay import op as operators
from aotc.tir.expr import INDEX, Buffer, Cast, Var, const
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Assign, Block, Declare, For, Kernel, Store
from aotc.tir.target import TARGETS
from tests.codegen.batch import HOST_C, STRICT, build, gnu_c_for, run_batch, source_of
from tests.codegen.cases import (
    Case,
    all_cases,
    binary_cases,
    call_cases,
    cast_cases,
    difference,
    pointwise,
    unary_cases,
    values,
)
from tests.ops.harness import kernel_job
from tests.share import draw, share

#: Of the operators, each one's kernels a text.
PARTS = 4
NARROW = [d for d in DTYPES if d.is_narrow_float]
COMPILERS = {
    "gcc": ("gcc", "-std=c99"),
    "clang": ("clang", "-std=c99"),
    "g++": ("g++", "-x", "c++", "-std=c++17"),
    "clang++": ("clang++", "-x", "c++", "-std=c++17"),
}


def check(cases: list[Case], folder: Path, *flags: str, dialect: Dialect = HOST_C) -> None:
    results = run_batch([(c.kernel, c.inputs) for c in cases], folder, *flags, dialect=dialect)
    problems = [difference(c, r[0], run_kernel(c.kernel, c.inputs)[0]) for c, r in zip(cases, results, strict=True)]
    assert not any(problems), "\n".join(filter(None, problems))


def some_call_cases() -> list[Case]:
    return draw(list(call_cases()), 60)


@pytest.mark.parametrize(
    "make", [binary_cases, unary_cases, cast_cases, some_call_cases, pytest.param(call_cases, marks=pytest.mark.slow)]
)
def test_compiled_operations_agree_with_the_interpreter(make: Any, tmp_path: Path) -> None:
    check(list(make()), tmp_path)


def test_hardware_conversions_of_float16_agree(tmp_path: Path) -> None:
    if "f16c" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("no F16C in this processor")
    dialect = replace(HOST_C, features=HOST_C.features | {"f16c"})
    check([c for c in all_cases() if "float16" in c.name.split("-")], tmp_path, "-mf16c", dialect=dialect)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_operations_compile_without_warnings(compiler: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if compiler.startswith("clang"):
        request.getfixturevalue("clang")
    path = tmp_path / "cases.c"
    path.write_text(source_of(c.kernel for c in all_cases()), encoding="utf-8")
    command = [*COMPILERS[compiler], *STRICT, "-pedantic", "-fsyntax-only", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def test_no_operation_is_undefined(tmp_path: Path) -> None:
    """Every case under the undefined-behavior sanitizer, which ends the process at the first offense.

    Conversions get values that do not fit, too.
    """
    cases = all_cases()
    floats = [d for d in DTYPES if d.is_float]
    cases += [pointwise(f"{s}-to-{t}", (values(s, 3),), lambda a, t=t: Cast(t, a)) for s in floats for t in DTYPES]
    sanitize = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all")
    library = build(source_of(c.kernel for c in cases), tmp_path, "-O0", *sanitize)
    arrays = {f"{k}_{n}": a.view(np.uint8) for k, c in enumerate(cases) for n, a in enumerate(c.inputs)}
    np.savez(tmp_path / "inputs.npz", **arrays)
    sizes = [(len(c.inputs), c.kernel.outputs[0].nbytes) for c in cases]
    script = f"""
import ctypes, numpy as np
library, data = ctypes.CDLL({str(library)!r}), np.load({str(tmp_path / "inputs.npz")!r})
for k, (count, size) in enumerate({sizes!r}):
    arrays = [data[f"{{k}}_{{n}}"] for n in range(count)] + [np.zeros(size, np.uint8)]
    library[f"kernel{{k}}"](*(ctypes.c_void_p(a.ctypes.data) for a in arrays))
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[:4000]


@pytest.mark.parametrize("dtype", NARROW)
def test_every_narrow_float_converts_as_ml_dtypes_says(dtype: DType, tmp_path: Path) -> None:
    """All codes to float32; to the type: all codes' values, their neighbors in float32, the midpoints."""
    codes = np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)
    with np.errstate(all="ignore"):
        exact = np.unique(codes.astype(np.float32))
        exact = exact[np.isfinite(exact)]
        middle = (exact[1:].astype(np.float64) + exact[:-1]) / 2
        around = np.concatenate((exact, middle.astype(np.float32)))
        around = np.concatenate([around, *(np.nextafter(around, np.float32(s * np.inf)) for s in (-1, 1))])
        special = np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-45], np.float32)
    to_float = pointwise("load", (codes,), lambda a: Cast(DType("float32"), a))
    from_float = pointwise("store", (np.concatenate((around, special)),), lambda a: Cast(dtype, a))
    check([to_float, from_float], tmp_path)


def test_large_index_values_wrap_like_data(tmp_path: Path) -> None:
    """int64 values made of loop variables: small ones are plain C, those beyond 32 bits wrap; divisions floor."""
    out, i, at = Buffer("out", INDEX, 40), Var("i"), Var("at")
    steps = [
        Store(out, i, i * 3 - 20),
        Store(out, i + 10, i * (1 << 62)),
        Store(out, i + 20, (i - 5) // 3),
        Store(out, i + 30, (i - 5) % 3 + at),
    ]
    body = Block((Declare(at, const(7)), For(i, 10, Block((*steps, Assign(at, at + i))))))
    kernel = Kernel(name="k", inputs=(), outputs=(out,), body=body)
    flags = ("-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error")
    ((actual,),) = run_batch([(kernel, [])], tmp_path, *flags)
    np.testing.assert_array_equal(actual, run_kernel(kernel, [])[0])


@pytest.mark.parametrize(("compiler", "target", "part"), share(product(COMPILERS, ("c", "x86-64-v3"), range(PARTS)), 1))
def test_operators_compile_without_warnings(
    compiler: str, target: str, part: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The kernels of all samples of each operator."""
    if compiler.startswith("clang"):
        request.getfixturevalue("clang")
    (tmp_path / "operators.c").write_text(operator_kernels(target, part), encoding="utf-8")
    flags = [*STRICT, *TARGETS[target].cflags, *(["-pedantic"] if target == "c" else [])]
    command = [*COMPILERS[compiler], *flags, "-fsyntax-only", "operators.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_operators_compile_without_warnings_of_the_optimizer(target: str, tmp_path: Path) -> None:
    """All operators compile without GCC warnings of its optimizer; portable C is compiled when operators run."""
    (tmp_path / "operators.c").write_text(operator_kernels(target, parts=1), encoding="utf-8")
    command = ["gcc", "-std=c99", *STRICT, *TARGETS[target].cflags, "-O1", "-c", "-o", "operators.o", "operators.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@cache
def operator_kernels(target: str, part: int = 0, parts: int = PARTS) -> str:
    families = [operators.operators_defined_in(module) for module in operators.OPERATOR_MODULES]
    compiled = [op for ops in families for op in ops if op.static is None]
    jobs = [kernel_job(op, sample, TARGETS[target]) for op in compiled[part::parts] for sample in op.samples()]
    return source_of((job.kernel for job in jobs), gnu_c_for(TARGETS[target]))
