# SPDX-License-Identifier: Apache-2.0
"""Draw the diagrams of the documents: text in this folder (*.txt) in, pictures (*.svg) out.

    python docs/diagrams/draw.py

A line of the text is `title | TEXT`, `box | NAME | CAPTION`, `arrow | CODE | CAPTION` between two boxes, one below the
other, `input | NAME | CODE`, a dashed box to the right of the last box, with an arrow to it, for what this step reads,
or `row | LABEL | NAME, NAME, ...`, a layer of boxes.  The pictures are under version control.
"""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH = 760
BOX_WIDTH, BOX_HEIGHT, ARROW_HEIGHT = 330, 46, 48
INPUT_X = 440
ROW_LETTERS = 66
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2937; }
    .name { font-weight: 600; font-size: 14px; } .small { font-size: 12px; fill: #4b5563; }
    .middle { text-anchor: middle; }
    .code { font: 12px ui-monospace, monospace; fill: #1d4ed8; }
    rect { fill: #eff6ff; stroke: #3b82f6; }
    .input { fill: #fffbeb; stroke: #b45309; stroke-dasharray: 5 3; }
    .arrow { stroke: #1f2937; stroke-width: 1.5; marker-end: url(#head); }
"""
HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#1f2937"/></marker>'
)


def text(x: int, y: int, content: str, kind: str) -> str:
    return f'  <text class="{kind}" x="{x}" y="{y}">{escape(content)}</text>'


def box(y: int, name: str, caption: str) -> tuple[int, list[str]]:
    """A box of the flow; the height it takes."""
    middle = 20 + BOX_WIDTH // 2
    shape = f'  <rect x="20" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
    return BOX_HEIGHT, [
        shape, text(middle, y + 19, name, "name middle"), text(middle, y + 37, caption, "small middle")
    ]  # fmt: skip


def arrow(y: int, code: str, caption: str) -> tuple[int, list[str]]:
    middle = 20 + BOX_WIDTH // 2
    line = f'  <path class="arrow" d="M{middle} {y}L{middle} {y + ARROW_HEIGHT - 3}"/>'
    return ARROW_HEIGHT, [line, text(middle + 14, y + 20, code, "code"), text(middle + 14, y + 37, caption, "small")]


def side_input(y: int, name: str, code: str) -> tuple[int, list[str]]:
    """A box to the right of the box that ends at `y`, and an arrow to it; no height of its own."""
    top, width = y - BOX_HEIGHT, WIDTH - 20 - INPUT_X
    middle, center = INPUT_X + width // 2, top + BOX_HEIGHT // 2
    return 0, [
        f'  <rect class="input" x="{INPUT_X}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="8"/>',
        text(middle, top + 19, name, "name middle"),
        text(middle, top + 37, code, "code middle"),
        f'  <path class="arrow" d="M{INPUT_X} {center}L{20 + BOX_WIDTH + 3} {center}"/>',
    ]


def row(y: int, label: str, names: str) -> tuple[int, list[str]]:
    """A layer: a wide box with its label at the top and names of packages below."""
    lines = textwrap.wrap(names, ROW_LETTERS)
    height = 34 + 17 * len(lines)
    drawn = [f'  <rect x="20" y="{y}" width="{WIDTH - 40}" height="{height}" rx="8"/>', text(34, y + 20, label, "name")]
    drawn += [text(34, y + 41 + 17 * k, line, "code") for k, line in enumerate(lines)]
    return height + 10, drawn


def picture(description: str) -> str:
    """The SVG of a description."""
    y, title, parts = 20, "", list[str]()
    for line in filter(None, description.splitlines()):
        kind, *fields = (field.strip() for field in line.split("|"))
        if kind == "title":
            (title,) = fields
            continue
        height, drawn = {"box": box, "arrow": arrow, "input": side_input, "row": row}[kind](y, *fields)
        y += height
        parts += drawn
    size = f'viewBox="0 0 {WIDTH} {y + 20}" width="{WIDTH}" height="{y + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    ground = '  <rect width="100%" height="100%" style="fill: #fff; stroke: none"/>'
    return "\n".join([head, f"  <style>{STYLE}  </style>", ground, f"  {HEAD}", *parts, "</svg>"]) + "\n"


def main() -> None:
    for source in sorted(FOLDER.glob("*.txt")):
        source.with_suffix(".svg").write_text(picture(source.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
