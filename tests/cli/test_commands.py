# SPDX-License-Identifier: Apache-2.0
"""Every command does what its help says, as text, as JSON, and with --quiet."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.reporting.text_tables import format_milliseconds
from tests.cli.invoke import DIGITS, call, refused, relu, save, value

QUICK = "--cflags=-O1"
TWIN = DIGITS.parent / "digits_int8.onnx"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits network, compiled by the command."""
    folder = tmp_path_factory.mktemp("cli") / "digits"
    assert call("compile", DIGITS, "-o", folder, QUICK).code == 0
    return folder


def test_version_and_help() -> None:
    assert aotc.__version__ in call("--version").out
    for command in ("compile", "run", "verify", "bench", "quantize", "cache", "inspect", "ops"):
        assert command in call("--help").out
        assert "--json" in call(command, "-h").out


@pytest.mark.parametrize("module", ["aotc", "aotc.cli"])
def test_module_form(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], cwd=DIGITS.parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0 and aotc.__version__ in done.stdout


def test_compile_in_text(tmp_path: Path) -> None:
    outcome = call("compile", DIGITS, "-o", tmp_path / "d", QUICK, "--name", "net", "--timing", "-O", "2")
    stages = [line.removeprefix("aotc: ") for line in outcome.err.splitlines()]
    assert outcome.code == 0 and stages == [
        "importing the model",
        "optimizing the graph",
        "lowering to kernels",
        "running tensor passes",
        "writing the C project",
        "compiling the C project",
    ]
    assert [line.split("  ")[0] for line in outcome.out.splitlines()[1:]][: len(stages) + 2] == [
        "preparing",
        *stages,
        "all stages",
    ]
    assert (tmp_path / "d" / "lib" / "libnet.so").exists()
    for text in ("FuseOps", "project", "libnet.so", "arena"):
        assert text in outcome.out


def test_compile_as_json(tmp_path: Path) -> None:
    outcome = call("compile", DIGITS, "-o", tmp_path / "d", QUICK, "--target", "c", "--json", "--timing")
    data = json.loads(outcome.out)
    assert Path(data["library"]).exists() and "FuseOps" in data["timing"]
    assert data["metadata"]["target"] == "c" and data["metadata"]["inputs"][0]["shape"] == [1, 1, 8, 8]
    assert json.loads((tmp_path / "d" / "metadata.json").read_text()) == data["metadata"]


def test_compile_sources_only_needs_no_compiler(tmp_path: Path) -> None:
    outcome = call("compile", DIGITS, "-o", tmp_path / "d", "--no-build", env={"PATH": "/nowhere", "CC": ""})
    assert outcome.code == 0
    assert (tmp_path / "d" / "Makefile").exists() and not (tmp_path / "d" / "lib").exists()


def test_compile_dumps_the_graph(tmp_path: Path) -> None:
    assert call("compile", DIGITS, "-o", tmp_path / "d", "--no-build", "--dump-ir", tmp_path / "ir").code == 0
    dumps = sorted(tmp_path.glob("ir/*.relay"))
    assert any("FuseOps" in d.name for d in dumps) and "nn.conv2d" in dumps[0].read_text()


@pytest.mark.parametrize("pins", [["--dim", "batch=2", "--dim", "n=5"], ["--input-shape", "x:2,5"]])
def test_pinned_dimensions(tmp_path: Path, pins: list[str]) -> None:
    model = relu(tmp_path / "m.onnx", "batch", "n")
    assert call("compile", model, "-o", tmp_path / "m", QUICK, *pins).code == 0
    assert json.loads(call("run", tmp_path / "m", "--json").out)["outputs"][0]["shape"] == [2, 5]


