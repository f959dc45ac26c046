# SPDX-License-Identifier: Apache-2.0
"""`aotc inspect PROJECT --misra`: deviations by rule, with a reason for each, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir import AotcError
from aotc.reporting.misra_report import describe_misra_deviations
from tests.cli.invoke import call, refused
from tests.conftest import require_tool


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    product = relay.nn.dense(x := relay.var("x", shape=(1, 8)), relay.const(weights))
    net = aotc.IRModule.from_expr(relay.Function([x], relay.clip(product, 0.0, 6.0)))
    options = {"name": "net", "target": "c", "environment": "bare", "build": False}
    return aotc.compile(net, output=tmp_path_factory.mktemp("misra") / "net", **options).path


def test_deviations_by_rule(project: Path, tmp_path: Path) -> None:
    require_tool("cppcheck")
    before = contents(project)
    done = call("inspect", project, "--misra", tmp_path / "deviations.json")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "deviations.json").read_text("utf-8"))
    assert contents(project) == before
    assert report["count"] == sum(row["count"] for row in report["rules"]) > 10
    assert "src/net.c" in report["sources"] and not any("params_to_c" in source for source in report["sources"])
    rows = {row["rule"]: row for row in report["rules"]}
    # functions that return early, when an argument is wrong
    assert "src/net.c" in rows["15.5"]["files"]
    assert all(row["reason"] and set(row["files"]) <= before.keys() for row in report["rules"])
    assert "compliance" in report["caveat"]


CHECKER = """#!/bin/sh
[ "$1" = --version ] && { echo "Cppcheck 0"; exit 0; }
printf '%b\\n' "OUTPUT" >&2
exit CODE
"""


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        (r"src/net.c\t7\tsyntaxError\tsyntax error", 0, "cannot check src/net.c, line 7: syntax error"),
        (r"Bailing out from checking since an addon failed", 0, "cppcheck failed"),
        ("", 1, "cppcheck failed"),
    ],
)
def test_code_that_was_not_checked(
    output: str, code: int, message: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is complete, or an error."""
    checker = tmp_path / "cppcheck"
    checker.write_text(CHECKER.replace("OUTPUT", output).replace("CODE", str(code)), encoding="utf-8")
    checker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(AotcError, match=message):
        describe_misra_deviations(project)


def test_what_is_refused(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(project)
    assert "the name ends in .md or .json" in " ".join(
        refused("inspect", project, "--misra", tmp_path / "a.txt").split()
    )
    refused("inspect", project, "--misra", project / "metadata.json")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AotcError, match="cppcheck is not installed"):
        describe_misra_deviations(project)
    assert contents(project) == before
