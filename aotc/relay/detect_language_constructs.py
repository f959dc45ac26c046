# SPDX-License-Identifier: Apache-2.0
"""Detection of the language constructs that a program uses, under Relay's names.

detect_feature(relay.add(x, x))                  # {Feature.fVar, Feature.fOp, Feature.fCall}
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum

from aotc.relay.graph_api import Expr, Function, Let, children, is_atom, node_kind, post_order


class Feature(IntEnum):
    """Language constructs: kinds of nodes, `fGraph` for shared nodes, `fLetRec` for recursive
    functions.
    """

    fVar = 0
    fGlobalVar = 1
    fConstant = 2
    fTuple = 3
    fTupleGetItem = 4
    fFunction = 5
    fOp = 6
    fCall = 7
    fLet = 8
    fIf = 9
    fRefCreate = 10
    fRefRead = 11
    fRefWrite = 12
    fConstructor = 13
    fMatch = 14
    fGraph = 15
    fLetRec = 16


_FEATURE_BY_NODE_KIND = {f.name[1:].lower(): f for f in Feature}


def detect_feature(
    a: Expr | Mapping[str, Function] | None, b: Expr | Mapping[str, Function] | None = None
) -> set[Feature]:
    """Return the language constructs used in an expression, in a module, or in both arguments."""
    features: set[Feature] = set()
    for program in (a, b):
        if isinstance(program, Mapping):
            for function in program.values():
                features.update(_features_used_in(function))
        elif program is not None:
            features.update(_features_used_in(program))
    return features


def _features_used_in(root: Expr) -> Iterator[Feature]:
    order = list(post_order(root))
    uses = Counter(c for node in order for c in children(node))
    for node in order:
        kind = node_kind(node).name.replace("_", "")
        yield _FEATURE_BY_NODE_KIND[kind]
        match node:
            case Let(var=var, value=Function() as value) if var in post_order(value):
                yield Feature.fLetRec
        if uses[node] > 1 and not is_atom(node):
            yield Feature.fGraph
