# SPDX-License-Identifier: Apache-2.0
"""`aotc doctor`: say what this machine has of what aotc uses, and how to install what is missing."""

from __future__ import annotations

from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.reporting.environment_check import environment_report
from aotc.reporting.text_tables import format_with_unit_prefix, make_borderless_table


@define_command("doctor")
def doctor_command(out: Reporter) -> None:
    """Say which compilers, emulators and packages are there, and how to install what is missing.

    The exit code is 1 if no library can be built for this machine, and 0 otherwise.
    """
    report = environment_report()
    out.print_result(report, render_environment_report)
    if report["default_compiler"]["problem"]:
        raise SystemExit(1)


def render_environment_report(report: JsonObject) -> RenderedParts:
    """Format the report on this machine for `aotc doctor`."""
    processor, default = report["processor"], report["default_compiler"]
    yield f"aotc         {report['aotc']}, Python {report['python']}, {report['system']}"
    yield f"processor    {processor['architecture']}, {processor['logical_processors']} x {processor['name'] or '?'}"
    yield f"             {' '.join(processor['features']) or 'no instruction set that targets name'}"
    yield f"host target  {processor['host_target']}"
    yield from _compiler_lines(report["compilers"], default)
    yield f"GPU code     {report['gpu']['nvrtc'] or 'no NVRTC'}; {report['gpu']['devices']} GPUs"
    yield from _cache_lines(report["cache"])
    yield ""
    rows = [(t["name"], t["compiler"] or "missing", t["runs"] or "not here") for t in report["targets"]]
    yield make_borderless_table("target", "C compiler", "programs run", rows=rows)
    if report["extras"]:
        yield ""
        extras = [(extra, _package_texts(packages)) for extra, packages in report["extras"].items()]
        yield make_borderless_table("extra", "packages", rows=extras)
    yield ""
    if report["missing"]:
        missing = [(m["name"], m["use"], m["install"]) for m in report["missing"]]
        yield make_borderless_table("missing", "use", "installed by", rows=missing)
    else:
        yield "nothing is missing"


def _compiler_lines(compilers: list[dict[str, str]], default: dict[str, str]) -> RenderedParts:
    if default["problem"]:
        yield f"C compiler   {default['command'] or 'none'}: {default['problem']}"
    else:
        yield f"C compiler   {default['command']} (the default; it builds libraries)"
    for compiler in compilers:
        yield f"             {compiler['command']}: {compiler['version']}"


def _cache_lines(cache: JsonObject) -> RenderedParts:
    if cache["problem"]:
        yield f"cache        not used: {cache['problem']}"
        return
    used, limit = (format_with_unit_prefix(cache[key], "B") for key in ("bytes", "limit"))
    yield f"cache        {cache['folder']}: {cache['entries']} objects, {used} of at most {limit}"


def _package_texts(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found}" if found else f"{name} missing" for name, found in packages.items())
