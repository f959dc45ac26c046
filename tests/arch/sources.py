# SPDX-License-Identifier: Apache-2.0
"""Source files that the architecture tests examine, each read and parsed once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {"aotc": ROOT / "aotc", "aotc_codegen": ROOT / "codegen", "aotc_runtime_c": ROOT / "runtime_c"}
PYTHON = sorted(p for top in ("aotc", "codegen", "runtime_c") for p in (ROOT / top).rglob("*.py"))
OTHERS = sorted(
    p
    for top in ("aotc", "codegen", "runtime_c")
    for p in (ROOT / top).rglob("*")
    if p.suffix in {".c", ".h", ".cu", ".cpp", ".j2"}
)
"""C sources and templates."""


def name_of(path: Path) -> str:
    """The path below the root of the project."""
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def modules() -> dict[str, Path]:
    """Every module of the three packages by its dotted name; a package is named as itself."""
    found = {}
    for package, folder in SOURCES.items():
        base = folder if folder.name == package else folder / package
        for path in sorted(base.rglob("*.py")):
            parts = (package, *path.relative_to(base).with_suffix("").parts)
            found[".".join(p for p in parts if p != "__init__")] = path
    return found


REEXPORTING_MODULES = ("aotc.ir", "aotc.tir", "aotc.relay.graph_api", "aotc.relay.op.operator_definition")
"""Modules that re-export, on first use, the names that their stub files import from other modules."""


@cache
def full_names_of_reexports() -> dict[str, str]:
    """Full names of the re-exported names: aotc.ir.DType is aotc.ir.dtype.DType."""
    stubs = ((name, text_of(modules()[name].with_suffix(".pyi"))) for name in REEXPORTING_MODULES)
    found = ((package, re.findall(r"^from (\S+) import (\w+) as", text, re.MULTILINE)) for package, text in stubs)
    return {f"{package}.{name}": f"{home}.{name}" for package, names in found for home, name in names}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, inside functions too. Re-exported names are given in full."""
    yield from ((line, full_names_of_reexports().get(name, name)) for line, name in written_imports(tree))


def written_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: absolute imports only"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
