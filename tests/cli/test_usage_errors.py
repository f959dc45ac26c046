# SPDX-License-Identifier: Apache-2.0
"""Errors of users and in files give one clear message and exit code 2, and leave no files behind."""

from __future__ import annotations

import json
import os
import random
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aotc.ir.architecture_names import normalized_architecture_name
from tests.cli.invoke import DIGITS, call, refused, relu, save, value
from tests.share import share

QUICK = "--cflags=-O1"
COMMANDS = {"compile": ["-o", "OUT"], "verify": [], "inspect": []}


def everything(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


def refused_by_all(model: Path, *options: str) -> str:
    """The complaint of compile about a model, which other commands share; no file appears."""
    before = everything(model.parent)
    texts = [
        refused(command, model, *(model.parent / "out" if e == "OUT" else e for e in extra), *options)
        for command, extra in COMMANDS.items()
    ]
    assert everything(model.parent) == before
    return texts[0]


def test_missing_file(tmp_path: Path) -> None:
    assert "cannot read" in refused_by_all(tmp_path / "missing.onnx")
    assert "no such file" in refused("run", tmp_path / "missing")


def test_firmware_is_verified_elsewhere() -> None:
    text = refused("verify", DIGITS, "--target", "cortex-m4")
    assert "code for cortex-m4 cannot run here" in text and "--target c" in text and "--selftest" in text


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    for command in ("compile", "verify"):
        extra = ["-o", tmp_path / "out"] if command == "compile" else []
        assert "directory" in refused(command, tmp_path, *extra)
    assert "no project" in refused("inspect", tmp_path)
    assert "no compiled library" in refused("run", tmp_path)


@pytest.mark.parametrize("kind", ["truncated", "random", "empty", "text"])
def test_files_that_are_no_models(tmp_path: Path, kind: str) -> None:
    data = {
        "truncated": DIGITS.read_bytes()[:900],
        "random": random.Random(0).randbytes(5000),
        "empty": b"",
        "text": b"hello\n" * 100,
    }[kind]
    (tmp_path / "m.onnx").write_bytes(data)
    assert "ONNX" in refused_by_all(tmp_path / "m.onnx")
    assert "cannot load" in refused("run", tmp_path / "m.onnx")


def test_unknown_operators_are_all_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Frob", ["x"], ["a"], name="p"),
        helper.make_node("Zork", ["a"], ["y"], name="q", domain="my.ops"),
    ]
    model = save(tmp_path / "m.onnx", nodes, [value("x")], [value("y")])
    text = refused("compile", model, "-o", tmp_path / "out")
    assert "m.onnx: node p: operator Frob" in text and "node q: operator my.ops::Zork" in text and "hint" in text
    data = json.loads(call("compile", model, "-o", tmp_path / "out", "--json").out)
    assert len(data["errors"]) == 2 and data["errors"][0]["hint"]


@pytest.mark.parametrize(
    ("elem", "text"), [(TensorProto.STRING, "--dim x=64"), (TensorProto.COMPLEX64, "element type")]
)
def test_element_types_that_are_unsupported_or_need_a_length(tmp_path: Path, elem: int, text: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    model = save(tmp_path / "m.onnx", [node], [value("x", elem=elem)], [value("y", elem=elem)])
    assert text in refused_by_all(model)


def test_dynamic_shapes_must_be_pinned(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", "batch", 3)
    unnamed = relu(tmp_path / "n.onnx", None, 3)
    for command in (["compile", "-o", tmp_path / "out"], ["verify"]):
        text = refused(*command, model)
        assert "'x'" in text and "batch" in text and "--dim" in text
        assert "--input-shape" in refused(*command, unnamed)


def test_results_whose_shape_depends_on_values(tmp_path: Path) -> None:
    """They are never taken from the shape that the model declares."""
    node = helper.make_node("NonZero", ["x"], ["y"], name="where")
    model = save(tmp_path / "m.onnx", [node], [value("x")], [value("y", (2, 6), TensorProto.INT64)])
    x = np.zeros((2, 3), np.float32)
    x[1, 2] = 1
    np.savez(tmp_path / "in.npz", x=x)
    assert call("compile", model, "-o", tmp_path / "out").code == 0
    assert call("run", tmp_path / "out", "--inputs", tmp_path / "in.npz", "--output", tmp_path / "y.npz").code == 0
    assert np.load(tmp_path / "y.npz")["y"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--dim", "batch"], "SYMBOL=8"),
        (["--dim", "batch=x"], "not a dimension"),
        (["--dim", "batch=-1"], "not a dimension"),
        (["--dim", "batch=99999999999999999999"], "not a dimension"),
        (["--dim", "batch=0"], "'batch' has the value 0"),
        (["--dim", "n=2"], "'n'"),
        (["--dim", "batch=2", "--input-shape", "x:3,3"], "batch"),
        (["--input-shape", "x"], "NAME:1,3,224,224"),
        (["--input-shape", "z:1,3"], "no input 'z'"),
        (["--input-shape", "x:1,3,1"], "contradicts"),
        (["--input-shape", "x:1,4"], "contradicts"),
        (["--input-shape", "x:1,a"], "not a dimension"),
    ],
)
def test_wrong_pins(tmp_path: Path, options: list[str], complaint: str) -> None:
    assert complaint in refused_by_all(relu(tmp_path / "m.onnx", "batch", 3), *options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--target", "x86-64-v5"], "unknown target"),
        (["-O", "4"], "0<=x<=3"),
        (["--cc", "no-such-compiler"], "--no-build"),
        (["--cc", 'gcc "'], "not a command"),
        (["--cflags", '-DX="a'], "cannot be split"),
        (["--cflags", "-fno-such-flag"], "fno-such-flag"),
        (["--cc", "false"], "false failed with exit code 1"),
    ],
)
def test_wrong_machinery(tmp_path: Path, options: list[str], complaint: str) -> None:
    output = tmp_path / "deep" / "out"
    assert complaint in refused("compile", DIGITS, "-o", output, *options)
    assert not output.exists() and everything(tmp_path) <= {"deep"}


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_targets_that_cannot_run_here(tmp_path: Path, command: str) -> None:
    """Known before anything is compiled, even before the model is read."""
    foreign = "x86-64" if normalized_architecture_name() == "aarch64" else "aarch64"
    text = refused(command, tmp_path / "absent.onnx", "--target", foreign)
    assert (
        f"code for {foreign} cannot run here" in text
        and normalized_architecture_name() in text
        and "--target host" in text
    )


