# SPDX-License-Identifier: Apache-2.0
"""Infer which values the inputs of a model may have, from the operators that use them.

    input_domains(module.main)["input_ids"]      # Domain(0, 30521, firm=True): rows of an embedding table

The rule of an operator in `RULES` maps a domain of its result to domains of its arguments: an index must be a row of
its table, the argument of a logarithm must be positive, adding a constant shifts the domain. A backward pass from the
result to the inputs combines the domains that all uses of a value require. Operators without a rule require nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from aotc.ir import Array, DType, Op, TensorType
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from aotc.relay.value_domains import FREE, TRUTH, Domain, before_affine, combined
from aotc.relay.visitor import post_order

#: The domain required of each argument; a tuple of domains for a tuple argument.
Wanted: TypeAlias = "Sequence[Domain | tuple[Domain, ...]]"
#: Maps a call and the domain of its result to the domains of its first arguments (others are free).
Rule: TypeAlias = Callable[[Call, Domain], Wanted]

#: Smallest distance of arguments from a pole of a function: 2^-10 for logarithms, 2^-4 for divisors.
FROM_POLE: Final = 2.0**-10
FROM_ZERO: Final = 2.0**-4
#: Smallest factor that indicates an attention mask: (1 - mask) * -10000, added to softmax's argument.
MIN_PENALTY: Final = 9e3
#: Fraction of the largest exponent for which exp(x) is finite; the margin allows sums of exp(x).
OF_LARGEST_EXPONENT: Final = 0.9
POSITIVE: Final = Domain(lo=0.0)
NONZERO: Final = Domain(gap=(-FROM_ZERO, FROM_ZERO))
NONZERO_INTEGER: Final = Domain(gap=(-1, 1))
UNIT: Final = Domain(-1, 1)
#: Domains of integer inputs by a substring of the name: a fallback if the uses imply no domain.
BY_NAME: Final = {"mask": TRUTH, "token_type": TRUTH, "segment": TRUTH, "length": Domain(lo=1)}


def input_domains(function: Function) -> dict[str, Domain]:
    """Return the domains of a function's parameters by name, without parameters whose domain is
    unknown.
    """
    wanted = _collected(function.body)
    found: dict[str, Domain] = {}
    for param in function.params:
        domain = combined(wanted.get(param, ()))
        if domain.is_free and _is_number(param, integer=True):
            domain = next((known for word, known in BY_NAME.items() if word in param.name.lower()), FREE)
        if not domain.is_free:
            found[param.name] = domain
    return found


def _collected(body: Expr) -> dict[Expr, list[Domain]]:
    """Return the domains that the uses of each expression require of it."""
    wanted: dict[Expr, list[Domain]] = {}
    for node in reversed([*post_order(body)]):
        domain = combined(wanted.get(node, ()))
        for argument, asked in _asked(node, domain):
            if not asked.is_free:
                wanted.setdefault(argument, []).append(asked)
    return wanted


def _asked(node: Expr, domain: Domain) -> Iterator[tuple[Expr, Domain]]:
    """Yield the operands of an expression with the domains required of them if the result is to be
    in `domain`.
    """
    match node:
        case Tuple(fields=parts):
            yield from ((part, domain) for part in parts)
        case TupleGetItem(tuple_value=whole):
            yield whole, domain
        case Call(op=Op() as op, args=args):
            rule = RULES.get(op.name, _moved if op.moves else None)
            for argument, asked in zip(args, rule(node, domain) if rule is not None else (), strict=False):
                yield from _parts(argument, asked)


def _parts(argument: Expr, asked: Domain | tuple[Domain, ...]) -> Iterator[tuple[Expr, Domain]]:
    """Yield an argument with its required domain, or the fields of a tuple argument with their
    domains.
    """
    if isinstance(asked, Domain):
        yield argument, asked
    elif isinstance(argument, Tuple):
        yield from zip(argument.fields, asked, strict=False)


# --- what rules ask about arguments


def _type(expr: Expr) -> TensorType | None:
    """Return the type of an expression that is a tensor of static shape, else None."""
    ty = expr.checked_type
    return ty if isinstance(ty, TensorType) and ty.is_static else None


def _is_number(expr: Expr, *, integer: bool) -> bool:
    """Return True if an expression is a tensor of integers (`integer` True) or of floats (False);
    bool is neither.
    """
    ty = _type(expr)
    return ty is not None and (ty.dtype.is_integer if integer else ty.dtype.is_float)


def _known(expr: Expr) -> Array | None:
    """Return the elements of a constant, also through data movement and casts; None for others and
    for empty ones.
    """
    while isinstance(expr, Call) and isinstance(expr.op, Op) and (expr.op.moves or expr.op.name in _SAME):
        expr = expr.args[0]
    return expr.data if isinstance(expr, Constant) and expr.data.size else None


def _ends(expr: Expr) -> tuple[float, float] | None:
    """Return the smallest and the largest element of a numeric constant; None if it is not
    constant, or has NaN.
    """
    data = _known(expr)
    if data is None or DType.of(data).is_bool:
        return None
    wide = data.astype(np.float64)
    return None if np.isnan(wide).any() else (float(wide.min()), float(wide.max()))


def _extent(expr: Expr, axis: int | None) -> int:
    """Return the extent of an axis (None: the number of elements); 0 if it is not known."""
    ty = _type(expr)
    if ty is None:
        return 0
    return ty.numel if axis is None else int(ty.static_shape[axis])


def _below(extent: int) -> Domain:
    """Return the domain of indices into `extent` elements; the free domain if the extent is 0
    (unknown).
    """
    return Domain(0, extent - 1, firm=True) if extent > 0 else FREE


# --- rules that pass a domain on


def _moved(_: Call, wanted: Domain) -> Wanted:
    """Rule of data movement: the elements of the first argument are elements of the result."""
    return [wanted]


def _ends_only(_: Call, wanted: Domain) -> Wanted:
    """Rule of means and interpolation: results lie between the smallest and the largest argument
    element.
    """
    return [Domain(wanted.lo, wanted.hi)]


def _both(_: Call, wanted: Domain) -> Wanted:
    return [wanted, wanted]


def _chosen(call: Call, wanted: Domain) -> Wanted:
    """Rule of `where`: the condition is 0 or 1; both alternatives must be in the result's domain."""
    condition = FREE if _is_bool(call.args[0]) else TRUTH
    return [condition, wanted, wanted]


