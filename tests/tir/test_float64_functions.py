# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float64: the interpreter's bits, bounds against extended precision, special values."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotc_codegen.c.compiler_flags import kernel_cflags

from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer, Load, Var, call
from aotc.tir.functions.elementary_function_table import ULP_DOUBLE
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import Kernel, Store, all_exprs_in_stmt, forall
from aotc.tir.target import TARGETS
from tests.codegen.batch import STRICT, build, finished, gnu_c_for, run_batch, source_of
from tests.codegen.batch import call as run
from tests.codegen.bit_comparison import differing, wrong
from tests.conftest import require_tool
from tests.targets.machines import native_targets

DOUBLE, SIZE = DType("float64"), 403
INF, NAN, TINY, LARGEST = np.inf, np.nan, 5e-324, 1.7976931348623157e308
Array = np.ndarray[Any, Any]
SPECIAL = [
    0.0, -0.0, INF, -INF, NAN, TINY, -TINY, 2.2250738585072014e-308, 1e-310, -1e-310, LARGEST, -LARGEST, 1.0, -1.0, 0.5,
    -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, 2.5, -2.5, 709.78, 710.0, -745.2, -708.5, 1e300, -1e300, 2.0**53, 2.0**53 - 1,
    4503599627370497.5, 171.7, -171.5, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 1e-20, -1e-20, 1e16, 22.0, 0.875, 1025.0,
    -1075.0, 6381956970095103 * 2.0**797,  # the double that is nearest to a multiple of pi/2
]  # fmt: skip
RANGES = {"log": (0.5, 2), "log2": (0.5, 2), "log10": (0.5, 2), "log1p": (-1, 1), "acosh": (1, 3), "asin": (-1, 1),
          "acos": (-1, 1), "atanh": (-1, 1), "tgamma": (-30, 60), "lgamma": (0.01, 40)}  # fmt: skip


def numbers(size: int, name: str = "", seed: int = 0) -> tuple[Array, Array]:
    """Random bits, exponents around 1, a range that the function is of interest in, and special numbers."""
    rng = np.random.default_rng(seed)
    rest = size - len(SPECIAL)
    drawn = rng.integers(0, 2**64, rest, np.uint64).view(np.float64)
    drawn[::3] = (rng.standard_normal(rest) * np.exp(rng.uniform(-20, 7, rest)))[::3]
    drawn[1::3] = rng.uniform(*RANGES.get(name, (-4, 4)), rest)[1::3]
    x = np.concatenate([drawn, SPECIAL])
    return x, rng.permutation(x)


def of(name: str, size: int = SIZE, dtype: DType = DOUBLE) -> Kernel:
    """y[i] = name(x[i]), or of x[i] and z[i]."""
    x, z, y = (Buffer(n, dtype, size) for n in "xzy")
    i = Var("i")
    made = call(name, *[Load(b, i) for b in (x, z)][: len(INSTRUCTIONS[name].takes)])
    return Kernel(name=name, inputs=(x, z), outputs=(y,), body=forall(i, size, Store(y, i, made)))


def scheduled(kernel: Kernel, target: str) -> Kernel:
    kernel = finished(kernel, TARGETS[target])
    verify(kernel)
    return kernel


@pytest.mark.parametrize("targets", [("c",), ("x86-64",), ("x86-64-v3", "x86-64-v4")], ids=" ".join)
def test_compiled_functions_have_the_bits_of_the_interpreter(targets: Sequence[str], tmp_path: Path) -> None:
    inputs = {name: list(numbers(SIZE, name)) for name in ULP_DOUBLE}
    expected = {}
    for target in filter(native_targets().__contains__, targets):
        made = [scheduled(of(name), target) for name in ULP_DOUBLE]
        wide = TARGETS[target].vector_bytes >= 32
        assert not wide or all(any(n.lanes > 1 for n in all_exprs_in_stmt(kernel.body)) for kernel in made)
        expected = expected or {kernel.name: run_kernel(kernel, inputs[kernel.name]) for kernel in made}
        for cc in filter(shutil.which, ("gcc", "clang-19") if target == targets[-1] else ("gcc",)):
            (folder := tmp_path / f"{target}-{cc}").mkdir()
            source = source_of(made, gnu_c_for(TARGETS[target]))
            library = ctypes.CDLL(str(build(source, folder, *TARGETS[target].cflags, cc=cc)))
            for k, kernel in enumerate(made):
                found = run(library, f"kernel{k}", kernel, inputs[kernel.name])
                assert not wrong(kernel, found, expected[kernel.name]), (target, cc)


