# SPDX-License-Identifier: Apache-2.0
"""The pass context: which passes run, with what configuration, and which instruments observe them.

with PassContext(opt_level=3, disabled_pass=["FuseOps"], config={"relay.FuseOps.max_depth": 8}):
    PassContext.current().pass_enabled(PassInfo(2, "FuseOps"))       # False
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final, TypeAlias

from aotc.ir.diagnostics import AotcError, AotcTypeError, AotcValueError, did_you_mean_hint
from aotc.ir.instrument import PassInfo, PassInstrument
from aotc.ir.lazy_table import LazyTable
from aotc.ir.option_description import OPTIONS_WITH_CONFIG_KEY, config_key_default, config_key_meaning

#: Functions that create passes with default options, by name.
PassTable: TypeAlias = Mapping[str, Callable[[], Any]]
LOG: Final = logging.getLogger("aotc.pass")


class PassConfigError(AotcError, AttributeError):
    """Raised for an unknown configuration key of a pass context, and for a value of the wrong type."""


# --- tables that higher layers fill


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A configuration key of pass contexts: the type of its values, its default and its meaning as
    text.
    """

    kind: type
    default: str
    meaning: str


@dataclass(slots=True)
class _Table:
    config: dict[str, ConfigKey]
    passes: LazyTable[Callable[[], Any]] = field(default_factory=LazyTable)


_REGISTRY: Final = _Table({
    "compile.halve_bytes": ConfigKey(
        bool, "by target",
        "Store int8 and uint8 constants whose values span at most 16 integers as packed 4-bit integers.",
    ),
    "compile.max_bytes": ConfigKey(int, "1073741824", "Largest number of bytes that the compiler allocates at once."),
    "compile.max_nodes": ConfigKey(int, "500000", "Largest number of nodes that functions and loops may expand to."),
    "compile.max_unroll": ConfigKey(int, "4096", "Largest number of iterations of a loop unrolled in the graph."),
    "compile.max_work": ConfigKey(int, "34359738368", "Largest number of scalar operations the compiler evaluates."),
    "compile.overlap": ConfigKey(bool, "by target", "Let an output partly overlap an input that is no longer needed."),
    "compile.patches": ConfigKey(
        int, "1", "Number of parts, along the height, in which the first convolutions run to use less memory."
    ),
    "compile.reorder": ConfigKey(
        bool, "by target", "Order the steps of the schedule, and join some of them, so that the arena is smallest."
    ),
    "compile.stack_bytes": ConfigKey(int, "by target", "Largest number of bytes of arrays on the stack of a kernel."),
    "compile.tf32": ConfigKey(bool, "false", "Multiply float32 matrices on GPUs in TF32 (accuracy fast only)."),
    "compile.threads": ConfigKey(
        int, "1", "Number of threads of the executor of relay.build; 0 makes kernels that threads cannot share."
    ),
    "relay.AlterOpLayout.max_growth": ConfigKey(
        float, "2.5", "Largest ratio of the bytes of transformed weights to the model's; the default allows 1 MiB more."
    ),
    "relay.AlterOpLayout.min_saving": ConfigKey(
        float, "0.08", "Fewest cycles, by estimate, that transformed weights must save for each byte that they add."
    ),
    "relay.AlterOpLayout.winograd": ConfigKey(bool, "true", "Use Winograd convolutions where they are faster."),
    "relay.FoldConstant.max_bytes": ConfigKey(
        int, "67108864", "Largest number of bytes of a folded constant that is larger than its operands."
    ),
    "relay.FuseOps.link_params": ConfigKey(bool, "false", "Only for programs written for Relay: true is an error."),
    "relay.FuseOps.max_depth": ConfigKey(int, "256", "Largest number of operators in a fused function."),
    "relay.SelectLayout.channels_last": ConfigKey(
        bool, "by cost", "Use NHWC (true) or NCHW (false) for convolutions, instead of the cheaper of both."
    ),
    "relay.ToMixedPrecision.keep_orig_output_dtype": ConfigKey(
        bool, "false", "Convert outputs back to the types that they had before the pass."
    ),
    "testing.immutable_module": ConfigKey(bool, "false", "Check that no pass changes the module that it is given."),
    **{
        description.config_key: ConfigKey(
            description.config_type, config_key_default(description), config_key_meaning(keyword, description)
        )
        for keyword, description in OPTIONS_WITH_CONFIG_KEY.items()
    },
})  # fmt: skip


