/* SPDX-License-Identifier: Apache-2.0 */
/* The same library from C++: the error text crosses the boundary. */
#include <dscomm/dscomm.h>

#include <cstdio>
#include <string>

int main()
{
    if (dscomm_codec("nonsense") != nullptr)
        return 1;
    const std::string text = dscomm_last_error();

    std::printf("%s\n", text.c_str());
    return text.find("nonsense") == std::string::npos;
}
