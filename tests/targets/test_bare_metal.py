# SPDX-License-Identifier: Apache-2.0
"""Models without an operating system: requirements of the static library, and right results of its firmware."""

from __future__ import annotations

import re
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.bare_metal_weights import ParameterFile
from aotc_codegen.c.parameter_files import ParameterLayout

import aotc
from aotc import relay
from aotc.driver.memory_budgets import undefined_symbols
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import find_toolchain
from aotc.ir import AotcError, DType
from aotc.tir.bare_metal_portable_and_small_targets import target_for_environment
from aotc.tir.plan.storage import Storage
from aotc.tir.target import get_target
from tests.codegen.batch import Array
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS, ROOT, affine, run
from tests.frontend.test_random_quantized_operators import Drawing
from tests.targets.firmware import FILES, MACHINES, WARNINGS, Board, board, program_of

QUANTIZED = DIGITS.with_name("digits_int8.onnx")
IMAGE = np.fromfile(DIGITS.with_name("digits_test.bin"), np.uint8)[:64].reshape(1, 1, 8, 8)
#: What gcc calls for arithmetic that a core lacks, and for copies.
ARITHMETIC = re.compile(r"(__aeabi_\w+|__gnu_\w+|__\w+(si|di|sf|df|ti)[23456]?|__riscv_\w+|__clzsi2|mem(cpy|set))$")


def compiled(path: Path, target: str, folder: Path, **options: object) -> CompiledModel:
    return aotc.compile(path, output=folder / "net", name="net", target=target, build=False, **options)


def host_outputs(path: Path, inputs: Array, **options: object) -> Array:
    """What a library for this machine gives, in portable C."""
    session = aotc.compile(path, name="net", target="c", **options).session()
    return np.asarray(session.run(None, {"image": inputs})[0])


@pytest.mark.parametrize("flag", ["-mcpu=cortex-m33+nodsp", "-mbig-endian"])
def test_flags_without_the_extensions_of_the_core_are_refused(flag: str, tmp_path: Path) -> None:
    require_tool("arm-none-eabi-gcc")
    with pytest.raises(AotcError, match="for little-endian processors with the extensions of cortex-m33"):
        aotc.compile(QUANTIZED, output=tmp_path / "net", target="cortex-m33", cflags=[flag])
    aotc.compile(QUANTIZED, output=tmp_path / "portable", target="cortex-m33", cflags=[flag], portable=True)


@pytest.mark.parametrize("name", MACHINES)
def test_integers_are_those_of_the_host(name: str, tmp_path: Path) -> None:
    here = board(name)
    x = (IMAGE.astype(np.int32) * 16 - 128).clip(-128, 127).astype(np.int8)
    model = compiled(QUANTIZED, name, tmp_path, io_dtype="int8")
    (found,), stack = here.outputs(model, [x], tmp_path)
    np.testing.assert_array_equal(found, host_outputs(QUANTIZED, x, io_dtype="int8"))
    assert 0 < stack <= model.metadata["footprint"]["stack"]
    assert model.metadata["links"]["m"] == []


@pytest.mark.parametrize("name", MACHINES)
def test_floats_are_those_of_the_host(name: str, tmp_path: Path) -> None:
    """Equal bits where products and their sums are rounded as they are there."""
    here = board(name)
    x = IMAGE.astype(np.float32) / 16
    model = compiled(DIGITS, name, tmp_path)
    (found,), stack = here.outputs(model, [x], tmp_path)
    expected = host_outputs(DIGITS, x)
    if here.target.fma:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, expected)
    assert 0 < stack <= model.metadata["footprint"]["stack"]
    assert set(model.metadata["links"]["m"]) <= {"sqrtf", "fmaf"}


