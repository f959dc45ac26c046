# SPDX-License-Identifier: Apache-2.0
"""Sphinx extension that writes the pages of reference into docs/generated, from the code, before a build reads them.

In: the options of commands, public docstrings, C headers, tables of operators, passes and configuration keys.
Out: one Markdown page for each, under docs/generated, which is not under version control.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click
import onnx

import aotc
from aotc import relay, tir
from aotc.cli.main import import_all_commands, main
from aotc.driver.compile import CompileOptions
from aotc.ir.option_description import described_options
from aotc.relay import transform
from aotc.relay.frontend.onnx import supported_ops
from aotc.relay.op import opdef
from aotc.relay.transform import pass_base, pipeline
from aotc.reporting.support_tables import config_key_table, supported_operator_table, target_table
from aotc.tir import kernel_text, stmt, te
from aotc.tir import passes as tensor_passes
from aotc.tir.target import Space, Target, get_target

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "runtime_c" / "aotc_runtime_c" / "include"
OLDEST_OPSET = 7


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(c) for c in row) + " |" for row in lines) + "\n"


def cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def code(value: object) -> str:
    """Inline code; nothing for empty text."""
    return f"`{value}`" if str(value) else ""


def block(content: str, language: str = "text") -> str:
    return f"```{language}\n{content.strip(chr(10))}\n```\n"


def plain(content: str) -> str:
    """Text without meaning to Markdown, except for inline code."""
    return re.sub(r"(`[^`]*`)|([<>*_|\[\]{}$])", lambda match: match[1] or "\\" + match[2], content)


def first_sentence(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return plain(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


# --- the command


def command_page() -> str:
    """Every command with its help, as `aotc COMMAND --help` prints it, 100 columns wide."""
    parts = ["# The command `aotc`", "`python -m aotc` is the same command. Each section is what `--help` prints.", ""]
    parts.append(block(help_of(main, "aotc")))
    for name, command in import_all_commands().items():
        parts += [f"## `aotc {name}`", block(help_of(command, f"aotc {name}"))]
    return "\n".join(parts)


def help_of(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    return command.get_help(context)


# --- Python


METHODS = {"Session": ("run", "bind", "get_inputs", "get_outputs", "calls"), "CompiledModel": ("session",)}
FUNCTIONS = ("compile", "load", "quantize", "torch_compile_backend")
CLASSES = ("CompiledModel", "Session", "IRModule", "AotcError")


def python_page() -> str:
    parts = [
        "# Python API",
        "What an application uses: `import aotc`. Names for users of Relay are in [Names of Relay](relay.md).",
        "",
    ]
    for name in FUNCTIONS:
        parts += member(f"aotc.{name}", getattr(aotc, name), "##")
    for name in CLASSES:
        kind = getattr(aotc, name)
        parts += member(f"aotc.{name}", kind, "##")
        for method in METHODS.get(name, ()):
            parts += member(f"{name}.{method}", inspect.getattr_static(kind, method), "###")
    return "\n".join(parts)


def member(name: str, thing: object, mark: str) -> list[str]:
    """A heading, the signature and the docstring of a public name."""
    function = thing.fget if isinstance(thing, property) else thing
    shown = "" if isinstance(thing, property) else signature_of(function, name)
    return [f"{mark} `{name}`", block(shown, "python") if shown else "", block(inspect.getdoc(function) or "")]


def signature_of(thing: Any, name: str) -> str:
    """A signature, one parameter a line where it is long; types as they are written."""
    found = inspect.signature(thing)
    shown, keywords = list[str](), False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            shown.append("*")
            keywords = True
        if parameter.name != "self":
            shown.append(parameter_text(parameter))
    result = "" if found.return_annotation is found.empty else f" -> {type_text(found.return_annotation)}"
    line = f"{name}({', '.join(shown)}){result}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(shown) + f",\n){result}"


def parameter_text(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {type_text(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    default = "..." if callable(parameter.default) else repr(parameter.default)
    return f"{parameter.name}{kind} = {default}" if kind else f"{parameter.name}={default}"


def type_text(annotation: object) -> str:
    """An annotation as it is written in the code, without the modules of names."""
    written = inspect.formatannotation(annotation).strip("'")
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", written)


def options_of(kind: Any) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass that its constructor takes, with their defaults."""
    for field in dataclasses.fields(kind):
        if field.init:
            yield code(field.name), default_of(field)


def default_of(field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, Target):
        return code(field.default.name)
    if field.default is not dataclasses.MISSING and not callable(field.default):
        return code(repr(field.default))
    return "required" if field.default_factory is dataclasses.MISSING and field.default is dataclasses.MISSING else ""


# --- C


