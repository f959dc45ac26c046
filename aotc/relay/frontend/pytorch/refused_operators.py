# SPDX-License-Identifier: Apache-2.0
"""Reasons for which PyTorch operators are refused by name.

reason_for_refusal("aten::randn")       # Refusal("torch-random", "draws random numbers", ...)
"""

import re
from typing import Final

from aotc.ir import frozen


@frozen
class Refusal:
    """Why an operator is refused: a diagnostic code, the reason, and what a user can do."""

    code: str
    reason: str
    hint: str


_RANDOM: Final = Refusal(
    "torch-random", "draws random numbers", "make the random tensor an input of the module, or call .eval() on it"
)
_DYNAMIC: Final = Refusal(
    "torch-dynamic",
    "returns a tensor whose shape depends on values",
    "return the tensors from which it is computed, and call the operator outside of the compiled module",
)
_GRADIENT: Final = Refusal("torch-op", "computes gradients", "export the module without its backward pass")
_NESTED: Final = Refusal(
    "torch-op", "works on nested tensors", "pad the sequences to one length, and give the module a mask"
)
_STORAGE: Final = Refusal(
    "torch-op", "refers to the memory of a tensor", "use reshape, permute or indexing: compiled tensors are contiguous"
)
_TRAINING: Final = Refusal(
    "torch-training", "updates statistics in training mode", "call .eval() on the module before exporting it"
)

_RANDOM_NAMES: Final = (
    "rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "uniform", "exponential", "geometric",
    "cauchy", "log_normal", "poisson", "binomial", "native_dropout", "random", "standard_gamma", "rrelu_with_noise",
)  # fmt: skip
_DYNAMIC_NAMES: Final = ("unique", "unique_consecutive", "bincount")
_STORAGE_NAMES: Final = (
    "empty_strided",
    "sym_is_contiguous",
    "sym_storage_offset",
    "sym_stride",
    "storage_offset",
    "stride",
    "set",
)
_TRAINING_NAMES: Final = ("native_batch_norm_legit", "native_batch_norm_legit_functional")

_REFUSALS: Final = {
    **dict.fromkeys(_RANDOM_NAMES, _RANDOM),
    **dict.fromkeys(_DYNAMIC_NAMES, _DYNAMIC),
    **dict.fromkeys(_STORAGE_NAMES, _STORAGE),
    **dict.fromkeys(_TRAINING_NAMES, _TRAINING),
}
_BACKWARD: Final = re.compile(r"_backward(_|$)")


def reason_for_refusal(name: str) -> Refusal | None:
    """Return the reason for which an operator is refused by name; None for other operators.

    name    name of an operator, with or without "aten::", a leading underscore, and the underscore of
            its in-place form
    """
    plain = name.removeprefix("aten::").strip("_")
    if "nested" in plain or plain.startswith(("jagged", "padded_dense_to_jagged")):
        return _NESTED
    if _BACKWARD.search(plain):
        return _GRADIENT
    return _REFUSALS.get(plain) or _REFUSALS.get(plain.removesuffix("_like"))
