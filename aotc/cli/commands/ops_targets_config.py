# SPDX-License-Identifier: Apache-2.0
"""`aotc ops`, `aotc targets` and `aotc config`: list operators, targets and configuration keys."""

from __future__ import annotations

from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.reporting.support_tables import config_key_table, supported_operator_table, target_table
from aotc.reporting.text_tables import make_borderless_table


@define_command("ops")
def ops_command(out: Reporter) -> None:
    """List the operators, and those of ONNX and TFLite that use them."""
    out.print_result(supported_operator_table(), render_supported_operators)


@define_command("targets")
def targets_command(out: Reporter) -> None:
    """List the machines that --target can name, and which of them this machine runs code for."""
    out.print_result(target_table(), render_target_list)


@define_command("config")
def config_command(out: Reporter) -> None:
    """List the keys that --config can set, with type, default and meaning."""
    out.print_result(config_key_table(), render_config_keys)


def render_supported_operators(support: JsonObject) -> RenderedParts:
    """Format the lists of supported graph, ONNX and TFLite operators for `aotc ops`."""
    rows = [(r["name"], r["fusion"], r["compiled"], ", ".join(r["attributes"])) for r in support["operators"]]
    yield make_borderless_table("operator", "fusion", "compiled", "attributes", rows=rows)
    for domain, names in support["onnx"].items():
        yield f"\n{len(names)} operators of {domain}: {', '.join(names)}"
    yield "\nOthers that ONNX defines by functions, such as HardSwish and Attention, are replaced by these."
    if names := support["tflite"]:
        yield f"\n{len(names)} builtin operators of TFLite: {', '.join(names)}"


def render_target_list(target_table: JsonObject) -> RenderedParts:
    """Format the list of compilation targets for `aotc targets`."""
    rows = [
        (
            row["name"],
            row["machine"],
            row["environment"],
            str(row["vector_bits"] or "none"),
            "yes" if row["runs_here"] else "no",
            " ".join(row["features"]),
        )
        for row in target_table["targets"]
    ]
    yield make_borderless_table(
        "target", "machine", "environment", "vector bits", "runs here", "instruction sets", rows=rows
    )
    host = target_table["host"]
    yield f"\n--target host stands for {host} on this machine; docs/targets.md says more about each target."


def render_config_keys(key_table: JsonObject) -> RenderedParts:
    """Format the list of configuration keys for `aotc config`."""
    rows = [(row["key"], row["type"], row["default"], row["meaning"]) for row in key_table["keys"]]
    yield make_borderless_table("key", "type", "default", "meaning", rows=rows)
