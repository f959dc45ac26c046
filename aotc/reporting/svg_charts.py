# SPDX-License-Identifier: Apache-2.0
"""Charts for an HTML page, rendered as SVG: the arena over time, and kernels on a roofline.

draw_arena_chart(model.metadata)               # which tensors lie where in memory, step by step
draw_roofline_chart(profile("build/net"))      # how fast kernels are, and how fast they could be

Positions and sizes are in pixels, with y pointing down.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aotc.ir import frozen
from aotc.reporting.text_tables import format_with_unit_prefix
from aotc.tir.target import get_target

#: Size of a chart, and its margins: at the left and bottom for labels of axes, and at the other sides.
WIDE, HIGH, LEFT, BOTTOM, MARGIN = 1100, 460, 90, 40, 24
#: Largest width and height of the initial view of a picture with a focus.
MAX_INITIAL_VIEW_PIXELS: Final = (760, 460)
COLOR_COUNT: Final = 6
#: Average width of a character.
MEAN_CHARACTER_PIXELS: Final = 6.3
#: Largest number of model nodes in the tooltip of a kernel.
MAX_TOOLTIP_NODES: Final = 15


@frozen
class Box:
    """A rectangle with a label inside, if there is room.

    css     CSS classes
    title   tooltip text
    round   corner radius; half of the width for a circle
    """

    x: float
    y: float
    width: float
    height: float
    css: str = ""
    label: str = ""
    title: str = ""
    round: float = 0

    @property
    def short(self) -> str:
        """The label of the box, cut to its width; "" if the box is too small for text."""
        room = int((self.width - 6) / MEAN_CHARACTER_PIXELS)
        if room < 3 or self.height < 12:
            return ""
        return self.label if len(self.label) <= room else self.label[: room - 1] + "…"

    @property
    def anchor(self) -> float:
        """The x coordinate of the label's anchor: its left end, center or right end."""
        part = 0.03 if "left" in self.css else 0.97 if "right" in self.css else 0.5
        return self.x + part * self.width


@frozen
class Picture:
    """A chart to be drawn, lines first.

    lines   SVG paths with their CSS classes
    focus   position around which the picture is shown initially; None: the whole picture
    note    text above the picture, or instead of one that cannot be drawn
    """

    width: float = 0
    height: float = 0
    boxes: Sequence[Box] = ()
    lines: Sequence[tuple[str, str]] = ()
    focus: tuple[float, float] | None = None
    note: str = ""

    @property
    def view(self) -> tuple[float, float, float, float]:
        """The part of the picture that is shown initially: left, top, width and height in pixels."""
        if self.focus is None:
            return 0, 0, self.width, self.height
        width, height = min(MAX_INITIAL_VIEW_PIXELS[0], self.width), min(MAX_INITIAL_VIEW_PIXELS[1], self.height)
        left = max(0, min(self.focus[0] - width / 2, self.width - width))
        top = max(0, min(self.focus[1] - height / 2, self.height - height))
        return left, top, *MAX_INITIAL_VIEW_PIXELS


