# SPDX-License-Identifier: Apache-2.0
"""Messages spell options as the caller does: keyword arguments in Python, command-line options in the command.

The declarations of the command and the signatures of the Python functions are the source of both spellings.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import pickle
import re
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import parser

import aotc
from aotc import relay
from aotc.checking.verify import verify
from aotc.cli.main import import_all_commands, main
from aotc.cli.options_in_messages import command_line_text_of_option, spell_option_references_for_command
from aotc.cli.pass_inspection_options import PASS_INSPECTION_OPTIONS
from aotc.driver.compile import CompileOptions
from aotc.ir import AotcError, join_texts, option_text, rename_options_in_errors
from aotc.ir.diagnostics import Diagnostic
from aotc.ir.option_description import OPTIONS_WITH_CONFIG_KEY, config_key_default, described_options
from aotc.ir.option_mentions_in_messages import OptionText, python_expression
from aotc.ir.pass_context import registered_config_keys
from aotc.measuring.bench import benchmark_model
from aotc.measuring.profile import profile_library
from aotc.measuring.run_library import run_library
from aotc.measuring.tuning import tune_contractions
from aotc.reporting.model_inspection import inspect_model
from aotc.tir.target import get_target
from tests.arch.sources import PYTHON, name_of, tree_of
from tests.cli.invoke import DIGITS, call, refused

FUNCTIONS = (aotc.compile, aotc.load, aotc.quantize, verify, benchmark_model, tune_contractions, run_library)
BUDGETS = ("ram", "flash", "stack")
DYNAMIC = '<ir_version: 9, opset_import: ["" : 20]> main (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }'
OPERATOR = '<ir_version: 9, opset_import: ["" : 20]> main (float[3] x) => (float[3] y) { a = Relu(x) y = Foo(a) }'


def declared_options() -> list[click.Option]:
    return [p for command in import_all_commands().values() for p in command.params if isinstance(p, click.Option)]


def option_named(command: str, keyword: str) -> click.Option:
    (found,) = [p for p in import_all_commands()[command].params if p.name == keyword]
    assert isinstance(found, click.Option)
    return found


# --- the two sources of spellings


def calls_of(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def named_keywords() -> dict[str, set[str]]:
    """Every option that the compiler's messages can name, with the files that do."""
    found: dict[str, set[str]] = {}
    for path in PYTHON:
        for node in calls_of(tree_of(path), "option_text"):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                found.setdefault(first.value, set()).add(name_of(path))
            elif path.name not in ("option_mentions_in_messages.py", "option_description.py"):
                assert (path.name, ast.unparse(first)) == ("memory_budgets.py", "name"), (
                    "write the keyword as a literal"
                )
    found |= {keyword: {"aotc/ir/option_description.py"} for keyword in OPTIONS_WITH_CONFIG_KEY}
    return found | {name: {"aotc/driver/memory_budgets.py"} for name in BUDGETS}


@pytest.mark.always
def test_named_options_exist_for_both_kinds_of_callers() -> None:
    named = named_keywords()
    assert len(named) > 25
    keywords = {name for function in (*FUNCTIONS, profile_library) for name in inspect.signature(function).parameters}
    options = {option.name for option in declared_options()}
    assert not {k: files for k, files in named.items() if k not in keywords or k not in options}


def test_options_of_compilations_are_keywords_of_compile() -> None:
    """The one description of options: `aotc compile` has each option that has a name on the command
    line, and functions that compile have all of them as keywords.
    """
    descriptions = described_options(CompileOptions)
    named = {keyword for keyword, description in descriptions.items() if description.command}
    packaging = {"ecosystem", "manifest"}
    others = {*PASS_INSPECTION_OPTIONS, *packaging, "timing", "quiet", "verbose", "as_json"}
    # what only programs can give: arrays, functions and objects, and whether a GPU is emulated
    assert descriptions.keys() - named == {"params", "instruments", "profile", "progress", "emulated"}
    (model, *options) = import_all_commands()["compile"].params
    assert len(named) > 25 and {p.name for p in options} == named | others and model.name == "model"
    fields = {field.name for field in dataclasses.fields(CompileOptions) if field.init}
    assert fields == {*descriptions}
    for function in (aotc.compile, aotc.quantize, verify, benchmark_model, tune_contractions, inspect_model):
        assert fields <= {*inspect.signature(function).parameters}, function


