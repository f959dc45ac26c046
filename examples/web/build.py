# SPDX-License-Identifier: Apache-2.0
"""Make the page that recognizes handwritten digits, and serve it.

The page is written to a folder, and served at a port until Ctrl-C ends it (not with --build-only). This needs clang and
lld for WebAssembly.

    python -m examples.web.build build/web --port 8000
"""

from __future__ import annotations

import functools
import http.server
import shutil
from pathlib import Path

import click

import aotc
from aotc.packaging.write_package import package_project

HERE = Path(__file__).parent
MODEL = HERE.parent / "digits" / "digits.onnx"


def build_page(folder: Path) -> None:
    """Write the page with the npm package of the network to a folder."""
    project = aotc.compile(MODEL, target="wasm32", name="digits", build=False)
    package_project(project.path, "npm", folder / "net", overwrite=True)
    for name in ("index.html", "page.js"):
        shutil.copyfile(HERE / name, folder / name)


def server_of_folder(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of the files in a folder for this machine; port 0 stands for any free one."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--port", default=8000, help="Port of the server.")
@click.option("--build-only", is_flag=True, help="Write the page, and do not serve it.")
def main(folder: Path, port: int, build_only: bool) -> None:
    """Make the page in FOLDER and serve it."""
    folder.mkdir(parents=True, exist_ok=True)
    build_page(folder)
    if build_only:
        return
    server = server_of_folder(folder, port)
    click.echo(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
