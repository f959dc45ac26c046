# SPDX-License-Identifier: Apache-2.0
"""Packages read and built by tools that PyPI and npm have, and that only the long run of the tests installs
(`sh tests/setup.sh package-tools build/package-tools`).
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import aotc
from aotc.packaging.package_information import PackageInformation
from aotc.packaging.write_package import package_project
from tests.conftest import skip_or_fail_without
from tests.e2e.projects import DIGITS, ROOT
from tests.ecosystems.builders import BUILDERS
from tests.ecosystems.conftest import Projects, output_line, printed
from tests.targets.machines import machine

pytestmark = pytest.mark.slow
FOLDERS = [ROOT / "build" / "package-tools" / "bin", ROOT / "build" / "package-tools" / "node_modules" / ".bin"]
INFORMATION = PackageInformation(version="1.2.3", author="Ada <ada@example.org>", url="https://example.org")
#: Repositories that Bazel would fetch: they name the rules that Bazel 2 has of its own.
NATIVE_RULES = {
    "rules_cc/cc": "cc_library cc_binary cc_test cc_import cc_toolchain cc_toolchain_suite cc_libc_top_alias",
    "rules_java/java": "java_binary java_import java_library java_runtime java_test java_toolchain java_plugin "
    "java_package_configuration",
}
TYPESCRIPT = """
import { Model, inputs, type Inputs, type Outputs } from "./index.js";
const model: Model = await Model.load(LOADED);
const given: Inputs = { image: new Float32Array(inputs[0].length) };
const found: Outputs = model.run(given);
export const scores: Float32Array = found.scores;
THREADS
// @ts-expect-error
model.run({ image: new Float64Array(64) });
// @ts-expect-error
model.run({ picture: new Float32Array(64) });
"""
THREADS = """
const count: number = model.threads;
model.close();
// @ts-expect-error
await Model.load(undefined, { thread: count });
"""


def tool(name: str) -> str:
    found = shutil.which(name, path=":".join(map(str, FOLDERS))) or shutil.which(name)
    if found is None:
        skip_or_fail_without(name)
    return str(found)


def test_bazel_builds_the_module(projects: Projects, expected: Callable[..., str], tmp_path: Path) -> None:
    """By Bazel 2, the newest that npm has, which reads no MODULE.bazel."""
    bazel = tool("bazel")
    package = package_project(projects("gru"), "bazel", tmp_path / "module", INFORMATION).path
    names = [path.partition("/")[0] for path in NATIVE_RULES]
    lines = [f'local_repository(name = "{name}", path = "../{name}")\n' for name in names]
    (package / "WORKSPACE").write_text("".join(lines), encoding="utf-8")
    for path, rules in NATIVE_RULES.items():
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "BUILD").touch()
        (tmp_path / path.partition("/")[0] / "WORKSPACE").touch()
        text = "".join(f"{rule} = native.{rule}\n" for rule in rules.split())
        (tmp_path / path / "defs.bzl").write_text(text, encoding="utf-8")
    command = [bazel, "--batch", f"--output_user_root={tmp_path / 'out'}", "run", "//:gru_example"]
    text = printed([*command, "--spawn_strategy=local"], package)
    # folders that nobody may write to
    printed(["chmod", "-R", "u+w", tmp_path / "out"], tmp_path)
    assert output_line(text) == expected("gru", False)


@pytest.mark.parametrize("target", ["c", "x86-64-multi"])
def test_files_of_bazel_have_their_format(target: str, projects: Projects, tmp_path: Path) -> None:
    buildifier = tool("buildifier")
    package = package_project(projects("digits", target=target), "bazel", tmp_path / "module", INFORMATION).path
    for file in ("BUILD.bazel", "MODULE.bazel"):
        assert printed([buildifier, "-mode=diff", "-lint=off", file], package) == ""


def test_platformio_packs_the_library(projects: Projects, tmp_path: Path) -> None:
    package = package_project(projects("digits", True), "platformio", tmp_path / "library", INFORMATION).path
    settings = {"PLATFORMIO_CORE_DIR": str(tmp_path / "core"), "PLATFORMIO_SETTING_ENABLE_TELEMETRY": "no"}
    printed([tool("pio"), "pkg", "pack", "-o", tmp_path / "library.tar.gz"], package, **settings)
    with tarfile.open(tmp_path / "library.tar.gz") as archive:
        assert {"library.json", "src/digits.c", "include/digits.h"} <= set(archive.getnames())


def test_the_component_manager_packs_the_component(projects: Projects, tmp_path: Path) -> None:
    package = package_project(projects("digits", True), "esp-idf", tmp_path / "digits", INFORMATION).path
    command = [tool("compote"), "component", "pack", "--name", "digits", "--dest-dir", tmp_path / "dist"]
    printed(command, package, IDF_COMPONENT_CACHE_PATH=str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "dist" / "digits_1.2.3.tgz") as archive:
        assert {"idf_component.yml", "CMakeLists.txt", "src/digits.c"} <= {
            name.removeprefix("./") for name in archive.getnames()
        }


def test_arduino_builds_a_sketch_that_an_avr_runs(tmp_path: Path) -> None:
    """On QEMU's board with an ATmega2560, whose numbers of 4 bytes may have odd addresses."""
    builder, emulator = Path(tool("arduino-builder")), tool("qemu-system-avr")
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      small (float[1,16] x) => (float[1,8] scores) {
        a = MatMul (x, w0)
        b = Tanh (a)
        c = MatMul (b, w1)
        scores = Softmax (c)
      }""")
    rng = np.random.default_rng(1)
    for name, shape in (("w0", (16, 16)), ("w1", (16, 8))):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name))
    options = {"target": "c", "environment": "bare", "build": False}
    project = aotc.compile(model, output=tmp_path / "project", name="small", **options).path
    package = package_project(project, "arduino", tmp_path / "libraries" / "small").path
    single = package_project(project, "single-file", tmp_path / "single").path
    hardware, programs = builder.parents[1] / "share" / "arduino" / "hardware", builder.parent
    ctags = (
        '"{cmd.path}" -u --language-force=c++ -f - --c++-kinds=svpf --fields=KSTtzns --line-directives "{source_file}"'
    )
    settings = {
        "compiler.path": f"{programs}/",
        # gcc 5 has it in C only
        "compiler.cpp.extra_flags": "-DDECIMAL_DIG=9",
        "tools.ctags.path": str(programs),
        "tools.ctags.cmd.path": "{path}/arduino-ctags",
        "tools.ctags.pattern": ctags,
        "preproc.includes.flags": "-w -x c++ -M -MG -MP",
        "preproc.macros.flags": "-w -x c++ -E -CC",
    }
    folders = ["-hardware", hardware, "-tools", programs, "-libraries", package.parent, "-build-path", tmp_path / "out"]
    board = ["-fqbn", "arduino:avr:mega:cpu=atmega2560", "-ide-version=10819"]
    (tmp_path / "out").mkdir()
    sketch = package / "examples" / "small_example" / "small_example.ino"
    chosen = [f"-prefs={key}={value}" for key, value in settings.items()]
    printed([builder, "-compile", *folders, *board, *chosen, sketch], tmp_path)
    serial = tmp_path / "serial.txt"
    command = [emulator, "-M", "mega2560", "-bios", tmp_path / "out" / "small_example.ino.elf", "-nographic"]
    with subprocess.Popen([*command, "-serial", f"file:{serial}", "-monitor", "none"]) as running:
        # the board of QEMU has no timer that ends the pause of the sketch after its first line
        for _ in range(600):
            if serial.is_file() and serial.read_bytes().endswith(b"\n"):
                break
            time.sleep(0.1)
        running.kill()
    (line,) = serial.read_text("ascii").splitlines()
    expected = output_line(BUILDERS["single-file"](single, tmp_path)).split()[1:]
    assert line.startswith("scores: ")
    # the sketch prints nine digits behind the point, by arithmetic of single precision
    np.testing.assert_allclose([float(word) for word in line.split()[1:]], [*map(float, expected)], atol=1e-7)


@pytest.mark.parametrize("target", ["wasm32", "wasm32-threads"])
def test_typescript_reads_the_declarations(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    compiler = tool("tsc")
    machine("wasm32")
    project = aotc.compile(DIGITS, output=tmp_path / "project", name="digits", target=target, build=False).path
    package = package_project(project, "npm", tmp_path / "npm").path
    threads = target == "wasm32-threads"
    text = TYPESCRIPT.replace("LOADED", "undefined, { threads: 2 }" if threads else "")
    (package / "use.ts").write_text(text.replace("THREADS", THREADS if threads else ""), encoding="utf-8")
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
    printed([compiler, *options, "use.ts"], package)
