# SPDX-License-Identifier: Apache-2.0
"""Every converter against torch, through both front ends."""

from __future__ import annotations

import pytest

from tests.frontend_pytorch.cases import Case, all_cases
from tests.frontend_pytorch.frontend_comparison import check


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in all_cases().items()])
def test_operator_agrees_with_torch(case: Case) -> None:
    net, inputs = case
    check(net, *inputs)