@pytest.mark.usefixtures("no_ziglang")
def test_no_compiler(tmp_path: Path) -> None:
    text = refused("compile", DIGITS, "-o", tmp_path / "out", env={"PATH": "/nowhere", "CC": ""})
    assert "no C compiler found" in text and "--no-build" in text
    assert "'nocc'" in refused("compile", DIGITS, "-o", tmp_path / "out", env={"CC": "nocc"})
    assert everything(tmp_path) == set()


def test_a_compiler_that_fails_is_quoted_and_leaves_the_former_project(tmp_path: Path) -> None:
    output = tmp_path / "out"
    call("compile", DIGITS, "-o", output, QUICK)
    before = {p: p.read_bytes() for p in output.rglob("*") if p.is_file()}
    bad = tmp_path / "cc"
    bad.write_text("#!/bin/sh\necho 'the disk is on fire' >&2\nexit 3\n")
    bad.chmod(bad.stat().st_mode | stat.S_IXUSR)
    text = refused("compile", DIGITS, "-o", output, "--cc", str(bad))
    assert "the disk is on fire" in text and "exit code 3" in text and "the command was" in text
    assert {p: p.read_bytes() for p in output.rglob("*") if p.is_file()} == before
    assert {p.name for p in tmp_path.iterdir()} == {"out", "cc"}


