# SPDX-License-Identifier: Apache-2.0
"""Infer which values the inputs of a model may have, from the operators that use them.

    infer_input_domains(module.main)["input_ids"]  # Domain(0, 30521, firm=True): rows of an embedding table

The rule of an operator in `DOMAIN_RULES_BY_OP_NAME` maps a domain of its result to domains of its
arguments: an index must be a row of its table, the argument of a logarithm must be positive, adding
a constant shifts the domain. A backward pass from the result to the inputs combines the domains
that all uses of a value require. Operators without a rule require nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from aotc.ir import Op, TensorType
from aotc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem
from aotc.relay.op.operand_shapes_and_constants import (
    axis_extent_or_zero,
    constant_elements_in_any_order_or_none,
    constant_min_and_max,
    has_bool_or_unknown_type,
    is_tensor_of_requested_number_kind,
    static_tensor_type_or_none,
)
from aotc.relay.op.valid_operand_values_of_arithmetic import (
    ARITHMETIC_DOMAIN_RULES_BY_OP_NAME,
    MIN_DIVISOR_MAGNITUDE,
    DomainRule,
    OperandDomains,
)
from aotc.relay.valid_input_values_and_random_arrays import (
    UNCONSTRAINED_DOMAIN,
    ZERO_ONE_DOMAIN,
    ValueDomain,
    intersect_value_domains,
    value_domain_before_affine_map,
)
from aotc.relay.visitor import post_order

#: Domains of integer inputs by a substring of the name: a fallback if the uses imply no domain.
DOMAINS_BY_NAME_SUBSTRING: Final = {
    "mask": ZERO_ONE_DOMAIN,
    "token_type": ZERO_ONE_DOMAIN,
    "segment": ZERO_ONE_DOMAIN,
    "length": ValueDomain(lo=1),
}


def infer_input_domains(function: Function) -> dict[str, ValueDomain]:
    """Return the domains of a function's parameters by name, without parameters whose domain is
    unknown.
    """
    requirements = _required_domains_by_expr(function.body)
    domains: dict[str, ValueDomain] = {}
    for param in function.params:
        domain = intersect_value_domains(requirements.get(param, ()))
        if domain.is_unconstrained and is_tensor_of_requested_number_kind(param, integer=True):
            domain = next(
                (known for word, known in DOMAINS_BY_NAME_SUBSTRING.items() if word in param.name.lower()),
                UNCONSTRAINED_DOMAIN,
            )
        if not domain.is_unconstrained:
            domains[param.name] = domain
    return domains


def _required_domains_by_expr(body: Expr) -> dict[Expr, list[ValueDomain]]:
    """Return the domains that the uses of each expression require of it."""
    requirements: dict[Expr, list[ValueDomain]] = {}
    for node in reversed([*post_order(body)]):
        domain = intersect_value_domains(requirements.get(node, ()))
        for argument, requirement in _operands_with_required_domains(node, domain):
            if not requirement.is_unconstrained:
                requirements.setdefault(argument, []).append(requirement)
    return requirements


def _operands_with_required_domains(node: Expr, result_domain: ValueDomain) -> Iterator[tuple[Expr, ValueDomain]]:
    """Yield the operands of an expression with the domains required of them if the result is to be
    in `result_domain`.
    """
    match node:
        case Tuple(fields=parts):
            yield from ((part, result_domain) for part in parts)
        case TupleGetItem(tuple_value=whole):
            yield whole, result_domain
        case Call(op=Op() as op, args=args):
            rule = DOMAIN_RULES_BY_OP_NAME.get(op.name, _data_movement_operand_domains if op.is_data_movement else None)
            for argument, requirement in zip(args, rule(node, result_domain) if rule is not None else (), strict=False):
                yield from _argument_or_fields_with_domains(argument, requirement)


def _argument_or_fields_with_domains(
    argument: Expr, required: ValueDomain | tuple[ValueDomain, ...]
) -> Iterator[tuple[Expr, ValueDomain]]:
    """Yield an argument with the domain of values (interval, integers only, ...) required of its
    elements, or the fields of a tuple argument, each with its own domain.
    """
    if isinstance(required, ValueDomain):
        yield argument, required
    elif isinstance(argument, Tuple):
        yield from zip(argument.fields, required, strict=False)


# --- rules that pass a domain on


def _data_movement_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of data movement: the elements of the first argument are elements of the result."""
    return [result_domain]