@pytest.mark.parametrize("name", ["cortex-m4", "riscv32"])
def test_a_model_of_one_number(name: str, tmp_path: Path) -> None:
    """It needs no workspace; compilers put what is so small into sections of its own."""
    x = relay.var("x", shape=())
    net = aotc.IRModule.from_expr(relay.Function([x], x + relay.const(1.0)))
    model = aotc.compile(net, output=tmp_path / "net", name="net", target=name, build=False)
    (found,), stack = board(name).outputs(model, [np.float32(2.5)], tmp_path)
    assert found == 3.5 and 0 < stack <= model.metadata["footprint"]["stack"]


@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m4"])
def test_what_the_library_needs(name: str, tmp_path: Path) -> None:
    """Nothing but copies and arithmetic; no writable data; frames within the stated bound."""
    here = board(name)
    for source, allowed in ((QUANTIZED, set()), (DIGITS, {"sqrtf", "fmaf"})):
        model = compiled(source, name, tmp_path / source.stem, io_dtype="int8" if source is QUANTIZED else None)
        library = here.make(model.path)
        nm = [here.tool_prefix + "nm", "-g"]
        symbols = [line.split()[-2:] for line in run([*nm, library], tmp_path).splitlines() if len(line.split()) > 1]
        missing = {symbol for kind, symbol in symbols if kind == "U"} - {s for kind, s in symbols if kind != "U"}
        assert {symbol for symbol in missing if not ARITHMETIC.match(symbol)} <= allowed
        assert undefined_symbols(library, find_toolchain(here.cc[0], target=here.target)) == sorted(missing)
        sizes = run([here.tool_prefix + "size", library], tmp_path).splitlines()[1:]
        assert [line.split()[1:3] for line in sizes] == [["0", "0"]] * len(sizes)
        frames = [row.split("\t") for file in model.path.glob("build/**/*.su") for row in file.read_text().splitlines()]
        assert frames and all(kind == "static" for _, _, kind in frames)
        own = {place.rsplit(":", 1)[1]: int(size) for place, size, _ in frames}
        deepest = own.pop("net_run") + max(own.values())
        assert deepest <= model.metadata["footprint"]["stack"] <= 4 * deepest + 1024


@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m4"])
def test_functions_of_floats_need_no_library(name: str, tmp_path: Path) -> None:
    """They give the bits of a library for the host, at numbers that are hard to round, too."""
    here, rounding = board(name), ("floor", "ceil", "round", "trunc", "sqrt")
    names = (*rounding, "exp", "tanh", "erf", "log", "sin", "sigmoid")
    halves = np.arange(-9, 9) / 2
    edges = [0.0, -0.0, 1e-45, 2.0**23 - 0.5, 2.0**23 + 1, 1e30, np.inf, np.nan, 0.49999997]
    x = np.asarray([*halves, *edges, *np.negative(edges)], np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(9))])
    data = relay.var("x", shape=x.shape)
    net = aotc.IRModule.from_expr(relay.Function([data], relay.Tuple([getattr(relay, n)(data) for n in names])))
    model = aotc.compile(net, output=tmp_path / "net", name="net", target=name, build=False)
    assert set(model.metadata["links"]["m"]) <= {"sqrtf", "fmaf"}
    found, _ = here.outputs(model, [x], tmp_path)
    expected = aotc.compile(net, name="net", target="c").session().run(None, {"x": x})
    for function, ours, theirs in zip(names, found, expected, strict=True):
        exact = function in rounding or not here.target.fma
        check = np.testing.assert_array_equal if exact else partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-38)
        check(ours, theirs, err_msg=function)
        np.testing.assert_array_equal(np.signbit(ours[theirs == 0]), np.signbit(theirs[theirs == 0]))


