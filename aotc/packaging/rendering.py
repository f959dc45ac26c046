# SPDX-License-Identifier: Apache-2.0
"""Render the templates of packages from the values of a project and its information.

render_package_template("meson/meson.build", name="digits", ...)

Besides the filters of jinja2, templates have one for each syntax that texts of users are written in:
`json` (also TOML, YAML, Python and Rust), `bazel`, `meson`, `mesonlist` and `pc`.
"""

import json
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2

_TEMPLATES_FOLDER: Final = Path(__file__).parent / "templates"


def _bazel_list(texts: Iterable[str]) -> str:
    """Return a list as an argument of a rule, in the format of Buildifier: several texts are on lines of their own."""
    quoted = [_quoted_string(text) for text in texts]
    if len(quoted) < 2:
        return f"[{''.join(quoted)}]"
    return "".join(["[\n", *(f"        {text},\n" for text in quoted), "    ]"])


def _meson_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _meson_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_meson_string, texts))}]"


def _pkg_config_text(text: str) -> str:
    """Return a text as a value in a .pc file, where `#` begins a comment and `$` a variable."""
    return text.replace("\\", "/").replace("$", "$$").replace("#", "\\#")


def _quoted_string(text_or_list: object) -> str:
    """Return a text, or a list of texts, in the syntax that JSON, TOML, YAML, Python and Rust share:
    only quotation marks and backslashes are escaped, as Rust has other escapes for characters than
    JSON, and TOML has no surrogates.
    """
    return json.dumps(text_or_list, ensure_ascii=False)


@cache
def _template_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES_FOLDER), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters.update(
        json=_quoted_string,
        bazel=_bazel_list,
        meson=_meson_string,
        mesonlist=_meson_list,
        pc=_pkg_config_text,
        shell=shlex.join,
    )
    return environment


def render_package_template(template: str, **values: Any) -> str:
    """Return the text of the template `template`.j2 filled with `values`; undefined names raise an
    error.
    """
    return _template_environment().get_template(f"{template}.j2").render(**values)
