# SPDX-License-Identifier: Apache-2.0
"""Passes: base class, sequences and decorators, for any kind of immutable module.

@module_pass(opt_level=1, name="Rename")
def rename(module, ctx): return module

with PassContext(opt_level=3, disabled_pass=["FuseOps"], instruments=[PassTimingInstrument()]):
    module = Sequential([rename, "..."])(module)  # runs the passes that the context enables
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError
from functools import update_wrapper
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from aotc.ir.diagnostics import AotcError, AotcTypeError, AotcValueError, did_you_mean_hint
from aotc.ir.failure_context import Failure, attach_failure_to_exceptions, exempt_from_failure_attribution
from aotc.ir.instrument import PassInfo as PassInfo
from aotc.ir.instrument import PassInstrument
from aotc.ir.pass_context import PassConfigError as PassConfigError
from aotc.ir.pass_context import PassContext as PassContext
from aotc.ir.pass_context import install_passes as install_passes
from aotc.ir.pass_context import installed_passes as installed_passes
from aotc.ir.pass_context import register_config_key as register_config_key


class Module(Protocol):
    """A program that passes transform: a mapping of names to functions, which passes do not modify."""

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


M = TypeVar("M", bound=Module)


def get_pass(name: str) -> Pass[Any]:
    """Return the pass called `name` with default options; AotcError (code "unknown-pass") if there
    is none.
    """
    passes = installed_passes()
    if name not in passes:
        raise AotcError("unknown-pass", f"Cannot use {name} to create the pass", hint=did_you_mean_hint(name, passes))
    new_pass: Pass[Any] = passes[name]()
    return new_pass


# --- passes


class Pass(Generic[M]):
    """A transformation from module to module; subclasses define `run`, and `name` if it is not the
    class name.
    """

    name: ClassVar[str] = ""
    opt_level: ClassVar[int] = 0
    required: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "graph"
    kind: ClassVar[str] = "Module"

    _info: PassInfo | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name", cls.__name__)

    @property
    def info(self) -> PassInfo:
        return self._info or PassInfo(self.opt_level, self.name, self.required, self.level)

    @abstractmethod
    def run(self, module: M, ctx: PassContext) -> M:
        """Apply the pass: return the transformed module, or `module` itself if nothing changes."""

    def accepts_module(self, module: Any) -> bool:
        """Return True if `module` is of the kind that this pass transforms, a graph module by
        default.
        """
        return isinstance(module, Mapping)

    def comparable_module_state(self, module: M) -> object:
        """Return everything of a module that an instrument could modify, for comparison; None
        disables the check.
        """
        return None

    def __call__(self, module: M) -> M:
        """Run the pass with the instruments of the current context, whatever its opt_level.

        Raises AotcTypeError if `module` is not a module.
        """
        if not self.accepts_module(module):
            raise AotcTypeError("pass-argument", f"{self.info.name}: expected a module, got {type(module).__name__}")
        ctx = PassContext.current()
        info = self.info
        if not ctx.should_run_pass(module, info):
            return module
        return _run_pass_with_instruments(self, module, ctx, info)

    def __repr__(self) -> str:
        return f"Run {self.kind} pass: {self.info.name} at the optimization level {self.info.opt_level}"


def _run_pass_with_instruments(pass_: Pass[M], module: M, ctx: PassContext, info: PassInfo) -> M:
    """Run a pass between the hooks of the instruments.

    If a hook or the pass raises, pass_failed is called on all instruments that saw its start but
    not its end.
    """
    started: list[PassInstrument] = []
    try:
        with exempt_from_failure_attribution():
            for instrument in ctx.instruments_for_level_of_pass(info):
                _call_instrument_hook(instrument.run_before_pass, instrument, pass_, module)
                started.append(instrument)
        with attach_failure_to_exceptions(Failure("pass", info.name, module, pass_, ctx)):
            result = _run_pass_and_check_result(pass_, module, ctx, info)
        with exempt_from_failure_attribution():
            while started:
                instrument = started.pop(0)
                _call_instrument_hook(instrument.run_after_pass, instrument, pass_, result)
    except BaseException:
        for instrument in reversed(started):
            instrument.pass_failed(info)
        raise
    return result


def _call_instrument_hook(
    hook: Callable[[M, PassInfo], None], instrument: PassInstrument, pass_: Pass[M], module: M
) -> None:
    """Call a hook of a pass instrument; raise AotcError (code "instrument") if the hook modifies
    the module.
    """
    text = f"{instrument.name} changes the program that it is shown by {pass_.info.name}"
    hint = "instruments watch; a pass gives another program"
    before = pass_.comparable_module_state(module)
    try:
        hook(module, pass_.info)
    except FrozenInstanceError as error:
        raise AotcError("instrument", f"{text}: {error}", hint=hint) from error
    if pass_.comparable_module_state(module) != before:
        raise AotcError("instrument", text, hint=hint)


def _run_pass_and_check_result(pass_: Pass[M], module: M, ctx: PassContext, info: PassInfo) -> M:
    checked = ctx.get_config("testing.immutable_module") and isinstance(module, Mapping)
    snapshot = {name: module[name] for name in module} if checked else None
    result = pass_.run(module, ctx)
    if result is None:
        raise AotcTypeError("pass-result", f"{info.name}: expected a module from the pass, got None")
    if snapshot is not None and (
        list(snapshot) != list(module) or any(snapshot[name] is not module[name] for name in snapshot)
    ):
        raise AotcError("pass-mutates", f"{info.name}: the pass changed the module that it was given")
    return result


class Sequential(Pass[M]):
    """A sequence of passes that the context enables, each preceded by the passes that it requires.

    Raises AotcTypeError if `passes` is not a list of passes, AotcError for a required pass that is
    not installed.
    """

    kind = "Sequential"

    def __init__(
        self,
        passes: Sequence[Pass[M]] | None = None,
        opt_level: int = 0,
        name: str = "sequential",
        required: Sequence[str] | None = None,
    ) -> None:
        if passes is not None and not isinstance(passes, (list, tuple)):
            raise AotcTypeError("sequential", "passes must be a list of Pass objects.")
        self.passes: tuple[Pass[M], ...] = tuple(passes or ())
        for item in self.passes:
            if not isinstance(item, Pass):
                raise AotcTypeError("sequential", f"passes must be a list of Pass objects, got {item!r}")
        self._info = PassInfo(opt_level, name, _check_pass_name_list_and_make_tuple(required))

    def run(self, module: M, ctx: PassContext) -> M:
        for item in self.passes:
            if not ctx.pass_enabled(item.info):
                continue
            for name in item.info.required:
                module = get_pass(name)(module)
            module = item(module)
        return module

    def __repr__(self) -> str:
        names = "".join(f"{item.info.name} " for item in self.passes)
        return f"{super().__repr__()}. The passes will be executed are: [{names}]"


# --- decorators


def _check_pass_name_list_and_make_tuple(required: Sequence[str] | None) -> tuple[str, ...]:
    if required is not None and not isinstance(required, (list, tuple)):
        raise AotcTypeError("required", "Required is expected to be the type of list/tuple.")
    return tuple(required or ())


class ModulePass(Pass[M]):
    """A compiler pass implemented by a Python function (module, ctx) -> module."""

    def __init__(self, body: Callable[[M, PassContext], M], info: PassInfo) -> None:
        self._body = body
        self._info = info

    def run(self, module: M, ctx: PassContext) -> M:
        return self._body(module, ctx)


def make_pass_decorator(
    create_pass: Callable[[Callable[..., Any], PassInfo], Pass[Any]],
    method_name: str,
    function_or_class: Any,
    opt_level: int | None,
    name: str | None,
    required: Sequence[str] | None,
) -> Any:
    """Implement the pass decorators.

    create_pass          creates the pass from its function and PassInfo
    method_name          name of the method that implements the pass if a class is decorated
    function_or_class    a function, a class, or None if the decorator is called with options only

    Raises AotcValueError without opt_level, AotcTypeError if `required` is not a list.
    """
    if opt_level is None:
        raise AotcValueError("opt-level", f"Please provide opt_level for the {method_name.split('_')[1]} pass.")
    level, names = opt_level, _check_pass_name_list_and_make_tuple(required)

    def make_pass_from_function_or_class(item: Any) -> Any:
        if not callable(item):
            raise AotcTypeError("pass-function", f"a pass is made of a function or a class, not {item!r}")
        info = PassInfo(level, name or str(getattr(item, "__name__", type(item).__name__)), names)
        return (
            _pass_class_wrapping_class(create_pass, method_name, item, info)
            if isinstance(item, type)
            else create_pass(item, info)
        )

    return (
        make_pass_from_function_or_class
        if function_or_class is None
        else make_pass_from_function_or_class(function_or_class)
    )


def _pass_class_wrapping_class(
    create_pass: Callable[[Callable[..., Any], PassInfo], Pass[Any]], method_name: str, cls: type, info: PassInfo
) -> Any:
    """Return a pass class that takes the arguments of `cls`; its passes expose the attributes of
    their `cls` instance.
    """
    if not hasattr(cls, method_name):
        raise AotcTypeError("pass-class", f"{cls.__name__} has no method {method_name}")

    class DecoratedPass(Pass[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._instance = cls(*args, **kwargs)
            self._pass = create_pass(getattr(self._instance, method_name), info)
            self.kind = self._pass.kind  # type: ignore[misc]
            self._info = info

        def run(self, module: Any, ctx: PassContext) -> Any:
            return self._pass.run(module, ctx)

        def __getattr__(self, attribute: str) -> Any:
            if attribute == "_instance":
                raise AttributeError(attribute)
            return getattr(self._instance, attribute)

    return update_wrapper(DecoratedPass, cls, updated=())


def module_pass(
    pass_func: Any = None, opt_level: int | None = None, name: str | None = None, required: Sequence[str] | None = None
) -> Any:
    """Create a module pass from a function (module, ctx) -> module, or from a class with
    `transform_module`.

    Use it as a decorator with options, or call it on the function; the name defaults to the
    function's.
    """
    return make_pass_decorator(ModulePass, "transform_module", pass_func, opt_level, name, required)