def test_the_profile_of_portable_c(tmp_path: Path) -> None:
    """Any C compiler builds it, as C and as C++; it runs here, too."""
    model = compiled(QUANTIZED, "c", tmp_path, environment="bare", io_dtype="int8")
    header = (model.path / "include" / "net.h").read_text(encoding="utf-8")
    assert "int64_t" not in header
    assert not re.search(r"isa|threads|aotc_model", header + (model.path / "src" / "net.c").read_text())
    run(["make", "-s", f"CFLAGS={' '.join(WARNINGS)}"], model.path)
    for language in (["-std=c99"], ["-x", "c++"]):
        run(["gcc", *language, *WARNINGS[:5], "-fsyntax-only", "-Iinclude", "-Isrc", "src/net.c"], model.path)
    made = aotc.compile(QUANTIZED, name="net", target="c", environment="bare", io_dtype="int8")
    assert made.built.name == "libnet.a"
    assert set(made.metadata["links"]["undefined"]) <= {"memcpy", "memset"}
    with pytest.raises(AotcError, match="static library for firmware") as caught:
        made.session()
    assert caught.value.code == "no-library"
    with pytest.raises(AotcError, match="it cannot be run here"):
        aotc.load(made.built)


def weights_file(folder: Path, least: int, seed: int) -> bytes:
    """The parameter file of a quantized product whose weights are the 16 integers from `least` on."""
    d = Drawing(1)
    pair, weights = d.pair(), np.random.default_rng(seed).permutation(np.arange(2048) % 16 + least)
    stored = d.constant(weights.reshape(64, 32).astype(np.int8))
    w = d.real(stored, (np.linspace(0.5, 1, 32, dtype=np.float32), np.zeros(32, np.int8)), axis=1)
    model = d.done(d.op("MatMul", d.x(5, 64, pair=pair), w), pair)
    made = aotc.compile(model, output=folder / f"{least}_{seed}", target="c", environment="bare", build=False)
    (file,) = made.path.glob("src/*_params.bin")
    return file.read_bytes()


def test_weights_of_half_a_byte_that_begin_elsewhere_are_of_another_layout(tmp_path: Path) -> None:
    first, alike, other = (weights_file(tmp_path, *args) for args in ((-8, 0), (-8, 1), (-5, 0)))
    assert first[:1024] == other[:1024] != alike[:1024]
    assert len(first) == len(alike) == len(other)
    assert first[-8:-4] == alike[-8:-4] != other[-8:-4]


def test_other_constants_that_are_stored_once_are_another_layout() -> None:
    made = [Storage(name="w", dtype=DType("int8"), shape=(1,), data=np.int8([k])) for k in (0, 1, 0, 1)]
    first, other = (ParameterFile(ParameterLayout("net", [*made[:2], last], 0), None) for last in made[2:])
    assert first.byte_count == other.byte_count and first.layout != other.layout


def test_weights_for_other_code_are_refused(tmp_path: Path) -> None:
    """Parameters of equal shapes and other values fit the code; those of a network that computes something else do not,
    even if only a number in the code differs."""
    files = []
    for seed, limit in ((0, 6.0), (1, 6.0), (0, 3.0)):
        weights = np.random.default_rng(seed).normal(size=(4, 8)).astype(np.float32)
        product = relay.nn.dense(x := relay.var("x", shape=(1, 8)), relay.const(weights))
        net = aotc.IRModule.from_expr(relay.Function([x], relay.clip(product, 0.0, limit)))
        folder = tmp_path / str(len(files))
        made = aotc.compile(net, output=folder, name="net", target="c", environment="bare", build=False)
        files.append((made.path / "src" / "net_params.bin").read_bytes())
    first, values, code = files
    assert first[:-8] == code[:-8] != values[:-8]
    assert first[-8:-4] == values[-8:-4] != code[-8:-4]


