# SPDX-License-Identifier: Apache-2.0
"""Exported programs whose results have sizes that values decide, compiled once, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import aotc

torch = pytest.importorskip("torch")


class Selections(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Operators on positions and values that are found."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        positions = torch.nonzero(x > 0)
        rows = x[x.sum(1) > 0]
        values, inverse, counts = torch.unique(torch.round(x), return_inverse=True, return_counts=True)
        return (
            positions,
            x[x > 0] * 2,
            x[:, x[0] > 0],
            torch.masked_select(x, x[0] < 0),
            x[positions[:, 0]].sum(0),
            rows @ x.T,
            torch.nonzero(x, as_tuple=True)[1],
            values,
            inverse,
            counts,
            torch.unique(torch.round(x), dim=0),
        )


def test_one_library_for_all_numbers_of_elements() -> None:
    program = torch.export.export(Selections(), (torch.randn(4, 5),))
    session = aotc.compile(program, target="c", cflags=["-O0", "-Wall", "-Wextra", "-Werror"]).session()
    assert session.get_outputs()[0].shape == ["found0", 2]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.zeros(4, 5), torch.ones(4, 5), -torch.ones(4, 5)]
    for x in [*inputs, *(torch.randn(4, 5, generator=generator) for _ in range(3))]:
        for got, want in zip(session.run(None, {"x": x.numpy()}), Selections()(x), strict=True):
            assert got.shape == tuple(want.shape)
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
