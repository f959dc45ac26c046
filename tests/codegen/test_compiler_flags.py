# SPDX-License-Identifier: Apache-2.0
"""Optimization levels that targets are compiled with."""

from __future__ import annotations

import pytest
from aotc_codegen.c.compiler_flags import kernel_cflags, non_kernel_cflags

from aotc.tir.target import get_target


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("x86-64", "-O1"),
        ("x86-64-v4", "-O1"),
        ("x86-64-multi", "-O1"),
        ("c", "-O2"),
        ("aarch64", "-O2"),
        ("cortex-m4", "-O2"),
    ],
)
def test_levels_of_targets(name: str, level: str) -> None:
    target = get_target(name)
    for version in target.versions or (target,):
        flags = kernel_cflags(version)
        assert flags[0] == level and "-fno-tree-vectorize" in flags and "-ffp-contract=off" in flags
    assert non_kernel_cflags(target)[0] == level
