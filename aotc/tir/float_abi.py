# SPDX-License-Identifier: Apache-2.0
"""How functions of Arm microcontrollers take floats, and which instructions compute with them.

with_float_abi(get_target("cortex-m4"), "softfp")        # the FPU computes, integer registers pass floats
with_float_abi(get_target("cortex-m4"), "soft")          # no instruction of the FPU

A program links only with libraries of the same ABI: what is linked with code of a vendor follows that code.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import AotcError, require_known
from aotc.tir.target import Target

#: The values of gcc's and clang's option -mfloat-abi.
FLOAT_ABIS: Final = ("soft", "softfp", "hard")
_OPTION: Final = "-mfloat-abi="


def stated_float_abi(flags: Sequence[str]) -> str:
    """Return the float ABI that compiler flags choose, the last one of several; "" where they choose none."""
    return next((flag.removeprefix(_OPTION) for flag in reversed(flags) if flag.startswith(_OPTION)), "")


def float_abi(target: Target) -> str:
    """Return the float ABI that a target's code is compiled for; "" for machines without such a choice."""
    return stated_float_abi(target.base_cflags)


def chosen_float_abi(target: Target, wanted: str | None, flags: Sequence[str]) -> Target:
    """Return the target with the float ABI that an option asks for, or that the flags of the C compiler choose.

    wanted   the value of the option, None where it is not given
    flags    of the C compiler

    Raises AotcError (code "float-abi") where both differ, and as `with_float_abi`.
    """
    stated = stated_float_abi(flags)
    if wanted is None:
        return with_float_abi(target, stated) if stated and float_abi(target) else target
    made = with_float_abi(target, wanted)
    if stated and stated != wanted:
        text = f"the float ABI {wanted} is asked for, and the flags of the C compiler say {_OPTION}{stated}"
        raise AotcError("float-abi", text, hint="leave one of them out, or give both the same value")
    return made


def with_float_abi(target: Target, abi: str) -> Target:
    """Return the target with code for another float ABI; without an FPU for "soft".

    Raises AotcError (code "float-abi") for an ABI that does not exist, for machines that have no such choice, and for
    cores without an FPU.
    """
    require_known("float-abi", "float ABI", abi, FLOAT_ABIS)
    present = float_abi(target)
    if not present:
        text = f"target {target.name} has no choice of float ABIs; Arm microcontrollers have"
        raise AotcError("float-abi", text, hint="leave --float-abi out; --cflags takes other flags of the C compiler")
    if present == abi:
        return target
    if present == "soft":
        text = f"the float ABI of target {target.name} is soft: code for it uses no FPU, and {abi} needs one"
        raise AotcError("float-abi", text, hint="take --float-abi soft, or leave it out")
    flags = tuple(f for f in target.base_cflags if not f.startswith((_OPTION, "-mfpu=") if abi == "soft" else _OPTION))
    flags += (_OPTION + abi,)
    made = replace(target, cflags=flags, base_cflags=flags, fma=target.fma and abi != "soft")
    # vectors of integers share their registers with floats
    lacks_vectors = abi == "soft" and made.dots is not None and made.dots.along
    return replace(made, dots=None, activations="") if lacks_vectors else made
