# SPDX-License-Identifier: Apache-2.0
"""Convert a traced or scripted TorchScript graph to the graph IR, as from_pytorch of TVM's Relay
does.

Input: a ScriptModule and the names, shapes and dtypes of its inputs. Output: a module and its
parameters by name. Branches and loops are evaluated at compile time; in-place operators update the
tensors of which their argument is a view.

    module, params = from_script(torch.jit.trace(net, x), [("x", (1, 3, 224, 224))])
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import torch

from aotc.ir import AotcError, AotcTypeError, AotcValueError, Array, Op, Span, SymDim, TensorType
from aotc.ir.compile_time_limits import budget, spending
from aotc.relay.analysis import free_vars
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.pytorch.aliases import Memory
from aotc.relay.frontend.pytorch.converter_values import Absent, Value, array_of, dtype_name, int_of, is_tensor
from aotc.relay.frontend.pytorch.inplace_and_out_forms import form_of
from aotc.relay.frontend.pytorch.operator_conversion import (
    POISON,
    CustomConverter,
    call_custom,
    call_operator,
    flattened,
    full_name,
    known,
)
from aotc.relay.frontend.pytorch.torchscript_inputs import input_types
from aotc.relay.graph_api import Constant, Expr, Function, IRModule, Mutator, Tuple, Var, fresh_name, with_type

NODES: Final = "the program, its loops unrolled,"


#: Operators that return a view or a copy, depending on the strides of their argument.
_MAYBE_VIEWS: Final = {"contiguous", "reshape", "reshape_as", "flatten", "ravel", "to", "type_as"}


@dataclass(slots=True)
class _Conversion:
    """The state of the conversion of one TorchScript graph; values are identified by their
    TorchScript names (`debugName`).
    """

    root: Any
    custom: Mapping[str, CustomConverter]
    separator: str
    names: dict[str, str]
    consumers: dict[str, str]
    memory: Memory = field(default_factory=Memory)
    params: dict[str, Any] = field(default_factory=dict)
    vars: dict[tuple[Any, ...], Var] = field(default_factory=dict)
    problems: Problems = field(default_factory=lambda: Problems("torch-node"))

    def read(self, value: Any) -> Value:
        return known(self.memory.values[value.debugName()])

    def inputs(self, node: Any) -> list[Value]:
        return [self.read(v) for v in node.inputs()]

    def block(self, block: Any) -> None:
        """Convert the nodes of a TorchScript graph or block in order; problems are recorded."""
        for node in block.nodes():
            for out in node.outputs():
                self.memory.bind(out.debugName(), POISON)
            with self.problems.at(self.span(node), _source_line(node)):
                self.node(node)

    def span(self, node: Any) -> Span:
        first = next(iter(node.outputs()), None)
        if node.kind() == "prim::GetAttr":
            return Span(f"{self.consumers.get(node.output().debugName(), 'self')}.{node.s('name')}")
        return Span(self.names.get(first.debugName(), node.kind()) if first is not None else node.kind())

    def node(self, node: Any) -> None:
        budget().spend("compile.max_nodes", 1, NODES)
        kind = node.kind().removeprefix("prim::")
        special, plain = _PRIMS.get(kind), _VALUES.get(kind)
        if special is not None:
            special(self, node)
            return
        args = self.inputs(node)
        if plain is not None:
            self.bind(node, plain(*args))
            self.note_construction(node, kind)
            return
        custom = self.custom.get(node.kind())
        if custom is not None:
            self.bind(node, call_custom(custom, node.kind(), args, [str(v.type()) for v in node.inputs()]))
            return
        if node.kind().startswith("prim::") or node.schema() == "(no schema)":
            raise AotcError("torch-op", f"{node.kind()} is not supported")
        schema = torch._C.parse_schema(node.schema())
        result = call_operator(schema, args, {})
        self.bind(node, result)
        self.alias(node, schema, args)

    def bind(self, node: Any, result: Value) -> None:
        """Bind the results of a TorchScript node to the names of its outputs."""
        outputs = [v.debugName() for v in node.outputs()]
        results = [result] if len(outputs) == 1 else result
        for name, value in zip(outputs, results, strict=False):
            self.memory.values[name] = value

    # --- aliases

    def note_construction(self, node: Any, kind: str) -> None:
        """Record the elements of a container that a TorchScript node constructs, or the alias that
        it creates.
        """
        (out,) = (v.debugName() for v in node.outputs())
        inputs = [v.debugName() for v in node.inputs()]
        if kind.endswith("Construct"):
            self.memory.hold(out, inputs, in_order=kind != "DictConstruct")
        elif kind in ("unchecked_cast", "data"):
            self.memory.share(out, inputs[0], None)
        elif kind == "TupleIndex":
            self.note_element(out, inputs[0], int(self.memory.values[inputs[1]]))

    def note_element(self, out: str, container: str, index: Any) -> None:
        """Record that the value `out` is the element `index` of a list, tuple or dictionary."""
        parts = self.memory.parts(container)
        if parts is not None and isinstance(index, int):
            self.memory.share(out, parts[index], None)
        else:
            self.memory.share(out, container, lambda values: values[index])

    def alias(self, node: Any, schema: Any, args: list[Value]) -> None:
        """Record the views that a TorchScript operator returns; for an in-place operator, write its
        result to the tensors that it modifies.
        """
        outputs = [v.debugName() for v in node.outputs()]
        inputs = [v.debugName() for v in node.inputs()]
        if form_of(schema).written:
            self.assign(schema, inputs, outputs, args)
            return
        plain = schema.name.removeprefix("aten::")
        if plain == "__getitem__" and isinstance(args[0], (list, tuple, dict)):
            self.note_element(outputs[0], inputs[0], args[1])
            return
        if any(isinstance(a, (list, tuple, dict)) for a in args):
            kept = [name for name in outputs if isinstance(self.memory.values[name], (list, tuple, dict))]
            for name in kept:
                self.memory.hold(name, inputs, in_order=False)
        shares = [k for k, a in enumerate(schema.arguments) if a.alias_info]
        certain = bool(shares) and any(r.alias_info for r in schema.returns) and plain not in _MAYBE_VIEWS
        if not certain:
            result: Value = self.memory.values[outputs[0]] if outputs and plain != "clone" else None
            same = is_tensor(result) and is_tensor(args[0]) and g.dtype(result) == g.dtype(args[0])
            if same and (plain in _MAYBE_VIEWS or result is args[0]):
                self.memory.share(outputs[0], inputs[0], None, certain=False)
            return
        k = shares[0]
        for name in outputs:
            self.memory.share(name, inputs[k], _redo(schema, args, k))

    def assign(self, schema: Any, inputs: list[str], outputs: list[str], args: list[Value]) -> None:
        """Write the results of an in-place operator to its written arguments, and make the outputs
        aliases of these.
        """
        memory, form = self.memory, form_of(schema)
        for number, out in zip_longest(form.written, outputs):
            if number is None:
                raise AotcError("torch-op", f"{full_name(schema)} is not supported")
            target = memory.original(inputs[number])
            if form.changes:
                memory.change_view(target, _redo(form.functional, args, number))
            else:
                value = POISON if out is None else memory.values[out]
                _check_written(schema, args[number], value, number in form.outs and not memory.is_shared(target))
                memory.write(target, value)
            if schema.name == "aten::append":
                memory.elements[target] = (*memory.elements.get(target, ()), inputs[1])
            if out is not None:
                memory.values[out] = memory.values[target]
                memory.share(out, target, None)

    # --- attributes of modules

    def attribute(self, node: Any) -> None:
        """Convert prim::GetAttr, access to an attribute of a module: a submodule or number becomes
        a Python value, a parameter becomes a variable named after the first operator that reads it.
        """
        owner, name = self.read(node.input()), node.s("name")
        value, out = getattr(owner, name), node.output().debugName()
        if isinstance(value, torch.Tensor):
            self.memory.fixed[out] = name
            value = self.parameter(out, name, value)
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            value = [self.parameter(out, name, v) for v in value]
        self.memory.values[out] = value

    def parameter(self, out: str, name: str, tensor: Any) -> Var:
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.storage_offset())
        if key in self.vars and tensor.numel():
            return self.vars[key]
        stem = f"{self.consumers.get(out, self.names.get(out, 'self'))}{self.separator}{name}"
        label = fresh_name(stem, self.params)
        array = array_of(tensor)
        self.params[label] = array
        self.vars[key] = Var(label, TensorType(array.shape, str(dtype_name(tensor.dtype))), Span(label))
        return self.vars[key]


def _source_line(node: Any) -> str:
    """Return the line of Python source of a TorchScript node for messages, or "" if it is not
    recorded.
    """
    text = str(node.sourceRange()).strip().splitlines()
    return f"in {text[0]}" if text and "(" in text[0] else ""


# --- nodes that are not operators


def _with_constants(value: Value) -> Value:
    """Convert torch tensors, also in nested lists, to constants; other values are returned
    unchanged.
    """
    if isinstance(value, (list, tuple)):
        return [_with_constants(v) for v in value]
    return g.constant(array_of(value)) if isinstance(value, torch.Tensor) else value


def _redo(schema: Any, args: Sequence[Value], number: int) -> Callable[[Value], Value]:
    """Return a PyTorch operator call as a function of its argument with the index `number`, with
    the other arguments fixed.
    """

    def redo(value: Value) -> Value:
        return call_operator(schema, [*args[:number], value, *args[number + 1 :]], {})

    return redo


def _check_written(schema: Any, target: Value, value: Value, may_resize: bool) -> None:
    """Raise AotcError (code "torch-op") if the result of an in-place or `out=` operator and the
    tensor to which it is written have different shapes, unless `may_resize` is True.
    """
    if not is_tensor(target) or not is_tensor(value) or may_resize or g.dims(target) == g.dims(value):
        return
    text = f"{full_name(schema)} writes a result of shape {g.dims(value)} to a tensor of shape {g.dims(target)}"
    raise AotcError("torch-op", text, hint="write to a tensor of the shape of the result, or use the result itself")


def _unpack(c: _Conversion, node: Any) -> None:
    items = list(c.inputs(node)[0])
    outputs = [v.debugName() for v in node.outputs()]
    source = node.input().debugName()
    for k, (name, item) in enumerate(zip(outputs, items, strict=True)):
        c.memory.values[name] = item
        c.note_element(name, source, k)


def _raise(c: _Conversion, node: Any) -> None:
    message = c.memory.values.get(next(iter(node.inputs())).debugName(), "")
    raise AotcError("torch-raise", f"the module raises an exception for these inputs: {message}")


def _condition(value: Value) -> bool:
    if isinstance(value, Constant):
        return bool(value.data.reshape(-1)[0])
    if is_tensor(value) or isinstance(value, SymDim):
        hint = "torch.where chooses element by element"
        raise AotcError(
            "torch-dynamic", "a branch or loop that depends on a value computed at run time is not supported", hint=hint
        )
    return bool(value)


def _if(c: _Conversion, node: Any) -> None:
    blocks = list(node.blocks())
    chosen = blocks[0 if _condition(c.inputs(node)[0]) else 1]
    c.block(chosen)
    for out, value in zip(node.outputs(), chosen.outputs(), strict=True):
        _pass_on(c, value.debugName(), out.debugName())


def _pass_on(c: _Conversion, source: str, name: str) -> None:
    """Bind `name` to the value of `source`, as its alias, when the value enters or leaves a
    TorchScript block.
    """
    c.memory.bind(name, c.memory.values[source])
    c.memory.share(name, source, None)


def _loop(c: _Conversion, node: Any) -> None:
    trips, going, *_ = c.inputs(node)
    limit, step = int_of(trips), 0
    (body,) = node.blocks()
    counter, *formals = body.inputs()
    names = [v.debugName() for v in list(node.inputs())[2:]]
    while step < limit and _condition(going):
        budget().spend("compile.max_nodes", 1, NODES)
        c.memory.bind(counter.debugName(), step)
        for source, formal in zip(_kept(c, names), formals, strict=True):
            _pass_on(c, source, formal.debugName())
        c.block(body)
        first, *rest = body.outputs()
        going, names = c.read(first), [v.debugName() for v in rest]
        step += 1
    for source, out in zip(_kept(c, names), node.outputs(), strict=True):
        _pass_on(c, source, out.debugName())


def _kept(c: _Conversion, names: Sequence[str]) -> list[str]:
    """Return generated names bound to the current values of `names`, so that a loop iteration can
    bind the names to new values while the old ones are still read.
    """
    kept = [c.memory.unused(name) for name in names]
    for source, name in zip(names, kept, strict=True):
        _pass_on(c, source, name)
    return kept


def _number_as_tensor(value: Value) -> Value:
    """Convert a number to a constant tensor (prim::NumToTensor); a dynamic dimension is returned
    unchanged.
    """
    if isinstance(value, SymDim):
        return value
    return g.constant(value, None if isinstance(value, int) else "float32")


_PRIMS: Final[Mapping[str, Callable[[_Conversion, Any], None]]] = {
    "Constant": lambda c, node: c.bind(node, _with_constants(node.output().toIValue())),
    "GetAttr": _Conversion.attribute,
    "If": _if,
    "ListUnpack": _unpack,
    "Loop": _loop,
    "RaiseException": _raise,
    "TupleUnpack": _unpack,
}
#: TorchScript nodes (without "prim::") that compute a value from the values of their inputs only,
#: and their functions.
_VALUES: Final[Mapping[str, Callable[..., Value]]] = {
    "DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "ListConstruct": lambda *items: list(items),
    "NumToTensor": _number_as_tensor,
    "TupleConstruct": lambda *items: items,
    "TupleIndex": operator.getitem,
    "Uninitialized": lambda: Absent("values that were never set"),
    "data": lambda x: x,
    "device": lambda _: torch.device("cpu"),
    "dtype": lambda x: getattr(torch, g.dtype(x)),
    "is_cuda": lambda _: False,
    "is_quantized": lambda _: False,
    "max": max,
    "min": min,
    "unchecked_cast": lambda x: x,
}


# --- entry point


def _source_names(graph: Any, friendly: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of TorchScript nodes by output, made of kind and running number as in TVM's
    Relay, and for each value the name of the first node that reads it.
    """
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    consumers: dict[str, str] = {}
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            blocks.extend(node.blocks())
            kind = node.kind()
            number = counts.get(kind, 0)
            if kind != "prim::GetAttr":
                counts[kind] = number + 1
            name = f"{kind}_{number}"
            name = name.replace(":", "_").replace(".", "_") if friendly else name
            names.update({v.debugName(): name for v in node.outputs()})
            for value in node.inputs():
                consumers.setdefault(value.debugName(), name)
    return names, consumers


