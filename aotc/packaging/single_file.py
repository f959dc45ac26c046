# SPDX-License-Identifier: Apache-2.0
"""Merge the sources of a project without an operating system into one source and one header.

header, source = merge_sources_into_one(sources)     # contents of digits.h and digits.c
"""

from __future__ import annotations

import re
from typing import Final

from aotc.packaging.project_sources import ProjectSources, package_error

_LOCAL_INCLUDE: Final = re.compile(r'^#include "([^"\n]+)"\n', re.MULTILINE)
#: Sources with code of the user's own generators, which may define any names.
_EXTERNAL_SOURCE: Final = re.compile(r"_extern_\d+\.c$")


def merge_sources_into_one(sources: ProjectSources) -> tuple[str, str]:
    """Return the text of the header and of the source of a project without an operating system.

    A header is inserted where it is first included. Sources follow each other: parameters first, then
    kernels, then the functions that call them.

    Raise AotcError (code "package") for a project with sources of the user's own code generators.
    """
    name = sources.name
    if externals := [source for source in sources.source_names if _EXTERNAL_SOURCE.search(source)]:
        text = (
            f"{name} has code of your own generators ({', '.join(externals)}), which is not merged with other sources"
        )
        raise package_error(text, "package it for another ecosystem, such as pkg-config")
    available = {file: data.decode("utf-8") for file, data in {**sources.headers, **sources.files}.items()}
    inserted: set[str] = set()
    header = _with_headers_inserted(available[f"{name}.h"], available, inserted)
    inserted.add(f"{name}.h")
    order = sorted(sources.source_names, key=lambda file: (_rank_of_source(name, file), file))
    texts = [_with_headers_inserted(available[file], available, inserted) for file in order]
    return header, f'#include "{name}.h"\n\n' + "\n".join(texts)


def _rank_of_source(name: str, file: str) -> int:
    """Return the position of a source: parameters, kernels, the rest."""
    if file == f"{name}_params.c":
        return 0
    return 1 if file.startswith(f"{name}_kernels") else 2


def _with_headers_inserted(text: str, available: dict[str, str], inserted: set[str]) -> str:
    """Return a text in which each header of the project stands in place of its first inclusion; the
    other inclusions are left out.

    Headers include each other to a small depth, and never in a circle.
    """

    def insert(match: re.Match[str]) -> str:
        if match[1] in inserted or match[1] not in available:
            return "" if match[1] in available else match[0]
        inserted.add(match[1])
        return _with_headers_inserted(available[match[1]], available, inserted)

    return _LOCAL_INCLUDE.sub(insert, text)
