# SPDX-License-Identifier: Apache-2.0
"""`aotc compile`: compile a model to a C project and a library."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.commands.package import PackageRequest, render_package_result
from aotc.cli.compile_options import BOARD_OPTIONS, COMPILATION_OPTIONS, STATE_OPTION, declare_compile_options
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_flag, declare_option
from aotc.cli.pass_inspection_options import PASS_INSPECTION_OPTIONS, PassInspection, PassProgress, StageTimes
from aotc.cli.result_tables import format_arena_size, format_microcontroller_footprint, weight_size_lines
from aotc.driver.compile import c_name_of_model, compile
from aotc.driver.output_folder import require_folder_without_foreign_files
from aotc.driver.toolchain import compiler_version_line, find_toolchain, resolve_target
from aotc.ir import PassTimingInstrument, listen_to_progress
from aotc.ir.atomic_write import temporary_folder
from aotc.ir.terminal_safe_text import PreformattedText
from aotc.reporting.text_tables import describe_register_spills, format_with_unit_prefix


def _target_and_compiler_for_report_header(build: bool, options: Mapping[str, Any]) -> dict[str, str]:
    """Return facts for the head of a compilation report that the compiler does not know: target, C
    compiler, flags.
    """
    flags = shlex.join(options["cflags"])
    target = resolve_target(options["target"])
    version_line = compiler_version_line(find_toolchain(options["cc"], target=target)) if build else ""
    compiler = {"C compiler": version_line, "C flags": flags} if build else {}
    return {"target": target.name, **compiler}


@define_command(
    "compile",
    options_of.MODEL_ARGUMENT,
    declare_compile_options("output", "name"),
    COMPILATION_OPTIONS,
    STATE_OPTION,
    declare_flag("--timing", "Print how long each stage, the C compiler included, and each pass took."),
    declare_option("--dump-ir dump", "Write the program after each pass there.", PATH_TYPE, metavar="DIR"),
    declare_compile_options("io_dtype", "ram", "flash", "stack", "workspace_io"),
    declare_option("--report", "Write what every pass did, as one page.", PATH_TYPE, metavar="FILE.html"),
    declare_option(
        "--print-after", "Print the program after a pass, to the error stream.", multiple=True, metavar="PASS"
    ),
    declare_compile_options("disabled_pass"),
    declare_option("--stop-after", "Print the program after a pass, and write no project.", metavar="PASS"),
    declare_flag("--show-meta-data", "Print and dump the values of constants too, to be read again."),
    declare_flag("--check-passes", "Check every pass: interpret graphs, verify kernels."),
    declare_compile_options("threads"),
    BOARD_OPTIONS,
    declare_compile_options("selftest", "single_file", "separate_weights", "check_compiler", "build", "overwrite"),
    declare_option("--package ecosystem", "Write a package for this ecosystem, and no project.", metavar="NAME"),
    declare_option(
        "--manifest", "File with the name, version, license and author of the package.", PATH_TYPE, metavar="FILE.toml"
    ),
)
def compile_command(
    out: Reporter,
    model: Path,
    output: Path | None,
    timing: bool,
    build: bool,
    ecosystem: str | None,
    manifest: Path | None,
    **options: Any,
) -> None:
    """Compile MODEL (.onnx, .pt2, .tflite, .relay) to a C project and a library in DIR.

    Without -o, DIR is build/NAME, and build/NAME-ECOSYSTEM with --package, where NAME is the prefix of the C
    symbols.  With --stop-after no project is written.
    """
    watching = {name: options.pop(name) for name in PASS_INSPECTION_OPTIONS}
    stopping = watching["stop_after"] is not None
    if output is None and not stopping:
        ending = f"-{ecosystem}" if ecosystem is not None else ""
        output = Path("build") / f"{c_name_of_model(model, options['name'])}{ending}"
        require_folder_without_foreign_files(output)
    package = PackageRequest.from_options(ecosystem, manifest, output, options)
    build = build and not stopping and (package is None or package.needs_library)
    facts = _target_and_compiler_for_report_header(build, options) if watching["report"] is not None else {}
    watch = PassInspection(out, model, output, facts, **watching)
    passes, stages = PassTimingInstrument(), StageTimes()
    instruments = [passes, PassProgress(out.show_current_item), *watch.requested_pass_instruments()]
    with ExitStack() as stack:
        where = None if stopping else output
        if package is not None and not stopping:
            where = Path(stack.enter_context(temporary_folder("aotc-package-"))) / "project"
        with watch.write_compilation_report_at_end() as show, listen_to_progress(out.show_progress):
            compiled_model = compile(
                model,
                output=where,
                instruments=instruments,
                build=build,
                progress=stages.wrap_callback_to_record_stage_times(show),
                **options,
            )
            result = watch.add_model_to_compilation_report(compiled_model)
        packaged = package.write(where) if package is not None and where is not None else {}
    times = PreformattedText(f"{stages}\n{passes.render()}" if timing else "")
    timings: dict[str, Any] = {"stages": stages.stage_time_rows(), "timing": times} if timing else {}
    if watch.stopped is not None:
        out.print_text_or_json({"text": watch.stopped, **timings}, watch.stopped)
        if timing and not out.as_json:
            out.print_to_stderr(times.rstrip())
        return
    library, metadata = str(result.library or ""), dict(result.metadata)
    # the library inside of a package was built in a folder that is gone
    size = result.library.stat().st_size if result.library and not packaged else 0
    data = {"path": str(result.path), "library": library, "library_bytes": size, "metadata": metadata, **timings}
    data |= {"unchecked": list(result.unchecked), **packaged}
    if out.quiet and timing:
        out.print_text_or_json(data, times)
    else:
        out.print_result(data, render_compile_result)


def render_compile_result(data: JsonObject) -> RenderedParts:
    """Format the result of `compile`, with the times of stages and passes if present."""
    if passes := data.get("timing"):
        yield passes.rstrip()
    if "files" in data:
        yield from render_package_result(data)
    else:
        yield f"project      {data['path']}"
    if library := data["library"]:
        yield f"library      {library} ({format_with_unit_prefix(data['library_bytes'], 'B')})"
    yield from weight_size_lines(data["metadata"].get("sizes"))
    yield f"arena        {format_arena_size(data['metadata']['memory'])}"
    if data["metadata"]["library"].endswith(".a"):
        yield f"footprint    {format_microcontroller_footprint(data['metadata']['footprint'])}"
        yield from _c_language_and_float_abi_lines(data["metadata"])
    yield f"numerics     {data['metadata']['numerics']}"
    if slow := describe_register_spills(data["metadata"]):
        yield f"warning      kernels that spill into memory: {slow}"


def _c_language_and_float_abi_lines(metadata: JsonObject) -> RenderedParts:
    """Yield lines on the C language and float ABI that a bare-metal project requires."""
    extended = "C99; inline assembly, as gcc and clang take it (--portable: none)"
    plain = "C99" if resolve_target(metadata["target"]).is_scalar else "C99 with vectors, as gcc and clang take them"
    yield f"language     {extended if metadata['inline_assembly'] else plain}"
    if abi := metadata["float_abi"]:
        yield f"float ABI    {abi} (without -mfloat-abi among the flags of the application)"