def _is_bool(expr: Expr) -> bool:
    ty = _type(expr)
    return ty is None or ty.dtype.is_bool


def _cast(call: Call, wanted: Domain) -> Wanted:
    """Rule of `cast`: an argument cast to bool is 0 or 1, a float cast to an integer lies in that
    type's range.
    """
    source, result = _type(call.args[0]), _type(call)
    if source is None or result is None or source.dtype.is_bool:
        return [FREE]
    if result.dtype.is_bool:
        return [TRUTH]
    if source.dtype.is_float and result.dtype.is_integer:
        narrow = result.dtype.itemsize <= 2
        whole = Domain(int(result.dtype.min), int(result.dtype.max), firm=True) if narrow else FREE
        # a cast truncates: 0.9 becomes 0
        up = wanted.hi + 0.875 if math.isfinite(wanted.hi) and not wanted.whole else wanted.hi
        passed = Domain(wanted.lo, up, wanted.whole, wanted.gap, wanted.sides, wanted.values, wanted.firm)
        return [combined([whole, passed])]
    return [wanted]


# --- rules of arithmetic


def _add(call: Call, wanted: Domain) -> Wanted:
    return _shifted(call, wanted, 1.0, 1.0)


def _subtract(call: Call, wanted: Domain) -> Wanted:
    return _shifted(call, wanted, 1.0, -1.0)


def _shifted(call: Call, wanted: Domain, left: float, right: float) -> Wanted:
    """Rule of left * x + right * y where one operand is constant; terms of a nonnegative sum are
    nonnegative.
    """
    integer = _is_number(call, integer=True)
    for place, (own, other) in enumerate(((left, right), (right, left))):
        ends = _ends(call.args[1 - place])
        if ends is not None:
            least, most = sorted(other * end for end in ends)
            if least == most:
                asked = before_affine(wanted, own, least, is_integer=integer)
            else:
                # for every element of the constant
                asked = before_affine(Domain(wanted.lo - least, wanted.hi - most, firm=wanted.firm), own, 0.0)
                asked = asked if asked.lo <= asked.hi else FREE
            return [asked, FREE] if place == 0 else [FREE, asked]
    if wanted.lo >= 0 and left == right:
        half = Domain(lo=wanted.lo / 2)
        return [half, half]
    return [FREE, FREE]