def test_names_with_colons(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", "n", name="x:0")
    assert call("compile", model, "-o", tmp_path / "m", "--no-build", "--input-shape", "x:0:4").code == 0


def test_run_on_files(project: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    np.savez(tmp_path / "in.npz", image=image)
    outcome = call(
        "run", project, "--inputs", tmp_path / "in.npz", "--output", tmp_path / "out.npz", "--repeat", "3", "--json"
    )
    (expected,) = aotc.load(project).run(None, {"image": image})
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_array_equal(file["scores"], expected)
    data = json.loads(outcome.out)
    assert data["repeat"] == 3 and 0 < data["milliseconds"]["min"] <= data["milliseconds"]["median"]
    np.testing.assert_allclose(data["outputs"][0]["preview"], expected[0, :6], rtol=1e-6)


def test_run_a_library_in_text(project: Path) -> None:
    text = call("run", project / "lib" / "libdigits.so").out
    assert "scores" in text and "float32[1, 10]" in text and "1 run: minimum" in text
    assert "inputs: random values of seed 0" in text
    (preview,) = re.findall(r"\[([^]]*\.\.\.)\]", text)
    assert preview.count(",") == 6 and all(len(number.strip()) <= 12 for number in preview.split(","))


def test_run_does_not_call_inputs_of_a_file_random(project: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    assert "random" not in call("run", project, "--inputs", tmp_path / "in.npz").out


def test_short_times_are_in_microseconds() -> None:
    texts = [format_milliseconds(t) for t in (12.3456, 0.1, 0.0999, 0.00123)]
    assert texts == ["12.346 ms", "0.100 ms", "99.9 us", "1.2 us"]


def test_run_checks_the_whole_library(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    assert call("compile", model, "-o", tmp_path / "m", QUICK).code == 0
    (library,) = (tmp_path / "m" / "lib").iterdir()
    assert call("run", tmp_path / "m", "--check").code == call("run", library, "--check").code == 0
    with library.open("ab") as file:
        file.write(b"!")
    assert call("run", tmp_path / "m").code == 0
    refused = call("run", tmp_path / "m", "--check")
    assert refused.code == 2 and "is not what was written: its SHA-256" in refused.err


@pytest.mark.parametrize("name", ["file", "a/b", '*/ "\n', "arr_0"])
def test_outputs_of_any_name_are_written(tmp_path: Path, name: str) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], [name])], [value("x")], [value(name)])
    call("compile", model, "-o", tmp_path / "m", QUICK)
    assert call("run", tmp_path / "m", "--output", tmp_path / "out.npz").code == 0
    with np.load(tmp_path / "out.npz") as file:
        assert [file[k].shape for k in file.files] == [(2, 3)]


def test_inspect(project: Path) -> None:
    data = json.loads(call("inspect", DIGITS, "--json", env={"PATH": "/nowhere"}).out)
    assert data["unsupported"] == [] and data["operators"]["nn.conv2d"] == 2 and data["arena"]["peak"] > 0
    assert data["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 1, 8, 8]}]
    text = call("inspect", DIGITS).out
    assert "float32 1x1x8x8" in text and "nn.conv2d 2" in text
    assert json.loads(call("inspect", project, "--json").out)["name"] == "digits"
    assert json.loads(call("inspect", project, "--json").out) == json.loads((project / "metadata.json").read_text())
    shown = call("inspect", project).out
    assert "float32 1x1x8x8" in shown and "parameters" in shown and not shown.startswith("{")


def test_inspect_says_what_a_model_takes_of_a_microcontroller(tmp_path: Path) -> None:
    board = ("--target", "cortex-m4", "--io-dtype", "int8")
    flags = (*board, "--no-build", "-o", tmp_path / "net")
    found = json.loads(call("compile", TWIN, *flags, "--json").out)["metadata"]["footprint"]
    planned = call("inspect", TWIN, *board)
    shown = call("inspect", tmp_path / "net").out
    for said in (planned.out, shown):
        flash = found["code"] + found["parameters"]
        assert f"RAM {found['arena'] + found['io']} bytes" in said and f"flash {flash} (estimated)" in said
    assert "footprint" not in call("inspect", TWIN).out


def test_metadata_of_another_form_are_shown_as_they_are(tmp_path: Path) -> None:
    call("compile", DIGITS, "-o", tmp_path / "net", "--no-build")
    path = tmp_path / "net" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 3}))
    assert json.loads(call("inspect", tmp_path / "net").out)["steps"] == 3


def test_inspect_and_compile_name_the_same_numerics(tmp_path: Path) -> None:
    model, names = tmp_path / "net.relay", set()
    text = "def @main(%x: Tensor[(64, 4096), float32]) { nn.softmax(%x) }"
    model.write_text(f'#[version = "0.0.5"]\n{text}\n')
    for flag in ("--threads", "--no-threads"):
        call("compile", model, "-o", tmp_path / "d", "--no-build", "--accuracy", "strict", flag)
        made = json.loads(call("inspect", tmp_path / "d", "--json").out)
        planned = json.loads(call("inspect", model, "--config", "compile.accuracy=strict", flag, "--json").out)
        assert made["accuracy"] == planned["accuracy"] == "strict" and made["numerics"] == planned["numerics"]
        names.add(made["numerics"])
    assert len(names) == 2


