# SPDX-License-Identifier: Apache-2.0
"""Target definitions: their fields decide, and impossible sizes are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aotc_codegen.c.c_dialects import DIALECTS
from aotc_codegen.c.host_project import emit_host_project

from aotc.driver import toolchain
from aotc.driver.compile import compile
from aotc.driver.toolchain import require_cpu_can_run, resolve_target
from aotc.ir.diagnostics import AotcError
from aotc.tir import te
from aotc.tir.expr import call
from aotc.tir.kernel_text import to_text
from aotc.tir.micro_kernels import DOT4, X86_AMX
from aotc.tir.passes import PlanMemory
from aotc.tir.schedule import schedule
from aotc.tir.schedule.algorithms.winograd import estimated_cycles_of_3x3_convolution
from aotc.tir.schedule.contraction import weight_packing_block_size
from aotc.tir.schedule.contraction.tiling_cost import reduction_step_cycles, weight_load_wait_cycles
from aotc.tir.schedule.stages.store_or_inline_tensors import plan_storage
from aotc.tir.target import TARGETS, Budget, C, Space, Target, Threads, Tiles, Winograd, get_target
from tests.codegen.programs import affine
from tests.golden.cases import KERNELS

V3, V4 = get_target("x86-64-v3"), get_target("x86-64-v4")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"l1": 0}, "l1 must be 1024 to 67108864 bytes, got 0"),
        ({"l1": None}, "l1 must be a whole number, got None"),
        ({"l1": "32K"}, "l1 must be a whole number, got '32K'"),
        ({"l2": 1 << 50}, "l2 must be 1024 to 4294967296 bytes, got 1125899906842624"),
        ({"l2": -1}, "l2 must be 1024 to 4294967296 bytes, got -1"),
        ({"line": 0}, "line must be 8 to 4096 bytes, got 0"),
        ({"line": 2048, "l1": 1024}, "line must be no more than l1, which is 1024 bytes, got 2048"),
        ({"l1_ways": 0}, "l1_ways must be 1 to 1048576, got 0"),
        ({"memory_rate": 0.0}, "memory_rate must be 1e-06 to 1000000.0 bytes in a cycle, got 0.0"),
        ({"memory_rate": float("nan")}, "memory_rate must be 1e-06 to 1000000.0 bytes in a cycle, got nan"),
        ({"copy_rate": "8"}, "copy_rate must be a number, got '8'"),
        ({"registers": -4}, "registers must be 1 to 4096, got -4"),
        ({"registers": 1.5}, "registers must be a whole number, got 1.5"),
        ({"store_cost": None}, "store_cost must be a whole number, got None"),
        ({"store_cost": -1}, "store_cost must be 0 to 1073741824 operations, got -1"),
        ({"store_cost": float("nan")}, "store_cost must be a whole number, got nan"),
        ({"vector_bytes": 48}, "vector_bytes must be one of 0, 8, 16, 32, 64, 128, 256, got 48"),
        ({"vector_bytes": 3}, "vector_bytes must be one of 0, 8, 16, 32, 64, 128, 256, got 3"),
        ({"vector_bytes": -1}, "vector_bytes must be 0 to 256 bytes, got -1"),
        ({"vector_bytes": 1 << 60}, f"vector_bytes must be 0 to 256 bytes, got {1 << 60}"),
        ({"vector_bytes": float("nan")}, "vector_bytes must be a whole number, got nan"),
        ({"vector_bytes": None}, "vector_bytes must be a whole number, got None"),
        *(
            ({"micro_kernels": (replace(DOT4, **{field: 0}),)}, f"micro-kernel dot4: {field} must be positive, got 0")
            for field in ("rate", "latency", "group")
        ),
        ({"micro_kernels": (replace(DOT4, rate=float("nan")),)}, "micro-kernel dot4: rate must be positive, got nan"),
    ],
)
def test_figures_that_no_machine_has(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(AotcError) as raised:
        replace(V4, name="odd", **facts)
    (found,) = raised.value.diagnostics
    assert (found.code, found.message) == ("target", f"target odd: {message}")
    assert found.hint.endswith("out where it is not known")


def test_micro_kernels_without_their_instructions() -> None:
    with pytest.raises(AotcError) as raised:
        replace(V4, name="odd", micro_kernels=(X86_AMX,))
    (found,) = raised.value.diagnostics
    assert found.message == "target odd: micro-kernel x86_amx requires amx_int8, which the target does not have"
    assert "leave the micro-kernel out" in found.hint


@pytest.mark.parametrize("facts", [*({"registers": n} for n in (1, 4, 8)), *({"vector_bytes": n} for n in (8, 128))])
@pytest.mark.parametrize("name", ["conv-channels-last", "conv-direct", "dense-packed"])
def test_figures_at_the_edge(facts: dict[str, int], name: str) -> None:
    """Where registers are too few for any tile, the smallest is taken."""
    case = KERNELS[name]
    found = compile(case.module(), target=replace(V3, name="odd", **facts), build=False, cache=False, **case.options)
    assert found.metadata["kernels"]


def test_a_dialect_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="unknown C dialect of target odd: 'c9'") as raised:
        emit_host_project(affine("net", 12), tmp_path, target=replace(C, name="odd", dialect="c9"))
    assert raised.value.code == "target" and "did you mean 'c99'?" in raised.value.diagnostics[0].hint


def test_every_target_has_words() -> None:
    for target in TARGETS.values():
        assert (DIALECTS[target.dialect].vectors is None) == target.is_scalar


def test_facts_of_a_machine_decide() -> None:
    """Machines that differ in one fact give different answers."""
    pitch = {"output_positions": 64, "position_pitch_bytes": 4096}
    assert weight_packing_block_size(96, V4, "float32", **pitch) != weight_packing_block_size(
        96, replace(V4, l1_stride=3000), "float32", **pitch
    )
    assert weight_packing_block_size(96, V4, "float32", **pitch) != weight_packing_block_size(
        96, replace(V4, l1_ways=32), "float32", **pitch
    )
    slow = replace(V4, memory_rate=1.0)
    assert weight_load_wait_cycles(1 << 24, 4, 0.0, slow) > 5 * weight_load_wait_cycles(1 << 24, 4, 0.0, V4)
    shape = (1, 64, 56, 56)
    direct, fast = (estimated_cycles_of_3x3_convolution(shape, 64, tile, V4) for tile in (0, 4))
    for slow in (Winograd(macs=16, forward=60.0, backward_vector=800), Winograd(macs=1)):
        assert fast < direct < estimated_cycles_of_3x3_convolution(shape, 64, 4, replace(V4, winograd=slow))
    assert reduction_step_cycles(V4, 1, 1, 16) < reduction_step_cycles(replace(V4, tiles=Tiles(latency=8)), 1, 1, 16)
    assert reduction_step_cycles(V4, 2, 14, 16) < reduction_step_cycles(
        replace(V4, tiles=Tiles(broadcast=3)), 2, 14, 16
    )
    assert plan_of(V4) != plan_of(replace(V4, store_cost=1000))


def plan_of(target: Target) -> list[str]:
    """What is stored of exponentials that are read eight times each."""
    x = te.placeholder((64,), "float32", "x")
    e = te.compute((64,), lambda i: call("exp", x[i]), "e")
    y = te.compute((64, 8), lambda i, j: e[i], "y")
    return [t.name for t in plan_storage([y], target).stored]


def test_threads_decide_which_reductions_are_done_in_parts() -> None:
    """Not whether there are vectors: a scalar machine with threads divides a long sum, one with one thread does not."""
    x = te.placeholder((4096, 8), "float32", "x")
    total = te.reduce("sum", (8,), (4096,), lambda i, k: x[k, i], "total")
    machines = (replace(C, threads=threads) for threads in (None, Threads(), Threads(parts=16)))
    alone, shared, more = (schedule("k", [x], [total], machine) for machine in machines)
    assert "part" not in to_text(alone) and "for part in 0..8 independent" in to_text(shared)
    assert "for part in 0..16 independent" in to_text(more)
    short = schedule("k", [x], [total], replace(C, budget=Budget(row_bytes=16)))
    assert "stack total_row: float32[8]" in to_text(alone) and "stack total_row: float32[4]" in to_text(short)


def test_a_target_for_another_processor_is_one_value(tmp_path: Path) -> None:
    """Limited memory, parameters as arrays whatever their size; its kernels are C99."""
    ram = Space(name="ram", bytes=1 << 20)
    small = Target(name="small", l1=16 << 10, l2=64 << 10, budget=Budget(array_bytes=1 << 30), spaces=(ram,))
    metadata = emit_host_project(affine("net", 20_000), tmp_path, target=small)
    assert metadata["memory"]["spaces"] == {"arena": "ram", "parameters": "ram"}
    assert metadata["target"] == "small" and not list(tmp_path.glob("src/*.bin"))
    tiny = replace(small, name="tiny", spaces=(replace(ram, bytes=1000),))
    with pytest.raises(AotcError, match=r"a run needs \d+ bytes of memory, tiny has 1000") as raised:
        emit_host_project(affine("net", 20_000), tmp_path, target=tiny)
    assert raised.value.code == "memory"


FAST = Space(name="fast", bytes=4000, align=16, holds=("arena", "scratch"))
SLOW = Space(name="slow", bytes=1 << 20)
FLASH = Space(name="flash", bytes=1 << 16, holds=("parameters",))
SHARED = Space(name="shared", bytes=48 << 10, holds=("scratch",))


@pytest.mark.parametrize(
    ("spaces", "needed", "expected"),
    [
        ((FAST, SLOW, FLASH), (3000, 1 << 15), ("fast", "slow")),
        ((FAST, FLASH, SLOW), (3000, 1 << 15), ("fast", "flash")),
        ((FAST, FLASH, SLOW), (4001, 1 << 17), ("slow", "slow")),
        ((SHARED, Space(name="global")), (1 << 10, 1 << 40), ("global", "global")),
    ],
)
def test_the_first_memory_with_room(
    spaces: tuple[Space, ...], needed: tuple[int, int], expected: tuple[str, str]
) -> None:
    """A microcontroller's two memories and its flash; what threads of a block share holds no results."""
    found = replace(C, name="small", spaces=spaces).choose_memory_spaces(
        dict(zip(("arena", "parameters"), needed, strict=True))
    )
    assert tuple(space.name for space in found.values()) == expected


