# SPDX-License-Identifier: Apache-2.0
"""Save programs, expressions and types as JSON that contains their Relay text, and load them.

load_json(save_json(mod))                        # a program that is structurally equal
"""

import json
from dataclasses import asdict
from typing import Any, Final

from aotc.ir import AotcError, Span, Type
from aotc.relay.graph_api import Expr, IRModule, Var
from aotc.relay.text.literal_printer import TEXT_FORMAT_VERSION, type_text
from aotc.relay.text.parser import parse, parse_expr
from aotc.relay.text.printer import astext
from aotc.relay.text.tvm_json_graph import load_tvm_json_graph

_CLASS_BY_JSON_KIND: Final[dict[str, Any]] = {"module": IRModule, "expr": Expr, "type": Type}


def save_json(node: IRModule | Expr | Type | Span) -> str:
    """Return JSON text for a module, expression, type or span, readable by `load_json`.

    Raise AotcError (code "text") for an object of another type.
    """
    if isinstance(node, Span):
        return json.dumps({"relay": TEXT_FORMAT_VERSION, "kind": "span", "text": asdict(node)})
    kind = next((name for name, cls in _CLASS_BY_JSON_KIND.items() if isinstance(node, cls)), None)
    if kind is None:
        raise AotcError(
            "text", f"a {type(node).__name__} cannot be written as JSON", hint="only modules, expressions and types can"
        )
    text = type_text(node) if isinstance(node, Type) else astext(node)
    return json.dumps({"relay": TEXT_FORMAT_VERSION, "kind": kind, "text": text})


def load_json(text: str) -> Any:
    """Return the object that `save_json` wrote, or that TVM saved as a JSON graph of nodes.

    TVM's format is described in `aotc.relay.text.tvm_json_graph`. Raise AotcError (code "text") for
    other JSON, and the errors of `aotc.relay.parse` for damaged Relay text.
    """
    try:
        data = json.loads(text)
        if "nodes" in data:
            return load_tvm_json_graph(data)
        kind, body = data["kind"], data["text"]
    except (json.JSONDecodeError, TypeError, KeyError) as error:
        raise AotcError("text", "no JSON of a program", hint="`save_json` writes it") from error
    if kind == "module":
        return parse(body)
    if kind == "span":
        return _span_from_json(body)
    if kind == "expr":
        return parse_expr(body)
    variable = parse_expr(f"free_var %x: {body};\n%x")
    assert isinstance(variable, Var)
    return variable.annotation


def _span_from_json(fields: Any) -> Span:
    try:
        return Span(**{**fields, "merged": tuple(map(_span_from_json, fields["merged"]))})
    except (TypeError, KeyError) as error:
        raise AotcError("text", "no JSON of a span", hint="`save_json` writes it") from error
