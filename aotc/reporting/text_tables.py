# SPDX-License-Identifier: Apache-2.0
"""Format numbers and tables as text, for terminals and HTML pages.

format_with_unit_prefix(1234567, "B")                # "1.235 MB"
make_borderless_table("kernel", "ms", rows=[("conv2d", "0.12")], figures=slice(1, None))
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text


def format_with_unit_prefix(number: float, unit_name: str = "") -> str:
    """Format a number with up to four significant digits and a unit prefix: 1234567 is "1.235 M"."""
    for prefix in ("", "k", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.4g} {prefix}{unit_name}".strip()
        number /= 1000
    return f"{number:.4g} T{unit_name}"


def format_milliseconds(milliseconds: float) -> str:
    """Format a time with its unit: 12.3456 is "12.346 ms"; below 0.1 ms in microseconds: 0.0123 is
    "12.3 us".
    """
    return f"{milliseconds:.3f} ms" if milliseconds >= 0.1 else f"{1e3 * milliseconds:.1f} us"


def describe_register_spills(metadata: Mapping[str, Any]) -> str:
    """List the GPU kernels of a project that spill registers to local memory, with bytes per
    thread; "" if none.
    """
    most: dict[str, int] = {}
    for kernels in metadata.get("device", {}).get("kernels", {}).values():
        for name, row in kernels.items():
            most[name] = max(most.get(name, 0), row["local_bytes"])
    return ", ".join(f"{name} ({size} bytes of a thread)" for name, size in most.items() if size)


def make_borderless_table(
    *headers: str, rows: Iterable[Sequence[str | Text]], numeric_columns: slice = slice(0), **table_options: Any
) -> Table:
    """Return a table without lines; the columns `numeric_columns` are right-aligned and not wrapped.

    rows           cells as text, shown without markup
    table_options  further options of `rich.table.Table`
    """
    columns = [Column(header, overflow="fold") for header in headers]
    for column in columns[numeric_columns]:
        column.justify, column.no_wrap = "right", True
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", show_header=any(headers), **table_options)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table
