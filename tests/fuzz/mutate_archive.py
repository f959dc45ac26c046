# SPDX-License-Identifier: Apache-2.0
"""Mutations of files that aotc writes and reads: exported archives and libraries, projects, parameters, inputs, tuning
records, cache entries.

Machine code is left alone: no loader can tell what it does.  Libraries are cut off, and their first bytes changed.
"""

from __future__ import annotations

import gc
import hashlib
import io
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

import aotc
from aotc import relay
from aotc.checking.input_generation import read_npz_inputs, save_arrays_to_npz
from aotc.driver.compile import compile
from aotc.driver.object_cache import ObjectCache
from aotc.driver.tuning_store import TuningRecord, TuningStore, cpu_model_name
from aotc.ir.types import TensorType
from aotc.reporting.model_inspection import inspect_project
from aotc.runtime.module import load_module
from aotc.runtime.params import load_param_dict, save_param_dict
from aotc.runtime.session import load
from tests.fuzz.case import Files, Found, Mutations, Stage, read
from tests.fuzz.mutate_bytes import changed_bytes, odds, pick, shorter
from tests.fuzz.mutate_json import changed_json

Generator = np.random.Generator
HEADER = 20
"""Bytes at the start of a library that say what it is; the dynamic linker trusts all that follow."""


