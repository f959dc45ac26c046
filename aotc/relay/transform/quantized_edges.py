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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, Diagnostic, DType, Pass, PassContext, Quantization, TensorType, nearest
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, Var, tensor_type_of, type_of
from aotc.relay.infer import infer_module, mention
from aotc.relay.module import IRModule, output_names
from aotc.relay.op.binary import add
from aotc.relay.op.cast import cast
from aotc.relay.op.qnn.numbers import known
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

    The configuration says which: `compile.io_dtype` is a data type for all inputs and outputs of floats, or a mapping
    from names to data types, where "" stands for all others.  Raises AotcError with a diagnostic (code "io-dtype") for
    each tensor that cannot be what is asked for.
    """

    opt_level = 0

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = typed(module)
        wanted = _wanted(ctx.get_config("compile.io_dtype", None))
        edges = _Edges(start, wanted)
        tuples = [node for node in edges.tensors if not isinstance(type_of(node), TensorType)]
        if tuples and wanted:
            raise AotcError("io-dtype", f"{mention(tuples[0])} is no tensor, and has no data type")
        if tuples:
            return module
        for param in start.main.params:
            edges.read(param)
        for number, name in enumerate(edges.names):
            edges.write(number, name)
        if edges.problems:
            raise AotcError.collect(edges.problems)
        function = edges.result()
        sides = {"input": edges.inputs, "output": edges.outputs}
        rows = {f"{side}_quantization": _rows(found) for side, found in sides.items() if any(found)}
        if function is start.main and all(module.attrs.get(key) == row for key, row in rows.items()):
            return module
        return infer_module(IRModule({**start.functions, "main": function}, {**start.attrs, **rows}))


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


def _stated(found: Meaning, dtype: str) -> Quantization | None:
    """What is said of a tensor of a data type."""
    return _as(found, dtype) if dtype in BYTES and isinstance(found, Quantization) else None


def _dtype(node: Expr) -> DType:
    return tensor_type_of(node).dtype


def _meaning(node: Expr, integers: Expr) -> Meaning:
    """What integers stand for that a call makes or reads."""
    assert isinstance(node, Call)
    place = _PLACES[str(node.op)]
    scale, zero = map(known, node.args[place : place + 2])
    ty = tensor_type_of(integers)
    if ty.dtype not in BYTES:
        return WhyNot(f"its integers are {ty.dtype}")
    if scale is None or zero is None:
        return WhyNot("its scale or zero point is computed when the model runs")
    count = max(scale.size, zero.size)
    scales, zeros = (np.broadcast_to(value.reshape(-1), (count,)) for value in (scale, zero))
    axis = None if count == 1 else int(node.attrs["axis"]) % ty.rank
    return Quantization(ty.dtype, tuple(scales.tolist()), tuple(zeros.tolist()), axis)


def _rows(meanings: Iterable[Quantization | None]) -> list[list[Any] | None]:
    """As an attribute, which has a text form."""
    return [[str(m.dtype), list(m.scales), list(m.zero_points), m.axis] if m else None for m in meanings]


@dataclass(eq=False)
class _Edges:
    """@main of a module, and what becomes of its inputs and outputs.

    names             of the outputs
    inputs, outputs   what their integers stand for, where that is known
    """

    module: IRModule
    wanted: Mapping[str, str]
    problems: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._main = self.module.main
        body = self._main.body
        self._before = list(body.fields) if isinstance(body, Tuple) else [body]
        self._results = list(self._before)
        self.names = output_names(self.module, len(self._results))
        self.inputs: list[Quantization | None] = []
        self.outputs: list[Quantization | None] = []
        self._params: list[Var] = []
        self._replaced: dict[Expr, Expr] = {}
        self._readers: dict[Expr, list[Expr]] = {}
        for node in post_order(body):
            for child in () if node is body and isinstance(node, Tuple) else children(node):
                self._readers.setdefault(child, []).append(node)
        known = [*(p.name for p in self._main.params), *self.names, ""]
        for name in self.wanted.keys() - {*known}:
            hint = nearest(name, known) or f"there are {', '.join(known[:-1])}"
            self.problems.append(Diagnostic("io-dtype", f"there is no input or output {name!r}", hint=hint))

    @property
    def tensors(self) -> list[Expr]:
        """All inputs and outputs."""
        return [*self._main.params, *self._before]

    def _interface(self, what: str, name: str, own: DType, found: Meaning) -> str:
        """The data type that a tensor gets: its own one, too, where it cannot be what is asked for."""
        usual = self.wanted.get("", own) if own.is_float else own
        dtype = self.wanted.get(name, usual)
        reason = found.reason if isinstance(found, WhyNot) else f"the model's is {own}" if dtype == FLOAT else ""
        if dtype != own and reason:
            hint = f"--io-dtype {name}:{own} (io_dtype in Python) leaves it as it is" if own == FLOAT else ""
            self.problems.append(Diagnostic("io-dtype", f"{what} {name!r} cannot be {dtype}: {reason}", hint=hint))
            return own
        return dtype

    def read(self, param: Var) -> None:
        """What becomes of an input."""
        own = _dtype(param)
        found = self._fed(param, own)
        dtype = self._interface("input", param.name, own, found)
        if dtype != own and isinstance(found, Quantization):
            new = Var(param.name, TensorType(tensor_type_of(param).shape, dtype), param.span)
            replaced = self._readers[param] if own == FLOAT else [param]
            self._replaced |= dict.fromkeys(replaced, shifted(new, dtype, found.dtype))
            param = new
        self._params.append(param)
        self.inputs.append(_stated(found, dtype))

    def write(self, number: int, name: str) -> None:
        """What becomes of an output."""
        node = self._results[number]
        own = _dtype(node)
        found = self._made(node, own)
        dtype = self._interface("output", name, own, found)
        if dtype != own and isinstance(found, Quantization):
            integers = children(node)[1] if own == FLOAT else node
            self._results[number] = shifted(integers, found.dtype, dtype)
        self.outputs.append(_stated(found, dtype))

    def _fed(self, param: Var, own: DType) -> Meaning:
        """What the integers of an input stand for, or would."""
        name = "qnn.quantize" if own == FLOAT else "qnn.dequantize"
        readers = self._readers.get(param, [])
        others = [r for r in readers if not is_call(r, name) or children(r)[1] is not param]
        if others or not readers or param in self._results:
            what = mention(others[0]) if others else "nothing" if param not in self._results else "an output"
            return WhyNot(f"it feeds {what}, not {name} alone")
        found = {_meaning(r, r if own == FLOAT else param) for r in readers}
        return found.pop() if len(found) == 1 else WhyNot("it is quantised in several ways")

    def _made(self, node: Expr, own: DType) -> Meaning:
        """What the integers of an output stand for, or would."""
        names = ("qnn.dequantize",) if own == FLOAT else ("qnn.quantize", "qnn.requantize")
        if not is_call(node, *names):
            return WhyNot(f"it comes from {mention(node)}, not from {' or '.join(names)}")
        return _meaning(node, children(node)[1] if own == FLOAT else node)

    def result(self) -> Function:
        """@main with other edges; the same object if there are none."""
        main, many = self._main, isinstance(self._main.body, Tuple)
        if tuple(self._params) == main.params and all(a is b for a, b in zip(self._results, self._before, strict=True)):
            return main
        body = Tuple(self._results, main.body.span) if many else self._results[0]
        body = mutated(body, lambda old, new: self._replaced.get(old, new))
        return Function(self._params, body, None, main.attrs, main.span)
