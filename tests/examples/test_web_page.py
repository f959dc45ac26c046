# SPDX-License-Identifier: Apache-2.0
"""The page that recognizes digits: strokes of a mouse in a browser give the digits that they draw."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from examples.web.build import build_page
from tests.targets.browser import document_of_page
from tests.targets.machines import machine

STROKES = """<script type="module">
const pad = document.getElementById("pad"), found = {};
while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 20));
const fire = (name, [x, y]) => {
  const box = pad.getBoundingClientRect();
  pad.dispatchEvent(new PointerEvent(name, { clientX: box.left + 1 + x, clientY: box.top + 1 + y, bubbles: true }));
};
const circle = Array.from({ length: 41 }, (_, k) => [
  128 + 50 * Math.sin((k * Math.PI) / 20), 128 - 90 * Math.cos((k * Math.PI) / 20)]);
const line = Array.from({ length: 20 }, (_, k) => [128, 40 + 9 * k]);
for (const [name, points] of Object.entries({ circle, line })) {
  document.getElementById("clear").click();
  fire("pointerdown", points[0]);
  points.forEach((point) => fire("pointermove", point));
  fire("pointerup", points.at(-1));
  found[name] = document.getElementById("digit").textContent;
}
document.getElementById("clear").click();
found.cleared = document.getElementById("digit").textContent;
document.body.dataset.found = JSON.stringify(found);
</script></body>"""


@pytest.mark.slow
def test_strokes_of_the_mouse_are_recognized(tmp_path: Path) -> None:
    machine("wasm32")
    build_page(tmp_path / "web")
    page = tmp_path / "web" / "index.html"
    page.write_text(page.read_text("utf-8").replace("</body>", STROKES), encoding="utf-8")
    text = document_of_page(tmp_path / "web", tmp_path)
    seen = re.search(r'data-found="(.*?)"', text)
    assert seen is not None, text[-2000:]
    assert json.loads(seen[1].replace("&quot;", '"')) == {"circle": "0", "line": "1", "cleared": ""}
    assert (tmp_path / "seen.png").stat().st_size > 1000
