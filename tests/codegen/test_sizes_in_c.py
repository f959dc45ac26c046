# SPDX-License-Identifier: Apache-2.0
"""Programs whose shapes depend on the sizes of a run, as C projects and in Python."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.bare_metal_project import emit_bare_metal_project
from aotc_codegen.c.host_project import emit_host_project
from aotc_codegen.c.run_time_sizes import SizePrinter
from onnx import TensorProto, helper

from aotc.driver.compile import CompileOptions
from aotc.driver.toolchain import resolve_target
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimension_ranges import DimRange
from aotc.ir.dimensions import SymDim
from aotc.ir.instrument import PassInfo
from aotc.runtime.session import Session, load
from aotc.tir.passes import ProgramVerifier
from aotc.tir.plan.program import Program, SizeCheck
from aotc.tir.program_interpreter import ProgramInterpreter
from aotc.tir.target import C
from tests.codegen.sized_programs import RANGES, expected, sized_program
from tests.codegen.test_project import run

STRICT = "-O0 -Wall -Wextra -Wconversion -pedantic -Werror"
DIMS, SHAPE = 22, 23


def arrays(n: int, h: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n + h)
    return {"x": rng.random((n, 4), np.float32), "z": rng.random(h, np.float32)}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("net")
    emit_host_project(sized_program("net"), folder, target=C)
    run(["make", "-s", "-j2", f"CFLAGS={STRICT}"], folder)
    assert "2 runs" in run(["build/net_example", "-n", "2"], folder)
    return load(folder / "build" / "libnet.so")


def status_of(n: int, h: int) -> int:
    """The status of a run with these sizes."""
    if n not in RANGES["n"]:
        return DIMS
    if h not in RANGES["h"]:
        return DIMS + 256
    return 0 if h >= 10 * n else SHAPE + 512


def test_outputs_have_the_shapes_of_the_run(session: Session) -> None:
    assert [i.shape for i in session.get_inputs()] == [["n", 4], ["h"]]
    assert [i.bounds for i in session.get_outputs()] == [((0, 8), (4, 4)), ((32, 96),)]
    assert dict(session.dims) == RANGES
    for n, h in ((3, 32), (0, 96), (8, 96), (1, 64), (3, 32)):
        given = arrays(n, h)
        for result, value in zip(session.run(None, given), expected(**given), strict=True):
            np.testing.assert_array_equal(result, value, strict=True)


def test_bindings_have_fixed_sizes(session: Session) -> None:
    given = arrays(3, 64)
    binding = session.bind(given, {"y": np.empty((3, 4), np.float32)})
    for _ in range(2):
        given["x"] += 1
        binding.run()
        for result, value in zip(binding.outputs.values(), expected(**given), strict=True):
            np.testing.assert_array_equal(result, value, strict=True)
    with pytest.raises(AotcError, match=r"output 'y' has shape \[4, 4\], expected \[3, 4\]"):
        session.bind(given, {"y": np.empty((4, 4), np.float32)})


def test_sessions_can_be_pickled(session: Session) -> None:
    given = arrays(2, 32)
    (y, _) = pickle.loads(pickle.dumps(session)).run(None, given)
    np.testing.assert_array_equal(y, expected(**given)[0])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((9, 4), (32,)), "the size n = 9, which is not 0 to 8"),
        (((4, 4), (32,)), r"sizes n 4, h 32: node /cat: 32\*'h/32' >= 10\*n"),
        (((1, 4), (40,)), r"'z' has shape \[40\], expected \[h\], where h is 32 to 96 in steps of 32"),
        (((1, 4), (128,)), "the size h = 128, which is not 32 to 96 in steps of 32"),
        (((3, 5), (32,)), r"'x' has shape \[3, 5\], expected \[n, 4\], where n is 3"),
        (((3,), (32,)), r"'x' has shape \[3\], expected \[n, 4\]"),
    ],
)
def test_wrong_shapes_are_explained(session: Session, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    given = dict(zip("xz", (np.zeros(shape, np.float32) for shape in shapes), strict=True))
    for call in (lambda: session.run(None, given), lambda: session.bind(given)):
        with pytest.raises(AotcError, match=message) as caught:
            call()
        assert [d.code for d in caught.value.diagnostics] == ["input-shape"]


def test_other_properties_of_inputs_are_reported_together(session: Session) -> None:
    with pytest.raises(AotcError) as caught:
        session.run(None, {"x": np.zeros((9, 4), np.float64), "y": 1})
    assert {d.code for d in caught.value.diagnostics} == {
        "input-dtype",
        "input-missing",
        "input-unknown",
        "input-shape",
    }


def hostile_sizes() -> list[tuple[int, int]]:
    rng = random.Random(0)
    some = [-(1 << 63), -1, 0, 1, 8, 9, 31, 32, 33, 64, 95, 96, 97, 128, (1 << 31) - 1, 1 << 62, (1 << 63) - 1]
    return [(n, h) for n in some for h in some] + [(rng.randint(0, 9), 32 * rng.randint(0, 4)) for _ in range(200)]


@pytest.mark.parametrize("kind", ["host", "bare"])
def test_wrong_sizes_write_nothing(kind: str, tmp_path: Path) -> None:
    if kind == "host":
        emit_host_project(sized_program("net"), tmp_path, target=C)
    else:
        emit_bare_metal_project(sized_program("net"), tmp_path, target=resolve_target("cortex-m4"), single_file=True)
    np.array(hostile_sizes(), np.int64).tofile(tmp_path / "sizes.bin")
    sources = [*(tmp_path / "src").glob("*.c"), *(tmp_path / "runtime").glob("aotc_rt.c")]
    sources = [s for s in sources if s.name != "params_to_c.c"]
    flags = ["-std=c99", *STRICT.split(), "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = tmp_path / "hostile"
    caller = Path(__file__).with_name("hostile_sizes.c")
    run(["gcc", *flags, "-Iinclude", "-Isrc", caller, *sources, "-lm", "-o", program], tmp_path)
    done = subprocess.run([program, "sizes.bin"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    statuses = [int(line.split(" ")[0]) for line in done.stdout.splitlines()]
    assert statuses == [status_of(n, h) for n, h in hostile_sizes()]
    assert f"{SHAPE + 512} node /cat: " in done.stdout and f"{DIMS} the size n is 0 to 8" in done.stdout


def test_interpreter_checks_sizes_and_runs_in_planned_memory() -> None:
    program = sized_program("net")
    ProgramVerifier().run_after_pass(program, PassInfo(0, "test"))
    interpret = ProgramInterpreter(program)
    for n, h in ((0, 32), (3, 32), (8, 96)):
        given = arrays(n, h)
        for result, value in zip(interpret(given).values(), expected(**given), strict=True):
            np.testing.assert_array_equal(result, value, strict=True)
    for n, h in ((9, 96), (4, 32)):
        with pytest.raises(ValueError, match=r"range|hold"):
            interpret(arrays(n, h))


def printer(**ranges: DimRange) -> SizePrinter:
    return SizePrinter(Program(name="net", inputs=(), outputs=(), body=(), sizes=ranges), "int64_t")


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("2*n+1", "2 * inputs->n + 1"),
        ("n*m-n", "inputs->m * inputs->n - inputs->n"),
        ("(n+3)//4", "((inputs->n + 3) / (4))"),
        ("(n-m)//2", "((inputs->m + inputs->n) / (2)) - inputs->m"),
        ("(n-3)//m", "floor_quotient(inputs->n - 3, inputs->m)"),
        ("min(n, 3)", "((inputs->n) < (3) ? (inputs->n) : (3))"),
    ],
)
def test_formulas_in_c(formula: str, text: str) -> None:
    assert printer(n=DimRange(0, 8), m=DimRange(1, 9)).expression(SymDim(formula)) == text


def test_formulas_that_may_overflow_are_refused() -> None:
    large = DimRange(0, (1 << 31) - 1)
    with pytest.raises(AotcError, match="may need more than 64 bits"):
        printer(n=large, m=large).expression(SymDim("n*n*m"))
    with pytest.raises(AotcError, match="divides by what may be 0"):
        printer(n=large, m=large).expression(SymDim("n//m"))


def test_checks_hold_for_values() -> None:
    check = SizeCheck(SymDim("n//m"), ">=", 1)
    assert check.holds({"n": 4, "m": 4}) and not check.holds({"n": 3, "m": 4}) and not check.holds({"n": 3, "m": 0})


def test_operands_that_no_shape_depends_on_have_no_function(tmp_path: Path) -> None:
    """A result that nothing uses leaves its operands in the interface; a static function that is not called would
    be a warning of the compiler.
    """
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "shape"], ["unused"]),
        node("Slice", ["x", "starts", "ends"], ["cut"]),
        node("Tile", ["x", "repeats"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])]
    inputs += [helper.make_tensor_value_info(n, TensorProto.INT64, [2]) for n in ("shape", "starts", "ends", "repeats")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    made = helper.make_model(helper.make_graph(nodes, "net", inputs, outputs), ir_version=9)
    chosen = CompileOptions(target="c", dims={"[*]": DimRange(0, 12)})
    (program,) = chosen.start_compilation(made).scheduled_programs
    emit_host_project(program, tmp_path, target=C)
    text = (tmp_path / "src" / f"{program.name}.c").read_text()
    defined = re.findall(r"static int64_t (operand_\d+|clip_size)\(", text)
    assert len(defined) == 2
    assert all(text.count(f"{name}(") > 1 for name in defined)
