# SPDX-License-Identifier: Apache-2.0
"""TypeFunctor, TypeVisitor, TypeMutator: user-defined visitors of types, with one method per class
of types.

class Dtypes(TypeVisitor):
    def visit_tensor_type(self, ty):
        print(ty.dtype)

Dtypes().visit(relay.TupleType([relay.TensorType((2,), "int8")]))      # int8
"""

import re
from typing import Any

from aotc.ir import Type, component_types, replace_component_types
from aotc.relay.adt import TypeData


class TypeFunctor:
    """A function of types, defined by methods: `visit_tensor_type`, `visit_func_type`,
    `visit_type_var` and so on.

    Raise NotImplementedError for a class of types without a method.
    """

    def visit(self, typ: Type | TypeData) -> Any:
        """Return the visitor's result for a type, computed by the method for its class."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(typ).__name__).lower()
        return getattr(self, f"visit_{name}", self.visit_default)(typ)

    def visit_default(self, typ: Any) -> Any:
        """Return the result for a type whose class has no method of its own; raises
        NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what to do with a {type(typ).__name__}")


class TypeVisitor(TypeFunctor):
    """Visits every type that is part of a type."""

    def visit_default(self, typ: Any) -> Any:
        for part in typ.component_types if isinstance(typ, TypeData) else component_types(typ):
            self.visit(part)


class TypeMutator(TypeFunctor):
    """Rebuilds a type from rewritten parts; a type without changes stays the same object."""

    def visit_default(self, typ: Any) -> Any:
        return (
            typ
            if isinstance(typ, TypeData)
            else replace_component_types(typ, tuple(map(self.visit, component_types(typ))))
        )