def test_weights_apart(tmp_path: Path) -> None:
    """Weights at a separate address come from a replaceable file; damaged weights and those of another model are
    reported."""
    here = board("cortex-m4")
    model = compiled(QUANTIZED, "cortex-m4", tmp_path, io_dtype="int8")
    main = '#include "net.h"\nint main(void) { return net_check_weights(); }\n'
    address = 0x20200000
    with pytest.raises(AssertionError, match="NET_WEIGHTS_ADDRESS must be a multiple of 8"):
        here.make(model.path, WEIGHTS_ADDRESS=hex(address + 4))
    program = here.link(here.make(model.path, WEIGHTS_ADDRESS=hex(address)), main, tmp_path)
    whole = (model.path / "src" / "net_params.bin").read_bytes()
    assert len(whole) == model.metadata["weights"]["bytes"]
    damaged = bytes([whole[0] ^ 1]) + whole[1:]
    other = whole[:-8] + struct.pack("<I", 1) + whole[-4:]
    for data, status in ((whole, 0), (damaged, 19), (other, 19)):
        (tmp_path / "weights.bin").write_bytes(data)
        loader = f"loader,file={tmp_path / 'weights.bin'},addr={address:#x},force-raw=on"
        if status == 0:
            here.start(program, "-device", loader)
        else:
            with pytest.raises(AssertionError):
                here.start(program, "-device", loader)


def test_a_section_of_their_own(tmp_path: Path) -> None:
    here = board("cortex-m4")
    model = compiled(QUANTIZED, "cortex-m4", tmp_path)
    for variables in ({}, {"PORTABLE_PARAMS": "1"}):
        run(["make", "-s", "clean"], model.path)
        library = here.make(model.path, "-DAOTC_WEIGHTS_SECTION=.external", **variables)
        listed = run([here.tool_prefix + "objdump", "-h", library], tmp_path)
        (size,) = re.findall(r" \.external +([0-9a-f]{8})", listed)
        # an array in C cannot be empty: it ends with a byte of its own
        assert int(size, 16) == model.metadata["weights"]["bytes"] + len(variables)


SELFTEST = """
#include "board.h"
#include "net.h"
static unsigned char workspace[NET_WORKSPACE_BYTES] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static TYPE scores[10];
int main(void) {
  const net_outputs outputs = {scores};
  print_number((uint32_t)net_selftest(&outputs, workspace));
  return 0;
}
"""


@pytest.mark.parametrize("single_file", [False, True], ids=["files", "single-file"])
@pytest.mark.parametrize("source", [QUANTIZED, DIGITS], ids=["int8", "float"])
def test_a_model_tests_itself(source: Path, single_file: bool, tmp_path: Path) -> None:
    """With right parameters, damaged ones, and ones that are whole, but others."""
    here, address = board("cortex-m4"), 0x20200000
    io, kind = ("int8", "int8_t") if source is QUANTIZED else (None, "float")
    model = compiled(source, "cortex-m4", tmp_path, io_dtype=io, selftest=True, single_file=single_file)
    assert len(list(model.path.glob("**/*.[ch]"))) == 2 or not single_file
    main = SELFTEST.replace("TYPE", kind)
    assert here.start(here.link(here.make(model.path), main, tmp_path)) == "0"
    run(["make", "-s", "clean"], model.path)
    program = here.link(here.make(model.path, WEIGHTS_ADDRESS=hex(address)), main, tmp_path)
    whole = (model.path / "src" / "net_params.bin").read_bytes()
    # the last of the known results, of which integers are padded to 16 bytes; behind them, the mark of the layout
    wrong = bytearray(whole[:-4])
    wrong[-11 if io else -5] ^= 0x40
    for data, status in ((whole, "0"), (whole[:9] + b"?" + whole[10:], "19"), (wrong + crc(wrong), "20")):
        (tmp_path / "weights.bin").write_bytes(data)
        loader = f"loader,file={tmp_path / 'weights.bin'},addr={address:#x},force-raw=on"
        assert here.start(program, "-device", loader) == status


def crc(data: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(data))


def test_a_self_test_of_what_cannot_be() -> None:
    with pytest.raises(AotcError, match="neither a self-test nor a single source") as caught:
        aotc.compile(DIGITS, target="c", selftest=True, build=False)
    assert caught.value.code == "target"


TWO = """
["tightly coupled"]
bytes = 256
holds = ["arena"]
[sram]
bytes = "64K"
holds = ["arena"]
[flash]
bytes = "1M"
holds = ["parameters"]
"""


