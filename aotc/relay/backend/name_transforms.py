# SPDX-License-Identifier: Apache-2.0
"""Names as TVM's C interface spells them.

prefix_name(["model", "Run"])          # TVM_model_Run
to_c_function_style("TVM_model_Run")   # TVMModelRun
"""

import re
from collections.abc import Sequence

from aotc.ir import AotcError


def _parts(name: str, what: str) -> list[str]:
    if not name:
        raise AotcError("name", f"{what} name is empty")
    if not name.startswith("TVM"):
        raise AotcError("name", f"{what} not TVM prefixed: {name!r}", hint="prefix_name puts it there")
    return name.split("_")


def to_c_function_style(original_name: str) -> str:
    """The words of a prefixed name, each with a capital, as one; AotcError for an empty name or another prefix."""
    return "".join(part[:1].upper() + part[1:] for part in _parts(original_name, "Function"))


def to_c_variable_style(original_name: str) -> str:
    """A prefixed name in small letters; AotcError for an empty name or another prefix."""
    return "_".join(_parts(original_name, "Variable")).lower()


def to_c_constant_style(original_name: str) -> str:
    """A prefixed name in capitals; AotcError for an empty name or another prefix."""
    return "_".join(_parts(original_name, "Constant")).upper()


def _joined(prefix: str, names: Sequence[str] | str) -> str:
    if names == "":
        raise AotcError("name", "Name is empty")
    segments = [names] if isinstance(names, str) else list(names)
    if not segments:
        raise AotcError("name", "Name segments empty")
    if not all(segments):
        raise AotcError("name", "Name segment is empty")
    return "_".join([prefix, *segments])


def prefix_name(names: Sequence[str] | str) -> str:
    """One name, or several as one, after "TVM_"; AotcError where one is empty."""
    return _joined("TVM", names)


def prefix_generated_name(names: Sequence[str] | str) -> str:
    """One name, or several as one, after "TVMGen_"; AotcError where one is empty."""
    return _joined("TVMGen", names)


def sanitize_name(original_name: str) -> str:
    """A name with an underscore for each character that C names cannot have; AotcError for an empty one."""
    if not original_name:
        raise AotcError("name", "Name is empty")
    return re.sub(r"\W", "_", original_name, flags=re.ASCII)
