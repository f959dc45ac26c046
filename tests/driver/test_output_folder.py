# SPDX-License-Identifier: Apache-2.0
"""Output folders: aotc replaces and removes only files that it wrote, and nothing outside of the folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.output_folder import check_project_can_be_written_to_folder, stage_output_files
from aotc.ir.diagnostics import AotcError
from aotc.ir.file_checksum_manifest import (
    MANIFEST_FILE_NAME,
    PENDING_MANIFEST_FILE_NAME,
    file_checksum,
    manifest_json_text,
)
from aotc.runtime.library import is_aotc_project
from tests.driver.folders import emit, files_of
from tests.e2e.projects import affine

FIRST = {"metadata.json": '{"generator": "aotc"}', "src/net.c": "1", "src/old.c": "1", "only/old.h": "1"}
SECOND = {"metadata.json": '{"generator": "aotc"}', "src/net.c": "2", "src/new.c": "2"}
"""A project, and the next one in the same folder: one file is replaced, two go, one comes."""


def refused(output: Path, files: dict[str, str] = SECOND, overwrite: bool = False) -> str:
    """The one error of a compile that changes nothing."""
    before = files_of(output.parent)
    with pytest.raises(AotcError) as caught:
        emit(files, output, overwrite)
    assert files_of(output.parent) == before
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "output"
    return str(caught.value)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A folder with the first project."""
    emit(FIRST, tmp_path / "home" / "net")
    return tmp_path / "home" / "net"


def test_a_new_folder(tmp_path: Path) -> None:
    emit(FIRST, tmp_path / "deep" / "net")
    assert is_aotc_project(tmp_path / "deep" / "net")
    found = files_of(tmp_path)
    assert found.keys() == {f"deep/net/{name}" for name in (*FIRST, MANIFEST_FILE_NAME)}
    stated = json.loads(found[f"deep/net/{MANIFEST_FILE_NAME}"])["files"]
    assert stated == {name: file_checksum(tmp_path / "deep" / "net" / name) for name in FIRST}


@pytest.mark.parametrize("place", ["net", "deep/net"])
def test_a_failure_leaves_no_folder(tmp_path: Path, place: str) -> None:
    with pytest.raises(RuntimeError), stage_output_files(tmp_path / place):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_former_result(output: Path) -> None:
    before = files_of(output)
    with pytest.raises(RuntimeError), stage_output_files(output) as work:
        (work / "file").write_text("2")
        raise RuntimeError
    assert files_of(output) == before


def test_our_own_files_are_replaced_and_those_that_are_not_made_any_more_go(output: Path) -> None:
    emit(SECOND, output)
    assert files_of(output).keys() == {*SECOND, MANIFEST_FILE_NAME} and not (output / "only").exists()
    assert files_of(output)["src/net.c"] == "2"


def test_nothing_is_written_where_nothing_changes(output: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    emit(FIRST, output)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()} == before


def test_files_of_the_user_stay(output: Path) -> None:
    mine = ["notes.txt", "src/mine.c", "build/app", "build/src/net.o", "only/mine", "lib/libmine.so", ".aotc-notes"]
    for name in mine:
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("mine")
    emit(SECOND, output)
    assert {name for name, text in files_of(output).items() if text == "mine"} == {*mine}
    assert not (output / "src" / "old.c").exists()


