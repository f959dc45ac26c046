# SPDX-License-Identifier: Apache-2.0
"""Tests of the official ONNX suite in which operands decide shapes pass by one library with two values of the
operands, without the declared shapes of outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx
import pytest
from onnx_suite import Case, all_cases, data_of, read_list
from operand_values import check_two_values, deciding_inputs, without_output_shapes

from tests.share import draw

TESTS_IN_A_RUN = 24
"""Tests that are drawn in each run; an operand decides a shape in about one in six of them."""
LEAST_SHARE_WITH_TWO_VALUES = 0.6
"""The others have no other value that the reference and the range of operands accept."""


def _check(cases: Iterable[Case]) -> Counter[str]:
    found: Counter[str] = Counter()
    known = read_list()
    wrong: list[str] = []
    for case in cases:
        if case.name in known:
            continue
        try:
            found[check_two_values(case).partition(":")[0]] += 1
        except Exception as error:
            wrong.append(f"{case.name}: {error}")
    assert not wrong, "\n".join(wrong)
    return found


def test_operands_that_decide_shapes() -> None:
    _check(draw(all_cases(["node"]), TESTS_IN_A_RUN, "operand values"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_operands_that_decide_shapes() -> None:
    found = _check(all_cases(["node"]))
    compared = found["two values"] + found["no other value"]
    assert compared >= 150 and found["two values"] >= LEAST_SHARE_WITH_TWO_VALUES * compared, found


def test_declared_shapes_are_deleted() -> None:
    case = all_cases(["node"], "test_range_int32_type_negative_delta")[0]
    model = without_output_shapes(data_of(case.test)[0])
    assert isinstance(model, onnx.ModelProto)
    assert not model.graph.output[0].type.tensor_type.HasField("shape")
    assert deciding_inputs(model) == ["start", "limit", "delta"]