def install_passes(passes: PassTable | Callable[[], PassTable]) -> None:
    """Register passes by name for `get_pass`: functions that create the pass with default options.

    passes    the functions by name, or a function that returns them, called at the first lookup
    """
    _REGISTRY.passes.install(passes)


def installed_passes() -> PassTable:
    """Return the passes known to the compiler: functions that create each with default options, by
    name.
    """
    return _REGISTRY.passes.entries()


def registered_config_keys() -> dict[str, ConfigKey]:
    """Return the keys that the configuration of pass contexts accepts, sorted by name."""
    return dict(sorted(_REGISTRY.config.items()))


def register_config_key(key: str, value_type: type) -> None:
    """Register the configuration key `key` with values of one type.

    Raises AotcValueError if it is registered already.
    """
    if key in _REGISTRY.config:
        raise AotcValueError("config", f"config option {key!r} is registered already")
    _REGISTRY.config[key] = ConfigKey(value_type, "", "")


def _validate_config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for key, value in (config or {}).items():
        if key not in _REGISTRY.config:
            known = " ,".join(sorted(_REGISTRY.config))
            message = f"Invalid config option '{key}' candidates are: {known}"
            raise PassConfigError("config", message, hint=did_you_mean_hint(str(key), _REGISTRY.config))
        option_type = _REGISTRY.config[key].kind
        accepted = (int, bool) if option_type in (int, bool) else (int, float) if option_type is float else option_type
        if not isinstance(value, accepted) or (option_type is float and isinstance(value, bool)):
            message = f"expect config {key} to have type {option_type.__name__} but get {type(value).__name__}"
            raise PassConfigError("config", message)
    return MappingProxyType(dict(config or {}))


