/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels that threads share need; not for callers. */
#ifndef AOTC_TEAM_H
#define AOTC_TEAM_H

#include "aotc.h"

/* A barrier: the threads of a team wait for each other. */
#define AOTC_TEAM_SYNC(team)                                                   \
  do {                                                                         \
    if ((team)->parts > 1) (team)->wait((team)->context);                      \
  } while (0)

#endif
