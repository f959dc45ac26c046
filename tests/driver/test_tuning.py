# SPDX-License-Identifier: Apache-2.0
"""Records of measured tilings are stored, looked up, ignored for other contractions, and safe for concurrent use."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.driver import tuning_store
from aotc.driver.compile import CompileOptions, compile
from aotc.driver.toolchain import ToolchainFactory, find_toolchain, resolve_target
from aotc.driver.tuning_store import TuningRecord, TuningStore, cpu_model_name
from aotc.ir.diagnostics import AotcError
from aotc.measuring.tuning import (
    CandidateTimes,
    JobResults,
    TuningJob,
    collect_contractions_of_model,
    compile_and_time_candidates,
    make_dask_cluster_runner,
    make_tuning_job,
    measure_jobs_in_this_process,
    tune_contractions,
)
from aotc.relay.module import IRModule
from aotc.relay.text.parser import parse
from aotc.tir.interpreter import run_kernel
from tests.cli.invoke import DIGITS, call

QUICK = ("-O1",)


def network(columns: int = 40) -> IRModule:
    """Two products of matrices, one of them twice."""
    return parse(f"""#[version = "0.0.5"]
def @main(%x: Tensor[(12, 24), float32], %w: Tensor[(24, 24), float32], %v: Tensor[({columns}, 24), float32]) {{
  %0 = nn.dense(%x, %w, units=None);
  %1 = nn.relu(%0);
  %2 = nn.dense(%1, %w, units=None);
  nn.dense(%2, %v, units=None)
}}
""")


def sources(folder: Path, **options: Any) -> dict[str, bytes]:
    compile(network(), output=folder, name="net", build=False, **options)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def record_last(path: Path, candidate: str | None = None) -> int:
    """Records that ask for the worst candidate of each contraction, or for `candidate`; how many."""
    records = []
    for signature, site in collect_contractions_of_model(network(), CompileOptions()).items():
        last = max(site.candidates, key=lambda k: k.cost).name
        records.append(TuningRecord(signature, cpu_model_name(), candidate or last, 1e-6, 8))
    TuningStore(path).write_records(records)
    return len(records)


def test_contractions_are_found_once_and_do_not_depend_on_names() -> None:
    target = resolve_target("host")
    first = collect_contractions_of_model(network(), CompileOptions(target=target))
    assert len(first) == 2
    assert list(first) == list(collect_contractions_of_model(network(), CompileOptions(target=target)))
    assert len(set(first) & set(collect_contractions_of_model(network(41), CompileOptions(target=target)))) == 1
    assert not set(first) & set(
        collect_contractions_of_model(network(), CompileOptions(target=replace(target, l1=1 << 10)))
    )


def test_candidates_have_distinct_names_and_right_results() -> None:
    for signature, site in collect_contractions_of_model(network(), CompileOptions()).items():
        assert len({k.name for k in site.candidates}) == len(site.candidates) > 1
        job = make_tuning_job(signature, site, 100)
        rng = np.random.default_rng(0)
        kernels = list(job.kernels.values())
        values = [rng.standard_normal(b.size).astype(np.float32) for b in kernels[0].inputs]
        results = [run_kernel(kernel, values)[0] for kernel in kernels]
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=0, atol=1e-4)


def test_tuned_once_and_known_after(tmp_path: Path) -> None:
    store = tmp_path / "records.sqlite"
    told: list[tuple[int, int]] = []
    report = tune_contractions(
        network(), trials=2, store=store, cflags=QUICK, advance=lambda done, total: told.append((done, total))
    )
    assert (report["contractions"], report["measured"], report["failed"]) == (2, 2, 0)
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert all(row["microseconds"] > 0 and row["trials"] == 2 for row in report["rows"])
    assert len(TuningStore(store).read_records_by_signature(cpu_model_name())) == 2 and not TuningStore(
        store
    ).read_records_by_signature("another CPU")
    assert tune_contractions(network(), trials=2, store=store, cflags=QUICK)["known"] == 2
    assert tune_contractions(network(), trials=3, store=store, cflags=QUICK)["measured"] == 2
    assert tune_contractions(network(), trials=2, store=store, cflags=QUICK, again=True)["measured"] == 2


def test_out_of_time(tmp_path: Path) -> None:
    report = tune_contractions(network(), trials=1, seconds=0, store=tmp_path / "records.sqlite", cflags=QUICK)
    assert (report["contractions"], report["measured"]) == (2, 1)


def test_the_fastest_is_recorded_unless_it_is_noise() -> None:
    (signature, site), *_ = collect_contractions_of_model(network(), CompileOptions()).items()
    job = make_tuning_job(signature, site, 2)
    first, second = job.kernels
    assert CandidateTimes("c", {first: 1.0, second: 0.9}).record_of_first_or_clearly_fastest(job).candidate == second
    assert CandidateTimes("c", {first: 1.0, second: 0.99}).record_of_first_or_clearly_fastest(job).candidate == first


def test_records_change_the_code_and_not_the_result(tmp_path: Path) -> None:
    store = tmp_path / "records.sqlite"
    plain = sources(tmp_path / "plain")
    record_last(store)
    tuned = sources(tmp_path / "tuned", tuning=store)
    assert tuned != plain
    rng = np.random.default_rng(1)
    feed = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (12, 24)), ("w", (24, 24)), ("v", (40, 24)))
    }
    results = [compile(network(), tuning=t, cflags=("-O1",)).session().run(None, feed)[0] for t in (store, False)]
    np.testing.assert_allclose(*results, rtol=0, atol=1e-3)


def test_without_records_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "records.sqlite"
    monkeypatch.setenv("AOTC_TUNING_STORE", str(store))
    plain = sources(tmp_path / "off", tuning=False)
    assert sources(tmp_path / "default") == plain
    assert not store.exists()
    record_last(store)
    assert sources(tmp_path / "recorded") != plain
    assert sources(tmp_path / "off again", tuning=False) == plain


def test_a_named_file_of_records_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "no such file", str(tmp_path / "folder" / "none"), tmp_path):
        with pytest.raises(AotcError, match=r"the file of tuning records .* does not exist") as caught:
            compile(network(), tuning=path, build=False)
        assert [d.code for d in caught.value.diagnostics] == ["tuning"]
    assert not [*tmp_path.iterdir()]


def test_stale_records_are_ignored(tmp_path: Path) -> None:
    assert record_last(tmp_path / "records.sqlite", "tiling of another age") == 2
    assert sources(tmp_path / "a", tuning=tmp_path / "records.sqlite") == sources(tmp_path / "b", tuning=False)


def test_corrupt_store_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "records.sqlite"
    store.write_bytes(b"SQLite format 3\0 and no database " * 1000)
    store.with_name("records.sqlite.corrupt").write_text("mine")
    with caplog.at_level(logging.WARNING, "aotc"):
        assert sources(tmp_path / "a", tuning=store) == sources(tmp_path / "b", tuning=False)
    assert "is corrupt" in caplog.text
    assert store.with_name("records.sqlite.corrupt").read_text() == "mine"
    assert not store.exists() and store.with_name("records.sqlite.corrupt.1").exists()
    store.write_bytes(b"SQLite format 3\0 and no database " * 1000)
    assert record_last(store) == len(TuningStore(store).read_records_by_signature(cpu_model_name()))


def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "notes.txt"
    store.write_bytes(b"no database " * 1000)
    assert TuningStore(store).read_records_by_signature("cpu") == {}
    assert "are ignored" in caplog.text
    with pytest.raises(AotcError, match="no SQLite file"):
        TuningStore(store).write_records([])
    assert store.read_bytes() == b"no database " * 1000 and [*tmp_path.iterdir()] == [store]


def test_store_of_another_program_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "records.sqlite"
    with sqlite3.connect(store) as base:
        base.execute("CREATE TABLE tilings (color TEXT)")
    base.close()
    assert TuningStore(store).read_records_by_signature("cpu") == {}
    assert "are ignored" in caplog.text
    with pytest.raises(AotcError, match="cannot write tuning records"):
        TuningStore(store).write_records([])


@pytest.mark.parametrize(
    "hostile",
    [
        "DROP TABLE tilings; CREATE VIEW tilings AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n)"
        " SELECT k AS signature, 'cpu' AS cpu, '' AS candidate, 1.0 AS seconds, 1 AS trials, 0.0 AS written FROM n",
        "CREATE TRIGGER t AFTER INSERT ON tilings BEGIN DELETE FROM tilings; END",
        "ALTER TABLE tilings ADD COLUMN more AS (hex(zeroblob(1000)))",
    ],
)
def test_stores_whose_tables_do_something_are_left_alone(
    tmp_path: Path, hostile: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = TuningStore(tmp_path / "records.sqlite")
    store.write_records([TuningRecord("s", "cpu", "tiling", 1.0, 1)])
    assert list(store.read_records_by_signature("cpu")) == ["s"]
    with sqlite3.connect(store.path) as base:
        base.executescript(hostile)
    base.close()
    assert store.read_records_by_signature("cpu") == {} and "other tables" in caplog.text
    with pytest.raises(AotcError, match="cannot write tuning records"):
        store.write_records([])


def test_records_that_no_measurement_gives_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = TuningStore(tmp_path / "records.sqlite")
    store.write_records([TuningRecord("sound", "cpu", "tiling", 1.0, 1)])
    rows = [
        ("a", "cpu", None, 1.0, 1), ("b", "cpu", b"tiling", 1.0, 1), ("c", "cpu", "tiling", "soon", 1),
        ("d", "cpu", "tiling", float("inf"), 1), ("e", "cpu", "tiling", -1.0, 1), ("f", "cpu", "tiling", 1.0, None),
        ("g", "cpu", "tiling", 1.0, "many"), ("h", "cpu", "t" * 10**6, 1.0, 1), (b"i", "cpu", "tiling", 1.0, 1),
        ("j'; DROP TABLE tilings; --", "cpu", "tiling", None, 1),
    ]  # fmt: skip
    with sqlite3.connect(store.path) as base:
        base.executemany("INSERT INTO tilings VALUES (?, ?, ?, ?, ?, 0.0)", rows)
    base.close()
    assert list(store.read_records_by_signature("cpu")) == ["sound"] and "10 tuning records" in caplog.text


COLUMNS = ("signature", "cpu", "candidate", "seconds", "trials", "written")


@pytest.mark.parametrize("column", COLUMNS)
def test_records_with_null_do_not_disturb(tmp_path: Path, column: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also in a file whose tables are not ours: ours has no NULL where its key is."""
    store = tmp_path / "records.sqlite"
    expected = sources(tmp_path / "off", tuning=False)
    record_last(store)
    with sqlite3.connect(store) as base:
        if column in ("signature", "cpu"):
            rows = base.execute("SELECT * FROM tilings").fetchall()
            base.executescript(f"DROP TABLE tilings; CREATE TABLE tilings ({', '.join(COLUMNS)})")
            base.executemany("INSERT INTO tilings VALUES (?, ?, ?, ?, ?, ?)", rows)
        base.execute(f"UPDATE tilings SET {column} = NULL")
    base.close()
    ignored = column != "written"  # it tells the oldest records only
    assert (sources(tmp_path / "on", tuning=store) == expected) == ignored
    assert ("ignored" in caplog.text) == ignored
    if column not in ("signature", "cpu"):
        assert record_last(store) == len(TuningStore(store).read_records_by_signature(cpu_model_name()))
    text = refused_or_done(tmp_path, store)
    assert "Traceback" not in text


