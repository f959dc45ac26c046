# SPDX-License-Identifier: Apache-2.0
"""relay.build has the results of aotc.compile, with its threads, vectors, cache and tuning records."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib.graph_executor import GraphModule
from aotc.driver import pipeline
from aotc.driver.compile import CompileOptions
from aotc.driver.object_cache import ObjectCache
from aotc.driver.tuning_store import TuningRecord, TuningStore, cpu_model_name
from aotc.measuring.tuning import collect_contractions_of_model

RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((160, 160)).astype("float32")}
X = RNG.standard_normal((96, 160)).astype("float32")
HALF = RNG.standard_normal((5, 40)).astype("float16")


def network() -> aotc.IRModule:
    """A product of matrices that is worth several threads."""
    x, w = relay.var("x", shape=(96, 160)), relay.var("w", shape=(160, 160))
    return aotc.IRModule.from_expr(relay.Function([x, w], relay.nn.relu(relay.nn.dense(x, w))))


def halves() -> aotc.IRModule:
    """Arithmetic in float16."""
    x = relay.var("x", shape=HALF.shape, dtype="float16")
    return aotc.IRModule.from_expr(relay.Function([x], relay.nn.relu(relay.add(x, relay.const(0.5, "float16")))))


def built(module: aotc.IRModule, params: dict[str, Any], **config: Any) -> Any:
    with aotc.transform.PassContext(opt_level=3, config=config):
        return relay.build(module, "llvm", params=params)


def sources(lib: Any, folder: Path) -> dict[str, bytes]:
    """The C files of the model, without the runtime."""
    lib.export_library(folder / "lib.tar")
    with tarfile.open(folder / "lib.tar") as archive:
        members = [m for m in archive.getmembers() if m.name.startswith("src/") and m.name.endswith(".c")]
        return {Path(m.name).name: f.read() for m in members if (f := archive.extractfile(m)) is not None}


def output(lib: Any, x: np.ndarray, **options: Any) -> np.ndarray:
    module = GraphModule(lib["default"](aotc.cpu(), **options))
    module.run(x=x)
    result: np.ndarray = module.get_output(0).numpy()
    return result


@pytest.fixture(scope="module")
def lib() -> Any:
    return built(network(), WEIGHTS, **{"compile.threads": 2})


@pytest.mark.parametrize(("module", "params", "x"), [(network(), WEIGHTS, X), (halves(), {}, HALF)])
def test_the_project_and_the_bits_are_those_of_compile(
    module: aotc.IRModule, params: dict[str, Any], x: np.ndarray, tmp_path: Path
) -> None:
    lib = built(module, params)
    model = aotc.compile(module, params=params, name="aotcgen_default", output=tmp_path / "net")
    wanted = {p.name: p.read_bytes() for p in sorted((tmp_path / "net" / "src").glob("*.c"))}
    assert sources(lib, tmp_path) == wanted
    np.testing.assert_array_equal(output(lib, x), model.session().run(None, {"x": x})[0])


def test_threads_when_asked(lib: Any) -> None:
    session = lib["default"](aotc.cpu())
    assert session.threads is not None and session.threads.count == 2
    assert lib["default"](aotc.cpu(), threads=1).threads is None
    np.testing.assert_array_equal(output(lib, X), output(lib, X, threads=1))
    alone = built(network(), WEIGHTS, **{"compile.threads": 0})
    assert alone["default"](aotc.cpu(), threads=2).threads is None
    np.testing.assert_array_equal(output(alone, X), output(lib, X))


def test_a_second_build_takes_all_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[ObjectCache] = []

    def fresh() -> ObjectCache:
        caches.append(ObjectCache(tmp_path / "objects", 1 << 30))
        return caches[-1]

    monkeypatch.setattr(pipeline, "user_object_cache", fresh)
    monkeypatch.setattr("aotc.driver.toolchain.user_object_cache", fresh)
    built(halves(), {})
    assert all(cache.misses for cache in caches)
    caches.clear()
    built(halves(), {})
    assert caches and all(cache.hits and not cache.misses for cache in caches)
    caches.clear()
    built(halves(), {}, **{"compile.cache": False})
    assert not caches


def test_records_of_tilings_are_used(lib: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_TUNING_STORE", str(tmp_path / "records.sqlite"))
    plain = sources(lib, tmp_path)
    sites = collect_contractions_of_model(network(), CompileOptions(params=WEIGHTS)).items()
    worst = [(signature, max(site.candidates, key=lambda k: k.cost).name) for signature, site in sites]
    TuningStore(tmp_path / "records.sqlite").write_records(
        TuningRecord(s, cpu_model_name(), name, 1e-6, 8) for s, name in worst
    )
    assert sources(built(network(), WEIGHTS), tmp_path) != plain
    assert sources(built(network(), WEIGHTS, **{"compile.tuning": False}), tmp_path) == plain
