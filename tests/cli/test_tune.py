# SPDX-License-Identifier: Apache-2.0
"""`aotc tune` shows and records its measurements, and refuses models and options that it cannot tune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoke import DIGITS, call, refused

QUICK = ("--cflags=-O1", "--trials", "2")


def test_tune_then_compile(tmp_path: Path) -> None:
    env = {"AOTC_TUNING_STORE": str(tmp_path / "records.sqlite")}
    first = call("tune", DIGITS, *QUICK, env=env)
    assert first.code == 0 and str(tmp_path / "records.sqlite") in first.out
    assert "vectors=" in first.out and "0 measured" not in first.out
    second = json.loads(call("tune", DIGITS, *QUICK, "--json", env=env).out)
    assert second["known"] == second["contractions"] > 0 and second["rows"] == []
    for flags in ([], ["--no-tuning"]):
        assert call("compile", DIGITS, "-o", tmp_path / "net", "--no-build", *flags, env=env).code == 0
    assert call("tune", DIGITS, *QUICK, "--again", "--time", "0s", "--quiet", env=env).out == ""


@pytest.mark.parametrize("time", ["soon", "-1m", "inf", "m"])
def test_time_that_is_none(time: str) -> None:
    assert "is not a time such as" in refused("tune", DIGITS, f"--time={time}")


def test_refusals(tmp_path: Path) -> None:
    env = {"AOTC_TUNING_STORE": str(tmp_path / "records.sqlite")}
    assert "no-such" in refused("tune", tmp_path / "no-such.onnx", env=env)
    assert "no-such-compiler" in refused("tune", DIGITS, "--cc", "no-such-compiler", env=env)


def test_scheduler_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    env = {"AOTC_TUNING_STORE": str(tmp_path / "records.sqlite")}
    assert "scheduler" in refused("tune", DIGITS, *QUICK, "--scheduler", "nonsense://x", env=env)
