# SPDX-License-Identifier: Apache-2.0
"""Render the jinja2 templates of whole output files from values computed in Python.

render_template("params.c", name="net", arrays=rows)

Templates may use the filter `rows | lines("  ", ";")`, which prints each row on a line between the
two texts, the variables `c_begin` and `c_end` (extern "C" for C++) and `export` (the macro that
exports a function from a library).
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2

_TEMPLATE_GLOBALS: Final = {
    "c_begin": '#ifdef __cplusplus\nextern "C" {\n#endif',
    "c_end": "#ifdef __cplusplus\n}\n#endif",
    "export": """\
#if defined(_WIN32)
#define AOTC_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define AOTC_EXPORT __attribute__((visibility("default")))
#else
#define AOTC_EXPORT
#endif""",
}


def _print_rows_on_lines(rows: Iterable[object], before: str = "", after: str = "") -> str:
    return "".join(f"{before}{row}{after}\n" for row in rows)


@cache
def _template_environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["lines"] = _print_rows_on_lines
    environment.globals.update(_TEMPLATE_GLOBALS)
    return environment


def render_template(template: str, **values: Any) -> str:
    """Return the text of the template `template`.j2 filled with `values`; undefined names raise an
    error.
    """
    return _template_environment().get_template(f"{template}.j2").render(**values)
