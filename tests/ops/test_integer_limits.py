# SPDX-License-Identifier: Apache-2.0
"""Integers near the limits of their types: as indices, diagonals, lengths and extents, and in sums that wrap around.

What is meant is written in Python's integers, which have no end.  Beside it: the numpy references, the tensor-program
interpreter, and C under sanitizers with every buffer in memory of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aotc.driver.toolchain import resolve_target
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, tensor_types
from aotc.relay.backend.function_to_kernel import lower_fused_function
from aotc.relay.expr import Constant, Expr, Function, Var, typed_op_call
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Array
from aotc.relay.visitor import map_children, post_order
from aotc.tir.target import get_target
from tests.codegen.batch import gnu_c_for, source_of
from tests.conftest import require_tool
from tests.ops.harness import Job, expanded, flat, interpret
from tests.ops.onnxruntime_oracle import ort
from tests.targets.machines import native_targets

ENDS = (
    -(2**63),
    -(2**63) + 1,
    -(2**62) - 1,
    -(2**31),
    -5,
    -4,
    -1,
    0,
    1,
    3,
    4,
    2**31,
    2**32 + 1,
    2**62,
    2**63 - 2,
    2**63 - 1,
)
MIN, MAX = ENDS[0], ENDS[-1]
X = np.arange(1, 5, dtype=np.float32)


def ends(dtype: str) -> list[int]:
    """Values around 0 and around the limits of a type."""
    kind = DType(dtype)
    own = (*ENDS, int(kind.min), int(kind.max) - 1, int(kind.max))
    return sorted({v for v in own if kind.min <= v <= kind.max})


class Case(NamedTuple):
    """A program, its inputs, and what it gives."""

    name: str
    function: Function
    inputs: list[Array]
    want: Array


def op(name: str, *args: Expr, **attributes: Any) -> Expr:
    return typed_op_call(OPERATORS_BY_NAME[name], args, OPERATORS_BY_NAME[name].attrs(**attributes))


def case(name: str, make: Callable[..., Expr], inputs: Sequence[Array], want: Any) -> Case:
    params = [Var(f"p{k}", TensorType(x.shape, DType.from_numpy(x))) for k, x in enumerate(inputs)]
    return Case(name, Function(params, make(*params)), list(inputs), np.asarray(want))


def whole(value: int, extent: int) -> int:
    """A negative index counted from the end."""
    return value + extent if value < 0 else value


def near(value: int, extent: int) -> int:
    return min(max(value, 0), extent - 1)


def written(values: Sequence[int], updates: Array) -> Array:
    """Updates one after the other, where their places exist."""
    out = np.zeros(4, np.float32)
    for value, update in zip(values, updates, strict=True):
        if 0 <= whole(value, 4) < 4:
            out[whole(value, 4)] = update
    return out


def triangle(k: int, upper: bool) -> Array:
    return np.array(
        [[(j - i >= k if upper else j - i <= k) * (4 * i + j + 1) for j in range(4)] for i in range(3)], "float32"
    )


def indexing(dtype: str) -> Iterator[Case]:
    """Every operator that finds places by values of a tensor."""
    values = ends(dtype)
    at, updates = np.array(values, dtype), np.arange(1, len(values) + 1, dtype=np.float32)
    zeros, one = np.zeros(4, np.float32), np.float32(1).reshape(())
    rows = np.arange(4 * len(values), dtype=np.float32).reshape(-1, 4)
    turned = [[*row[: near(v, 5)][::-1], *row[near(v, 5) :]] for v, row in zip(values, rows, strict=True)]
    hot = [[v == c for c in range(4)] for v in values]
    yield case("take", lambda x, i: op("take", x, i, axis=0), (X, at), [X[near(v, 4)] for v in values])
    yield case("take wrap", lambda x, i: op("take", x, i, axis=0, mode="wrap"), (X, at), [X[v % 4] for v in values])
    found = [X[near(whole(v, 4), 4)] for v in values]
    yield case("gather", lambda x, i: op("gather", x, i, axis=0), (X, at), found)
    yield case("gather_nd", lambda x, i: op("gather_nd", x, i), (X, at[None]), found)
    yield case("one_hot", lambda i, a, b: op("one_hot", i, a, b, depth=4), (at, one, one * 0), np.float32(hot))
    arrays = (zeros, at, updates)
    yield case("scatter_elements", lambda x, i, u: op("scatter_elements", x, i, u), arrays, written(values, updates))
    arrays = (zeros, at[None], updates)
    yield case("scatter_nd", lambda x, i, u: op("scatter_nd", x, i, u), arrays, written(values, updates))
    yield case("reverse_sequence", lambda x, n: op("reverse_sequence", x, n), (rows, at), turned)
    square = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for k, upper in product({values[0], values[1], values[-2], values[-1]}, (False, True)):
        inputs = (square, np.array(k, dtype))
        yield case(f"trilu {k} {upper}", lambda x, k, u=upper: op("trilu", x, k, upper=u), inputs, triangle(k, upper))


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def arithmetic() -> Iterator[Case]:
    """Sums and products of int64 that wrap around, before a comparison, a division or a place is made of them."""
    x = np.array(ENDS, np.int64)

    def c(value: int) -> Constant:
        return Constant(np.array(value, np.int64))

    def add(a: Expr, value: int) -> Expr:
        return op("add", a, c(value))

    def times(a: Expr, value: int) -> Expr:
        return op("multiply", a, c(value))

    def square(a: Expr) -> Expr:
        wide = op("cast", op("cast", a, dtype="uint32"), dtype="int64")
        return op("multiply", wide, wide)

    def place(a: Expr, table: Expr) -> Expr:
        return op("take", table, a, axis=0)

    rows: dict[str, tuple[Callable[..., Expr], Callable[[int], Any]]] = {
        "x + 1 > x": (lambda a: op("greater", add(a, 1), a), lambda v: wrapped(v + 1) > v),
        "x - 1 < x": (lambda a: op("less", add(a, -1), a), lambda v: wrapped(v - 1) < v),
        "max(x + 1, x)": (lambda a: op("maximum", add(a, 1), a), lambda v: max(wrapped(v + 1), v)),
        "2x // 2": (lambda a: op("floor_divide", times(a, 2), c(2)), lambda v: wrapped(2 * v) // 2),
        "6x % 3": (lambda a: op("floor_mod", times(a, 6), c(3)), lambda v: wrapped(6 * v) % 3),
        "3x % 6": (lambda a: op("floor_mod", times(a, 3), c(6)), lambda v: wrapped(3 * v) % 6),
        "(4x + 3) // 8": (lambda a: op("floor_divide", add(times(a, 4), 3), c(8)), lambda v: wrapped(4 * v + 3) // 8),
        "-x > 0": (lambda a: op("greater", op("negative", a), c(0)), lambda v: wrapped(-v) > 0),
        "4yy >= 0": (
            lambda a: op("greater_equal", times(square(a), 4), c(0)),
            lambda v: wrapped(4 * (v % 2**32) ** 2) >= 0,
        ),
        "X[x + 5]": (lambda a, t: place(add(a, 5), t), lambda v: X[near(wrapped(v + 5), 4)]),
        "X[3x // 2]": (
            lambda a, t: place(op("floor_divide", times(a, 3), c(2)), t),
            lambda v: X[near(wrapped(3 * v) // 2, 4)],
        ),
    }
    for name, (make, meaning) in rows.items():
        first = case(name, make, (x, X) if "X" in name else (x,), 0)
        (ty,) = tensor_types(first.function.body.checked_type)  # type: ignore[arg-type]
        yield first._replace(want=np.array([meaning(v) for v in ENDS], ty.dtype.numpy))


def ranges() -> Iterator[Case]:
    """Ranges between the ends of their types, by steps as large."""
    for start, stop, step, dtype in (
        (MIN, MAX, 2**62, "int64"),
        (MAX, MIN, -(2**62), "int64"),
        (MIN, MAX, MAX, "int64"),
        (2**63, 2**63 + 5, 2, "uint64"),
        (2**64 - 4, 2**64 - 1, 1, "uint64"),
        (0, 2**64 - 1, 2**63, "uint64"),
    ):
        want = np.array(range(start, stop, step), dtype)
        attributes = {"start": start, "stop": stop, "step": step, "dtype": dtype}
        yield case(f"arange {start} {stop} {step}", lambda a=attributes: op("arange", **a), (), want)


def onnx_case(name: str, node: Any, constants: dict[str, Array], inputs: dict[str, Array], want: Any) -> Case:
    """A node whose operands come as inputs when the model runs."""
    main = from_onnx(model_of(node, constants, inputs)).main
    return Case(name, main, list(inputs.values()), np.asarray(want))


def model_of(node: Any, constants: dict[str, Array], inputs: dict[str, Array]) -> Any:
    """One node; its first output is the model's."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, kinds[name], value.shape) for name, value in inputs.items()],
        [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def imported() -> Iterator[Case]:
    """ONNX's operators, given the same values when the model runs."""
    at, updates = np.array(ENDS), np.arange(1, len(ENDS) + 1, dtype=np.float32)
    found, zeros = [X[near(whole(v, 4), 4)] for v in ENDS], np.zeros(4, np.float32)
    node = helper.make_node
    yield onnx_case("Gather", node("Gather", ["x", "i"], ["y"]), {}, {"x": X, "i": at}, found)
    yield onnx_case("GatherElements", node("GatherElements", ["x", "i"], ["y"]), {}, {"x": X, "i": at}, found)
    yield onnx_case("GatherND", node("GatherND", ["x", "i"], ["y"]), {}, {"x": X, "i": at[:, None]}, found)
    for name, places in (("ScatterElements", at), ("ScatterND", at[:, None])):
        inputs = {"x": zeros, "i": places, "u": updates}
        yield onnx_case(name, node(name, ["x", "i", "u"], ["y"]), {}, inputs, written(ENDS, updates))
    depth = {"d": np.array(4), "v": np.float32([0, 1])}
    for dtype in ("int64", "int32", "uint64", "uint8"):
        values = ends(dtype)
        hot = np.float32([[whole(v, 4) == c for c in range(4)] for v in values])
        one_hot = node("OneHot", ["i", "d", "v"], ["y"])
        yield onnx_case(f"OneHot {dtype}", one_hot, depth, {"i": np.array(values, dtype)}, hot)
    rows = np.arange(4 * len(ENDS), dtype=np.float32).reshape(-1, 4)
    turned = [[*row[: near(v, 5)][::-1], *row[near(v, 5) :]] for v, row in zip(ENDS, rows, strict=True)]
    reverse = node("ReverseSequence", ["x", "n"], ["y"], time_axis=1, batch_axis=0)
    yield onnx_case("ReverseSequence", reverse, {}, {"x": rows, "n": at}, turned)
    ring = np.float32([[(v + 1) % 3 == c for c in range(3)] for v in ENDS])[:, None, :, None]
    inputs = {"x": np.zeros_like(ring), "u": np.float32([[0.0], [1.0]])[None, None].repeat(len(ENDS), 0), "s": at}
    circular = node("TensorScatter", ["x", "u", "s"], ["y"], mode="circular", axis=2)
    yield onnx_case("TensorScatter", circular, {}, inputs, ring)
    square = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for k, upper in product((MIN, MIN + 1, -1, 2, MAX - 1, MAX), (0, 1)):
        trilu = node("Trilu", ["x", "k"], ["y"], upper=upper)
        inputs = {"x": square, "k": np.array(k)}
        yield onnx_case(f"Trilu {k} {upper}", trilu, {}, inputs, triangle(k, bool(upper)))


def cases() -> list[Case]:
    indexed = [c for dtype in ("int64", "int32", "uint64", "uint8") for c in indexing(dtype)]
    return [*indexed, *arithmetic(), *ranges(), *imported()]


def job(item: Case, target: str) -> Job:
    body = expanded(item.function.body)
    constants = [node for node in post_order(body) if isinstance(node, Constant) and node.data.size > 1]
    more = {node: Var(f"c{k}", node.checked_type) for k, node in enumerate(constants)}
    done: dict[Expr, Expr] = {}
    for node in post_order(body):
        done[node] = more[node] if node in constants else map_children(node, done.__getitem__)
    kernel = lower_fused_function(
        Function((*item.function.params, *more.values()), done[body]), "k", get_target(target)
    )
    assert body.checked_type is not None
    return Job(kernel, [*item.inputs, *(node.data for node in constants)], tensor_types(body.checked_type))


def agree(items: Sequence[Case], results: Sequence[Array]) -> None:
    wrong = {}
    for item, result in zip(items, results, strict=True):
        if not np.array_equal(np.asarray(result).reshape(item.want.shape), item.want):
            wrong[item.name] = (result, item.want)
    assert not wrong, "\n".join(f"{name}: {got} for {want}" for name, (got, want) in wrong.items())


def test_references() -> None:
    items = cases()
    with np.errstate(all="ignore"):
        agree(items, [flat(evaluate(item.function, *item.inputs))[0] for item in items])


MAIN = """
#include <stdio.h>
#include <stdlib.h>
static void *own(FILE *file, size_t size) {
  void *data = malloc(size ? size : 1);
  if (data == NULL || fread(data, 1, size, file) != size) exit(3);
  return data;
}
int main(int argc, char **argv) {
  FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = argc == 3 ? fopen(argv[2], "wb") : NULL;
  if (in == NULL || out == NULL) return 4;
%s
  return fclose(in) || fclose(out);
}
"""


def sanitized(jobs: Sequence[Job], folder: Path) -> list[Array]:
    """The outputs of kernels in C that ends at what is undefined, and at the first byte outside of a buffer."""
    lines, data, results = [], [], []
    for k, (kernel, inputs, _) in enumerate((j.kernel, j.inputs, j.types) for j in jobs):
        rest = [np.full(b.nbytes, 0x5A, np.uint8) for b in (*kernel.outputs, *kernel.workspace)]
        buffers = [*(np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in inputs), *rest]
        names = [f"b{k}_{n}" for n in range(len(buffers))]
        lines += [f"  void *{name} = own(in, {buffer.size});" for name, buffer in zip(names, buffers, strict=True)]
        lines += [f"  kernel{k}({', '.join(names)});"]
        lines += [f"  fwrite({names[len(inputs)]}, 1, {kernel.outputs[0].nbytes}, out);"]
        lines += [f"  free({name});" for name in names]
        data += buffers
        results.append(kernel.outputs[0])
    (folder / "in.bin").write_bytes(np.concatenate(data).tobytes())
    here = gnu_c_for(resolve_target("host"))
    text = source_of((j.kernel for j in jobs), here) + MAIN % "\n".join(lines)
    (folder / "batch.c").write_text(text, encoding="utf-8")
    flags = ("-std=c99", "-w", "-O1", "-g0", "-fsanitize=undefined,address", "-fno-sanitize-recover=all")
    native = ("-march=native",) if any("x86" in t for t in native_targets()) else ()
    command = [require_tool("gcc"), *flags, *native, "batch.c", "-o", "batch", "-lm"]
    for line in (command, ["./batch", "in.bin", "out.bin"]):
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
    found, at = np.fromfile(folder / "out.bin", np.uint8), 0
    arrays = []
    for buffer in results:
        arrays.append(found[at : at + buffer.nbytes].view(buffer.dtype.numpy))
        at += buffer.nbytes
    return arrays


@pytest.mark.parametrize("target", [native_targets()[0], native_targets()[-1]])
def test_kernels(target: str, tmp_path: Path) -> None:
    items = cases()
    jobs = [job(item, target) for item in items]
    agree(items, [outputs[0] for outputs in interpret(jobs)])
    agree(items, sanitized(jobs, tmp_path))


@pytest.mark.parametrize("name", ["zeros", "tile", "broadcast_to", "reshape"])
def test_shapes_that_come_when_the_program_runs(name: str) -> None:
    """No numpy error about sizes: a refusal of ours, or what numpy gives."""
    operator = OPERATORS_BY_NAME[f"dyn.{name}"]
    for shape in ((2**62, 4), (MAX, MAX), (MIN, 1), (0, 2**62), (-1, MAX)):
        args = [np.array(shape)] if name == "zeros" else [np.ones((2, 3), np.float32), np.array(shape)]
        with pytest.raises(AotcError):
            operator.reference(operator.attrs(), *args)


# --- known when the model is compiled


def outcome(run: Callable[[], Any]) -> Array | None:
    """What a function gives; None for an error."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(run())
    except Exception:  # the reference evaluator knows errors of all kinds
        return None


def ours(model: Any, inputs: dict[str, Array]) -> Array | None:
    """Our result; None where we refuse, which is to be said in words of our own."""
    try:
        result = evaluate(from_onnx(model).main, *inputs.values())
    except AotcError as error:
        assert "malformed" not in str(error), error
        return None
    return np.asarray(flat(result)[0])


STARTS = (MIN, -5, -1, 0, 2, MAX)


@pytest.mark.parametrize("step", [1, -1, 2, MIN, MAX])
def test_slices(step: int) -> None:
    """As Python's, but for those that go backwards from before the first element: ONNX begins them there."""
    node = helper.make_node("Slice", ["x", "b", "e", "a", "s"], ["y"])
    for begin, end in product(STARTS, STARTS):
        constants = {name: np.array([v]) for name, v in (("b", begin), ("e", end), ("a", 0), ("s", step))}
        got = ours(model_of(node, constants, {"x": X}), {"x": X})
        assert got is not None
        first = max(begin, -4) if step < 0 else begin
        np.testing.assert_array_equal(got, X[slice(first, end, step)])


SHAPED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # operator, operands (None: the value), attributes
    "Range start": ("Range", {"a": None, "b": 3, "c": 1}, {}),
    "Range limit": ("Range", {"a": 0, "b": None, "c": 2**62}, {}),
    "Range step": ("Range", {"a": MIN, "b": MAX, "c": None}, {}),
    "Pad": ("Pad", {"x": X, "p": [1, None]}, {}),
    "Tile": ("Tile", {"x": X, "n": [None]}, {}),
    "Expand": ("Expand", {"x": X, "n": [None, 1]}, {}),
    "Reshape": ("Reshape", {"x": X, "n": [None, 1]}, {}),
    "ConstantOfShape": ("ConstantOfShape", {"n": [None]}, {}),
    "OneHot depth": ("OneHot", {"i": [0, 2], "d": None, "v": np.float32([0, 1])}, {}),
    "TopK": ("TopK", {"x": X, "k": [None]}, {}),
    "Split": ("Split", {"x": X, "n": [None]}, {}),
    "Split number": ("Split", {"x": X}, {"num_outputs": None}),
    "Unsqueeze": ("Unsqueeze", {"x": X, "a": [None]}, {}),
    "Squeeze": ("Squeeze", {"x": X[None], "a": [None]}, {}),
    "ReduceSum": ("ReduceSum", {"x": X, "a": [None]}, {}),
    "CumSum": ("CumSum", {"x": X, "a": None}, {}),
    "Gather": ("Gather", {"x": X, "i": [None]}, {}),
    "EyeLike": ("EyeLike", {"x": np.ones((3, 4), np.float32)}, {"k": None}),
    "Resize": ("Resize", {"x": X[None, None], "r": np.float32([]), "s": np.float32([]), "n": [1, 1, None]}, {}),
}


