# SPDX-License-Identifier: Apache-2.0
"""Libraries whose files are truncated or have changed bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.runtime.library_integrity import require_complete_library_file
from aotc.runtime.module import load_module
from aotc.runtime.session import load
from tests.shared_library_images import IMAGES, damaged

ROOT = Path(__file__).parents[2]
FEEDS = {"x": np.zeros((2, 3), np.float32), "scale:0": np.float32(1)}
LOAD_EACH = """
import os, sys
from aotc.ir.diagnostics import AotcError
from aotc.runtime.session import load

for path in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            load(path)
        except AotcError as error:
            os._exit(0 if error.code == "load" and "cannot load" in str(error) else 3)
        os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_truncated_libraries(tiny_library: Path, tmp_path: Path) -> None:
    """Each length in a process of its own: a diagnostic, never a signal."""
    data, rng = tiny_library.read_bytes(), random.Random(0)
    paths = []
    for length in [0, 1, 4, 63, 64, 4096, len(data) - 1, *(rng.randrange(len(data)) for _ in range(40))]:
        paths.append(tmp_path / f"lib{length}.so")
        paths[-1].write_bytes(data[:length])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "codegen", "runtime_c"))}
    command = [sys.executable, "-c", LOAD_EACH, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environ)
    found = dict(zip((p.name for p in paths), done.stdout.split(), strict=True))
    assert {name: code for name, code in found.items() if code != "0"} == {}


def refused(path: Path, data: bytes) -> str:
    """What `require_complete_library_file` says of a file with this content; "" where it lets it pass."""
    path.write_bytes(data)
    try:
        require_complete_library_file(path)
    except AotcError as error:
        assert error.code == "load"
        return error.diagnostics[0].message
    return ""


@pytest.mark.parametrize("name", IMAGES)
def test_every_format(name: str, tmp_path: Path) -> None:
    data, path = IMAGES[name], tmp_path / "library"
    assert refused(path, data) == refused(path, data + b"more") == ""
    for length in range(4, len(data), 7):
        assert f"it ends after {length} bytes" in refused(path, data[:length]), length
    assert refused(path, data[:-1]).endswith(f"its headers speak of {len(data)}")


@pytest.mark.parametrize("name", IMAGES)
def test_hostile_headers(name: str, tmp_path: Path) -> None:
    verdicts = {bool(refused(tmp_path / "library", data)) for data in damaged(IMAGES[name], 200)}
    assert verdicts == {True, False}


def test_more_commands_than_there_are(tmp_path: Path) -> None:
    """Java's classes begin as libraries for several architectures do."""
    java = b"\xca\xfe\xba\xbe\x00\x00\x00\x41" + bytes(100)
    assert refused(tmp_path / "library", java) == ""
    mach = bytearray(IMAGES["mach64<"])
    mach[20:24] = b"\xff" * 4
    assert refused(tmp_path / "library", bytes(mach)) == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    with pytest.raises(AotcError, match="it is a pipe"):
        load(tmp_path / "pipe.so")


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(AotcError) as caught:
        action()
    return caught.value.code


def test_checksum_on_request(tiny_library: Path, tmp_path: Path) -> None:
    """Checksums are verified only on request: a library with a changed unused byte loads without `check`."""
    library = tmp_path / "net" / "lib" / "libtiny.so"
    library.parent.mkdir(parents=True)
    shutil.copy(tiny_library, library)
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    assert code_of(lambda: load(library, check=True)) == "checksum"  # there is none
    metadata = {"library": "lib/libtiny.so", "sha256": {"lib/libtiny.so": digest}}
    (tmp_path / "net" / "metadata.json").write_text(json.dumps(metadata))
    archive = Path(shutil.make_archive(str(tmp_path / "net"), "tar", tmp_path / "net"))
    whole = hashlib.sha256(archive.read_bytes()).hexdigest()
    for check in (True, digest, digest.upper()):
        assert load(library, check=check).run(["sum"], FEEDS)[0] == [6]
    for load_it in (lambda c: load(tmp_path / "net", check=c), lambda c: load_module(archive, check=c)):
        load_it(True)
    load_module(archive, check=whole)

    with library.open("ab") as file:
        file.write(b"!")
    other = Path(shutil.make_archive(str(tmp_path / "other"), "tar", tmp_path / "net"))
    load(library)
    load_module(other)
    for check in (True, digest):
        assert code_of(lambda c=check: load(library, check=c)) == "checksum"  # type: ignore[misc]
        assert code_of(lambda c=check: load(tmp_path / "net", check=c)) == "checksum"  # type: ignore[misc]
        assert code_of(lambda c=check: load_module(other, check=c)) == "checksum"  # type: ignore[misc]
    assert code_of(lambda: load_module(other, check=whole)) == "checksum"
