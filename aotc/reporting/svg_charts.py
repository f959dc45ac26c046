# SPDX-License-Identifier: Apache-2.0
"""Pictures for a page of HTML, which become SVG there: the arena over time, and kernels on a roofline.

arena_picture(model.metadata)                  # which tensors lie where in memory, step by step
roofline_picture(profile("build/net"))         # how fast kernels are, and how fast they could be

Places and sizes are in pixels, y downwards.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aotc.ir import frozen
from aotc.reporting.text_tables import unit
from aotc.tir.target import get_target

#: The size of a diagram, what is left for the names of its axes, and at the other sides.
WIDE, HIGH, LEFT, BOTTOM, MARGIN = 1100, 460, 90, 40, 24
#: At most so much of a picture with a focus is shown at first.
SEEN: Final = (760, 460)
COLORS: Final = 6
#: The width of a character, on average.
CHARACTER: Final = 6.3
#: So many nodes of the model are told of a kernel.
NODES: Final = 15


@frozen
class Box:
    """A rectangle with its label inside, as far as there is room.

    css     its classes
    title   what is told when the mouse points at it
    round   radius of the corners; half of the width for a circle
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
        """The label, cut to the width; "" in boxes without room for text."""
        room = int((self.width - 6) / CHARACTER)
        if room < 3 or self.height < 12:
            return ""
        return self.label if len(self.label) <= room else self.label[: room - 1] + "…"

    @property
    def anchor(self) -> float:
        """Where the label begins, has its middle, or ends."""
        part = 0.03 if "left" in self.css else 0.97 if "right" in self.css else 0.5
        return self.x + part * self.width


@frozen
class Picture:
    """What is drawn, lines first.

    lines   paths of SVG, with their classes
    focus   a place around which the picture is shown at first; None for the whole picture
    note    said above the picture, or instead of one that cannot be drawn
    """

    width: float = 0
    height: float = 0
    boxes: Sequence[Box] = ()
    lines: Sequence[tuple[str, str]] = ()
    focus: tuple[float, float] | None = None
    note: str = ""

    @property
    def view(self) -> tuple[float, float, float, float]:
        """What is seen at first, as left, top, width and height."""
        if self.focus is None:
            return 0, 0, self.width, self.height
        width, height = min(SEEN[0], self.width), min(SEEN[1], self.height)
        left = max(0, min(self.focus[0] - width / 2, self.width - width))
        top = max(0, min(self.focus[1] - height / 2, self.height - height))
        return left, top, *SEEN


