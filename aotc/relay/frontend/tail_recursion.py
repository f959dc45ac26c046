# SPDX-License-Identifier: Apache-2.0
"""Build loops as global functions that are recursive in their results.

A function tests whether the loop goes on. If so, its result is a call of itself with the values of
the next iteration, else it is the values that the loop carries. The backend compiles such a function
to a loop; see `aotc.relay.backend.module_to_program`.

    n, x = LoopParameter(n_var, count, n_less_1), LoopParameter(x_var, given, x_plus_1)
    function, results = tail_recursive_loop("loop_0", n_is_positive, [n, x], 1)
    module["loop_0"] = function
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir import AotcError, TupleType
from aotc.relay.graph_api import Call, Expr, Function, GlobalVar, If, Tuple, TupleGetItem, Var, type_of


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
