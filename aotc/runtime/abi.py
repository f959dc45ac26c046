# SPDX-License-Identifier: Apache-2.0
"""cffi interface to the C ABI of compiled models, derived from the C headers aotc.h and
aotc_cuda.h.

The module reads the headers, and the C source with the texts of status codes, and defines the cffi
interface and the constants that the Python runtime needs.

library = ffi.dlopen("libnet.so")
model = library.aotc_model_entry()          # const aotc_model *
DTYPES[model.inputs[0].dtype]               # DType("float32")
"""

import re
from typing import Any, Final

import cffi
from aotc_runtime_c import cuda_runtime_files, hosted_runtime_files, string_runtime_files

from aotc.ir.dtype import DType
from aotc.runtime.fork_safety import new_fork_safe_lock_for

_HEADER, _SOURCE = (path.read_text(encoding="utf-8") for path in hosted_runtime_files())
_CUDA_HEADER = cuda_runtime_files()[0].read_text(encoding="utf-8")
_HEADER_CONSTANTS: Final = dict(re.findall(r'^#define AOTC_(\w+) "?(\w+)', _HEADER, re.MULTILINE))
ABI_VERSION: Final = int(_HEADER_CONSTANTS["ABI_VERSION"])
ENTRY_SYMBOL: Final = _HEADER_CONSTANTS["ENTRY_SYMBOL"]
#: Version of the interface of models whose shapes depend on sizes.
ABI_VERSION_OF_SIZES: Final = int(_HEADER_CONSTANTS["ABI_VERSION_SIZES"])
#: Version of the interface of models some of whose sizes are found by a run.
ABI_VERSION_OF_FOUND_SIZES: Final = int(_HEADER_CONSTANTS["ABI_VERSION_FOUND_SIZES"])
STATE_SYMBOL: Final = _HEADER_CONSTANTS["STATE_SYMBOL"]
WEIGHTS_SYMBOL: Final = _HEADER_CONSTANTS["WEIGHTS_SYMBOL"]
SIZES_SYMBOL: Final = _HEADER_CONSTANTS["SIZES_SYMBOL"]
TIERS_SYMBOL: Final = _HEADER_CONSTANTS["TIERS_SYMBOL"]
GROWING_STATE_SYMBOL: Final = _HEADER_CONSTANTS["GROWING_STATE_SYMBOL"]
#: Bits of a status that hold its code; above them is the number of the violated condition.
STATUS_CODE_MASK: Final = 0xFF
#: Number of bytes at the beginning of a block of state that identify the model.
STATE_HASH_BYTES: Final = 8
MAX_THREADS: Final = int(_HEADER_CONSTANTS["MAX_THREADS"])
#: Declarations of the functions that the library of a model exports.
_EXPORTED_DECLARATIONS: Final = f"""
const aotc_model *{ENTRY_SYMBOL}(void);
int aotc_model_threads_create(int32_t parts, const aotc_threads **threads);
void aotc_model_threads_destroy(const aotc_threads *threads);
const aotc_cuda_program *aotc_model_cuda_program(void);
const aotc_state *{_HEADER_CONSTANTS["STATE_SYMBOL"]}(void);
const aotc_weights *{_HEADER_CONSTANTS["WEIGHTS_SYMBOL"]}(void);
const aotc_sizes *{_HEADER_CONSTANTS["SIZES_SYMBOL"]}(void);
const aotc_tiers *{_HEADER_CONSTANTS["TIERS_SYMBOL"]}(void);
const aotc_growing_state *{_HEADER_CONSTANTS["GROWING_STATE_SYMBOL"]}(void);
"""


def cffi_interface_for(declarations: str) -> Any:
    """Return a cffi interface for C declarations; its lock, held while a library is opened, is
    renewed after a fork.
    """
    interface: Any = cffi.FFI()
    interface.cdef(declarations)
    interface._lock = new_fork_safe_lock_for(interface)
    return interface


def _strip_header_for_cffi(header: str) -> str:
    """Return a C header without preprocessor lines and parts for C++, as cffi expects it."""
    c_only = re.sub(r"^#ifdef __cplusplus$.*?^#endif$", "", header, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^#.*$", "", c_only, flags=re.MULTILINE)


#: The shared cffi interface: its pointers can be passed to every loaded library.
ffi: Final = cffi_interface_for(
    _strip_header_for_cffi(_HEADER) + _strip_header_for_cffi(_CUDA_HEADER) + _EXPORTED_DECLARATIONS
)

#: The element types by their code in `aotc_dtype`.
DTYPE_BY_CODE: Final = tuple(
    DType(name.removeprefix("AOTC_").lower()) for _, name in sorted(ffi.typeof("aotc_dtype").elements.items())
)

#: Code of the status of a run whose sizes or computed values do not fit.
SHAPE_STATUS: Final = int(ffi.typeof("aotc_status").relements["AOTC_ERROR_SHAPE"])
#: Code of the status of a run for which a state has no room.
CAPACITY_STATUS: Final = int(ffi.typeof("aotc_status").relements["AOTC_ERROR_CAPACITY"])

#: Code of the element type of tensors of strings.
STRING_CODE: Final = int(
    re.findall(r"^#define AOTC_STRING (\d+)$", string_runtime_files()[0].read_text(encoding="utf-8"), re.MULTILINE)[0]
)

#: Text for each status code of a run; the C function with these texts is not exported by libraries.
STATUS_MESSAGES: Final = dict(enumerate(re.findall(r'^    "(.*)",$', _SOURCE, re.MULTILINE)))