def c_page() -> str:
    """The headers of the runtime and that of an emitted project."""
    parts = [
        "# C API",
        "Every project has these headers in its `include` folder. All of them are C99, valid as C++.",
        "",
    ]
    parts += ["## `NAME.h`, the header of a model", "This is the header of `examples/digits/digits.onnx`.", ""]
    model = aotc.compile(ROOT / "examples" / "digits" / "digits.onnx", target="c", build=False, cache=False)
    parts.append(block((model.path / "include" / "digits.h").read_text(encoding="utf-8"), "c"))
    for path in sorted(INCLUDE.glob("*.h")):
        parts += [f"## `{path.name}`", block(path.read_text(encoding="utf-8"), "c")]
    return "\n".join(parts)


# --- operators


def operators_page() -> str:
    found = supported_operator_table()
    parts = [
        "# Operators",
        "Each front end converts its own operators to those of the graph. `aotc inspect MODEL` lists the operators",
        "of a model, and those that are not supported.",
        "",
    ]
    for domain, names in found["onnx"].items():
        parts += [f"## ONNX: {domain}", *onnx_rows("" if domain == "ai.onnx" else domain, names)]
    parts += ["## ONNX: functions", functions_of_onnx(), ""]
    parts += [
        "## PyTorch",
        "Operators of `aten` in exported programs (`.pt2`) and TorchScript.",
        "",
        named(pytorch()),
        "",
    ]
    parts += ["## TFLite", "Builtin operators.", "", named(found["tflite"]), "", "## The graph", ""]
    head = ("operator", "fusion", "compiled", "attributes")
    rows = ((code(r["name"]), r["fusion"], r["compiled"], code(", ".join(r["attributes"]))) for r in found["operators"])
    return "\n".join([*parts, table(head, rows)])


def onnx_rows(domain: str, names: Sequence[str]) -> list[str]:
    """A table of the versions in which opsets define each operator."""
    history: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            history.setdefault(schema.name, []).append(schema.since_version)
    newest = onnx.defs.onnx_opset_version()
    if not any(name in history for name in names):
        return [named(names), ""]
    rows = ((code(name), versions(history.get(name, []), newest, domain)) for name in names)
    return [table(("operator", "defined in opsets"), rows)]


def versions(since: Sequence[int], newest: int, domain: str) -> str:
    """The versions that a front end from opset 7 meets, the oldest of which is older where opset 7 has that one."""
    if not since:
        return "a contributed operator"
    met = [max(v for v in since if v <= OLDEST_OPSET)] if domain == "" and min(since) <= OLDEST_OPSET else []
    met += sorted(v for v in since if v not in met and v > OLDEST_OPSET * (domain == ""))
    return ", ".join(map(str, met)) + (f" (to {newest})" if domain == "" else "")


def functions_of_onnx() -> str:
    known = set(supported_ops().get("", ()))
    schemas = onnx.defs.get_all_schemas()
    names = sorted(
        s.name
        for s in schemas
        if s.domain == "" and s.name not in known and (s.has_function or s.has_context_dependent_function)
    )
    return "ONNX defines these by others, and the front end replaces them by their definition: " + named(names) + "."


def pytorch() -> list[str]:
    try:
        from aotc.relay.frontend.pytorch import CONVERTERS
    except ImportError:  # the extra is not installed
        return []
    return sorted(CONVERTERS)


def named(names: Iterable[str]) -> str:
    return ", ".join(map(code, names)) or "Not listed: the packages that this front end needs are not installed."


# --- passes


def passes_page() -> str:
    parts = [
        "# Passes",
        "`--disable-pass NAME` and `disabled_pass` leave a pass out, `--print-after NAME` prints the module after it,",
        "and `--stop-after NAME` ends there. Options are fields of the pass, a frozen dataclass.",
        "",
        "## The pipeline of graph passes",
        "In this order, each from the given level on, for the target `c`. Other targets add passes: GPUs run",
        "`SplitArgs` and `FuseOutputs`, for example. `-O` and the option `opt_level` of `aotc.compile` take levels",
        "0 to 3. Passes of level 4 are less exact, or faster on some machines only. They run in `relay.build`",
        "under `aotc.transform.PassContext(opt_level=4)`, or where `required_pass` names them.",
        "",
        table(
            ("pass", "from level"),
            ((code(p.info.name), level) for level, p in pipeline._passes_with_min_level(get_target("c"))),
        ),
        "## Graph passes",
    ]
    for name in sorted(transform.PASSES):
        parts += class_entry(name, getattr(transform, name, transform.PASSES[name]))
    rows = [(code(row.pass_class.name), row.condition) for row in tensor_passes.TENSOR_PIPELINE]
    parts += [
        "## Tensor passes",
        "They follow the graph passes, in this order.",
        "",
        table(("pass", "condition"), rows),
    ]
    for kind in dict.fromkeys(row.pass_class for row in tensor_passes.TENSOR_PIPELINE):
        parts += class_entry(kind.name, kind)
    return "\n".join(parts)


