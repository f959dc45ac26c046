# SPDX-License-Identifier: Apache-2.0
"""QuantizedEdges: inputs and outputs of a quantised model as integers, on request; what integers stand for is stated.

def @main(%x: Tensor[(1, 8), float32]) {
  %0 = qnn.quantize(%x, 0.5f, 3, out_dtype="int8"); ...; qnn.dequantize(%9, 0.25f, 0)
}
def @main(%x: Tensor[(1, 8), int8]) { ...; %9 }             with "compile.io_dtype": "int8"

The scale and the zero point that the graph no longer has become attributes of the module: `input_quantization` and
`output_quantization`, which hold a list for each tensor: data type, scales, zero points, axis.  Where the graph has
integers of the other sign, these are shifted by 128, and so is the zero point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, Diagnostic, DType, Pass, PassContext, Quantization, TensorType, nearest
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, Var, as_function, type_of
from aotc.relay.infer import infer_module, mention
from aotc.relay.module import IRModule, output_names
from aotc.relay.op.binary import add
from aotc.relay.op.cast import cast
from aotc.relay.transform.base import WhyNot, is_call, typed
from aotc.relay.visitor import children, mutated, post_order

#: What an interface can be asked for.
FLOAT: Final = "float32"
BYTES: Final = ("int8", "uint8")
#: From int8 to uint8.
_SHIFT: Final = 128
#: Where the scale stands among arguments; the zero point is next to it.
_PLACES: Final = {"qnn.quantize": 1, "qnn.dequantize": 1, "qnn.requantize": 3}

Meaning: TypeAlias = "Quantization | WhyNot"


@dataclass(frozen=True, repr=False)
class QuantizedEdges(Pass[IRModule]):
    """Integers for inputs that feed only qnn.quantize, and for outputs that come from qnn.dequantize.

    The configuration says which: `compile.io_dtype` is a data type for all inputs and outputs, or a mapping from names
    to data types, where "" stands for all others.  Where one type is for all, tensors of integers stay what they are.
    Raises AotcError with a diagnostic (code "io-dtype") for each tensor that cannot be what is asked for.
    """

    opt_level = 0

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = typed(module)
        edges = _Edges(start.main, _wanted(ctx.get_config("compile.io_dtype", None)))
        names = output_names(start, len(edges.outputs))
        edges.require_known([p.name for p in edges.main.params], names)
        for param in edges.main.params:
            edges.read(param)
        for number, name in enumerate(names):
            edges.write(number, name)
        if edges.problems:
            raise AotcError.collect(edges.problems)
        attrs = {key: rows for key, rows in edges.attributes() if any(rows)}
        function = edges.result()
        if function is start.main and all(module.attrs.get(key) == rows for key, rows in attrs.items()):
            return module
        made = IRModule({**start.functions, "main": function}, {**start.attrs, **attrs})
        return infer_module(made)


def _wanted(config: object) -> Mapping[str, str]:
    """Data types by name, "" for all others."""
    found = {"": config} if isinstance(config, str) else config or {}
    if not isinstance(found, Mapping) or any(value not in (*BYTES, FLOAT) for value in found.values()):
        text = f"{config!r} is no data type of inputs and outputs"
        raise AotcError("io-dtype", text, hint=f"known: {', '.join((*BYTES, FLOAT))}, or such by name")
    return found


def shifted(x: Expr, source: str, target: str) -> Expr:
    """Integers of 8 bits as those of the other sign: what was the least stays the least."""
    if source == target:
        return x
    shift = Constant(np.asarray(_SHIFT if target == "uint8" else -_SHIFT, np.int16))
    return cast(add(cast(x, "int16"), shift), target)


def _as(meaning: Quantization, dtype: str) -> Quantization:
    """What integers stand for after `shifted`."""
    shift = int(DType(dtype).min) - int(meaning.dtype.min)
    zeros = tuple(zero + shift for zero in meaning.zero_points)
    return Quantization(DType(dtype), meaning.scales, zeros, meaning.axis)


def _meaning(node: Expr, dtype: DType, rank: int) -> Meaning:
    """What the integers that a call makes or reads stand for."""
    assert isinstance(node, Call)
    place = _PLACES[str(node.op)]
    scale, zero = node.args[place : place + 2]
    if dtype not in BYTES:
        return WhyNot(f"its integers are {dtype}")
    if not isinstance(scale, Constant) or not isinstance(zero, Constant):
        return WhyNot("its scale or zero point is computed when the model runs")
    count = max(scale.data.size, zero.data.size)
    scales, zeros = (np.broadcast_to(c.data.reshape(-1), (count,)).tolist() for c in (scale, zero))
    axis = None if count == 1 else int(node.attrs["axis"]) % rank
    return Quantization(dtype, tuple(map(float, scales)), tuple(map(int, zeros)), axis)


def _row(meaning: Quantization | None) -> list[Any] | None:
    """As an attribute, which has a text form."""
    if meaning is None:
        return None
    return [str(meaning.dtype), list(meaning.scales), list(meaning.zero_points), meaning.axis]


@dataclass(eq=False)
class _Edges:
    """@main, and what becomes of its inputs and outputs.

    outputs   the results, as they become
    """

    main: Function
    wanted: Mapping[str, str]
    problems: list[Diagnostic] = field(default_factory=list)
    outputs: list[Expr] = field(init=False)

    def __post_init__(self) -> None:
        body = self.main.body
        self.outputs = list(body.fields) if isinstance(body, Tuple) else [body]
        self._params: dict[Var, Var] = {}
        self._inputs: dict[Var, Quantization] = {}
        self._outputs: dict[int, Quantization] = {}
        self._replaced: dict[Expr, Expr] = {}
        self._readers: dict[Expr, list[Expr]] = {}
        for node in post_order(body):
            for child in children(node):
                self._readers.setdefault(child, []).append(node)

    def require_known(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """A problem for each name that no input or output has."""
        known = {*inputs, *outputs, ""}
        for name in self.wanted:
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join((*inputs, *outputs))}"
                self.problems.append(Diagnostic("io-dtype", f"there is no input or output {name!r}", hint=hint))

    def _asked(self, name: str, ty: TensorType) -> str | None:
        """The data type that is wanted of a tensor; None for the one that it has."""
        usual = self.wanted.get("") if ty.dtype.is_float else None
        dtype = self.wanted.get(name, usual)
        return dtype if dtype != ty.dtype else None

    def _refuse(self, what: str, name: str, dtype: str, reason: str) -> None:
        hint = f"--io-dtype {name}:float32 (io_dtype in Python) leaves it alone" if dtype != FLOAT else ""
        self.problems.append(Diagnostic("io-dtype", f"{what} {name!r} cannot be {dtype}: {reason}", hint=hint))

    def read(self, param: Var) -> None:
        """What becomes of an input."""
        ty = type_of(param)
        if not isinstance(ty, TensorType):
            return
        dtype = self._asked(param.name, ty)
        found = self._fed(param, ty)
        if isinstance(found, WhyNot):
            if dtype is not None:
                self._refuse("input", param.name, dtype, found.reason)
        elif dtype == FLOAT:
            self._refuse("input", param.name, dtype, f"the model's is {ty.dtype}")
        elif dtype is not None:
            new = Var(param.name, TensorType(ty.shape, dtype), param.span)
            inner = shifted(new, dtype, found.dtype)
            replaced = self._readers[param] if ty.dtype == FLOAT else [param]
            self._replaced |= dict.fromkeys(replaced, inner)
            self._params[param], self._inputs[param] = new, _as(found, dtype)
        elif ty.dtype != FLOAT:
            self._inputs[param] = found

    def _fed(self, param: Var, ty: TensorType) -> Meaning:
        """What the integers of an input stand for, or would."""
        name = "qnn.quantize" if ty.dtype == FLOAT else "qnn.dequantize"
        readers = self._readers.get(param, [])
        others = [r for r in readers if not is_call(r, name) or children(r)[1] is not param]
        if others or not readers or param in self.outputs:
            what = mention(others[0]) if others else "an output" if param in self.outputs else "nothing"
            return WhyNot(f"it feeds {what}, not {name} alone")
        tensors = (type_of(r) if ty.dtype == FLOAT else ty for r in readers)
        found = {_meaning(r, t.dtype, ty.rank): r for r, t in zip(readers, tensors, strict=True)}  # type: ignore[union-attr]
        if len(found) > 1:
            return WhyNot("it is quantised in several ways")
        return next(iter(found))

    def write(self, number: int, name: str) -> None:
        """What becomes of an output."""
        node = self.outputs[number]
        ty = type_of(node)
        if not isinstance(ty, TensorType):
            return
        dtype = self._asked(name, ty)
        found = self._made(node, ty)
        if isinstance(found, WhyNot):
            if dtype is not None:
                self._refuse("output", name, dtype, found.reason)
        elif dtype == FLOAT:
            self._refuse("output", name, dtype, f"the model's is {ty.dtype}")
        elif dtype is not None:
            inner = children(node)[1] if ty.dtype == FLOAT else node
            self.outputs[number] = shifted(inner, found.dtype, dtype)
            self._outputs[number] = _as(found, dtype)
        elif ty.dtype != FLOAT:
            self._outputs[number] = found

    def _made(self, node: Expr, ty: TensorType) -> Meaning:
        """What the integers of an output stand for, or would."""
        names = ("qnn.dequantize",) if ty.dtype == FLOAT else ("qnn.quantize", "qnn.requantize")
        if not is_call(node, *names):
            return WhyNot(f"it comes from {mention(node)}, not from {' or '.join(names)}")
        source = type_of(children(node)[1]) if ty.dtype == FLOAT else ty
        assert isinstance(source, TensorType)
        return _meaning(node, source.dtype, ty.rank)

    def attributes(self) -> Iterable[tuple[str, list[list[Any] | None]]]:
        """Those of the module."""
        yield "input_quantization", [_row(self._inputs.get(p)) for p in self.main.params]
        yield "output_quantization", [_row(self._outputs.get(k)) for k in range(len(self.outputs))]

    def result(self) -> Function:
        """@main with other edges."""
        if not self._params and not self._outputs:
            return self.main
        wrapped = isinstance(self.main.body, Tuple)
        body: Expr = Tuple(self.outputs, self.main.body.span) if wrapped else self.outputs[0]
        body = mutated(body, lambda old, new: self._replaced.get(old, new))
        params = [self._params.get(p, p) for p in self.main.params]
        return as_function(Function(params, body, None, self.main.attrs, self.main.span))