def test_a_folder_with_other_files_is_compiled_into(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    emit(FIRST, tmp_path)
    assert files_of(tmp_path).keys() == {"notes.txt", *FIRST, MANIFEST_FILE_NAME}


def test_files_in_the_way_are_named_all_at_once(output: Path) -> None:
    for name in ("src/net.c", "src/old.c", "src/new.c"):
        (output / name).write_text("mine")
    said = refused(output)
    assert "src/net.c: changed since aotc wrote it" in said and "src/old.c: changed" in said
    # what comes is known when it is made: then all are named
    emit_first = {**FIRST, "src/old.c": "mine", "src/net.c": "mine"}
    (output / MANIFEST_FILE_NAME).write_text(manifest_json_text({n: file_checksum(output / n) for n in emit_first}))
    assert "src/new.c: not written by aotc" in refused(output) and "overwrite=True" in refused(output)


def test_changed_files_stop_a_compile_before_it_begins(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (output / "src" / "net.c").write_text("mine")
    monkeypatch.setattr("aotc.driver.compile.import_model_and_state", lambda *_: pytest.fail("the model was read"))
    with pytest.raises(AotcError, match=r"src/net\.c: changed since"):
        aotc.compile("net.onnx", output=output, build=False)


def test_overwrite_replaces_what_is_needed_and_keeps_the_rest(output: Path) -> None:
    for name in ("src/net.c", "src/old.c", "src/new.c", "notes.txt"):
        (output / name).write_text("mine")
    emit(SECOND, output, True)
    found = files_of(output)
    assert found["src/net.c"] == found["src/new.c"] == "2"
    assert found["src/old.c"] == found["notes.txt"] == "mine", "not needed, and not ours"
    emit(FIRST | {"src/old.c": "mine"}, output)


def test_a_file_with_equal_contents_is_not_in_the_way(output: Path) -> None:
    """A project without its manifest, such as one of which only the sources are under version control."""
    (output / MANIFEST_FILE_NAME).unlink()
    emit(FIRST, output)
    assert files_of(output).keys() == {*FIRST, MANIFEST_FILE_NAME}
    (output / MANIFEST_FILE_NAME).unlink()
    assert "src/net.c: not written by aotc" in refused(output)


def test_parts_of_the_runtime_that_are_no_longer_needed_go(tmp_path: Path) -> None:
    found = []
    for threads in (True, False):
        aotc.compile(affine(300, 0), output=tmp_path / "net", target="x86-64-v3", build=False, threads=threads)
        found.append({p.name for p in (tmp_path / "net" / "runtime").iterdir()})
    assert found == [{"aotc_rt.c", "aotc_pool.c"}, {"aotc_rt.c"}]


def test_the_current_directory_can_be_the_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for files in (FIRST, SECOND):
        emit(files, Path())
        assert files_of(tmp_path).keys() == {*files, MANIFEST_FILE_NAME}


def test_a_relative_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C compilers run in the project, wherever that is seen from."""
    monkeypatch.chdir(tmp_path)
    model = aotc.compile(affine(4, 0), output="net", cflags=["-O1"], cache=False)
    assert model.session().run(None, {"x": np.zeros((1, 4), np.float32)})[0].shape == (1, 4)


def test_a_project_that_is_incomplete_is_not_loaded(output: Path) -> None:
    (output / MANIFEST_FILE_NAME).rename(output / PENDING_MANIFEST_FILE_NAME)
    with pytest.raises(AotcError, match="is incomplete") as caught:
        aotc.load(output)
    assert caught.value.code == "load"
    emit(FIRST, output)
    assert files_of(output).keys() == {*FIRST, MANIFEST_FILE_NAME}


# --- hostile folders: files outside, and of others, stay as they are; each is an error, or the compile succeeds beside


def outside(output: Path) -> Path:
    """A folder of the user's outside of the output folder, with the files of a project."""
    place = output.parent / "outside"
    place.mkdir()
    for name in ("net.c", "old.c", "new.c"):
        (place / name).write_text("1")
    return place


def replaced_by(output: Path, name: str, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file or folder of the project."""
    path = output / name
    for inner in sorted(path.rglob("*"), reverse=True):
        inner.unlink()
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    make(path)


def link_of_a_folder(output: Path) -> str:
    place = outside(output)
    replaced_by(output, "src", lambda path: path.symlink_to(place))
    return "src: a link"


def link_of_a_folder_that_is_not_needed(output: Path) -> str:
    place = outside(output)
    (place / "old.h").write_text("1")
    replaced_by(output, "only", lambda path: path.symlink_to(place))
    return ""


def link_of_a_file(output: Path) -> str:
    place = outside(output)
    replaced_by(output, "src/net.c", lambda path: path.symlink_to(place / "net.c"))
    return "src/net.c: a link"


def link_of_a_file_that_is_not_needed(output: Path) -> str:
    place = outside(output)
    replaced_by(output, "src/old.c", lambda path: path.symlink_to(place / "old.c"))
    return ""


def dangling_link(output: Path) -> str:
    replaced_by(output, "src/new.c", lambda path: path.symlink_to("nowhere"))
    return "src/new.c: a link"


def link_to_the_manifest(output: Path) -> str:
    (output / MANIFEST_FILE_NAME).rename(output.parent / "elsewhere.json")
    (output / MANIFEST_FILE_NAME).symlink_to("../elsewhere.json")
    return "is not a regular file"


def pending_link(output: Path) -> str:
    (output / PENDING_MANIFEST_FILE_NAME).symlink_to("nowhere")
    return "is not a regular file"


def loop_of_links(output: Path) -> str:
    replaced_by(output, "src", lambda path: path.symlink_to("src"))
    return "src: a link"


def hard_links(output: Path) -> str:
    place = outside(output)
    for name in ("net.c", "old.c"):
        os.link(output / "src" / name, place / f"mine_{name}")
    return ""


def pipe(output: Path) -> str:
    replaced_by(output, "src/net.c", os.mkfifo)
    return "src/net.c: a special file"


def pipe_that_is_not_needed(output: Path) -> str:
    replaced_by(output, "src/old.c", os.mkfifo)
    return ""


def folder_where_a_file_should_be(output: Path) -> str:
    (output / "src" / "new.c").mkdir()
    (output / "src" / "new.c" / "mine").write_text("mine")
    return "src/new.c: a directory"


def file_where_a_folder_should_be(output: Path) -> str:
    replaced_by(output, "src", lambda path: path.write_text("mine"))
    return "src: a file where a directory is needed"


def other_case(output: Path) -> str:
    for name in ("SRC/NET.C", "makefile", "METADATA.JSON"):
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("mine")
    return ""


def names_that_are_no_text(output: Path) -> str:
    Path(os.fsdecode(bytes(output / "src") + b"/\xff\xfe.c")).write_text("mine")
    Path(os.fsdecode(bytes(output) + b"/new\nline")).write_text("mine")
    return ""


def planted_scratch(output: Path) -> str:
    for home in (output, output.parent):
        left = home / ".aotc-0123456789abcdef"
        (left / "old").mkdir(parents=True)
        (left / "lock").write_text("")
        (left / "old" / "Makefile").write_text("mine")
        (left / "plan.json").write_text(json.dumps({"old": ["x"], "new": ["src/net.c"], "made": [], "left": []}))
    return ""


def planted_manifest(name: str) -> Callable[[Path], str]:
    """A manifest that claims a file elsewhere, with its checksum."""

    def make(output: Path) -> str:
        mine = output.parent / "mine.txt"
        mine.write_text("mine")
        claimed = str(mine) if name == "absolute" else name
        (output / MANIFEST_FILE_NAME).write_text(manifest_json_text({claimed: file_checksum(mine)}))
        return "is damaged: it has entries that aotc never writes"

    return make


def damaged_manifest(data: bytes) -> Callable[[Path], str]:
    def make(output: Path) -> str:
        (output / MANIFEST_FILE_NAME).write_bytes(data)
        return "manifest.json"

    return make


def huge_manifest(output: Path) -> str:
    with (output / MANIFEST_FILE_NAME).open("wb") as file:
        file.truncate(1 << 40)
    return "larger than 16 MiB"


HOSTILE: dict[str, Callable[[Path], str]] = {
    made.__name__: made
    for made in (
        link_of_a_folder, link_of_a_folder_that_is_not_needed, link_of_a_file, link_of_a_file_that_is_not_needed,
        dangling_link, link_to_the_manifest, pending_link, loop_of_links, hard_links, pipe, pipe_that_is_not_needed,
        folder_where_a_file_should_be, file_where_a_folder_should_be, other_case, names_that_are_no_text,
        planted_scratch, huge_manifest,
    )
}  # fmt: skip
HOSTILE |= {f"manifest claims {n}": planted_manifest(n) for n in ("../mine.txt", "absolute", "src/../../mine.txt", ".")}
HOSTILE |= {
    f"manifest is {name}": damaged_manifest(data)
    for name, data in {
        "empty": b"", "no JSON": b"{", "a list": b"[]", "not UTF-8": b'{"generator": "\xff"}', "another's": b"{}",
        "deep": b"[" * 100_000, "without checksums": b'{"generator": "aotc", "format": 1, "files": {"src/net.c": ""}}',
        "of another format": b'{"generator": "aotc", "format": 2, "files": {}}',
        "of nothing": b'{"generator": "aotc", "format": 1, "files": null}',
    }.items()
}  # fmt: skip


def surroundings(output: Path) -> dict[str, str]:
    """What is outside of the output folder, and files of the user's in it."""
    found = files_of(output.parent)
    return {name: text for name, text in found.items() if not name.startswith("net/") or text == "mine"}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_folders(output: Path, kind: str) -> None:
    reason = HOSTILE[kind](output)
    before = surroundings(output)
    if reason:
        assert reason in refused(output)
    else:
        emit(SECOND, output)
        assert files_of(output)["src/net.c"] == "2"
    assert surroundings(output) == before
    if "where" in kind:
        # a directory is never removed, a file is
        before = {name: text for name, text in before.items() if name != "net/src"}
    if kind == "folder_where_a_file_should_be":
        assert "a directory" in refused(output, overwrite=True)
    else:
        emit(SECOND, output, True)
        assert files_of(output)["src/net.c"] == "2" and not (output / "src").is_symlink()
    assert {name: text for name, text in surroundings(output).items() if name in before} == before


def test_a_manifest_that_claims_files_in_the_folder_by_their_contents(output: Path) -> None:
    """What a planted manifest can do: remove regular files in the folder whose contents its author knew."""
    for name, text in (("mine.txt", "mine"), ("known.txt", "known")):
        (output / name).write_text(text)
    stated = json.loads((output / MANIFEST_FILE_NAME).read_text())["files"]
    planted = {"known.txt": file_checksum(output / "known.txt"), "mine.txt": "0" * 64}
    (output / MANIFEST_FILE_NAME).write_text(manifest_json_text(stated | planted))
    assert "mine.txt: changed since" in refused(output)
    emit(SECOND, output, True)
    assert (output / "mine.txt").read_text() == "mine" and not (output / "known.txt").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_are_read_only(output: Path) -> None:
    (output / "src").chmod(0o555)
    try:
        assert "Permission denied" in refused(output)
    finally:
        (output / "src").chmod(0o755)


def as_somebody(action: Callable[[], object]) -> str:
    """What an action says that another user does, in a process of its own; "" where it succeeds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = "died"
        try:
            os.setgid(65534)
            os.setuid(65534)
            action()
            text = ""
        except AotcError as error:
            text = str(error)
        finally:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
@pytest.mark.parametrize("place", ["src", "."])
def test_folders_of_others(place: str) -> None:
    """Read-only folders, and those of another owner, are an error before anything is written."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "net"
        emit(FIRST, output)
        for path in (Path(folder), output, *filter(Path.is_dir, output.rglob("*"))):
            path.chmod(0o777)
        (output / place).chmod(0o755)
        before = files_of(output)
        assert "Permission denied" in as_somebody(lambda: emit(SECOND, output))
        assert files_of(output) == before
        (output / place).chmod(0o777)
        assert as_somebody(lambda: emit(SECOND, output)) == ""
        assert files_of(output)["src/net.c"] == "2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_mounts_are_not_entered(output: Path) -> None:
    place = outside(output)
    if os.system(f"mount --bind '{place}' '{output / 'src'}' 2>/dev/null") != 0:
        pytest.skip("nothing can be mounted here")
    try:
        before = files_of(place)
        assert "src: a mount" in refused(output) and "src: a mount" in refused(output, overwrite=True)
        assert files_of(place) == before
    finally:
        assert os.system(f"umount '{output / 'src'}'") == 0
    emit(SECOND, output)


def test_a_file_is_not_a_destination(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for place, said in (("net", "not a directory"), ("link", "not a directory"), ("net/below", "cannot write")):
        with pytest.raises(AotcError, match=said):
            emit(FIRST, tmp_path / place)
    assert files_of(tmp_path) == {"net": "mine"}


def test_permission_is_asked_for_the_first_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied: set[Path] = {tmp_path}
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) not in denied)
    with pytest.raises(AotcError, match="Permission denied"):
        check_project_can_be_written_to_folder(tmp_path / "new" / "project")
    denied.clear()
    check_project_can_be_written_to_folder(tmp_path / "new" / "project")