def refused_or_done(folder: Path, store: Path) -> str:
    """What `aotc compile` says with a store: it ends with 0, or with 2."""
    outcome = call("compile", DIGITS, "-o", folder / "net", "--no-build", env={"AOTC_TUNING_STORE": str(store)})
    assert outcome.code in (0, 2), outcome
    return outcome.out + outcome.err


def test_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AotcError, match="cannot write tuning records"):
        tune_contractions(network(), store=tmp_path / "file" / "records.sqlite")


def test_the_oldest_records_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_store, "MAX_RECORDS", 3)
    store = TuningStore(tmp_path / "records.sqlite")
    for k in range(5):
        store.write_records([TuningRecord(f"s{k}", "cpu", "tiling", 1.0, 1)])
    assert sorted(store.read_records_by_signature("cpu")) == ["s2", "s3", "s4"]


def _write_many(path: Path, name: str) -> None:
    for k in range(40):
        TuningStore(path).write_records([TuningRecord(f"{name}{k}", "cpu", "tiling", 1.0, 1)])


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "records.sqlite"
    writers = [context.Process(target=_write_many, args=(path, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(TuningStore(path).read_records_by_signature("cpu")) == 80


def test_failures_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def half(jobs: Sequence[TuningJob], compiler: ToolchainFactory) -> JobResults:
        yield jobs[0], AotcError("tuning", "the machine is on fire")
        yield from measure_jobs_in_this_process(jobs[1:], compiler)

    report = tune_contractions(network(), trials=1, store=tmp_path / "records.sqlite", runner=half, cflags=QUICK)
    assert (report["measured"], report["failed"]) == (1, 1)
    assert "on fire" in caplog.text
    foreign = "x86-64" if resolve_target("host").name == "aarch64" else "aarch64"
    with pytest.raises(AotcError, match="cannot run here"):
        tune_contractions(network(), target=foreign, store=tmp_path / "records.sqlite")


def test_measuring_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    store = tmp_path / "records.sqlite"
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        runner = make_dask_cluster_runner(cluster.scheduler_address)
        report = tune_contractions(network(), trials=2, store=store, runner=runner, cflags=QUICK)
        assert (report["measured"], report["failed"]) == (2, 0)
        with pytest.raises(AotcError, match="no-such-compiler"):
            tune_contractions(network(), trials=1, store=store, runner=runner, cc="no-such-compiler")
    assert len(TuningStore(store).read_records_by_signature(cpu_model_name())) == 2


def test_measured_alone_as_well() -> None:
    (signature, site), *_ = collect_contractions_of_model(network(), CompileOptions()).items()
    job = make_tuning_job(signature, site, 2)
    assert compile_and_time_candidates(job, partial(find_toolchain, cflags=QUICK)).seconds.keys() == job.kernels.keys()