@frozen
class Axis:
    """Values from `low` to `high` along `length` pixels from `start` on; even, or by a scale such as math.log10."""

    low: float
    high: float
    start: float
    length: float
    scale: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        low, high = self.scale(self.low), self.scale(self.high)
        return self.start + self.length * (self.scale(value) - low) / (high - low)

    def ticks(self) -> list[float]:
        """Values to write at the axis: powers of ten, or up to eleven round numbers."""
        if self.scale is not float:
            return [10.0**k for k in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        step = 10.0 ** math.floor(math.log10(self.high))
        step *= next(part for part in (0.1, 0.2, 0.5, 1) if self.high / (step * part) <= 11)
        return [step * k for k in range(int(self.high / step) + 1)]


def _axes(x: Axis, y: Axis, names: tuple[str, str], units: tuple[str, str]) -> tuple[list[Box], list[tuple[str, str]]]:
    """The lines at round values, with these values and the names of the axes."""
    boxes = [Box(x.start + x.length / 2 - 250, HIGH - 20, 500, 20, "text", names[0])]
    boxes.append(Box(0, 0, 500, 20, "text left", names[1]))
    lines = []
    for value in x.ticks():
        boxes.append(Box(x(value) - 40, HIGH - BOTTOM, 80, 20, "text", unit(value, units[0])))
        lines.append((f"M{x(value)} {y.start}v{y.length}", "grid"))
    for value in y.ticks():
        boxes.append(Box(0, y(value) - 10, LEFT - 4, 20, "text right", unit(value, units[1])))
        lines.append((f"M{x.start} {y(value)}h{x.length}", "grid"))
    return boxes, lines


def arena_picture(metadata: Mapping[str, Any]) -> Picture:
    """The memory of a run over the steps of its schedule: a rectangle for each tensor, from its first step to its last.

    metadata    of a project, as `aotc compile` writes it
    """
    memory, steps = metadata["memory"], metadata["steps"]
    if not memory["buffers"] or not memory["peak"]:
        return Picture(note="no tensor lies in the arena")
    x = Axis(0, len(steps), LEFT, WIDE - LEFT - MARGIN)
    y = Axis(0, memory["peak"], HIGH - BOTTOM, BOTTOM + MARGIN - HIGH)
    boxes, lines = _axes(x, y, ("step of the schedule", "place in the arena"), ("", "B"))
    for k, buffer in enumerate(memory["buffers"]):
        first, last = buffer["first_step"], buffer["last_step"]
        top, size = y(buffer["offset"] + buffer["bytes"]), unit(buffer["bytes"], "B")
        made, used = steps[first]["kernel"], steps[last]["kernel"]
        lives = f"lives from step {first} ({made}) to step {last} ({used})"
        title = f"{buffer['name']}\n{size} at byte {buffer['offset']}\n{lives}"
        width, height = x(last + 1) - x(first), y(buffer["offset"]) - top
        boxes.append(Box(x(first), top, width, height, f"c{k % COLORS}", f"{buffer['name']} {size}", title))
    note = "A rectangle is a tensor: where it lies in the memory of a run, and from which step to which it is needed."
    return Picture(WIDE, HIGH, boxes, lines, note=note)


def roofline_picture(profile: Mapping[str, Any]) -> Picture:
    """Kernels as circles, by operations for each byte moved and operations in a second, the area by time.

    profile    as `aotc.measuring.profile` gives it

    The solid line is the peak of the machine and its memory as they were measured, the dashed one the memory of the
    target's model at the clock that the peak tells.  Kernels that only move data stand at the left edge, as high as if
    they computed what the axis says there.
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
    boxes, lines = _axes(x, y, ("operations for each byte", "operations in a second"), ("", ""))
    rates = f"solid: measured {unit(peak, 'FLOP/s')}, {unit(bandwidth, 'B/s')}; dashed: model of {target.name}"
    boxes.append(Box(WIDE - MARGIN - 600, 0, 600, 20, "text right", f"{rates}, {unit(modeled, 'B/s')}"))
    for rate, css in ((bandwidth, "roof"), (modeled, "roof dashed")):
        lines.append((f"M{x(x.low)} {y(x.low * rate)}L{x(peak / rate)} {y(peak)}L{x(x.high)} {y(peak)}", css))
    whole, named = sum(row["milliseconds"] for row in rows) or 1, list[Box]()
    for k, (row, (ops, speed)) in enumerate(zip(rows, spots, strict=True)):
        share = row["milliseconds"] / whole
        radius = max(3, 60 * math.sqrt(share))
        name = row["kernel"].removeprefix(f"{profile['model']}_")
        times = f"{row['milliseconds']:.3f} ms ({share:.1%}) in {row['calls']} calls"
        rates = f"{row['gflops']:.1f} GFLOP/s, {row['gbytes_per_s']:.1f} GB/s; {row['of_roofline']:.0%} of the roof"
        title = "\n".join([row["kernel"], times, rates, *row["nodes"][:NODES]])
        left, top = x(ops) - radius, y(speed) - radius
        boxes.append(Box(left, top, 2 * radius, 2 * radius, f"c{k % COLORS}", "", title, radius))
        label = Box(x(ops) + radius, y(speed) - 10, 180, 20, "text left", name)
        named += [label] if all(abs(label.x - b.x) > 180 or abs(label.y - b.y) > 12 for b in named) else []
    note = (
        "A circle is a kernel, its area the time it takes; those that only move data stand at the left edge. "
        "Winograd's convolutions count the multiplications of the definition, and may stand above the line."
    )
    return Picture(WIDE, HIGH, [*boxes, *named], lines, note=note)