def class_entry(name: str, kind: Any, term: str = "option") -> list[str]:
    """A heading, the docstring, and a table: the fields of a dataclass, headed by `term`, or the members of an enum."""
    head, rows = (term, "default"), list(options_of(kind)) if dataclasses.is_dataclass(kind) else []
    if issubclass(kind, Enum):
        head, rows = ("member", "value"), [(code(m.name), code(m.value)) for m in kind]
    return [f"### `{name}`", block(inspect.getdoc(kind) or ""), table(head, rows) if rows else ""]


# --- configuration, targets


def config_page() -> str:
    rows = ((code(r["key"]), r["type"], code(r["default"]), plain(r["meaning"])) for r in config_key_table()["keys"])
    intro = (
        "`--config KEY=VALUE` on the command line, `config={KEY: VALUE}` in Python. `aotc config` prints this table."
    )
    return "\n".join(["# Configuration keys", intro, "", table(("key", "type", "default", "meaning"), rows)])


def options_page() -> str:
    """One table of the options of compilations: keyword, option of the command, configuration key, default, meaning."""
    descriptions = described_options(CompileOptions)
    rows = (
        (
            code(keyword),
            " ".join(code(name) for name in description.command.replace("/", " ").split()),
            code(description.config_key),
            code(repr(description.default)) if not callable(description.default) else "",
            plain(description.python_documentation_text),
        )
        for keyword, description in descriptions.items()
    )
    intro = (
        "Keywords of `aotc.compile`, `aotc.quantize` and the functions of `aotc verify`, `bench` and `tune`, with the",
        "options of the command and the [configuration keys](configuration.md) of the same meaning. An option with",
        "`--no-` gives `False`.",
        "",
    )
    head = ("keyword", "option", "configuration key", "default", "meaning")
    return "\n".join(["# Options of compilations", *intro, table(head, rows)])


def targets_page() -> str:
    rows = target_table()["targets"]
    columns = (
        (code(r["name"]), r["machine"], r["environment"], r["vector_bits"], " ".join(r["features"])) for r in rows
    )
    head = ("target", "machine", "environment", "vector bits", "instruction sets")
    return "\n".join(["# Names of targets", "[Targets](../targets.md) says more of each.", "", table(head, columns)])


# --- text of tensor programs


GRAMMAR = """
kernel    = "kernel" string "{" { buffer } { alias } [ "macs" int ] [ "team" { name } ] { statement } "}"
buffer    = role name ":" type "[" int "]" [ "align" int ] [ "private" ]
role      = ROLES
alias     = ( "inplace" | "overlaps" ) name "=" name
type      = dtype [ "x" int ]                             # float32x8: eight lanes

statement = "for" name "in" expr ".." expr [ "step" int ] [ kind ] body
          | "while" expr body
          | "if" expr body [ "else" body ]
          | "let" name ":" type "=" expr                  # declares a register
          | name "=" expr                                 # assigns to a register
          | element "=" expr                              # stores to a buffer
          | element "=" instruction "(" expr { "," expr } ")"                 # result in memory
          | "let" name ":" type "=" instruction "(" expr { "," expr } ")"     # result in a register
          | instruction [ expr { "," expr } ]                                 # no result: "sync", "wait 1"
kind      = KINDS
body      = "{" { statement } "}"
element   = name "[" expr [ ":" int [ ":" [ "-" ] int ] ] "]"   # index, lanes, stride

expr      = infix [ "?" infix ":" expr ]
infix     = unary { operator unary }                      # by the table of precedence
unary     = "!" unary | "(" expr ")" | literal | element | function | name
function  = name "(" expr { "," expr } ")"
literal   = ( int | float | "true" | "false" | "inf" | "-inf" | "nan" ) [ ":" type ]
comment   = "#" to the end of the line
"""

SPECIAL = (
    ("`broadcast(a, lanes)`", "a vector whose lanes are all `a`"),
    ("`pack(a, b, ...)`", "a vector of scalars"),
    ("`neg(a)`", "-a"),
    ("`min(a, b)`, `max(a, b)`", "the smaller, the larger of both"),
    ("`truncdiv(a, b)`, `truncmod(a, b)`", "quotient and remainder of integers, rounded toward zero"),
    ("`DTYPE(a)`", "conversion to a type"),
    ("`bitcast_DTYPE(a)`", "the value with the same bits in another type"),
    ("`fused_NAME(...)`", "an instruction whose products and sums are rounded once"),
)


