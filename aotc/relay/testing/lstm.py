# SPDX-License-Identifier: Apache-2.0
"""Long short-term memory (LSTM) unrolled over its steps, each of which has an input variable of its
own (Hochreiter and Schmidhuber, 1997).

mod, params = get_workload(iterations=3, num_hidden=8)      # inputs data, data1, data2
"""

from aotc.ir import TensorType
from aotc.relay.expr import Call, Expr, Function, Let, Tuple, TupleGetItem, Var
from aotc.relay.op.builders import add, bias_add, dense, multiply, sigmoid, split, tanh, zeros
from aotc.relay.testing.init import make_get_workload
from aotc.relay.testing.layers import function_of_free_variables, parameter_variable


def _lstm_cell_function(batch_size: int, num_hidden: int, dtype: str) -> Function:
    """Build the function of one step: it takes the input, hidden state, memory, weights and biases,
    and returns a tuple of the next hidden state and memory.
    """
    state = TensorType((batch_size, num_hidden), dtype)
    data, hidden, memory = params = [Var(name, state) for name in ("data", "hidden", "memory")]
    weights = _lstm_weight_variables(data, num_hidden)
    i2h_weight, i2h_bias, h2h_weight, h2h_bias = weights
    sums = add(bias_add(dense(data, i2h_weight), i2h_bias), bias_add(dense(hidden, h2h_weight), h2h_bias))
    gates = split(sums, indices_or_sections=4, axis=1)
    into, forget, out = (sigmoid(gates[k]) for k in (0, 1, 3))
    next_memory = Var("next_memory", state)
    value = add(multiply(forget, memory), multiply(into, tanh(gates[2])))
    return Function(
        (*params, *weights), Let(next_memory, value, Tuple((multiply(out, tanh(next_memory)), next_memory)))
    )


def _lstm_weight_variables(dtype_source: Expr, num_hidden: int) -> list[Var]:
    """Create the variables for the weights and biases of a cell, which all steps share."""
    rows = 4 * num_hidden
    return [
        parameter_variable(f"{name}_{kind}", shape, dtype_source)
        for name in ("i2h", "h2h")
        for kind, shape in (("weight", (rows, num_hidden)), ("bias", (rows,)))
    ]


def get_net(iterations: int, num_hidden: int, batch_size: int = 1, dtype: str = "float32") -> Function:
    """Build the network as a function of `data`, `data1` and so on, each (batch_size, num_hidden);
    the result is the last hidden state.
    """
    state = TensorType((batch_size, num_hidden), dtype)
    inputs = [Var(f"data{k or ''}", state) for k in range(iterations)]
    weights = _lstm_weight_variables(inputs[0], num_hidden)
    hidden: Expr = zeros(state.static_shape, dtype)
    memory = hidden
    for data in inputs:
        both = Call(_lstm_cell_function(batch_size, num_hidden, dtype), (data, hidden, memory, *weights))
        hidden, memory = TupleGetItem(both, 0), TupleGetItem(both, 1)
    return function_of_free_variables(hidden)


#: Return the module of the network and its parameters; the arguments are those of `get_net`.
get_workload = make_get_workload(get_net)
