# SPDX-License-Identifier: Apache-2.0
"""Count the deviations of a project's C code from MISRA C:2012, by rule, with the reason for each.

report = describe_misra_deviations(Path("build/net"))
report["rules"][0]                     # {"rule": "12.1", "count": 88, "files": ["src/net.c"], "reason": "..."}
write_misra_report(report, Path("deviations.md"))

cppcheck finds the deviations; its addon works without the texts of the rules, which are not public. It
checks a part of the rules: the report helps with a deviation record, and is no statement of compliance.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from aotc.driver.subprocesses import run_program
from aotc.ir import AotcError, option_text
from aotc.ir.atomic_write import open_output_file, require_not_an_input_file, temporary_folder
from aotc.reporting.environment_check import INSTALL_MISRA_CHECKER, MISRA_CHECKER
from aotc.reporting.model_inspection import inspect_project

#: A report as JSON has it.
JsonObject: TypeAlias = "dict[str, Any]"
_SECONDS: Final = 600
_FINDING: Final = re.compile(r"^(?P<file>[^\t\n]*)\t(?P<line>\d+)\t(?P<id>[^\t\n]+)\t(?P<text>.*)$", re.MULTILINE)
_RULE_PREFIX: Final = "misra-c2012-"
#: Findings of cppcheck after which a part of the code was not checked.
_INCOMPLETE: Final = frozenset(
    {"internalError", "internalAstError", "syntaxError", "preprocessorErrorDirective", "cppcheckError"}
)
_FOLDERS: Final = ("src", "include")
#: A program for the machine that builds, which is no part of the library.
_BUILD_TOOL: Final = "params_to_c.c"
CAVEAT: Final = (
    "cppcheck checks a part of the rules of MISRA C:2012. This report is material for a deviation record; it does not"
    " state compliance."
)

#: Why generated code deviates, by the number of a rule.
REASONS: Final[Mapping[str, str]] = {
    "2.2": "Addresses in memory of the model are printed as a base and an offset, also where the offset is 0.",
    "2.4": "Tags of the header are for callers; functions return status codes as int.",
    "2.5": "Macros of the header are for callers, and those of internal headers for some of the sources.",
    "2.7": "Kernels that share a signature do not all need each parameter.",
    "5.5": "A macro takes the place of an array if the parameters are at an address of their own.",
    "8.9": "Tables of constants stand beside the function that reads them.",
    "10.3": "Conversions to narrower types are those of the tensor program, whose values fit.",
    "10.4": "Literals are printed without a suffix where the value is the same in both types.",
    "10.8": "Conversions between signed and unsigned integers are those of the tensor program.",
    "11.5": "Callers pass the workspace as a pointer to void; the memory plan has the type of each part.",
    "12.1": "Expressions are printed with the parentheses that C needs, not with all that a reader may want.",
    "12.3": "Variables of a type are declared together.",
    "15.5": "Functions return as soon as an argument is wrong, before anything is written.",
    "15.6": "Bodies of one statement have no braces.",
    "17.7": "memcpy and memset return their first argument, which is not needed.",
    "17.8": "Loops over bytes advance their parameters.",
    "18.4": "Addresses in memory of the model are sums of a pointer and an offset, as the memory plan states them.",
}


def describe_misra_deviations(project: Path) -> JsonObject:
    """Return the deviations of the C code of a bare-metal project from MISRA C:2012, as cppcheck counts them.

    "rules" has a row for each rule: its number, the count, the files, and the reason why generated code
    deviates ("" if none is recorded); the most frequent ones come first.

    Raises AotcError: code "not-a-project" as `inspect_project`, code "misra" for a project with an operating
    system, if cppcheck is not installed, or if it cannot check a file.
    """
    metadata = inspect_project(project)
    if not str(metadata.get("library", "")).endswith(".a"):
        text = f"{project} is not code for a device without an operating system"
        raise AotcError("misra", text, hint="compile with " + option_text("environment", "bare"))
    checker = shutil.which(MISRA_CHECKER)
    if checker is None:
        hint = f"on Debian and Ubuntu: {INSTALL_MISRA_CHECKER}"
        raise AotcError("misra", f"{MISRA_CHECKER} is not installed", hint=hint)
    with temporary_folder("aotc-misra-") as name:
        # cppcheck writes files beside the sources
        folder = Path(name)
        for part in _FOLDERS:
            shutil.copytree(project / part, folder / part)
        sources = sorted(p.relative_to(folder).as_posix() for p in folder.glob("src/*.c") if p.name != _BUILD_TOOL)
        output = _output_of_cppcheck(checker, folder, sources)
    rows = _deviations_by_rule(output)
    return {
        "model": metadata["name"],
        "target": metadata["target"],
        "checker": _version_of(checker),
        "sources": sources,
        "caveat": CAVEAT,
        "count": sum(row["count"] for row in rows),
        "rules": rows,
    }


def _output_of_cppcheck(checker: str, folder: Path, sources: Iterable[str]) -> str:
    command = [checker, "--addon=misra", "--std=c99", "--enable=style", "--quiet", "--platform=unix32"]
    command += ["--template={file}\t{line}\t{id}\t{message}", "--template-location=", "-Iinclude", "-Isrc", *sources]
    try:
        done = run_program(command, seconds=_SECONDS, cwd=folder)
    except TimeoutError as error:
        raise AotcError("misra", f"cppcheck took more than {_SECONDS} seconds") from error
    except OSError as error:
        raise AotcError("misra", f"cannot run cppcheck: {error.strerror or error}") from error
    output = (done.output + b"\n" + done.errors).decode("utf-8", "backslashreplace")
    if done.code != 0 or "Bailing out" in output:
        raise AotcError("misra", "cppcheck failed", notes=tuple(output.strip().splitlines()[:5]))
    return output


def _deviations_by_rule(output: str) -> list[JsonObject]:
    """Return a row for each rule in the output of cppcheck; AotcError (code "misra") if code was not checked."""
    counts, files = Counter[str](), defaultdict[str, set[str]](set)
    for match in _FINDING.finditer(output):
        if match["id"] in _INCOMPLETE:
            text = f"cppcheck cannot check {match['file']}, line {match['line']}: {match['text']}"
            raise AotcError("misra", text)
        if match["id"].startswith(_RULE_PREFIX):
            rule = match["id"].removeprefix(_RULE_PREFIX)
            counts[rule] += 1
            files[rule].add(match["file"])
    ranked = sorted(counts, key=lambda rule: (-counts[rule], _rule_order(rule)))
    return [
        {"rule": rule, "count": counts[rule], "files": sorted(files[rule]), "reason": REASONS.get(rule, "")}
        for rule in ranked
    ]


def _rule_order(rule: str) -> list[int]:
    return [int(part) for part in rule.split(".")]


def _version_of(checker: str) -> str:
    try:
        return run_program([checker, "--version"], seconds=60).output.decode("utf-8", "backslashreplace").strip()
    except (OSError, TimeoutError):
        return "cppcheck"


def require_misra_report_file(path: Path, project: Path) -> None:
    """Raise AotcError unless `write_misra_report` may write to a file: code "misra" for the extension of its name,
    "output" for a file of the project.
    """
    if path.suffix not in (".md", ".json"):
        raise AotcError("misra", f"cannot write a report to {path.name!r}", hint="the name ends in .md or .json")
    require_not_an_input_file(path, "output", [file for file in project.rglob("*") if file.is_file()])


def write_misra_report(report: Mapping[str, Any], path: Path) -> None:
    """Write a report to a file, as JSON or as Markdown, by the extension of its name; AotcError (code "output") if
    it cannot be written.
    """
    text = json.dumps(report, indent=2) + "\n" if path.suffix == ".json" else _markdown_of_report(report)
    with open_output_file(path, "output") as file:
        file.write(text.encode("utf-8"))


def _markdown_of_report(report: Mapping[str, Any]) -> str:
    rows = [
        f"| {row['rule']} | {row['count']} | {', '.join(f'`{file}`' for file in row['files'])} |"
        f" {row['reason'] or 'none recorded'} |"
        for row in report["rules"]
    ]
    lines = [
        f"# Deviations of {report['model']} from MISRA C:2012",
        "",
        f"Code for the target `{report['target']}`, checked by {report['checker']}. {report['caveat']}",
        "",
        "| rule | deviations | files | reason |",
        "|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"
