# SPDX-License-Identifier: Apache-2.0
"""Programs without a C library: the functions that stand for it, and firmware that is linked with nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from aotc_runtime_c import freestanding_files

import aotc
from aotc import relay
from aotc.driver.memory_budgets import undefined_symbols
from aotc.driver.toolchain import find_toolchain
from tests.e2e.projects import run
from tests.targets.firmware import FILES, WARNINGS, board, program_of

NAMES = ("sqrt", "fmod", "fma")
COMPARISON = Path(__file__).with_name("freestanding.c")


def test_functions_have_the_bits_of_the_c_library(tmp_path: Path) -> None:
    """At random bits, subnormal numbers, and sums in which the product cancels all but its last bits."""
    source, *_ = freestanding_files()
    run(
        ["gcc", "-std=c99", "-O2", "-ffreestanding", f"-I{source.parent}", *WARNINGS, "-c", source, "-o", "own.o"],
        tmp_path,
    )
    renamed = [f"--redefine-sym={name}{end}=own_{name}{end}" for name in NAMES for end in ("", "f")]
    run(
        ["objcopy", *renamed, *(f"--redefine-sym=mem{n}=own_mem{n}" for n in ("cpy", "move", "set", "cmp")), "own.o"],
        tmp_path,
    )
    flags = ["-std=c99", "-O1", "-fno-builtin", "-ffp-contract=off", *WARNINGS[:5]]
    run(["gcc", *flags, COMPARISON, "own.o", "-lm", "-o", "compare"], tmp_path)
    run(["./compare", "100000"], tmp_path)


@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m4"])
def test_firmware_without_a_c_library(name: str, tmp_path: Path) -> None:
    """Neither headers nor functions of it: the compiler's own library is all that is linked beside the project."""
    here = board(name)
    x = np.asarray([0.5, 2.0, 3.7, 1e-40, 9e30, 0.1, 7.25, 100.0], np.float32)
    data = relay.var("x", shape=x.shape)
    outputs = relay.Tuple([relay.sqrt(data), relay.mod(data, relay.const(np.float32(0.3))), relay.exp(data)])
    net = aotc.IRModule.from_expr(relay.Function([data], outputs))
    model = aotc.compile(net, output=tmp_path / "net", name="net", target=name, build=False)
    assert {"fmodf", "sqrtf"} <= set(model.metadata["links"]["m"])
    own_headers = run([here.cc[0], "-print-file-name=include"], tmp_path).strip()
    library = here.make(model.path, "-nostdinc", "-isystem", own_headers, FREESTANDING="1")
    missing = undefined_symbols(library, find_toolchain(here.cc[0], target=here.target))
    assert all(symbol.startswith(("__aeabi_", "__gnu_", "__clz")) for symbol in missing), missing
    (tmp_path / "main.c").write_text(program_of(model, [x]), encoding="utf-8")
    defined = [
        f"-Wl,--defsym={m}_{kind}={value}"
        for m, place in here.memories.items()
        for kind, value in zip(("origin", "bytes"), place, strict=True)
    ]
    flags = [*here.target.cflags, "-std=gnu11", "-O2", "-ffreestanding", "-nostdlib", "-Wl,--gc-sections"]
    files = [FILES / "start.c", tmp_path / "main.c", library]
    program = tmp_path / "firmware.elf"
    include = [f"-I{FILES}", f"-I{model.path / 'include'}"]
    run([*here.cc, *flags, *include, *files, f"-T{FILES / 'board.ld'}", *defined, "-lgcc", "-o", program], tmp_path)
    *rows, _ = here.start(program).split()
    found = [np.frombuffer(bytes.fromhex(row), np.float32) for row in rows]
    expected = aotc.compile(net, name="net", target="c").session().run(None, {"x": x})
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6)
