# SPDX-License-Identifier: Apache-2.0
"""Run a case of a `.test` file: apply its passes, compare results before and after, compare the
text of the module.

check_case(case)                    # raises CaseFileError that shows the difference
check_case(case, update=True)       # writes the new text into the file, unless results differ

The passes run under the Verifier: what they return is well formed and typed, and what they are
given stays as it was.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, cast

import numpy as np

from aotc import relay
from aotc.ir import (
    AotcError,
    DType,
    FuncType,
    Pass,
    PassContext,
    Sequential,
    TensorType,
    TupleType,
    Type,
    did_you_mean_hint,
)
from aotc.ir.op import register_op_attr, reset_op_attr
from aotc.relay import transform
from aotc.relay.expr import Function, type_of
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import ConstructorValue, evaluate
from aotc.relay.module import IRModule
from aotc.relay.text.literal_printer import TEXT_FORMAT_VERSION
from aotc.relay.text.printer import print_without_metadata
from aotc.relay.transform.pass_base import RewriteReport, rewrite_report
from aotc.relay.type_inference import infer_module
from aotc.tir.target import get_target
from tests.passes.case_constants import ConstantTable, ConstantTextError
from tests.passes.case_file import Case, Section, replace_body

Array: TypeAlias = "np.ndarray[Any, Any]"
_COMMENT_REGEX: Final = re.compile(r" /\* (?:ty|span)=.*? \*/")
_REFERENCE_REGEX: Final = re.compile(r"meta\[relay\.Constant\]\[(\d+)\]")
_INPUT_REGEX: Final = re.compile(r"%(\w+) = (\$.*)")
#: The classes and functions that `[pass ...]` may call, by name.
MAKERS: Final[dict[str, Callable[..., Any]]] = {
    **{getattr(make, "__name__", name): make for name, make in transform.PASSES.items()},
    "Sequential": Sequential,
    "Target": get_target,
}
#: Greatest magnitude of random integers of more than 8 bits.
MAX_MAGNITUDE_OF_WIDE_INTEGERS: Final = 9


def check_case(case: Case, update: bool = False) -> None:
    """Run a case; raise CaseFileError if results, the module or the diagnostics differ from the
    ones that the case states.

    update    write the module or the diagnostics into the file if they differ and the results are equal
    """
    table = ConstantTable()
    before = _parse_module(case, table)
    outcome = case.outcome
    with _context(case), _external_compilers(case), rewrite_report() as report:
        try:
            stages = _apply_passes(case, before)
        except AotcError as error:
            if outcome.name != "error":
                raise
            _compare_text(case, outcome, _diagnostics_text(error), update)
            return
        after = stages[-1]
        if outcome.name == "error":
            case.fail(outcome.line, f"the passes raise no error; they return\n{_module_text(after, table)}")
        if case.optional_section("idempotent") is not None and _apply_passes(case, after)[-1] is not after:
            case.fail(case.section("idempotent").line, "the passes change their own result")
    _compare_results(case, table, before, after)
    _compare_reasons(case, report, update)
    if outcome.name == "unchanged":
        if after is not before:
            difference = _difference(_module_text(before, table), _module_text(after, table)) or "(an equal copy)"
            case.fail(outcome.line, f"the passes return another module:\n{difference}")
        return
    text = _module_text(after, table, before)
    texts_of_earlier_stages = (_module_text(module, table, before) for module in stages[:-1])
    if text == _module_text(before, table, before) and {*texts_of_earlier_stages} <= {text}:
        case.fail(outcome.line, "the passes change nothing; write [unchanged] in place of [after]")
    _compare_text(case, outcome, text, update)


# --- what a case describes


def _parse_module(case: Case, table: ConstantTable) -> IRModule:
    """Return the typed module before the passes; raise CaseFileError with its line for errors of
    syntax and types.
    """
    section = case.section("before")
    body = _with_references(case, section.line + 1, section.body, table)
    text = f'#[version = "{TEXT_FORMAT_VERSION}"]' + "\n" * section.line + body
    constants = {"relay.Constant": table.constants}
    try:
        return infer_module(relay.parse(text, str(case.path), init_meta_table=constants))
    except AotcError as error:
        span = error.diagnostics[0].span
        case.fail(section.line if span is None else span.line, f"[before] is not a valid module\n{error}")


def _with_references(case: Case, line: int, text: str, table: ConstantTable) -> str:
    try:
        return table.replace_by_references(text)
    except ConstantTextError as error:
        case.fail(line + text[: error.offset].count("\n"), str(error))


def _context(case: Case) -> PassContext:
    section = case.optional_section("context")
    arguments = {} if section is None else _keyword_arguments(case, section)
    return PassContext(**{"opt_level": 3, **arguments}, instruments=[Verifier()])


@contextmanager
def _external_compilers(case: Case) -> Iterator[None]:
    """Context in which the external compilers of a case support their operators."""
    rows = [(section, *section.argument.split()) for section in case.all_sections("compiler")]
    supported = [(section, name, f"target.{compiler}") for section, compiler, *names in rows for name in names]
    try:
        for section, name, attribute in supported:
            try:
                register_op_attr(name, attribute, lambda _: True)
            except AotcError as error:
                case.fail(section.line, str(error))
        yield
    finally:
        for _, name, attribute in supported:
            reset_op_attr(name, attribute)


def _keyword_arguments(case: Case, section: Section) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({section.argument})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError(f"found {section.argument}")
        return {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}
    except (SyntaxError, ValueError) as error:
        case.fail(section.line, f"[{section.name}] takes arguments such as opt_level=4: {error}")


def _apply_passes(case: Case, module: IRModule) -> list[IRModule]:
    """Return the module after each pass."""
    return [module := _make_pass(case, section)(module) for section in case.all_sections("pass")]


def _make_pass(case: Case, section: Section) -> Pass[IRModule]:
    """Return the pass of a line `[pass NAME]` or `[pass NAME(options)]`."""
    try:
        node = ast.parse(section.argument, mode="eval").body
        made = _option(node if isinstance(node, ast.Call) else ast.Call(node, [], []))
    except (SyntaxError, TypeError, LookupError) as error:
        case.fail(section.line, str(error.args[0]))
    except ValueError as error:
        if isinstance(error, AotcError):
            raise
        case.fail(section.line, f"a pass is written NAME or NAME(option=value): {error}")
    return cast(Pass[IRModule], made)


def _option(node: ast.expr) -> Any:
    """Return the value of an option: a literal, Target("c"), a pass, or a list of passes."""
    if isinstance(node, ast.List):
        return [_option(item) for item in node.elts]
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name not in MAKERS:
        hint = did_you_mean_hint(name, MAKERS) or "see aotc/relay/transform/__init__.pyi"
        raise LookupError(f"there is no pass {name!r}; {hint}")
    options = {k.arg: _option(k.value) for k in node.keywords if k.arg is not None}
    return MAKERS[name](*map(_option, node.args), **options)


# --- results


def _compare_results(case: Case, table: ConstantTable, before: IRModule, after: IRModule) -> None:
    """Evaluate the functions that are in both modules; raise CaseFileError for results that differ."""
    if case.optional_section("not_executed") is not None or after is before:
        return
    given = _given_inputs(case, table)
    names = [name for name in before.functions if name in after and not _takes_function(before[name])]
    if not names:
        case.fail(case.line, "no function of the module before can be called in the module after")
    used = {p.name for name in names for p in before[name].params}
    if not set(given) <= used:
        case.fail(case.section("inputs").line, f"no function has the parameters {', '.join(set(given) - used)}")
    for name in names:
        values = _arguments(case, before[name], given)
        expected = _flat(evaluate(before[name], *values, module=before))
        actual = _flat(evaluate(after[name], *values, module=after))
        problem = _problem_of_results(expected, actual, _tolerance(case))
        if problem:
            case.fail(case.line, f"@{name} computes other results after the passes: {problem}")


def _takes_function(function: Function) -> bool:
    """Return True if a parameter is a function; no random value can be drawn for it, and the
    function is tested by its callers.
    """
    return any(isinstance(type_of(p), FuncType) for p in function.params)


def _given_inputs(case: Case, table: ConstantTable) -> dict[str, Array]:
    """Return the values of the section [inputs] by parameter name."""
    section = case.optional_section("inputs")
    given = {}
    for k, line in enumerate(section.body.splitlines() if section is not None else ()):
        number = 0 if section is None else section.line + 1 + k
        match = _INPUT_REGEX.fullmatch(line.strip())
        if match is None:
            case.fail(number, f"an input is written %name = $normal(2, 3), found {line!r}")
        try:
            given[match[1]] = ConstantTable().constant(match[2]).data
        except ConstantTextError as error:
            case.fail(number, str(error))
    return given


def _arguments(case: Case, function: Function, given: Mapping[str, Array]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [given[p.name] if p.name in given else _random_value(case, p.name, type_of(p), rng) for p in function.params]


def _random_value(case: Case, name: str, ty: Type, rng: np.random.Generator) -> Any:
    """Return a random value of a type: a tensor, or a tuple of them.

    A tensor of 8-bit integers has every value of its type, if it has enough elements.
    """
    if isinstance(ty, TupleType):
        return tuple(_random_value(case, name, field, rng) for field in ty.fields)
    if not isinstance(ty, TensorType) or not ty.is_static:
        case.fail(case.line, f"no value of type {ty} can be drawn; set %{name} in [inputs], or say [not_executed WHY]")
    shape, dtype = ty.static_shape, ty.dtype
    if dtype.is_float:
        return (rng.standard_normal(shape) * 3).astype(dtype.numpy)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.bits <= 8:
        return np.resize(rng.permutation(np.arange(int(dtype.min), int(dtype.max) + 1)), shape).astype(dtype.numpy)
    low, high = max(int(dtype.min), -MAX_MAGNITUDE_OF_WIDE_INTEGERS), MAX_MAGNITUDE_OF_WIDE_INTEGERS
    return rng.integers(low, high + 1, shape).astype(dtype.numpy)


def _flat(value: Any) -> list[Array]:
    """Return the arrays of a result: those of tuples and of values of data types in order."""
    if isinstance(value, ConstructorValue):
        return [np.asarray(value.tag), *_flat(value.fields)]
    return [array for item in value for array in _flat(item)] if isinstance(value, tuple) else [value]


def _tolerance(case: Case) -> dict[str, float]:
    section = case.optional_section("tolerance")
    tolerance = {} if section is None else _keyword_arguments(case, section)
    known = ("rtol", "atol", "of_largest", "mismatches", "any_float_type")
    if section is not None and not (tolerance and set(tolerance) <= {*known}):
        case.fail(section.line, f"[tolerance] takes {', '.join(known)}; found {section.argument}")
    return tolerance


def _problem_of_results(expected: list[Array], actual: list[Array], tolerance: Mapping[str, float]) -> str:
    """Return a description of how results differ beyond a tolerance, or ""."""
    if len(expected) != len(actual):
        return f"{len(actual)} tensors in place of {len(expected)}"
    for k, (x, y) in enumerate(zip(expected, actual, strict=True)):
        other_type = x.dtype != y.dtype and not (tolerance.get("any_float_type") and _is_float(x) and _is_float(y))
        if other_type or x.shape != y.shape:
            return f"tensor {k} is {y.dtype}{y.shape}, before {x.dtype}{x.shape}"
        different = _has_different_bits(x, y.astype(x.dtype))
        close = _is_close(x.astype(np.float64), y.astype(np.float64), tolerance)
        if not close.all() if tolerance else different.any():
            at = tuple(map(int, np.argwhere(~close if tolerance else different)[0]))
            return f"element {at} of tensor {k} is {y[at]!r}, before {x[at]!r}"
        if "mismatches" in tolerance and different.mean() > tolerance["mismatches"]:
            return f"{different.mean():.1%} of the elements of tensor {k} differ"
    return ""


def _is_close(x: Array, y: Array, tolerance: Mapping[str, float]) -> Array:
    """Return for each element if it is within the tolerance; all NaN count as equal."""
    largest = np.abs(x, out=np.ones_like(x), where=np.isfinite(x)).max(initial=1)
    atol = tolerance.get("atol", 0) + tolerance.get("of_largest", 0) * largest
    with np.errstate(invalid="ignore"):
        return np.isclose(y, x, tolerance.get("rtol", 0), atol, equal_nan=True)


def _is_float(array: Array) -> bool:
    """Return True if an array has floating-point elements, those of numpy extensions included."""
    return DType.from_numpy(array).is_float


def _has_different_bits(x: Array, y: Array) -> Array:
    """Return for each element of two arrays of one type if their bits differ; all NaN count as
    equal.
    """
    bits = [np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.dtype.itemsize) for a in (x, y)]
    with np.errstate(invalid="ignore"):
        both_nan = (x != x) & (y != y)
    return (bits[0] != bits[1]).any(axis=-1) & ~both_nan


# --- texts


def _module_text(module: IRModule, table: ConstantTable, first_names: Iterable[str] = ()) -> str:
    """Return the text of a module without types of inner nodes, its constants as `$GENERATOR(...)`.

    Functions are printed one by one, so that %0 is the first node of each. The functions called
    `first_names` come first, in this order; the remaining ones follow in alphabetical order.
    """
    names = dict.fromkeys([*(name for name in first_names if name in module), *sorted(module.functions)])
    header = IRModule({}, module.attrs, module.type_definitions)
    parts = [header, *(IRModule({name: module[name]}) for name in names)]
    return "\n".join(text for part in parts if (text := _text_of_part(part, table)))


def _text_of_part(module: IRModule, table: ConstantTable) -> str:
    """Return the text of one function, or of the attributes and data types of a module; "" for
    none.
    """
    body, constants = print_without_metadata(module, lambda _: "")
    text = _COMMENT_REGEX.sub("", body.split("\n", 1)[1]).strip()
    return _REFERENCE_REGEX.sub(lambda match: table.text_of(constants[int(match[1])]), text)


def _diagnostics_text(error: AotcError) -> str:
    """Return each diagnostic as `CODE: MESSAGE`, followed by its notes and its hint, without
    positions.
    """
    lines = []
    for diagnostic in error.diagnostics:
        lines.append(f"{diagnostic.code}: {diagnostic.message}")
        lines += [f"  note: {note}" for note in diagnostic.notes]
        lines += [f"  hint: {diagnostic.hint}"] if diagnostic.hint else []
    return "\n".join(lines)


def _compare_text(case: Case, section: Section, text: str, update: bool) -> None:
    """Raise CaseFileError unless a section's body is `text`; with `update`, write it into the file."""
    if text == section.body:
        return
    if update:
        replace_body(case, section, text)
        return
    where = f"{_difference(section.body, text)}\n(--update-golden writes this, if it is meant)"
    case.fail(section.line, f"[{section.name}] differs from the result (-, +):\n{where}")


def _compare_reasons(case: Case, report: RewriteReport, update: bool) -> None:
    """Compare the reasons for which rules did not apply with those of the section [reasons]."""
    section = case.optional_section("reasons")
    if section is not None:
        reasons = {f"{rule}: {reason}" for rule, stats in report.items() for reason in stats.refused}
        _compare_text(case, section, "\n".join(sorted(reasons)), update)


def _difference(expected: str, actual: str) -> str:
    lines = difflib.unified_diff(expected.split("\n"), actual.split("\n"), lineterm="", n=2)
    return "\n".join([*lines][2:])
