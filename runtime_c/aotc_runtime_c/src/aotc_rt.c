/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that every compiled model shares. */
#include "aotc.h"

const char *aotc_status_message(int status) {
  switch (status) {
  case AOTC_OK: return "success";
  case AOTC_ERROR_NULL_ARGUMENT:
    return "an input, an output or the workspace is missing";
  case AOTC_ERROR_ALIGNMENT:
    return "an input, an output or the workspace is not aligned";
  case AOTC_ERROR_OPTIONS: return "the options have an unknown size";
  case AOTC_ERROR_OPEN: return "the library cannot be opened";
  case AOTC_ERROR_SYMBOL: return "the library is not a compiled model";
  case AOTC_ERROR_ABI:
    return "the library was compiled for another version of the interface";
  case AOTC_ERROR_THREADS: return "so many threads cannot be had";
  default: return "unknown status";
  }
}

size_t aotc_dtype_bytes(int dtype) {
  switch (dtype) {
  case AOTC_BOOL:
  case AOTC_INT8:
  case AOTC_UINT8:
  case AOTC_FLOAT8_E4M3FN:
  case AOTC_FLOAT8_E4M3FNUZ:
  case AOTC_FLOAT8_E5M2:
  case AOTC_FLOAT8_E5M2FNUZ:
  case AOTC_FLOAT8_E8M0FNU:
  case AOTC_FLOAT4_E2M1FN:
  case AOTC_INT4:
  case AOTC_UINT4:
  case AOTC_INT2:
  case AOTC_UINT2: return 1;
  case AOTC_INT16:
  case AOTC_UINT16:
  case AOTC_FLOAT16:
  case AOTC_BFLOAT16: return 2;
  case AOTC_INT32:
  case AOTC_UINT32:
  case AOTC_FLOAT32: return 4;
  case AOTC_INT64:
  case AOTC_UINT64:
  case AOTC_FLOAT64: return 8;
  default: return 0;
  }
}
