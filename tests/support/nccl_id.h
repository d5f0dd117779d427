/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's unique id as a word of a command line.
 */
#ifndef DSC_TEST_NCCL_ID_H
#define DSC_TEST_NCCL_ID_H

#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace nccl_id {

inline std::string to_hex(const ncclUniqueId &id)
{
    std::string hex;
    char two[3];

    for (unsigned char c : id.internal) {
        snprintf(two, sizeof(two), "%02x", c);
        hex += two;
    }
    return hex;
}

/* False: not what to_hex() makes. */
inline bool from_hex(const char *hex, ncclUniqueId *id)
{
    if (strlen(hex) != 2 * sizeof(id->internal))
        return false;
    for (size_t i = 0; i < sizeof(id->internal); i++) {
        unsigned byte = 0;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        id->internal[i] = static_cast<char>(byte);
    }
    return true;
}

} // namespace nccl_id

#endif
