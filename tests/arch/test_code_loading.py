# SPDX-License-Identifier: Apache-2.0
"""Functions that can execute code from data (pickle, eval, dlopen, ...) are called only where docs/security.md says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    ("aotc/ir/frozen_dataclass.py", "exec"),  # a method made of the names of a record's fields
    ("aotc/measuring/competitors.py", "exec"),  # `aotc bench`: the module that pnnx writes
    ("aotc/measuring/tuning.py", "pickle.loads"),  # jobs on a worker of the user's cluster
    ("codegen/aotc_codegen/c/template_rendering.py", "marshal.loads"),  # bytecode of the package's own templates
    ("aotc/tir/interpreter.py", "exec"),  # kernels in Python of our own writing
}
BUILTINS = {"eval", "exec", "__import__"}
MODULES = {"pickle", "marshal", "shelve", "yaml", "cloudpickle", "dill", "joblib"}
READERS = {"load", "loads", "Unpickler", "open", "full_load", "unsafe_load"}
OTHERS = {"torch.load", "torch.jit.load", "torch.export.load", "sympy.sympify", "torch.ops.load_library"}


def dotted(node: ast.expr) -> str:
    """`a.b.c`; what follows anything else than a name has no beginning."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def dangerous(text: str) -> Iterator[str]:
    """The calls in a source that may run what they read."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield f"from {node.module}"
        if not isinstance(node, ast.Call):
            continue
        if any(k.arg == "allow_pickle" and getattr(k.value, "value", None) is not False for k in node.keywords):
            yield "allow_pickle"
        name = dotted(node.func)
        head, _, last = name.rpartition(".")
        if name in BUILTINS | OTHERS or (head in MODULES and last in READERS):
            yield name


@pytest.mark.always
def test_nothing_else_runs_what_it_reads() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("aotc", "codegen", "runtime_c")
        for path in (ROOT / folder).rglob("*.py")
        for name in dangerous(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "text",
    [
        "pickle.loads(x)", "pickle.Unpickler(f).load()", "from pickle import loads", "torch.load(f)", "eval(x)",
        "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=given)", "yaml.load(f)",
    ],
)  # fmt: skip
def test_each_is_seen(text: str) -> None:
    assert list(dangerous(text))
    assert not list(dangerous("json.loads(x); pickle.dumps(x); np.load(f, allow_pickle=False); net.eval()"))