def _mean_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of means and interpolation, from the domain that the result must have to that of the
    argument: the same interval, because results lie between the least and the largest element.
    """
    return [ValueDomain(result_domain.lo, result_domain.hi)]


def _same_domain_for_both_operands(_: Call, result_domain: ValueDomain) -> OperandDomains:
    return [result_domain, result_domain]


def _where_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of `where`: the condition is 0 or 1; both alternatives must be in the result's domain."""
    condition = UNCONSTRAINED_DOMAIN if has_bool_or_unknown_type(call.args[0]) else ZERO_ONE_DOMAIN
    return [condition, result_domain, result_domain]


def _cast_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of `cast`: an argument cast to bool is 0 or 1, a float cast to an integer lies in that
    type's range.
    """
    source, result = static_tensor_type_or_none(call.args[0]), static_tensor_type_or_none(call)
    if source is None or result is None or source.dtype.is_bool:
        return [UNCONSTRAINED_DOMAIN]
    if result.dtype.is_bool:
        return [ZERO_ONE_DOMAIN]
    if source.dtype.is_float and result.dtype.is_integer:
        narrow = result.dtype.itemsize <= 2
        whole = ValueDomain(int(result.dtype.min), int(result.dtype.max), firm=True) if narrow else UNCONSTRAINED_DOMAIN
        # a cast truncates: 0.9 becomes 0
        up = (
            result_domain.hi + 0.875
            if math.isfinite(result_domain.hi) and not result_domain.whole
            else result_domain.hi
        )
        passed = ValueDomain(
            result_domain.lo,
            up,
            result_domain.whole,
            result_domain.gap,
            result_domain.sides,
            result_domain.values,
            result_domain.firm,
        )
        return [intersect_value_domains([whole, passed])]
    return [result_domain]


# --- rules of indices


def _index_domain_of_extent(extent: int) -> ValueDomain:
    """Return the domain of indices into `extent` elements; the free domain if the extent is 0
    (unknown).
    """
    return ValueDomain(0, extent - 1, firm=True) if extent > 0 else UNCONSTRAINED_DOMAIN


def _take_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return [result_domain, _index_domain_of_extent(axis_extent_or_zero(call.args[0], call.attrs["axis"]))]


def _gather_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return [result_domain, _index_domain_of_extent(axis_extent_or_zero(call.args[0], call.attrs["axis"]))]


def _index_tuple_domain(data: Expr, indices: Expr, batch_dims: int = 0) -> ValueDomain:
    """Return the domain of index tuples (first axis: one index per data axis): below the smallest
    indexed extent.
    """
    at, ty = static_tensor_type_or_none(indices), static_tensor_type_or_none(data)
    if at is None or ty is None or not at.rank:
        return UNCONSTRAINED_DOMAIN
    return _index_domain_of_extent(
        min((int(d) for d in ty.static_shape[batch_dims : batch_dims + int(at.static_shape[0])]), default=0)
    )


def _gather_nd_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return [result_domain, _index_tuple_domain(call.args[0], call.args[1], call.attrs["batch_dims"])]


def _scatter_elements_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return [
        result_domain,
        _index_domain_of_extent(axis_extent_or_zero(call.args[0], call.attrs["axis"])),
        result_domain,
    ]


def _scatter_nd_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return [result_domain, _index_tuple_domain(call.args[0], call.args[1]), result_domain]


def _adv_index_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    fields = call.args[0].fields if isinstance(call.args[0], Tuple) else ()
    rows = [
        _index_domain_of_extent(axis_extent_or_zero(fields[0], k))
        if not has_bool_or_unknown_type(f)
        else UNCONSTRAINED_DOMAIN
        for k, f in enumerate(fields[1:])
    ]
    return [(result_domain, *rows)]


def _one_hot_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    return [_index_domain_of_extent(int(call.attrs["depth"]))]


def _nll_loss_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    """Rule of nll_loss: targets are class indices of the predictions."""
    return [
        UNCONSTRAINED_DOMAIN,
        _index_domain_of_extent(
            axis_extent_or_zero(
                call.args[0], 1 if (static_tensor_type_or_none(call.args[0]) or TensorType((), "int8")).rank > 1 else 0
            )
        ),
    ]


def _crop_and_resize_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    """Rule of crop_and_resize: corners are fractions of the image, box indices are images of the
    batch.
    """
    return [UNCONSTRAINED_DOMAIN, ValueDomain(0, 1), _index_domain_of_extent(axis_extent_or_zero(call.args[0], 0))]


def _sequence_length_domain_rule(axis_attribute: str) -> DomainRule:
    """Return the rule of an operator whose second argument is a number of elements, at least 1,
    along `axis_attribute`.
    """

    def sequence_length_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
        extent = axis_extent_or_zero(call.args[0], call.attrs[axis_attribute])
        return [result_domain, ValueDomain(1, extent, firm=True) if extent else UNCONSTRAINED_DOMAIN]

    return sequence_length_operand_domains


def _bit_shift_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    """Rule of bit shifts: the shift count is less than the number of bits of the type."""
    ty = static_tensor_type_or_none(call)
    return [
        UNCONSTRAINED_DOMAIN,
        UNCONSTRAINED_DOMAIN if ty is None else _index_domain_of_extent(8 * ty.dtype.itemsize),
    ]


def _unravel_index_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    shape = constant_elements_in_any_order_or_none(call.args[1])
    return [_index_domain_of_extent(int(np.prod(shape))) if shape is not None else UNCONSTRAINED_DOMAIN]


# --- rules of normalization and quantization


def _batch_norm_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    """Rule of batch_norm: variances are positive."""
    return [
        UNCONSTRAINED_DOMAIN,
        UNCONSTRAINED_DOMAIN,
        UNCONSTRAINED_DOMAIN,
        UNCONSTRAINED_DOMAIN,
        ValueDomain(lo=MIN_DIVISOR_MAGNITUDE),
    ]


def _dequantize_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    scale, zero = constant_min_and_max(call.args[1]), constant_min_and_max(call.args[2])
    if scale is None or zero is None or scale[0] != scale[1] or zero[0] != zero[1]:
        return [UNCONSTRAINED_DOMAIN]
    return [value_domain_before_affine_map(result_domain, scale[0], -scale[0] * zero[0])]


DOMAIN_RULES_BY_OP_NAME: Final[Mapping[str, DomainRule]] = {
    # moves
    **dict.fromkeys(
        ("copy", "broadcast_to_like", "reshape_like", "slice_like", "nn.dropout"), _data_movement_operand_domains
    ),
    **dict.fromkeys(
        ("concatenate", "stack", "nn.pad", "sort", "nn.space_to_batch_nd", "trilu"), _data_movement_operand_domains
    ),
    **dict.fromkeys(
        ("annotation.stop_fusion", "annotation.checkpoint", "unique", "topk"), _data_movement_operand_domains
    ),
    **{
        f"nn.{kind}max_pool{n}d": _data_movement_operand_domains
        for kind in ("", "adaptive_", "global_")
        for n in (1, 2, 3)
    },
    **{f"nn.{kind}avg_pool{n}d": _mean_operand_domains for kind in ("", "adaptive_", "global_") for n in (1, 2, 3)},
    **{f"image.resize{n}d": _mean_operand_domains for n in (1, 2, 3)},
    **dict.fromkeys(("max", "min"), _data_movement_operand_domains),
    **dict.fromkeys(("mean", "floor", "ceil", "round", "trunc"), _mean_operand_domains),
    "strided_set": _same_domain_for_both_operands,
    "where": _where_operand_domains,
    "cast": _cast_operand_domains,
    "cast_like": _cast_operand_domains,
    **ARITHMETIC_DOMAIN_RULES_BY_OP_NAME,
    # indices and lengths
    "take": _take_operand_domains,
    "gather": _gather_operand_domains,
    "gather_nd": _gather_nd_operand_domains,
    "scatter_elements": _scatter_elements_operand_domains,
    "scatter_nd": _scatter_nd_operand_domains,
    "adv_index": _adv_index_operand_domains,
    "one_hot": _one_hot_operand_domains,
    "nn.nll_loss": _nll_loss_operand_domains,
    "image.crop_and_resize": _crop_and_resize_operand_domains,
    "reverse_sequence": _sequence_length_domain_rule("seq_axis"),
    "sequence_mask": _sequence_length_domain_rule("axis"),
    **dict.fromkeys(("left_shift", "right_shift"), _bit_shift_operand_domains),
    "unravel_index": _unravel_index_operand_domains,
    # normalization and quantization
    "nn.batch_norm": _batch_norm_operand_domains,
    "qnn.dequantize": _dequantize_operand_domains,
}
