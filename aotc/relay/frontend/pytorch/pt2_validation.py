# SPDX-License-Identifier: Apache-2.0
"""Validate the graph of an exported program in a .pt2 file before PyTorch reads it, so that an
untrusted file cannot run code.

Input: the JSON data of a .pt2 file. Output: a copy of the program with known fields only, each of
them checked.

    clean = validate_exported_program(json.loads(text))  # Refused says which field is wrong, and why

PyTorch's reader trusts its file: it evaluates expressions on dimensions as Python code, calls any
attribute of torch that a node names, inserts names into source code that it executes, and imports
modules that nested containers name. This module therefore accepts only identifiers as names,
expressions of a few functions of symbols and numbers, and operators of ATen. It drops containers
(inputs and outputs are flat), guards, example inputs, and all metadata except the source line of a
node.
"""

import ast
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch.utils import _pytree as pytree

from aotc.ir.span import Span
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.pytorch.operator_conversion import stack_trace_source_line, unsupported_operator_error
from aotc.relay.frontend.pytorch.ops_quant import QUANTIZED_NAMESPACE
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import PYTHON_NUMBER_FUNCTIONS

#: A validator: it takes a value and its path in the program, and returns a clean copy or raises
#: Refused.
Validator: TypeAlias = Callable[[Any, str], Any]


class Refused(Exception):
    """Raised for a part of a file that is not accepted: the text names its path and the reason,
    `hint` a remedy.
    """

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


def refuse_unless(condition: object, text: str, hint: str = "") -> None:
    """Raise Refused, the error for parts of a .pt2 file that are not accepted, unless a condition
    holds.
    """
    if not condition:
        raise Refused(text, hint)


# --- validators of values


def _value_validator(test: Callable[[Any], bool], subject: str) -> Validator:
    def validate_value(value: Any, path: str) -> Any:
        refuse_unless(test(value), f"field {path} of the exported program is {str(value)[:80]!r}, not {subject}")
        return value

    return validate_value


def _full_match_test(pattern: str) -> Callable[[Any], bool]:
    regex = re.compile(pattern)
    return lambda value: isinstance(value, str) and regex.fullmatch(value) is not None


_FLAG: Final = _value_validator(lambda v: isinstance(v, bool), "true or false")
_INT: Final = _value_validator(lambda v: type(v) is int and -(1 << 63) <= v < 1 << 63, "an integer of 64 bits")
_TEXT: Final = _value_validator(lambda v: isinstance(v, str), "a text")
_NAME: Final = _value_validator(
    lambda v: isinstance(v, str) and len(v) < 1000 and v.isidentifier() and not keyword.iskeyword(v), "a name"
)
_DOTTED: Final = _value_validator(_full_match_test(r"[\w.:/+\- ]{1,1000}"), "the name of a parameter")
_PLAIN: Final = _value_validator(_full_match_test(r"[\w.,:/+\- ]{0,1000}"), "a text without quotes")
_TARGET: Final = _value_validator(_full_match_test(r"[\w.:#]{1,1000}"), "the name of an operator")
#: Names of symbols. The numbers of u7 or zuf7 (symbols without known values) are limited, since
#: PyTorch counts up to them.
_SYMBOL: Final = re.compile(r"(?:u|zuf)[0-9]{1,4}|(?!u[0-9]|zuf[0-9])[A-Za-z_][A-Za-z0-9_]{0,200}")


def _validate_float(value: Any, path: str) -> float:
    number = type(value) in (int, float) or value in ("Infinity", "-Infinity", "NaN")
    refuse_unless(number, f"{path} is {str(value)[:80]!r}, not a number")
    return float(value)


def _optional_validator(validator: Validator) -> Validator:
    return lambda value, where: None if value is None else validator(value, where)


def _list_validator(validator: Validator) -> Validator:
    def validate_list(value: Any, path: str) -> list[Any]:
        refuse_unless(isinstance(value, list), f"{path} is no list")
        return [validator(item, f"{path}[{k}]") for k, item in enumerate(value)]

    return validate_list


