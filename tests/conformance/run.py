# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX's official suite through compiled C, prints the counts, and writes the list of failing tests.

python tests/conformance/run.py                   # everything; rewrites failing.txt and docs/conformance.md
python tests/conformance/run.py --filter resize   # some tests; prints why they fail
"""

from __future__ import annotations

import argparse
import os
import sys

import page
from onnx_suite import KINDS, all_cases, failing, read_list, run_cases, summary, write_list


def main() -> int:
    """Exit status 1 if a test fails that is not on the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--filter", default="", help="run tests whose name contains this")
    parser.add_argument("--kind", action="append", choices=KINDS, help="run tests of this kind only")
    parser.add_argument("--write", action="store_true", help="bring the list up to date after a partial run too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time")
    options = parser.parse_args()
    cases = all_cases(options.kind or KINDS, options.filter)
    done = 0

    def progress(name: str, why: str | None) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r{done}/{len(cases)} {name[:60]:<60}", end="", file=sys.stderr)
        elif done % 200 == 0:
            print(f"{done}/{len(cases)}", file=sys.stderr, flush=True)
        if why is not None and options.filter:
            print(f"{name} | {why}")

    results = run_cases(cases, options.jobs, progress)
    print(("\n" if sys.stderr.isatty() else "") + summary(results))
    known = read_list()
    new = [name for name in failing(results) if name not in known]
    fixed = [name for name in known if results.get(name, "") is None]
    for title, names in (("newly failing", new), ("newly passing", fixed)):
        print(f"{title}: {len(names)}" + "".join(f"\n  {name}" for name in names[:40]))
    whole = not options.filter and not options.kind
    if whole or options.write:
        write_list(results if whole else {**known, **results})
    if whole:
        page.PAGE.write_text(page.page(cases, results), encoding="utf-8")
    return 1 if new and known else 0


if __name__ == "__main__":
    sys.exit(main())
