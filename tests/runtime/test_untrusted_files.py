# SPDX-License-Identifier: Apache-2.0
"""Damaged or hostile projects and archives give one diagnostic each, and nothing outside of them is touched."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc.driver.output_folder import stage_output_files
from aotc.ir.diagnostics import AotcError
from aotc.measuring.profile import profile_library
from aotc.reporting.model_inspection import inspect_project
from aotc.runtime.library import is_aotc_project
from aotc.runtime.module import load_module
from aotc.runtime.session import load
from tests.cli.invoke import refused

DEEP = 100_000
DAMAGED = {
    "deep lists": b'{"library": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep tables": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deeper than printers go": b'{"generator": "aotc", "a": ' + b"[" * 500 + b"]" * 500 + b"}",
    "digits": b'{"generator": "aotc", "a": ' + b"9" * 10_000 + b"}",
    "not UTF-8": b'{"generator": "aotc", "library": "lib/\xff.so"}',
    "half a character": b'{"generator": "aotc", "library": "lib/\\ud800.so"}',
    "half a character in a key": b'{"generator": "aotc", "\\udfff": 1}',
    "UTF-16": '{"generator": "aotc"}'.encode("utf-16"),
    "list": b'["generator", "aotc"]',
    "text": b'"aotc"',
    "NaN": b'{"generator": "aotc", "error_bound": NaN}',
    "infinity": b'{"generator": "aotc", "error_bound": -Infinity}',
    "empty": b"",
    "cut off": b'{"generator": "aotc", "library": "lib/libtiny',
    "two values": b'{"generator": "aotc"} {"generator": "aotc"}',
    "NUL": b"\0" * 512,
}
ELSEWHERE: dict[str, object] = {
    "absolute": "/lib/libtiny.so",
    "parent": "../outside/libtiny.so",
    "parent in between": "lib/../../outside/libtiny.so",
    "link": "link.so",
    "linked folder": "links/libtiny.so",
    "NUL": "lib/libtiny.so\0",
    "number": 7,
    "list": ["lib/libtiny.so"],
    "table": {"lib/libtiny.so": 1},
    "truth": True,
    "empty": "",
    "long": "a" * 5000,
    "long path": "../" * 1000 + "outside/libtiny.so",
}


def refusal(call: Callable[[], object]) -> str:
    """The one diagnostic of what may not succeed, which says where and what to do."""
    with pytest.raises(AotcError) as caught:
        call()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in ("load", "profile", "checksum")
    text = str(caught.value)
    assert len(text) < 1000 and not any(
        word in text for word in ("Error", "codec", "recursion", "unpack (", "Traceback")
    )
    return text


@pytest.fixture
def project(tiny_library: Path, tmp_path: Path) -> Path:
    """A project that works, and links in it to a library outside."""
    (tmp_path / "outside").mkdir()
    shutil.copy(tiny_library, tmp_path / "outside")
    folder = tmp_path / "net"
    (folder / "lib").mkdir(parents=True)
    shutil.copy(tiny_library, folder / "lib" / "libtiny.so")
    (folder / "link.so").symlink_to(tmp_path / "outside" / "libtiny.so")
    (folder / "links").symlink_to(tmp_path / "outside")
    assert load(folder).name == "tiny"
    return folder


def refuses_everywhere(project: Path) -> str:
    """What `load` says, as all other readers do."""
    text = refusal(lambda: load(project))
    assert "metadata.json" in text and "hint: " in text
    assert refusal(lambda: load_module(project)) == refusal(lambda: profile_library(project)) == text
    assert "metadata.json" in refusal(lambda: load(project / "lib" / "libtiny.so", check=True)) or "link" in text
    for arguments in (["run", project], ["run", project, "--profile"]):
        assert "metadata.json" in refused(*arguments).replace("\n", "")
    return text


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_metadata(project: Path, kind: str) -> None:
    (project / "metadata.json").write_bytes(DAMAGED[kind])
    refuses_everywhere(project)
    assert not is_aotc_project(project)
    with pytest.raises(AotcError, match="no project written by aotc"):
        inspect_project(project)
    refused("inspect", project)
    with pytest.raises(AotcError, match=r"metadata\.json: not written by aotc"), stage_output_files(project) as work:
        (work / "metadata.json").write_text("{}")


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_metadata_that_place_the_library_elsewhere(project: Path, kind: str) -> None:
    (project / "metadata.json").write_text(json.dumps({"library": ELSEWHERE[kind]}))
    text = refusal(lambda: load(project))
    assert refusal(lambda: load_module(project)) == text
    refused("run", project)


def test_too_large_metadata(project: Path) -> None:
    with (project / "metadata.json").open("wb") as file:
        file.truncate(1 << 40)
    refuses_everywhere(project)


STEP: dict[str, Any] = {"kernel": "k", "macs": 1, "bytes_read": 1, "bytes_written": 1, "nodes": ["n"]}
STEPS = {
    "none": {},
    "no list": {"steps": 3},
    "no tables": {"steps": [1]},
    **{f"no {key}": {"steps": [{k: v for k, v in STEP.items() if k != key}]} for key in STEP},
    **{f"odd {key}": {"steps": [STEP | {key: [None]}]} for key in STEP},
    "negative": {"steps": [STEP | {"macs": -1}]},
    "enormous": {"steps": [STEP | {"macs": 10**400}]},
    "no target": {"steps": [STEP], "target": None},
    "versions": {"steps": [STEP], "isas": 5},
    "versions of nothing": {"steps": [STEP], "isas": [None]},
    "versions without steps": {"steps": [STEP], "isas": [{"name": "avx2"}]},
    "versions with more steps": {"steps": [STEP], "isas": [{"name": "avx2", "steps": ["a", "b"]}]},
}


@pytest.mark.parametrize("kind", STEPS)
def test_steps_that_aotc_does_not_write(project: Path, kind: str) -> None:
    metadata = {"library": "lib/libtiny.so", "target": "c", **STEPS[kind]}
    (project / "metadata.json").write_text(json.dumps(metadata))
    assert "steps" in refusal(lambda: profile_library(project))
    refused("run", project, "--profile")


@pytest.mark.parametrize("name", ["../victim", "links/victim", "a/../../victim", "/victim", "victim\0", "\0/victim"])
def test_former_files_outside_stay(project: Path, tmp_path: Path, name: str) -> None:
    """A project that says that aotc wrote files elsewhere is replaced, and these stay."""
    victims = [tmp_path / "victim", tmp_path / "outside" / "victim"]
    for victim in victims:
        victim.write_text("mine")
    absolute = str(victims[0]) if name == "/victim" else name
    metadata = {"generator": "aotc", "library": absolute, "sha256": {absolute: "0", "lib/libtiny.so": "0"}}
    (project / "metadata.json").write_text(json.dumps(metadata))
    with stage_output_files(project, overwrite=True) as work:
        (work / "metadata.json").write_text("{}")
    assert [victim.read_text() for victim in victims] == ["mine", "mine"]
    assert (project / "lib" / "libtiny.so").exists(), "metadata do not say which files are ours"


# --- archives


def header(name: str = "x", kind: bytes = tarfile.REGTYPE, size: int = 0, **fields: Any) -> bytes:
    """A member's header in the format of GNU tar, which has numbers of any size and sign."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def block(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An extended header."""
    return header("pax", kind, len(records)) + block(records)


