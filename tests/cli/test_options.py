# SPDX-License-Identifier: Apache-2.0
"""Parsing of option values, and former spellings of options that still work."""

from __future__ import annotations

import json
import pydoc
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import aotc
from aotc.driver.compile import CompileOptions
from aotc.ir.compilation_work_and_memory_limits import DEFAULT_COMPILE_LIMITS
from aotc.ir.option_value_text import OptionTextError, parse_byte_count, parse_config_entries, parse_symbolic_dims
from aotc.ir.transform import PassContext
from aotc.tir import TARGETS
from tests.cli.invoke import DIGITS, call, refused, relu
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((text, 262144) for text in ("262144", "256K", "256k", "256KB", "256kB", "256KiB", "256 KiB", "262144B")),
        *((text, 1 << 21) for text in ("2M", "2MB", "2MiB")),
        ("1GiB", 1 << 30),
    ],
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_byte_count(text) == size


@pytest.mark.parametrize("text", ["", "0", "0K", "-1", "1.5K", "K", "64KX", "64iB", "6\u0664K", "1T", "64 K B"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(OptionTextError, match="number of bytes"):
        parse_byte_count(text)


def test_a_value_that_differs_from_itself_contradicts_nothing() -> None:
    (value,) = parse_config_entries(("relay.AlterOpLayout.min_saving=NaN",)).values()
    assert value != value


@pytest.mark.parametrize(
    ("option", "first", "second"),
    [
        ("--dim", "batch=4", "batch=5"),
        ("--input-shape", "x:1,4", "x:1,5"),
        ("--io-dtype", "x:int8", "x:uint8"),
        ("--config", "compile.threads=1", "compile.threads=2"),
    ],
)
def test_contradicting_values_of_an_option_are_refused(option: str, first: str, second: str, tmp_path: Path) -> None:
    error = refused("compile", DIGITS, "-o", tmp_path / "d", option, first, option, second)
    assert f"'{first}' and '{second}' contradict each other" in error
    assert not (tmp_path / "d").exists()


def test_a_value_may_be_repeated(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", "batch", 3)
    assert call("inspect", model, "--dim", "batch=4", "--dim", "batch=4").code == 0


def test_problems_of_an_inspected_model_have_their_hints_on_lines_of_their_own(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 17]> m (float[3] x) => (float[n] y) { y = Relv(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    lines = call("inspect", tmp_path / "m.onnx").out.splitlines()
    assert "\\n" not in "".join(lines) and any(line.strip().startswith("hint: ") for line in lines)


def test_former_spellings_work_with_a_warning(tmp_path: Path) -> None:
    net, figures = tmp_path / "net", tmp_path / "figures.json"
    made = call("compile", DIGITS, "-o", net, "--target", "c", "--profile", "bare", "--no-build")
    assert made.code == 0 and "--profile is deprecated: write --environment" in made.err
    assert (net / "metadata.json").read_text().count('"lib/libdigits.a"') == 1
    assert call("compile", DIGITS, "-o", tmp_path / "run", "--profile=hosted").code == 0
    ran = call("run", tmp_path / "run", "--outputs", tmp_path / "out.npz")
    assert ran.code == 0 and "--outputs is deprecated" in ran.err and (tmp_path / "out.npz").exists()
    quick = ("--against", "", "--repeat", "1", "--cflags=-O1")
    timed = call("bench", DIGITS, *quick, "--json", figures)
    assert timed.code == 0 and "--json FILE is deprecated: write --output" in timed.err
    assert json.loads(figures.read_text())["model"]


def test_json_is_printed_by_every_command(tmp_path: Path) -> None:
    printed = call("bench", "--json", DIGITS, "--against", "", "--repeat", "1", "--cflags=-O1")
    assert printed.code == 0 and "deprecated" not in printed.err
    assert json.loads(printed.out)["rounds"]


def test_options_after_two_dashes_are_arguments(tmp_path: Path) -> None:
    model = relu(tmp_path / "--profile", 2, 3)
    outcome = call("inspect", "--", model.name, env={"PWD": str(tmp_path)})
    assert "deprecated" not in outcome.err


def test_dimensions_have_elements(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", "batch", 3)
    for value in (0, -1, 1.0, True, "2"):
        with pytest.raises(aotc.AotcError, match="'batch' has the value") as caught:
            aotc.compile(model, dims={"batch": value}, build=False)
        assert [d.code for d in caught.value.diagnostics] == ["dims"]


def test_dimensions_of_stated_shapes_have_elements(tmp_path: Path) -> None:
    """A shape with the extent 0 is refused as a value 0 of a named dimension is."""
    model = relu(tmp_path / "m.onnx", "batch", 3)
    for shape in ((0, 3), (-1, 3)):
        with pytest.raises(aotc.AotcError, match=f"dimension 0 of input 'x' has the value {shape[0]}") as caught:
            aotc.compile(model, input_shapes={"x": shape}, build=False)
        assert [d.code for d in caught.value.diagnostics] == ["dims"]
    refused = call("compile", model, "--input-shape", "x:0,3", "-o", tmp_path / "project")
    assert refused.code == 2 and "dimension 0 of input 'x' has the value 0" in " ".join(refused.err.split())
    assert not (tmp_path / "project").exists()


def test_help_of_compile_names_every_option() -> None:
    text = pydoc.render_doc(aotc.compile, renderer=pydoc.plaintext)
    fields = [f for f in CompileOptions.__dataclass_fields__ if f != "machine"]
    missing = [name for name in fields if f"{name} " not in text and f"{name}," not in text.split("Returns")[1]]
    assert not missing
    assert "CompiledModel" in text and "AotcError" in text


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from aotc.cli.main import main", {"numpy", "aotc.cli.options", "aotc.driver"}),
        (
            "from aotc.cli.main import import_command; import_command('run')",
            {"onnx", "torch", "aotc.driver.compile", "aotc.driver.pipeline", "aotc.tir", "aotc.relay.transform"},
        ),
        (
            "import aotc.cli.compile_options",
            {"onnx", "torch", "aotc.driver.compile", "aotc.driver.pipeline", "aotc.relay", "aotc.tir.passes"},
        ),
    ],
    ids=["aotc", "run", "options of compilations"],
)
def test_commands_do_not_import_more_than_they_need(code: str, absent: set[str]) -> None:
    code += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not absent & {*done.stdout.split()}


def test_targets_are_listed() -> None:
    listed = json.loads(call("targets", "--json").out)
    rows = {row["name"]: row for row in listed["targets"]}
    assert list(rows) == list(TARGETS) and listed["host"] in rows
    assert rows["c"]["runs_here"] and rows[listed["host"]]["runs_here"]
    assert rows["cortex-m4"]["environment"] == "bare" and not rows["cuda"]["runs_here"]
    assert "cortex-m4" in call("targets").out


def test_configuration_keys_are_listed() -> None:
    rows = {row["key"]: row for row in json.loads(call("config", "--json").out)["keys"]}
    shipped = {key for key, row in rows.items() if row["meaning"]}
    assert shipped >= {"compile.accuracy", "relay.FuseOps.max_depth", *DEFAULT_COMPILE_LIMITS}
    assert all(rows[key]["default"] == str(limit) for key, limit in DEFAULT_COMPILE_LIMITS.items())
    assert set(rows) == set(PassContext.list_configs())


def test_help_names_the_lists() -> None:
    text = " ".join(call("compile", "--help").out.split())
    assert "`aotc targets` lists them" in text and "`aotc config` lists the keys" in text


def test_a_range_of_one_size_is_that_size() -> None:
    assert parse_symbolic_dims(("n=4..4", "m=1..4")) == {"n": 4, "m": "1..4"}