def _dict_validator(key_validator: Validator, value_validator: Validator) -> Validator:
    def validate_dict(value: Any, path: str) -> dict[str, Any]:
        refuse_unless(isinstance(value, dict), f"{path} is no table")
        return {
            key_validator(k, f"{path}: a key"): value_validator(item, f"{path}.{k}"[:300]) for k, item in value.items()
        }

    return validate_dict


def _record_validator(optional: Mapping[str, Validator] = MappingProxyType({}), /, **fields: Validator) -> Validator:
    """Return a validator of records with the required fields `fields` and the fields `optional`;
    other fields are dropped.
    """

    def validate_record(value: Any, path: str) -> dict[str, Any]:
        refuse_unless(isinstance(value, dict), f"{path} is no record")
        missing = next((name for name in fields if name not in value), "")
        refuse_unless(not missing, f"{path} has no {missing}")
        checks = {**fields, **optional}
        return {n: check(value[n], f"{path}.{n}") for n, check in checks.items() if n in value}

    return validate_record


def _union_validator(**kinds: Validator) -> Validator:
    """Return a validator of records that have exactly one field, which is one of `kinds`."""

    def validate_union(value: Any, path: str) -> dict[str, Any]:
        refuse_unless(isinstance(value, dict) and len(value) == 1, f"{path} is not of one kind")
        ((kind, item),) = value.items()
        text = f"{path} is of the kind {str(kind)[:80]!r}, which is not supported"
        refuse_unless(kind in kinds, text)
        return {kind: kinds[kind](item, f"{path}.{kind}")}

    return validate_union


# --- expressions on dimensions

_POWER_FUNCTIONS: Final = frozenset({"Pow", "PowByNatural", "FloatPow"})
_ALLOWED_EXPRESSION_FUNCTIONS: Final = _POWER_FUNCTIONS | {
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Max", "Min", "Mod", "Abs", "floor", "ceiling", "FloorDiv",
    "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "FloatTrueDiv",
    "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal",
    "ToFloat", "Identity", "Equality", "Eq", "Unequality", "Ne", "LessThan", "Le", "StrictLessThan", "Lt",
    "GreaterThan", "Ge", "StrictGreaterThan", "Gt", "And", "Or", "Not",
}  # fmt: skip
_symbol: Final = _value_validator(
    lambda v: isinstance(v, str) and _SYMBOL.fullmatch(v) is not None and v not in _ALLOWED_EXPRESSION_FUNCTIONS,
    "the name of a dynamic dimension",
)
_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?")
_MAX_EXPRESSION_CHARACTERS: Final = 20_000
_MAX_EXPONENT: Final = 8


def _validate_dim_expression(value: Any, path: str) -> str:
    """Validate a sympy expression written as Python code that constructs it, such as
    `Add(Symbol('s0'), Integer(1))`.

    The result is generated from the checked syntax tree, so that exactly the checked code is
    evaluated later.
    """
    _TEXT(value, path)
    try:
        if len(value) > _MAX_EXPRESSION_CHARACTERS:
            raise SyntaxError
        tree = ast.parse(value, mode="eval").body
        _check_allowed_dim_expression_calls(tree, path)
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"{path} is no expression on dimensions: {value[:80]!r}") from error


def _check_allowed_dim_expression_calls(tree: ast.expr, path: str) -> None:
    """Raise ValueError if a syntax tree contains anything but calls of the allowed functions with
    symbols and numbers, or a large or nested power.
    """
    work = [(tree, False)]
    while work:
        node, powered = work.pop()
        if isinstance(node, ast.Name) and node.id in ("true", "false"):
            continue
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Name)
            or node.func.id not in _ALLOWED_EXPRESSION_FUNCTIONS
        ):
            raise ValueError
        name = node.func.id
        if name in ("Symbol", "Float", "Integer", "Rational"):
            _check_symbol_or_number_has_literal_args(name, node, path)
            continue
        if node.keywords or (name in _POWER_FUNCTIONS and (powered or not _has_small_integer_second_argument(node))):
            raise ValueError
        work += [(arg, powered or name in _POWER_FUNCTIONS) for arg in node.args]


