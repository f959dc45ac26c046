# SPDX-License-Identifier: Apache-2.0
"""Drawings in reports: positions of boxes, colors, and rendering in a browser."""

from __future__ import annotations

import json
import random
import re
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.transform import PassContext
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.module import IRModule
from aotc.reporting.compile_report import PassReport
from aotc.reporting.graph_drawing import MAX_BOXES, DrawnNode, draw_graphs_before_and_after, nodes_to_draw
from aotc.reporting.svg_charts import Box, Picture, draw_arena_chart, draw_roofline_chart
from tests.call_counts import grows_linearly
from tests.conftest import require_tool

HOSTILE = '</title></svg></script><b onmouseover="x">&amp;{{ 1 }}'
MACHINE = {"peak_gflops": 100.0, "bandwidth_gbytes_per_s": 10.0, "touched_bytes": 1 << 20}


def network(depth: int, name: str = "x", last: Callable[..., Expr] = relay.exp) -> IRModule:
    """Blocks of three operators each, with a shortcut around them."""
    x = Var(name, relay.TensorType((1, 2, 4, 4), "float32"))
    y: Expr = x
    for _ in range(depth):
        y = relay.add(last(relay.tanh(relay.negative(y))), y)
    return relay.transform.InferType()(IRModule.from_expr(Function((x,), y)))


def kernel(name: str, milliseconds: float, macs: int, size: int) -> dict[str, Any]:
    rates = {"gflops": 2e-6 * macs / milliseconds, "gbytes_per_s": 1e-6 * size / milliseconds, "of_roofline": 0.5}
    return {
        "kernel": name,
        "milliseconds": milliseconds,
        "macs": macs,
        "bytes": size,
        "calls": 1,
        "nodes": [name],
        **rates,
    }


def of_class(picture: Picture, css: str) -> list[Box]:
    return [box for box in picture.boxes if css in box.css.split()]


def names(boxes: list[Box]) -> list[str]:
    return [box.label for box in boxes]


def crossings(picture: Picture) -> int:
    """How often the straight part of an edge goes through a box."""
    columns: dict[float, list[float]] = {}
    for box in picture.boxes:
        columns.setdefault(box.x + box.width / 2, []).append(box.y)
    count = 0
    for path, _ in picture.lines:
        x, y, end = map(float, re.match(r"M(.*) (.*)V(.*)C", path).groups())  # type: ignore[union-attr]
        count += sum(y < top < end for top in columns[x])
    return count


@pytest.mark.parametrize("seed", range(5))
def test_edges_go_down_beside_boxes(seed: int) -> None:
    rng = random.Random(seed)
    reads = [tuple(sorted(rng.sample(range(k), min(k, rng.choice((0, 1, 1, 2, 3)))))) for k in range(300)]
    nodes = [DrawnNode(f"n{k}", "", k, inputs) for k, inputs in enumerate(reads)]
    _, picture = draw_graphs_before_and_after((), nodes)
    assert len({(box.x, box.y) for box in picture.boxes}) == 300 == len(of_class(picture, "new"))
    assert len(picture.lines) == sum(map(len, reads)) and crossings(picture) == 0
    for place, inputs in enumerate(reads):
        assert all(picture.boxes[k].y < picture.boxes[place].y for k in inputs)


@pytest.mark.parametrize("blocks", [1, 0], ids=["blocks", "branches"])
def test_drawing_takes_time_in_proportion_to_the_nodes(blocks: int) -> None:
    def prepare(size: int) -> Callable[[], object]:
        """Nodes that read the two before them, or a number of branches that are joined."""
        reads = [tuple(range(max(0, k - 2), k)) if blocks else (0,) * (k > 0) for k in range(size)]
        nodes = [DrawnNode("n", "", k, inputs) for k, inputs in enumerate([*reads, tuple(range(size))])]
        return lambda: draw_graphs_before_and_after((), nodes)

    assert grows_linearly(prepare)


