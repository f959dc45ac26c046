# SPDX-License-Identifier: Apache-2.0
"""`aotc inspect PROJECT --memory-map`: what lies in flash and RAM, by the plan and by a linked program."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.driver.pipeline import CompiledModel
from aotc.ir import AotcError
from aotc.reporting.memory_map import describe_memory_map
from aotc.reporting.memory_map_picture import memory_map_svg, write_memory_map
from tests.cli.invoke import call, refused
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS
from tests.targets.firmware import board, program_of

QUANTIZED = DIGITS.with_name("digits_int8.onnx")


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompiledModel, Path]:
    """The quantized digits network for a Cortex-M4, and a program that runs it."""
    here, folder = board("cortex-m4"), tmp_path_factory.mktemp("firmware")
    model = aotc.compile(QUANTIZED, output=folder / "net", name="net", target="cortex-m4")
    library = here.make(model.path)
    return model, here.link(library, program_of(model, [np.zeros((1, 1, 8, 8), np.float32)]), folder)


def items(found: dict[str, Any], kind: str) -> dict[str, int]:
    return {i["name"]: i["bytes"] for region in found["regions"] for i in region["items"] if i["kind"] == kind}


def assert_regions_are_their_items(found: dict[str, Any]) -> None:
    for region in found["regions"]:
        assert region["bytes"] == sum(item["bytes"] for item in region["items"]) > 0
        assert all(item["bytes"] > 0 for item in region["items"])


def symbol_sizes(program: Path) -> dict[str, int]:
    """The sizes of symbols by `nm`."""
    listed = subprocess.run(
        [require_tool("arm-none-eabi-nm"), "-S", program], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4}


def test_the_plan_lists_all_that_the_footprint_counts(firmware: tuple[CompiledModel, Path]) -> None:
    model, _ = firmware
    found = describe_memory_map(model.path)
    assert_regions_are_their_items(found)
    footprint, parameters = model.metadata["footprint"], items(found, "parameter")
    assert sum(parameters.values()) + sum(items(found, "padding").values()) == footprint["parameters"]
    assert len(parameters) == len(model.metadata["memory"]["parameters"])
    assert sum(items(found, "arena").values()) == footprint["arena"] == found["arena"]["bytes"]
    assert items(found, "stack").popitem()[1] == footprint["stack"]
    assert items(found, "tensors")["inputs and outputs"] == footprint["io"]
    assert set(items(found, "kernel")) == {step["kernel"] for step in model.metadata["steps"]}
    # measured in the library: functions that the linker may leave out
    assert sum((items(found, "kernel") | items(found, "code")).values()) <= footprint["code"] * 1.5
    nodes = {i["name"]: i["nodes"] for r in found["regions"] for i in r["items"] if i["kind"] == "parameter"}
    assert {"conv1", "conv2", "dense"} <= {node for names in nodes.values() for node in names}


def test_a_linked_program_is_listed_by_its_symbols(firmware: tuple[CompiledModel, Path]) -> None:
    model, program = firmware
    found = describe_memory_map(model.path, program)
    assert_regions_are_their_items(found)
    sizes = symbol_sizes(program)
    assert items(found, "kernel") == {step["kernel"]: sizes[step["kernel"]] for step in model.metadata["steps"]}
    assert items(found, "application")["workspace"] == sizes["workspace"]
    parameters = items(found, "parameter")
    assert parameters == {row["name"]: row["bytes"] for row in model.metadata["memory"]["parameters"]}
    assert sum(parameters.values()) + sum(items(found, "padding").values()) == sizes["net_params"]
    flash, ram = (next(r for r in found["regions"] if r["kind"] == kind) for kind in ("flash", "ram"))
    assert flash["address"] == 0 and ram["address"] == 0x20000000
    assert {i["name"] for i in ram["items"]} >= {"workspace"} and "net_run" in {i["name"] for i in flash["items"]}
    first, second = (next(i for i in flash["items"] if i["name"] == f"net_const{k}") for k in (0, 1))
    rows = model.metadata["memory"]["parameters"]
    assert second["address"] - first["address"] == rows[1]["offset"] - rows[0]["offset"]


def test_libraries_for_systems_have_maps_too(tmp_path: Path) -> None:
    model = aotc.compile(DIGITS, output=tmp_path / "net", name="net", target="c")
    found = describe_memory_map(model.path)
    assert_regions_are_their_items(found)
    assert set(items(found, "kernel")) == {step["kernel"] for step in model.metadata["steps"]}
    linked = describe_memory_map(model.path, model.library)
    assert_regions_are_their_items(linked)
    assert items(linked, "parameter") == {r["name"]: r["bytes"] for r in model.metadata["memory"]["parameters"]}
    sources = aotc.compile(DIGITS, output=tmp_path / "sources", target="c", build=False)
    assert items(describe_memory_map(sources.path), "code") == {
        "code, estimated": sources.metadata["footprint"]["code"]
    }


def test_the_command_writes_json_and_a_picture(firmware: tuple[CompiledModel, Path], tmp_path: Path) -> None:
    model, program = firmware
    files = [tmp_path / "map.json", tmp_path / "map.svg"]
    outcome = call("inspect", model.path, *(w for f in files for w in ("--memory-map", f)), "--elf", program)
    assert outcome.code == 0 and "flash at 0x0" in outcome.out and "workspace" in outcome.out
    found = json.loads(files[0].read_text())
    assert found == describe_memory_map(model.path, program)
    assert files[1].read_text() == memory_map_svg(found)
    texts = [e.text or "" for e in ElementTree.parse(files[1]).iter() if e.tag.endswith("title")]
    for region in found["regions"]:
        assert all(f"{i['kind']} {i['name']}" in "\n".join(texts) for i in region["items"])


def test_files_of_the_project_are_not_overwritten(firmware: tuple[CompiledModel, Path], tmp_path: Path) -> None:
    model, program = firmware
    picture = tmp_path / "program.svg"
    picture.write_bytes(program.read_bytes())
    for file in (model.path / "metadata.json", model.path / "aotc-manifest.json", picture):
        before = file.read_bytes()
        assert "it is the input" in refused("inspect", model.library, "--memory-map", file, "--elf", picture)
        assert file.read_bytes() == before


def test_no_file_is_written_if_one_cannot_be(firmware: tuple[CompiledModel, Path], tmp_path: Path) -> None:
    project, first = firmware[0].path, tmp_path / "map.svg"
    for wrong, text in ((tmp_path / "map.png", "'map.png'"), (project / "metadata.json", "it is the input")):
        assert text in refused("inspect", project, "--memory-map", first, "--memory-map", wrong)
        assert not first.exists()


def test_names_cannot_change_the_picture(firmware: tuple[CompiledModel, Path]) -> None:
    """Names of nodes come from the model."""
    found = describe_memory_map(firmware[0].path)
    found["regions"][0]["items"][0]["nodes"] = ['</text><script>alert("1")</script>&']
    picture = ElementTree.fromstring(memory_map_svg(found))
    assert not [element for element in picture.iter() if element.tag.endswith("script")]


def test_damaged_programs_are_refused(firmware: tuple[CompiledModel, Path], tmp_path: Path) -> None:
    """Whatever the bytes are, the result is a map or one error."""
    model, program = firmware
    data, damaged = program.read_bytes(), tmp_path / "damaged.elf"
    rng = np.random.default_rng(0)
    for k in range(60):
        changed = bytearray(data[: rng.integers(0, len(data))] if k % 2 else data)
        for at in rng.integers(0, min(len(changed), 4096) or 1, 8 * bool(changed)):
            changed[at] = rng.integers(0, 256)
        damaged.write_bytes(changed)
        try:
            assert_regions_are_their_items(describe_memory_map(model.path, damaged))
        except AotcError as error:
            assert error.code == "elf"


def test_what_has_no_map_is_refused(firmware: tuple[CompiledModel, Path], tmp_path: Path) -> None:
    model, program = firmware
    stripped = tmp_path / "stripped.elf"
    subprocess.run([require_tool("arm-none-eabi-strip"), program, "-o", stripped], check=True)
    for file, text in (
        (stripped, "does not contain the model"),
        (model.library, "is an archive"),
        (QUANTIZED, "no little-endian ELF"),
    ):
        with pytest.raises(AotcError, match=text):
            describe_memory_map(model.path, file)
    with pytest.raises(AotcError, match=r"cannot write a memory map to 'map\.png'"):
        write_memory_map(describe_memory_map(model.path), tmp_path / "map.png")
    with pytest.raises(AotcError, match="neither a project nor the library of one"):
        describe_memory_map(QUANTIZED)
    metadata = json.loads((model.path / "metadata.json").read_text())
    metadata["memory"]["parameters"][-1]["bytes"] += 1 << 20
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(AotcError, match="contains another version of the model: net_params has"):
        describe_memory_map(tmp_path, program)
    del metadata["memory"]["parameters"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(AotcError, match="does not list the parameters"):
        describe_memory_map(tmp_path)
