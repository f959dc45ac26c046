# SPDX-License-Identifier: Apache-2.0
"""Files that the Makefile and CMakeLists.txt of a project rebuild, remove and install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import aotc
from aotc.ir.file_checksum_manifest import MANIFEST_FILE_NAME
from aotc.relay.module import IRModule
from tests.driver.folders import files_of
from tests.e2e.projects import affine, run

TARGETS = {"team": "x86-64-v3", "alone": "c", "bare": "cortex-m4"}


def compiled(output: Path, kind: str = "alone", size: int = 300, **options: bool) -> Path:
    """The project of y = x W + b, whose weights are a file."""
    model: IRModule = affine(size, 0)
    aotc.compile(model, output=output, name="net", target=TARGETS[kind], build=False, **options)
    return output


def made(folder: Path, *arguments: str) -> str:
    """What make does for this machine, in words."""
    compilers = "CC=gcc", "AR=ar", "BASE_CFLAGS=-std=c99 -Iinclude -Isrc -fPIC -O0 -w", "KERNEL_CFLAGS=-mavx2 -mfma"
    return run(["make", "-j2", *compilers, *arguments], folder)


@pytest.mark.parametrize("kind", ["team", "bare"])
def test_make_builds_everything_again_when_the_manifest_changes(tmp_path: Path, kind: str) -> None:
    """By contents: files of an archive have old times."""
    net = compiled(tmp_path / "net", kind)
    goal = () if kind == "team" else ("build/src/net_weights.o",)
    first = made(net, *goal)
    assert "src/net_weights.c" in first or "runtime/aotc_rt.c" in first
    assert "gcc" not in made(net, *goal)
    text = (net / MANIFEST_FILE_NAME).read_text()
    (net / MANIFEST_FILE_NAME).write_text(text.replace(": 1,", ":  1,"))
    os.utime(net / MANIFEST_FILE_NAME, (0, 0))
    again = made(net, *goal)
    assert sorted(again.splitlines()) == sorted(first.splitlines())
    assert "gcc" not in made(net, *goal)


def test_make_refuses_a_project_that_is_incomplete(tmp_path: Path) -> None:
    net = compiled(tmp_path / "net")
    (net / MANIFEST_FILE_NAME).unlink()
    done = subprocess.run(["make"], cwd=net, capture_output=True, text=True)
    assert done.returncode == 2 and MANIFEST_FILE_NAME in done.stderr and not list(net.rglob("*.o"))


@pytest.mark.parametrize("options", [(), ("PORTABLE_PARAMS=1",), ("BUILD=elsewhere",), ("BUILD=.",)], ids=" ".join)
def test_clean_removes_what_make_built(tmp_path: Path, options: tuple[str, ...]) -> None:
    net = compiled(tmp_path / "net", "team")
    before = files_of(net)
    made(net, *options)
    assert files_of(net).keys() > before.keys()
    run(["make", "clean", *options], net)
    assert files_of(net) == before
    assert not (net / "build").exists() and not (net / "elsewhere").exists()
    build = net / (options[0].partition("=")[2] if "BUILD" in str(options) else "build")
    made(net, *options)
    (build / "src" / "mine.o").write_text("mine")
    run(["make", "clean", *options], net)
    assert {*files_of(net)} - {*before} == {(build / "src" / "mine.o").relative_to(net).as_posix()}


def test_archives_have_no_objects_of_an_earlier_project(tmp_path: Path) -> None:
    net = compiled(tmp_path / "net")
    made(net, "build/libnet.a")
    (net / "src" / "old.c").write_text("int old_function(void) { return 1; }\n")
    run(["gcc", "-c", "src/old.c", "-o", "old.o"], net)
    run(["ar", "rcs", "build/libnet.a", "old.o"], net)
    (net / MANIFEST_FILE_NAME).write_text((net / MANIFEST_FILE_NAME).read_text() + "\n")
    made(net, "build/libnet.a")
    assert "old.o" not in run(["ar", "t", "build/libnet.a"], net)


def test_cmake_builds_everything_again_when_the_manifest_changes(tmp_path: Path, cmake: str) -> None:
    net = compiled(tmp_path / "net", "team")
    run([cmake, "-S", net, "-B", "out"], tmp_path)
    run([cmake, "--build", "out", "-j2"], tmp_path)
    objects = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/**/*.o")}
    assert len(objects) > 4
    run([cmake, "--build", "out", "-j2"], tmp_path)
    assert {path: path.stat().st_mtime_ns for path in objects} == objects
    (net / MANIFEST_FILE_NAME).write_text((net / MANIFEST_FILE_NAME).read_text() + "\n")
    run([cmake, "--build", "out", "-j2"], tmp_path)
    assert not [path for path, time in objects.items() if path.stat().st_mtime_ns == time]


APP = r"""
#include <stdio.h>
#include "aotc_pool.h"
#include "aotc_team.h"
#include "net.h"
static float x[NET_INPUT_X_ELEMENTS], y[NET_OUTPUT_Y_ELEMENTS];
static unsigned char memory[NET_WORKSPACE_BYTES + 4 * NET_THREAD_WORKSPACE_BYTES + 128];
int main(void) {
  const net_inputs inputs = {x};
  const net_outputs outputs = {y};
  const aotc_threads *threads;
  aotc_run_options options = {sizeof options};
  int status = aotc_pool_create(2, &threads);
  if (status != AOTC_OK) return status;
  options.threads = threads;
  status = net_run(&inputs, &outputs, memory + (64 - (size_t)memory % 64), &options);
  aotc_pool_destroy(threads);
  puts(aotc_status_message(status));
  return status;
}
"""


def test_an_installed_model_with_threads_is_found_by_version(tmp_path: Path, cmake: str) -> None:
    net = compiled(tmp_path / "net", "team")
    run([cmake, "-S", net, "-B", "out", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'usr'}"], tmp_path)
    run([cmake, "--build", "out", "-j2"], tmp_path)
    run([cmake, "--install", "out"], tmp_path)
    shutil.rmtree(net)
    headers = {path.name for path in (tmp_path / "usr" / "include").iterdir()}
    assert headers == {"net.h", "aotc.h", "aotc_pool.h", "aotc_team.h"}
    header = (tmp_path / "usr" / "include" / "net.h").read_text()
    output = next(line.split()[1] for line in header.splitlines() if "_OUTPUT_" in line and "_ELEMENTS" in line)
    (tmp_path / "app.c").write_text(APP.replace("NET_OUTPUT_Y_ELEMENTS", output))
    major, minor, *_ = aotc.__version__.split(".")
    for version, found in ((f"{major}.{minor}", True), (f"{major}.{int(minor) + 1}", False), ("99.0", False)):
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(app LANGUAGES C)\n"
            f"find_package(net {version} REQUIRED)\nmessage(STATUS \"version ${{net_VERSION}}\")\n"
            "add_executable(app app.c)\ntarget_link_libraries(app PRIVATE net::net net::aotc_pool)\n"
        )  # fmt: skip
        command = [cmake, "-S", ".", "-B", f"app_{version}", f"-DCMAKE_PREFIX_PATH={tmp_path / 'usr'}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode == 0) == found, done.stderr
        if found:
            assert f"version {aotc.__version__}" in done.stdout
            run([cmake, "--build", f"app_{version}"], tmp_path)
            assert run([f"app_{version}/app"], tmp_path) == "success\n"


@pytest.mark.parametrize("kind", [*TARGETS, "single"])
def test_pages_and_build_files_name_files_that_exist(tmp_path: Path, kind: str) -> None:
    """All files of code are named, too."""
    net = compiled(tmp_path / "net", kind.replace("single", "bare"), single_file=kind == "single")
    files = files_of(net)
    for document in ("README.md", "Makefile", "CMakeLists.txt"):
        named = set(re.findall(r"(?<![\w/.$-])(?:src|include|runtime|examples)/[\w.]+(?![\w.*])", files[document]))
        assert named - files.keys() == set(), document
    if kind == "single":
        code = {name for name in files if name.endswith((".c", ".h", ".S"))}
        assert code == {"src/net.c", "include/net.h"} == {name for name in code if f"`{name}`" in files["README.md"]}


def copies_of(weights: bytes, folder: Path) -> dict[str, int]:
    """How often each file below a folder holds the bytes of the weights, for those that do."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes().count(weights) for path in folder.rglob("*.*")}
    found |= {path.name: path.read_bytes().count(weights) for path in folder.glob("build/*_example")}
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("options", [(), ("PORTABLE_PARAMS=1",)], ids=" ".join)
def test_make_leaves_the_weights_once_in_each_library(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Neither objects nor the example program have a copy, nor has the text of the array any place to stay in."""
    net = compiled(tmp_path / "net")
    weights = (net / "src" / "net_params.bin").read_bytes()[:4096]
    made(net, *options)
    expected = {"src/net_params.bin": 1, "build/libnet.so": 1}
    assert copies_of(weights, net) == expected
    assert not [*net.glob("build/**/*params_array*")]
    shutil.move(net, tmp_path / "moved")
    assert "y:" in run(["build/net_example"], tmp_path / "moved")
    shutil.move(tmp_path / "moved", net)
    made(net, "static", *options)
    assert copies_of(weights, net) == {**expected, "build/libnet.a": 1}
    assert "gcc" not in made(net, "all", "static", *options)
