# SPDX-License-Identifier: Apache-2.0
"""Relay's compiler of kernels, as programs see it that empty its cache between models: `te_compiler.get().clear()`."""


class TECompiler:
    """What compiles kernels.  Those of a model are the model's own: in a process, none are kept beside it."""

    def clear(self) -> None:
        """Give up kernels that no model needs: there are none."""


def get() -> TECompiler:
    """The compiler of the process."""
    return TECompiler()
