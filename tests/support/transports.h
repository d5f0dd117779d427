/* SPDX-License-Identifier: Apache-2.0 */
/* Transports that a suite runs over. */
#ifndef DSC_TESTS_TRANSPORTS_H
#define DSC_TESTS_TRANSPORTS_H

#include <cstdlib>
#include <vector>

/* Those, and nccl_net where a net plugin is given: a run of its own for each plugin. */
inline std::vector<const char *> and_net_plugin(std::vector<const char *> transports)
{
    if (std::getenv("DSCOMM_NET_PLUGIN") != nullptr)
        transports.push_back("nccl_net");
    return transports;
}

#endif