def test_destinations(tmp_path: Path) -> None:
    """Nothing of the user's is overwritten, and the complaint comes before the work."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "aotc-manifest.json").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    before = everything(tmp_path)
    missing = tmp_path / "m.onnx"
    assert "aotc-manifest.json: it is no JSON" in refused("compile", missing, "-o", tmp_path / "mine")
    assert "not a directory" in refused("compile", missing, "-o", tmp_path / "file")
    assert "not a directory" in refused("compile", missing, "-o", tmp_path / "link")
    assert "cannot write" in refused("compile", DIGITS, "-o", tmp_path / "file" / "below", QUICK)
    assert "cannot write" in refused("compile", DIGITS, "-o", "/proc/no-such/out", QUICK)
    assert "cannot write" in refused(
        "compile", DIGITS, "-o", tmp_path / "x", "--no-build", "--dump-ir", tmp_path / "file" / "d"
    )
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["int", "a b", "1x", "", "x*/", "_x", "a__b", "ü", "math", "test", "aotc", "n" * 60])
def test_names_that_c_or_builds_cannot_bear(tmp_path: Path, name: str) -> None:
    text = refused("compile", DIGITS, "-o", tmp_path / "out", "--name", name)
    assert "for example: " in text
    better = text.rpartition("for example: ")[2].strip()
    assert call("compile", DIGITS, "-o", tmp_path / "out", "--name", better, "--no-build").code == 0


STEMS = ("int", "math", "*x", 'q"uo\nte', "-o", "ünï 日本", "test", "$(touch owned)", "a;b#c")


@pytest.mark.parametrize("stem", share(STEMS, 4))
def test_file_names_become_c_names(tmp_path: Path, stem: str) -> None:
    """Whatever a file is called, the project builds with make and the command, and nothing is executed."""
    model = tmp_path / f"{stem}.onnx"
    model.write_bytes(DIGITS.read_bytes())
    outcome = call("compile", "-o", tmp_path / "out dir", QUICK, "--json", "--", model)
    assert outcome.code == 0, outcome
    assert os.system(f"make -s -C '{tmp_path}/out dir' CFLAGS=-O1 >/dev/null") == 0
    assert call("run", tmp_path / "out dir").code == 0
    assert not list(tmp_path.rglob("owned"))


def hostile_model(path: Path) -> list[str]:
    """Tensors and nodes called things that end comments, strings and lines, and things that C has taken."""
    names = [
        '*/ #error "',
        "a\nb\\",
        "int",
        "class",
        "x:0",
        "x.0",
        "X_0",
        "日本",
        "%d%n",
        "??/",
        "stdin",
        "NAN",
        "$(CC)",
    ]
    nodes = [helper.make_node("Neg", [n], [n + "'"], name=f"{n}\\\n*/") for n in names]
    save(path, nodes, [value(n) for n in names], [value(n + "'") for n in names])
    return names


def test_hostile_names_in_a_model(tmp_path: Path) -> None:
    names = hostile_model(tmp_path / "m.onnx")
    strict = "--cflags=-O1 -Wall -Wextra -Werror -pedantic"
    assert call("compile", tmp_path / "m.onnx", "-o", tmp_path / "m", "--target", "c", strict).code == 0
    x = {n: np.full((2, 3), k, np.float32) for k, n in enumerate(names)}
    np.savez(tmp_path / "in.npz", **x)
    shown = call("run", tmp_path / "m", "--inputs", tmp_path / "in.npz", "--json")
    rows = json.loads(shown.out)["outputs"]
    assert [r["name"] for r in rows] == [n + "'" for n in names]
    assert [r["preview"][0] for r in rows] == [-k for k in range(len(names))]
    assert call("run", tmp_path / "m", "--inputs", tmp_path / "in.npz").code == 0
    assert call("inspect", tmp_path / "m.onnx").code == 0
    metadata = json.loads((tmp_path / "m" / "metadata.json").read_text())
    members = [t["c_name"].upper() for t in metadata["inputs"]]
    assert len(set(members)) == len(names)


@pytest.mark.timeout(60)
def test_a_huge_constant_costs_nothing(tmp_path: Path) -> None:
    """A terabyte of twos, of which a sum is taken: neither memory nor time goes into folding it."""
    fill = helper.make_node("ConstantOfShape", ["s"], ["c"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2]))
    total = helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0)
    nodes = [fill, total, helper.make_node("Add", ["x", "r"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, [value("x")], [value("y")], s=np.array([500_000, 500_000]))
    data = json.loads(call("inspect", model, "--json").out)
    assert data["parameter_bytes"] < 1000 and data["arena"]["peak"] < 1 << 20
    assert call("compile", model, "-o", tmp_path / "m", "--no-build").code == 0
    assert sum(p.stat().st_size for p in (tmp_path / "m").rglob("*")) < 1 << 20


@pytest.mark.parametrize("dims", [(1 << 20, 1 << 21), (1 << 62, 4), (1 << 40, 1 << 40)])
def test_sizes_that_overflow(tmp_path: Path, dims: tuple[int, ...]) -> None:
    assert "exceeds the size limit" in refused_by_all(relu(tmp_path / "m.onnx", *dims))


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * 24)
    (tmp_path / "sub").mkdir()
    path = save(tmp_path / "sub" / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [value("x")], [value("y")])
    model = onnx.load(path)
    weight = model.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="../secret")
    path.write_bytes(model.SerializeToString())
    assert "outside the model's folder" in refused_by_all(path)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals") / "digits"
    call("compile", DIGITS, "-o", folder, QUICK)
    return folder


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"picture": np.zeros((1, 1, 8, 8), np.float32)}, "no input 'image'"),
        ({"image": np.zeros((1, 1, 8, 9), np.float32)}, "shape"),
        ({"image": np.zeros((1, 1, 8, 8), np.float64)}, "float64"),
        ({"image": np.array([None])}, "cannot read"),
        ({}, "no input 'image'"),
    ],
)
def test_wrong_inputs(project: Path, tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    assert complaint in refused("run", project, "--inputs", tmp_path / "in.npz")
    assert complaint in refused("verify", DIGITS, QUICK, "--inputs", tmp_path / "in.npz")


def test_input_files_that_are_none(project: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "junk.npz").write_bytes(b"PK\x03\x04junk")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "cut.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:60] + b"\xff" * 60 + whole[120:])
    for name in ("one.npy", "junk.npz", "empty.npz", "cut.npz", "missing.npz", "."):
        assert refused("run", project, "--inputs", tmp_path / name)


def test_outputs_that_cannot_be_written(project: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "out.npz"):
        assert "cannot write" in refused("run", project, "--output", path)


def test_projects_that_are_damaged(project: Path, tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text("{")
    assert "no project" in refused("inspect", tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libx.so").write_bytes((project / "lib" / "libdigits.so").read_bytes()[:500])
    assert refused("run", tmp_path)


@pytest.mark.parametrize("arguments", [["bogus"], ["compile"], ["package", "x"], ["run", "x", "--repeat", "0"]])
def test_usage(arguments: list[str]) -> None:
    assert "Usage" in refused(*arguments)