def _check_symbol_or_number_has_literal_args(name: str, node: ast.Call, path: str) -> None:
    """Raise ValueError unless the arguments of a symbol or number are literals: a name, a number as
    text, or integers; keyword arguments must be small positive integers or flags.
    """
    values = [ast.literal_eval(arg) for arg in node.args]
    options = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    if None in options or not all(type(v) is bool or (type(v) is int and 0 < v < 1000) for v in options.values()):
        raise ValueError
    if name == "Symbol" and len(values) == 1:
        _symbol(values[0], path)
    elif name == "Float" and len(values) == 1:
        if not _NUMBER.fullmatch(str(values[0])):
            raise ValueError
    elif not values or len(values) > 2 or options or not all(type(v) is int and abs(v) <= 1 << 63 for v in values):
        raise ValueError


def _has_small_integer_second_argument(node: ast.Call) -> bool:
    exponent = node.args[1] if len(node.args) == 2 else None
    if not isinstance(exponent, ast.Call) or not isinstance(exponent.func, ast.Name) or exponent.func.id != "Integer":
        return False
    return len(exponent.args) == 1 and abs(ast.literal_eval(exponent.args[0])) <= _MAX_EXPONENT


# --- validators of programs


def _replace_device_by_cpu(value: Any, path: str) -> dict[str, Any]:
    """Validator of a device: replaces it by the CPU, on whatever device the program was exported."""
    return {"type": "cpu", "index": None}


def _reduce_metadata_to_source_line(value: Any, path: str) -> dict[str, str]:
    """Validator of the metadata of a node: reduces it to the last line of Python source in its
    stack trace.
    """
    line = stack_trace_source_line(value).removeprefix("in ")
    return {"stack_trace": line[:300]} if line and line.isprintable() else {}


#: Largest nesting depth of graphs; PyTorch's messages about an invalid graph grow exponentially
#: with its depth.
_MAX_GRAPH_NESTING: Final = 4


def _validate_nested_graph(value: Any, path: str) -> dict[str, Any]:
    refuse_unless(path.count("as_graph") <= _MAX_GRAPH_NESTING, "its graphs are nested too deeply")
    clean: dict[str, Any] = _record_validator(name=_NAME, graph=_GRAPH)(value, path)
    return clean


