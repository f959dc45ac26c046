# SPDX-License-Identifier: Apache-2.0
"""The excerpts of docs/walk.md are output of the compiler, and its files are in the order of their first calls.

Packages in the diagrams of docs/diagrams exist, and the pictures are those of their descriptions.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.driver.pipeline import Compilation
from aotc.ir.transform import PassContext
from aotc.tir.schedule.contraction.tiling_choice import TilingSite
from aotc.tir.target import get_target
from docs.diagrams import draw

ROOT = Path(__file__).parents[2]
WALK = (ROOT / "docs" / "walk.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8") + WALK
DIAGRAMS = ROOT / "docs" / "diagrams"
EXCERPTS: dict[str, str] = dict(re.findall(r"^```\w+ (.*?)\n(.*?)^```$", WALK, re.MULTILINE | re.DOTALL))
PARTS = re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", WALK, re.MULTILINE | re.DOTALL)
FILES = {head: re.findall(r"`(\S+\.py)`", text) for head, text in PARTS}


class Tilings:
    """Takes the cheapest tiling, and keeps what was proposed."""

    digest = "none"

    def __init__(self) -> None:
        self.rows: list[str] = []

    def __call__(self, site: TilingSite) -> None:
        ranked = sorted((candidate.cost, candidate.name) for candidate in site.candidates)
        self.rows = [f"{name}: {cost:.0f} cycles" for cost, name in ranked]


@contextmanager
def watching(entered: list[str]) -> Iterator[None]:
    """Adds the files of the checkout in which functions are called, in the order of their first calls."""
    seen: dict[str, None] = {}
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: see(frame, seen) if event == "call" else None)
    try:
        yield
    finally:
        sys.setprofile(before)
    entered += [Path(name).relative_to(ROOT).as_posix() for name in seen if name.startswith(str(ROOT))]


def see(frame: FrameType, seen: dict[str, None]) -> None:
    seen.setdefault(frame.f_code.co_filename)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, list[str]]]:
    """All texts of the walk by the heads of its excerpts, and the files entered in each part for x86-64-v3."""
    texts = {"model": EXCERPTS["model"]}
    function = aotc.relay.parse(f'#[version = "0.0.5"]\n{texts["model"]}')["main"]
    _, weights, bias = function.params
    rng = np.random.default_rng(0)
    params = {p.name_hint: rng.random(p.type_annotation.shape, np.float32) for p in (weights, bias)}
    module = aotc.IRModule.from_expr(relay.build_module.bind_params_by_name(function, params))
    for target in ("c", "x86-64-v3"):
        tilings, entered = Tilings(), {part: list[str]() for part in FILES}
        work = Compilation(module, get_target(target), "net", PassContext(3), cache=False, tilings=tilings)
        folder = tmp_path_factory.mktemp("walk") / "net"
        with watching(entered["The graph"]):
            graph = work.optimized_graph
        with watching(entered["Kernels"]):
            assert work.lowered_programs
        with watching(entered["The program"]):
            program = str(work.scheduled_programs[0])
        with watching(entered["The C project"]):
            work.emit_project(folder)
        made = {"graph": str(graph), "tilings": "\n".join(tilings.rows), "kernel": program, "program": program}
        files = {"kernels": "net_kernels_0.c", "model": "net.c"}
        made |= {head: (folder / "src" / name).read_text(encoding="utf-8") for head, name in files.items()}
        texts |= {f"{head} {target}": text for head, text in made.items()}
    return texts, entered


def holds(text: str, excerpt: str) -> bool:
    """Whether a text holds an excerpt, in which `...` stands for anything."""
    return re.search(".*?".join(re.escape(part.strip()) for part in excerpt.split("...")), text, re.DOTALL) is not None


@pytest.mark.parametrize("head", EXCERPTS)
def test_excerpts_are_what_the_compiler_gives(walked: tuple[dict[str, str], dict[str, list[str]]], head: str) -> None:
    text, excerpt = walked[0][head], EXCERPTS[head]
    assert holds(text, excerpt)
    last = re.findall(r"\d+", excerpt)[-1]
    assert not holds(text, "7777".join(excerpt.rsplit(last, 1)))  # a wrong one is found


@pytest.mark.parametrize("part", ["The graph", "Kernels", "The program", "The C project"])
def test_files_are_named_in_the_order_of_their_first_calls(
    walked: tuple[dict[str, str], dict[str, list[str]]], part: str
) -> None:
    named, entered = FILES[part], walked[1][part]
    assert len(named) > 3 and named == [name for name in entered if name in named]


def test_passes_are_where_the_walk_says() -> None:
    places = re.findall(r"`(\w+)`\s+\(`(\S+\.py)`\)", WALK)
    assert len(places) > 3
    for name, path in places:
        assert re.search(rf"^class {name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_bare_names_of_files_belong_to_one_file() -> None:
    names = set(re.findall(r"`(\w+\.py)`", PAGE))
    files = [path.name for top in ("aotc", "codegen", "runtime_c") for path in (ROOT / top).rglob("*.py")]
    assert {name: files.count(name) for name in names} == dict.fromkeys(names, 1)


def test_no_file_is_named_twice() -> None:
    named = [name for names in FILES.values() for name in names]
    assert len(named) > 20 and len(named) == len(set(named))
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize("source", sorted(DIAGRAMS.glob("*.txt")), ids=lambda p: p.stem)
def test_pictures_are_up_to_date(source: Path) -> None:
    """`python docs/diagrams/draw.py` draws them again."""
    text = source.read_text(encoding="utf-8")
    assert source.with_suffix(".svg").read_text(encoding="utf-8") == draw.picture(text)
    names = re.findall(r"aotc\w*(?:\.\w+)*", text)
    assert names and all(importlib.util.find_spec(name) is not None for name in names)
    assert f"(diagrams/{source.stem}.svg)" in PAGE
