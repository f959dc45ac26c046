# SPDX-License-Identifier: Apache-2.0
"""Fuzz the readers of model files, executions of random graphs, and C compilers on random kernels.

python -m tests.fuzz --time 1h --jobs 2                  # a random seed; faults are kept in build/fuzz
python -m tests.fuzz --time 60s --seed 3 --kinds onnx
python -m tests.fuzz replay build/fuzz/onnx-...          # check a kept case again
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from pathlib import Path

import click

from aotc.ir.option_value_text import parse_seconds
from tests.fuzz.case import read
from tests.fuzz.case_kinds import KINDS, kinds_of
from tests.fuzz.search import Tally, fuzz
from tests.fuzz.workers import Limits, Task, Workers


def replay(folder: Path) -> int:
    """Check the case in a folder and say what comes of it; 1 if it is a fault."""
    files = read(folder)
    name = files.pop("kind").decode()
    with Workers(kinds_of([name], everything=False), 1, Limits(120.0)) as workers:
        workers.submit(Task(name, files=files))
        verdict = workers.result()[1]
    print(verdict.signature or verdict.outcome, verdict.detail, sep="\n")
    return int(verdict.is_fault)


def main() -> int:
    """Exit status 1 if there are faults."""
    if sys.argv[1:2] == ["replay"]:
        return max([replay(Path(folder)) for folder in sys.argv[2:]], default=0)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", default="60s", help="30s, 5m or 1h")
    parser.add_argument("--seed", type=int, default=None, help="the first seed [default: a random one]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kinds of cases")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where faults are kept")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 32)
    kinds = kinds_of(options.kinds.split(","))
    try:
        seconds = parse_seconds(options.time)
    except click.BadParameter as error:
        parser.error(error.message)
    print(f"seed {seed}", flush=True)

    def report(tally: Tally) -> None:
        print(time.strftime("%H:%M:%S"), tally.table(), sep="\n", flush=True)

    tally = fuzz(kinds, seed=seed, seconds=seconds, jobs=options.jobs, out=options.out, report=report)
    print(tally.table())
    return int(bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main())