def test_documentation_of_options() -> None:
    """Docstrings, help texts and configuration keys have the texts of the description."""
    text = " ".join((aotc.compile.__doc__ or "").split())
    keys = registered_config_keys()
    for keyword, description in described_options(CompileOptions).items():
        assert f"{keyword} {description.python_documentation_text}" in text
        if description.command:
            assert option_named("compile", keyword).help == description.command_line_help_text
        if description.config_key:
            key = keys[description.config_key]
            assert key.meaning and key.default == config_key_default(description)
            assert OPTIONS_WITH_CONFIG_KEY[keyword] is description


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("accuracy", "strict"), ("rounding", "litert"), ("io_dtype", "int8"), ("io_dtype", {"x": "int8"}),
        ("cache", False), ("tuning", False), ("workspace_io", True), ("round_data", True),
    ],
)  # fmt: skip
def test_options_that_are_configuration_keys(keyword: str, value: Any) -> None:
    key = OPTIONS_WITH_CONFIG_KEY[keyword].config_key
    by_option = CompileOptions(**{keyword: value}).pass_context()
    assert by_option.config == CompileOptions(config={key: value}).pass_context().config == {key: value}
    assert CompileOptions().pass_context().config == {}


def test_a_path_of_tunings_is_no_configuration(tmp_path: Path) -> None:
    """The option `tuning` has values that its configuration key lacks."""
    records = tmp_path / "records.sqlite"
    records.touch()
    assert CompileOptions(tuning=records, io_dtype={}).pass_context().config == {}


@pytest.mark.parametrize(
    ("command", "keyword", "value", "text"),
    [
        ("compile", "dims", {"batch": 1, "n": 8}, "--dim batch=1 --dim n=8"),
        ("compile", "input_shapes", {"a b": (1, 3), "s": ()}, "--input-shape 'a b:1,3' --input-shape s:"),
        ("compile", "io_dtype", "int8", "--io-dtype int8"),
        ("compile", "io_dtype", {"x": "int8", "": "uint8"}, "--io-dtype x:int8 --io-dtype uint8"),
        ("compile", "config", {"a": True, "b": 0, "c": "x"}, "--config a=true --config b=0 --config c=x"),
        ("compile", "cflags", ["-O1", "-g"], "--cflags=-O1 --cflags=-g"),
        ("compile", "cut_after", ["a", "b;c"], "--cut-after a --cut-after 'b;c'"),
        ("compile", "cuda_arch", [80, 90], "--cuda-arch 80,90"),
        ("compile", "ram", 98304, "--ram 96K"),
        ("compile", "opt_level", 2, "-O 2"),
        ("compile", "output", None, "--output"),
        ("compile", "output", "-strange", "--output=-strange"),
        ("compile", "build", False, "--no-build"),
        ("compile", "build", True, ""),
        ("compile", "overwrite", True, "--overwrite"),
        ("compile", "overwrite", False, ""),
        ("quantize", "build", False, "--no-build"),
        ("compile", "threads", False, "--no-threads"),
        ("compile", "threads", True, "--threads"),
        ("bench", "threads", True, ""),
        ("verify", "check_compiler", False, "--no-check-compiler"),
        ("verify", "memory", 4 << 30, "--memory 4G"),
        (
            "verify",
            "input_ranges",
            {"x": (-1, 0.5), "y": (0, 0.12345678)},
            "--input-range x=-1:0.5 --input-range y=0:0.12345678",
        ),
        ("tune", "cache", False, "--no-cache"),
    ],
)
def test_spellings_of_options(command: str, keyword: str, value: Any, text: str) -> None:
    """The text, read again by the command's own parser, gives the value."""
    option = option_named(command, keyword)
    assert command_line_text_of_option(option, value) == text
    if not text or value is None:
        return
    words = click.Command(command, params=[option]).make_context(command, shlex.split(text)).params
    given = [words[keyword]] if not isinstance(words[keyword], (list, tuple)) else list(words[keyword])
    expected = {"": value} if keyword == "io_dtype" and isinstance(value, str) else value
    assert words[keyword] == expected or given == expected or str(words[keyword]) == value


