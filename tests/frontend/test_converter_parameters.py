# SPDX-License-Identifier: Apache-2.0
"""Parameters of the converters of all importers are derived from annotations, which their files can evaluate."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from aotc.relay import frontend
from aotc.relay.frontend.converter_signatures import converter_parameters

FILES = [m.name for m in pkgutil.walk_packages(frontend.__path__, "aotc.relay.frontend.") if ".ops_" in m.name]


@pytest.mark.parametrize("name", FILES)
def test_annotations_are_evaluated(name: str) -> None:
    for converter in getattr(importlib.import_module(name), "OPS", {}).values():
        assert all(not isinstance(p.annotation, str) for p in converter_parameters(converter))
