# SPDX-License-Identifier: Apache-2.0
"""Self-test of a generated model: example inputs and expected outputs, stored after the parameters.

golden = SelftestData((image,), (scores,))
selftest_template_values(tensors, places)       # for the template selftest.c
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, frozen, option_text
from aotc_codegen.c.schedule_calls import ModelTensor

#: Largest accepted error of a float32 output relative to the largest expected magnitude; machines
#: differ in whether they fuse multiply-adds.
MAX_RELATIVE_OUTPUT_ERROR: Final = 1e-4
_EQUAL_BYTES_FUNCTION: Final = """\
static int equal(const void *found, const unsigned char *expected, size_t bytes) {
  const unsigned char *const at = (const unsigned char *)found;
  size_t k;
  for (k = 0; k < bytes; ++k)
    if (at[k] != expected[k]) return 0;
  return 1;
}
"""
_CLOSE_FLOATS_FUNCTION: Final = f"""\
static int close(const float *found, const unsigned char *at, size_t count) {{
  const float *const expected = (const float *)(const void *)at;
  float most = 0;
  size_t k;
  for (k = 0; k < count; ++k) {{
    const float size = expected[k] < 0 ? -expected[k] : expected[k];
    if (size > most) most = size;
  }}
  for (k = 0; k < count; ++k) {{
    const float off = found[k] < expected[k] ? expected[k] - found[k] : found[k] - expected[k];
    if (found[k] != expected[k] && !(off <= {MAX_RELATIVE_OUTPUT_ERROR}f * most)) return 0;
  }}
  return 1;
}}
"""


@frozen(eq=False)
class SelftestData:
    """Example values of a model's inputs and the outputs expected for them, both in the order of
    the model's tensors.
    """

    inputs: tuple[np.ndarray[Any, Any], ...]
    outputs: tuple[np.ndarray[Any, Any], ...]

    @property
    def bytes_of_each_array(self) -> list[bytes]:
        return [np.ascontiguousarray(a).tobytes() for a in (*self.inputs, *self.outputs)]


def selftest_template_values(
    tensors: Sequence[ModelTensor], address_expressions: Sequence[str]
) -> dict[str, list[str]]:
    """Return the values of the template selftest.c: input pointers, output comparisons and
    comparison functions.

    `address_expressions` are C expressions for the addresses of the example values of `tensors`.
    Raise AotcError (code "selftest") for an output of a float type other than float32.
    """
    members, checks, helpers = [], [], []
    for tensor, place in zip(tensors, address_expressions, strict=True):
        dtype = tensor.storage.dtype
        result = f"outputs->{tensor.ident}"
        if tensor.role == "input":
            members.append(f"(const {tensor.ctype} *)(const void *)({place})")
        elif dtype == "float32":
            checks.append(f"close({result}, {place}, {tensor.typical_elements})")
            helpers.append(_CLOSE_FLOATS_FUNCTION)
        elif dtype.is_float:
            text = f"a self-test compares integers and float32, and output {tensor.title!r} is {dtype}"
            raise AotcError("selftest", text, hint="leave " + option_text("selftest") + " out")
        else:
            checks.append(f"equal({result}, {place}, {tensor.typical_bytes})")
            helpers.append(_EQUAL_BYTES_FUNCTION)
    return {"members": members or ["0"], "checks": checks, "helpers": list(dict.fromkeys(helpers))}