def _multiply(call: Call, wanted: Domain) -> Wanted:
    for place in (0, 1):
        ends = _ends(call.args[1 - place])
        if ends is not None:
            asked = combined([_penalized(call.args[place], ends), _scaled(call, wanted, ends)])
            return [asked, FREE] if place == 0 else [FREE, asked]
    if wanted.lo >= 0 and call.args[0] is not call.args[1]:
        asked = Domain(lo=min(wanted.lo, 1.0))
        return [asked, asked]
    return [FREE, FREE]


def _penalized(factor: Expr, ends: tuple[float, float]) -> Domain:
    """Return the domain of a mask that becomes a penalty: (1 - mask) * -10000 or (mask - 1) *
    10000.
    """
    if ends[0] != ends[1] or abs(ends[0]) < MIN_PENALTY:
        return FREE
    if ends[0] < 0:
        return TRUTH
    match factor:
        case Call(op=Op(name="subtract"), args=[_, one]) if _ends(one) == (1.0, 1.0):
            return Domain(-1, 0, whole=True)
        case Call(op=Op(name="add"), args=[_, one]) if _ends(one) == (-1.0, -1.0):
            return Domain(-1, 0, whole=True)
    return FREE


def _scaled(call: Call, wanted: Domain, ends: tuple[float, float]) -> Domain:
    """Return the domain of x for which x times any factor between `ends` is in `wanted`."""
    least, most = ends
    if least == most:
        return before_affine(wanted, least, 0.0, is_integer=_is_number(call, integer=True))
    if most < 0:
        return before_affine(_scaled(call, wanted, (-most, -least)), -1.0, 0.0)
    if least <= 0 or not (wanted.lo <= 0 <= wanted.hi or wanted.lo >= 0):
        return POSITIVE if least >= 0 and wanted.lo >= 0 else FREE
    lo = wanted.lo / (least if wanted.lo > 0 else most)
    hi = wanted.hi / (most if wanted.hi > 0 else least)
    return Domain(lo, hi) if lo <= hi else FREE


def _divide(call: Call, wanted: Domain) -> Wanted:
    ends = _ends(call.args[1])
    if ends is not None:
        by_zero = ends[0] <= 0 <= ends[1]
        return [FREE if by_zero else _scaled(call, wanted, (1 / ends[1], 1 / ends[0]))]
    if _is_number(call, integer=True):
        return [FREE, NONZERO_INTEGER]
    if wanted.lo >= 0:
        return [Domain(lo=wanted.lo), Domain(lo=FROM_ZERO)]
    return [FREE, NONZERO]


def _remainder(call: Call, _: Domain) -> Wanted:
    constant = _ends(call.args[1]) is not None
    return [FREE, FREE if constant else NONZERO_INTEGER if _is_number(call, integer=True) else NONZERO]


def _power(call: Call, wanted: Domain) -> Wanted:
    """Rule of `power`: a root needs a nonnegative base, a negative exponent a nonzero base.

    With an exponent that is not constant, the base must be positive and the exponent small.
    """
    base, exponent = map(_ends, call.args)
    if exponent is None:
        small = Domain(-4, 4)
        if base is None:
            return [Domain(lo=FROM_ZERO), small]
        return [FREE, small if abs(math.log(max(abs(base[1]), FROM_POLE))) > 1 else FREE]
    if not float(exponent[0]).is_integer() or exponent[0] != exponent[1]:
        return [Domain(lo=FROM_ZERO if exponent[0] < 0 else 0.0)]
    if exponent[0] < 0:
        return [Domain(lo=FROM_ZERO) if exponent[0] % 2 and wanted.lo >= 0 else NONZERO]
    return [POSITIVE if exponent[0] % 2 and wanted.lo >= 0 else FREE]


