# SPDX-License-Identifier: Apache-2.0
"""Build loops as global functions that are recursive in their results.

A function tests whether the loop goes on. If so, its result is a call of itself with the values of
the next iteration, else it is the values that the loop carries. The backend compiles such a function
to a loop; see `aotc.relay.backend.module_to_program`.

    n, x = LoopParameter(n_var, count, n_less_1), LoopParameter(x_var, given, x_plus_1)
    function, results = tail_recursive_loop("loop_0", n_is_positive, [n, x], 1)
    module["loop_0"] = function

A loop that computes one row of a tensor in each iteration carries the whole tensor and writes a row of
it, which the backend does in place:

    rows = parameter_of_rows("rows", row, i, count)     # count rows of the shape of `row`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aotc.ir import AotcError, Dim, TensorType, TupleType
from aotc.relay.frontend import op_calls as g
from aotc.relay.graph_api import Call, Expr, Function, GlobalVar, If, Tuple, TupleGetItem, Var, type_of

#: Largest number of iterations, known at compile time, of a loop that front ends unroll even if it
#: could be a loop of the program.
MAX_UNROLLED_ITERATIONS: Final = 8


@dataclass(frozen=True, slots=True)
class LoopParameter:
    """A parameter of the function of a loop.

    var     the variable, which is its value in an iteration
    given   its value in the first iteration, an expression outside of the loop
    later   its value in the next iteration, an expression of the variables of all parameters; the
            variable itself for a value that does not change
    """

    var: Var
    given: Expr
    later: Expr


def check_carried_types(parameters: Sequence[LoopParameter], code: str) -> None:
    """Raise AotcError (with the code `code`) if the type of a carried value changes in a loop."""
    for position, parameter in enumerate(parameters):
        before, after = type_of(parameter.var), type_of(parameter.later)
        if before != after:
            text = f"carried value {position} of the loop is {before}, but {after} after an iteration"
            hint = "keep its type and shape, or make the number of iterations a constant: then the loop is unrolled"
            raise AotcError(code, text, hint=hint)


def row_of(x: Expr, position: Expr, axis: int) -> Expr:
    """Return `x[..., position, ...]`, which removes an axis; the position, an integer scalar, must be
    in range.
    """
    return g.call_op("take", x, position, axis=axis)


def parameter_of_rows(name: str, row: Expr, position: Expr, count: Dim) -> LoopParameter:
    """Return the parameter of a loop that carries `count` rows along a new first axis, which are zeros
    before the loop; each iteration sets the one at `position`, an integer scalar. The number of rows may
    be a size that is known at run time only.
    """
    dtype = g.dtype(row)
    shape = g.checked_dims((count, *g.dims(row)), dtype, "the rows of a loop")
    rows = Var(name, TensorType(shape, dtype))
    index, update = g.reshape(position, (1, 1)), g.unsqueeze(row, [0])
    later = rows if 0 in shape else g.call_op("scatter_nd", rows, index, update, mode="update")
    return LoopParameter(rows, g.filled(0, shape, str(dtype)), later)


def tail_recursive_loop(
    name: str, goes_on: Expr, parameters: Sequence[LoopParameter], result_count: int
) -> tuple[Function, list[Expr]]:
    """Build the function of a loop and a call of it.

    name          the name that the caller gives the function in the module
    goes_on       bool scalar, an expression of the variables: True if there is another iteration
    result_count  the loop results in the last values of this many last parameters

    Return the function, and the results of the call.
    """
    results: list[Expr] = [p.var for p in parameters[len(parameters) - result_count :]]
    last = results[0] if result_count == 1 else Tuple(results)
    result_type = type_of(last)
    again = Call(GlobalVar(name), [p.later for p in parameters], checked_type=result_type)
    function = Function([p.var for p in parameters], If(goes_on, again, last), result_type)
    call = Call(GlobalVar(name), [p.given for p in parameters], checked_type=result_type)
    if not isinstance(result_type, TupleType) or result_count == 1:
        return function, [call]
    return function, [TupleGetItem(call, k) for k in range(result_count)]
