# SPDX-License-Identifier: Apache-2.0
"""Memory region files of boards: placement of code and data, and files that are refused."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import aotc
from aotc import relay
from aotc.cli.main import main
from aotc.driver.board_memory_map import read_memory_regions
from aotc.ir import AotcError
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS

BOARD = """
[{0}]
bytes = {1}
holds = ["arena"]
[sram]
address = 0x24000000
bytes = "512K"
align = 8
holds = ["arena"]
[flash]
address = 0x08000000
bytes = "1M"
holds = ["parameters"]
"""


@pytest.mark.parametrize(("size", "place"), [("65536", "dtcm"), ("8", "sram"), ("1024", "dtcm and sram")])
def test_the_arena_goes_where_there_is_room(size: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text(BOARD.format("dtcm", size))
    command = ["compile", str(DIGITS), "-o", str(tmp_path / "net"), "--no-build", "--target", "cortex-m7"]
    done = CliRunner().invoke(main, [*command, "--memories", str(tmp_path / "board.toml")])
    assert done.exit_code == 0, done.output
    made = aotc.compile(DIGITS, target="cortex-m7", memories=tmp_path / "board.toml", build=False)
    assert made.metadata["memory"]["spaces"] == {"arena": place, "parameters": "flash"}


def test_what_has_room_nowhere(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text("[ram]\nbytes = 1024\n")
    with pytest.raises(AotcError, match="has 1024") as caught:
        aotc.compile(DIGITS, target="cortex-m7", memories=tmp_path / "board.toml", build=False)
    assert caught.value.code == "memory"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[ram", "not TOML"),
        ("\xff", "not TOML"),
        ("ram = 3", "is not a table"),
        ("[ram]\nbytes = 1\ncolor = 2", "unknown key 'color'; known: address, bytes"),
        ("[ram]\nalign = 8", "ram has no bytes"),
        ("[ram]\nbytes = 0", "ram has no bytes"),
        ("", "no memory space is assigned to the arena"),
        ('[flash]\nbytes = 64\nholds = ["parameters"]', "no memory space is assigned to the arena"),
        ('[ram]\nbytes = "64 kB"', "ram: bytes is '64 kB', not a number such as"),
        ("[ram]\nbytes = -1", "ram: bytes is -1"),
        ('[ram]\nbytes = 64\naddress = "low"', "ram: address is 'low'"),
        ('[ram]\nbytes = 64\nholds = ["code"]', "not some of"),
        ("[ram]\nbytes = 64\nholds = []", "not some of"),
        ("[a]\nbytes = 64\nalign = 16\n[b]\nbytes = 64", "aligned differently"),
        ("[ram]\nbytes = 64\nalign = 4", "ram is aligned to 4 bytes, the target needs 8"),
        (
            "[a]\nbytes = 64\naddress = 0\n[b]\nbytes = 64\naddress = 63",
            r"a \(0x0 to 0x3f\) and b \(0x3f to 0x7e\) overlap",
        ),
    ],
)
def test_files_that_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(AotcError, match=problem) as caught:
        read_memory_regions(tmp_path / "board.toml")
    assert caught.value.code == "memories"


def test_memories_next_to_each_other(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text("[a]\nbytes = 64\naddress = 0\n[b]\nbytes = 64\naddress = 64\n")
    assert [s.bytes for s in read_memory_regions(tmp_path / "board.toml")] == [64, 64]
    with pytest.raises(AotcError) as caught:
        read_memory_regions(tmp_path / "none.toml")
    assert caught.value.code == "memories"


def test_memories_are_aligned_as_the_target_needs(tmp_path: Path) -> None:
    """To as many bytes at least as its vectors; to more for lines of a cache, or transfers."""
    file = "[ram]\nbytes = 65536\nholds = ['arena']\n[flash]\nbytes = 65536\nholds = ['parameters']\n"
    for more, align in (("", 16), ("align = 64", 64)):
        (tmp_path / "board.toml").write_text(file + more)
        options = {"name": "net", "target": "cortex-m55", "memories": tmp_path / "board.toml", "build": False}
        made = aotc.compile(DIGITS, output=tmp_path / f"net{align}", **options)
        assert f"  .balign {align}\n" in (made.path / "src" / "net_params.S").read_text()
        places = re.findall(r"\(net_params \+ (\d+)", (made.path / "src" / "net_internal.h").read_text())
        assert len(places) > 4 and all(int(at) % align == 0 for at in places)
    (tmp_path / "board.toml").write_text(file + "align = 8")
    with pytest.raises(AotcError, match="flash is aligned to 8 bytes, the target needs 16") as caught:
        aotc.compile(DIGITS, **options)
    assert caught.value.code == "memories"


def test_systems_place_their_programs_themselves(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text("[ram]\nbytes = 65536\n")
    with pytest.raises(AotcError, match="applies to bare-metal targets only") as caught:
        aotc.compile(DIGITS, target="x86-64", memories=tmp_path / "board.toml", build=False)
    assert caught.value.code == "memories"


@pytest.mark.parametrize("target", ["cortex-m4", "c"])
def test_threads_where_there_is_one(target: str, tmp_path: Path) -> None:
    """Asked for, they are refused; otherwise kernels are made without."""
    command = ["compile", str(DIGITS), "-o", str(tmp_path / "net"), "--no-build", "--target", target]
    refused = CliRunner().invoke(main, [*command, "--threads"])
    assert refused.exit_code == 2
    assert f"kernels for {target} cannot run on several" in refused.output
    assert CliRunner().invoke(main, [*command, "--no-threads"]).exit_code == 0


def test_inspect_shows_several_memories(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text(BOARD.format("dtcm", "1024"))
    command = ["inspect", str(DIGITS), "--target", "cortex-m7", "--memories", str(tmp_path / "board.toml")]
    shown = CliRunner().invoke(main, [*command, "--memory"])
    assert shown.exit_code == 0, shown.output
    assert "dtcm" in shown.output and "524288" in shown.output
    parts = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)["arena"]["parts"]
    fast, slow = parts
    assert (fast["memory"], fast["offset"], slow["offset"], slow["room"]) == ("dtcm", 0, fast["bytes"], 512 << 10)
    assert fast["accesses"] / fast["bytes"] > slow["accesses"] / slow["bytes"] > 0


def test_what_lies_behind_parameters_has_room(tmp_path: Path) -> None:
    """Values of a self-test and checksums count where parameters are placed: else a linker would refuse them."""
    require_tool("gcc")
    board, options = tmp_path / "board.toml", {"name": "net", "target": "c", "profile": "bare", "selftest": True}
    text = "[ram]\nbytes = '1M'\nholds = ['arena']\n[flash]\nbytes = {}\nholds = ['parameters']\n"
    more = "[slow]\nbytes = '8K'\nholds = ['parameters']\n"

    def compiled(size: int, more: str = "") -> aotc.CompiledModel:
        board.write_text(text.format(size) + more)
        return aotc.compile(DIGITS, output=tmp_path / "net", memories=board, **options)

    made = compiled(1 << 20)
    parameters, whole = made.metadata["weights_bytes"], made.metadata["weights"]["bytes"]
    assert parameters + 4 * (64 + 10) <= whole
    assert compiled(whole).metadata["memory"]["spaces"]["parameters"] == "flash"
    with pytest.raises(AotcError, match=f"the parameters need {whole} bytes") as caught:
        compiled(whole - 1)
    assert caught.value.code == "memory"
    made = compiled(whole - 1, more)
    pieces = [(p["memory"], p["begin"], p["bytes"]) for p in made.metadata["weights"]["pieces"]]
    assert pieces == [("flash", 0, parameters), ("slow", parameters, whole - parameters)]
    (tmp_path / "main.c").write_text(
        '#include "net.h"\nstatic long double workspace[NET_WORKSPACE_BYTES / sizeof(long double) + 1];\n'
        "int main(void) { static float y[10]; net_outputs out = {y}; return net_selftest(&out, workspace); }\n"
    )
    flags = ["-I", made.path / "include", made.built, "-lm", "-o", tmp_path / "main"]
    subprocess.run(["gcc", tmp_path / "main.c", *flags], check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


def test_values_of_a_self_test_without_parameters_have_a_memory(tmp_path: Path) -> None:
    x = relay.var("x", shape=(2, 8))
    module = aotc.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))
    board, options = tmp_path / "board.toml", {"target": "c", "profile": "bare", "selftest": True, "build": False}
    for size, place in ((4, "slow"), (4096, "flash")):
        text = "[ram]\nbytes = 1024\nholds = ['arena']\n[flash]\nbytes = {}\nholds = ['parameters']\n"
        board.write_text(text.format(size) + "[slow]\nbytes = 4096\nholds = ['parameters']\n")
        made = aotc.compile(module, output=tmp_path / place, memories=board, name="net", **options)
        pieces = [p["memory"] for p in made.metadata["weights"]["pieces"]]
        assert pieces == [place] == [made.metadata["memory"]["spaces"]["parameters"]]