@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_compilers_take_vectors_without_a_warning(cc: str, tmp_path: Path) -> None:
    target = TARGETS["x86-64-v4"]
    source = source_of((scheduled(of(name), target.name) for name in ULP_DOUBLE), gnu_c_for(target))
    (tmp_path / "kernels.c").write_text(source, "utf-8")
    command = [require_tool(cc), "-std=c99", *kernel_cflags(target), *STRICT, "-c", "kernels.c"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("target", ["c", "x86-64-v3"])
def test_fmod_of_float32_is_exact(target: str, tmp_path: Path) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        x, z = (a.astype(np.float32) for a in numbers(SIZE))
        exact = np.fmod(x, z)
    kernel = scheduled(of("fmod", dtype=DType("float32")), target)
    dialect = gnu_c_for(TARGETS[target])
    (found,) = run_batch([(kernel, [x, z])], tmp_path, *TARGETS[target].cflags, dialect=dialect)
    assert not wrong(kernel, found, [exact])
    assert not wrong(kernel, run_kernel(kernel, [x, z]), [exact])


def reference(name: str) -> str:
    """A C function: the library's, of long double, on arrays."""
    many = "x[i], z[i]" if len(INSTRUCTIONS[name].takes) > 1 else "x[i]"
    head = f"void exact_{name}(const double *x, const double *z, long double *y, long n)"
    return f"{head} {{ for (long i = 0; i < n; ++i) y[i] = {name}l({many}); }}\n"


@pytest.fixture(scope="module", params=["c", "x86-64-v3"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions for a target without fma or for one with it, and the library's with more digits."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("no numbers of more digits here")
    kernels = [scheduled(of(name, 20_000), request.param) for name in ULP_DOUBLE]
    source = (
        source_of(kernels, gnu_c_for(TARGETS[request.param]))
        + "#include <math.h>\n"
        + "".join(map(reference, ULP_DOUBLE))
    )
    flags = TARGETS[request.param].cflags
    return ctypes.CDLL(str(build(source, tmp_path_factory.mktemp("double"), *flags)))


@cache
def places() -> dict[str, int]:
    return {name: k for k, name in enumerate(ULP_DOUBLE)}


@pytest.mark.parametrize("name", ULP_DOUBLE)
def test_errors_are_within_the_bounds(name: str, library: ctypes.CDLL) -> None:
    kernel = of(name, 20_000)
    x, z = numbers(20_000, name, seed=1)
    (found,) = run(library, f"kernel{places()[name]}", kernel, [x, z])
    exact = np.empty(x.size, np.longdouble)
    library[f"exact_{name}"](*(ctypes.c_void_p(a.ctypes.data) for a in (x, z, exact)), ctypes.c_long(x.size))
    with np.errstate(over="ignore", invalid="ignore"):
        near = exact.astype(np.float64)
    special = ~np.isfinite(near)
    assert not differing(found[special], near[special]).size
    x, near, exact, found = (a[~special] for a in (x, near, exact, found))
    below = np.where(np.abs(near) > np.abs(exact), np.nextafter(np.abs(near), 0), np.abs(near))
    if name == "lgamma":  # it has zeros below -2
        below = np.where(x < -2, np.maximum(below, 0.25), below)
    errors = np.abs(found.astype(np.longdouble) - exact) / np.spacing(below)
    worst = int(np.argmax(errors))
    assert errors[worst] <= ULP_DOUBLE[name], float(x[worst]).hex()


def rows() -> Iterator[tuple[str, float, float, float]]:
    """(name, x, z, result) from Annex F of C99."""
    odd = "expm1 log1p sin tan sinh tanh asinh atanh asin atan erf cbrt"
    for name, zero in [(n, z) for n in odd.split() for z in (0.0, -0.0)]:
        yield name, zero, 0.0, zero
    for name, low, high in [
        ("exp", 0.0, INF), ("exp2", 0.0, INF), ("expm1", -1.0, INF), ("sinh", -INF, INF), ("cosh", INF, INF),
        ("tanh", -1.0, 1.0), ("erf", -1.0, 1.0), ("log", NAN, INF), ("log2", NAN, INF), ("log10", NAN, INF),
        ("log1p", NAN, INF), ("sin", NAN, NAN), ("cos", NAN, NAN), ("tan", NAN, NAN), ("cbrt", -INF, INF),
        ("asinh", -INF, INF), ("acosh", NAN, INF), ("atanh", NAN, NAN), ("asin", NAN, NAN), ("acos", NAN, NAN),
        ("atan", -np.pi / 2, np.pi / 2), ("tgamma", NAN, INF), ("lgamma", INF, INF),
    ]:  # fmt: skip
        yield name, -INF, 0.0, low
        yield name, INF, 0.0, high
        yield name, NAN, 0.0, NAN
    for name, x, y in [
        ("exp", 0.0, 1.0), ("cos", -0.0, 1.0), ("cosh", 0.0, 1.0), ("exp2", -1074.0, TINY), ("exp2", 10.0, 1024.0),
        ("log", 1.0, 0.0), ("log2", 0.0, -INF), ("log2", 1.0, 0.0), ("log2", TINY, -1074.0), ("log10", 1e22, 22.0),
        ("log10", -0.0, -INF), ("log1p", -1.0, -INF), ("log1p", -2.0, NAN), ("log", -TINY, NAN), ("cbrt", -27.0, -3.0),
        ("acosh", 1.0, 0.0), ("acosh", 0.5, NAN), ("atanh", 1.0, INF), ("atanh", -1.0, -INF), ("atanh", 2.0, NAN),
        ("acos", 1.0, 0.0), ("acos", -1.0, np.pi), ("asin", 1.0, np.pi / 2), ("asin", 1.0 + 2.0**-52, NAN),
        ("tgamma", 0.0, INF), ("tgamma", -0.0, -INF), ("tgamma", -3.0, NAN), ("tgamma", 5.0, 24.0),
        ("tgamma", 1e-320, INF), ("lgamma", 1.0, 0.0), ("lgamma", 2.0, 0.0), ("lgamma", -7.0, INF),
        ("lgamma", 0.0, INF), ("cos", 6381956970095103 * 2.0**797, -4.687165924254628e-19),
        ("tan", 1e300, 1.4214488238747245),
        ("tan", 6381956970095103 * 2.0**797, -2.133485385753704e18), ("sin", LARGEST, 0.004961954789184062),
    ]:  # fmt: skip
        yield name, x, 0.0, y
    for x, z, y in [
        (NAN, 0.0, 1.0), (1.0, NAN, 1.0), (-1.0, INF, 1.0), (-1.0, -INF, 1.0), (0.0, -1.0, INF), (-0.0, -1.0, -INF),
        (-0.0, -2.0, INF), (-0.0, 3.0, -0.0), (0.5, INF, 0.0), (0.5, -INF, INF), (2.0, INF, INF), (-INF, -3.0, -0.0),
        (-INF, -2.0, 0.0), (-INF, 3.0, -INF), (-INF, 2.0, INF), (INF, -1.0, 0.0), (-2.0, 0.5, NAN), (-INF, 0.5, INF),
        (-2.0, 3.0, -8.0), (-2.0, -1074.0, TINY), (10.0, 22.0, 1e22), (1.0 + 2.0**-52, 2.0**62, INF),
    ]:  # fmt: skip
        yield "pow", x, z, y
    for x, z, y in [
        (0.0, -0.0, np.pi), (-0.0, -0.0, -np.pi), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -1.0, np.pi),
        (-0.0, 1.0, -0.0), (1.0, 0.0, np.pi / 2), (-1.0, -0.0, -np.pi / 2), (INF, INF, np.pi / 4),
        (INF, -INF, 3 * np.pi / 4), (-INF, -INF, -3 * np.pi / 4), (1.0, INF, 0.0), (-1.0, -INF, -np.pi),
        (INF, 2.0, np.pi / 2), (NAN, 1.0, NAN), (1.0, NAN, NAN), (TINY, -LARGEST, np.pi), (TINY, TINY, np.pi / 4),
    ]:  # fmt: skip
        yield "atan2", x, z, y
    for x, z, y in [
        (0.0, 1.0, 0.0), (-0.0, 1.0, -0.0), (INF, 1.0, NAN), (1.0, 0.0, NAN), (1.0, INF, 1.0), (-6.0, 3.0, -0.0),
        (5.5, -2.0, 1.5), (-5.5, 2.0, -1.5), (LARGEST, TINY, 0.0), (1e300, 3.0, 1e300 % 3.0), (NAN, 1.0, NAN),
        (1e-310, 3e-320, 1e-310 % 3e-320),
    ]:  # fmt: skip
        yield "fmod", x, z, y


@pytest.mark.parametrize("name", ULP_DOUBLE)
def test_special_values_are_those_of_the_standard(name: str) -> None:
    table = [row for function, *row in rows() if function == name]
    x, z, expected = (np.array(column) for column in zip(*table, strict=True))
    kernel = of(name, x.size)
    assert not wrong(kernel, run_kernel(kernel, [x, z]), [expected])
