# SPDX-License-Identifier: Apache-2.0
"""The binary interface of compiled models, as the C header aotc.h states it, for cffi.

In: nothing.  Out: the declarations, and the constants that Python needs.

library = ffi.dlopen("libnet.so")
model = library.aotc_model_entry()          # const aotc_model *
DTYPES[model.inputs[0].dtype]               # DType("float32")
"""

from __future__ import annotations

from typing import Any, Final

import cffi

from aotc.ir.dtype import DType
from aotc.runtime.forks import renew_in_children

ABI_VERSION: Final = 2
ENTRY_SYMBOL: Final = "aotc_model_entry"

DTYPES: Final = tuple(
    map(
        DType,
        (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "bfloat16"),
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
            *("float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
        ),
    )
)
"""The element types by their code in `aotc_dtype`."""

MAX_THREADS: Final = 64

STATUS_MESSAGES: Final = {
    0: "success",
    1: "an input, an output or the workspace is missing",
    2: "an input, an output or the workspace is not aligned",
    3: "the options have an unknown size",
    7: "so many threads cannot be had",
    8: "the processor lacks instructions that the model was compiled for",
    9: "the model has no kernels for the instruction set named",
}
"""What a run can return.  The C function with these texts is hidden inside each library."""

DECLARATIONS: Final = """
typedef struct aotc_tensor {
  const char *name;
  const int64_t *shape;
  size_t bytes;
  int32_t rank;
  int32_t dtype;
} aotc_tensor;

typedef struct aotc_threads aotc_threads;

typedef void (*aotc_step_fn)(void *context, int32_t step);

typedef struct aotc_run_options {
  size_t size;
  aotc_step_fn on_step;
  void *step_context;
  const aotc_threads *threads;
  const char *isa;
} aotc_run_options;

typedef int (*aotc_run_fn)(const void *const *inputs, void *const *outputs,
                           void *workspace, const aotc_run_options *options);

typedef struct aotc_isa {
  const char *name;
  uint32_t needs;
} aotc_isa;

typedef struct aotc_model {
  uint32_t abi_version;
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_isas;
  const char *name;
  const char *version;
  const aotc_tensor *inputs;
  const aotc_tensor *outputs;
  size_t workspace_bytes;
  size_t workspace_alignment;
  size_t weights_bytes;
  aotc_run_fn run;
  size_t thread_workspace_bytes;
  const aotc_isa *isas;
  const char *const *cpu_features;
  uint32_t (*cpu_missing)(void);
} aotc_model;

const aotc_model *aotc_model_entry(void);
int aotc_model_threads_create(int32_t parts, const aotc_threads **threads);
void aotc_model_threads_destroy(const aotc_threads *threads);
"""


def interface_of(declarations: str) -> Any:
    """A cffi interface; its lock, which is held while a library is opened, is new in forked children."""
    interface = cffi.FFI()
    interface.cdef(declarations)
    renew_in_children(interface)
    return interface


ffi: Final = interface_of(DECLARATIONS)
"""The one cffi interface: pointers made by it fit every loaded library."""