def _filled(value: Any, extreme: int) -> Any:
    if isinstance(value, list):
        return np.array([_filled(v, extreme) for v in value])
    return np.array(extreme if value is None else value) if not isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", SHAPED)
def test_operands_that_decide_a_shape(name: str) -> None:
    """The result of onnx's reference evaluator, or a refusal; no shape is too large to be refused."""
    kind, operands, attributes = SHAPED[name]
    for extreme in (MIN, MIN + 1, -1, 0, 1, 2**62, MAX - 1, MAX):
        arrays = {key: _filled(value, extreme) for key, value in operands.items()}
        given = {key: extreme if value is None else value for key, value in attributes.items()}
        inputs = {"x": arrays.pop("x")} if "x" in arrays else {}
        model = model_of(helper.make_node(kind, [*inputs, *arrays], ["y"], **given), arrays, inputs)
        got = ours(model, inputs)
        if got is None or (abs(extreme) > 2**60 and kind not in ("EyeLike", "Range")):
            assert got is None
            continue
        want = outcome(lambda model=model, inputs=inputs: ReferenceEvaluator(model).run(None, inputs)[0])
        if want is None:  # negative pads
            want = ort(kind, *inputs.values(), *arrays.values(), **given)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("scale", [np.inf, np.nan, 1e30])
def test_scales_that_make_no_size(scale: float) -> None:
    arrays = {"r": np.float32([]), "s": np.float32([1, 1, scale])}
    inputs = {"x": X[None, None]}
    assert ours(model_of(helper.make_node("Resize", ["x", "r", "s"], ["y"]), arrays, inputs), inputs) is None
