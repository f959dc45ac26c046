# SPDX-License-Identifier: Apache-2.0
"""Every converter against torch, through both front ends."""

from __future__ import annotations

import pytest

from tests.frontend_pytorch.cases import EXPORTED_ONLY, Case, all_cases
from tests.frontend_pytorch.frontend_comparison import check, check_exported


@pytest.mark.parametrize(("name", "case"), [pytest.param(*item, id=item[0]) for item in all_cases().items()])
def test_operator_agrees_with_torch(name: str, case: Case) -> None:
    net, inputs = case
    (check_exported if name.startswith(EXPORTED_ONLY) else check)(net, *inputs)
