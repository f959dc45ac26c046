# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, for tests of pages.

text = document_of_page(folder, tmp_path)    # the document of folder/index.html once its scripts have run
text = posted_by_page(folder, tmp_path)      # what its scripts send to the server
"""

from __future__ import annotations

import functools
import http.server
import queue
import subprocess
import threading
from pathlib import Path

from examples.web.build import server_of_folder
from tests.conftest import require_tool


def document_of_page(folder: Path, scratch: Path) -> str:
    """The document of index.html in a folder, which a server on this machine serves, after its scripts; a screenshot
    is in scratch/seen.png.
    """
    command = [*_command(scratch), "--dump-dom", "--virtual-time-budget=20000"]
    command += [f"--screenshot={scratch / 'seen.png'}"]
    server = server_of_folder(folder, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=240, check=True)
    finally:
        server.shutdown()
        server.server_close()
    return done.stdout


def posted_by_page(folder: Path, scratch: Path, isolated: bool = False) -> str:
    """The first text that index.html in a folder sends by a POST request to the server; it may come from workers, which
    the time of `document_of_page` does not wait for.

    isolated    whether the page may share memory among workers
    """
    posted: queue.Queue[str] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            if isolated:
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

        def do_POST(self) -> None:
            posted.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = subprocess.Popen(
            [*_command(scratch), f"http://127.0.0.1:{server.server_port}/"], stdout=subprocess.DEVNULL
        )
        try:
            return posted.get(timeout=120)
        finally:
            browser.terminate()
            browser.wait(60)
            server.shutdown()


def _command(scratch: Path) -> list[str]:
    command = [require_tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu"]
    return [*command, f"--user-data-dir={scratch / 'profile'}"]
