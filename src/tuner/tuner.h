/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a decision about a call is made from.
 *
 *   rates.h rates.c rates_fields.c    what was measured: check, merge, bytes
 *   profile.h profile*.c fingerprint.c    the same in a file, and which machine it is of
 */
#ifndef DSC_TUNER_H
#define DSC_TUNER_H

#include "tuner/profile.h"
#include "tuner/rates.h"

#endif
