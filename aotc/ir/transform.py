# SPDX-License-Identifier: Apache-2.0
"""Passes and the context that they run in, for any kind of module that passes leave unchanged.

@module_pass(opt_level=1, name="Rename")
def rename(module, ctx): return module

with PassContext(opt_level=3, disabled_pass=["FuseOps"], instruments=[PassTimingInstrument()]):
    module = Sequential([rename, "..."])(module)  # runs the passes that the context enables
"""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from aotc.ir.diagnostics import AotcError, AotcTypeError, AotcValueError, nearest
from aotc.ir.failure import Failure, blaming, pardoning
from aotc.ir.instrument import PassInstrument

LOG: Final = logging.getLogger("aotc.pass")


class Module(Protocol):
    """What passes transform: functions by name.  A pass makes a new one and leaves its argument alone."""

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


M = TypeVar("M", bound=Module)


@dataclass(frozen=True, slots=True, repr=False)
class PassInfo:
    """What is known of a pass without running it.

    required   names of passes that a Sequential runs before it
    level      "graph", or "tensor": which instruments see it
    """

    opt_level: int
    name: str
    required: tuple[str, ...] = ()
    level: str = "graph"

    def __repr__(self) -> str:
        required = "[\n" + "".join(f"{name}, " for name in self.required) + "]\n" if self.required else "[]\n"
        return (
            f"The meta data of the pass - pass name: {self.name}, opt_level: {self.opt_level}, "
            f"required passes: {required}"
        )


class PassConfigError(AotcError, AttributeError):
    """A configuration key that does not exist, or a value of the wrong type."""


# --- what upper floors install


@dataclass(slots=True)
class _Table:
    passes: Mapping[str, Callable[[], Pass[Any]]] = field(default_factory=lambda: MappingProxyType({}))
    config: dict[str, type] = field(default_factory=dict)


_TABLE: Final = _Table(
    config={
        "compile.max_bytes": int,
        "compile.max_nodes": int,
        "compile.max_unroll": int,
        "compile.max_work": int,
        "relay.AlterOpLayout.max_growth": float,
        "relay.AlterOpLayout.winograd": bool,
        "relay.FoldConstant.max_bytes": int,
        "relay.FuseOps.link_params": bool,
        "relay.FuseOps.max_depth": int,
        "relay.ToMixedPrecision.keep_orig_output_dtype": bool,
        "relay.SelectLayout.channels_last": bool,
        "testing.immutable_module": bool,
    }
)


def install_passes(passes: Mapping[str, Callable[[], Pass[Any]]]) -> None:
    """Make `passes` (name to maker of the pass with default options) the table of `get_pass`."""
    _TABLE.passes = MappingProxyType(dict(passes))


def installed_passes() -> Mapping[str, Callable[[], Pass[Any]]]:
    """The installed passes by name."""
    return _TABLE.passes


def get_pass(name: str) -> Pass[Any]:
    """The pass called `name`; AotcError (code "unknown-pass") if there is none."""
    make = _TABLE.passes.get(name)
    if make is None:
        raise AotcError("unknown-pass", f"Cannot use {name} to create the pass", hint=nearest(name, _TABLE.passes))
    return make()


def register_config(key: str, value_type: type) -> None:
    """Allow `key` in the configuration of pass contexts, with values of one type.

    Raises AotcValueError if it exists already.
    """
    if key in _TABLE.config:
        raise AotcValueError("config", f"config option {key!r} is registered already")
    _TABLE.config[key] = value_type


def _check_config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for key, value in (config or {}).items():
        wanted = _TABLE.config.get(key)
        if wanted is None:
            known = " ,".join(sorted(_TABLE.config))
            message = f"Invalid config option '{key}' candidates are: {known}"
            raise PassConfigError("config", message, hint=nearest(str(key), _TABLE.config))
        accepted = (int, bool) if wanted in (int, bool) else (int, float) if wanted is float else wanted
        if not isinstance(value, accepted) or (wanted is float and isinstance(value, bool)):
            message = f"expect config {key} to have type {wanted.__name__} but get {type(value).__name__}"
            raise PassConfigError("config", message)
    return MappingProxyType(dict(config or {}))


