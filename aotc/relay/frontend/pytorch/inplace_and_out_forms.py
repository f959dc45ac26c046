# SPDX-License-Identifier: Apache-2.0
"""Map in-place and `out=` forms of PyTorch operators to functional operators, using their schemas.

Input: the schema of a call. Output: the functional operator that computes equal values, and the
arguments that the call writes to.

    form = inplace_out_or_functional_form(schema)  # aten::add.out(Tensor self, ..., *, Tensor(a!) out) -> Tensor(a!)
    form.functional                     # the schema of aten::add.Tensor
    form.written                        # (3,), the number of `out`
    form.arguments_without_out_arguments(args)  # the arguments without `out`

An in-place form has the name of the functional operator with an underscore at the end (`relu_`) or
an i in front (`__iadd__`). An `out=` form is an overload whose written arguments are keyword-only.
"""

from functools import lru_cache
from typing import Any, Final

import torch

from aotc.ir import frozen

_PREFIX: Final = "aten::"


@frozen(eq=False)
class OperatorForm:
    """The relation of a PyTorch operator to the functional operator that computes its result.

    functional   schema of the functional operator; the operator's own schema if there is none or it
                 writes nothing
    written      indices of the arguments that the operator writes to
    outs         indices of the written arguments that only receive results
    changes      True if a written tensor becomes another view of its memory (`t_`, `squeeze_`)
    """

    functional: Any
    written: tuple[int, ...]
    outs: tuple[int, ...]
    changes: bool

    def arguments_without_out_arguments(self, args: Any) -> list[Any]:
        """Return the arguments of a call without its `out` arguments, as the functional operator
        takes them.
        """
        return [arg for k, arg in enumerate(args) if k not in self.outs]


def is_written_argument(argument: Any) -> bool:
    """Return True if a PyTorch operator writes to an argument, by the alias annotation in its
    schema.
    """
    return argument.alias_info is not None and argument.alias_info.is_write


def inplace_out_or_functional_form(schema: Any) -> OperatorForm:
    """Return the in-place, `out=` or functional form of the PyTorch operator with a schema."""
    written = tuple(k for k, a in enumerate(schema.arguments) if is_written_argument(a))
    if not written:
        return OperatorForm(schema, (), (), False)
    return _parse_inplace_or_out_form(schema.name, schema.overload_name, str(schema))


@lru_cache(maxsize=1024)
def _parse_inplace_or_out_form(name: str, overload: str, schema_text: str) -> OperatorForm:
    schema = torch._C.parse_schema(schema_text)
    written = tuple(k for k, a in enumerate(schema.arguments) if is_written_argument(a))
    outs = tuple(k for k in written if schema.arguments[k].kwarg_only)
    signature = [_argument_name_and_type(a) for k, a in enumerate(schema.arguments) if k not in outs]
    plain = functional_operator_name(name.removeprefix(_PREFIX))
    candidates = torch._C._jit_get_schemas_for_operator(_PREFIX + plain)
    pure = (s for s in candidates if not any(map(is_written_argument, s.arguments)))
    functional_schema = next(
        (s for s in pure if [_argument_name_and_type(a) for a in s.arguments] == signature), schema
    )
    packet = getattr(torch.ops.aten, name.removeprefix(_PREFIX), None)
    operator = getattr(packet, overload or "default", None)
    return OperatorForm(functional_schema, written, outs, torch.Tag.inplace_view in getattr(operator, "tags", ()))


def _argument_name_and_type(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def functional_operator_name(name: str) -> str:
    """Return the name of a PyTorch operator without the mark of an in-place form: the final
    underscore, or the i of `__iadd__`; other names are returned unchanged.
    """
    if name.startswith("__i") and name.endswith("__") and hasattr(torch.Tensor, f"__{name[3:]}"):
        return f"__{name[3:]}"
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