@frozen
class Axis:
    """An axis of a chart that maps values from `low` to `high` to `length` pixels from `start` on.

    scale   transformation of values, such as math.log10; linear by default
    """

    low: float
    high: float
    start: float
    length: float
    scale: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """Return the pixel position of a value on the axis."""
        low, high = self.scale(self.low), self.scale(self.high)
        return self.start + self.length * (self.scale(value) - low) / (high - low)

    def tick_values(self) -> list[float]:
        """Return the values of tick marks: powers of ten on a logarithmic axis, else up to eleven
        round numbers.
        """
        if self.scale is not float:
            return [10.0**k for k in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        step = 10.0 ** math.floor(math.log10(self.high))
        step *= next(part for part in (0.1, 0.2, 0.5, 1) if self.high / (step * part) <= 11)
        return [step * k for k in range(int(self.high / step) + 1)]


def _axis_labels_and_grid_lines(
    x: Axis, y: Axis, names: tuple[str, str], units: tuple[str, str]
) -> tuple[list[Box], list[tuple[str, str]]]:
    """Return labels and grid lines of two axes: their names, and the values at tick marks."""
    boxes = [Box(x.start + x.length / 2 - 250, HIGH - 20, 500, 20, "text", names[0])]
    boxes.append(Box(0, 0, 500, 20, "text left", names[1]))
    lines = []
    for value in x.tick_values():
        boxes.append(Box(x(value) - 40, HIGH - BOTTOM, 80, 20, "text", format_with_unit_prefix(value, units[0])))
        lines.append((f"M{x(value)} {y.start}v{y.length}", "grid"))
    for value in y.tick_values():
        boxes.append(Box(0, y(value) - 10, LEFT - 4, 20, "text right", format_with_unit_prefix(value, units[1])))
        lines.append((f"M{x.start} {y(value)}h{x.length}", "grid"))
    return boxes, lines


def draw_arena_chart(metadata: Mapping[str, Any]) -> Picture:
    """Draw the memory of a run over the steps of its schedule: one rectangle per tensor, over its
    live range.

    metadata    metadata of a project, as `aotc compile` writes them
    """
    memory, steps = metadata["memory"], metadata["steps"]
    if not memory["buffers"] or not memory["peak"]:
        return Picture(note="no tensor lies in the arena")
    x = Axis(0, len(steps), LEFT, WIDE - LEFT - MARGIN)
    y = Axis(0, memory["peak"], HIGH - BOTTOM, BOTTOM + MARGIN - HIGH)
    boxes, lines = _axis_labels_and_grid_lines(x, y, ("step of the schedule", "place in the arena"), ("", "B"))
    for k, buffer in enumerate(memory["buffers"]):
        first, last = buffer["first_step"], buffer["last_step"]
        top, size = y(buffer["offset"] + buffer["bytes"]), format_with_unit_prefix(buffer["bytes"], "B")
        producer, used = steps[first]["kernel"], steps[last]["kernel"]
        lives = f"lives from step {first} ({producer}) to step {last} ({used})"
        title = f"{buffer['name']}\n{size} at byte {buffer['offset']}\n{lives}"
        width, height = x(last + 1) - x(first), y(buffer["offset"]) - top
        boxes.append(Box(x(first), top, width, height, f"c{k % COLOR_COUNT}", f"{buffer['name']} {size}", title))
    note = "A rectangle is a tensor: where it lies in the memory of a run, and from which step to which it is needed."
    return Picture(WIDE, HIGH, boxes, lines, note=note)


def draw_roofline_chart(profile: Mapping[str, Any]) -> Picture:
    """Draw kernels as circles by operations per byte (x) and operations per second (y), with areas
    by time.

    profile    result of `aotc.measuring.profile`

    The solid line is the measured roofline of the machine, the dashed line uses the memory
    bandwidth of the target's cost model.  Kernels that only move data are placed at the left edge,
    at the height that their bandwidth corresponds to there.
    """
    peak, bandwidth = (1e9 * profile["machine"][key] for key in ("peak_gflops", "bandwidth_gbytes_per_s"))
    target = get_target(profile["target"])
    rows = [row for row in profile["kernels"] if row["bytes"]]
    modeled = target.memory_rate * peak / (target.fma_bytes / 2)
    intensities = [2 * row["macs"] / row["bytes"] for row in rows]
    corners = peak / bandwidth, peak / modeled
    low, high = min([*filter(None, intensities), *corners]) / 4, max([*intensities, *corners]) * 4
    x = Axis(low, high, LEFT, WIDE - LEFT - MARGIN, math.log10)
    spots = [(ops or low, (ops or low) * 1e9 * row["gbytes_per_s"]) for ops, row in zip(intensities, rows, strict=True)]
    speeds = [peak, low * bandwidth, low * modeled, *(speed for _, speed in spots)]
    y = Axis(min(speeds) / 2, 2 * max(speeds), HIGH - BOTTOM, BOTTOM + MARGIN - HIGH, math.log10)
    boxes, lines = _axis_labels_and_grid_lines(x, y, ("operations for each byte", "operations in a second"), ("", ""))
    rates = (
        f"solid: measured {format_with_unit_prefix(peak, 'FLOP/s')}, "
        f"{format_with_unit_prefix(bandwidth, 'B/s')}; dashed: model of {target.name}"
    )
    boxes.append(
        Box(WIDE - MARGIN - 600, 0, 600, 20, "text right", f"{rates}, {format_with_unit_prefix(modeled, 'B/s')}")
    )
    for rate, css in ((bandwidth, "roof"), (modeled, "roof dashed")):
        lines.append((f"M{x(x.low)} {y(x.low * rate)}L{x(peak / rate)} {y(peak)}L{x(x.high)} {y(peak)}", css))
    whole, named = sum(row["milliseconds"] for row in rows) or 1, list[Box]()
    for k, (row, (ops, speed)) in enumerate(zip(rows, spots, strict=True)):
        share = row["milliseconds"] / whole
        radius = max(3, 60 * math.sqrt(share))
        name = row["kernel"].removeprefix(f"{profile['model']}_")
        times = f"{row['milliseconds']:.3f} ms ({share:.1%}) in {row['calls']} calls"
        rates = f"{row['gflops']:.1f} GFLOP/s, {row['gbytes_per_s']:.1f} GB/s; {row['of_roofline']:.0%} of the roof"
        title = "\n".join([row["kernel"], times, rates, *row["nodes"][:MAX_TOOLTIP_NODES]])
        left, top = x(ops) - radius, y(speed) - radius
        boxes.append(Box(left, top, 2 * radius, 2 * radius, f"c{k % COLOR_COUNT}", "", title, radius))
        label = Box(x(ops) + radius, y(speed) - 10, 180, 20, "text left", name)
        named += [label] if all(abs(label.x - b.x) > 180 or abs(label.y - b.y) > 12 for b in named) else []
    note = (
        "A circle is a kernel, its area the time it takes; those that only move data stand at the left edge. "
        "Winograd's convolutions count the multiplications of the definition, and may stand above the line."
    )
    return Picture(WIDE, HIGH, [*boxes, *named], lines, note=note)
