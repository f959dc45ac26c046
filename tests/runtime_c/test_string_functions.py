# SPDX-License-Identifier: Apache-2.0
"""Strings of C callers: aotc_strings.h accepts exactly the texts that Python decodes as UTF-8, and nothing is
written for others.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
from aotc_runtime_c import include_dir
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.string_slots import slots_of_strings, strings_of_slots
from tests.runtime_c.test_runtime_c import SANITIZE, WARNINGS, command

SLOT_BYTES = 8
STRING_SIZE, STRING_TEXT = 40, 41
#: The first and the last code points of each length, surrogates, overlong forms, and cut sequences.
EDGES = [
    b"", b"\0", b"a\0b", b"12345678", b"123456789", b"\x7f", b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xc2\x80",
    b"\xdf\xbf", b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xee\x80\x80", b"\xef\xbf\xbf",
    b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff",
    b"\xe8\xaa\x9e" * 2, b"\xe8\xaa\x9e" * 3, b"\xe8\xaa", b"a\xc3", b"\xf0\x90\x80", b"\xf0\x90", b"\xc3a",
    b"\xfe\xff",
]  # fmt: skip


def expected(text: bytes) -> str:
    if len(text) > SLOT_BYTES:
        return f"{STRING_SIZE} 1 "
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return f"{STRING_TEXT} 1 "
    return f"0 9 {text.hex()}"


def test_texts_are_checked(tmp_path: Path) -> None:
    program = tmp_path / "strings"
    source = Path(__file__).with_name("strings.c")
    command("gcc", "-std=c99", *WARNINGS, *SANITIZE, f"-I{include_dir()}", source, "-o", program)
    rng = np.random.default_rng(0)
    heads = np.array([0x41, 0x7F, 0x80, 0xBF, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF3, 0xF4], np.uint8)
    texts = [
        *EDGES,
        *(bytes([a, b]) for a in range(128, 256) for b in (0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)),
    ]
    texts += [rng.choice(heads, rng.integers(0, 10)).tobytes() for _ in range(2000)]
    data = b"".join(struct.pack("=I", len(text)) + text for text in texts)
    done = subprocess.run([program], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = done.stdout.decode().splitlines()
    assert found == [expected(text) for text in texts]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=20), max_size=6))
def test_slots_hold_the_strings(texts: list[str]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    slots = slots_of_strings(array, 80)
    assert slots.shape == (len(texts), 80) and strings_of_slots(slots).tolist() == texts
    pairs = [(a, b) for a in range(len(texts)) for b in range(a)]
    assert all((slots[a] == slots[b]).all() == (texts[a] == texts[b]) for a, b in pairs)
