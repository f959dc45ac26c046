# SPDX-License-Identifier: Apache-2.0
"""The page that recognizes digits: strokes of a mouse in a browser give the digits that they draw."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from pathlib import Path

import pytest

from examples.web.build import build_page, server_of_folder
from tests.conftest import require_tool
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
    browser = require_tool("chromium")
    machine("wasm32")
    build_page(tmp_path / "web")
    page = tmp_path / "web" / "index.html"
    page.write_text(page.read_text("utf-8").replace("</body>", STROKES), encoding="utf-8")
    server = server_of_folder(tmp_path / "web", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=20000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'seen.png'}"]
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=240, check=True)
    finally:
        server.shutdown()
        server.server_close()
    seen = re.search(r'data-found="(.*?)"', done.stdout)
    assert seen is not None, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(seen[1].replace("&quot;", '"')) == {"circle": "0", "line": "1", "cleared": ""}
    assert (tmp_path / "seen.png").stat().st_size > 1000
