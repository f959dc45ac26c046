# SPDX-License-Identifier: Apache-2.0
"""The operators that PyTorch calls core, and what the front end does with each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from aotc.relay.frontend.pytorch.converter_table import converter_of
from aotc.relay.frontend.pytorch.exported_program import is_decomposable, is_operator_without_converter
from aotc.relay.frontend.pytorch.refused_operators import reason_for_refusal

#: Remark on operators that only check values.
UNCHECKED = "not checked at run time"


@dataclass(frozen=True)
class CoreOperator:
    """An operator with its overload; status is "supported", "decomposed" or "refused"."""

    operator: Any
    status: str
    reason: str = ""

    @property
    def name(self) -> str:
        return str(self.operator).removeprefix("aten.")


@cache
def core_operators() -> tuple[CoreOperator, ...]:
    """All core operators, by name."""
    table = torch.export.default_decompositions()
    return tuple(classified(operator, table) for operator in sorted(_tagged_core(), key=str))


def _tagged_core() -> Iterator[Any]:
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            operator = getattr(packet, overload)
            if torch.Tag.core in operator.tags:
                yield operator


def classified(operator: Any, decompositions: Any) -> CoreOperator:
    name, overload = operator._schema.name.removeprefix("aten::"), operator._schema.overload_name
    if not is_operator_without_converter(operator):
        converter = converter_of(name, overload)
        if converter is None and name.startswith(("_assert", "sym_constrain")):
            return CoreOperator(operator, "supported", UNCHECKED)
        subject = getattr(converter, "uncomputed_subject", "")
        return CoreOperator(operator, "supported", f"without {subject}" if subject else "")
    refusal = reason_for_refusal(name)
    if refusal is not None and "memory" in refusal.reason:
        return CoreOperator(operator, "refused", refusal.reason)
    if is_decomposable(operator, decompositions):
        return CoreOperator(operator, "decomposed", "into operators of this table")
    return CoreOperator(operator, "refused", refusal.reason if refusal is not None else "")


def page() -> str:
    """The page of the documentation."""
    lines = [f"| `{c.name}` | {c.status} | {c.reason} |" for c in core_operators()]
    counts = {s: sum(c.status == s for c in core_operators()) for s in ("supported", "decomposed", "refused")}
    version = torch.__version__.partition("+")[0]
    head = f"""# PyTorch operators

PyTorch calls some of its operators *core*: all others can be composed of them. The table has one
line for each core operator of PyTorch {version}.
{counts["supported"]} are supported, {counts["decomposed"]} are decomposed into supported ones, and
{counts["refused"]} are refused with an error that states the reason. Operators that are not core are
decomposed, unless they are supported, too, as convolutions, attention and recurrent layers are.

`tests/frontend_pytorch/test_core_operators.py` writes this page, and compares each supported
operator with PyTorch.

| operator | what aotc does | remarks |
|---|---|---|
"""
    return head + "\n".join(lines) + "\n"