def _shift(call: Call, _: Domain) -> Wanted:
    """Rule of bit shifts: the shift count is less than the number of bits of the type."""
    ty = _type(call)
    return [FREE, FREE if ty is None else _below(8 * ty.dtype.itemsize)]


def _clip(call: Call, wanted: Domain) -> Wanted:
    least, most = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    inner = Domain(
        wanted.lo if wanted.lo > least else -math.inf,
        wanted.hi if wanted.hi < most else math.inf,
        sides=tuple(end for end in (least, most) if math.isfinite(end)),
    )
    return [inner]


def _bounded(call: Call, wanted: Domain) -> Wanted:
    """Rule of minimum and maximum: a bound that a constant operand already guarantees is not
    required of the other.
    """
    lowers = isinstance(call.op, Op) and call.op.name == "minimum"
    for place in (0, 1):
        ends = _ends(call.args[1 - place])
        if ends is not None:
            lo = wanted.lo if lowers or wanted.lo > ends[0] else -math.inf
            hi = wanted.hi if not lowers or wanted.hi < ends[1] else math.inf
            sides = (ends[0],) if ends[0] == ends[1] and math.isfinite(ends[0]) else ()
            asked = Domain(lo, hi, sides=sides)
            return [asked, FREE] if place == 0 else [FREE, asked]
    return _both(call, Domain(wanted.lo, wanted.hi))


def _compared(step_down: bool, is_equality: bool) -> Rule:
    """Return the rule of a comparison with a constant: values on both sides of the point where the
    result changes.

    step_down     True if, for integers, the result changes between constant - 1 and constant rather than above it
    is_equality   True if the constant itself is a value that the model tests for
    """

    def rule(call: Call, _: Domain) -> Wanted:
        for place in (0, 1):
            data = _known(call.args[1 - place])
            if data is None or DType.of(data).is_bool or _is_bool(call.args[place]):
                continue
            points = [float(p) for p in np.unique(data.astype(np.float64)) if math.isfinite(p)]
            if _is_number(call.args[place], integer=True):
                # x < c changes below c, c < x above it
                down = step_down if place == 0 else not step_down and not is_equality
                asked = Domain(sides=_thinned([q for p in points for q in ((p - 1, p) if down else (p, p + 1))]))
            else:
                asked = Domain(values=_thinned(points)) if is_equality else Domain(sides=_thinned(points))
            return [asked, FREE] if place == 0 else [FREE, asked]
        return [FREE]

    return rule


def _thinned(points: list[float]) -> tuple[float, ...]:
    return combined([Domain(sides=tuple(points))]).sides


# --- rules of functions


def _function(
    natural: Domain = FREE, inverse: Callable[[float], float] | None = None, image: tuple[float, float] = (0, 0)
) -> Rule:
    """Return the rule of an increasing elementwise function.

    natural   domain where the function is defined and finite
    inverse   inverse function, for values strictly inside `image`; None if the domain of the result
              does not restrict the argument
    image     open interval of the function's values
    """

    def rule(_: Call, wanted: Domain) -> Wanted:
        if inverse is None:
            return [natural]
        lo = inverse(wanted.lo) if image[0] < wanted.lo < image[1] else -math.inf
        hi = inverse(wanted.hi) if image[0] < wanted.hi < image[1] else math.inf
        return [combined([natural, Domain(lo, hi)])]

    return rule


def _exponential(both_ends: bool = False) -> Rule:
    def rule(call: Call, wanted: Domain) -> Wanted:
        ty = _type(call)
        if ty is None or not ty.dtype.is_float:
            return [FREE]
        end = OF_LARGEST_EXPONENT * math.log(float(ty.dtype.max))
        if both_ends:
            return [Domain(-end, end)]
        lo = math.log(wanted.lo) if 0 < wanted.lo < math.inf else -math.inf
        hi = math.log(wanted.hi) if 0 < wanted.hi < math.inf else math.inf
        return [combined([Domain(hi=end), Domain(lo, hi)])]

    return rule


