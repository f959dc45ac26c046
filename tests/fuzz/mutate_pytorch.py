# SPDX-License-Identifier: Apache-2.0
"""Mutations of exported PyTorch programs (.pt2): of the JSON in the archive, its entries, its bytes.

Entries that hold pickles are only cut off or left out: what is read here are files of our own making.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from tests.fuzz.case import Mutations
from tests.fuzz.mutate_bytes import changed_bytes, odds, pick, shorter
from tests.fuzz.mutate_json import changed_json

Generator = np.random.Generator
Entries = list[tuple[str, bytes]]


@lru_cache(maxsize=2)
def bases(everything: bool) -> Sequence[Entries]:
    """Programs to begin with, as the entries of their archives."""
    import torch

    from tests.frontend_pytorch.cases import all_cases
    from tests.frontend_pytorch.frontend_comparison import as_module

    found = []
    for k, (net, inputs) in enumerate(all_cases().values()):
        if k % (9 if everything else 97):
            continue
        file = io.BytesIO()
        try:
            torch.export.save(torch.export.export(as_module(net), inputs), file)
        except Exception:  # of a case that torch cannot export
            continue
        found.append(_entries(file.getvalue()))
    return found


def _entries(data: bytes) -> Entries:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def _archive(entries: Entries) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def _is_json(name: str, data: bytes) -> bool:
    return name.endswith(".json") and data[:1] in (b"{", b"[")


def _change(rng: Generator, entries: Entries) -> None:
    documents = [k for k, (name, data) in enumerate(entries) if _is_json(name, data)]
    at = pick(rng, documents) if documents and odds(rng, 0.8) else int(rng.integers(len(entries)))
    name, data = entries[at]
    match int(rng.integers(12)):
        case 0:
            del entries[at]
        case 1:
            entries[at] = (name, data[: int(rng.integers(len(data) + 1))])
        case 2:
            entries[at] = (pick(rng, [n for n, _ in entries] + ["../x", "/x", "archive/", "ü", name + "x"]), data)
        case 3:
            entries.append(entries[at])
        case _ if _is_json(name, data):
            try:
                entries[at] = (name, changed_json(rng, data))
            except ValueError:
                entries[at] = (name, changed_bytes(rng, data))
        case _ if b"\x80\x02" not in data[:4096] and b"PK" not in data[:4]:
            entries[at] = (name, changed_bytes(rng, data))
        case _:
            entries[at] = (name, b"")


def mutated(programs: Sequence[Entries], seed: int, without: frozenset[int]) -> bytes:
    """A mutated archive."""
    mutations = Mutations(seed, without)
    rng = mutations.base()
    entries, as_bytes = list(pick(rng, programs)), odds(rng, 0.1)
    data = _archive(entries) if as_bytes else b""
    for step in mutations.each():
        if as_bytes:
            data = changed_bytes(step, data) if odds(step, 0.5) else data[: int(step.integers(len(data) + 1))]
        elif entries:
            _change(step, entries)
    return data if as_bytes else _archive(entries)


def smaller(data: bytes) -> Iterator[bytes]:
    """Without an entry, else with fewer bytes."""
    try:
        entries = _entries(data)
    except Exception:  # no archive any more
        yield from shorter(data)
        return
    for k in range(len(entries)):
        yield _archive(entries[:k] + entries[k + 1 :])
