# SPDX-License-Identifier: Apache-2.0
"""Vectorized independent loops have equal bits: in the interpreter, and in C with several compilers."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.dtype import DType
from aotc.tir.expr import BOOL, INDEX, Buffer, Load, Pack, Var, as_expr, binary, call, cast, maximum, select, unary
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_vectorization import vectorize_kernel
from aotc.tir.stmt import Assign, Block, Declare, For, Kernel, Stmt, Store, all_exprs_in_stmt, forall, walk_stmts
from aotc.tir.target import AARCH64, TARGETS, X86_64, X86_64_V3, X86_64_V4, C, Target
from tests.codegen.batch import STRICT, build, gnu_c_for, run_batch, source_of
from tests.codegen.bit_comparison import same
from tests.share import share
from tests.targets.machines import native_targets
from tests.tir.random_loops import NARROW, TYPES, made

HALF, SINGLE = DType("float16"), DType("float32")
WIDTHS = (X86_64, X86_64_V4)
#: Targets that this processor runs: of code without flags of the compiler, and with vectors of 32 and 64 bytes.
MACHINES = [Target(name="here", machine=normalized_architecture_name())]
MACHINES += [TARGETS[t] for t in native_targets() if t.endswith(("v3", "v4"))]
Array = np.ndarray[Any, Any]


def pooled(extent: int, begin: int = 0, *, open_end: bool = False) -> Kernel:
    """y[i] = max(-1, x[i], x[i + 1] * x[i] + x[i]) from `begin` on, each operation rounded."""
    x, y, i, r = Buffer("x", HALF, extent + 1), Buffer("y", HALF, extent), Var("i"), Var("r", HALF)
    n = Var("n", INDEX)
    here = Load(x, i)
    body = Block((Declare(r, maximum(here, -1.0)), Assign(r, maximum(r, Load(x, i + 1) * here + here)), Store(y, i, r)))
    clear = For(j := Var("j"), extent, Store(y, j, cast(as_expr(0.0), "float16")))
    loop = For(i, n if open_end else extent, body, begin=begin, kind="independent")
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=Block((clear, Declare(n, as_expr(extent)), loop)))


def in_place(extent: int) -> Kernel:
    """y[i] = x[i] * 2, where y may be x."""
    x, y, i = Buffer("x", HALF, extent), Buffer("y", HALF, extent), Var("i")
    body = forall(i, extent, Store(y, i, Load(x, i) * 2.0))
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=body, inplace=((0, 0),))


def converted(to: DType, numbers: Array) -> tuple[Kernel, list[Array]]:
    """Numbers as `to`."""
    source, size = DType.from_numpy(numbers), numbers.size
    x, y, i = Buffer("x", source, size), Buffer("y", to, size), Var("i")
    body = forall(i, size, Store(y, i, cast(Load(x, i), to)))
    return Kernel(name=f"{source}_to_{to}", inputs=(x,), outputs=(y,), body=body), [numbers]


def steps(kernel: Kernel) -> list[int]:
    return [s.step for s in walk_stmts(kernel.body) if isinstance(s, For)]


def vectors_in(kernel: Kernel) -> bool:
    return any(n.lanes > 1 for n in all_exprs_in_stmt(kernel.body))


def test_a_loop_is_cut_into_vectors_and_a_remainder() -> None:
    def cut(kernel: Kernel) -> list[int]:
        return steps(vectorize_kernel(kernel, X86_64_V4))

    assert cut(pooled(64))[1:] == [16]
    assert cut(pooled(45))[1:] == [16]  # and a vector that overlaps with the one before
    assert cut(pooled(3))[1:] == [1]
    assert cut(pooled(45, open_end=True))[1:] == [16, 1]
    assert cut(in_place(45)) == [16, 1]  # vectors of 8 and of 4 are alone
    assert cut(in_place(7)) == [1]


def test_vectors_are_as_long_as_the_widest_numbers_allow() -> None:
    def lanes(*types: str) -> int:
        buffers = [Buffer(t, DType(t), 64) for t in types]
        i = Var("i")
        body = Block(Store(b, i, cast(Load(buffers[0], i), b.dtype)) for b in buffers[1:])
        kernel = Kernel(name="k", inputs=tuple(buffers[:1]), outputs=tuple(buffers[1:]), body=forall(i, 64, body))
        return steps(vectorize_kernel(kernel, X86_64_V3))[0]

    assert lanes("float32", "int32") == lanes("int8", "float32") == 8
    assert (lanes("int8", "uint8"), lanes("float32", "float64")) == (32, 4)


def test_scalar_targets_and_serial_loops_stay() -> None:
    kernel = pooled(64)
    assert vectorize_kernel(kernel, C) is kernel
    x, y, i = Buffer("x", SINGLE, 64), Buffer("y", SINGLE, 64), Var("i")
    serial = Kernel(name="k", inputs=(x,), outputs=(y,), body=For(i, 64, Store(y, i, Load(x, i))))
    assert not vectors_in(vectorize_kernel(serial, X86_64_V4))


@pytest.mark.parametrize("case", ["copied from anywhere", "stored apart", "another element in place"])
def test_what_has_no_vector_form_stays(case: str) -> None:
    x, y, z, i = Buffer("x", SINGLE, 64), Buffer("y", SINGLE, 128), Buffer("z", DType("int64"), 64), Var("i")
    bodies: dict[str, Stmt] = {
        "copied from anywhere": Store(y, i, Load(x, binary("floormod", Load(z, i), 64))),
        "stored apart": Store(y, i * 2, call("exp", Load(x, i))),
        "another element in place": Block((Store(y, i, Load(x, i) + 1.0), Store(y, i + 64, Load(x, i + 1)))),
    }
    kernel = Kernel(name="k", inputs=(x, z), outputs=(y,), body=forall(i, 63, bodies[case]), inplace=((0, 0),))
    assert not vectors_in(vectorize_kernel(kernel, X86_64_V4))


def test_two_statements_in_place_have_vectors_where_no_iteration_accesses_what_another_writes() -> None:
    def halves(distance: int) -> Kernel:
        x, y, i = Buffer("x", SINGLE, 128), Buffer("y", SINGLE, 128), Var("i")
        stores = Block((Store(y, i, Load(x, i) + 1.0), Store(y, i + distance, Load(x, i + distance) * 2.0)))
        return Kernel(name="k", inputs=(x,), outputs=(y,), body=forall(i, 64, stores), inplace=((0, 0),))

    assert vectors_in(vectorize_kernel(halves(64), X86_64_V4))
    assert not vectors_in(vectorize_kernel(halves(63), X86_64_V4))  # iterations 0 and 63 access element 63


@pytest.mark.parametrize("named", [False, True])
def test_places_that_conditions_keep_inside_are_not_read(named: bool) -> None:
    x, y, n, i = Buffer("x", SINGLE, 20), Buffer("y", SINGLE, 32), Buffer("n", DType("int32"), 32), Var("i")
    inside, c = Load(n, i) > 0, Var("c", BOOL)
    store = Store(y, i, call("exp", select(c if named else inside, Load(x, i), 0.0)))
    body = Block([Declare(c, inside), store] if named else [store])
    kernel = Kernel(name="k", inputs=(x, n), outputs=(y,), body=forall(i, 32, body))
    wide = vectorize_kernel(kernel, X86_64_V4)
    verify(wide)
    assert vectors_in(wide)
    data = [np.arange(20, dtype=np.float32), np.arange(20, -12, -1, dtype=np.int32)]
    np.testing.assert_array_equal(run_kernel(wide, data)[0], run_kernel(kernel, data)[0])


def test_elements_from_anywhere_are_collected() -> None:
    """Where something is computed of them, through registers, and unless what is read is written before."""
    x, y, z, i, p = Buffer("x", SINGLE, 64), Buffer("y", SINGLE, 64), Buffer("z", INDEX, 64), Var("i"), Var("p")
    taken = Declare(p, binary("floormod", Load(z, i), 64))
    wave = Store(y, i, call("sin", Load(x, p)))

    def made(*stmts: Stmt) -> Kernel:
        kernel = Kernel(name="k", inputs=(x,), outputs=(y, z), body=forall(i, 64, Block(stmts)))
        return vectorize_kernel(kernel, X86_64_V4)

    assert any(isinstance(n, Pack) and n.lanes == 8 for n in all_exprs_in_stmt(made(taken, wave).body))
    assert not vectors_in(made(taken, Store(z, i, as_expr(0)), wave))


def test_outer_loops_take_what_inner_ones_cannot() -> None:
    """A sum for each channel: neighbors are channels, what is summed lies rows apart."""
    x, y, c, k, acc = Buffer("x", SINGLE, 640), Buffer("y", SINGLE, 64), Var("c"), Var("k"), Var("acc", SINGLE)
    sums = For(k, 10, Assign(acc, acc + Load(x, k * 64 + c)), kind="reduction")
    body = forall(c, 64, Block((Declare(acc, as_expr(0.0)), sums, Store(y, c, acc))))
    kernel = vectorize_kernel(Kernel(name="k", inputs=(x,), outputs=(y,), body=body), X86_64_V3)
    verify(kernel)
    assert steps(kernel) == [8, 1]
    data = np.arange(640, dtype=np.float32)
    np.testing.assert_array_equal(run_kernel(kernel, [data])[0], data.reshape(10, 64).sum(0))


def short(rounds: int, extent: int, *, begin: int = 0, shift: int = 0) -> Kernel:
    """y = x * exp(b) + c, where a row of b is for each round, and c is one number for each."""
    x, b, c = (Buffer(n, SINGLE, size) for n, size in (("x", rounds * extent + shift), ("b", extent), ("c", rounds)))
    y, i, j, r = Buffer("y", SINGLE, rounds * extent), Var("i"), Var("j"), Var("r", SINGLE)
    at = i * extent + j
    value = Load(x, at + shift) * r + (Load(c, i) if shift == 0 else 2.0)
    body = Block((Declare(r, call("exp", Load(b, j))), Store(y, at, value)))
    clear = forall(k := Var("k"), rounds * extent, Store(y, k, as_expr(0.0)))
    nest = forall(i, rounds, forall(j, extent, body), begin=begin)
    return Kernel(name="k", inputs=(x, b, c), outputs=(y,), body=Block((clear, nest)))


@pytest.mark.parametrize(("rounds", "extent", "begin"), [(99, 3, 0), (50, 7, 3), (64, 5, 0), (80, 2, 1), (33, 6, 0)])
def test_short_loops_are_packed(rounds: int, extent: int, begin: int, tmp_path: Path) -> None:
    kernel = short(rounds, extent, begin=begin, shift=1)
    made = vectorize_kernel(kernel, X86_64_V3)
    assert len(made.stack) == 1 and max(steps(made)) > 1
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(b.size).astype(np.float32) for b in kernel.inputs]
    compare([(kernel, data)], tmp_path)


def test_what_differs_from_round_to_round_is_not_packed() -> None:
    assert vectorize_kernel(short(99, 3), X86_64_V3).stack == ()
    assert vectorize_kernel(short(9, 3, shift=1), X86_64_V3).stack == ()  # too few rounds


def places(extent: int, step: int, start: int) -> Kernel:
    """y[i] = the place start + step * i as int32, plus x[i] as int32."""
    x, y, i = Buffer("x", INDEX, extent), Buffer("y", DType("int32"), extent), Var("i")
    value = cast(i * step + start, "int32") + cast(Load(x, i), "int32")
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=forall(i, extent, Store(y, i, value)))


@pytest.mark.parametrize(("step", "start"), [(1, 0), (3, 2**31 - 9), (-7, 5), (2**31 - 1, 3)])
def test_places_are_numbers_of_lanes(step: int, start: int, tmp_path: Path) -> None:
    kernel = places(45, step, start)
    assert vectors_in(vectorize_kernel(kernel, X86_64_V4))
    data = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 45)
    compare([(kernel, [data])], tmp_path)
    with np.errstate(over="ignore"):
        expected = (np.arange(45) * step + start).astype(np.int32) + data.astype(np.int32)
    np.testing.assert_array_equal(run_kernel(vectorize_kernel(kernel, X86_64_V4), [data])[0], expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("machine", MACHINES, ids=lambda target: target.name)
def test_halves_have_the_same_bits(machine: Target, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = every[np.isfinite(every)].astype(np.float32)
    between = np.sort(np.repeat(exact, 2))
    halfway = (between[:-1] + between[1:]) / 2  # ties
    singles = np.concatenate([halfway, np.nextafter(halfway, np.inf, dtype=np.float32), rng.standard_normal(999)])
    singles = np.append(singles, [np.inf, -np.inf, np.nan, 65519.9, 65520, 1e-45, -0.0]).astype(np.float32)
    jobs = [
        converted(SINGLE, every),
        converted(HALF, singles),
        (pooled(45), [rng.standard_normal(46).astype(np.float16)]),
        (pooled(45, 3, open_end=True), [rng.standard_normal(46).astype(np.float16)]),
        (in_place(45), [rng.standard_normal(45).astype(np.float16)]),
        (pooled(6), [rng.standard_normal(7).astype(np.float16)]),
    ]
    compare(jobs, tmp_path, machine)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("machine", share([(machine,) for machine in MACHINES], 1), ids=lambda target: target.name)
def test_conversions_have_the_same_bits(machine: Target, tmp_path: Path) -> None:
    jobs = [job for dtype in NARROW for job in narrow_jobs(dtype)]
    compare([*jobs, *wide_jobs()], tmp_path, machine)


def wide_jobs() -> Iterator[tuple[Kernel, list[Array]]]:
    """Conversions between types of 8 to 64 bits: of numbers around powers of two, and of bools."""
    powers = np.ldexp(1.0, np.arange(68))
    edges = np.concatenate([powers, powers - 1, powers + 1, powers * 1.5, powers / 3, [0, 0.5, 1e-40, 1e300]])
    floats = np.concatenate([edges, -edges, [np.nan, np.inf, -np.inf, -0.0]])
    exact = [int(n) for n in edges[edges < 2**64]]
    for source, to in itertools.permutations(TYPES, 2):
        numbers = floats.astype(source.numpy)
        if source.is_integer:
            whole = [(n * sign) % 2**source.bits for n in exact for sign in (1, -1)]
            numbers = np.array(whole, np.uint64).astype(f"u{source.itemsize}").view(source.numpy)
        yield converted(to, numbers)


def narrow_jobs(dtype: DType) -> Iterator[tuple[Kernel, list[Array]]]:
    """Conversions to a narrow float and back: of numbers around its own, from all types; and operations in it."""
    rng = np.random.default_rng(0)
    codes = np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)
    codes = codes[:: max(1, len(codes) >> 11)]
    exact = codes.astype(np.float64)
    exact = np.unique(exact[np.isfinite(exact)])
    near = np.concatenate((exact, (exact[1:] + exact[:-1]) / 2))
    edges = [np.inf, -np.inf, np.nan, -np.nan, 1e38, -1e38, 1e-45, -0.0, 1 + 2**-40]
    for source in (SINGLE, DType("float64")):
        own = near.astype(source.numpy)
        around = [np.nextafter(own, own.dtype.type(to)) for to in (-np.inf, np.inf)]
        yield converted(dtype, np.concatenate([own, *around, np.array(edges, own.dtype)]))
    for source in TYPES:
        if source.is_integer:
            facts = np.iinfo(source.numpy)
            shifts = rng.integers(0, facts.bits, 99, source.numpy)
            numbers = rng.integers(facts.min, facts.max, 99, source.numpy) >> shifts
            yield converted(dtype, np.append(numbers, source.numpy.type((1 << 30) + (1 << 22) + 1 & facts.max)))
    yield converted(SINGLE, codes)
    x, y, i = Buffer("x", dtype, codes.size), Buffer("y", dtype, codes.size), Var("i")
    here = Load(x, i)
    values = {"steps": (here * here + here) * 0.75, "positive": maximum(here, 0.0), "negative": unary("neg", -here)}
    for name, value in values.items():  # some types have no zero, or no numbers below it
        body = forall(i, codes.size, Store(y, i, value))
        yield Kernel(name=f"{name}_{dtype}", inputs=(x,), outputs=(y,), body=body), [codes]


def compare(
    jobs: Sequence[tuple[Kernel, list[Array]]], folder: Path, machine: Target = MACHINES[0], *flags: str
) -> None:
    """Scalar loops interpreted, vector loops interpreted, vector loops compiled: the same bits."""
    for target in WIDTHS:
        wide = [(vectorize_kernel(kernel, target), inputs) for kernel, inputs in jobs]
        (folder / target.name).mkdir()
        compiled = run_batch(wide, folder / target.name, *machine.cflags, *flags, dialect=gnu_c_for(machine))
        for (kernel, inputs), (plain, _), found in zip(wide, jobs, compiled, strict=True):
            verify(kernel)
            results = zip(run_kernel(plain, inputs), run_kernel(kernel, inputs), found, strict=True)
            for expected, seen, c in results:
                assert same(seen, expected), f"{kernel.name}: interpreted"
                assert same(c, expected), f"{kernel.name}: compiled"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", share(range(0, 600, 60), 1))
@pytest.mark.parametrize(("machine", "level"), [(MACHINES[0], "-O0"), (MACHINES[-1], "-O3")], ids=["-O0", "-O3"])
def test_loops_from_seeds_have_the_same_bits(machine: Target, level: str, first: int, tmp_path: Path) -> None:
    compare([made(seed) for seed in range(first, first + 60)], tmp_path, machine, level)


def test_most_loops_from_seeds_get_vectors() -> None:
    found = [vectors_in(vectorize_kernel(made(seed)[0], X86_64_V4)) for seed in range(100)]
    assert sum(found) > 40


@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_compilers_do_not_warn(cc: str, tmp_path: Path) -> None:
    if shutil.which(cc) is None:
        pytest.skip(f"{cc} is not installed")
    kernels = [vectorize_kernel(made(seed)[0], AARCH64) for seed in range(12)]
    assert build(source_of(kernels), tmp_path, *STRICT, cc=cc).exists()
