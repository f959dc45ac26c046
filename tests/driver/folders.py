# SPDX-License-Identifier: Apache-2.0
"""Converts folders to tables of their files, for tests of written files.

emit({"src/net.c": "1"}, folder)
files_of(folder)["src/net.c"]
"""

from collections.abc import Mapping
from pathlib import Path

from aotc.driver.output_folder import stage_output_files


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def emit(files: Mapping[str, str], output: Path, overwrite: bool = False) -> None:
    """Put files into an output folder as a compile does."""
    with stage_output_files(output, overwrite) as work:
        write(work, files)


def files_of(folder: Path) -> dict[str, str]:
    """The text of every regular file below a folder, by path; links and other files are left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace") if path.stat().st_size < 1 << 20 else ""
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