@pytest.mark.parametrize("said", ["fast", "strict", "reproducible"])
def test_the_accuracy_is_said_once_or_twice_alike(tmp_path: Path, said: str) -> None:
    def compiled(*accuracy: str) -> str:
        outcome = call("compile", DIGITS, "-o", tmp_path / "d", "--no-build", "--json", *accuracy)
        return str(json.loads(outcome.out)["metadata"]["accuracy"]) if outcome.code == 0 else outcome.out

    option, config = ("--accuracy", said), ("--config", f"compile.accuracy={said}")
    assert compiled(*option) == compiled(*config) == compiled(*option, *config) == said
    for other in {"fast", "strict", "reproducible"} - {said}:
        text = f"the accuracy is {other}, and compile.accuracy says {said}"
        assert text in compiled("--accuracy", other, *config)


def test_inspect_names_lines_of_text(tmp_path: Path) -> None:
    model = tmp_path / "net.relay"
    text = "def @main(%x: Tensor[(2, 3), float32]) {\n  %0 = exp(%x);\n  nn.softmax(%0)\n}"
    model.write_text(f'#[version = "0.0.5"]\n{text}\n')
    largest = json.loads(call("inspect", model, "--json").out)["largest"]
    assert sorted(n for row in largest for n in row["nodes"]) == ["line 3", "line 4"]


def test_inspect_names_scalar_loops(tmp_path: Path) -> None:
    x, y = (value(name, (4, 8), TensorProto.INT64) for name in "xy")
    model = save(tmp_path / "m.onnx", [helper.make_node("Div", ["x", "x"], ["y"], name="quotient")], [x], [y])
    shown = call("inspect", model, "--target", "x86-64-v3").out
    assert "truncdiv of int64" in shown and "quotient" in shown.partition("scalar loops")[2]
    (found,) = json.loads(call("inspect", model, "--target", "x86-64-v3", "--json").out)["scalar_loops"]
    assert (found["reason"], found["nodes"]) == ("truncdiv of int64", ["quotient"])
    assert "scalar loops" not in call("inspect", model, "--target", "c").out


def test_inspect_of_open_dimensions_says_how_to_pin_them(tmp_path: Path) -> None:
    """Whether an operator needs the shape, so that the import fails, or not."""
    sums = helper.make_node("Einsum", ["x"], ["s"], equation="ij->i")
    nodes = [sums, helper.make_node("Neg", ["s"], ["y"])]
    asking = save(tmp_path / "asking.onnx", nodes, [value("x", ["n", 3])], [value("y", ["n"])])
    for model, operators in ((asking, {"Einsum", "Neg"}), (relu(tmp_path / "relu.onnx", "n", 3), {"nn.relu"})):
        said = call("inspect", model)
        assert said.code == 0 and "error" not in said.err
        assert "float32 nx3" in said.out and "--dim n=1 (dimension 0 of input 'x')" in said.out
        data = json.loads(call("inspect", model, "--json").out)
        assert data["pins"] == ["--dim n=1 (dimension 0 of input 'x')"] and {*data["operators"]} == operators
        assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n", 3]}]
        assert json.loads(call("inspect", model, "--dim", "n=2", "--json").out)["pins"] == []
    assert call("inspect", asking, "--memory").code == 0
    unnamed = relu(tmp_path / "unnamed.onnx", None, 3)
    assert "--input-shape x:1,3" in call("inspect", unnamed).out


def test_a_hint_that_several_problems_have_is_given_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("Einsum", ["x"], [f"s{k}"], name=f"node{k}", equation="ij->i") for k in range(3)]
    outputs = [value(f"s{k}", ["n"]) for k in range(3)]
    model = save(tmp_path / "m.onnx", nodes, [value("x", ["n", 3])], outputs)
    said = refused("compile", model, "-o", tmp_path / "out")
    assert all(f"node{k}" in said for k in range(3)) and said.count("--dim n=1") == 1
    assert said.index("--dim n=1") > said.index("node2")


def test_inspect_lists_what_is_unsupported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Frob", ["x"], ["a"], name="p"), helper.make_node("Zork", ["a"], ["y"], name="q")]
    model = save(tmp_path / "m.onnx", nodes, [value("x")], [value("y")])
    text = call("inspect", model).out
    assert "node p: operator Frob" in text and "node q: operator Zork" in text
    assert len(json.loads(call("inspect", model, "--json").out)["unsupported"]) == 2


def test_ops() -> None:
    data = json.loads(call("ops", "--json").out)
    assert {"nn.conv2d", "add"} <= {row["name"] for row in data["operators"]} and "Conv" in data["onnx"]["ai.onnx"]
    assert "CONV_2D" in data["tflite"] and len(data["tflite"]) >= 90
    text = call("ops").out
    assert f"{len(data['tflite'])} builtin operators of TFLite" in text
    assert "nn.conv2d" in text and "operators of ai.onnx" in text


