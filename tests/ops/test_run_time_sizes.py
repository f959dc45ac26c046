# SPDX-License-Identifier: Apache-2.0
"""Each operator's samples with an axis whose extent is known at run time only, at several extents.

A case is a sample and an axis of its first tensor; that axis of all arguments of equal rank and extent is one symbol.
The kernel for all extents up to that of the sample runs in the interpreter on arrays of exactly the elements that a
call has, so that any access behind them is an error, and is compared with the numpy reference.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir import AotcError, DType, SymDim, TensorType, TupleType, Type, collect_dim_conditions
from aotc.relay.backend.sized_function_to_kernel import SizedKernel, lower_function_with_run_time_sizes
from aotc.relay.expr import Function, Tuple, Var, typed_op_call
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import OpDef, Sample
from aotc.relay.transform.expand_ops import ExpandOps
from aotc.tir.interpreter import compile_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.target import TARGETS, Target
from tests.codegen.batch import finished
from tests.ops.harness import assert_agrees, constants, expanded, flat, type_of_value
from tests.share import draw, share

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A sample of an operator whose `axis` has `extent` elements at most."""

    op: OpDef
    number: int
    sample: Sample
    axis: int
    extent: int
    rank: int

    def arguments(self, extent: int) -> tuple[Any, ...]:
        """The arguments of the sample, cut to an extent of the axis."""
        return tuple(self._cut(value, extent) for value in self.sample.args)

    def _cut(self, value: Any, extent: int) -> Any:
        if isinstance(value, tuple):
            return tuple(self._cut(v, extent) for v in value)
        return np.ascontiguousarray(value.take(range(extent), self.axis)) if self._has_axis(value.shape) else value

    def _has_axis(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == self.rank and shape[self.axis] == self.extent

    def type_of(self, value: Any) -> Type:
        """The type of an argument for all extents."""
        if isinstance(value, tuple):
            return TupleType(map(self.type_of, value))
        shape: list[Any] = list(value.shape)
        if self._has_axis(value.shape):
            shape[self.axis] = SymDim("n", self.extent)
        return TensorType(shape, DType.from_numpy(value))


def cases_of(op: OpDef) -> Iterator[Case]:
    """All cases of an operator."""
    for number, sample in enumerate(op.samples()):
        tensors = flat(sample.args)
        if tensors:
            first = tensors[0]
            for axis, extent in enumerate(first.shape):
                if extent > 0:
                    yield Case(op, number, sample, axis, extent, first.ndim)


def lower_case(case: Case, target: Target) -> SizedKernel:
    """The kernel of a case."""
    args = [
        constants(v) if k in case.sample.known else Var(f"a{k}", case.type_of(v))
        for k, v in enumerate(case.sample.args)
    ]
    body = expanded(typed_op_call(case.op, args, case.sample.attrs))
    function = Function([a for a in args if isinstance(a, Var)], body)
    return lower_function_with_run_time_sizes(function, "kernel", target, {"n": (0, case.extent)})


def run_at(case: Case, sized: SizedKernel, extent: int) -> None:
    """Run a kernel at an extent, and compare the results with the reference."""
    arguments = case.arguments(extent)
    expected = flat(case.op.reference(case.sample.attrs, *arguments))
    given = [v for k, v in enumerate(arguments) if k not in case.sample.known]
    numbers = [size if isinstance(size, int) else size.bind({"n": extent}) for size in sized.sizes]
    kernel = sized.kernel
    outputs = [np.full(e.size, 0x5A, np.uint8).astype(e.dtype) for e in expected]
    scratch = [np.full(b.nbytes, 0x5A, np.uint8).view(b.dtype.numpy) for b in kernel.workspace]
    inputs = [np.ascontiguousarray(a).reshape(-1) for a in flat(tuple(given))]
    compile_kernel(kernel).run_kernel_in_place([*inputs, *outputs, *scratch], numbers)
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_agrees(actual.reshape(wanted.shape), wanted, case.sample.accuracy)


#: Operators that are lowered themselves: not those that another operator with constant arguments replaces.
SWEPT = sorted(name for name, op in OPERATORS_BY_NAME.items() if op.static is None)


def _refused_axes() -> dict[str, set[int]]:
    lines = Path(__file__).with_name("run_time_sizes_refused.txt").read_text(encoding="utf-8").splitlines()
    return {name: set(map(int, axes.split(","))) for name, axes in map(str.split, lines)}


#: For each operator that refuses some samples by name, the axes whose extent it must know.
REFUSED = _refused_axes()
#: Number of cases for which there was a kernel when this was written.
LEAST_KERNELS = 3360


def outcome(case: Case, target: Target) -> str:
    """The result of a case: "right", "refused" if its operator is refused by name, or "untyped" if there is no
    type or expansion for it. Fails if a kernel is not proven, or computes something wrong."""
    try:
        sized = lower_case(case, target)
    except AotcError as error:
        return "refused" if f"operator {case.op.name} has no program for sizes" in str(error) else "untyped"
    except (TypeError, ValueError):
        return "untyped"  # of the expansion to other operators
    finished_kernel = finished(sized.kernel, target)
    verify(finished_kernel)
    for extent in {0, 1, case.extent // 2, case.extent - 1, case.extent}:
        if _is_valid(case, sized, extent):
            run_at(case, replace(sized, kernel=finished_kernel), extent)
    return "right"


def _is_valid(case: Case, sized: SizedKernel, extent: int) -> bool:
    """Whether types and the reference accept an extent, and all conditions of a kernel hold for it."""

    def size(dim: Any) -> int:
        return int(dim.bind({"n": extent}) if isinstance(dim, SymDim) else dim)

    arguments = case.arguments(extent)
    try:
        case.op.infer(case.sample.attrs, [type_of_value(a) for a in arguments])
        case.op.reference(case.sample.attrs, *arguments)
    except (AotcError, ValueError, IndexError):
        return False
    holds = {"==": operator.eq, ">=": operator.ge}
    return all(holds[c.relation](size(c.left), size(c.right)) for c in sized.conditions)


@pytest.mark.parametrize(
    ("name", "target"), [*share(product(SWEPT, ["c"]), 24), *share(product(SWEPT, ["x86-64-v3"]), 12)]
)
def test_kernels_of_all_extents_agree_with_the_reference(name: str, target: str) -> None:
    cases = list(cases_of(OPERATORS_BY_NAME[name]))
    for case in draw(cases, 3, name):
        assert outcome(case, TARGETS[target]) != "refused" or case.axis in REFUSED.get(name, ())


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c", "x86-64-v3"])
@pytest.mark.parametrize("name", SWEPT)
def test_every_case_agrees_with_the_reference(name: str, target: str) -> None:
    outcomes = [(case.axis, outcome(case, TARGETS[target])) for case in cases_of(OPERATORS_BY_NAME[name])]
    assert {axis for axis, found in outcomes if found == "refused"} == REFUSED.get(name, set())


@pytest.mark.slow
def test_the_number_of_cases_with_a_kernel_does_not_shrink() -> None:
    def has_kernel(case: Case) -> bool:
        try:
            lower_case(case, TARGETS["c"])
        except (AotcError, TypeError, ValueError):
            return False
        return True

    assert sum(has_kernel(case) for name in SWEPT for case in cases_of(OPERATORS_BY_NAME[name])) >= LEAST_KERNELS


@pytest.mark.parametrize("width", [7, 9, 10, 16])
def test_rows_of_accumulators_are_all_added(width: int) -> None:
    """Sums along the first axis have 4, 3, 3 and 2 rows of accumulators."""
    op = OPERATORS_BY_NAME["sum"]
    sample = Sample(args=(np.arange(50 * width, dtype=np.int32).reshape(50, width),), attrs=op.attrs(axis=(0,)))
    assert outcome(Case(op, 0, sample, 0, 50, 2), TARGETS["x86-64-v3"]) == "right"


def test_an_operator_that_cannot_be_expanded_is_refused_by_name() -> None:
    x = Var("x", TensorType((SymDim("n", 4),), "float32"))
    function = Function([x], OPERATORS_BY_NAME["meshgrid"](Tuple([x, x])))
    expanded_function = ExpandOps()(IRModule.from_expr(function))["main"]
    with pytest.raises(
        AotcError, match="operator meshgrid has no program for sizes that are known at run time only: n<=4"
    ):
        lower_function_with_run_time_sizes(expanded_function, "kernel", TARGETS["c"], {"n": (0, 4)})


def test_dimensions_that_differ_in_factor_and_summand_share_a_number() -> None:
    n = SymDim("h//2", 16)
    x, y = Var("x", TensorType((n, 3), "float32")), Var("y", TensorType((n * 2 + 1,), "float32"))
    body = Tuple([OPERATORS_BY_NAME["nn.relu"](x), OPERATORS_BY_NAME["nn.relu"](y)])
    sized = lower_function_with_run_time_sizes(Function([x, y], body), "kernel", TARGETS["c"], {"h": (0, 32)})
    assert [str(size) for size in sized.sizes] == ["h//2<=16"]
    assert [(number.least, number.most) for number in sized.kernel.numbers] == [(0, 16)]
    assert [buffer.size for buffer in sized.kernel.params] == [48, 33, 48, 33]


def test_conditions_narrow_the_numbers_of_a_kernel() -> None:
    x = Var("x", TensorType((1, 2, SymDim("w", 9)), "float32"))
    body = OPERATORS_BY_NAME["nn.max_pool1d"](x, pool_size=(3,), strides=(1,), padding=(0, 0))
    sized = lower_function_with_run_time_sizes(Function([x], body), "kernel", TARGETS["c"], {"w": (0, 9)})
    assert [str(condition) for condition in sized.conditions] == ["w<=9 >= 3"]
    assert [(number.least, number.most) for number in sized.kernel.numbers] == [(3, 9)]


def test_sizes_that_never_fit_are_refused() -> None:
    x, y = (Var(v, TensorType((d,), "float32")) for v, d in (("x", SymDim("n", 4)), ("y", 5)))
    with pytest.raises(AotcError, match="sizes must be n<=4 == 5, which does not hold for any size"):
        body = OPERATORS_BY_NAME["add"](x, y)
        lower_function_with_run_time_sizes(Function([x, y], body), "kernel", TARGETS["c"], {"n": (0, 4)})


@pytest.mark.parametrize(
    ("name", "attributes", "shapes", "condition"),
    [
        ("argmax", {"axis": (0,)}, [("n", 3)], "n<=8 >= 1"),
        ("gather_nd", {}, [("n", 3), (1, 2)], "n<=8 >= 1"),
        ("nn.conv1d", {"kernel_size": (3,)}, [(1, "n", 5), (2, 4, 3)], "n<=8 == 4"),
        ("nn.conv1d", {"kernel_size": (3,), "groups": 2, "channels": 2}, [(1, "n", 5), (2, 2, 3)], "n<=8 == 4"),
        ("nn.conv1d_transpose", {"kernel_size": (3,), "channels": 2}, [(1, "n", 5), (4, 2, 3)], "n<=8 == 4"),
    ],
)
def test_type_rules_record_what_they_assume(
    name: str, attributes: dict[str, Any], shapes: list[tuple[Any, ...]], condition: str
) -> None:
    op = OPERATORS_BY_NAME[name]
    types = [
        TensorType(
            [SymDim("n", 8) if d == "n" else d for d in shape], "int32" if name == "gather_nd" and k else "float32"
        )
        for k, shape in enumerate(shapes)
    ]
    with collect_dim_conditions() as conditions:
        op.infer(op.attrs(**attributes), types)
    assert condition in map(str, conditions)