def test_memories_share_out_their_room() -> None:
    one = replace(C, name="one", spaces=(SLOW,))
    with pytest.raises(AotcError, match="the parameters need 1048000 bytes of memory, one has 1047576"):
        one.choose_memory_spaces({"arena": 1000, "parameters": 1048000})


def test_the_plan_keeps_to_the_alignment_of_its_memory() -> None:
    small = replace(C, name="small", spaces=(FAST, FLASH))
    assert PlanMemory(small)(affine("net", 10)).plan.align == 16
    assert PlanMemory()(affine("net", 10)).plan.align == 64


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ((replace(SLOW, align=24),), "the memory slow cannot have 1048576 bytes, aligned to 24"),
        ((replace(SLOW, bytes=-1),), "the memory slow cannot have -1 bytes"),
        ((FAST,), "no memory space is assigned to parameters"),
        ((FLASH, SHARED, replace(SLOW, holds=("arena",))), "no memory space is assigned to arena and scratch"),
    ],
)
def test_memories_that_cannot_be(spaces: tuple[Space, ...], message: str) -> None:
    with pytest.raises(AotcError, match=message) as raised:
        replace(C, name="odd", spaces=spaces)
    assert raised.value.code == "target"


@pytest.mark.parametrize("cpuinfo", ["", "cache size\t: 0 KB\nflags\t: fma", "flags", "\xff\xfe", None])
def test_a_host_that_describes_itself_wrongly(
    cpuinfo: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of caches are those of the table, whatever the system says; without features the host is the least one."""
    told = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        told.write_bytes(cpuinfo.encode("latin-1"))
    monkeypatch.setattr(toolchain, "CPUINFO_PATH", told)
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "x86_64")
    assert resolve_target("host") is get_target("x86-64")
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "")
    assert resolve_target("host") is C


@pytest.mark.parametrize(
    ("isa", "name", "may_run"),
    [
        ("rv64imafdc_zicsr", "riscv64", ("riscv64",)),
        ("rv64imafdcv_zicsr_zbb", "riscv64-v128", ("riscv64", "riscv64-v128", "riscv64-v256")),
        ("rv64imafdcv_zvl128b", "riscv64-v128", ("riscv64", "riscv64-v128")),
        ("rv64imafdcv_zvl128b_zvl256b", "riscv64-v256", ("riscv64", "riscv64-v128", "riscv64-v256")),
        ("rv64imafdcv0p7_zicsr", "riscv64", ("riscv64",)),
    ],
)
def test_a_host_with_vectors_of_risc_v(
    isa: str, name: str, may_run: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system does not list the length of vectors, libraries alone check it."""
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nisa\t\t: {isa}\nmmu\t\t: sv39\n", encoding="ascii")
    monkeypatch.setattr(toolchain, "CPUINFO_PATH", tmp_path / "cpuinfo")
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "riscv64")
    assert resolve_target("host").name == name
    assert tuple(t.name for t in TARGETS.values() if t.machine == "riscv64" and runs_here(t)) == may_run


def runs_here(target: Target) -> bool:
    """Return True unless this machine is known to lack what the code for a target needs."""
    try:
        require_cpu_can_run(target)
    except AotcError:
        return False
    return True


@pytest.mark.parametrize(("saved", "name"), [(True, "x86-64-v4-amx"), (False, "x86-64-v4-bf16")])
def test_a_host_whose_system_may_not_save_matrices(
    saved: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, wanted = tmp_path / "cpuinfo", get_target("x86-64-v4-amx")
    told.write_text(f"flags\t: {' '.join(wanted.features)} pni abm\n", encoding="ascii")
    monkeypatch.setattr(toolchain, "CPUINFO_PATH", told)
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(toolchain, "_os_saves_amx_tiles", lambda: saved)
    assert resolve_target("host").name == name
