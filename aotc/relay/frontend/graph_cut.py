# SPDX-License-Identifier: Apache-2.0
"""Find the subgraph of a model between given tensors: the nodes that compute given outputs from
given inputs.

nodes = [NodeTensors(("x",), ("a",)), NodeTensors(("a",), ("b",)), NodeTensors(("b",), ("y",))]
part = select_nodes_between_tensors(nodes, inputs={"x"}, outputs=["y"], stop_tensors=["b"])
part.nodes, part.inputs                # [2], ["b"]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aotc.ir import AotcError, did_you_mean_hint, frozen, option_text

#: Diagnostic code of errors about cutting a model.
CUT_ERROR_CODE = "cut"


@frozen
class NodeTensors:
    """A node of a model graph as the names of the tensors that it reads and of the tensors that it
    computes; "" marks an omitted input or output.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@frozen
class Subgraph:
    """A subgraph: the indices of its nodes, in the order of the model, and the names of the tensors
    that become its inputs.
    """

    nodes: list[int]
    inputs: list[str]


def select_nodes_between_tensors(
    nodes: Sequence[NodeTensors], inputs: Collection[str], outputs: Sequence[str], stop_tensors: Sequence[str]
) -> Subgraph:
    """Find the nodes that compute the tensors `outputs`, searching backwards up to the tensors
    `stop_tensors` and the inputs of the graph.

    inputs          names of the inputs of the whole graph
    outputs         names of the tensors that the subgraph computes
    stop_tensors    names of the tensors at which the backward search stops: they become inputs of the
                    subgraph

    Raises AotcError (code "cut") for a name that no node computes, and for a tensor of
    `stop_tensors` that no output depends on.
    """
    producers = {name: k for k, node in enumerate(nodes) for name in node.writes if name}
    _require_known_tensors([*outputs, *stop_tensors], [*producers, *inputs])
    node_indices: set[int] = set()
    reached: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in stop_tensors or name not in producers or producers[name] in node_indices:
            continue
        node_indices.add(producers[name])
        waiting += [read for read in nodes[producers[name]].reads if read]
    if useless := [name for name in stop_tensors if name not in reached or name in outputs]:
        text = (
            f"the outputs {_abbreviated_quoted_name_list(outputs)} do not depend on the "
            f"tensors {_abbreviated_quoted_name_list(useless)} through any node"
        )
        hint = "leave these out of " + option_text("cut_before") + ", or name outputs after them in "
        raise AotcError(CUT_ERROR_CODE, text, hint=hint + option_text("cut_after"))
    return Subgraph(
        sorted(node_indices),
        [*(name for name in inputs if name in reached and name not in stop_tensors), *stop_tensors],
    )


def _require_known_tensors(names: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in dict.fromkeys(names) if name not in set(known)]:
        hint = did_you_mean_hint(unknown[0], known) or f"tensors: {_abbreviated_quoted_name_list(known)}"
        raise AotcError(
            CUT_ERROR_CODE,
            f"no node of the model computes a tensor called {_abbreviated_quoted_name_list(unknown)}",
            hint=hint,
        )


#: Largest number of tensor names that a message lists.
_MAX_LISTED_NAMES = 8


def _abbreviated_quoted_name_list(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    return ", ".join(map(repr, names[:_MAX_LISTED_NAMES])) + suffix
