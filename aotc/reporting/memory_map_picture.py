# SPDX-License-Identifier: Apache-2.0
"""Draw a memory map as an SVG picture: a bar for each region, its largest items, and the arena over time.

write_memory_map(describe_memory_map(Path("build/net")), Path("map.svg"))        # or "map.json"
"""

import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from aotc.ir import AotcError
from aotc.ir.atomic_write import open_output_file, require_not_an_input_file
from aotc.reporting.svg_charts import COLOR_COUNT, LEFT, MARGIN, WIDE, Box, Picture, draw_arena_chart
from aotc.reporting.text_tables import format_with_unit_prefix

#: File name extensions of the forms of a memory map.
MEMORY_MAP_SUFFIXES: Final = (".json", ".svg")
_BAR_PIXELS, _LINE_PIXELS, _LISTED_ITEMS = 44, 18, 10
#: Color of each kind of item, as a number of a CSS class; others are gray.
_COLOR_OF_KIND: Final = {"parameter": 0, "kernel": 1, "code": 5, "arena": 2, "tensors": 3, "state": 4, "stack": 3}
_COLORS: Final = ("#3b82f6", "#22c55e", "#eab308", "#ef4444", "#a855f7", "#14b8a6")
_STYLE: Final = (
    "svg{background:#fff;font:11px system-ui,sans-serif}rect{fill:#d4d4d4;stroke:#777}"
    "text{dominant-baseline:central;text-anchor:middle}path{fill:none;stroke:#ddd}"
    ".text rect{visibility:hidden}.left text{text-anchor:start}.right text{text-anchor:end}.head text{font-weight:bold}"
    + "".join(f".c{k} rect{{fill:{color}99}}" for k, color in enumerate(_COLORS[:COLOR_COUNT]))
)


def require_memory_map_file(path: Path, inputs_to_protect: Iterable[object] = ()) -> None:
    """Raise AotcError unless `write_memory_map` may write to a file: code "memory-map" for the extension of its name,
    "output" for a file that must not be overwritten.
    """
    if path.suffix not in MEMORY_MAP_SUFFIXES:
        raise AotcError(
            "memory-map", f"cannot write a memory map to {path.name!r}", hint="the name ends in .json or .svg"
        )
    require_not_an_input_file(path, "output", inputs_to_protect)


def write_memory_map(memory_map: Mapping[str, Any], path: Path, inputs_to_protect: Iterable[object] = ()) -> None:
    """Write a memory map to a file, as JSON or as a picture, by the extension of its name.

    inputs_to_protect   paths of files that must not be overwritten

    Raises AotcError: code "memory-map" for another extension, "output" if the file cannot be written.
    """
    require_memory_map_file(path, inputs_to_protect)
    text = json.dumps(memory_map, indent=2) + "\n" if path.suffix == ".json" else memory_map_svg(memory_map)
    with open_output_file(path, "output") as file:
        file.write(text.encode("utf-8"))


def memory_map_svg(memory_map: Mapping[str, Any]) -> str:
    """Return the text of an SVG picture of a memory map."""
    boxes, height = _region_boxes(memory_map)
    arena = memory_map["arena"]
    chart = draw_arena_chart(
        {"memory": {"peak": arena["bytes"], "buffers": arena["tensors"]}, "steps": memory_map["steps"]}
    )
    lower = f'<g transform="translate(0 {height})">{_svg_elements(chart)}</g>' if chart.boxes else ""
    whole = height + chart.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{whole:g}" viewBox="0 0 {WIDE} {whole:g}">'
        f"<style>{_STYLE}</style>{_svg_elements(Picture(WIDE, height, boxes))}{lower}</svg>\n"
    )


def _region_boxes(memory_map: Mapping[str, Any]) -> tuple[list[Box], float]:
    """Return the boxes of all regions, and the height that they take in pixels."""
    left, width = MARGIN, WIDE - 2 * MARGIN
    source = memory_map["program"] or "the plan"
    heading = f"{memory_map['model']} for {memory_map['target']}: memory by {source}"
    boxes, y = [Box(left, MARGIN / 2, width, _LINE_PIXELS, "text left head", heading)], MARGIN / 2 + 2 * _LINE_PIXELS
    for region in memory_map["regions"]:
        head = f"{region['name']}: {format_with_unit_prefix(region['bytes'], 'B')}"
        boxes.append(Box(left, y, width, _LINE_PIXELS, "text left head", head))
        y, x = y + _LINE_PIXELS, float(left)
        for item in region["items"]:
            share = item["bytes"] / region["bytes"]
            css = f"c{_COLOR_OF_KIND[item['kind']]}" if item["kind"] in _COLOR_OF_KIND else ""
            label = "\n".join(
                [f"{item['kind']} {item['name']}", f"{item['bytes']} bytes, {share:.1%}", *item.get("nodes", ())]
            )
            boxes.append(Box(x, y, width * share, _BAR_PIXELS, css, item["name"], label))
            x += width * share
        y += _BAR_PIXELS + 4
        largest = sorted(region["items"], key=lambda item: (-item["bytes"], item["name"]))[:_LISTED_ITEMS]
        for item in largest:
            nodes = ", ".join(item.get("nodes", ())[:3])
            text = f"{item['bytes']} B  {item['kind']} {item['name']}" + (f" ({nodes})" if nodes else "")
            boxes.append(Box(left + LEFT / 4, y, width - LEFT, _LINE_PIXELS, "text left", text))
            y += _LINE_PIXELS
        y += _LINE_PIXELS
    return boxes, y


def _svg_elements(picture: Picture) -> str:
    paths = "".join(f'<path class="{css}" d="{path}"/>' for path, css in picture.lines)
    return paths + "".join(map(_svg_box, picture.boxes))


def _svg_box(box: Box) -> str:
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    rectangle = f'<rect x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}"/>'
    middle = box.y + box.height / 2
    text = f'<text x="{box.anchor:.2f}" y="{middle:.2f}">{escape(box.short)}</text>' if box.short else ""
    return f'<g class="{box.css}">{title}{rectangle}{text}</g>'
