# SPDX-License-Identifier: Apache-2.0
"""Compile-time limits: limits by key, used once, and named in every refusal."""

from __future__ import annotations

import pytest

from aotc.ir.compilation_work_and_memory_limits import (
    DEFAULT_COMPILE_LIMITS,
    Budget,
    Cost,
    current_budget,
    running_or_new_budget_scope,
)
from aotc.ir.diagnostics import AotcError
from aotc.ir.span import Span, span_scope
from aotc.ir.transform import PassContext


def test_every_limit_is_a_configuration_key() -> None:
    assert set(DEFAULT_COMPILE_LIMITS) <= set(PassContext.list_configs())
    assert all(PassContext.list_configs()[key] == {"type": "int"} for key in DEFAULT_COMPILE_LIMITS)


def test_work_is_spent_and_memory_is_given_back() -> None:
    with running_or_new_budget_scope({"compile.max_work": 10, "compile.max_bytes": 100}) as limits:
        assert limits.spend_compile_time_cost_if_affordable(Cost(4, 100))
        assert limits.spend_compile_time_cost_if_affordable(Cost(6, 100))
        assert not limits.spend_compile_time_cost_if_affordable(Cost(1, 0))
        assert limits.spend_compile_time_cost_if_affordable(Cost(0, 100))
        assert not limits.spend_compile_time_cost_if_affordable(Cost(0, 101))
        assert limits.remaining_compile_time_budget("compile.max_work") == 0


def test_a_refusal_names_the_node_the_figures_and_the_key() -> None:
    with running_or_new_budget_scope({"compile.max_bytes": 100}), span_scope(Span("net.onnx", node="Range_3")):
        current_budget().spend_compile_time_cost_or_raise(Cost(1, 100), "a range")
        with pytest.raises(AotcError) as caught:
            current_budget().spend_compile_time_cost_or_raise(Cost(1, 101), "a range")
    assert caught.value.code == "budget"
    text = str(caught.value)
    assert "net.onnx: node Range_3: a range would need 101 bytes" in text
    assert "100 are allowed" in text
    assert 'config={"compile.max_bytes": 101}' in text


def test_what_is_refused_is_not_spent() -> None:
    made = Budget(DEFAULT_COMPILE_LIMITS)
    with pytest.raises(AotcError, match='max_nodes": 500002'):
        made.spend_compile_time_budget(
            "compile.max_nodes", DEFAULT_COMPILE_LIMITS["compile.max_nodes"] + 2, "the model"
        )
    made.spend_compile_time_budget("compile.max_nodes", DEFAULT_COMPILE_LIMITS["compile.max_nodes"], "the model")
    with pytest.raises(AotcError, match=rf'max_nodes": {DEFAULT_COMPILE_LIMITS["compile.max_nodes"] + 1}\b'):
        made.spend_compile_time_budget("compile.max_nodes", 1, "the model")


def test_one_budget_for_all_that_is_under_way() -> None:
    with running_or_new_budget_scope({"compile.max_work": 10}) as outer:
        assert outer.spend_compile_time_cost_if_affordable(Cost(7, 0))
        with (
            running_or_new_budget_scope({"compile.max_work": 1000}) as inner,
            running_or_new_budget_scope() as innermost,
        ):
            assert inner is outer
            assert innermost is outer
            assert not current_budget().spend_compile_time_cost_if_affordable(Cost(4, 0))
    with running_or_new_budget_scope({"compile.max_work": 10}) as later:
        assert later.spend_compile_time_cost_if_affordable(Cost(10, 0))


def test_the_pass_context_configures_what_nobody_else_does() -> None:
    with PassContext(config={"compile.max_work": 3}):
        assert current_budget().remaining_compile_time_budget("compile.max_work") == 3
        with running_or_new_budget_scope() as made:
            assert made.remaining_compile_time_budget("compile.max_work") == 3
    assert (
        current_budget().remaining_compile_time_budget("compile.max_work") == DEFAULT_COMPILE_LIMITS["compile.max_work"]
    )
