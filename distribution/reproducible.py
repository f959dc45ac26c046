# SPDX-License-Identifier: Apache-2.0
"""The build backend: setuptools, whose archives are written again so that equal sources give equal bytes.

Times are $SOURCE_DATE_EPOCH or 1980, owners and permissions those of nobody in particular, and the order is that of the
names.  The compressor is the one of the running Python: another version of zlib may give other bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel", "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]  # fmt: skip

FIRST = 315532800
"""1980-01-01, the first moment that a zip archive can tell."""
MODE = 0o644


def _moment() -> int:
    return max(FIRST, int(os.environ.get("SOURCE_DATE_EPOCH") or FIRST))


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """The name of the archive of sources that is made in a directory."""
    name = build_meta.build_sdist(sdist_directory, config_settings)
    path = Path(sdist_directory, name)
    with tarfile.open(path) as tar:
        files = {m.name: file.read() for m in tar if (file := tar.extractfile(m)) is not None}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in sorted(files):
            info = tarfile.TarInfo(member)
            info.size, info.mode, info.mtime = len(files[member]), MODE, _moment()
            tar.addfile(info, io.BytesIO(files[member]))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=_moment()))
    return name


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """The name of the wheel that is made in a directory; nothing of earlier builds comes into it."""
    with tempfile.TemporaryDirectory() as fresh:
        options = {"--global-option": ["build", "--build-base", fresh]} | (config_settings or {})
        name = build_meta.build_wheel(wheel_directory, options, metadata_directory)
    path = Path(wheel_directory, name)
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    date = time.gmtime(_moment())[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member in sorted(files, key=lambda n: (".dist-info/" in n, n.endswith("/RECORD"), n)):
            info = zipfile.ZipInfo(member, date)
            info.external_attr, info.compress_type, info.create_system = (
                (0o100000 | MODE) << 16,
                zipfile.ZIP_DEFLATED,
                3,
            )
            wheel.writestr(info, files[member])
    return name