def test_verify(tmp_path: Path) -> None:
    data = json.loads(call("verify", DIGITS, QUICK, "--seeds", "2", "--json").out)
    assert data["ok"] and [c["source"] for c in data["cases"]][:2] == ["seed 0", "seed 1"]
    assert 0 <= data["cases"][0]["outputs"][0]["relative"] < 1e-5
    np.savez(tmp_path / "in.npz", image=np.ones((1, 1, 8, 8), np.float32))
    text = call("verify", DIGITS, QUICK, "--inputs", tmp_path / "in.npz").out
    assert "in.npz" in text and "all outputs agree" in text


@pytest.mark.parametrize("mode", ["--bisect", "--json", "--quiet"])
def test_a_failed_verification_has_code_1(tmp_path: Path, mode: str) -> None:
    """A C library whose square root is wrong."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="first"),
        helper.make_node("Sqrt", ["a"], ["b"], name="second"),
        helper.make_node("Neg", ["b"], ["y"], name="third"),
    ]
    model = save(tmp_path / "m.onnx", nodes, [value("x")], [value("y")])
    assert call("verify", model, "--target", "c", "--cflags=-O1", mode).code == 0
    outcome = call("verify", model, "--target", "c", "--cflags=-O1 -Dsqrtf=fabsf", mode)
    assert outcome.code == 1 and all(line.startswith("aotc: ") for line in outcome.err.splitlines())
    if mode == "--json":
        assert json.loads(outcome.out)["ok"] is False
    elif mode == "--quiet":
        assert outcome.out == ""
    else:
        assert "DIFFER" in outcome.out and "first difference: node second (Sqrt), output 'b'" in outcome.out


def test_quiet(project: Path, tmp_path: Path) -> None:
    for arguments in (
        ["compile", DIGITS, "-o", tmp_path / "d", QUICK],
        ["run", project],
        ["inspect", DIGITS],
        ["inspect", project],
        ["verify", DIGITS, QUICK, "--seeds", "1"],
        ["ops"],
    ):
        outcome = call(*arguments, "--quiet")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_verbose_goes_to_the_error_stream(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aotc.cli", "compile", DIGITS, "-o", tmp_path / "d", "--no-build", "-v", "--json"]
    done = subprocess.run([str(c) for c in command], cwd=DIGITS.parents[2], capture_output=True, text=True, check=True)
    assert "optimizing the graph" in done.stderr
    assert json.loads(done.stdout)["path"]


def test_files_in_the_way_stop_a_compile_unless_they_may_be_replaced(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    for name in ("Makefile", "notes.txt"):
        (tmp_path / name).write_text("mine")
    outcome = call("compile", model, "-o", tmp_path, "--no-build")
    assert outcome.code == 2 and "Makefile: not written by aotc" in outcome.err and "--overwrite" in outcome.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Makefile", "m.onnx", "notes.txt"]
    assert call("compile", model, "-o", tmp_path, "--no-build", "--overwrite").code == 0
    assert (tmp_path / "Makefile").read_text() != "mine" and (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "Makefile").write_text("mine")
    assert "Makefile: changed since aotc wrote it" in call("compile", model, "-o", tmp_path, "--no-build").err


@pytest.mark.parametrize("command", ["quantize", "run", "bench"])
def test_inputs_are_not_replaced_by_outputs(tmp_path: Path, command: str) -> None:
    model = relu(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3), np.float32))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    inputs = tmp_path / "x.npz"
    arguments = {
        "quantize": [model, "-o", model, "--calibration", inputs],
        "run": [tmp_path / "no-library.so", "--inputs", inputs, "-o", inputs],
        "bench": [model, "--inputs", inputs, "-o", inputs],
    }
    outcome = call(command, *arguments[command])
    assert outcome.code == 2 and "it is the input" in outcome.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_verify_says_why_onnxruntime_is_not_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else find_spec(name, *rest)
    )
    model = save(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], [value("x")], [value("y")])
    done = call("verify", model, "--target", "c", "--seeds", "1")
    assert done.code == 0
    assert "compared with onnx.reference: all outputs agree" in done.out
    assert "ONNX Runtime is not installed (pip install onnxruntime)" in done.out.replace("\n", " ")
    data = json.loads(call("verify", model, "--target", "c", "--seeds", "1", "--json").out)
    assert data["reference_note"].endswith("because ONNX Runtime is not installed (pip install onnxruntime)")