def _absolute(_: Call, wanted: Domain) -> Wanted:
    gap = (-wanted.lo, wanted.lo) if 0 < wanted.lo < math.inf else None
    end = wanted.hi if wanted.hi > 0 else math.inf
    return [Domain(-end, end, gap=gap)]


def _negative(_: Call, wanted: Domain) -> Wanted:
    return [before_affine(wanted, -1.0, 0.0)]


def _relu(_: Call, wanted: Domain) -> Wanted:
    return [Domain(wanted.lo if wanted.lo > 0 else -math.inf, wanted.hi if wanted.hi > 0 else math.inf)]


def _sum(_: Call, wanted: Domain) -> Wanted:
    return [Domain(lo=wanted.lo) if wanted.lo >= 0 else FREE]


def _weighted(call: Call, wanted: Domain) -> Wanted:
    """Rule of dense and convolution: nonnegative results and weights imply nonnegative data, as in
    mel filter banks.
    """
    weights = _ends(call.args[1])
    return [POSITIVE if wanted.lo >= 0 and weights is not None and weights[0] >= 0 else FREE]


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _power_of(base: float) -> Callable[[float], float]:
    return lambda y: float(base ** min(y, 30.0))


# --- rules of indices


def _take(call: Call, wanted: Domain) -> Wanted:
    return [wanted, _below(_extent(call.args[0], call.attrs["axis"]))]


def _gather(call: Call, wanted: Domain) -> Wanted:
    return [wanted, _below(_extent(call.args[0], call.attrs["axis"]))]


def _tuples(data: Expr, indices: Expr, batch: int = 0) -> Domain:
    """Return the domain of index tuples (first axis: one index per data axis): below the smallest
    indexed extent.
    """
    at, ty = _type(indices), _type(data)
    if at is None or ty is None or not at.rank:
        return FREE
    return _below(min((int(d) for d in ty.static_shape[batch : batch + int(at.static_shape[0])]), default=0))


def _gather_nd(call: Call, wanted: Domain) -> Wanted:
    return [wanted, _tuples(call.args[0], call.args[1], call.attrs["batch_dims"])]


def _scatter_elements(call: Call, wanted: Domain) -> Wanted:
    return [wanted, _below(_extent(call.args[0], call.attrs["axis"])), wanted]


def _scatter_nd(call: Call, wanted: Domain) -> Wanted:
    return [wanted, _tuples(call.args[0], call.args[1]), wanted]


def _adv_index(call: Call, wanted: Domain) -> Wanted:
    fields = call.args[0].fields if isinstance(call.args[0], Tuple) else ()
    rows = [_below(_extent(fields[0], k)) if not _is_bool(f) else FREE for k, f in enumerate(fields[1:])]
    return [(wanted, *rows)]


def _one_hot(call: Call, _: Domain) -> Wanted:
    return [_below(int(call.attrs["depth"]))]


def _classes(call: Call, _: Domain) -> Wanted:
    """Rule of nll_loss: targets are class indices of the predictions."""
    return [FREE, _below(_extent(call.args[0], 1 if (_type(call.args[0]) or TensorType((), "int8")).rank > 1 else 0))]


def _boxes(call: Call, _: Domain) -> Wanted:
    """Rule of crop_and_resize: corners are fractions of the image, box indices are images of the
    batch.
    """
    return [FREE, Domain(0, 1), _below(_extent(call.args[0], 0))]


def _lengths(axis: str) -> Rule:
    """Return the rule of an operator whose second argument is a number of elements, at least 1,
    along `axis`.
    """

    def rule(call: Call, wanted: Domain) -> Wanted:
        extent = _extent(call.args[0], call.attrs[axis])
        return [wanted, Domain(1, extent, firm=True) if extent else FREE]

    return rule


def _flat_index(call: Call, _: Domain) -> Wanted:
    shape = _known(call.args[1])
    return [_below(int(np.prod(shape))) if shape is not None else FREE]


# --- rules of normalization and quantization


def _normalized(call: Call, _: Domain) -> Wanted:
    """Rule of batch_norm: variances are positive."""
    return [FREE, FREE, FREE, FREE, Domain(lo=FROM_ZERO)]


