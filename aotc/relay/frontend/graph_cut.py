# SPDX-License-Identifier: Apache-2.0
"""Find the subgraph of a model between given tensors: the nodes that compute given outputs from
given inputs.

nodes = [Links(("x",), ("a",)), Links(("a",), ("b",)), Links(("b",), ("y",))]
part = select_nodes(nodes, inputs={"x"}, outputs=["y"], before=["b"])
part.nodes, part.inputs                # [2], ["b"]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aotc.ir import AotcError, frozen, nearest

#: Diagnostic code of errors about cutting a model.
CODE = "cut"


@frozen
class Links:
    """A node of a model graph as the names of the tensors that it reads and of the tensors that it
    computes; "" marks an omitted input or output.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@frozen
class Part:
    """A subgraph: the indices of its nodes, in the order of the model, and the names of the tensors
    that become its inputs.
    """

    nodes: list[int]
    inputs: list[str]


def select_nodes(
    nodes: Sequence[Links], inputs: Collection[str], outputs: Sequence[str], before: Sequence[str]
) -> Part:
    """Find the nodes that compute the tensors `outputs`, searching backwards up to the tensors
    `before` and the inputs of the graph.

    inputs    names of the inputs of the whole graph
    outputs   names of the tensors that the subgraph computes
    before    names of the tensors at which the backward search stops: they become inputs of the
              subgraph

    Raises AotcError (code "cut") for a name that no node computes, and for a tensor of `before`
    that no output depends on.
    """
    producers = {name: k for k, node in enumerate(nodes) for name in node.writes if name}
    _require_known([*outputs, *before], [*producers, *inputs])
    kept: set[int] = set()
    reached: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in before or name not in producers or producers[name] in kept:
            continue
        kept.add(producers[name])
        waiting += [read for read in nodes[producers[name]].reads if read]
    if useless := [name for name in before if name not in reached or name in outputs]:
        text = f"the outputs {_listed(outputs)} do not depend on the tensors {_listed(useless)} through any node"
        raise AotcError(CODE, text, hint="leave these out of cut_before, or name outputs after them in cut_after")
    return Part(sorted(kept), [*(name for name in inputs if name in reached and name not in before), *before])


def _require_known(names: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in dict.fromkeys(names) if name not in set(known)]:
        hint = nearest(unknown[0], known) or f"tensors: {_listed(known)}"
        raise AotcError(CODE, f"no node of the model computes a tensor called {_listed(unknown)}", hint=hint)


#: Largest number of tensor names that a message lists.
_LISTED = 8


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more
