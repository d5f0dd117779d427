/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a decision about a call is made from.
 *
 *   rates.h rates.c    what was measured: check, merge, bytes
 */
#ifndef DSC_TUNER_H
#define DSC_TUNER_H

#include "tuner/rates.h"

#endif
