# SPDX-License-Identifier: Apache-2.0
"""The backend interface of ONNX: models run as compiled C.

In: a ModelProto and inputs.  Out: outputs, computed by a library that was compiled from the model;
nothing is interpreted.

    import aotc.onnx_backend as backend
    outputs = backend.prepare(model).run([array])

`onnx.backend.test.BackendTest(backend.AotcBackend, __name__)` makes test cases of ONNX's test suite.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from aotc.driver.compile import compile
from aotc.ir import AotcError, Array
from aotc.ir.string_slots import longest_utf8_bytes
from aotc.relay.frontend.onnx.load import initializer_names
from aotc.relay.frontend.onnx.sequence_inputs import element_name, with_tensor_inputs
from aotc.runtime.session import Session

_COMPILE_OPTIONS: Final = ("target", "opt_level", "cc", "cflags", "dims", "input_shapes")
#: Range of elements of inputs that are sizes, where neither an operator nor the caller bounds them.
_OPERAND_BOUNDS: Final = {"[*]": (0, 32)}
#: Keywords that ONNX's own test runner passes on; they do not concern compilation.
_IGNORED_OPTIONS: Final = ("rtol", "atol", "opset_version")


class AotcRep(BackendRep):  # type: ignore[misc]
    """A model ready to run.  `calls` counts the calls into compiled code.

    A model whose input shapes are all known is compiled at once; one with dynamic dimensions,
    sequences or optional values is compiled for the inputs it is run on, once for each combination of
    shapes.
    """

    def __init__(self, model: ModelProto, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = {**options, "dims": {**_OPERAND_BOUNDS, **(options.get("dims") or {})}}
        self._sessions: dict[object, Session] = {}
        inputs = [v for v in model.graph.input if v.name not in initializer_names(model.graph)]
        self.input_names = [v.name for v in inputs]
        self.output_names = [v.name for v in model.graph.output]
        self._has_only_tensors = all(v.type.HasField("tensor_type") for v in inputs)
        has_dims = bool(options.get("dims")) and self._has_only_tensors
        self._dynamic = not all(map(_has_static_shape, inputs)) and not has_dims
        # the slots of strings are as large as those that are given need
        self._dynamic |= any(v.type.tensor_type.elem_type == TensorProto.STRING for v in inputs)
        self.calls = 0
        if not self._dynamic:
            self._session_for_inputs({}, {})

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The outputs for inputs given as a sequence in order, as a mapping by name, or as a single
        array. A list stands for a sequence, and None for an optional value that is absent.
        """
        values = self._values_by_input_name(inputs)
        feeds: dict[str, Array] = {}
        lengths: dict[str, int | None] = {}
        for name, value in values.items():
            if value is None or isinstance(value, list):
                lengths[name] = None if value is None else len(value)
                feeds |= {element_name(name, k): _as_numpy_array(x) for k, x in enumerate(value or ())}
            else:
                feeds[name] = _as_numpy_array(value)
        session = self._session_for_inputs(feeds, lengths) if self._dynamic else self._session_for_inputs({}, {})
        before = session.calls
        outputs = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
        self.calls += session.calls - before
        results = [_value_of_output(outputs, value) for value in self._model.graph.output]
        return namedtupledict("Outputs", self.output_names)(*results)  # type: ignore[no-any-return]

    def _values_by_input_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            values = dict(inputs)
        else:
            items = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(items) > len(self.input_names):
                text = f"{len(items)} inputs are given, the model takes {len(self.input_names)}"
                raise AotcError("backend-inputs", text, hint="initializers are part of the compiled model")
            values = dict(zip(self.input_names, items, strict=False))
        if self._has_only_tensors:
            return {name: _as_numpy_array(value) for name, value in values.items()}
        return values

    def _session_for_inputs(self, feeds: Mapping[str, Array], lengths: Mapping[str, int | None]) -> Session:
        """The session for the shapes of tensors and the lengths of sequences."""
        slots = {name: _slot_bytes(array) for name, array in feeds.items() if array.dtype.kind in "OU"}
        shapes = tuple((name, array.shape) for name, array in feeds.items())
        key = shapes, tuple(lengths.items()), tuple(slots.items())
        if key not in self._sessions:
            options = dict(self._options)
            if filled := {name: array.shape for name, array in feeds.items() if array.size}:
                options["input_shapes"] = filled
            if slots:
                options["dims"] = {**(options.get("dims") or {}), **slots}
            empty = {name: array.shape for name, array in feeds.items() if not array.size}
            model = _with_declared_shapes(with_tensor_inputs(self._model, lengths), empty)
            self._sessions[key] = compile(model, **options).session()
        return self._sessions[key]