def _validate_pass_names(argument_name: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """Validate a list of pass names and return it as a tuple.

    Warn about an unknown name that is close to that of an installed pass; raise AotcTypeError for
    wrong types.
    """
    if isinstance(names, str):
        hint = f"write [{names!r}]"
        raise AotcTypeError("pass-names", f"{argument_name} must be a list of pass names, not a string", hint=hint)
    items = tuple(names or ())
    for name in items:
        if not isinstance(name, str):
            raise AotcTypeError("pass-names", f"{argument_name} must hold pass names, not {type(name).__name__}")
        close = did_you_mean_hint(name, passes) if name not in (passes := installed_passes()) else ""
        if close:
            warnings.warn(f"{argument_name}: there is no pass {name!r}; {close}", stacklevel=3)
    return items


def _validate_instruments(instruments: Iterable[PassInstrument] | None) -> tuple[PassInstrument, ...]:
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
    """Selection and configuration of passes, with the instruments that observe them.

    opt_level        sequences skip passes of a higher level (a direct call still runs them)
    required_pass    names of passes that run at any level and that instruments cannot skip
    disabled_pass    names of passes that do not run in sequences, required or not
    instruments      observers, called in this order
    config           values for registered keys (`list_configs`)

    Contexts nest: an inner context replaces the outer one entirely.  Each thread has its own
    contexts. Raises AotcTypeError for arguments of wrong types, PassConfigError for the
    configuration.
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
        self.required_pass = _validate_pass_names("required_pass", required_pass)
        self.disabled_pass = _validate_pass_names("disabled_pass", disabled_pass)
        self.config = _validate_config(config)
        self._instruments = _validate_instruments(instruments)

    @property
    def instruments(self) -> tuple[PassInstrument, ...]:
        return self._instruments

    def __repr__(self) -> str:
        def quoted_name_list(names: Iterable[str]) -> str:
            return "[" + ", ".join(f'"{name}"' for name in names) + "]"

        config = ", ".join(f'"{key}": {value}' for key, value in self.config.items())
        return (
            f"Pass context information: \n\topt_level: {self.opt_level}"
            f"\n\trequired passes: {quoted_name_list(self.required_pass)}"
            f"\n\tdisabled passes: {quoted_name_list(self.disabled_pass)}"
            f"\n\tinstruments: [{', '.join(i.name for i in self._instruments)}]"
            f"\n\tconfig: {{{config}}}"
        )

    @staticmethod
    def current() -> PassContext:
        """Return the innermost active pass context of this thread, or its default (opt_level 2, no
        instruments).
        """
        state = _pass_contexts_of_thread()
        return state.stack[-1] if state.stack else state.default

    @staticmethod
    def list_configs() -> dict[str, dict[str, str]]:
        """Return the type of each configuration key of pass contexts, as {key: {"type": "int"}}."""
        return {key: {"type": row.kind.__name__} for key, row in registered_config_keys().items()}

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return the configured value of a key of the pass context, else `default`."""
        return self.config.get(key, default)

    def pass_enabled(self, info: PassInfo) -> bool:
        """Return True if a sequence runs the pass: disabled_pass overrides required_pass, which
        overrides opt_level.
        """
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or self.opt_level >= info.opt_level

    def override_instruments(self, instruments: Iterable[PassInstrument] | None) -> None:
        """Replace the instruments of the pass context: exit the current ones, then enter the new
        ones (none for None).
        """
        new = _validate_instruments(instruments)
        self._exit_instruments()
        self._instruments = new
        self._enter_instruments()

    @contextmanager
    def temporarily_add_instrument(self, instrument: PassInstrument) -> Iterator[None]:
        """Context manager: add an instrument to the pass context for the block, without its enter
        and exit hooks.
        """
        self._instruments = (*self._instruments, instrument)
        try:
            yield
        finally:
            self._instruments = tuple(i for i in self._instruments if i is not instrument)

    def __enter__(self) -> PassContext:
        self._enter_instruments()
        _pass_contexts_of_thread().stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = _pass_contexts_of_thread().stack
        if not stack or stack[-1] is not self:
            raise RuntimeError("a pass context was left that is not the innermost one")
        stack.pop()
        self._exit_instruments()

    def _enter_instruments(self) -> None:
        """Call enter_pass_ctx of all instruments.

        If one raises, those already entered are exited in reverse order, and all instruments are
        dropped.
        """
        entered: list[PassInstrument] = []
        try:
            for instrument in self._instruments:
                instrument.enter_pass_ctx()
                entered.append(instrument)
        except BaseException:
            self._warn_and_drop_all_instruments("entering")
            for instrument in reversed(entered):
                _exit_instrument_logging_errors(instrument)
            raise

    def _exit_instruments(self) -> None:
        """Call exit_pass_ctx of all instruments; if one raises, the remaining ones are not called
        and all are dropped.
        """
        try:
            for instrument in self._instruments:
                instrument.exit_pass_ctx()
        except BaseException:
            self._warn_and_drop_all_instruments("exiting")
            raise

    def _warn_and_drop_all_instruments(self, failed_step: str) -> None:
        LOG.warning("Pass instrumentation %s pass context failed.", failed_step)
        LOG.warning("Disable pass instrumentation.")
        self._instruments = ()

    def instruments_for_level_of_pass(self, info: PassInfo) -> tuple[PassInstrument, ...]:
        """Return the instruments that observe passes of the level ("graph" or "tensor") of a pass."""
        return tuple(i for i in self._instruments if info.level in i.levels)

    def should_run_pass(self, module: Any, info: PassInfo) -> bool:
        """Return True if the pass is required or if should_run of all its instruments returns True;
        all are called.
        """
        if info.name in self.required_pass:
            return True
        answers = [_ask_instrument_should_run(i, module, info) for i in self.instruments_for_level_of_pass(info)]
        return all(answers)


def _ask_instrument_should_run(instrument: PassInstrument, module: Any, info: PassInfo) -> bool:
    answer = instrument.should_run(module, info)
    if answer is None:
        raise AotcTypeError("instrument", f"{instrument.name}.should_run returned None instead of True or False")
    return bool(answer)


def _exit_instrument_logging_errors(instrument: PassInstrument) -> None:
    """Exit an instrument while another exception propagates; an exception of its own is only
    logged.
    """
    LOG.warning("%s exiting PassContext ...", instrument.name)
    try:
        instrument.exit_pass_ctx()
    except Exception:
        LOG.exception("%s failed to exit PassContext", instrument.name)
    else:
        LOG.warning("%s exited PassContext.", instrument.name)


class _PassContextStack:
    """Pass contexts of one thread, and of threads that run in a copy of its `contextvars` context."""

    def __init__(self) -> None:
        self.stack: list[PassContext] = []
        self.default = PassContext()


_PASS_CONTEXT_STATE: Final[ContextVar[_PassContextStack | None]] = ContextVar("aotc_pass_contexts", default=None)


def _pass_contexts_of_thread() -> _PassContextStack:
    """Return the stack of pass contexts of the current thread."""
    state = _PASS_CONTEXT_STATE.get()
    if state is None:
        state = _PassContextStack()
        _PASS_CONTEXT_STATE.set(state)
    return state
