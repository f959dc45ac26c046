# SPDX-License-Identifier: Apache-2.0
"""Convert the operators of a TFLite model to the graph IR and collect all problems.

Input: a file and, optionally, other shapes of its inputs. Output: an IRModule with one function,
@main.

    module = from_tflite("net.tflite", rounding="litert")
    module.attrs["output_names"]                  # ("scores",)
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aotc.ir import AotcError, Span, TensorType, nearest, require, require_known
from aotc.ir.compile_time_limits import budget, spending
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import PoisonedError, Problems
from aotc.relay.frontend.graph_cut import Links, select_nodes
from aotc.relay.frontend.tflite.converter_table import CONVERTERS, INTEGERS, MOVES
from aotc.relay.frontend.tflite.integer_semantics import ROUNDINGS, Rounding
from aotc.relay.frontend.tflite.load import Model, Operator, Tensor, read_model
from aotc.relay.frontend.tflite.node import Node, apply, check_scales, check_types, rounding_of
from aotc.relay.graph_api import Constant, Expr, Function, IRModule, Tuple, Var, tensor_type_of

_PINNED = "aotc compiles for static shapes: give those of the inputs (--input-shape)"


@g.codes_of("tflite")
def from_tflite(
    model: str | Path | bytes | Any,
    *,
    shape: Mapping[str, Sequence[int]] | None = None,
    rounding: str = "tflm",
    name: str | None = None,
    cut_before: Sequence[str] = (),
    cut_after: Sequence[str] = (),
) -> IRModule:
    """Convert a TFLite model (a path, its bytes, or a `tflite.Model`) to a module.

    shape     shapes of inputs by name, which replace those of the file
    rounding  interpreter whose integer results are reproduced: "tflm" for TFLite Micro, "litert"
              for LiteRT
    name      name of the model in source locations; None for its file name
    cut_before   names of tensors that become the inputs; operators before them are omitted
    cut_after    names of tensors that become the outputs; operators after them are omitted

    The parameters of @main are the inputs of the first subgraph, under their names; quantized
    tensors remain integers. `attrs["output_names"]` holds the names of the outputs; several outputs
    are returned as a tuple.

    Raises AotcError listing every problem of the model: see `read_model`; and every operator that
    cannot be converted, with its number, the name of its result, and a hint.
    """
    require_known("tflite-rounding", "rounding", rounding, tuple(ROUNDINGS))
    loaded = read_model(model, name)
    with spending():
        part, operators = _part(loaded, cut_before, cut_after)
        return _Conversion(part, ROUNDINGS[rounding]).module(dict(shape or {}), operators)


def _part(loaded: Model, before: Sequence[str], after: Sequence[str]) -> tuple[Model, list[int]]:
    """Return the model with its inputs and outputs replaced by the tensors of a cut, and the
    indices of the operators between them.
    """
    if not before and not after:
        return loaded, list(range(len(loaded.operators)))
    names = list(_unique([tensor.name for tensor in loaded.tensors]))

    def named(numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(names[k] if k >= 0 else "" for k in numbers)

    links = [Links(named(op.inputs), named(op.outputs)) for op in loaded.operators]
    outputs = list(after) or list(named(loaded.outputs))
    part = select_nodes(links, named(loaded.inputs), outputs, before)
    inputs, results = (tuple(map(names.index, given)) for given in (part.inputs, outputs))
    return replace(loaded, inputs=inputs, outputs=results), part.nodes


def _unique(names: Sequence[str]) -> Iterator[str]:
    """Yield tensor names with numbers appended to duplicates, so that all are distinct."""
    total, seen = Counter(names), set(names)
    for place, name in enumerate(names):
        found = name
        while total[name] > 1 and found in seen:
            found += f"_{place}"
        seen.add(found)
        yield found


class _Conversion:
    """The state of the conversion of one TFLite model: the expressions of its tensors by index."""

    def __init__(self, loaded: Model, rounding: Rounding) -> None:
        self.loaded = loaded
        self.rounding = rounding
        self.problems = Problems("tflite-node", _PINNED)
        self.values: dict[int, Expr] = {}

    def module(self, shapes: dict[str, Sequence[int]], operators: Sequence[int]) -> IRModule:
        """Convert the TFLite operators with these indices to a module; `shapes` are shapes of
        inputs by name. Raises AotcError with all problems.
        """
        loaded = self.loaded
        params = self.parameters(shapes)
        for index in operators:
            op = loaded.operators[index]
            with self.problems.at(loaded.span(index), unfit=partial(self.unfit, op)):
                self.operator(op)
        outputs = list(self.outputs())
        self.problems.check()
        body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
        main = Function(tuple(params), body, span=Span(loaded.source))
        names = tuple(_unique([loaded.tensors[k].name for k in loaded.outputs]))
        return IRModule({"main": main}, {"output_names": names})

    def parameters(self, shapes: dict[str, Sequence[int]]) -> list[Var]:
        """Return the inputs of the TFLite model as variables of @main. Raises AotcError (code
        "tflite-pin") if `shapes` names an input that does not exist.
        """
        loaded = self.loaded
        names = list(_unique([loaded.tensors[k].name for k in loaded.inputs]))
        for name in shapes.keys() - set(names):
            text = f"the model has no input {name!r}"
            raise AotcError("tflite-pin", text, span=Span(loaded.source), hint=nearest(name, names))
        params = []
        for number, name in zip(loaded.inputs, names, strict=True):
            tensor, span = loaded.tensors[number], Span(loaded.source, node=name)
            shape = g.checked_shape(shapes.get(name, tensor.shape), tensor.dtype, f"input {name!r}")
            params.append(Var(name, TensorType(shape, tensor.dtype), span))
            self.values[number] = params[-1]
        return params

    def outputs(self) -> Iterator[Expr]:
        for number in self.loaded.outputs:
            with self.problems.at(Span(self.loaded.source)):
                yield self.value(number)
                continue
            if not self.problems.found:
                text = f"output {self.loaded.tensors[number].name!r} is never computed"
                self.problems.add("tflite-output", text, Span(self.loaded.source))

    def value(self, number: int) -> Expr:
        """Return the expression of a TFLite tensor. Raises PoisonedError if its computation failed."""
        found = self.values.get(number)
        if found is not None:
            return found
        tensor = self.loaded.tensors[number]
        if tensor.data is None and not tensor.variable:
            raise PoisonedError(tensor.name)
        span = Span(self.loaded.source, node=tensor.name)
        if tensor.data is not None:
            return self.values.setdefault(number, Constant(tensor.data, span))
        zero = int(tensor.zero[0]) if tensor.quantized else 0
        made = g.filled(zero, tensor.shape, str(tensor.dtype))
        return self.values.setdefault(number, made)

    def operator(self, op: Operator) -> None:
        """Convert one TFLite operator and store the expressions of its outputs."""
        budget().spend("compile.max_nodes", 1, "the model")
        converter = None if op.custom else CONVERTERS.get(op.name)
        if converter is None:
            kind = "custom operator" if op.custom else "operator"
            hint = "" if op.custom else nearest(op.name, CONVERTERS)
            more = "`aotc ops` lists the supported operators"
            raise AotcError("tflite-op", f"{kind} {op.name} is not supported", hint=hint or more)
        tensors = self.loaded.tensors

        def declared(numbers: Sequence[int]) -> tuple[Tensor | None, ...]:
            return tuple(None if k < 0 else tensors[k] for k in numbers)

        args = tuple(None if k < 0 else self.value(k) for k in op.inputs)
        results = tuple(tensors[k] for k in op.outputs)
        sides = declared(op.inputs), results, declared(op.intermediates)
        rounding = rounding_of(self.rounding, op.name, (*sides[0], *results))
        node = Node(op, args, *sides, rounding)
        if op.name not in INTEGERS:
            check_scales(node, op.name in MOVES)
        else:
            check_types(node)
        made = apply(converter, node)
        values = list(made) if isinstance(made, Sequence) else [made]
        text = f"{op.name} has {len(results)} outputs, {len(values)} are computed"
        require("tflite-output", len(values) >= len(results), text)
        for number, value in zip(op.outputs, values, strict=False):
            self.keep(number, value)

    def keep(self, number: int, value: Expr) -> None:
        tensor, ty = self.loaded.tensors[number], tensor_type_of(value)
        text = f"output {tensor.name!r} is declared {tensor.dtype}, the operator computes {ty.dtype}"
        require("tflite-output", ty.dtype == tensor.dtype, text)
        self.values[number] = value

    def unfit(self, op: Operator) -> str:
        """Return the message for a TFLite operator whose converter raises an exception."""
        known = (self.values.get(k) for k in op.inputs)
        types = ("none" if x is None else str(x.checked_type) for x in known)
        return f"{op.name} does not take these inputs and options: ({', '.join(types)})"