_TENSOR: Final = _record_validator(name=_NAME)
_HINT: Final = _union_validator(as_int=_INT, as_bool=_FLAG, as_float=_validate_float)
_EXPR: Final = _record_validator({"hint": _optional_validator(_HINT)}, expr_str=_validate_dim_expression)
_SYM_INT: Final = _union_validator(as_expr=_EXPR, as_int=_INT)
_SYM_INT_ARG: Final = _union_validator(as_name=_NAME, as_int=_INT)
_SYM_FLOAT_ARG: Final = _union_validator(as_name=_NAME, as_float=_validate_float)
_SYM_BOOL_ARG: Final = _union_validator(as_name=_NAME, as_bool=_FLAG)
_MAYBE_TENSOR: Final = _union_validator(as_tensor=_TENSOR, as_none=_FLAG)
_ARGUMENT: Final = _union_validator(
    as_none=_FLAG,
    as_tensor=_TENSOR,
    as_tensors=_list_validator(_TENSOR),
    as_int=_INT,
    as_ints=_list_validator(_INT),
    as_float=_validate_float,
    as_floats=_list_validator(_validate_float),
    as_string=_TEXT,
    as_strings=_list_validator(_TEXT),
    as_sym_int=_SYM_INT_ARG,
    as_sym_ints=_list_validator(_SYM_INT_ARG),
    as_scalar_type=_INT,
    as_memory_format=_INT,
    as_layout=_INT,
    as_device=_replace_device_by_cpu,
    as_bool=_FLAG,
    as_bools=_list_validator(_FLAG),
    as_sym_bool=_SYM_BOOL_ARG,
    as_sym_bools=_list_validator(_SYM_BOOL_ARG),
    as_graph=_validate_nested_graph,
    as_optional_tensors=_list_validator(_MAYBE_TENSOR),
    as_sym_float=_SYM_FLOAT_ARG,
    as_sym_floats=_list_validator(_SYM_FLOAT_ARG),
    as_optional_tensor=_MAYBE_TENSOR,
)
_INPUT: Final = _record_validator(
    {"kind": _optional_validator(_INT)}, name=lambda v, where: v and _NAME(v, where), arg=_ARGUMENT
)
_NODE: Final = _record_validator(
    {"is_hop_single_tensor_return": _optional_validator(_FLAG), "name": _optional_validator(_NAME)},
    target=_TARGET,
    inputs=_list_validator(_INPUT),
    outputs=_list_validator(_ARGUMENT),
    metadata=_reduce_metadata_to_source_line,
)
TENSOR_META: Final = _record_validator(
    dtype=_INT, sizes=_list_validator(_SYM_INT), requires_grad=_FLAG, device=_replace_device_by_cpu,
    strides=_list_validator(_SYM_INT), storage_offset=_SYM_INT, layout=_INT,
)  # fmt: skip
_GRAPH_INPUT: Final = _union_validator(
    as_tensor=_TENSOR, as_sym_int=_SYM_INT_ARG, as_int=_INT, as_float=_validate_float, as_bool=_FLAG, as_none=_FLAG,
    as_string=_PLAIN,
)  # fmt: skip
_GRAPH: Final = _record_validator(
    {
        "is_single_tensor_return": _FLAG,
        "sym_float_values": _dict_validator(_NAME, _union_validator(as_expr=_EXPR, as_float=_validate_float)),
    },
    inputs=_list_validator(_GRAPH_INPUT), outputs=_list_validator(_ARGUMENT), nodes=_list_validator(_NODE),
    tensor_values=_dict_validator(_NAME, TENSOR_META), sym_int_values=_dict_validator(_NAME, _SYM_INT),
    sym_bool_values=_dict_validator(_NAME, _union_validator(as_expr=_EXPR, as_bool=_FLAG)),
)  # fmt: skip
_CONSTANT: Final = _union_validator(
    as_none=_FLAG, as_int=_INT, as_float=_validate_float, as_string=_PLAIN, as_bool=_FLAG
)
_INPUT_SPEC: Final = _union_validator(
    user_input=_record_validator(arg=_GRAPH_INPUT),
    parameter=_record_validator(arg=_TENSOR, parameter_name=_DOTTED),
    buffer=_record_validator(arg=_TENSOR, buffer_name=_DOTTED, persistent=_FLAG),
    tensor_constant=_record_validator(arg=_TENSOR, tensor_constant_name=_DOTTED),
    constant_input=_record_validator(name=_NAME, value=_CONSTANT),
)
_OUTPUT_SPEC: Final = _union_validator(
    user_output=_record_validator(arg=_ARGUMENT),
    buffer_mutation=_record_validator(arg=_TENSOR, buffer_name=_DOTTED),
    parameter_mutation=_record_validator(arg=_TENSOR, parameter_name=_DOTTED),
    user_input_mutation=_record_validator(arg=_TENSOR, user_input_name=_NAME),
)
_SIGNATURE: Final = _record_validator(
    input_specs=_list_validator(_INPUT_SPEC), output_specs=_list_validator(_OUTPUT_SPEC)
)
_DIALECT: Final = _value_validator(lambda v: v in ("ATEN", "TRAINING"), "a dialect of operators")
_RANGE: Final = _record_validator(min_val=_optional_validator(_INT), max_val=_optional_validator(_INT))
_PROGRAM: Final = _record_validator(
    graph_module=_record_validator(graph=_GRAPH, signature=_SIGNATURE),
    range_constraints=_dict_validator(_symbol, _RANGE),
    schema_version=_record_validator(major=_INT, minor=_INT),
    verifiers=_list_validator(_DIALECT),
)
_PAYLOAD: Final = _record_validator(
    path_name=_DOTTED, is_param=_FLAG, use_pickle=_FLAG, tensor_meta=_optional_validator(TENSOR_META)
)
#: Validator of the table of parameter files: where in the archive the values of each parameter are.
PAYLOADS: Final = _dict_validator(_DOTTED, _PAYLOAD)


