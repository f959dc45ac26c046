# SPDX-License-Identifier: Apache-2.0
"""Random convolutions, products and pools on every target that runs here, against numpy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aotc
from tests.share import share
from tests.targets.machines import FOREIGN, machine, native_targets
from tests.targets.random_layers import Model, Part, parts

BOUND = {"strict": 2e-6, "fast": 1e-5}
"""Largest error by accuracy, relative to the sum of the magnitudes of all terms."""
AT_ONCE = 6
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(drawn: list[Part], seed: int, target: str, level: int, accuracy: str) -> None:
    """One model of all parts, compiled and run."""
    # Winograd's algorithm spreads NaN over tiles
    model, here = Model.of(drawn, seed, special=accuracy == "strict" and seed % 3 == 0), machine(target)
    if here.emulator:
        with tempfile.TemporaryDirectory() as folder:
            made = aotc.compile(
                model.module, output=Path(folder, "m"), target=target, opt_level=level, accuracy=accuracy, build=False
            )
            found = here.run_model(made, list(model.inputs.values()))
    else:
        made = aotc.compile(
            model.module, target=target, opt_level=level, accuracy=accuracy, cflags=["-O1"], cache=False
        )
        found = made.session().run(None, dict(model.inputs))
    problems = model.problems(found, BOUND[accuracy])
    assert not problems, problems


random_models = given(
    parts(AT_ONCE), st.integers(0, 9), st.sampled_from([3, 3, 3, 0, 1, 2]), st.sampled_from(sorted(BOUND))
)


@pytest.mark.parametrize("target", share(native_targets(), 2))
def test_any_shape(target: str) -> None:
    @settings(relaxed, max_examples=4)
    @random_models
    def run(drawn: list[Part], seed: int, level: int, accuracy: str) -> None:
        check(drawn, seed, target, level, accuracy)

    run()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", [*native_targets(), *FOREIGN])
def test_many_shapes(target: str) -> None:
    machine(target)

    @settings(relaxed, max_examples=60 if target in FOREIGN else 150)
    @random_models
    def run(drawn: list[Part], seed: int, level: int, accuracy: str) -> None:
        check(drawn, seed, target, level, accuracy)

    run()
