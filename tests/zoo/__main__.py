# SPDX-License-Identifier: Apache-2.0
"""Compiles architectures drawn from libraries of models, and compares the results with those of the libraries.

python -m tests.zoo                                   # prints the table; results are in build/zoo.jsonl
python -m tests.zoo --libraries timm --count 20       # 20 architectures of one library
python -m tests.zoo --write                           # writes docs/zoo.md from all results in build/zoo.jsonl

A seed draws the architectures from the libraries' own registries.  What is in build/zoo.jsonl is not checked again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.zoo.check import IMPORT_PATHS
from tests.zoo.libraries import LIBRARIES, draw

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "zoo.jsonl"
PAGE = ROOT / "docs" / "zoo.md"
COUNTS = {"scikit-learn": 80, "timm": 40, "transformers": 120}
MAX_SECONDS = 600


class Result(NamedTuple):
    """The outcome (see tests/zoo/check.py) for an architecture of a library by an import path."""

    library: str
    name: str
    path: str
    outcome: str
    detail: str


def check(case: tuple[str, str, str]) -> Result:
    """Check an architecture in another process; a crash and a run that takes too long are outcomes, too."""
    command = [sys.executable, "-m", "tests.zoo.check", *case]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
        )
        printed = json.loads(done.stdout.splitlines()[-1])
        return Result(*case, printed["outcome"], printed["detail"])
    except subprocess.TimeoutExpired:
        return Result(*case, "failed", f"more than {MAX_SECONDS} seconds")
    except (IndexError, json.JSONDecodeError):
        return Result(*case, "failed", f"exit status {done.returncode}: {done.stderr[-200:]}")


def read_results() -> list[Result]:
    """Return the results of former runs."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [Result(*json.loads(line)) for line in lines]


def table(results: Sequence[Result]) -> str:
    """Return the counts by library and import path, as a table of Markdown."""
    lines = ["| library | import | drawn | built | exported | agree | refused | differ or fail |", "|" + "---|" * 8]
    for library, path in sorted({(result.library, result.path) for result in results}):
        counts = Counter(result.outcome for result in results if (result.library, result.path) == (library, path))
        built = counts.total() - counts["not built"]
        exported = built - counts["not exported"]
        wrong = counts["differs"] + counts["failed"]
        cells = [counts.total(), built, exported, counts["agrees"], counts["refused"], wrong]
        lines.append(f"| {library} | {path} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def page(results: Sequence[Result]) -> str:
    """Return the text of docs/zoo.md."""
    failures = [result for result in results if result.outcome in ("refused", "differs", "failed")]
    rows = [f"| {r.library} | {r.name} | {r.path} | {r.outcome} | {r.detail.replace('|', '/')} |" for r in failures]
    agreeing = sorted({(r.library, r.name) for r in results if r.outcome == "agrees"})
    names = [
        f"- {library}: {', '.join(name for owner, name in agreeing if owner == library)}" for library in sorted(COUNTS)
    ]
    header = ["| library | architecture | import | outcome | reason |", "|---|---|---|---|---|"]
    listed = "\n".join([*header, *rows]) if rows else "None of those that were drawn."
    return f"""# Architectures of other libraries

`make zoo` draws architectures from the registries of other libraries by a seed, builds each in a small form with random
weights, exports it by each path that exists, compiles it to C, and compares the results with those of the library
(scikit-learn: with ONNX Runtime's). It writes this page. *Built* means that the library makes a small instance from its
configuration alone, which takes images, token numbers or sound. *Exported* means that the exporter accepts it.

{table(results)}

## Architectures that do not compile or differ

{listed}

## Architectures that agree by at least one import

{chr(10).join(names)}
"""


def cases(libraries: Iterable[str], count: int | None, seed: int) -> list[tuple[str, str, str]]:
    """Return library, name and import path of all that is drawn."""
    return [
        (library, name, path)
        for library in libraries
        for name in draw(library, COUNTS[library] if count is None else count, seed)
        for path in IMPORT_PATHS[library]
    ]


def main() -> int:
    """Exit status 1 if an architecture differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help=f"some of {', '.join(LIBRARIES)}")
    parser.add_argument("--count", type=int, help="architectures of each library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="architectures at a time")
    parser.add_argument("--write", action="store_true", help="write docs/zoo.md")
    options = parser.parse_args()
    results = read_results()
    known = {result[:3] for result in results}
    remaining = [case for case in cases(options.libraries.split(","), options.count, options.seed) if case not in known]
    RESULTS.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool, RESULTS.open("a", encoding="utf-8") as file:
        for result in pool.map(check, remaining):
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
