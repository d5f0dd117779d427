/* SPDX-License-Identifier: Apache-2.0 */
#include "net_lines.h"

#include <string.h>

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static bool is_ll(const uint8_t *data, size_t bytes)
{
    const uint32_t flag = bytes >= NET_LL_BYTES ? load32(data + 4) : 0;

    if (flag == 0 || bytes % NET_LL_BYTES != 0)
        return false;
    for (size_t at = 0; at < bytes; at += NET_LL_BYTES) {
        if (load32(data + at + 4) != flag || load32(data + at + 12) != flag)
            return false;
    }
    return true;
}

static bool is_ll128(const uint8_t *data, size_t bytes)
{
    const size_t flag_at = NET_LL128_BYTES - sizeof(uint64_t);
    const uint64_t flag = bytes >= NET_LL128_BYTES ? load64(data + flag_at) : 0;

    if (flag == 0 || bytes % NET_LL128_BYTES != 0)
        return false;
    for (size_t at = 0; at < bytes; at += NET_LL128_BYTES) {
        if (load64(data + at + flag_at) != flag)
            return false;
    }
    return true;
}

enum net_lines net_lines_kind(const void *data, size_t bytes)
{
    if (is_ll(data, bytes))
        return NET_LINES_LL;
    return is_ll128(data, bytes) ? NET_LINES_LL128 : NET_LINES_NONE;
}

static void publish_word(uint64_t *dst, const uint8_t *src, int order)
{
    if (order == __ATOMIC_RELEASE)
        __atomic_store_n(dst, load64(src), __ATOMIC_RELEASE);
    else
        __atomic_store_n(dst, load64(src), __ATOMIC_RELAXED);
}

void net_lines_publish(void *dst, const void *src, size_t bytes)
{
    const size_t n_words = bytes / sizeof(uint64_t);
    uint64_t *const words = dst;
    const uint8_t *const from = src;
    size_t i = 0;

    if (bytes == 0)
        return;
    if ((uintptr_t)dst % sizeof(uint64_t) != 0) { /* no lines: those are aligned */
        memcpy(dst, src, bytes);
        return;
    }
    for (; i + NET_LL128_WORDS <= n_words; i += NET_LL128_WORDS) {
        for (size_t k = 0; k < NET_LL128_WORDS - 1; k++)
            publish_word(words + i + k, from + (i + k) * sizeof(uint64_t), __ATOMIC_RELAXED);
        publish_word(words + i + NET_LL128_WORDS - 1,
                     from + (i + NET_LL128_WORDS - 1) * sizeof(uint64_t), __ATOMIC_RELEASE);
    }
    for (; i < n_words; i++)
        publish_word(words + i, from + i * sizeof(uint64_t), __ATOMIC_RELEASE);
    memcpy((uint8_t *)dst + n_words * sizeof(uint64_t), from + n_words * sizeof(uint64_t),
           bytes % sizeof(uint64_t));
}
