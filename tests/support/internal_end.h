/* SPDX-License-Identifier: Apache-2.0 */
/* Closes what internal_begin.h opened. */
}
#undef _Static_assert
#undef _Atomic
