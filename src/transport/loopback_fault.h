/* SPDX-License-Identifier: Apache-2.0 */
/* Private to loopback: the fault that a test has armed. */
#ifndef DSC_LOOPBACK_FAULT_H
#define DSC_LOOPBACK_FAULT_H

#include "transport/transport.h"

/* What becomes of the message that `rank` is about to post; counts it. Kind of struct dsc_fault. */
int dsc_loopback_take_fault(int rank, int *delay_ms_out);

#endif
