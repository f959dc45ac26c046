# SPDX-License-Identifier: Apache-2.0
"""Exported programs whose results have sizes that values decide, compiled once, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import aotc
from aotc.relay.frontend.pytorch import from_exported

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


@torch.library.custom_op("torchvision::nms", mutates_args=())
def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """What torchvision computes: boxes in the order of their scores that overlap no better one by more."""
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for k in scores.argsort(descending=True, stable=True).tolist():
        sides = torch.minimum(boxes[k, 2:], boxes[kept, 2:]) - torch.maximum(boxes[k, :2], boxes[kept, :2])
        both = sides.clamp(min=0).prod(1)
        if not kept or not ((both / (areas[k] + areas[kept] - both)).double() > iou_threshold).any():
            kept.append(k)
    return torch.tensor(kept, dtype=torch.int64)


@nms.register_fake
def _(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


class Detector(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Boxes that remain, their scores, and those of them that have a large score."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = nms(boxes, scores, 0.3)
        best = scores[kept]
        return kept, boxes[kept], best * 2, torch.ops.torchvision.nms(boxes, -scores, 0.6)


def test_boxes_that_remain() -> None:
    generator = torch.Generator().manual_seed(1)

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        corners = torch.randint(0, 9, (9, 2), generator=generator)
        sides = torch.randint(1, 6, (9, 2), generator=generator)
        # several scores are equal, and one is as small as can be
        scores = torch.round(torch.randn(9, generator=generator) * 2)
        scores[4] = -torch.inf
        return torch.cat([corners, corners + sides], 1).float(), scores

    session = aotc.compile(torch.export.export(Detector(), inputs()), target="c", cflags=["-O0"]).session()
    counts = set()
    # the overlap of these two boxes is 0.3 as a float, which is more than 0.3 as a double
    exact = torch.tensor([[0.0, 0, 10, 1], [7, 0, 10, 1]]).repeat(5, 1)[:9], torch.arange(9.0)
    for boxes, scores in (exact, *(inputs() for _ in range(8))):
        results = session.run(None, {"boxes": boxes.numpy(), "scores": scores.numpy()})
        for got, want in zip(results, Detector()(boxes, scores), strict=True):
            np.testing.assert_array_equal(got, want.numpy())
        counts.add(len(results[0]))
    assert 1 in counts and len(counts) > 2


class RowsOfABatch(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Elements and rows that are found in a batch whose size varies."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.nonzero(x.sum(1) > 0)[:, 0]
        return torch.nonzero(x > 0), x[x > 0] * 2, x[x.sum(1) > 0], torch.masked_select(x, x < 0), x[chosen].sum(0)


@pytest.mark.parametrize("kind", ["named", "AUTO", "DYNAMIC"])
def test_batches_whose_size_varies(kind: str) -> None:
    """torch.export names a dimension that is AUTO or DYNAMIC by itself, and knows no largest size of it."""
    batch = torch.export.Dim("batch", min=1, max=6) if kind == "named" else getattr(torch.export.Dim, kind)
    program = torch.export.export(RowsOfABatch(), (torch.randn(4, 5),), dynamic_shapes=({0: batch},))
    dims = {}
    if kind != "named":
        (name,) = map(str, next(n for n in program.graph.nodes if n.name == "x").meta["val"].shape[:1])
        dims = {name: (2, 6)}  # torch.export assumes that these dimensions are not 1
        with pytest.raises(aotc.AotcError, match=f"nothing bounds the size {name}") as caught:
            from_exported(program)
        assert all(name in str(problem.hint) for problem in caught.value.diagnostics)
        (unbacked,) = [str(s) for s in program.range_constraints if str(s).startswith("u")][:1]
        with pytest.raises(aotc.AotcError, match=f"no dynamic dimension '{unbacked}'"):
            from_exported(program, dims={**dims, unbacked: (0, 3)})
    session = aotc.compile(program, dims=dims, target="c", cflags=["-O0"]).session()
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(rows, 5, generator=generator) for rows in ((1, 6, 3) if kind == "named" else (2, 6, 3))]
    for x in (*inputs, torch.ones(6, 5), -torch.ones(2, 5)):
        for got, want in zip(session.run(None, {"x": x.numpy()}), RowsOfABatch()(x), strict=True):
            assert got.shape == tuple(want.shape)
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


class Positions(torch.nn.Module):  # type: ignore[misc,name-defined]
    """The positions of the elements that are not 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


def test_ranges_of_found_sizes() -> None:
    program = torch.export.export(Positions(), (torch.randn(9),))
    session = aotc.compile(program, dims={"found0": (0, 3)}, target="c", cflags=["-O0"]).session()
    assert session.get_outputs()[0].bounds == ((0, 3), (1, 1))
    x = np.zeros(9, np.float32)
    x[[2, 5, 7]] = 1
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [[2], [5], [7]])
    with pytest.raises(aotc.AotcError, match="the size found0, which the run finds, is 0 to 3"):
        session.run(None, {"x": np.ones(9, np.float32)})
    for dims, message in (
        ({"found1": (0, 3)}, "no operator finds a size called 'found1'"),
        ({"found0": (1, 3)}, "must begin at 0"),
        ({"found0": 3}, "must begin at 0"),
    ):
        with pytest.raises(aotc.AotcError, match=message):
            from_exported(program, dims=dims)
