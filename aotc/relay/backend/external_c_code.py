# SPDX-License-Identifier: Apache-2.0
"""Functions implemented by user-provided C code: turn a function with the attribute `Compiler` into
a kernel.

def generate(function, symbol): return f"void {symbol}(const float *x, float *y) {{ ... }}"
register("mine", generate)
kernel_of_external_function(function)  # of a function with Compiler="mine", global_symbol="mine_0"
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from aotc.ir import AotcError, TensorType, did_you_mean_hint, tensor_types
from aotc.relay.backend.function_to_kernel import require_static_shapes
from aotc.relay.expr import Function, type_of
from aotc.tir import Block, Buffer, Kernel, UserSource

SourceGenerator: TypeAlias = Callable[[Function, str], str]

_SOURCE_GENERATORS: Final[dict[str, SourceGenerator]] = {}


def register(name: str, generator: SourceGenerator | None = None) -> Any:
    """Register `generator` as the C code generator of functions whose attribute `Compiler` is
    `name`.

    generator   (function, symbol) -> C99 source that defines `void symbol(const T0 *in0, ..., U0 *out0, ...)`:
                the tensors of the parameters and then of the result, tuples flattened, each dense in row-major
                order. bool is uint8_t, and float16 uint16_t. The source may include standard C headers and
                define static functions.

    Without a generator, return a decorator. Raise AotcError (code "external") if the name has
    another generator.
    """
    if generator is None:
        return lambda function: register(name, function)
    if not isinstance(name, str) or not name or not callable(generator):
        raise AotcError("external", "register takes a name and a function (function, symbol) -> C source")
    if _SOURCE_GENERATORS.setdefault(name, generator) is not generator:
        raise AotcError("external", f"a code generator for {name!r} is registered already", hint="unregister it first")
    return generator


def unregister(name: str) -> None:
    """Unregister the C code generator of an external compiler; do nothing if it has none."""
    _SOURCE_GENERATORS.pop(name, None)


def registered() -> tuple[str, ...]:
    """Return the sorted names of external compilers that have a registered code generator."""
    return tuple(sorted(_SOURCE_GENERATORS))


def _require_c_symbol(function: Function) -> str:
    symbol = str(function.attrs.get("global_symbol") or "")
    if not re.fullmatch(r"[A-Za-z]\w*", symbol, re.ASCII):
        text = f"a function for {function.attrs.get('Compiler')!r} has the global_symbol {symbol!r}"
        raise AotcError("external", text, span=function.span, hint="a C name is needed: letters, digits, underscores")
    return symbol


def _generate_external_source(function: Function, symbol: str) -> UserSource:
    name = str(function.attrs.get("Compiler"))
    generator = _SOURCE_GENERATORS.get(name)
    if generator is None:
        hint = (
            did_you_mean_hint(name, _SOURCE_GENERATORS)
            or f'aotc.contrib.external.register("{name}", generator) gives one'
        )
        raise AotcError(
            "external", f"no code generator is registered for functions of {name!r}", span=function.span, hint=hint
        )
    try:
        source = generator(function, symbol)
    except AotcError:
        raise
    except Exception as error:
        text = f"the generator for {name!r} failed on @{symbol}: {type(error).__name__}: {error}"
        raise AotcError("external", text, span=function.span) from error
    # other errors in the source are found by the C compiler
    if not isinstance(source, str) or not re.search(rf"\b{symbol}\b", source):
        text = f"the source of the generator for {name!r} does not define void {symbol}(...)"
        raise AotcError(
            "external",
            text,
            span=function.span,
            hint="the generated source must define a function named by the attribute global_symbol",
        )
    return UserSource(source, name)


def kernel_of_external_function(function: Function) -> Kernel:
    """Return the kernel of a function with the attributes `Compiler` and `global_symbol`; its C
    code is generated.

    Raise AotcError for an unknown compiler, a symbol that is not a C name, a generator that fails
    or whose source does not contain the symbol, and shapes that are not static. The parameters of
    the C function are checked by the C compiler only.
    """
    symbol = _require_c_symbol(function)
    for item in (*function.params, function.body):
        require_static_shapes(type_of(item), item, f"@{symbol}: a tensor")
    inputs = _buffers_for_tensors("in", [t for p in function.params for t in tensor_types(type_of(p))])
    outputs = _buffers_for_tensors("out", tensor_types(type_of(function.body)))
    source = _generate_external_source(function, symbol)
    return Kernel(name=symbol, inputs=inputs, outputs=outputs, body=Block(()), source=source, span=function.span)


def _buffers_for_tensors(prefix: str, types: Sequence[TensorType]) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"{prefix}{k}", t.dtype, t.numel) for k, t in enumerate(types))
