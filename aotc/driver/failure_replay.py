# SPDX-License-Identifier: Apache-2.0
"""Failure reports: save the input of a compiler pass or kernel that failed, so that the failure can
be reproduced alone.

with write_report_on_internal_error():
    compile(...)                     # a pass that raises leaves aotc-pass-FuseOps-1a2b3c4d.json, and one diagnostic
rerun_failed_pass_or_kernel("aotc-pass-FuseOps-1a2b3c4d.json")  # raises the error, or returns the program

The report is JSON: the program before the step as Relay text with its constants, the step's name
and options, the pass context, and the target.  It is written to $AOTC_REPLAY_DIR, else to a new
private folder in the directory for temporary files.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from aotc.driver.object_cache import sha256_of_parts
from aotc.driver.temporary_folders import open_for_atomic_write
from aotc.ir import (
    AotcError,
    DType,
    Failure,
    JsonFormat,
    PrecisionTreatment,
    failure_attached_to,
    open_regular_file,
    running_or_new_budget_scope,
)
from aotc.ir.transform import Pass, PassContext, get_pass
from aotc.ir.version import VERSION
from aotc.relay.backend.function_to_kernel import lower_fused_function
from aotc.relay.graph_api import Function, IRModule
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext
from aotc.tir import (
    Budget,
    CodeSize,
    Gpu,
    GpuCosts,
    MicroKernel,
    Space,
    Strips,
    Target,
    Threads,
    Tiles,
    Winograd,
    to_text,
)
from aotc.tir.micro_kernels import BlockShape

_REPORT_FORMAT_NAME: Final = "aotc-replay"
_PLEASE_REPORT_HINT: Final = "this is a fault of aotc, please report it"
_SAVED_CONTEXT_FIELDS: Final = ("opt_level", "required_pass", "disabled_pass")
#: Serialized form of the options of a pass or kernel by name.
_OPTIONS_SERIALIZER: Final[JsonFormat[dict[str, Any]]] = JsonFormat(
    dict,
    [
        *(Target, Threads, Gpu, GpuCosts, Tiles, MicroKernel, BlockShape, Winograd, Strips, Budget, CodeSize, Space),
        *(DType, PrecisionTreatment),
    ],
)


@contextmanager
def write_report_on_internal_error() -> Iterator[None]:
    """Context manager: write a failure report for a pass or kernel that fails with an internal
    error in the block.

    The error becomes an AotcError (code "internal") whose hint names the report.
    """
    try:
        yield
    except AotcError:
        raise
    except Exception as error:
        failure = failure_attached_to(error)
        if failure is None:
            raise
        text = f"{failure.stage} {failure.name} failed: {type(error).__name__}: {error}"
        raise AotcError("internal", text, hint=_write_failure_report_and_return_hint(failure, str(error))) from error


def _write_failure_report_and_return_hint(failure: Failure, error_text: str) -> str:
    """Write the failure report; return the hint for the user, which names its path or says why
    there is none.
    """
    given = os.environ.get("AOTC_REPLAY_DIR")
    if not isinstance(failure.program, (IRModule, Function)):
        return f"{_PLEASE_REPORT_HINT} with the model; tensor passes work on kernels, and replay files hold graphs"
    folder = Path(given or tempfile.gettempdir())
    try:
        data = json.dumps(_failure_as_json(failure, error_text), indent=1).encode()
        # private folder: other users must neither read the model nor plant a file or link at this path
        if not given:
            folder = Path(tempfile.mkdtemp(prefix="aotc-replay-"))
        path = folder / f"aotc-{failure.stage}-{failure.name}-{sha256_of_parts(data.decode())[:8]}.json"
        with open_for_atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        return f"{_PLEASE_REPORT_HINT}; {folder} cannot keep what shows it: {error.strerror}"
    except TypeError as error:
        return f"no file shows this again: {error}"
    return f"{_PLEASE_REPORT_HINT}; `aotc replay {shlex.quote(str(path))}` shows it again"


def _failure_as_json(failure: Failure, error_text: str) -> dict[str, Any]:
    context = failure.context or PassContext(0)
    program = failure.program
    module = program if isinstance(program, IRModule) else IRModule({"main": program})
    options = (
        _pass_options_by_field(failure.options) if isinstance(failure.options, Pass) else {"target": failure.options}
    )
    return {
        "format": _REPORT_FORMAT_NAME,
        "version": VERSION,
        "stage": failure.stage,
        "name": failure.name,
        "options": json.loads(_OPTIONS_SERIALIZER.dump_json(options)),
        "context": {name: getattr(context, name) for name in _SAVED_CONTEXT_FIELDS} | {"config": dict(context.config)},
        "problem": error_text,
        "program": astext(module, True),
    }


def _pass_options_by_field(failed_pass: Pass[Any]) -> dict[str, Any]:
    """Return the options of a pass by field name; TypeError for a pass that cannot be recreated
    from name and fields.
    """
    try:
        known = type(get_pass(failed_pass.info.name))
    except AotcError:
        known = None
    if known is not type(failed_pass):
        raise TypeError(f"{failed_pass.info.name} is not a pass of aotc")
    options: dict[str, Any] = (
        {f.name: getattr(failed_pass, f.name) for f in fields(failed_pass)} if is_dataclass(failed_pass) else {}
    )
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in options.items()}


def read_failure_report(path: str | Path) -> dict[str, Any]:
    """Read a failure report; return its fields.

    Raises AotcError (code "replay") for any other file, and for a report of another version of
    aotc.
    """
    try:
        with open_regular_file(path, "replay") as file:
            data = json.loads(file.read())
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("format") != _REPORT_FORMAT_NAME:
        raise AotcError("replay", f"{path} is not a failure report written by a failed pass or kernel")
    if data.get("version") != VERSION:
        given = f"is of aotc {data['version']}" if data.get("version") else "names no version of aotc"
        text = f"{path} {given}, this is {VERSION}"
        raise AotcError("replay", text, hint="install that version, or compile the model again")
    for field in ("stage", "name", "options", "context", "program"):
        if field not in data:
            raise AotcError("replay", f"{path} is damaged: it has no {field}")
    return data


def rerun_failed_pass_or_kernel(report_path: str | Path) -> str:
    """Run again the pass or kernel that a failure report describes; return the resulting program as
    text.

    Raises whatever the step raises; AotcError (code "replay") if the report is damaged.
    """
    data = read_failure_report(report_path)
    try:
        context = PassContext(**data["context"])
        module = parse(data["program"])
        name = str(data["name"])
        options = _OPTIONS_SERIALIZER.load_json(json.dumps(data["options"]).encode())
        step = type(get_pass(name))(**options) if data["stage"] == "pass" else None
        if step is None and not isinstance(options.get("target"), Target):
            raise TypeError("a kernel without its target")
    except (AotcError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise AotcError("replay", f"{report_path} is damaged: {error}") from error
    with running_or_new_budget_scope(context.config), context:
        if step:
            return astext(step(module))
        return to_text(lower_fused_function(module.main, name, options["target"]))