def grammar_page() -> str:
    alternatives = {"ROLES": kernel_text.BUFFER_ROLES, "KINDS": stmt.LOOP_KINDS}
    grammar = GRAMMAR
    for word, names in alternatives.items():
        grammar = grammar.replace(word, " | ".join(f'"{name}"' for name in names))
    levels = [
        " ".join(code(s) for s, op in kernel_text.OP_OF_SYMBOL.items() if kernel_text.PRECEDENCE_OF_OP[op] == k + 1)
        for k in range(len(kernel_text._OPS_BY_PRECEDENCE))
    ]
    rows = ((code(r.name), len(r.takes), "statement" if r.execution else "function") for r in tir.INSTRUCTIONS.values())
    dtypes = ", ".join(code(d) for d in aotc.ir.DTYPES)
    parts = [
        "# The text of tensor programs",
        "`--dump-ir` writes kernels in this form, and `aotc.tir.kernel_parser` reads it.",
        "",
    ]
    parts += [
        block(kernel_text.__doc__ or ""),
        "## Grammar",
        block(grammar),
        "## Precedence, from weakest to strongest",
        "",
    ]
    parts += [
        table(("level", "operators"), enumerate(levels, 1)),
        "## Functions",
        table(("function", "result"), SPECIAL),
    ]
    parts += ["## Types", dtypes, "", "## Instructions and functions of the library", ""]
    return "\n".join([*parts, table(("name", "operands", "is a"), rows)])


# --- Relay


NAMESPACES = {
    "relay": relay,
    "relay.nn": relay.nn,
    "relay.image": relay.image,
    "relay.vision": relay.vision,
    "relay.qnn.op": relay.qnn.op,
    "relay.transform": relay.transform,
}


def relay_page() -> str:
    parts = [
        "# Names of Relay",
        "The subset of Relay that aotc has, by namespace. [aotc for users of Relay](../relay-compatibility.md)",
        "explains the differences.",
        "",
    ]
    for name, module in NAMESPACES.items():
        found = {n: getattr(module, n) for n in sorted(dir(module)) if not n.startswith("_")}
        calls = {n: f for n, f in found.items() if callable(f) and not inspect.ismodule(f)}
        rows = ((code(n), first_sentence(f)) for n, f in calls.items())
        parts += [f"## `{name}`", table(("name", "is"), rows)]
    return "\n".join(parts)


# --- classes for extensions


EXTENSIONS: Mapping[str, tuple[Any, ...]] = {
    "Operators: `aotc.relay.op.opdef`": (opdef.OpDef, opdef.Sample, opdef.Accuracy),
    "Base class of operators, and its parts: `aotc.ir`": (aotc.ir.Op, aotc.ir.Attrs, aotc.ir.AxisMap),
    "Rewrite rules and graph passes: `aotc.relay.transform.pass_base`": (
        pass_base.Rule,
        pass_base.WhyNot,
        pass_base.RulePass,
        pass_base.is_op_call,
    ),
    "Targets: `aotc.tir.target`": (Target, Space),
    "Tensor expressions: `aotc.tir.te`": (te.placeholder, te.compute, te.reduce, te.contraction, te.view, te.extern),
    "Tensor passes: `aotc.tir.passes`": (tensor_passes.ProgramPass, tensor_passes.PipelineRow),
}


def extending_page() -> str:
    """The docstrings of the classes and functions with which users write operators, passes and targets."""
    parts = [
        "# Classes for extensions",
        "[Add an operator](../tutorials/add_an_operator.md), [Write a pass](../tutorials/write_a_pass.md),",
        "[Add a tensor pass](../tutorials/add_a_tensor_pass.md) and [Add a target](../tutorials/add_a_target.md)",
        "use these classes and functions. `OpDef` also has the fields of its base class `Op`.",
        "",
    ]
    for title, members in EXTENSIONS.items():
        parts += [f"## {title}", ""]
        for thing in members:
            is_class = inspect.isclass(thing)
            parts += class_entry(thing.__name__, thing, "field") if is_class else member(thing.__name__, thing, "###")
    return "\n".join(parts)


PAGES: Mapping[str, Callable[[], str]] = {
    "command": command_page,
    "python": python_page,
    "c": c_page,
    "operators": operators_page,
    "passes": passes_page,
    "options": options_page,
    "configuration": config_page,
    "target-names": targets_page,
    "tensor-programs": grammar_page,
    "relay": relay_page,
    "extending": extending_page,
}


def write_pages(folder: Path) -> None:
    """Write every page that changed, so that Sphinx reads no others again."""
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        path, content = folder / f"{name}.md", page().rstrip("\n") + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", lambda app, config: write_pages(Path(app.srcdir) / "generated"))
    return {"parallel_read_safe": True}