def _dequantized(call: Call, wanted: Domain) -> Wanted:
    scale, zero = _ends(call.args[1]), _ends(call.args[2])
    if scale is None or zero is None or scale[0] != scale[1] or zero[0] != zero[1]:
        return [FREE]
    return [before_affine(wanted, scale[0], -scale[0] * zero[0])]


#: Operators that leave values unchanged, in addition to operators whose `moves` flag is set.
_SAME: Final = ("copy", "cast", "broadcast_to_like", "reshape_like", "annotation.stop_fusion", "nn.dropout")
_ABOVE_ZERO: Final = Domain(lo=FROM_POLE)

RULES: Final[Mapping[str, Rule]] = {
    # moves
    **dict.fromkeys(("copy", "broadcast_to_like", "reshape_like", "slice_like", "nn.dropout"), _moved),
    **dict.fromkeys(("concatenate", "stack", "nn.pad", "sort", "nn.space_to_batch_nd", "trilu"), _moved),
    **dict.fromkeys(("annotation.stop_fusion", "annotation.checkpoint", "unique", "topk"), _moved),
    **{f"nn.{kind}max_pool{n}d": _moved for kind in ("", "adaptive_", "global_") for n in (1, 2, 3)},
    **{f"nn.{kind}avg_pool{n}d": _ends_only for kind in ("", "adaptive_", "global_") for n in (1, 2, 3)},
    **{f"image.resize{n}d": _ends_only for n in (1, 2, 3)},
    **dict.fromkeys(("max", "min"), _moved),
    **dict.fromkeys(("mean", "floor", "ceil", "round", "trunc"), _ends_only),
    "strided_set": _both,
    "where": _chosen,
    "cast": _cast,
    "cast_like": _cast,
    # arithmetic
    "add": _add,
    "nn.bias_add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    **dict.fromkeys(("divide", "floor_divide", "trunc_divide"), _divide),
    **dict.fromkeys(("mod", "floor_mod", "trunc_mod"), _remainder),
    "power": _power,
    **dict.fromkeys(("left_shift", "right_shift"), _shift),
    "clip": _clip,
    **dict.fromkeys(("minimum", "maximum"), _bounded),
    "less": _compared(True, False),
    "greater_equal": _compared(True, False),
    "greater": _compared(False, False),
    "less_equal": _compared(False, False),
    "equal": _compared(False, True),
    "not_equal": _compared(False, True),
    "sum": _sum,
    "cumsum": _sum,
    **dict.fromkeys(("nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"), _weighted),
    # functions
    **dict.fromkeys(("exp", "fast_exp", "expm1"), _exponential()),
    **dict.fromkeys(("sinh", "cosh"), _exponential(both_ends=True)),
    "log": _function(_ABOVE_ZERO, math.exp, (-30, 30)),
    "log2": _function(_ABOVE_ZERO, _power_of(2), (-30, 30)),
    "log10": _function(_ABOVE_ZERO, _power_of(10), (-30, 30)),
    "log1p": _function(Domain(lo=FROM_POLE - 1), math.expm1, (-30, 30)),
    "sqrt": _function(POSITIVE, lambda y: y * y, (0, math.inf)),
    "rsqrt": _function(_ABOVE_ZERO),
    "sigmoid": _function(FREE, _logit, (0, 1)),
    **dict.fromkeys(("tanh", "fast_tanh"), _function(FREE, math.atanh, (-1, 1))),
    **dict.fromkeys(("acos", "asin"), _function(UNIT)),
    "acosh": _function(Domain(lo=1.0)),
    "atanh": _function(Domain(FROM_POLE - 1, 1 - FROM_POLE)),
    "tan": _function(Domain(-1.5, 1.5)),
    "abs": _absolute,
    "negative": _negative,
    "nn.relu": _relu,
    # indices and lengths
    "take": _take,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "adv_index": _adv_index,
    "one_hot": _one_hot,
    "nn.nll_loss": _classes,
    "image.crop_and_resize": _boxes,
    "reverse_sequence": _lengths("seq_axis"),
    "sequence_mask": _lengths("axis"),
    "unravel_index": _flat_index,
    # normalization and quantization
    "nn.batch_norm": _normalized,
    "qnn.dequantize": _dequantized,
}