def validate_exported_program(program: Any) -> dict[str, Any]:
    """Validate the JSON data of an exported program and return a clean copy. Raises Refused if it
    is not well formed, and AotcError with all operators that are not supported.
    """
    clean: dict[str, Any] = _PROGRAM(program, "the program")
    graph_module = clean["graph_module"]
    _check_graph_operators(graph_module["graph"])
    graph_module["module_call_graph"] = [{"fqn": "", "signature": _flat_call_signature(graph_module["signature"])}]
    return {**clean, "opset_version": {}}


def _flat_call_signature(signature: dict[str, Any]) -> dict[str, Any]:
    """Return the calling convention of an exported program with a signature: all inputs as
    positional arguments in order, all outputs as a flat tuple.
    """
    names = [
        _input_spec_name(spec) for spec in signature["input_specs"] if "user_input" in spec or "constant_input" in spec
    ]
    results = sum("user_output" in spec for spec in signature["output_specs"])
    structures = [pytree.tree_structure(((0,) * len(names), {})), pytree.tree_structure((0,) * results)]
    in_spec, out_spec = map(pytree.treespec_dumps, structures)
    return {"inputs": [], "outputs": [], "in_spec": in_spec, "out_spec": out_spec, "forward_arg_names": names}


def _input_spec_name(spec: dict[str, Any]) -> str:
    if "constant_input" in spec:
        return str(spec["constant_input"]["name"])
    argument = spec["user_input"]["arg"]
    name = argument.get("as_tensor", {}).get("name") or argument.get("as_sym_int", {}).get("as_name")
    refuse_unless(name is not None, "an input of the exported program is a number without a name")
    return str(name)


def _graph_and_nested_graphs(graph: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a graph of an exported program and all graphs nested in the arguments of its nodes."""
    work = [graph]
    while work:
        yield (current := work.pop())
        arguments = (entry["arg"] for node in current["nodes"] for entry in node["inputs"])
        work += [argument["as_graph"]["graph"] for argument in arguments if "as_graph" in argument]


_PYTHON_FUNCTION_NAMES: Final = frozenset(
    f"{function.__module__}.{function.__name__}" for function in PYTHON_NUMBER_FUNCTIONS
)
#: Higher-order operators that PyTorch inlines.
_INLINED_HIGHER_ORDER_OPS: Final = frozenset(
    f"torch.ops.higher_order.{name}" for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast")
)


def _check_graph_operators(graph: dict[str, Any]) -> None:
    problems = Problems("torch-node")
    for node in (node for nested_graph in _graph_and_nested_graphs(graph) for node in nested_graph["nodes"]):
        with problems.collect_errors_at(
            Span("exported program", node=node.get("name") or ""), stack_trace_source_line(node["metadata"])
        ):
            if not _is_tensor_operator_without_file_access(node["target"]):
                raise unsupported_operator_error(node["target"].removeprefix("torch.ops."))
    problems.raise_collected_problems()


def _is_tensor_operator_without_file_access(target: str) -> bool:
    """Return True if the target of a node is a PyTorch operator on tensors or numbers that does not
    read or write files.
    """
    if target in _PYTHON_FUNCTION_NAMES or target in _INLINED_HIGHER_ORDER_OPS:
        return True
    parts = target.split(".")
    if len(parts) != 5 or parts[:2] != ["torch", "ops"] or parts[2] not in ("aten", "prims", QUANTIZED_NAMESPACE):
        return False
    if parts[2] == QUANTIZED_NAMESPACE:  # importing this module registers the operators
        import_module("torch.ao.quantization.fx._decomposed")
    packet = getattr(getattr(torch.ops, parts[2]), parts[3], None)
    op_overload = getattr(packet, parts[4], None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
    return isinstance(op_overload, torch._ops.OpOverload) and all(
        a.name != "filename" for a in op_overload._schema.arguments
    )
