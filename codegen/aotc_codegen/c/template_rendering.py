# SPDX-License-Identifier: Apache-2.0
"""Render the jinja2 templates of whole output files from values computed in Python.

render_template("params.c", name="net", arrays=rows)

Templates may use the filter `rows | lines("  ", ";")`, which prints each row on a line between the
two texts, the variables `c_begin` and `c_end` (extern "C" for C++) and `export` (the macro that
exports a function from a library).
"""

import marshal
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.bccache import Bucket

from aotc.ir.atomic_write import open_for_atomic_write

_TEMPLATES_FOLDER: Final = Path(__file__).parents[1] / "templates"
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


class _TemplateBytecodeCache(jinja2.BytecodeCache):
    """Bytecode of compiled templates, in files where Python keeps the bytecode of the modules next to
    them (`__pycache__`). Compiling the templates of a project takes a tenth of a second.

    A file is ignored that another version of Python or jinja2 wrote, or that belongs to another text
    of the template. Nothing is written where Python writes no bytecode.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError, EOFError, ValueError, TypeError):
            data, head = _bytecode_path(bucket).read_bytes(), _bytecode_file_head(bucket)
            if data.startswith(head):
                bucket.code = marshal.loads(data[len(head) :])

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        with suppress(OSError):
            path = _bytecode_path(bucket)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_for_atomic_write(path) as file:
                file.write(_bytecode_file_head(bucket) + marshal.dumps(bucket.code))


def _bytecode_path(bucket: Bucket) -> Path:
    """Return the file for the bytecode of a template; `bucket.key` is a hash of its name and path."""
    return Path(cache_from_source(str(_TEMPLATES_FOLDER / f"{bucket.key}.py")))


def _bytecode_file_head(bucket: Bucket) -> bytes:
    """Return the first bytes of the file of a template: what its bytecode depends on."""
    return MAGIC_NUMBER + f"{jinja2.__version__} {bucket.checksum}\n".encode()


@cache
def _template_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES_FOLDER),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        bytecode_cache=_TemplateBytecodeCache(),
    )
    environment.filters["lines"] = _print_rows_on_lines
    environment.globals.update(_TEMPLATE_GLOBALS)
    return environment


def render_template(template: str, **values: Any) -> str:
    """Return the text of the template `template`.j2 filled with `values`; undefined names raise an
    error.
    """
    return _template_environment().get_template(f"{template}.j2").render(**values)