def _with_declared_shapes(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> ModelProto:
    """Return a model that declares shapes of inputs where it leaves them open: an option that states tensors without
    elements is refused, since users seldom mean it.
    """
    if not shapes:
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    for value in changed.graph.input:
        shape, tensor = shapes.get(value.name), value.type.tensor_type
        if shape is not None and not tensor.HasField("shape"):
            tensor.CopyFrom(helper.make_tensor_type_proto(tensor.elem_type, shape).tensor_type)
        for dim, size in zip(tensor.shape.dim, shape or (), strict=False):
            if not dim.HasField("dim_value"):
                dim.dim_value = size
    return changed


def _slot_bytes(strings: Array) -> int:
    """Return a power of two of bytes that each of the strings fits in."""
    return 1 << (longest_utf8_bytes(strings.reshape(-1).tolist()) - 1).bit_length()


def _value_of_output(outputs: Mapping[str, Array], value: Any) -> Any:
    """Return an output of the model: a tensor, a list for a sequence, or None for an optional value that is absent."""
    name, is_optional = value.name, value.type.HasField("optional_type")
    present = value.type.optional_type.elem_type if is_optional else value.type
    if not present.HasField("sequence_type") and not (is_optional and name in outputs):
        return outputs[name]
    if name not in outputs:
        names = iter(element_name(name, k) for k in range(len(outputs)))
        return [outputs[element] for element in names if element in outputs]
    if not outputs.get(f"{name}.present", True):
        return None
    rows = list(outputs[name])
    if f"{name}.shapes" in outputs:
        shapes = [[int(d) for d in shape if d >= 0] for shape in outputs[f"{name}.shapes"]]
        rows = [_without_padding(row, shape) for row, shape in zip(rows, shapes, strict=True)]
    return rows


def _without_padding(row: Array, shape: Sequence[int]) -> Array:
    """Return an element of a sequence, which is at the beginning of its slot and may have fewer axes."""
    places: list[Any] = [*map(slice, shape), *[0] * (row.ndim - len(shape))]
    return np.asarray(row[tuple(places)])


def _has_static_shape(value_info: Any) -> bool:
    tensor = value_info.type.tensor_type
    return bool(tensor.HasField("shape")) and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _as_numpy_array(value: Any) -> Array:
    if isinstance(value, TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    if isinstance(value, (list, tuple)) or value is None:
        raise AotcError("backend-inputs", f"inputs must be arrays, not {type(value).__name__}")
    return np.asarray(value)


class AotcBackend(Backend):  # type: ignore[misc]
    """Compiles models to C and runs them on the CPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> AotcRep:
        """A model ready to run; keywords are those of `aotc.compile` (target, opt_level, cc,
        cflags, ...).

        Raises AotcError for what cannot be compiled, and for unknown keywords and devices.
        """
        if not cls.supports_device(device):
            raise AotcError("backend-device", f"device {device!r} is not supported", hint="devices: CPU")
        unknown = [k for k in kwargs if k not in _COMPILE_OPTIONS and k not in _IGNORED_OPTIONS]
        if unknown:
            raise AotcError(
                "backend-option", f"unknown option {unknown[0]!r}", hint=f"options: {', '.join(_COMPILE_OPTIONS)}"
            )
        return AotcRep(model, {k: v for k, v in kwargs.items() if k in _COMPILE_OPTIONS})

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of a single node; `opset_version` chooses the operator set (the newest by
        default).
        """
        arrays = [_as_numpy_array(x) for x in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        names = [name for name in node.input if name]
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, arrays, strict=True)
        ]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], node.op_type or "node", values, results)
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.run_model(model, arrays, device, **kwargs)  # type: ignore[no-any-return]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run on `device` ("CPU", perhaps with a number)."""
        return device.partition(":")[0].upper() == "CPU"


prepare = AotcBackend.prepare
run_model = AotcBackend.run_model
run_node = AotcBackend.run_node
supports_device = AotcBackend.supports_device
is_compatible = AotcBackend.is_compatible