def test_what_a_pass_changed_is_colored() -> None:
    before = network(3)
    after = relay.transform.InferType()(IRModule.from_expr(Function(before.main.params, relay.abs(before.main.body))))
    left, right = draw_graphs_before_and_after(nodes_to_draw(before), nodes_to_draw(after))
    assert not of_class(left, "gone") and names(of_class(right, "new")) == ["abs"]
    assert len(right.boxes) == len(left.boxes) + 1 == 14
    back, _ = draw_graphs_before_and_after(nodes_to_draw(after), nodes_to_draw(before))
    assert names(of_class(back, "gone")) == ["abs"]
    left, right = draw_graphs_before_and_after(nodes_to_draw(before), nodes_to_draw(relay.transform.FuseOps()(before)))
    assert set(names(of_class(left, "gone"))) == {"add", "exp", "tanh", "negative"}
    assert any(" + " in name for name in names(of_class(right, "new")))


def test_types_attributes_constants_and_places_are_told() -> None:
    x = Var("x", relay.TensorType((1, 3, 8, 8), "float32"), span=aotc.ir.Span("net.onnx", node="first"))
    y = relay.nn.conv2d(x, relay.const(np.ones((4, 3, 3, 3), "float32")), padding=(1, 1))
    first, second = nodes_to_draw(IRModule.from_expr(Function((x,), y)))
    assert "from net.onnx: node first" in first.text
    for part in ("nn.conv2d", "(1, 4, 8, 8)", "padding = (1, 1, 1, 1)", "constant Tensor[(4, 3, 3, 3), float32]"):
        assert part in second.text
    assert second.inputs == (0,)


def test_a_thousand_nodes_are_few_boxes_where_little_changes() -> None:
    x = y = Var("x", relay.TensorType((2,), "float32"))
    for k in range(1000):
        y = relay.abs(y) if k == 500 else relay.negative(y)  # type: ignore[assignment]
    z: Expr = x
    for _ in range(1000):
        z = relay.negative(z)
    left, right = draw_graphs_before_and_after(
        *(nodes_to_draw(IRModule.from_expr(Function((x,), body))) for body in (z, y))
    )
    assert names(list(right.boxes)) == ["501 × %x … negative", "abs", "499 × negative … negative"]
    assert len(left.boxes) == 3 and names(of_class(left, "gone")) == ["negative"]
    x, y, width, height = right.view
    assert x <= right.boxes[1].x < x + width and y <= right.boxes[1].y < y + height


def test_large_graphs_are_said_to_be_large() -> None:
    nodes = [DrawnNode("n", "", k, ()) for k in range(MAX_BOXES + 1)]
    _, picture = draw_graphs_before_and_after((), nodes)
    assert not picture.boxes and f"{MAX_BOXES + 1} boxes are too many" in picture.note
    assert len(draw_graphs_before_and_after((), nodes[1:])[1].boxes) == MAX_BOXES


def test_tensors_lie_where_the_plan_says(tmp_path: Path) -> None:
    made = aotc.compile(network(4, last=relay.nn.softmax), target="c", output=tmp_path / "net", build=False)
    memory = made.metadata["memory"]
    picture = draw_arena_chart(made.metadata)
    boxes = [box for box in picture.boxes if "text" not in box.css]
    assert len(boxes) == len(memory["buffers"]) > 4
    one = (boxes[0].height / memory["buffers"][0]["bytes"], boxes[0].width)
    for box, buffer in zip(boxes, memory["buffers"], strict=True):
        assert box.height == pytest.approx(one[0] * buffer["bytes"])
        assert f"at byte {buffer['offset']}" in box.title and f"to step {buffer['last_step']}" in box.title
        assert box.short.startswith(buffer["name"])
        for other in boxes:
            beside = min(box.x + box.width, other.x + other.width) - max(box.x, other.x) < 1e-6
            above = min(box.y + box.height, other.y + other.height) - max(box.y, other.y) < 1e-6
            assert box is other or beside or above
    empty = {"memory": {"buffers": [], "peak": 0}, "steps": []}
    assert draw_arena_chart(empty).note and not draw_arena_chart(empty).boxes


