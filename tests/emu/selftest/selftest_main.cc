// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main. Planted bugs die in a process of their own, which is started afresh: a fork
// would share device memory with this one. With an argument it is the other process of a test.
#include "emu/selftest/selftest.h"
#include <stdlib.h>
#include <string.h>

int ipc_child(const char *handle_in_hex);

bool is_lazy()
{
    return getenv("CUDAEMU_LAZY") != nullptr;
}

const char *thread_order()
{
    const char *e = getenv("CUDAEMU_SCHED");

    return e ? e : "fwd";
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--ipc") == 0)
        return ipc_child(argv[2]);
    testing::InitGoogleTest(&argc, argv);
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    return RUN_ALL_TESTS();
}
