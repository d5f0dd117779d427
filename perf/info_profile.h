/* SPDX-License-Identifier: Apache-2.0 */
/* Private to dscomm_info: its part about profiles. */
#ifndef INFO_PROFILE_H
#define INFO_PROFILE_H

/* dscomm_info --profile: argv[0] is "--profile", files follow. Returns the exit code. */
int info_profile(int argc, char **argv);

#endif