def module() -> aotc.IRModule:
    """relu(dense(x, w) + 1)"""
    x = relay.var("x", shape=(2, 8))
    weight = relay.const(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    body = relay.nn.relu(relay.add(relay.nn.dense(x, weight), relay.const(np.float32(1))))
    return aotc.IRModule.from_expr(relay.Function([x], body))


@lru_cache(maxsize=1)
def bases() -> Mapping[str, Files]:
    """Sound files of every kind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with aotc.transform.PassContext(opt_level=3):
            built = relay.build(module(), "c")
        for file in ("net.tar", "net.so"):
            built.export_library(folder / file)
        compile(module(), output=folder / "net", target="c", name="net", cache=False, cflags=["-O0"])
        arrays = {"w": np.ones((2, 3), np.float32), "k": np.arange(5), "h": np.ones(3, np.float16)}
        blob = io.BytesIO()
        save_arrays_to_npz(blob, {"x": np.ones((2, 8), np.float32), "k": np.arange(3)})
        TuningStore(folder / "tuning.sqlite").write_records(
            TuningRecord(f"s{k}", cpu_model_name(), "lanes axis=1", 1e-5, 8) for k in range(9)
        )
        with sqlite3.connect(folder / "tuning.sqlite") as base:
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        base.close()
        found = {
            "archive": {"net.tar": (folder / "net.tar").read_bytes()},
            "library": {"net.so": (folder / "net.so").read_bytes()},
            "project": {f"net/{k}": v for k, v in read(folder / "net").items()},
            "parameters": {"net.params": save_param_dict(arrays)},
            "inputs": {"inputs.npz": blob.getvalue()},
            "tuning": {"tuning.sqlite": (folder / "tuning.sqlite").read_bytes()},
        }  # fmt: skip
        found["cache"] = _cache(folder / "cache")
        del built
        gc.collect()
        return found


def _cache(folder: Path) -> Files:
    """The entries that a compilation leaves."""
    import os

    before = os.environ.get("AOTC_CACHE_DIR")
    os.environ["AOTC_CACHE_DIR"] = str(folder)
    try:
        compile(module(), target="c", build=False)
    finally:
        del os.environ["AOTC_CACHE_DIR"]
        if before is not None:
            os.environ["AOTC_CACHE_DIR"] = before
    return {f"cache/{k}": v for k, v in read(folder).items()}


# --- mutations


def _cut(rng: Generator, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data) + 1))]


def _library(rng: Generator, data: bytes) -> bytes:
    if odds(rng, 0.4):
        return _cut(rng, data)
    head = changed_bytes(rng, data[:HEADER])
    return head[:HEADER].ljust(HEADER, b"\0") + data[HEADER:]


def _members(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m, tar.extractfile(m).read() if m.isfile() else b"") for m in tar]  # type: ignore[union-attr]


def _archive(rng: Generator, data: bytes) -> bytes:
    """Members under other names, of other types, with other contents, gone or twice; else changed bytes of headers."""
    if odds(rng, 0.2):
        return _cut(rng, data)
    try:
        members = _members(data)
    except Exception:  # changed before
        return changed_bytes(rng, data)
    if not members or odds(rng, 0.15):
        at = int(rng.integers(0, 512))
        return data[:at] + changed_bytes(rng, data[at : at + 64]) + data[at + 64 :]
    k = int(rng.integers(len(members)))
    match int(rng.integers(5)):
        case 0:
            del members[k]
        case 1:
            members.append(members[k])
        case _:
            members[k] = _member(rng, *members[k])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, inner in members:
            info.size = len(inner)
            tar.addfile(info, io.BytesIO(inner))
    return out.getvalue()


NAMES = ("../evil", "/evil", "a/../../evil", "", ".", "x" * 300, "lib", "lib/", "metadata.json/x", "ü\n")
TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"?")


def _member(rng: Generator, info: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    match int(rng.integers(4)):
        case 0:
            info.name = pick(rng, NAMES)
        case 1:
            info.type, info.linkname = pick(rng, TYPES), pick(rng, ("/etc/passwd", "..", info.name))
            return info, b""
        case _ if info.name.endswith(".so"):
            return info, _library(rng, content)
        case 2 if info.name.endswith(".json"):
            return info, _changed_document(rng, content)
        case _:
            return info, changed_bytes(rng, content)
    return info, content


def _changed_document(rng: Generator, data: bytes) -> bytes:
    try:
        return changed_json(rng, data)
    except ValueError:  # changed before
        return changed_bytes(rng, data)


def _project(rng: Generator, files: Files) -> None:
    name = "net/metadata.json" if odds(rng, 0.7) and "net/metadata.json" in files else pick(rng, sorted(files))
    if odds(rng, 0.1):
        del files[name]
    elif name.endswith(".so"):
        files[name] = _library(rng, files[name])
    elif name.endswith(".json"):
        files[name] = _changed_document(rng, files[name])
    else:
        files[name] = changed_bytes(rng, files[name])


def _entry(rng: Generator, files: Files) -> None:
    """An entry of the cache: with a checksum that fits, often."""
    name = pick(rng, sorted(files))
    data = files[name]
    if odds(rng, 0.5):
        files[name] = changed_bytes(rng, data)
    else:
        other = files[pick(rng, sorted(files))][32:] if odds(rng, 0.3) else _cut(rng, data[32:])
        files[name] = hashlib.sha256(other).digest() + other


def mutated(seed: int, without: frozenset[int]) -> Files:
    """Files of a random kind, mutated."""
    mutations = Mutations(seed, without)
    rng = mutations.base()
    what = pick(rng, list(bases()))
    files = dict(bases()[what])
    for step in mutations.each():
        name = next(iter(files), "")
        match what:
            case "archive":
                files[name] = _archive(step, files[name])
            case "library":
                files[name] = _library(step, files[name])
            case "project" if files:
                _project(step, files)
            case "cache" if files:
                _entry(step, files)
            case "parameters" | "inputs" | "tuning":
                files[name] = changed_bytes(step, files[name])
            case _:
                pass
    return {"what": what.encode(), **files}


# --- checks


def _check_library(folder: Path) -> None:
    load(folder / "net.so")


def _check_archive(folder: Path) -> None:
    library = load_module(folder / "net.tar", check=True)
    for name in library:
        library[name](aotc.cpu())


def _check_project(folder: Path) -> None:
    """Inspected, loaded, and taken as the place of a new project."""
    net = folder / "net"
    net.mkdir(exist_ok=True)
    problems = []
    for use in (
        inspect_project,
        lambda at: load(at, check=True),
        lambda at: compile(module(), output=at, target="c", name="net", build=False, cache=False),
    ):
        try:
            use(net)
        except aotc.AotcError as error:
            problems.append(error)
    if problems:
        raise aotc.AotcError.collect([d for p in problems for d in p.diagnostics])


def _check_tuning(folder: Path) -> None:
    store = TuningStore(folder / "tuning.sqlite")
    compile(module(), target="c", build=False, cache=False, tuning=folder / "tuning.sqlite")
    store.write_records([TuningRecord("s", "cpu", "c", 1.0, 1)])
    if store.read_records_by_signature("cpu") != {"s": TuningRecord("s", "cpu", "c", 1.0, 1)}:
        raise Found("wrong", "tuning", "a record that was written is not there")


def _check_inputs(folder: Path) -> None:
    read_npz_inputs(folder / "inputs.npz", {"x": TensorType((2, 8)), "k": TensorType((3,), "int64")})


def _check_parameters(folder: Path) -> None:
    load_param_dict((folder / "net.params").read_bytes())


def _check_cache(folder: Path) -> None:
    """The same C comes out as without a cache."""
    import os

    kept = os.environ["AOTC_CACHE_DIR"]
    os.environ["AOTC_CACHE_DIR"] = str(folder / "cache")
    try:
        compile(module(), output=folder / "a", target="c", name="net", build=False)
    finally:
        os.environ["AOTC_CACHE_DIR"] = kept
    compile(module(), output=folder / "b", target="c", name="net", build=False, cache=False)
    if read(folder / "a") != read(folder / "b"):
        raise Found("wrong", "cache", "other C than without a cache")
    cache = ObjectCache(folder / "cache" / "objects", 1000)
    cache.cache_entry_count_and_total_bytes()
    cache.trim_cache_to_size_limit()


CHECKS: Mapping[str, Callable[[Path], None]] = {
    "archive": _check_archive, "library": _check_library, "project": _check_project, "parameters": _check_parameters,
    "inputs": _check_inputs, "tuning": _check_tuning, "cache": _check_cache,
}  # fmt: skip


def check(folder: Path, stage: Stage) -> str:
    """Read what lies in a folder, as its file "what" says."""
    what = (folder / "what").read_text(encoding="ascii")
    stage(what)
    CHECKS[what](folder)
    gc.collect()
    return "accepted"


def smaller(files: Files) -> Iterator[Files]:
    """Without a file, or with fewer bytes in one."""
    for name in files.keys() - {"what"}:
        if len(files) > 2:
            yield {k: v for k, v in files.items() if k != name}
    for name in sorted(files.keys() - {"what"}):
        yield from ({**files, name: data} for data in shorter(files[name]))