class _Untyped(Mutator):
    """A pass that removes inferred types, since from_pytorch of TVM's Relay returns an untyped
    module; InferType adds them.
    """

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        return new if isinstance(new, (Op, Constant)) else with_type(new, None)  # type: ignore[type-var]


@g.codes_of("torch")
def from_script(
    script_module: Any,
    input_infos: Sequence[Any],
    custom_convert_map: Mapping[str, CustomConverter] | None = None,
    default_dtype: str = "float32",
    use_parser_friendly_name: bool = False,
) -> tuple[IRModule, dict[str, Array]]:
    """Convert a ScriptModule to a module and its parameters; see
    `aotc.relay_api.frontend.from_pytorch`.
    """
    if not isinstance(script_module, torch.jit.ScriptModule):
        hint = "torch.jit.trace(module, example_inputs) makes one; from_exported_program takes torch.export programs"
        text = f"from_pytorch takes a torch.jit.ScriptModule, not {type(script_module).__name__}"
        raise AotcTypeError("torch-module", text, hint=hint)
    graph = script_module.graph.copy()
    torch._C._jit_pass_inline(graph)
    names, consumers = _source_names(graph, use_parser_friendly_name)
    this, *inputs = graph.inputs()
    types = input_types(input_infos, inputs, default_dtype)
    separator = "_" if use_parser_friendly_name else "."
    conversion = _Conversion(script_module, custom_convert_map or {}, separator, names, consumers)
    conversion.memory.values[this.debugName()] = script_module
    params: list[Var] = []
    for value, (name, ty) in zip(inputs, types, strict=True):
        reader = consumers.get(value.debugName())
        params.append(Var(name, ty, Span(f"{reader}{separator}{name}" if reader else name)))
        conversion.memory.values[value.debugName()] = params[-1]
    with spending():
        conversion.block(graph)
        outputs = _outputs(conversion, graph)
    clash = dict(types).keys() & conversion.params
    if clash:
        raise AotcValueError("torch-inputs", f"{min(clash)!r} is the name of a parameter: call the input otherwise")
    body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
    used = [v for v in free_vars(body) if v not in params]
    arrays = {v.name: conversion.params[v.name] for v in used}
    main = _Untyped().visit_function(Function([*params, *used], body))
    return IRModule({"main": main}), arrays


def _outputs(conversion: _Conversion, graph: Any) -> list[Expr]:
    outputs: list[Expr] = []
    for value in graph.outputs():
        with conversion.problems.at(Span("the output")):
            outputs += flattened(conversion.read(value))
    if not outputs and not conversion.problems.found:
        raise AotcError("torch-output", "the module returns nothing")
    conversion.problems.check()
    return outputs
