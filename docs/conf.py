# SPDX-License-Identifier: Apache-2.0
"""Configuration of the site, which `make docs` builds with Sphinx.  Pages are Markdown, read by MyST."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent / "_ext"), *(str(ROOT / part) for part in ("", "codegen", "runtime_c"))]

import aotc  # noqa: E402

project = "aotc"
author = "the authors of aotc"
copyright = author
version = release = aotc.__version__

extensions = ["myst_parser", "reference"]
exclude_patterns = ["_ext"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
#: Links to files outside of this folder, which the site has no page of, are links to the repository's files.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

html_theme = "furo"
html_title = f"aotc {version}"
html_static_path: list[str] = []
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
