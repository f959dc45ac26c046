# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled objects saves work and never changes a result, also if it is damaged."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aotc
from aotc.driver.object_cache import ObjectCache, cache_folder, sha256_of_parts, user_object_cache
from aotc.driver.object_compiler import ObjectCompiler
from aotc.driver.toolchain import Toolchain
from aotc.driver.tuning_store import TuningRecord, TuningStore, cpu_model_name
from aotc.ir.atomic_write import open_for_atomic_write
from aotc.ir.diagnostics import AotcError
from aotc.tir.schedule.kernel_lowering import Lowering
from aotc.tir.stmt import Kernel
from tests.cli.invoke import DIGITS, call, refused

Compile = Callable[..., bytes]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectCache:
    """An empty one, which compiles of this test use."""
    monkeypatch.setenv("AOTC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("AOTC_CACHE_MB", raising=False)
    return ObjectCache(tmp_path / "cache" / "objects", 10**9)


@pytest.fixture
def compile_c(cache: ObjectCache, tmp_path: Path) -> Compile:
    """A C text to an object, through the cache."""
    (tmp_path / "c").mkdir()

    def compiled(text: str, *flags: str, cc: str = "gcc") -> bytes:
        source, target = tmp_path / "c" / "x.c", tmp_path / "x.o"
        source.write_text(text)
        compiler = ObjectCompiler(Toolchain((cc,), cache=cache), ("-std=c99", *flags), tmp_path / "c")
        compiler.compile_objects_in_parallel([(source, target)])
        return target.read_bytes()

    return compiled


def filled(cache: ObjectCache, count: int, size: int) -> list[str]:
    """Keys of entries, the one used longest ago first."""
    keys = [sha256_of_parts(str(k)) for k in range(count)]
    for k, key in enumerate(keys):
        cache.put(key, bytes(size))
        os.utime(cache._cache_entry_path(key), (k, k))
    return keys


def test_what_matters_is_in_the_key(compile_c: Compile, cache: ObjectCache, tmp_path: Path) -> None:
    (tmp_path / "c" / "h.h").write_text("#define N 1\n")
    text = '#include "h.h"\nint f(void) { return N; }\n'
    first = compile_c(text)
    assert (cache.hits, cache.misses) == (0, 1)
    assert compile_c(text) == first and (cache.hits, cache.misses) == (1, 1)
    assert compile_c(f"/* said in other words */ {text}") == first and cache.hits == 2
    (tmp_path / "c" / "h.h").write_text("#define N 2\n")
    assert compile_c(text) != first and cache.misses == 2
    compile_c(text, "-O2")
    compile_c(text, "-DM")
    compile_c(text, "-march=native")
    assert (cache.hits, cache.misses) == (2, 5)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('const char s[] = "/* a */";', 'const char s[] = "/* b */";'),
        ("const char s[] = {'\"', '/', '*', 'a', '\"'};/*", "const char s[] = {'\"', '/', '*', 'b', '\"'};/*"),
        ("int f(void) { return __LINE__; }", "\nint f(void) { return __LINE__; }"),
        ("int f(void) { return 1 //\\\n; }\n;}", "int f(void) { return 1 //\\\n; }\n+ 1;}"),
    ],
)
def test_what_looks_like_a_comment_counts(compile_c: Compile, before: str, after: str) -> None:
    end = " */\n" if before.endswith("/*") else "\n"
    assert compile_c("#include <stdint.h>\n" + before + end) != compile_c("#include <stdint.h>\n" + after + end)


@pytest.mark.parametrize("text", ['#include "h.h"\n', 'int a;\n#include "h.h"\n', '#define H "h.h"\n#include H\n'])
def test_headers_count_wherever_they_are_included(compile_c: Compile, tmp_path: Path, text: str) -> None:
    made = []
    for value in ("#define N 1\n", "#define N 2\n", "enum { N = 3 };\n"):
        (tmp_path / "c" / "h.h").write_text(value)
        made.append(compile_c(text + "int f(void) { return N; }\n"))
    assert len(set(made)) == 3


def test_another_compiler_is_another_key(compile_c: Compile, cache: ObjectCache, tmp_path: Path) -> None:
    wrapper = tmp_path / "mycc"
    for version in ("1", "2"):
        wrapper.write_text(f'#!/bin/sh\n[ $1 = --version ] && echo {version} && exit\nexec gcc "$@"\n')
        wrapper.chmod(0o755)
        os.utime(wrapper, (1, 1))
        compile_c("int x;", cc=str(wrapper))
        compile_c("int x;", cc=str(wrapper))
    compile_c("int x;")
    assert (cache.hits, cache.misses) == (2, 3)


