# SPDX-License-Identifier: Apache-2.0
"""Writes docs/conformance.md: how many tests of ONNX's official suite pass, by kind and by operator, and why others
fail.

    python tests/conformance/page.py        # anew from failing.txt, without running a test
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from onnx_suite import KINDS, Case, all_cases, failing, read_list

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HEAD = """# ONNX conformance

ONNX has an official suite of backend tests. aotc compiles the model of each test to C, runs the library on the test's
inputs as run-time inputs, and compares as ONNX's own runner does. `make conformance` runs the suite and writes this
page from the results.

Random numbers are drawn when a model is compiled, by Philox4x64-10 with the seed of the node, or with the option
`--seed` for nodes that state none, and each run uses the same ones. The tests of `Bernoulli` expect the stream of
another generator, and fail for that reason. Those of the inverse `DFT` expect a rounding error of 1.9e-7 where the
exact value is 0, and allow a difference of 1e-7.

Where the factors of `Resize` do not give whole sizes, aotc aligns the corners of the results as ONNX Runtime does. The
tests `resize_downsample_scales_cubic_align_corners` and `resize_downsample_scales_linear_align_corners` expect other
results.

"""


def operator_of(case: Case) -> str | None:
    """The operator that a test of single nodes is for, with its domain; None for other tests and for expanded ones."""
    if case.kind != "node" or case.name.endswith("_expanded") or case.test.model is None:
        return None
    name = case.name.partition("test_")[2].replace("_", "").lower()
    nodes = case.test.model.graph.node
    named = [n for n in nodes if name.startswith(n.op_type.lower())]
    node = (named or list(nodes))[0] if nodes else None
    return None if node is None else f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def page(cases: Iterable[Case], results: Mapping[str, str | None]) -> str:
    """The text of the page; a test without a result counts as passed."""
    cases = list(cases)
    passed = {case.name for case in cases if results.get(case.name) is None}
    lines = ["| kind | tests | pass |", "|---|---|---|"]
    for kind in KINDS:
        names = [case.name for case in cases if case.kind == kind]
        lines.append(f"| {kind} | {len(names)} | {sum(name in passed for name in names)} |")
    lines += [f"| all | {len(cases)} | {len(passed)} |", "", "## Tests that fail", ""]
    lines += ["Each test is listed with its reason: the code of the diagnostic and its message, or what differs.", ""]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, why in failing({case.name: results.get(case.name) for case in cases}).items():
        by_reason[why].append(name.partition("/")[2].removeprefix("test_"))
    for why, names in sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        lines += [f"- {len(names)}: {why}", *(f"    - `{name}`" for name in names)]
    lines += ["", "## Operators", "", "Tests of single operators, without those of their expanded definitions.", ""]
    lines += ["| operator | tests | pass |", "|---|---|---|"]
    by_operator: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if (operator := operator_of(case)) is not None:
            by_operator[operator].append(case.name)
    for operator, names in sorted(by_operator.items()):
        lines.append(f"| {operator} | {len(names)} | {sum(name in passed for name in names)} |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Write the page from the list of failing tests."""
    PAGE.write_text(page(all_cases(), read_list()), encoding="utf-8")


if __name__ == "__main__":
    main()
