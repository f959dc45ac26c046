# SPDX-License-Identifier: Apache-2.0
"""ChangeBatch: set the batch size of a network.

fn (%x: Tensor[(1, 3), float32])   =>   fn (%x: Tensor[(8, 3), float32])
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aotc.ir import AotcError, Pass, PassContext, SymDim, TensorType
from aotc.relay.graph_api import Expr, Function, IRModule, Var, infer_module, substitute_variables


@dataclass(frozen=True, repr=False)
class ChangeBatch(Pass[IRModule]):
    """Pass that changes the extent of one axis of some parameters of @main and infers the types
    again.

    data          parameters (variables of @main), each with the axis to change
    batch_size    the new extent of these axes

    Raise AotcError for a variable that is not a parameter, an axis that it does not have, and for
    types that do not fit the program.
    """

    data: Mapping[Var, int] = field(default_factory=dict)
    batch_size: int = 16

    opt_level = 0

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        main = module.main
        if not isinstance(self.batch_size, int | SymDim):
            raise AotcError("bind", f"a batch size must be an integer, not {self.batch_size!r}")
        if missing := [v for v in self.data if v not in main.params]:
            name = getattr(missing[0], "name", missing[0])
            raise AotcError(
                "bind", f"%{name} is not a parameter of @main: give the Var objects of its parameters", span=main.span
            )
        params = [self._variable_with_new_batch_size(p) for p in main.params]
        changed: dict[Var, Expr] = dict(zip(main.params, params, strict=True))
        function = Function(params, substitute_variables(main.body, changed), attrs=main.attrs, span=main.span)
        return infer_module(module.with_function("main", function))

    def _variable_with_new_batch_size(self, var: Var) -> Var:
        if var not in self.data:
            return var
        ty, axis = var.annotation, self.data[var]
        if not isinstance(ty, TensorType) or axis not in range(ty.rank):
            raise AotcError("bind", f"%{var.name} has no axis {axis}", span=var.span)
        shape = (*ty.shape[:axis], self.batch_size, *ty.shape[axis + 1 :])
        return replace(var, annotation=TensorType(shape, ty.dtype))
