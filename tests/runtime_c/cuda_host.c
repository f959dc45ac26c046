/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model without steps on the first GPU, and prints the status and
 * what is said of it. */
#include <stdio.h>
#include <string.h>

#include "aotc_cuda.h"

static const aotc_model *info(void) {
  return NULL;
}

int main(void) {
  aotc_cuda_program program;
  aotc_cuda *opened;
  aotc_cuda_session *session;
  char message[256], cut[8];
  int status;
  memset(&program, 0, sizeof program);
  program.info = info;
  program.least_driver = 12000;
  status = aotc_cuda_open(&program, 0, &opened, message, sizeof message);
  printf("%d %s\n", status, message);
  if ((opened == NULL) != (status != AOTC_OK)) return 1;
  aotc_cuda_close(opened);
  if (aotc_cuda_open(&program, 0, &opened, NULL, 0) != status) return 2;
  aotc_cuda_close(opened);
  if (aotc_cuda_open(&program, 0, &opened, cut, sizeof cut) != status) return 3;
  if (strlen(cut) >= sizeof cut || strncmp(cut, message, strlen(cut)) != 0)
    return 4;
  aotc_cuda_close(opened);
  if (aotc_cuda_open(NULL, 0, &opened, message, sizeof message) !=
          AOTC_ERROR_NULL_ARGUMENT ||
      strcmp(message, aotc_status_message(AOTC_ERROR_NULL_ARGUMENT)) != 0)
    return 5;
  if (aotc_cuda_session_open(NULL, &session) != AOTC_ERROR_NULL_ARGUMENT)
    return 6;
  if (aotc_cuda_run(NULL, NULL, NULL, NULL) != AOTC_ERROR_NULL_ARGUMENT)
    return 7;
  aotc_cuda_session_close(NULL);
  aotc_cuda_close(NULL);
  return 0;
}
