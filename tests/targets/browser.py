# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, for tests of pages.

text = document_of_page(folder, tmp_path)    # the document of folder/index.html once its scripts have run
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from examples.web.build import server_of_folder
from tests.conftest import require_tool


def document_of_page(folder: Path, scratch: Path, isolated: bool = False) -> str:
    """The document of index.html in a folder, which a server on this machine serves, after its scripts; a screenshot
    is in scratch/seen.png.

    isolated    whether the page may share memory among workers
    """
    command = [require_tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--virtual-time-budget=20000", f"--user-data-dir={scratch / 'profile'}"]
    command += [f"--screenshot={scratch / 'seen.png'}"]
    server = server_of_folder(folder, 0, isolated)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=240, check=True)
    finally:
        server.shutdown()
        server.server_close()
    return done.stdout