def record(key: str, value: bytes) -> bytes:
    body = b" " + key.encode() + b"=" + value + b"\n"
    length = len(body) + 1
    while length != len(str(length)) + len(body):
        length = len(str(length)) + len(body)
    return str(length).encode() + body


FILE = header("x", size=1) + block(b"x")
HOSTILE = {
    "PAX path with NUL": pax(record("path", b"lib/a\0b")) + FILE,
    "PAX path that is absolute": pax(record("path", b"/tmp/aotc-evil")) + FILE,
    "PAX path that leaves": pax(record("path", b"lib/../../evil")) + FILE,
    "PAX path of all": pax(record("path", b"../evil"), tarfile.XGLTYPE) + FILE,
    "PAX path that is long": pax(record("path", b"a" * 5000)) + FILE,
    "PAX path that is empty": pax(record("path", b"")) + FILE,
    "PAX size that is negative": pax(record("size", b"-1024")) + FILE,
    "PAX size that is huge": pax(record("size", b"9" * 30)) + FILE,
    "PAX size of too many digits": pax(record("size", b"9" * 5000)) + FILE,
    "PAX link": pax(record("linkpath", b"/etc/passwd")) + header("lib", tarfile.SYMTYPE),
    "PAX record of no length": pax(b"0 path=x\n") + FILE,
    "PAX record of too many digits": pax(b"9" * 5000 + b" path=x\n") + FILE,
    "PAX header that is huge": header("pax", tarfile.XHDTYPE, 1 << 62) + FILE,
    "PAX header beyond all numbers": header("pax", tarfile.XHDTYPE, 1 << 80) + FILE,
    "PAX header that is negative": header("pax", tarfile.XHDTYPE, -1024) + FILE,
    "PAX headers without end": pax(record("a", b"b")) * 3000,
    "PAX map of holes": pax(record("GNU.sparse.map", b"a,b")) + FILE,
    "PAX list of holes": pax(record("GNU.sparse.major", b"1") + record("GNU.sparse.minor", b"0")) + FILE,
    "name that leaves": header("../evil", size=1) + block(b"x"),
    "name with a backslash": header("..\\evil", size=1) + block(b"x"),
    "name that is empty": header("", size=1) + block(b"x"),
    "long name of GNU tar": header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 8) + block(b"../evil\0") + FILE,
    "long name that is huge": header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 1 << 62) + FILE,
    "symbolic link": header("lib", tarfile.SYMTYPE, linkname="/tmp"),
    "hard link": header("lib", tarfile.LNKTYPE, linkname="/etc/passwd"),
    "device": header("lib", tarfile.CHRTYPE, devmajor=1, devminor=5),
    "disk": header("lib", tarfile.BLKTYPE),
    "pipe": header("lib", tarfile.FIFOTYPE),
    "kind that is unknown": header("lib", b"Z"),
    "sparse file": header("lib", tarfile.GNUTYPE_SPARSE, 0),
    "negative size": header("x", size=-1024),
    "huge size": header("x", size=1 << 62),
    "size beyond all numbers": header("x", size=1 << 87),
    "cut off": header("x", size=5000) + block(b"x"),
    "cut off in a header": FILE + header("y")[:300],
    "cut off after a member": FILE,
    "damaged header": FILE + b"\xff" * 512,
    "one name twice": FILE + FILE,
    "one name in two spellings": FILE + header("./x", size=1) + block(b"x"),
    "a file as a folder": FILE + header("x/y", size=1) + block(b"x"),
    "nothing": b"",
    "no archive": b"\x1f\x8b" + bytes(100),
}
CUT = {"cut off", "cut off in a header", "cut off after a member", "nothing", "no archive"}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nothing of one stays behind, and nothing outside of the folder it is unpacked into is touched."""
    home = tmp_path / "scratch"
    home.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    archive = tmp_path / "net.tar"
    archive.write_bytes(HOSTILE[kind] + (b"" if kind in CUT else bytes(1024)))
    text = refusal(lambda: load_module(archive))
    assert "net.tar" in text and "hint: " in text and "unpack" in text
    assert list(home.iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} == {"net.tar", "scratch"}
    refused("run", archive)


def test_compressed_archives_are_not_taken(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "net.tar", "w:gz") as tar:
        tar.add(__file__, "lib/libx.so")
    assert "it is damaged, or no archive" in refusal(lambda: load_module(tmp_path / "net.tar"))


def pack(path: Path, library: Path, metadata: object) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        data = json.dumps(metadata).encode()
        info = tarfile.TarInfo("metadata.json")
        info.size = len(data)
        tar.add(library, "lib/libtiny.so")
        tar.addfile(info, io.BytesIO(data))
    return path


def test_metadata_in_an_archive_that_place_the_library_outside(tiny_library: Path, tmp_path: Path) -> None:
    sound = pack(tmp_path / "sound.tar", tiny_library, {"library": "lib/libtiny.so"})
    assert load_module(sound).name == "tiny"
    for name in (str(tiny_library), "../" * 20 + str(tiny_library), 7):
        text = refusal(lambda name=name: load_module(pack(tmp_path / "net.tar", tiny_library, {"library": name})))  # type: ignore[misc]
        assert "library" in text and "metadata.json" in text


def test_every_truncation_of_an_archive(tiny_library: Path, tmp_path: Path) -> None:
    data = pack(tmp_path / "net.tar", tiny_library, {"library": "lib/libtiny.so"}).read_bytes()
    end = len(data.rstrip(b"\0"))
    for length in [*range(0, end, 1777), *range(end - 600, end, 97)]:
        (tmp_path / "cut.tar").write_bytes(data[:length])
        refusal(lambda: load_module(tmp_path / "cut.tar"))
