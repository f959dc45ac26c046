# SPDX-License-Identifier: Apache-2.0
"""Write zip archives and Python wheels whose bytes depend on their files alone.

zip_archive({"include/digits.h": b"..."})     # the bytes of a zip file
wheel_archive("digits", "0.1.0", "manylinux_2_17_x86_64", files)

Times are 1980-01-01, the earliest that zip files can have; files are in alphabetical order.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from typing import Final

from aotc.ir.architecture_names import elf_architecture
from aotc.packaging.project_sources import package_error

_FILE_MODE: Final = 0o100644
_EARLIEST_TIME: Final = (1980, 1, 1, 0, 0, 0)
_GLIBC_VERSION_PATTERN: Final = re.compile(rb"GLIBC_2\.(\d{1,3})\b")
#: The name of musl's C library in libraries that need it; that of glibc is libc.so.6.
_MUSL_LIBRARY_NAME: Final = b"\0libc.so\0"
#: The oldest glibc that pip has wheels for on all architectures, as the minor number of its version.
_OLDEST_GLIBC_MINOR: Final = 17
_WHEEL_ARCHITECTURES: Final = {"x86": "i686", "arm": "armv7l"}


def zip_archive(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files: contents by path."""
    return _zip_of_files_in_order(dict(sorted(files.items())))


def _zip_of_files_in_order(files: Mapping[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _EARLIEST_TIME)
            # on all systems that of Unix
            entry.create_system, entry.external_attr = 3, _FILE_MODE << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return memory.getvalue()


def wheel_platform_of_library(library: bytes) -> str:
    """Return the platform tag of a wheel with an ELF library for Linux, such as
    manylinux_2_17_x86_64: its architecture and the newest version of glibc that it names; musllinux_1_2_x86_64
    for a library that musl loads.

    Raise AotcError (code "package") for other libraries.

    Source: PEP 600, Future 'manylinux' platform tags; PEP 656, Platform tag for Linux distributions using musl.
    """
    architecture = elf_architecture(library[:20])
    if not architecture:
        raise package_error("wheels are made of libraries for Linux, and this is another one")
    wheel_architecture = _WHEEL_ARCHITECTURES.get(architecture, architecture)
    if _MUSL_LIBRARY_NAME in library:
        return f"musllinux_1_2_{wheel_architecture}"
    minors = [int(minor) for minor in _GLIBC_VERSION_PATTERN.findall(library)]
    newest = max((_OLDEST_GLIBC_MINOR, *minors))
    return f"manylinux_2_{newest}_{wheel_architecture}"


def wheel_file_name(package: str, version: str, platform: str) -> str:
    """Return the name of a wheel; the name of the package is normalized as PEP 427 says."""
    return f"{re.sub(r'[-_.]+', '_', package).lower()}-{version}-py3-none-{platform}.whl"


def wheel_archive(
    package: str, version: str, platform: str, files: Mapping[str, bytes], metadata: str
) -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel.

    files       contents by path
    metadata    text of METADATA

    Source: PEP 427, The Wheel Binary Package Format.
    """
    file_name = wheel_file_name(package, version, platform)
    info = "-".join(file_name.split("-")[:2]) + ".dist-info"
    tag = f"py3-none-{platform}"
    wheel = f"Wheel-Version: 1.0\nGenerator: aotc\nRoot-Is-Purelib: false\nTag: {tag}\n"
    all_files = {**dict(sorted(files.items())), f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    rows = [f"{path},sha256={_url_safe_checksum(data)},{len(data)}\n" for path, data in all_files.items()]
    record = f"{info}/RECORD"
    # RECORD is the last entry, as pip and others write it
    return file_name, _zip_of_files_in_order({**all_files, record: "".join([*rows, f"{record},,\n"]).encode()})


def _url_safe_checksum(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
