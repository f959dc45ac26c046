# SPDX-License-Identifier: Apache-2.0
"""docs/tflite-operators.md states what the front end does with each builtin operator of TFLite's schema.

python -m pytest tests/frontend_tflite/test_tflite_operator_page.py --update-golden     # write the page anew
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tflite")

import tflite

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import CONVERTERS, from_tflite
from aotc.relay.frontend.tflite.converter_table import INTEGERS, MOVES
from aotc.relay.frontend.tflite.node import ANY_INTEGER_OPERATORS, INT16_OPERATORS
from aotc.relay.frontend.tflite.unsupported_operators import reason_for_missing_converter
from tests.frontend_tflite.model_builder import CODES, Builder

PAGE = Path(__file__).parents[2] / "docs" / "tflite-operators.md"
NAMES = [name for name, _ in sorted(vars(tflite.BuiltinOperator).items()) if name.isupper()]
HEAD = """# TFLite operators

The table has one line for each of the {count} builtin operators in TFLite's schema. {supported} are
supported, and {refused} are refused with an error that names the operator. [TFLite models](tflite.md)
has the details, and the custom operators that are supported.

The column of quantized tensors says with which integers a supported operator computes: integers of 8
bits, or of 8 and 16 bits; *moved* means that it moves integers whose inputs and results have one scale;
*any* means that it accepts integers of every type. Where it is empty, the operator computes on tensors
without scales only.

`tests/frontend_tflite/test_tflite_operator_page.py` writes this page.

| operator | state | quantized tensors | remarks |
|---|---|---|---|
"""


def quantized(name: str) -> str:
    if name in ANY_INTEGER_OPERATORS:
        return "any"
    if name in MOVES:
        return "moved"
    if name in INTEGERS:
        return "8 and 16 bits" if name in INT16_OPERATORS else "8 bits"
    return ""


def page() -> str:
    rows = [
        f"| `{n}` | supported | {quantized(n)} |  |" if n in CONVERTERS
        else f"| `{n}` | refused |  | {reason_for_missing_converter(n)} |"
        for n in NAMES
    ]  # fmt: skip
    supported = sum(n in CONVERTERS for n in NAMES)
    head = HEAD.format(count=len(NAMES), supported=supported, refused=len(NAMES) - supported)
    return head + "\n".join(rows) + "\n"


def test_page(update_golden: bool) -> None:
    if update_golden:
        PAGE.write_text(page(), "utf-8")
    assert PAGE.read_text("utf-8") == page()


def test_refused_operators_are_refused_with_their_reasons() -> None:
    refused = [n for n in NAMES if n not in CONVERTERS and n in CODES and n not in ("CUSTOM", "DELEGATE")]
    model = Builder()
    x = model.tensor((2,))
    outputs = []
    for name in refused:
        outputs.append(model.tensor((2,)))
        model.op(name, [x], outputs[-1:])
    with pytest.raises(AotcError) as caught:
        from_tflite(model.data([x], outputs))
    messages = [d.message for d in caught.value.diagnostics]
    reasons = [reason_for_missing_converter(n) for n in refused]
    assert messages == [
        f"operator {n} is not supported" + (f": {r}" if r else "") for n, r in zip(refused, reasons, strict=True)
    ]
    assert len(refused) > 5
