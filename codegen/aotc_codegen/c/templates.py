# SPDX-License-Identifier: Apache-2.0
"""Templates of whole files: values computed in Python go in, text comes out.

render("params.c", name="net", arrays=rows)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2


@cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates")
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


def render(template: str, **values: Any) -> str:
    """A template filled in."""
    return _templates().get_template(f"{template}.j2").render(**values)