@pytest.mark.parametrize(("name", "io", "single"), [("cortex-m4", True, False), ("riscv32", False, True)])
def test_two_memories(name: str, io: bool, single: bool, tmp_path: Path) -> None:
    """A pointer for each; the bytes are those of one memory, and nothing is written beside them."""
    (tmp_path / "board.toml").write_text(TWO)
    here = board(name)
    x = (IMAGE.astype(np.int32) * 16 - 128).clip(-128, 127).astype(np.int8)
    options = {"io_dtype": "int8", "workspace_io": io, "single_file": single, "selftest": True}
    model = compiled(QUANTIZED, name, tmp_path, memories=tmp_path / "board.toml", **options)
    memory = model.metadata["memory"]
    assert [part["member"] for part in memory["parts"]] == ["tightly_coupled", "sram"]
    assert memory["spaces"] == {"arena": "tightly coupled and sram", "parameters": "flash"}
    assert 0 < memory["parts"][0]["bytes"] <= 256 and sum(part["bytes"] for part in memory["parts"]) == memory["peak"]
    (found,), _ = here.outputs(model, [x], tmp_path)
    np.testing.assert_array_equal(found, host_outputs(QUANTIZED, x, io_dtype="int8"))
    main = """#include "net.h"
    static unsigned char a[NET_WORKSPACE_TIGHTLY_COUPLED_BYTES] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
    static unsigned char b[NET_WORKSPACE_SRAM_BYTES] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
    static int8_t scores[NET_OUTPUT_SCORES_ELEMENTS];
    int main(void) {
      const net_workspace both = {a, b}, half = {a, NULL};
      const net_outputs out = {scores};
      if (net_selftest(&out, NULL) != AOTC_ERROR_NULL_ARGUMENT) return 1;
      if (net_selftest(&out, &half) != AOTC_ERROR_NULL_ARGUMENT) return 2;
      return net_selftest(&out, &both);
    }
    """
    here.start(here.link(model.path / "build" / "libnet.a", main, tmp_path))
    header = (model.path / "include" / "net.h").read_text(encoding="utf-8")
    places = re.findall(r"define NET_(?:INPUT_IMAGE|OUTPUT_SCORES)_MEMBER (\w+)", header)
    assert len(places) == 2 * io and set(places) <= {"tightly_coupled", "sram"}
    run(["gcc", "-std=c99", *WARNINGS[:5], "-fsyntax-only", "-Iinclude", "-Isrc", "src/net.c"], model.path)


FLASHES = """
[ram]
bytes = "64K"
holds = ["arena"]
[flash]
bytes = {}
holds = ["parameters"]
["external flash"]
bytes = "1M"
holds = ["parameters"]
"""
EXTERNAL = 0x21000000


def linked_apart(here: Board, library: Path, main: str, folder: Path) -> Path:
    """Firmware whose linker script has a second flash, for the section of `net_weights_external_flash.ld`."""
    script = (FILES / "board.ld").read_text(encoding="utf-8")
    script = script.replace("MEMORY\n{", f"MEMORY\n{{\n  external (r) : ORIGIN = {EXTERNAL:#x}, LENGTH = 1M")
    fragment = "SECTIONS\n{\n  .external : { INCLUDE net_weights_external_flash.ld } > external"
    (folder / "two.ld").write_text(script.replace("SECTIONS\n{", fragment), encoding="utf-8")
    return here.link(library, main, folder, f"-L{library.parents[1]}", script=folder / "two.ld")


