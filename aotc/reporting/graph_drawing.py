# SPDX-License-Identifier: Apache-2.0
"""Draw graphs and schedules as boxes in layers, with the changes of a pass highlighted in color.

before, after = nodes_to_draw(module), nodes_to_draw(FuseOps()(module))
# the picture before, without what is gone; the one after, what is new
left, right = draw_graphs_before_and_after(before, after)

Input: a module of functions, or a program of kernels.  Output: a `Picture`.  The time is
proportional to the number of edges.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

from aotc.ir import Op, Span, frozen
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var
from aotc.relay.graph_api import IRModule, children, post_order
from aotc.reporting.svg_charts import Box, Picture
from aotc.tir.plan.program import Program
from aotc.tir.plan.storage import Storage

#: Largest number of boxes of a picture.
MAX_BOXES: Final = 2000
#: Largest number of nodes of a graph that is drawn in full ...
MAX_FULLY_DRAWN_NODES: Final = 40
#: ... in larger graphs, chains of at least this many unchanged nodes are drawn as one box.
MIN_COLLAPSED_CHAIN_NODES: Final = 4
#: Largest number of nodes of a chain, or arguments of a call, that a description names.
MAX_DESCRIBED_ITEMS: Final = 30
#: Distances between boxes, and their size, in pixels.
LANE, LAYER, WIDTH, HEIGHT = 172, 48, 156, 24
#: Advice on pages for programs that are too large to be shown there.
DUMP_AS_TEXT_ADVICE: Final = "`aotc compile --dump-ir`, in Python the instrument dump_ir, writes programs as text"


@frozen
class DrawnNode:
    """A node of a graph to be drawn.

    label    text in its box
    text     full description
    key      nodes of two graphs with equal keys are considered equal
    inputs   positions of its input nodes, which precede it
    """

    label: str
    text: str
    key: Hashable
    inputs: tuple[int, ...]


def nodes_to_draw(module: Any) -> tuple[DrawnNode, ...]:
    """Return nodes to draw: the calls and inputs of a graph module, or the steps of a program, each
    after its inputs.
    """
    if isinstance(module, Program):
        return tuple(_program_nodes_to_draw(module))
    nodes: list[DrawnNode] = []
    for function in module.functions.values() if isinstance(module, IRModule) else ():
        places: dict[Expr, int] = {}
        for node in (*function.params, *post_order(function.body, lambda n: not isinstance(n, Function))):
            if node not in places and not isinstance(node, (Constant, Function, GlobalVar, Op)):
                inputs = tuple(places[c] for c in children(node) if c in places)
                label, text = _node_label(node), _node_description(node)
                places[node] = len(nodes)
                nodes.append(DrawnNode(label, text, (label, text), inputs))
    return tuple(nodes)


def _node_label(node: Expr) -> str:
    match node:
        case Var():
            return f"%{node.name_hint}"
        case Call(op=Op() as op):
            return op.name
        case Call(op=Function() as function):
            called = (n.op for n in post_order(function.body) if isinstance(n, Call))
            return " + ".join(op.name for op in called if isinstance(op, Op))
        case Call(op=GlobalVar() as function):
            return f"@{function.name_hint}"
        case TupleGetItem():
            return f"field {node.index}"
        case _:
            return type(node).__name__.lower()


def _node_description(node: Expr) -> str:
    lines = [_node_label(node)] if node.checked_type is None else [_node_label(node), str(node.checked_type)]
    if isinstance(node, Call) and node.attrs is not None and isinstance(node.op, Op):
        lines += [f"{name} = {value}" for name, value in node.attrs.non_default_fields().items()]
    if isinstance(node, (Call, Tuple)):
        lines += [f"constant {c.checked_type}" for c in children(node)[:MAX_DESCRIBED_ITEMS] if isinstance(c, Constant)]
    return "\n".join([*lines, *_span_origin_lines(node.span)])


def _span_origin_lines(span: Span | None) -> list[str]:
    return [f"from {origin}" for origin in span.all_origins()[:MAX_DESCRIBED_ITEMS]] if span is not None else []


def _program_nodes_to_draw(program: Program) -> Iterator[DrawnNode]:
    """Yield nodes to draw for the inputs of a program and for its kernel calls."""
    written: dict[Storage, int] = {}
    for storage in program.inputs:
        text = f"{storage.dtype}{[*storage.shape]}"
        written[storage] = len(written)
        yield DrawnNode(storage.name, text, (storage.name, text), ())
    for place, step in enumerate(program.steps, len(written)):
        views = (
            f"{v.storage.kind} {v.storage.name}: {v.storage.dtype}{[*v.storage.shape]}"
            for v in step.args[:MAX_DESCRIBED_ITEMS]
        )
        lines = [step.kernel.name, *views, f"{step.kernel.macs} multiply-adds"]
        text = "\n".join(
            [*lines, *(["shared among threads"] if step.kernel.team else []), *_span_origin_lines(step.span)]
        )
        inputs = tuple(dict.fromkeys(written[v.storage] for v in step.inputs if v.storage in written))
        written |= {view.storage: place for view in step.outputs}
        yield DrawnNode(step.kernel.name.removeprefix(f"{program.name}_"), text, (text, step.kernel), inputs)


# --- what differs


def draw_graphs_before_and_after(before: Sequence[DrawnNode], after: Sequence[DrawnNode]) -> tuple[Picture, Picture]:
    """Draw the graph before a pass, with removed nodes in red, and the graph after it, with new
    nodes in green.
    """
    return _draw_graph(before, _positions_missing_in_other_graph(before, after), "gone"), _draw_graph(
        after, _positions_missing_in_other_graph(after, before), "new"
    )


def _positions_missing_in_other_graph(nodes: Sequence[DrawnNode], other_nodes: Sequence[DrawnNode]) -> set[int]:
    """Return the positions of nodes that the other graph lacks, or has less often.

    Common prefixes and suffixes of the two node sequences are matched first.
    """
    keys, theirs = [n.key for n in nodes], [n.key for n in other_nodes]
    start = _common_prefix_length(keys, theirs)
    end = _common_prefix_length(keys[start:][::-1], theirs[start:][::-1])
    left, positions = Counter(theirs[start : len(theirs) - end]), set()
    for place, key in enumerate(keys[start : len(keys) - end], start):
        left[key] -= 1
        if left[key] < 0:
            positions.add(place)
    return positions


def _common_prefix_length(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the length of the common prefix of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _collapse_unchanged_chains(nodes: Sequence[DrawnNode], changed: set[int]) -> tuple[list[DrawnNode], set[int]]:
    """Shorten a graph to be drawn: replace each long chain of unchanged nodes by one node.

    Return the new nodes and the positions of changed nodes among them.
    """
    uses = Counter(k for node in nodes for k in node.inputs)
    heads = list(range(len(nodes)))
    for place, node in enumerate(nodes):
        follows = len(node.inputs) == 1 and uses[node.inputs[0]] == 1 and not {place, *node.inputs} & changed
        heads[place] = heads[node.inputs[0]] if follows else place
    sizes, members = Counter(heads), dict[int, list[DrawnNode]]()
    for place, head in enumerate(heads):
        heads[place] = head if sizes[head] >= MIN_COLLAPSED_CHAIN_NODES else place
        members.setdefault(heads[place], []).append(nodes[place])
    new_nodes, places = list[DrawnNode](), dict[int, int]()
    for head, run in members.items():
        node, inputs = nodes[head], tuple(places[heads[k]] for k in nodes[head].inputs)
        places[head] = len(new_nodes)
        label = node.label if len(run) == 1 else f"{len(run)} × {run[0].label} … {run[-1].label}"
        short = (" ".join(n.text.splitlines()[:2]) for n in run[:MAX_DESCRIBED_ITEMS])
        text = node.text if len(run) == 1 else "\n".join(short)
        new_nodes.append(DrawnNode(label, text, node.key, inputs))
    return new_nodes, {places[k] for k in changed}


# --- layout


def _draw_graph(nodes: Sequence[DrawnNode], changed: set[int], changed_css_class: str) -> Picture:
    """Draw a graph from top to bottom, with boxes of the given color class for changed nodes."""
    if len(nodes) > MAX_FULLY_DRAWN_NODES:
        nodes, changed = _collapse_unchanged_chains(nodes, changed)
    if len(nodes) > MAX_BOXES:
        return Picture(note=f"{len(nodes)} boxes are too many to draw; {DUMP_AS_TEXT_ADVICE}")
    layers = _layer_of_each_node(nodes)
    lanes = _column_of_each_node(nodes, layers)
    spots = [(20 + LANE * lanes[k], 20 + LAYER * layer) for k, layer in enumerate(layers)]
    boxes = [
        Box(*spot, WIDTH, HEIGHT, changed_css_class if k in changed else "", node.label, node.text, 4)
        for k, (node, spot) in enumerate(zip(nodes, spots, strict=True))
    ]
    lines = [(_edge_svg_path(spots[k], spot), "") for node, spot in zip(nodes, spots, strict=True) for k in node.inputs]
    size = 20 + LANE * (1 + max(lanes.values(), default=0)), 20 + LAYER * (1 + max(layers, default=0))
    return Picture(*size, boxes, lines, focus=spots[min(changed)] if changed else (0, 0))


def _edge_svg_path(source: tuple[float, float], target: tuple[float, float]) -> str:
    """Return the SVG path of an edge: straight down from its source, then a curve to its target
    just above it.
    """
    x, y, to, end = source[0] + WIDTH / 2, source[1] + HEIGHT, target[0] + WIDTH / 2, target[1]
    return f"M{x} {y}V{end - 22}C{x} {end - 8} {to} {end - 14} {to} {end}"


def _layer_of_each_node(nodes: Sequence[DrawnNode]) -> list[int]:
    """Return the layer of each node, below its inputs; graph inputs are placed directly above their
    first use.
    """
    layers = [0] * len(nodes)
    first: dict[int, int] = {}
    for place, node in enumerate(nodes):
        layers[place] = 1 + max((layers[k] for k in node.inputs), default=-1)
        for k in node.inputs:
            first[k] = min(first.get(k, layers[place]), layers[place])
    return [n if node.inputs else first.get(k, 1) - 1 for k, (n, node) in enumerate(zip(layers, nodes, strict=True))]


def _column_of_each_node(nodes: Sequence[DrawnNode], layers: Sequence[int]) -> dict[int, int]:
    """Assign a column to each node, reserved down to its last use, so that no edge crosses a box."""
    last = list(layers)
    for place, node in enumerate(nodes):
        for k in node.inputs:
            last[k] = max(last[k], layers[place])
    lanes, free, ends, count = dict[int, int](), set[int](), dict[int, list[int]](), 0
    for place in sorted(range(len(nodes)), key=lambda k: layers[k]):
        free.update(ends.pop(layers[place], ()))
        input_lanes = {lanes[k] for k in nodes[place].inputs} & free
        lane = lanes[place] = min(input_lanes or free or {count})
        count = max(count, lane + 1)
        free.discard(lane)
        ends.setdefault(max(last[place], layers[place] + 1), []).append(lane)
    return lanes
