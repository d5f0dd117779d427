/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire codecs of the net plugin: any content comes back as it was; a peer's bytes, damaged or
 * cut short, are an error or some content, never a read or write outside (under AddressSanitizer).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_codec.h"
#include "net_lines.h"

static uint64_t state = 1;

static uint64_t draw(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

#define CHECK(cond)                                                                    \
    do {                                                                               \
        if (!(cond)) {                                                                 \
            fprintf(stderr, "%s:%d: %s, seed state %llx\n", __FILE__, __LINE__, #cond, \
                    (unsigned long long)state);                                        \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Every byte below `spread`, so that planes have something to save; flags where lines have them. */
static void make(uint8_t *data, size_t bytes, unsigned spread, enum net_codec codec)
{
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(draw() % spread);
        if (codec == NET_CODEC_LL && i % 8 >= 4)
            data[i] = (uint8_t)(i % 4 + 1);
        if (codec == NET_CODEC_LL128 && i % 128 >= 120)
            data[i] = (uint8_t)(i % 8 + 1);
    }
}

static size_t draw_bytes(enum net_codec codec)
{
    const size_t bytes = 1 + draw() % 100000;

    if (codec == NET_CODEC_LL)
        return (bytes / NET_LL_BYTES + 1) * NET_LL_BYTES;
    return codec == NET_CODEC_LL128 ? (bytes / NET_LL128_BYTES + 1) * NET_LL128_BYTES : bytes;
}

static void damage(const uint8_t *packed, size_t used, size_t bytes, enum net_codec codec)
{
    const size_t n = draw() % 4 == 0 ? draw() % (used + 1) : used;
    uint8_t *const copy = malloc(n + (n == 0)), *const out =
                                                    aligned_alloc(128, (bytes + 127) / 128 * 128);

    memcpy(copy, packed, n);
    for (int i = 0; i < 3 && n > 0; i++)
        copy[draw() % (draw() % 2 ? n : n < 64 ? n : 64)] ^= (uint8_t)(1u << draw() % 8);
    /* Lines have a length that is told; the rest is looked at inside. */
    (void)net_unpack(out, bytes, copy, n, codec);
    free(copy);
    free(out);
}

int main(void)
{
    int n_packed = 0;

    for (int round = 0; round < 1500; round++) {
        const enum net_codec codec = (enum net_codec)(1 + round % (NET_CODECS - 1));
        const size_t bytes = draw_bytes(codec);
        uint8_t *const data = aligned_alloc(128, (bytes + 127) / 128 * 128);
        uint8_t *const out = aligned_alloc(128, (bytes + 127) / 128 * 128);
        uint8_t *const packed = malloc(net_pack_room(bytes));
        size_t used;

        make(data, bytes, 1u + (unsigned)(draw() % 256), codec);
        used = net_pack(packed, data, bytes, codec);
        CHECK(used < bytes || used <= net_pack_room(bytes));
        if (used != 0) {
            n_packed++;
            memset(out, 0x55, bytes);
            CHECK(net_unpack(out, bytes, packed, used, codec) == NULL);
            CHECK(memcmp(out, data, bytes) == 0);
            for (int i = 0; i < 10; i++)
                damage(packed, used, bytes, codec);
        }
        (void)(bytes >= 16384 && net_pack_choose(data, bytes));
        free(data);
        free(out);
        free(packed);
    }
    CHECK(n_packed > 500);
    printf("%d messages packed\n", n_packed);
    return 0;
}