def test_kernels_stand_under_their_roof() -> None:
    rows = [kernel("net_large", 4.0, 200_000_000, 1000), kernel("moves", 1.0, 0, 10_000_000)]
    found = {"model": "net", "target": "x86-64-v3", "machine": MACHINE, "kernels": rows}
    picture = draw_roofline_chart(found)
    large, moves = (box for box in picture.boxes if box.round)
    assert large.width == pytest.approx(2 * moves.width)  # the area is four times as large
    start, peak = re.findall(r"[ML](\S+) (\S+?)(?=L|$)", next(path for path, css in picture.lines if css == "roof"))[:2]
    assert large.y + large.round == pytest.approx(float(peak[1]))  # 100 GFLOP/s
    place = moves.x + moves.round, moves.y + moves.round
    assert place == pytest.approx((float(start[0]), float(start[1])))  # 10 GB/s
    assert "large" in names(of_class(picture, "left")) and "80.0%" in large.title
    assert "dashed" in picture.lines[-1][1] and "x86-64-v3" in " ".join(names(of_class(picture, "right")))
    for row in rows:
        row |= {"bytes": 0}
    assert not [box for box in draw_roofline_chart(found).boxes if box.round]


SEEN = """
<script>
const svgs = [...document.querySelectorAll("svg")], before = svgs.map(s => s.viewBox.baseVal.height);
document.querySelectorAll("details").forEach(d => d.open = true);
svgs.forEach(s => s.dispatchEvent(new WheelEvent("wheel", {deltaY: -200, cancelable: true})));
document.body.dataset.seen = JSON.stringify(svgs.map((s, k) => ({
  zoomed: s.viewBox.baseVal.height / before[k],
  drawn: [...s.querySelectorAll("rect")].filter(r => r.getBoundingClientRect().width > 0).length,
  texts: [...s.querySelectorAll("text")].filter(t => t.getBBox().width > 0).length,
  filled: new Set([...s.querySelectorAll("rect")].map(r => getComputedStyle(r).fill)).size})));
svgs.forEach(s => s.dispatchEvent(new MouseEvent("dblclick")));
document.querySelectorAll("details").forEach((d, k) => d.open = k == 0);
</script></body>"""


def test_a_browser_shows_the_pictures(tmp_path: Path) -> None:
    browser = require_tool("chromium")
    report = PassReport(HOSTILE)
    options: dict[str, Any] = {"instruments": [report], "name": "net", "build": False, "target": "x86-64-v3"}
    report.add_compiled_model(aotc.compile(network(40, HOSTILE, relay.nn.softmax), output=tmp_path / "net", **options))
    rows = [kernel(HOSTILE, 4.0, 200_000_000, 1000), kernel("moves", 1.0, 0, 10_000_000)]
    report.add_profile({"model": "net", "target": "x86-64-v3", "machine": MACHINE, "kernels": rows})
    page = report.to_html()
    assert "//" not in page.replace("// ", "")  # nothing is fetched
    (tmp_path / "report.html").write_text(page.replace("</body>", SEEN), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,2400", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'seen.png'}"]
    done = subprocess.run(
        [*command, str(tmp_path / "report.html")], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("<tr") >= len(report.passes) and "<b onmouseover" not in done.stdout
    seen = re.search(r'data-seen="(.*?)"', done.stdout)
    assert seen is not None, "the script of the page failed"
    found = json.loads(seen[1].replace("&quot;", '"'))
    changed = [record for record in report.passes if record.text_after is not None]
    assert {"optimize", "FuseOps", "PlanMemory"} <= {record.name for record in changed}
    assert len(found) == 2 + 2 * len(changed)
    boxes = [len(re.findall("<rect", picture)) for picture in re.findall("<svg.*?</svg>", page, re.DOTALL)]
    for picture, count in zip(found, boxes, strict=True):
        assert (
            picture["drawn"] == count > 0
            and picture["texts"] > 0
            and picture["zoomed"] == pytest.approx(0.67, abs=0.01)
        )
    assert max(boxes) > 100 and sum(picture["filled"] > 1 for picture in found) > 4
    image = (tmp_path / "seen.png").read_bytes()
    parts = re.findall(rb"IDAT(.*?)(?=.{8}(?:IDAT|IEND))", image, re.DOTALL)
    rows_of_pixels = zlib.decompress(b"".join(parts))
    assert len(rows_of_pixels) - rows_of_pixels.count(0) > 50_000  # bytes that differ from the neighbors': not blank


def test_a_page_of_a_hostile_network_keeps_its_form() -> None:
    report = PassReport()
    with PassContext(opt_level=3, instruments=[report]):
        relay.transform.FuseOps()(network(1, HOSTILE))
    page = report.to_html()
    assert page.count("<svg") == page.count("</svg>") > 0 and "<b " not in page and "&lt;b onmouseover" in page
