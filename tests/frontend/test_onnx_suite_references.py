# SPDX-License-Identifier: Apache-2.0
"""The official ONNX suite through the converters alone: operators are evaluated by their references, without C.

What fails here fails in the front end (or in an operator's reference), and it takes seconds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation import run_model

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

from onnx_suite import all_cases, check, reason

from aotc.checking.model_reference_runs import convert_inputs_to_float64, convert_module_to_float64
from aotc.relay.frontend.onnx import from_onnx
from tests.share import draw

MIN_PASSING_TESTS = {"node": 1662, "simple": 10, "real": 9, "pytorch-operator": 35, "pytorch-converted": 82}
"""How many tests of each kind pass: the number may only grow."""
ROUNDED = {
    "node/test_attention_4d_causal_fp16",
    "node/test_attention_4d_causal_fp16_expanded",
    # These tests expect the random numbers of another generator.
    "node/test_bernoulli",
    "node/test_bernoulli_double",
    "node/test_bernoulli_double_expanded",
    "node/test_bernoulli_expanded",
    "node/test_bernoulli_seed",
    "node/test_bernoulli_seed_expanded",
    "node/test_dft_inverse",
    "node/test_dft_inverse_opset19",
}
"""Tests whose expected values depend on where intermediate results are rounded, or on a generator of random numbers."""
SEQUENCES = {
    "node/test_if_opt",
    "node/test_if_seq",
    "node/test_optional_has_element_empty_optional_input",
    "node/test_split_to_sequence_1",
    "node/test_split_to_sequence_nokeepdims",
}
"""Tests that pass or expect a sequence or an optional value as one value, which a Relay module holds as tensors."""


def by_reference(model: Any) -> Callable[[list[Any]], Sequence[Any]]:
    module = from_onnx(model)
    names = [p.name for p in module.main.params]
    return lambda inputs: run_model(module, dict(zip(names, inputs, strict=False)))


def in_double_precision(model: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """Networks whose logits are 1.6e10: the last places of numpy's products are not those of every processor."""
    module = convert_module_to_float64(from_onnx(model))
    names = [p.name for p in module.main.params]

    def run(inputs: list[Any]) -> list[Any]:
        outputs = run_model(module, convert_inputs_to_float64(dict(zip(names, inputs, strict=False))))
        return [np.asarray(o).astype(np.float32) if o.dtype == np.float64 else o for o in outputs]

    return run


@pytest.mark.parametrize(
    ("kind", "cases_to_run"),
    [
        *((kind, None) for kind in MIN_PASSING_TESTS if kind != "node"),
        pytest.param("node", None, marks=pytest.mark.slow),
        ("node", 500),
    ],
)
def test_converted_models_mean_what_onnx_says(kind: str, cases_to_run: int | None) -> None:
    """`cases_to_run` cases, drawn by seed, give the expected values; all cases do if it is None, and enough pass."""
    cases = all_cases([kind]) if cases_to_run is None else draw(all_cases([kind]), cases_to_run, kind)
    failed: dict[str, str] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in cases:
            try:
                check(case, in_double_precision if kind == "real" else by_reference)
            except Exception as error:
                failed[case.name] = reason(error)
    wrong = {name: why for name, why in failed.items() if not why.startswith("onnx-")}
    assert wrong.keys() <= ROUNDED | SEQUENCES, wrong
    required = MIN_PASSING_TESTS[kind] if cases_to_run is None else 1
    assert len(cases) - len(failed) >= required, f"{len(cases) - len(failed)} of {len(cases)} pass"