def _pass_names(what: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """Names of passes as a tuple; a name that is close to an installed one, but is none, draws a warning."""
    if isinstance(names, str):
        hint = f"write [{names!r}]"
        raise AotcTypeError("pass-names", f"{what} must be a list of pass names, not a string", hint=hint)
    items = tuple(names or ())
    for name in items:
        if not isinstance(name, str):
            raise AotcTypeError("pass-names", f"{what} must hold pass names, not {type(name).__name__}")
        close = nearest(name, _TABLE.passes) if name not in _TABLE.passes else ""
        if close:
            warnings.warn(f"{what}: there is no pass {name!r}; {close}", stacklevel=3)
    return items


def _checked_instruments(instruments: Iterable[PassInstrument] | None) -> tuple[PassInstrument, ...]:
    if isinstance(instruments, PassInstrument):
        hint = "write instruments=[instrument]"
        raise AotcTypeError("instrument", "instruments must be a list of pass instruments, not one", hint=hint)
    items = tuple(instruments or ())
    for item in items:
        if not isinstance(item, PassInstrument):
            hint = "derive its class from PassInstrument or decorate it with @pass_instrument"
            raise AotcTypeError("instrument", f"{type(item).__name__} is not a pass instrument", hint=hint)
    return items


# --- the context


class PassContext:
    """Which passes run, and who watches.

    opt_level        passes of a higher level are left out of sequences (they still run when called directly)
    required_pass    names of passes that run whatever their level; instruments cannot skip them
    disabled_pass    names of passes that do not run in sequences, required or not
    instruments      observers, called in this order
    config           values for registered keys (`list_configs`)

    Contexts nest, and an inner one replaces the outer one in everything.  Each thread has its own.
    Raises AotcTypeError for arguments of wrong types, PassConfigError for the configuration.
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Iterable[str] | None = None,
        disabled_pass: Iterable[str] | None = None,
        instruments: Iterable[PassInstrument] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(opt_level, int):
            raise AotcTypeError("opt-level", f"opt_level: expected int but got {type(opt_level).__name__}")
        self.opt_level = int(opt_level)
        self.required_pass = _pass_names("required_pass", required_pass)
        self.disabled_pass = _pass_names("disabled_pass", disabled_pass)
        self.config = _check_config(config)
        self._instruments = _checked_instruments(instruments)

    @property
    def instruments(self) -> tuple[PassInstrument, ...]:
        return self._instruments

    def __repr__(self) -> str:
        def quoted(names: Iterable[str]) -> str:
            return "[" + ", ".join(f'"{name}"' for name in names) + "]"

        config = ", ".join(f'"{key}": {value}' for key, value in self.config.items())
        return (
            f"Pass context information: \n\topt_level: {self.opt_level}"
            f"\n\trequired passes: {quoted(self.required_pass)}"
            f"\n\tdisabled passes: {quoted(self.disabled_pass)}"
            f"\n\tinstruments: [{', '.join(i.name for i in self._instruments)}]"
            f"\n\tconfig: {{{config}}}"
        )

    @staticmethod
    def current() -> PassContext:
        """The innermost context of this thread, or the thread's default one (opt_level 2, no instruments)."""
        state = _state()
        return state.stack[-1] if state.stack else state.default

    @staticmethod
    def list_configs() -> dict[str, dict[str, str]]:
        """The registered configuration keys and the types of their values."""
        return {key: {"type": kind.__name__} for key, kind in sorted(_TABLE.config.items())}

    def get_config(self, key: str, default: Any = None) -> Any:
        """The value configured for `key`."""
        return self.config.get(key, default)

    def pass_enabled(self, info: PassInfo) -> bool:
        """Whether a sequence runs the pass: disabled beats required, required beats opt_level."""
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or self.opt_level >= info.opt_level

    def override_instruments(self, instruments: Iterable[PassInstrument] | None) -> None:
        """Leave the old instruments, then enter new ones (none for None)."""
        new = _checked_instruments(instruments)
        self._exit_instruments()
        self._instruments = new
        self._enter_instruments()

    def __enter__(self) -> PassContext:
        self._enter_instruments()
        _state().stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = _state().stack
        if not stack or stack[-1] is not self:
            raise RuntimeError("a pass context was left that is not the innermost one")
        stack.pop()
        self._exit_instruments()

    def _enter_instruments(self) -> None:
        """Enter all instruments; where one fails, those entered leave, last first, and all are dropped."""
        entered: list[PassInstrument] = []
        try:
            for instrument in self._instruments:
                instrument.enter_pass_ctx()
                entered.append(instrument)
        except BaseException:
            LOG.warning("Pass instrumentation entering pass context failed.")
            LOG.warning("Disable pass instrumentation.")
            self._instruments = ()
            for instrument in reversed(entered):
                _leave_failed(instrument)
            raise

    def _exit_instruments(self) -> None:
        """Leave all instruments; where one fails, later ones are not called and all are dropped."""
        try:
            for instrument in self._instruments:
                instrument.exit_pass_ctx()
        except BaseException:
            LOG.warning("Pass instrumentation exiting pass context failed.")
            LOG.warning("Disable pass instrumentation.")
            self._instruments = ()
            raise

    def watching(self, info: PassInfo) -> tuple[PassInstrument, ...]:
        """The instruments that see passes of this kind."""
        return tuple(i for i in self._instruments if info.level in i.levels)

    def should_run(self, module: Any, info: PassInfo) -> bool:
        """What the instruments say about running a pass; all are asked, unless the pass is required."""
        if info.name in self.required_pass:
            return True
        answers = [_answer(i, module, info) for i in self.watching(info)]
        return all(answers)


def _answer(instrument: PassInstrument, module: Any, info: PassInfo) -> bool:
    answer = instrument.should_run(module, info)
    if answer is None:
        raise AotcTypeError("instrument", f"{instrument.name}.should_run returned None instead of True or False")
    return bool(answer)


def _leave_failed(instrument: PassInstrument) -> None:
    """Leave an instrument while another one's exception is on its way up; a second failure is only logged."""
    LOG.warning("%s exiting PassContext ...", instrument.name)
    try:
        instrument.exit_pass_ctx()
    except Exception:
        LOG.exception("%s failed to exit PassContext", instrument.name)
    else:
        LOG.warning("%s exited PassContext.", instrument.name)


class _State:
    """The contexts of one thread, and of threads that run a part of its work in a copy of its `contextvars`."""

    def __init__(self) -> None:
        self.stack: list[PassContext] = []
        self.default = PassContext()


def _state() -> _State:
    """This thread's contexts."""
    state = _STATE.get(None)
    if state is None:
        state = _State()
        _STATE.set(state)
    return state


# --- passes


class Pass(Generic[M]):
    """Something that makes a module from a module.  A subclass gives `name` and `run`."""

    name: ClassVar[str] = ""
    opt_level: ClassVar[int] = 0
    required: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "graph"
    kind: ClassVar[str] = "Module"

    @property
    def info(self) -> PassInfo:
        return PassInfo(self.opt_level, self.name, self.required, self.level)

    @abstractmethod
    def run(self, module: M, ctx: PassContext) -> M:
        """The transformed module; the very same object if nothing changes."""

    def accepts(self, module: Any) -> bool:
        """Whether `module` is of the kind that this pass transforms."""
        return isinstance(module, Mapping)

    def __call__(self, module: M) -> M:
        """Run in the current context, its instruments watching; the context's opt_level is not consulted.

        Raises AotcTypeError for what is no module.
        """
        if not self.accepts(module):
            raise AotcTypeError("pass-argument", f"{self.info.name}: expected a module, got {type(module).__name__}")
        ctx = PassContext.current()
        info = self.info
        if not ctx.should_run(module, info):
            return module
        return _observed(self, module, ctx, info)

    def __repr__(self) -> str:
        return f"Run {self.kind} pass: {self.info.name} at the optimization level {self.info.opt_level}"


def _observed(pass_: Pass[M], module: M, ctx: PassContext, info: PassInfo) -> M:
    """Run a pass between the hooks.  Instruments that saw its beginning hear of its end, good or bad."""
    started: list[PassInstrument] = []
    try:
        with pardoning():
            for instrument in ctx.watching(info):
                instrument.run_before_pass(module, info)
                started.append(instrument)
        with blaming(Failure("pass", info.name, module, pass_, ctx)):
            result = _checked_run(pass_, module, ctx, info)
        with pardoning():
            while started:
                started.pop(0).run_after_pass(result, info)
    except BaseException:
        for instrument in reversed(started):
            instrument.pass_failed(info)
        raise
    return result


def _checked_run(pass_: Pass[M], module: M, ctx: PassContext, info: PassInfo) -> M:
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
    """Passes in order.  Those that the context does not enable are left out; required ones run before each.

    Raises AotcTypeError where `passes` is no list, AotcError for a required pass that is not installed.
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
        self._info = PassInfo(opt_level, name, _required_names(required))

    @property
    def info(self) -> PassInfo:
        return self._info

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


def _required_names(required: Sequence[str] | None) -> tuple[str, ...]:
    if required is not None and not isinstance(required, (list, tuple)):
        raise AotcTypeError("required", "Required is expected to be the type of list/tuple.")
    return tuple(required or ())


class ModulePass(Pass[M]):
    """A pass whose body is a function (module, ctx) -> module."""

    def __init__(self, body: Callable[[M, PassContext], M], info: PassInfo) -> None:
        self._body = body
        self._info = info

    @property
    def info(self) -> PassInfo:
        return self._info

    def run(self, module: M, ctx: PassContext) -> M:
        return self._body(module, ctx)


def decorated(
    make: Callable[[Callable[..., Any], PassInfo], Pass[Any]],
    method: str,
    target: Any,
    opt_level: int | None,
    name: str | None,
    required: Sequence[str] | None,
) -> Any:
    """What the pass decorators share.

    make     makes the pass from its body and info
    method   the method that holds the body where the decorated object is a class
    target   a function, a class, or None when the decorator is called with options only

    Raises AotcValueError without opt_level, AotcTypeError for `required` that is no list.
    """
    if opt_level is None:
        raise AotcValueError("opt-level", f"Please provide opt_level for the {method.split('_')[1]} pass.")
    level, names = opt_level, _required_names(required)

    def decorate(item: Any) -> Any:
        if not callable(item):
            raise AotcTypeError("pass-function", f"a pass is made of a function or a class, not {item!r}")
        info = PassInfo(level, name or str(getattr(item, "__name__", type(item).__name__)), names)
        return _decorated_class(make, method, item, info) if isinstance(item, type) else make(item, info)

    return decorate if target is None else decorate(target)


def _decorated_class(
    make: Callable[[Callable[..., Any], PassInfo], Pass[Any]], method: str, cls: type, info: PassInfo
) -> Any:
    """A maker of passes that takes the arguments of `cls`; attributes of the pass are its instance's."""
    if not hasattr(cls, method):
        raise AotcTypeError("pass-class", f"{cls.__name__} has no method {method}")

    class DecoratedPass(Pass[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._instance = cls(*args, **kwargs)
            self._pass = make(getattr(self._instance, method), info)
            self.kind = self._pass.kind  # type: ignore[misc]

        @property
        def info(self) -> PassInfo:
            return info

        def run(self, module: Any, ctx: PassContext) -> Any:
            return self._pass.run(module, ctx)

        def __getattr__(self, attribute: str) -> Any:
            if attribute == "_instance":
                raise AttributeError(attribute)
            return getattr(self._instance, attribute)

    DecoratedPass.__name__, DecoratedPass.__qualname__ = cls.__name__, cls.__qualname__
    DecoratedPass.__doc__, DecoratedPass.__module__ = cls.__doc__, cls.__module__
    return DecoratedPass


def module_pass(
    pass_func: Any = None, opt_level: int | None = None, name: str | None = None, required: Sequence[str] | None = None
) -> Any:
    """Make a module pass of a function (module, ctx) -> module, or of a class with `transform_module`.

    Used as a decorator with options, or called on the function; the name defaults to the function's.
    """
    return decorated(ModulePass, "transform_module", pass_func, opt_level, name, required)


_STATE: Final[ContextVar[_State | None]] = ContextVar("aotc_pass_contexts", default=None)
