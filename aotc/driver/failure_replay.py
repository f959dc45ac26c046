# SPDX-License-Identifier: Apache-2.0
"""Failure reports: save the input of a compiler pass or kernel that failed, so that the failure can
be reproduced alone.

with keeping_failures():
    compile(...)                     # a pass that raises leaves aotc-pass-FuseOps-1a2b3c4d.json, and one diagnostic
replay("aotc-pass-FuseOps-1a2b3c4d.json")            # raises what the pass did, or gives the program after it

The report is JSON: the program before the step as Relay text with its constants, the step's name
and options, the pass context, and the target.  It is written to $AOTC_REPLAY_DIR, else to a new
private folder in the directory for temporary files.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from aotc.driver.object_cache import digest
from aotc.driver.temporary_folders import written
from aotc.ir import AotcError, DType, Failure, Form, Precision, failure_of, open_regular, spending
from aotc.ir.transform import Pass, PassContext, get_pass
from aotc.ir.version import VERSION
from aotc.relay.backend.function_to_kernel import lower_function
from aotc.relay.graph_api import Function, IRModule
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext
from aotc.tir import Budget, Dots, Gpu, Space, Target, Threads, Tiles, Winograd, to_text

_FORMAT: Final = "aotc-replay"
_FAULT: Final = "this is a fault of aotc, please report it"
_CONTEXT: Final = ("opt_level", "required_pass", "disabled_pass")
#: Serialized form of the options of a pass or kernel by name.
_OPTIONS: Final[Form[dict[str, Any]]] = Form(
    dict, [Target, Threads, Gpu, Tiles, Dots, Winograd, Budget, Space, DType, Precision]
)


@contextmanager
def keeping_failures() -> Iterator[None]:
    """Context manager: write a failure report for a pass or kernel that fails with an internal
    error in the block.

    The error becomes an AotcError (code "internal") whose hint names the report.
    """
    try:
        yield
    except AotcError:
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        text = f"{failure.stage} {failure.name} failed: {type(error).__name__}: {error}"
        raise AotcError("internal", text, hint=_kept(failure, str(error))) from error


def _kept(failure: Failure, problem: str) -> str:
    """Write the failure report; return the hint for the user, which names its path or says why
    there is none.
    """
    given = os.environ.get("AOTC_REPLAY_DIR")
    if not isinstance(failure.program, (IRModule, Function)):
        return f"{_FAULT} with the model; tensor passes work on kernels, and replay files hold graphs"
    folder = Path(given or tempfile.gettempdir())
    try:
        data = json.dumps(_as_json(failure, problem), indent=1).encode()
        # private folder: other users must neither read the model nor plant a file or link at this path
        if not given:
            folder = Path(tempfile.mkdtemp(prefix="aotc-replay-"))
        path = folder / f"aotc-{failure.stage}-{failure.name}-{digest(data.decode())[:8]}.json"
        with written(path) as file:
            file.write(data)
    except OSError as error:
        return f"{_FAULT}; {folder} cannot keep what shows it: {error.strerror}"
    except TypeError as error:
        return f"no file shows this again: {error}"
    return f"{_FAULT}; `aotc replay {path}` shows it again"


def _as_json(failure: Failure, problem: str) -> dict[str, Any]:
    context = failure.context or PassContext(0)
    program = failure.program
    module = program if isinstance(program, IRModule) else IRModule({"main": program})
    options = _fields(failure.options) if isinstance(failure.options, Pass) else {"target": failure.options}
    return {
        "format": _FORMAT,
        "version": VERSION,
        "stage": failure.stage,
        "name": failure.name,
        "options": json.loads(_OPTIONS.dump(options)),
        "context": {name: getattr(context, name) for name in _CONTEXT} | {"config": dict(context.config)},
        "problem": problem,
        "program": astext(module, True),
    }


def _fields(item: Pass[Any]) -> dict[str, Any]:
    """Return the options of a pass by field name; TypeError for a pass that cannot be recreated
    from name and fields.
    """
    try:
        known = type(get_pass(item.info.name))
    except AotcError:
        known = None
    if known is not type(item):
        raise TypeError(f"{item.info.name} is not a pass of aotc")
    options: dict[str, Any] = {f.name: getattr(item, f.name) for f in fields(item)} if is_dataclass(item) else {}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in options.items()}


def read_replay(path: str | Path) -> dict[str, Any]:
    """Read a failure report; return its fields.

    Raises AotcError (code "replay") for any other file, and for a report of another version of
    aotc.
    """
    try:
        with open_regular(path, "replay") as file:
            data = json.loads(file.read())
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise AotcError("replay", f"{path} is not a failure report written by a failed pass or kernel")
    if data.get("version") != VERSION:
        given = f"is of aotc {data['version']}" if data.get("version") else "names no version of aotc"
        text = f"{path} {given}, this is {VERSION}"
        raise AotcError("replay", text, hint="install that version, or compile the model again")
    for field in ("stage", "name", "options", "context", "program"):
        if field not in data:
            raise AotcError("replay", f"{path} is damaged: it has no {field}")
    return data


def replay(path: str | Path) -> str:
    """Run again the pass or kernel that a failure report describes; return the resulting program as
    text.

    Raises whatever the step raises; AotcError (code "replay") if the report is damaged.
    """
    data = read_replay(path)
    try:
        context = PassContext(**data["context"])
        module = parse(data["program"])
        name = str(data["name"])
        options = _OPTIONS.load(json.dumps(data["options"]).encode())
        step = type(get_pass(name))(**options) if data["stage"] == "pass" else None
        if step is None and not isinstance(options.get("target"), Target):
            raise TypeError("a kernel without its target")
    except (AotcError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise AotcError("replay", f"{path} is damaged: {error}") from error
    with spending(context.config), context:
        if step:
            return astext(step(module))
        return to_text(lower_function(module.main, name, options["target"]))
