# SPDX-License-Identifier: Apache-2.0
"""How functions of Arm microcontrollers take floats, and which instructions compute with them.

with_float_abi(get_target("cortex-m4"), "softfp")        # the FPU computes, integer registers pass floats
with_float_abi(get_target("cortex-m4"), "soft")          # no instruction of the FPU

A program links only with libraries of the same ABI: code that is linked with a vendor's library
must be compiled for the ABI of that library.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import AotcError, option_text, require_known_name
from aotc.tir.target import Target

#: The values of gcc's and clang's option -mfloat-abi.
FLOAT_ABIS: Final = ("soft", "softfp", "hard")
_FLOAT_ABI_OPTION: Final = "-mfloat-abi="
_MVE_FEATURE: Final = "mve"


def float_abi_from_cflags(cflags: Sequence[str]) -> str:
    """Return the float ABI that compiler flags choose, the last one of several; "" where they
    choose none.
    """
    return next(
        (flag.removeprefix(_FLOAT_ABI_OPTION) for flag in reversed(cflags) if flag.startswith(_FLOAT_ABI_OPTION)), ""
    )


def float_abi(target: Target) -> str:
    """Return the float ABI that a target's code is compiled for; "" for machines without such a
    choice.
    """
    return float_abi_from_cflags(target.base_cflags)


def select_float_abi(target: Target, requested_abi: str | None, cflags: Sequence[str]) -> Target:
    """Return the target with the float ABI that an option asks for, or that the flags of the C
    compiler choose.

    requested_abi    the value of the option, None where it is not given
    cflags           of the C compiler

    Raises AotcError (code "float-abi") where both differ, and as `with_float_abi`.
    """
    stated = float_abi_from_cflags(cflags)
    if requested_abi is None:
        return with_float_abi(target, stated) if stated and float_abi(target) else target
    new_target = with_float_abi(target, requested_abi)
    if stated and stated != requested_abi:
        text = (
            f"the float ABI {requested_abi} is asked for, and the flags of "
            f"the C compiler say {_FLOAT_ABI_OPTION}{stated}"
        )
        raise AotcError("float-abi", text, hint="leave one of them out, or give both the same value")
    return new_target


def with_float_abi(target: Target, abi: str) -> Target:
    """Return the target with code for another float ABI; without an FPU for "soft".

    Raises AotcError (code "float-abi") for an ABI that does not exist, for machines that have no
    such choice, and for cores without an FPU.
    """
    require_known_name("float-abi", "float ABI", abi, FLOAT_ABIS)
    present = float_abi(target)
    if not present:
        text = f"target {target.name} has no choice of float ABIs; Arm microcontrollers have"
        hint = (
            "leave "
            + option_text("float_abi")
            + " out; "
            + option_text("cflags")
            + " takes other flags of the C compiler"
        )
        raise AotcError("float-abi", text, hint=hint)
    if present == abi:
        return target
    if present == "soft":
        text = f"the float ABI of target {target.name} is soft: code for it uses no FPU, and {abi} needs one"
        raise AotcError("float-abi", text, hint="take " + option_text("float_abi", "soft") + ", or leave it out")
    flags = tuple(
        f
        for f in target.base_cflags
        if not f.startswith((_FLOAT_ABI_OPTION, "-mfpu=") if abi == "soft" else _FLOAT_ABI_OPTION)
    )
    flags += (_FLOAT_ABI_OPTION + abi,)
    new_target = replace(target, cflags=flags, base_cflags=flags, fma=target.fma and abi != "soft")
    # vectors of integers share their registers with floats
    if abi != "soft" or _MVE_FEATURE not in target.features:
        return new_target
    features = tuple(feature for feature in target.features if feature != _MVE_FEATURE)
    kernels = tuple(kernel for kernel in target.micro_kernels if _MVE_FEATURE not in kernel.requires)
    return replace(new_target, micro_kernels=kernels, activations="", features=features)