def test_spellings_in_python() -> None:
    value = {"a": (1,), 'b"': (1, 2), "c": True}
    for sample in (value, "x", 'a"b', "a\\b", [1, ("x",)], 0.5, {}):
        assert _as_lists(ast.literal_eval(python_expression(sample))) == _as_lists(sample)
    assert str(option_text("dims", {"batch": 1})) == 'dims={"batch": 1}'
    assert str(option_text("threads")) == "`threads`"
    assert str(option_text("cut_after", ["a"], "aotc.compile")) == 'aotc.compile(..., cut_after=["a"])'


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _as_lists(v) for k, v in value.items()}
    return [_as_lists(v) for v in value] if isinstance(value, (list, tuple)) else value


# --- no other way to name options

#: Options of other programs, decrements in C, and the prefix of negated flags, by the end of the file's name.
OPTIONS_OF_OTHER_PROGRAMS = {
    "option_description.py": {"--no-"},
    "reject_fast_math_c_flags.py": {"--optimize"},
    "toolchain.py": {"--version", "--specs", "--target"},
    "object_compiler.py": {"--specs", "--coverage"},
    "compile_sources.py": {"--build-id", "--require-defined"},
    "nvrtc.py": {"--device-as-default-execution-space", "--diag-suppress", "--gpu-architecture"},
    "compiler_flags.py": {"--fmad", "--ftz", "--prec-div", "--prec-sqrt", "--std"},
    "bare_metal_project.py": {"--target", "--specs", "--portable", "--float-abi"},
    "wasm_module.py": {
        *("--no-entry", "--strip-all", "--stack-first", "--import-memory", "--shared-memory", "--max-memory"),
        *("--export", "--no-check-features"),
    },
    "arm_mve_kernels.py": {"--outputs"},
    "arm_dsp_kernels.py": {"--groups"},
    "graph_drawing.py": {"--dump-ir"},
    "misra_report.py": {
        "--addon",
        "--enable",
        "--platform",
        "--quiet",
        "--std",
        "--template",
        "--template-location",
        "--version",
    },
}
#: The emitted README and #error lines of bare_metal_project.py and the pages of reports, which graph_drawing.py draws,
#: are read by people who may have used either, and name the command.
LONG_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
SHORT_OPTION = re.compile(r"[ (`]-[oO](?![\w-])")


def literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module, without docstrings and texts that are for users of the command."""
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in calls_of(tree, "text_for_command_or_python", "OptionDescription", "option_field"):
        names = {"command", "deprecated_commands"}
        skipped |= {id(part) for k in node.keywords if k.arg in names for part in ast.walk(k.value)}
    for found in ast.walk(tree):
        if isinstance(found, ast.Constant) and isinstance(found.value, str) and id(found) not in skipped:
            yield found


def options_in_literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in literals(tree):
        yield from ((node.lineno, name) for name in LONG_OPTION.findall(node.value))
        if " " in node.value:
            yield from ((node.lineno, name) for name in SHORT_OPTION.findall(node.value))


@pytest.mark.always
def test_no_message_spells_an_option_of_the_command() -> None:
    bad, used = [], set()
    for path in (p for p in PYTHON if not name_of(p).startswith("aotc/cli/")):
        for line, option in options_in_literals(tree_of(path)):
            if option in OPTIONS_OF_OTHER_PROGRAMS.get(path.name, ()):
                used.add((path.name, option))
            else:
                bad.append(f"{name_of(path)}:{line}: {option}: name it with option_text")
    assert not bad, "\n".join(bad)
    assert used == {(name, option) for name, options in OPTIONS_OF_OTHER_PROGRAMS.items() for option in options}


def test_commands_in_messages_exist() -> None:
    """A text for users of the command names commands and options that exist."""
    texts = 0
    for path in PYTHON:
        for node in calls_of(tree_of(path), "text_for_command_or_python"):
            (value,) = [k.value for k in node.keywords if k.arg == "command"]
            text = ast.unparse(value)
            (name,) = re.findall(r"aotc (\w+)", text)
            options = {opt for p in import_all_commands()[name].params for opt in (*p.opts, *p.secondary_opts)}
            assert options.issuperset(re.findall(r"(?<!\w)--?[a-zA-Z][\w-]*", text)), (name_of(path), text)
            texts += 1
    assert texts >= 5


SPELLING = ("option_text", "text_for_command_or_python", "join_texts", "hint_on_options_to_fix_dims")


def names_with_references(tree: ast.AST) -> set[str]:
    """The variables of a module to which a text with references to options is assigned."""
    found: set[str] = set()
    while True:
        more = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None
            if any(calls_of(node.value, *SPELLING)) or any(
                isinstance(part, ast.Name) and part.id in found for part in ast.walk(node.value)
                if isinstance(node.value, (ast.BinOp, ast.Name, ast.IfExp))
            )
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }  # fmt: skip
        if more <= found:
            return found
        found |= more


def constants_with_references(tree: ast.Module) -> set[str]:
    assignments: list[ast.stmt] = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return names_with_references(ast.Module(assignments, []))


@pytest.mark.always
def test_references_are_not_lost_in_formatted_strings() -> None:
    """An f-string has the Python spelling for good: texts with references are joined by +."""
    bad = []
    constants = {name for path in PYTHON for name in constants_with_references(tree_of(path))}
    assert "OTHER_INPUTS_HINT" in constants
    for path in PYTHON:
        for scope in (tree_of(path), *(n for n in ast.walk(tree_of(path)) if isinstance(n, ast.FunctionDef))):
            names = constants | (names_with_references(scope) if isinstance(scope, ast.FunctionDef) else set())
            for node in (n for n in ast.walk(scope) if isinstance(n, ast.JoinedStr)):
                lost = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in names]
                if lost or any(calls_of(node, *SPELLING)):
                    bad.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
    assert not bad, "\n".join(bad)


# --- texts


def test_texts_keep_references() -> None:
    text = "leave " + option_text("threads") + " out, or " + option_text("dims", {"n": 1})
    text += "."
    assert isinstance(text, OptionText)
    assert text == 'leave `threads` out, or dims={"n": 1}.'
    assert text.text_with_spelled_references(lambda r: getattr(r, "keyword", "")) == "leave threads out, or dims."
    assert isinstance(join_texts("; ", ["a", text]), OptionText)
    assert join_texts("; ", []) == ""
    copied = pickle.loads(pickle.dumps(text))
    assert copied == text and copied.parts == text.parts


def test_values_from_models_are_escaped() -> None:
    """Names in options come from files: neither spelling may hold control characters."""
    hint = option_text("cut_after", ["\x1b[2J\u202e", "x" * 10_000])
    found = Diagnostic("code", "text", hint=hint)
    with click.Context(main) as group, click.Context(import_all_commands()["compile"], parent=group):
        spelled = spell_option_references_for_command(found.hint)
    assert spelled.startswith("--cut-after")
    for text in (found.hint, spelled):
        assert text.isprintable() and len(text) < 1000


def test_renamed_options() -> None:
    with pytest.raises(AotcError) as caught, rename_options_in_errors(input_shapes="shape"):
        raise AotcError("code", "text", hint=option_text("input_shapes", {"x": (1,)}))
    assert str(caught.value) == 'text\n  hint: shape={"x": [1]}'


def fail(_: int) -> None:
    raise AotcError("code", "text", hint="leave " + option_text("threads") + " out")


def test_errors_of_workers_are_spelled_for_the_caller() -> None:
    pools: tuple[Callable[[], Any], ...] = (
        lambda: ThreadPoolExecutor(1),
        lambda: ProcessPoolExecutor(1, mp_context=get_context("fork")),
    )
    for pool in pools:
        with pool() as workers, pytest.raises(AotcError) as caught:
            list(workers.map(fail, [0]))
        assert caught.value.diagnostics[0].hint == "leave `threads` out"
        with click.Context(main) as group, click.Context(import_all_commands()["compile"], parent=group):
            assert spell_option_references_for_command(caught.value.diagnostics[0].hint) == "leave --threads out"


# --- the same mistakes, by the command and in Python

MISTAKES: list[tuple[list[str], dict[str, Any]]] = [
    (["--target", "cortex-m4", "--threads"], {"target": "cortex-m4", "threads": True}),
    (["--target", "c", "--cuda-arch", "80"], {"target": "c", "cuda_arch": 80}),
    (["--target", "c", "--memories", "x.toml"], {"target": "c", "memories": "x.toml"}),
    (["--check-compiler", "--no-build"], {"check_compiler": True, "build": False}),
    (["--rounding", "litert"], {"rounding": "litert"}),
    (["--target", "c", "--selftest"], {"target": "c", "selftest": True}),
    (["--target", "cuda", "--workspace-io", "--no-build"], {"target": "cuda", "workspace_io": True, "build": False}),
    (["--target", "x86-64", "--portable"], {"target": "x86-64", "portable": True}),
    (["--target", "c", "--float-abi", "soft"], {"target": "c", "float_abi": "soft"}),
    (["--cflags=-c"], {"cflags": ["-c"]}),
    (["--cc", "no-such-compiler"], {"cc": "no-such-compiler"}),
    (["--cc", ""], {"cc": ""}),
    (["--io-dtype", "int8", "--no-build"], {"io_dtype": "int8", "build": False}),
    (["--config", "compile.max_nodes=3"], {"config": {"compile.max_nodes": 3}}),
    (["--ram", "100", "--target", "c", "--no-build"], {"ram": 100, "target": "c", "build": False}),
]


@pytest.mark.parametrize(("arguments", "keywords"), MISTAKES, ids=lambda value: " ".join(value))
def test_hints_of_both_callers(arguments: list[str], keywords: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AotcError) as caught:
        aotc.compile(DIGITS, output=tmp_path / "net", **keywords)
    in_python = str(caught.value)
    outcome = call("compile", DIGITS, "-o", tmp_path / "net", *arguments, "--json")
    assert outcome.code == 2
    hints = " ".join(row["hint"] for row in json.loads(outcome.out)["errors"])
    options = {o for p in import_all_commands()["compile"].params for o in (*p.opts, *p.secondary_opts)}
    assert not LONG_OPTION.search(in_python)
    assert LONG_OPTION.search(hints) and options.issuperset(LONG_OPTION.findall(hints))
    for name in re.findall(r"`(\w+)`|\b(\w+)=", in_python.partition("hint:")[2]):
        assert "".join(name) in inspect.signature(aotc.compile).parameters


def test_dynamic_models(tmp_path: Path) -> None:
    model = parser.parse_model(DYNAMIC)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(AotcError, match=r'example: dims=\{"batch": 1\} or input_shapes=\{"x": \(1, 3\)\};'):
        aotc.compile(model)
    assert "example: --dim batch=1 or --input-shape x:1,3;" in refused(
        "compile", tmp_path / "net.onnx", "-o", tmp_path / "o"
    )
    module, _ = relay.frontend.from_onnx(model)
    with pytest.raises(AotcError, match=r'example: dims=\{"batch": 1\} or shape=\{"x": \(1, 3\)\};'):
        relay.build(module, "llvm")
    with pytest.raises(AotcError, match="leave `input_shapes` and `dims` out"):
        aotc.compile(module, dims={"batch": 1})
    with pytest.raises(AotcError, match=r'example: dims=\{"batch": 1\} \(dimension 0'):
        aotc.quantize(model, None, [])


def test_models_to_be_cut(tmp_path: Path) -> None:
    model = parser.parse_model(OPERATOR)
    onnx.save(model, tmp_path / "net.onnx")
    for convert in (aotc.compile, relay.frontend.from_onnx):
        with pytest.raises(AotcError, match=r'aotc\.compile\(\.\.\., cut_after=\["a"\]\)'):
            convert(model)  # type: ignore[operator]
    assert "--cut-after a" in refused("compile", tmp_path / "net.onnx", "-o", tmp_path / "o")
    assert "--cut-after a" in call("inspect", tmp_path / "net.onnx").out


def test_files_that_would_be_lost(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:", encoding="utf-8")
    with pytest.raises(AotcError, match="replace them with overwrite=True"):
        aotc.compile(DIGITS, output=tmp_path, build=False)
    assert "replace them with --overwrite" in refused("compile", DIGITS, "-o", tmp_path, "--no-build")


def test_other_functions_than_compile(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match=re.escape(f'aotc.compile("{DIGITS}", output="DIR") makes a library')):
        aotc.load(DIGITS)
    assert f"`aotc compile {DIGITS} -o DIR` makes a library" in refused("run", DIGITS)
    (tmp_path / "my net.onnx").write_bytes(Path(DIGITS).read_bytes())
    assert f"`aotc compile '{tmp_path}/my net.onnx' -o DIR` makes a library" in refused("run", tmp_path / "my net.onnx")
    (tmp_path / "net").mkdir()
    with pytest.raises(AotcError, match="`project` takes the directory"):
        verify(DIGITS, project=tmp_path / "net")
    assert "--project takes the directory" in refused("verify", DIGITS, "--project", tmp_path / "net")


WRONG_KEYWORDS: list[tuple[dict[str, Any], str]] = [
    ({"dim": {"n": 1}}, "there is no option 'dim'\n  hint: did you mean 'dims'"),
    ({"cflags": "-O2"}, "cflags must be a list of strings, not '-O2'\n  hint: write cflags=[\"-O2\"]"),
    ({"cflags": [3]}, "cflags must be a list of strings, not a value of type list"),
    ({"disabled_pass": "FuseOps"}, 'hint: write disabled_pass=["FuseOps"]'),
    ({"dims": 3}, "dims must be a mapping from names to values or None, not 3"),
    ({"state": {"h": 3}}, "state must be a mapping from names to strings or None, not a value of type dict"),
    ({"threads": 4}, "threads must be True, False or None, not 4"),
    ({"build": "no"}, "build must be True or False, not 'no'"),
    ({"target": None}, "target must be a string or a Target, not None"),
    ({"output": 3}, "output must be a string, a path or None, not 3"),
    ({"opt_level": "3"}, "opt_level must be an integer, not '3'"),
    ({"cc": ["gcc"]}, "cc must be a string or None, not a value of type list"),
    ({"cc_timeout": "30m"}, "cc_timeout must be a number or None, not '30m'"),
    ({"ram": "64K"}, "ram must be an integer or None, not '64K'"),
    ({"cuda_arch": "80"}, "cuda_arch must be an integer, a list or None, not '80'"),
    ({"progress": 3}, "progress must be a function, not 3"),
    ({"input_shapes": {"x": 3}}, "the shape of input 'x' must be a list of integers, not 3"),
    ({"input_shapes": {"x": {1: 3}}}, "the shape of input 'x' must be a list of integers, not {1: 3}"),
    ({"input_shapes": {"x": ("n", 3)}}, "the shape of input 'x' must be a list of integers, not ('n', 3)"),
]


@pytest.mark.parametrize(
    ("keywords", "text"), WRONG_KEYWORDS, ids=lambda value: " ".join(value) if isinstance(value, dict) else ""
)
def test_names_and_types_of_keywords(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        aotc.compile(DIGITS, **keywords)
    if keywords.keys() != {"output"}:
        with pytest.raises(TypeError, match=re.escape(text)):
            aotc.quantize(DIGITS, None, [], **keywords)


def test_options_of_many_types() -> None:
    """Values that the annotations allow are accepted, numpy's among them."""
    chosen = CompileOptions.from_keywords({
        "target": get_target("c"), "output": Path("x"), "opt_level": np.int64(2), "cflags": ("-O1",), "params": {},
        "cc_timeout": 3, "threads": np.False_, "tuning": False, "cuda_arch": None, "io_dtype": {"x": "int8"},
        "input_shapes": {"x": [np.int32(1), 3], "s": (), "a": np.array([], int)}, "instruments": (),
        "disabled_pass": [],
    })  # fmt: skip
    assert chosen.machine.name == "c" and chosen.opt_level == 2