@pytest.mark.parametrize(("single", "portable"), [(False, False), (False, True), (True, False)])
def test_parameters_in_two_flashes(single: bool, portable: bool, tmp_path: Path) -> None:
    """What is read most by the byte is in the first; bytes of results are those of one memory, and all is checked."""
    here, address = board("cortex-m4"), 0x20200000
    x = (IMAGE.astype(np.int32) * 16 - 128).clip(-128, 127).astype(np.int8)
    options = {"io_dtype": "int8", "single_file": single, "selftest": True}
    (tmp_path / "board.toml").write_text(FLASHES.format(1024))
    model = compiled(QUANTIZED, "cortex-m4", tmp_path, memories=tmp_path / "board.toml", **options)
    assert model.metadata["memory"]["spaces"] == {"arena": "ram", "parameters": "flash and external flash"}
    fast, slow = model.metadata["weights"]["pieces"]
    assert 0 < fast["bytes"] == slow["begin"] <= 1024 and slow["memory"] == "external flash"
    assert fast["bytes"] + slow["bytes"] == model.metadata["weights"]["bytes"]
    # weights of a convolution are read for each pixel, those of a matrix once
    sources = "".join(file.read_text("utf-8") for file in (*model.path.glob("src/net*.[ch]"),))
    for kernel, array in (("conv2d", "net_params"), ("contrib_dense_pack", "net_params_external_flash")):
        (weights, *_) = re.findall(rf"STEP.*net_{kernel}.*?, (net_const\d+)", sources)
        assert re.search(rf"define {weights} .*\({array} \+", sources)
    library = here.make(model.path, **({"PORTABLE_PARAMS": "1"} if portable else {}))
    program = linked_apart(here, library, program_of(model, [x]), tmp_path)
    printed = here.start(program).split()[0]
    np.testing.assert_array_equal(
        np.frombuffer(bytes.fromhex(printed), np.int8)[None], host_outputs(QUANTIZED, x, io_dtype="int8")
    )
    placed = run([here.tool_prefix + "nm", program], tmp_path)
    assert re.search(rf"{EXTERNAL:08x} \w net_params_external_flash\n", placed)
    main = SELFTEST.replace("TYPE", "int8_t")
    assert here.start(linked_apart(here, library, main, tmp_path)) == "0"
    # the file as a whole at one address, and each of its pieces damaged
    run(["make", "-s", "clean"], model.path)
    program = here.link(here.make(model.path, WEIGHTS_ADDRESS=hex(address)), main, tmp_path)
    whole = (model.path / "src" / "net_params.bin").read_bytes()
    for at, status in ((None, "0"), (9, "19"), (slow["begin"] + 9, "19")):
        damaged = whole if at is None else whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        (tmp_path / "weights.bin").write_bytes(damaged)
        loader = f"loader,file={tmp_path / 'weights.bin'},addr={address:#x},force-raw=on"
        assert here.start(program, "-device", loader) == status


def test_cmake_builds_it(tmp_path: Path, cmake: str) -> None:
    here = board("cortex-m4")
    model = compiled(QUANTIZED, "cortex-m4", tmp_path)
    tools = [f"-DCMAKE_C_COMPILER={here.cc[0]}", "-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_SYSTEM_PROCESSOR=arm"]
    run([cmake, "-S", model.path, "-B", "cross", *tools, "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"], tmp_path)
    run([cmake, "--build", "cross"], tmp_path)
    assert (tmp_path / "cross" / "libnet.a").exists()


def test_environments_that_a_target_lacks() -> None:
    for target, environment in (("x86-64-v3", "bare"), ("cortex-m4", "hosted"), ("c", "naked")):
        with pytest.raises(AotcError) as caught:
            target_for_environment(get_target(target), environment)
        assert caught.value.code == "target"
    made = aotc.compile(affine(8, 0), target="riscv64", environment="bare", build=False)
    assert made.metadata["library"].endswith(".a")


def test_the_former_name_of_environment_works() -> None:
    with pytest.warns(DeprecationWarning, match="environment"):
        made = aotc.compile(affine(8, 0), target="c", profile="bare", build=False)
    assert made.metadata["library"].endswith(".a")


def test_the_files_of_the_example_are_ordinary() -> None:
    assert ".got" not in (ROOT / "examples" / "embedded" / "board.ld").read_text(encoding="utf-8")
