# SPDX-License-Identifier: Apache-2.0
"""Conversion of names to the conventions of TVM's C interface.

prefix_name(["model", "Run"])          # TVM_model_Run
to_c_function_style("TVM_model_Run")   # TVMModelRun
"""

import re
from collections.abc import Sequence

from aotc.ir import AotcError


def _require_tvm_prefix_and_split(name: str, kind: str) -> list[str]:
    if not name:
        raise AotcError("name", f"{kind} name is empty")
    if not name.startswith("TVM"):
        raise AotcError("name", f"{kind} not TVM prefixed: {name!r}", hint="prefix_name puts it there")
    return name.split("_")


def to_c_function_style(tvm_prefixed_name: str) -> str:
    """Return a "TVM..." name in camel case without underscores; raise AotcError if it is empty or
    lacks the prefix.
    """
    return "".join(part[:1].upper() + part[1:] for part in _require_tvm_prefix_and_split(tvm_prefixed_name, "Function"))


def to_c_variable_style(tvm_prefixed_name: str) -> str:
    """Return a "TVM_..." name in the style of TVM's C variables: "tvm_model_run" for
    "TVM_model_Run"; raise AotcError if the name is empty or lacks the prefix.
    """
    return "_".join(_require_tvm_prefix_and_split(tvm_prefixed_name, "Variable")).lower()


def to_c_constant_style(tvm_prefixed_name: str) -> str:
    """Return a "TVM_..." name in the style of TVM's C constants: "TVM_MODEL_RUN" for
    "TVM_model_Run"; raise AotcError if the name is empty or lacks the prefix.
    """
    return "_".join(_require_tvm_prefix_and_split(tvm_prefixed_name, "Constant")).upper()


def _join_nonempty_name_segments(prefix: str, names: Sequence[str] | str) -> str:
    if names == "":
        raise AotcError("name", "Name is empty")
    segments = [names] if isinstance(names, str) else list(names)
    if not segments:
        raise AotcError("name", "Name segments empty")
    if not all(segments):
        raise AotcError("name", "Name segment is empty")
    return "_".join([prefix, *segments])


def prefix_name(names: Sequence[str] | str) -> str:
    """Return "TVM_" and one name, or several joined by underscores; raise AotcError if a name is
    empty.
    """
    return _join_nonempty_name_segments("TVM", names)


def prefix_generated_name(names: Sequence[str] | str) -> str:
    """Return "TVMGen_" and one name, or several joined by underscores; raise AotcError if a name is
    empty.
    """
    return _join_nonempty_name_segments("TVMGen", names)


def sanitize_name(original_name: str) -> str:
    """Return a name with each character that C does not allow replaced by an underscore; raise
    AotcError if it is empty.
    """
    if not original_name:
        raise AotcError("name", "Name is empty")
    return re.sub(r"\W", "_", original_name, flags=re.ASCII)
