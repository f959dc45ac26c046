# SPDX-License-Identifier: Apache-2.0
"""Check a compiled model against budgets of RAM, flash and stack; report options that reduce what
exceeds them.

budgets = Budgets(ram=64 << 10, flash=256 << 10)
# AotcError that names each exceeded budget, and options that reduce it
budgets.check_within_memory_budgets(program, footprint, find_savings)
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final

from aotc_codegen.c.c_identifiers import model_node_names_of_span

from aotc.driver.subprocesses import run_program
from aotc.driver.toolchain import PROBE_TIMEOUT_SECONDS, Toolchain
from aotc.ir import AotcError, Diagnostic, frozen, join_texts, option_text, text_for_command_or_python
from aotc.tir import Program, Storage, peak_memory_step

#: Largest number of tensors live at the arena's peak that an error names.
MAX_TENSORS_SHOWN: Final = 4
#: Fraction of its bytes that a float32 tensor saves as int8.
_INT8_SAVED_FRACTION: Final = 0.75
#: Matches a line of `size -A` for a code section; group 1 is its size in bytes.
_CODE_SECTION_PATTERN: Final = re.compile(r"^(?:\.text\S*|__text)\s+(\d+)", re.MULTILINE)
_NM_SYMBOL_PATTERN: Final = re.compile(r"^(?:[0-9a-f]+)? +(\w) (\S+)$", re.MULTILINE)


@frozen
class MemorySaving:
    """A suggestion that reduces memory: a description, and the bytes saved, measured or estimated."""

    suggestion: str
    saved: int
    measured: bool = False

    def suggestion_with_saved_bytes(self) -> str:
        """Return the suggestion with the bytes saved, as text that keeps references to options."""
        return self.suggestion + f" ({'' if self.measured else 'about '}{self.saved} bytes less)"


@frozen(kw_only=True)
class Budgets:
    """Upper bounds, in bytes, on the memory of a model; None for no bound.

    ram      the arena, input and output tensors outside of it, and the block of state
    flash    code, and parameters including self-test values and the checksum
    stack    the stack of one run
    """

    ram: int | None = None
    flash: int | None = None
    stack: int | None = None

    def __post_init__(self) -> None:
        for name in ("ram", "flash", "stack"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value > 0):
                raise AotcError("over-budget", f"the budget for {name} must be a whole number of bytes, not {value!r}")

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.ram, self.flash, self.stack))

    def check_within_memory_budgets(
        self, program: Program, footprint: Mapping[str, Any], find_savings: Callable[[str], Sequence[MemorySaving]]
    ) -> None:
        """Raise AotcError (code "over-budget") with a diagnostic for each budget that is exceeded.

        footprint       sizes in bytes, as in the metadata of a project
        find_savings    function from "ram", "flash" or "stack" to suggestions; called for exceeded budgets
                        only
        """
        problems: list[Diagnostic] = []
        memory_needs = {
            "ram": _ram_needed(program, footprint),
            "flash": _flash_needed(program, footprint),
            "stack": _stack_needed(footprint),
        }
        for name, (needed_bytes, text, notes) in memory_needs.items():
            budget = getattr(self, name)
            if budget is None or needed_bytes <= budget:
                continue
            excess_bytes = needed_bytes - budget
            message = f"the model needs {needed_bytes} bytes of {name}, {excess_bytes} more than the budget of {budget}"
            better = sorted(find_savings(name), key=lambda way: -way.saved)
            hint = (
                join_texts("; ", (way.suggestion_with_saved_bytes() for way in better))
                or "no option that was tried takes less"
            )
            if not better or better[0].saved < excess_bytes:
                prefix = "none is enough by itself, and " if better else ""
                hint += f"; {prefix}{_irreducible_memory_text(name, program, footprint)}: a smaller model, or "
                hint += option_text(name, needed_bytes)
            problems.append(Diagnostic("over-budget", f"{message}: {text}", notes=tuple(notes), hint=hint))
        if problems:
            raise AotcError.collect(problems)


UNLIMITED_BUDGETS: Final = Budgets()
_MemoryNeed = tuple[int, str, list[str]]
#: Entries of a footprint that count against each budget.
FOOTPRINT_KEYS_BY_BUDGET: Final = {
    "ram": ("arena", "io", "state"),
    "flash": ("code", "parameters"),
    "stack": ("stack",),
}


def _ram_needed(program: Program, footprint: Mapping[str, Any]) -> _MemoryNeed:
    """Return the RAM needed in bytes, its breakdown as text, and notes on the step at which the
    arena is fullest.
    """
    arena, outside = footprint["arena"], footprint["io"]
    text, notes = f"{arena} of the arena, {outside} of inputs and outputs outside of it", list[str]()
    state = footprint.get("state", 0)
    text += f", {state} of the state" if state else ""
    most = peak_memory_step(program)
    if most is not None and most[0].live:
        moment, step = most
        nodes = ", ".join(model_node_names_of_span(step.span)[:MAX_TENSORS_SHOWN])
        live = [_format_storage(s) for s in moment.live[:MAX_TENSORS_SHOWN]]
        live += [f"{len(moment.live) - MAX_TENSORS_SHOWN} more"] if len(moment.live) > MAX_TENSORS_SHOWN else []
        place = f"step {moment.step} ({step.kernel.name}{': ' if nodes else ''}{nodes})"
        notes.append(f"the arena is fullest in {place}, with {moment.size} bytes: {', '.join(live)}")
        gap = program.plan.bytes_above_lower_bound
        notes += [f"{gap} bytes of the arena are gaps between tensors"] if gap else []
    return arena + outside + state, text, notes


def _format_storage(storage: Storage) -> str:
    return f"{storage.name} {storage.dtype}{list(storage.shape)} {storage.nbytes}"


def _flash_needed(program: Program, footprint: Mapping[str, Any]) -> _MemoryNeed:
    code, parameters = footprint["code"], footprint["parameters"]
    how = "measured" if footprint["code_measured"] else "estimated"
    return code + parameters, f"{code} of code ({how}), {parameters} of parameters", []


def _stack_needed(footprint: Mapping[str, Any]) -> _MemoryNeed:
    return footprint["stack"], f"estimated, the largest frame is that of {footprint['stack_kernel']}", []


def _irreducible_memory_text(budget_name: str, program: Program, footprint: Mapping[str, Any]) -> str:
    """Describe the part of "ram", "flash" or "stack" that no compiler option can reduce."""
    if budget_name == "ram":
        least = program.plan.lower_bound
        return f"inputs and outputs take {footprint['io']} bytes, what one step works on {least}"
    if budget_name == "flash":
        return f"{footprint['parameters']} bytes are parameters"
    arrays = max((b.nbytes for kernel in program.distinct_kernels for b in kernel.stack), default=0)
    if arrays:
        return f"the largest array there has {arrays} bytes"
    return "what is left are registers and addresses"


@frozen(kw_only=True)
class OptionChange:
    """An alternative set of options that may reduce the memory of a model.

    suggestion          description for the error message
    helps               budgets whose excess it may reduce: "ram", "flash", "stack"
    config              entries added to the configuration of the pass context
    environment, size   as in `CompileOptions`
    selftest            True if a self-test, where there is one, is included
    """

    suggestion: str
    helps: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    size: bool = False
    selftest: bool = True


def _append_option_in_parentheses(description: str, option: str) -> str:
    return description + " (" + option + ")"


def _make_config_option_change(description: str, budget_name: str, config: Mapping[str, Any]) -> OptionChange:
    what = _append_option_in_parentheses(description, option_text("config", config))
    return OptionChange(suggestion=what, helps=(budget_name,), config=config)


MEMORY_SAVING_CHANGES: Final = (
    _make_config_option_change("order steps for memory", "ram", {"compile.reorder": True}),
    _make_config_option_change("let results overlap inputs that die", "ram", {"compile.overlap": True}),
    OptionChange(
        suggestion=_append_option_in_parentheses(
            "keep inputs and outputs in the arena", option_text("workspace_io", True)
        ),
        helps=("ram",),
        config={"compile.workspace_io": True},
    ),
    OptionChange(
        suggestion=_append_option_in_parentheses(
            "take and give integers where the model quantizes", option_text("io_dtype", "int8")
        ),
        helps=("ram", "flash"),
        config={"compile.io_dtype": "int8"},
    ),
    *(
        _make_config_option_change(f"run the first layers in {count} parts", "ram", {"compile.patches": count})
        for count in (2, 4, 8)
    ),
    OptionChange(
        suggestion=_append_option_in_parentheses(
            "share kernels among layers, keep large arrays off the stack", option_text("environment", "bare")
        ),
        helps=("flash", "stack"),
        environment="bare",
    ),
    _make_config_option_change("keep all arrays off the stack", "stack", {"compile.stack_bytes": 0}),
    OptionChange(
        suggestion=_append_option_in_parentheses("prefer small code and weights", option_text("size", True)),
        helps=("flash",),
        size=True,
    ),
    OptionChange(suggestion="leave " + option_text("selftest") + " out", helps=("flash",), selftest=False),
)


def measured_savings_of_changes(
    budget_name: str, bytes_needed: int, measure_change: Callable[[OptionChange], int | None]
) -> list[MemorySaving]:
    """Return the alternatives (`MEMORY_SAVING_CHANGES`) that reduce a budget, each applied by
    itself, with the bytes saved.

    bytes_needed      bytes that the model needs now
    measure_change    returns the bytes needed with a change; None if the change cannot be applied
    """
    tried = ((change, measure_change(change)) for change in MEMORY_SAVING_CHANGES if budget_name in change.helps)
    return [
        MemorySaving(change.suggestion, bytes_needed - less, True)
        for change, less in tried
        if less is not None and less < bytes_needed
    ]


def int8_quantization_savings(program: Program, budget_name: str) -> list[MemorySaving]:
    """Suggest quantization to int8, with an estimate of the bytes saved, if more than half of the
    memory is float32.

    "ram" looks at the tensors live at the arena's peak, "flash" at the constants; nothing is
    suggested otherwise.
    """
    most = peak_memory_step(program)
    live = most[0].live if most is not None else ()
    tensors = {"ram": live, "flash": program.constants}.get(budget_name, ())
    floats = sum(s.nbytes for s in tensors if str(s.dtype) == "float32")
    if 2 * floats <= sum(s.nbytes for s in tensors):
        return []
    tool = text_for_command_or_python(command="aotc quantize", python="aotc.quantize")
    # tensors may share bytes of the arena, so the sum is bounded by the peak
    there = min(floats, most[0].size) if budget_name == "ram" and most is not None else floats
    return [
        MemorySaving(
            _append_option_in_parentheses("quantize the model to int8", tool), int(_INT8_SAVED_FRACTION * there)
        )
    ]


def _binary_utility_output(toolchain: Toolchain, tool: str, *words: str) -> str:
    """Return the output of a binary utility of the compiler, such as `size` or `nm`; "" if it is
    missing.
    """
    probe = partial(run_program, seconds=PROBE_TIMEOUT_SECONDS)
    try:
        tool_path = probe([*toolchain.cc, f"-print-prog-name={tool}"]).output.decode().strip()
        return probe([tool_path or tool, *words]).output.decode()
    except (OSError, TimeoutError):
        return ""


def measure_code_bytes(library: Path, toolchain: Toolchain) -> int | None:
    """Return the bytes of code in a library, measured by `size -A` of the toolchain; None if
    unavailable.
    """
    sizes = _CODE_SECTION_PATTERN.findall(_binary_utility_output(toolchain, "size", "-A", str(library)))
    return sum(map(int, sizes)) if sizes else None


def undefined_symbols(library: Path, toolchain: Toolchain) -> list[str]:
    """Return the external symbols that a library needs, found by `nm -g` of the toolchain, sorted."""
    rows = _NM_SYMBOL_PATTERN.findall(_binary_utility_output(toolchain, "nm", "-g", str(library)))
    there = {symbol for kind, symbol in rows if kind != "U"}
    return sorted({symbol for _, symbol in rows} - there)


def record_code_size_and_symbols(metadata: dict[str, Any], library: Path, toolchain: Toolchain) -> None:
    """Record the measured code size of a library and its undefined external symbols in the
    metadata.
    """
    if "footprint" in metadata and (code := measure_code_bytes(library, toolchain)) is not None:
        metadata["footprint"] |= {"code": code, "code_measured": True}
    if "links" in metadata:
        metadata["links"]["undefined"] = undefined_symbols(library, toolchain)