def test_other_mistakes_in_calls() -> None:
    with pytest.raises(TypeError, match=r'name the option, for example output="DIR"'):
        aotc.compile(DIGITS, "build/net")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'per_channel'"):
        aotc.quantize(DIGITS, None, [], per_chanel=True)
    with pytest.raises(TypeError, match=r'write exclude=\["conv"\]'):
        aotc.quantize(DIGITS, None, [], exclude="conv")
    with pytest.raises(TypeError, match="calibration data is a path or a list of mappings"):
        aotc.quantize(DIGITS, None, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not int$"):
        aotc.compile(3)  # type: ignore[arg-type]


def test_deprecated_names_are_shown_where_they_are_written() -> None:
    for call_with in (
        lambda: aotc.compile(DIGITS, target="c", build=False, profile="bare"),
        lambda: CompileOptions(profile="hosted", target="c"),
    ):
        with pytest.warns(DeprecationWarning, match="profile is now named environment") as caught:
            call_with()
        assert caught[0].filename == __file__


def test_modules_of_pytorch_are_exported_first() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"hint: give example inputs, too: aotc\.compile\(module, \(x,\)\)"):
        aotc.compile(torch.nn.ReLU())
    with pytest.raises(TypeError, match=r"hint: torch\.export\.export\(module, example_inputs\)"):
        aotc.compile(torch.jit.trace(torch.nn.ReLU(), torch.zeros(3)))


def test_tables_of_the_command_spell_options() -> None:
    assert "as --accuracy" in call("config").out
    rows = {row["key"]: row["meaning"] for row in json.loads(call("config", "--json").out)["keys"]}
    assert rows["tflite.rounding"] == "tflm or litert, as --rounding"
