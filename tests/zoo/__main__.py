# SPDX-License-Identifier: Apache-2.0
"""Compiles architectures drawn from libraries of models, and compares the results with those of the libraries.

python -m tests.zoo --draw                            # writes tests/zoo/drawn.txt: the architectures that are tried
python -m tests.zoo                                   # prints the table; results are in build/zoo.jsonl
python -m tests.zoo --libraries timm,JAX              # those of some libraries
python -m tests.zoo --write                           # writes docs/zoo.md from all results in build/zoo.jsonl

A seed draws the architectures from the libraries' own registries, without those of which the library makes no small
instance. What is in build/zoo.jsonl is not checked again.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from tests.zoo import check, libraries
from tests.zoo.processes import in_a_process

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "zoo.jsonl"
PAGE = ROOT / "docs" / "zoo.md"
DRAWN = Path(__file__).with_name("drawn.txt")
COUNTS = {
    "JAX": 10,
    "Keras": 8,
    "LightGBM": 5,
    "XGBoost": 6,
    "scikit-learn": 40,
    "segmentation-models-pytorch": 12,
    "timm": 25,
    "torchvision": 10,
    "transformers": 50,
}
"""The number of architectures that are drawn from each library."""

MAX_SECONDS = 600
MAX_SECONDS_TO_BUILD = 60


class Result(NamedTuple):
    """The outcome (see tests/zoo/check.py) for an architecture of a library by an import path."""

    library: str
    name: str
    path: str
    outcome: str
    detail: str


def checked(case: tuple[str, str, str]) -> Result:
    """Check an architecture in another process; a crash and a run that takes too long are outcomes, too."""
    try:
        return Result(*case, *in_a_process(check.check, *case, seconds=MAX_SECONDS))
    except TimeoutError:
        return Result(*case, "failed", f"more than {MAX_SECONDS} seconds")
    except EOFError:
        return Result(*case, "failed", "the process ended without a result")


def can_build(library: str, name: str) -> bool:
    """Return whether a library makes a small instance of an architecture, within a minute."""
    try:
        return bool(in_a_process(libraries.can_build, library, name, seconds=MAX_SECONDS_TO_BUILD))
    except (TimeoutError, EOFError):
        return False


def draw(library: str, seed: int) -> Iterator[str]:
    """Yield the names of a library's architectures of which it makes a small instance, as the seed orders them."""
    order = in_a_process(libraries.draw, library, seed, seconds=MAX_SECONDS)
    return islice((name for name in order if can_build(library, name)), COUNTS[library])


def read_drawn() -> list[tuple[str, str]]:
    """Return library and name of each architecture that has been drawn."""
    lines = (line.split() for line in DRAWN.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [(library, name) for library, name in lines]


def write_drawn(seed: int, library: str) -> None:
    """Draw the architectures of a library, and write them beside those of the other libraries."""
    drawn = [case for case in read_drawn() if case[0] != library] if DRAWN.exists() else []
    drawn += [(library, name) for name in draw(library, seed)]
    header = f"# Written by `python -m tests.zoo --draw` with seed {seed}: library and architecture.\n"
    DRAWN.write_text(header + "".join(f"{library} {name}\n" for library, name in sorted(drawn, key=_library)))


def _library(case: tuple[str, ...]) -> str:
    return case[0]


def read_results() -> list[Result]:
    """Return the results of former runs."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [Result(*json.loads(line)) for line in lines]


def table(results: Sequence[Result]) -> str:
    """Return the counts by library and import path, as a table of Markdown."""
    lines = ["| library | import | tried | built | exported | agree | refused | differ or fail |", "|" + "---|" * 8]
    for library, path in sorted({(result.library, result.path) for result in results}):
        counts = Counter(result.outcome for result in results if (result.library, result.path) == (library, path))
        built = counts.total() - counts["not built"]
        exported = built - counts["not exported"]
        wrong = counts["differs"] + counts["failed"]
        cells = [counts.total(), built, exported, counts["agrees"], counts["refused"], wrong]
        lines.append(f"| {library} | {path} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """Return how many exported models agree, and how many cases that are drawn have not been tried, as text."""
    counts = Counter(result.outcome for result in results)
    exported = counts.total() - counts["not built"] - counts["not exported"]
    tried = {result[:3] for result in results}
    missing = sum(case not in tried for case in cases(COUNTS))
    share = 100 * counts["agrees"] / max(exported, 1)
    text = f"{counts['agrees']} of {exported} exported models agree ({share:.1f} %)."
    return f"{text} {missing} cases of the list have not been tried yet." if missing else text


def reasons(results: Sequence[Result], *outcomes: str) -> str:
    """Return the cases that have one of some outcomes with their reasons, as a table of Markdown."""
    header = ["| library | architecture | import | outcome | reason |", "|" + "---|" * 5]
    rows = [
        f"| {r.library} | {r.name} | {r.path} | {r.outcome} | {html.escape(r.detail.replace('|', '/'), quote=False)} |"
        for r in sorted(results)
        if r.outcome in outcomes
    ]
    return "\n".join([*header, *rows]) if rows else "None of those that were tried."


def page(results: Sequence[Result]) -> str:
    """Return the text of docs/zoo.md."""
    agreeing = sorted({(r.library, r.name) for r in results if r.outcome == "agrees"})
    names = [
        f"- {library}: {', '.join(name for owner, name in agreeing if owner == library)}"
        for library in sorted({owner for owner, _ in agreeing})
    ]
    return f"""# Architectures of other libraries

A seed draws architectures from the registries of other libraries (`tests/zoo/drawn.txt`). Only architectures are
drawn of which the library makes a small instance from a configuration alone. `make zoo` builds each with random
weights, exports it by each path that exists, compiles it to C, compares the results with those of the library
(estimators: with ONNX Runtime's), and writes this page. *Exported* means that the exporter accepts it and, for
estimators, that ONNX Runtime runs the result.

{table(results)}

{summary(results)}

## Architectures that do not compile or differ

{reasons(results, "refused", "differs", "failed")}

## Architectures that libraries or exporters do not give

{reasons(results, "not built", "not exported")}

## Architectures that agree by at least one import

{chr(10).join(names)}
"""


def cases(chosen: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return library, name and import path of all that has been drawn, the libraries in turns."""
    drawn = read_drawn()
    turns = zip_longest(*([case for case in drawn if case[0] == library] for library in chosen))
    return [
        (library, name, path)
        for library, name in filter(None, chain.from_iterable(turns))
        for path in check.IMPORT_PATHS[library]
    ]


def main() -> int:
    """Exit status 1 if an architecture differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", default=",".join(COUNTS), help=f"some of {', '.join(COUNTS)}")
    parser.add_argument("--draw", action="store_true", help="draw architectures and write tests/zoo/drawn.txt")
    parser.add_argument("--seed", type=int, default=0, help="seed of --draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="architectures at a time")
    parser.add_argument("--write", action="store_true", help="write docs/zoo.md")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    chosen = options.libraries.split(",")
    if options.draw:
        for library in chosen:
            write_drawn(options.seed, library)
        return 0
    results = read_results()
    known = {result[:3] for result in results}
    remaining = [case for case in cases(chosen) if case not in known]
    RESULTS.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool, RESULTS.open("a", encoding="utf-8") as file:
        for future in as_completed([pool.submit(checked, case) for case in remaining]):
            result = future.result()
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(*result, flush=True)
            results.append(result)
    print(table(results))
    if options.write:
        PAGE.write_text(page(results), encoding="utf-8")
    return int(any(result.outcome in ("differs", "failed") for result in results))


if __name__ == "__main__":
    sys.exit(main())