def test_flags_whose_effect_is_not_in_the_source(compile_c: Compile, cache: ObjectCache, tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    made = []
    for level in ("-DN=1", "-DN=2"):
        flags.write_text(level)
        made.append(compile_c("int f(void) { return N; }", f"@{flags}"))
    assert made[0] != made[1] and cache.cache_entry_count_and_total_bytes() == (0, 0)
    compile_c("int x;", "--coverage")
    assert list(tmp_path.rglob("*.gcno"))
    assert cache.cache_entry_count_and_total_bytes() == (0, 0)


def test_errors_are_not_kept(compile_c: Compile, cache: ObjectCache) -> None:
    for _ in range(2):
        with pytest.raises(AotcError) as caught:
            compile_c("int f(void) { return undeclared; }")
        assert any("undeclared" in note for note in caught.value.diagnostics[0].notes)
    with pytest.raises(AotcError, match="failed"):
        compile_c("#error no\n")
    assert cache.cache_entry_count_and_total_bytes() == (0, 0)


@pytest.mark.parametrize("damage", [b"", b"short", bytes(1000)])
def test_corrupt_entries_are_made_again(
    compile_c: Compile, cache: ObjectCache, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first = compile_c("int x;")
    (entry,) = cache.folder.rglob("*.entry")
    entry.write_bytes(damage)
    assert compile_c("int x;") == first and str(entry) in caplog.text and "corrupt" in caplog.text
    caplog.clear()
    assert compile_c("int x;") == first and caplog.text == "" and cache.hits == 1


def test_entries_of_other_keys_are_corrupt(cache: ObjectCache, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = filled(cache, 2, 10)
    cache._cache_entry_path(other).replace(cache._cache_entry_path(mine))
    assert cache.get(mine) is None and "corrupt" in caplog.text and cache.cache_entry_count_and_total_bytes()[0] == 0


def _planted(compile_c: Compile, cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The object of `int x;`, in whose place the cache now has another, with its checksum."""
    keys: list[str] = []
    get = ObjectCache.get
    monkeypatch.setattr(ObjectCache, "get", lambda self, key: [keys.append(key), get(self, key)][1])
    honest, planted = compile_c("int x;"), compile_c("int planted;")
    cache.put(keys[0], planted)
    assert compile_c("int x;") == planted != honest
    cache.hits = 0
    return honest


def _open_to(mode: int, place: Callable[[Path], Path]) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda folder, _: place(folder).chmod(mode)


def _link(folder: Path, _: pytest.MonkeyPatch) -> None:
    """The folder becomes a link to one that all may write to."""
    real = folder.rename(folder.parent / "elsewhere")
    real.chmod(0o777)
    folder.symlink_to(real)


INSECURE = {
    "group": _open_to(0o770, lambda folder: folder),
    "all": _open_to(0o777, lambda folder: folder),
    "sticky": _open_to(0o1777, lambda folder: folder),
    "parent": _open_to(0o770, lambda folder: folder.parent),
    "above": _open_to(0o777, lambda folder: folder.parent.parent),
    "below": lambda folder, _: [sub.chmod(0o720) for sub in folder.iterdir()] and None,
    "link": _link,
    "owner": lambda folder, patch: patch.setattr(os, "geteuid", lambda: os.getuid() + 1),
}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a system without owners of files")
@pytest.mark.parametrize("way", INSECURE)
def test_folders_that_others_may_write_to_are_not_used(
    compile_c: Compile, cache: ObjectCache, way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = _planted(compile_c, cache, monkeypatch)
    INSECURE[way](cache.folder, monkeypatch)
    used = cache.cache_entry_count_and_total_bytes()
    cache._trusted.clear()
    with caplog.at_level(logging.WARNING, "aotc"):
        assert compile_c("int x;") == honest and compile_c("int x;") == honest
    if way != "below":  # the others are the user's
        fresh = ObjectCache(cache.folder, 1)
        fresh.put("f" * 64, b"mine")
        fresh.trim_cache_to_size_limit()
    assert cache.hits == 0 and cache.cache_entry_count_and_total_bytes() == used
    assert len([r for r in caplog.records if str(cache.folder) in r.getMessage()]) == 1 and "not used" in caplog.text


def test_entries_that_others_may_write_to_are_corrupt(
    compile_c: Compile, cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = _planted(compile_c, cache, monkeypatch)
    for entry in cache.folder.rglob("*.entry"):
        entry.chmod(0o666)
    assert compile_c("int x;") == honest and cache.hits == 0 and compile_c("int x;") == honest and cache.hits == 1


def test_folders_are_made_for_the_user_alone(compile_c: Compile, cache: ObjectCache, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        compile_c("int x;")
    finally:
        os.umask(before)
    made = [p for p in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")) if p.is_dir()]
    assert len(made) == 3 and {p.stat().st_mode & 0o777 for p in made} == {0o700}
    assert compile_c("int x;") and cache.hits == 1


@pytest.mark.parametrize("obstacle", ["file", "entry"])
def test_useless_cache_is_one_warning(
    compile_c: Compile, cache: ObjectCache, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    if obstacle == "file":
        cache.folder.parent.mkdir()
        cache.folder.write_text("not a directory")
    else:
        compile_c("int x;")
        (entry,) = cache.folder.rglob("*.entry")
        entry.unlink()
        entry.mkdir()
    with caplog.at_level(logging.WARNING, "aotc"):
        assert compile_c("int x;") and compile_c("int y;")
    assert len([r for r in caplog.records if "cannot" in r.getMessage()]) == 1


def test_entries_used_longest_ago_go_first(cache: ObjectCache) -> None:
    keys = filled(cache, 10, 1000)
    assert cache.get(keys[0]) == bytes(1000)
    cache.limit = 8000
    cache.trim_cache_to_size_limit()
    count, used = cache.cache_entry_count_and_total_bytes()
    assert used <= 8000 and 0 < count < 10
    assert [cache.get(k) is not None for k in keys] == [True, *[False] * (10 - count), *[True] * (count - 1)]
    cache.trim_cache_to_size_limit()
    assert cache.cache_entry_count_and_total_bytes() == (count, used)


def test_compilations_trim_when_they_have_added_enough(cache: ObjectCache) -> None:
    """A first trim, a small addition that needs none, and one that fills more than an eighth of the free space."""
    filled(cache, 4, 1000)
    cache = ObjectCache(cache.folder, 12_000)
    cache.trim_cache_if_enough_was_added()
    abandoned = next(cache.folder.iterdir()) / ".aotc-0123456789abcdef"  # a trim would remove it
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    cache.put("small", bytes(500))
    ObjectCache(cache.folder, 12_000).trim_cache_if_enough_was_added()
    assert abandoned.exists()
    cache.put("large", bytes(800))
    ObjectCache(cache.folder, 12_000).trim_cache_if_enough_was_added()
    assert not abandoned.exists()
    ObjectCache(cache.folder, 3000).trim_cache_if_enough_was_added()  # a smaller limit is another cache
    assert cache.cache_entry_count_and_total_bytes()[1] <= 3000


def test_abandoned_files_go_and_foreign_ones_stay(cache: ObjectCache, tmp_path: Path) -> None:
    filled(cache, 2, 10)
    old = cache.folder / "ab" / ".aotc-0123456789abcdef"
    old.parent.mkdir(exist_ok=True)
    old.touch()
    os.utime(old, (0, 0))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    names = ["mine.txt", "ab/mine.entry", f"ab/{'cd' * 32}.entry", f"elsewhere/{'ef' * 32}.entry"]
    for name in names:
        path = tmp_path / name if name.startswith("elsewhere") else cache.folder / name
        path.touch()
        os.utime(path, (0, 0))
    (cache.folder / "ef").symlink_to(elsewhere)
    with open_for_atomic_write(cache.folder / "ab" / "new") as file:
        cache.trim_cache_to_size_limit()
        assert not old.exists()
        file.write(b"whole")
    assert (cache.folder / "ab" / "new").read_bytes() == b"whole"
    assert cache.remove_all_cache_entries()[0] == 2 and cache.cache_entry_count_and_total_bytes() == (0, 0)
    found = {p.relative_to(cache.folder).as_posix() for p in cache.folder.rglob("*") if p.is_file()}
    assert found == {*names[:3], "ab/new"} and list(elsewhere.iterdir())


def test_many_writers_and_a_trimmer(cache: ObjectCache) -> None:
    data = {sha256_of_parts(str(k)): bytes([k]) * 5000 for k in range(8)}
    cache.limit = 20_000

    def work(_: int) -> bool:
        own = ObjectCache(cache.folder, cache.limit)
        for key, content in list(data.items()) * 20:
            found = own.get(key)
            if found is None:
                own.put(key, content)
                own.trim_cache_to_size_limit()
            elif found != content:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_models_compile_from_the_cache(cache: ObjectCache, tmp_path: Path) -> None:
    x = {"image": np.random.default_rng(0).random((1, 1, 8, 8), np.float32)}
    (expected,) = aotc.compile(DIGITS, cflags=["-O1"], cache=False).session().run(None, x)
    assert cache.cache_entry_count_and_total_bytes() == (0, 0)
    command = [sys.executable, "-m", "aotc.cli", "compile", str(DIGITS), "--cflags=-O1", "-o"]
    both = [subprocess.Popen([*command, str(tmp_path / name)], cwd=DIGITS.parents[2]) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    used = cache.cache_entry_count_and_total_bytes()
    assert used[0] > 1
    times = {p: p.stat().st_mtime_ns for p in cache.folder.rglob("*.entry")}
    again = aotc.compile(DIGITS, cflags=["-O1"])
    assert cache.cache_entry_count_and_total_bytes() == used
    assert all(p.stat().st_mtime_ns > t for p, t in times.items())  # every one was used
    for session in (again.session(), aotc.load(tmp_path / "a"), aotc.load(tmp_path / "b")):
        np.testing.assert_array_equal(session.run(None, x)[0], expected)


def _network(path: Path, scale: float, stride: int = 1) -> Path:
    """Three convolutions, the middle one's weights and stride as given, and a softmax."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((16, 16, 3, 3)).astype(np.float32) for _ in range(3)]
    weights[1] *= np.float32(scale)
    values = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)]
    strides = (1, stride, 1)
    nodes = [
        helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1] * 4, strides=[strides[k]] * 2)
        for k in range(3)
    ]
    nodes.append(helper.make_node("Softmax", ["x3"], ["y"], axis=1))
    float32 = onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(n, float32, [1, 16, *hw]) for n, hw in (("x0", [8, 8]), ("y", [None] * 2))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], values)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_small_change_makes_few_kernels_anew(
    cache: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = Lowering.build_kernel

    def watched(self: Lowering) -> Kernel:
        made.append(self.name)
        return make(self)

    monkeypatch.setattr(Lowering, "build_kernel", watched)

    def compiled(number: int, *change: float, use: bool = True) -> tuple[int, Path]:
        """How many kernels were made, and the sources."""
        made.clear()
        model = _network(tmp_path / f"{number}.onnx", *change)  # type: ignore[arg-type]
        output = tmp_path / f"out{number}{use}"
        aotc.compile(model, output=output, name="net", build=False, cache=use, target="x86-64-v3")
        return len(made), output

    first, _ = compiled(0, 1.0)
    for number, change, share in ((1, (2.0,), 0), (2, (1.0, 2), 1)):
        few, kept = compiled(number, *change)
        anew, fresh = compiled(number, *change, use=False)
        assert few < anew and bool(few) == share
        for path in (p for p in fresh.rglob("*") if p.is_file()):
            assert (kept / path.relative_to(fresh)).read_bytes() == path.read_bytes(), path
    store = tmp_path / "tuning.sqlite"
    TuningStore(store).write_records([TuningRecord("5f3a", cpu_model_name(), "lanes axis=1", 1.0, 1)])
    made.clear()
    model = _network(tmp_path / "0.onnx", 1.0)
    aotc.compile(model, name="net", build=False, target="x86-64-v3", tuning=store)
    assert len(made) == first  # records may change any kernel


def test_command(cache: ObjectCache, tmp_path: Path) -> None:
    assert call("compile", DIGITS, "-o", tmp_path / "d", "--cflags=-O1", "--no-cache").code == 0
    assert json.loads(call("cache", "--json").out)["entries"] == 0
    assert call("compile", DIGITS, "-o", tmp_path / "d", "--cflags=-O1").code == 0
    info = json.loads(call("cache", "--info", "--json").out)
    assert info["folder"] == str(cache.folder) and info["entries"] == cache.cache_entry_count_and_total_bytes()[0] > 1
    assert "removed" in call("cache", "--clear").out and cache.cache_entry_count_and_total_bytes() == (0, 0)
    assert "exclude" in refused("cache", "--info", "--clear")
    assert "AOTC_CACHE_MB" in refused("cache", env={"AOTC_CACHE_MB": "1GB"})


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("AOTC_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("AOTC_CACHE_DIR")
    assert cache_folder() == tmp_path / "xdg" / "aotc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "aotc"
    monkeypatch.setenv("AOTC_CACHE_MB", "5")
    made = user_object_cache()
    assert made is not None and made.limit == 5_000_000
