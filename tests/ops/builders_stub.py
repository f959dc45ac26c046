# SPDX-License-Identifier: Apache-2.0
"""Generates the type stubs of the functions that build operator calls.

python -m tests.ops.builders_stub         # writes aotc/relay/op/builders.pyi and aotc/relay/op/qnn/builders.pyi anew
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aotc.relay.op import builders
from aotc.relay.op.qnn import builders as quantized

STUBS = {Path(module.__file__).with_suffix(".pyi"): module for module in (builders, quantized)}
WIDTH = 120
HEAD = """# SPDX-License-Identifier: Apache-2.0
# Written by `python -m tests.ops.builders_stub` from the table of operators.
from collections.abc import Sequence

from aotc.ir.dimensions import SymDim
from aotc.relay.expr import {}
"""


def parameters(signature: inspect.Signature) -> Iterator[str]:
    by_name = False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not by_name:
            by_name = True
            yield "*"
        yield f"{p.name}: {p.annotation}" + ("" if p.default is p.empty else f" = {p.default!r}".replace("'", '"'))


def head(name: str, signature: inspect.Signature) -> str:
    """On one line, or the parameters on one of their own, or each on its own."""
    given, result = list(parameters(signature)), f") -> {signature.return_annotation}:"
    line = f"def {name}({', '.join(given)}{result}"
    if len(line) <= WIDTH:
        return line
    inner = f"    {', '.join(given)}"
    if len(inner) <= WIDTH:
        return f"def {name}(\n{inner}\n{result}"
    return f"def {name}(\n" + "".join(f"    {p},\n" for p in given) + result


def definition(name: str, function: Callable[..., Any]) -> str:
    doc = inspect.getdoc(function) or ""
    text = doc if "\n" not in doc else f"{doc}\n"
    quoted = textwrap.indent(f'"""{text}"""', "    ", lambda line: bool(line.strip()))
    return f"{head(name, inspect.signature(function))}\n{quoted}\n"


def render(module: Any) -> str:
    found = [definition(name, getattr(module, name)) for name in module.__all__]
    names = [
        name
        for name in ("Call", "Expr", "Tuple", "TupleGetItem")
        if any(f"-> {name}" in d or name == "Expr" for d in found)
    ]
    return "\n".join([HEAD.format(", ".join(names)), *found])


if __name__ == "__main__":
    for stub, source in STUBS.items():
        stub.write_text(render(source), encoding="utf-8")
