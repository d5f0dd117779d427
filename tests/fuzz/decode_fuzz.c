/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a peer's message and as input of an encoder. What must hold: no access outside
 * exact-size buffers, the same result twice and in spans, canonical NaNs only, whole units of
 * poison, no NaN out of finite input. Aborts at the first violation.
 *
 *     byte 0: codec, 1: exponent, 2-3: elements, 4-: message or float32 elements, zeros when short
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address -DDSC_LIBFUZZER. Without: files and folders named
 * on the command line are run once each, then --runs=N random changes of them.
 */
#include "codec/codec.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 4
#define ELEMS_MAX 5000
#define INPUT_BYTES_MAX (HEAD_BYTES + 4 * ELEMS_MAX)
#define CORPUS_MAX 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            (void)fprintf(stderr, "decode_fuzz: %s, codec %s, %zu elements\n", #cond, codec->spec, \
                          n);                                                                      \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static bool is_nan(float x)
{
    return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}

static bool is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* [bytes] bytes, 16-byte aligned, of exactly that size: what is beyond belongs to the sanitizer. */
static void *exact(size_t bytes, int fill)
{
    void *ptr = NULL;

    if (posix_memalign(&ptr, 16, bytes > 0 ? bytes : 1) != 0)
        exit(2);
    memset(ptr, fill, bytes);
    return ptr;
}

static void *exact_copy(size_t bytes, const uint8_t *data, size_t size)
{
    void *const ptr = exact(bytes, 0);

    memcpy(ptr, data, dsc_min_size(bytes, size));
    return ptr;
}

static void decode_in_spans(const struct dsc_codec *codec, const struct dsc_msg *msg, float *dst)
{
    const size_t step = 3 * (size_t)codec->tile_align;

    for (size_t at = 0; at < msg->n; at += step)
        codec->ops->decode(codec, msg, at, dsc_min_size(step, msg->n - at), dst + at);
}

static void check_decode(const struct dsc_codec *codec, int exponent, size_t n, const uint8_t *data,
                         size_t size)
{
    const size_t bytes = codec->ops->message_bytes(codec, n);
    const struct dsc_msg msg = { exact_copy(bytes, data, size), n, exponent };
    uint8_t *const before = exact_copy(bytes, data, size);
    float *const d = exact(n * sizeof(float), 0x11);
    float *const again = exact(n * sizeof(float), 0x22);
    float *const sum = exact(n * sizeof(float), 0);

    codec->ops->decode(codec, &msg, 0, n, d);
    decode_in_spans(codec, &msg, again);
    codec->ops->decode_add(codec, &msg, 0, n, sum);
    REQUIRE(memcmp(d, again, n * sizeof(float)) == 0);
    REQUIRE(memcmp(msg.bytes, before, bytes) == 0);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(!is_nan(d[i]) || bits_of(d[i]) == 0x7fc00000u);
        REQUIRE(is_nan(d[i]) == is_nan(d[i - i % codec->block]));
        REQUIRE(is_nan(d[i]) ? is_nan(sum[i]) : sum[i] == d[i]);
    }
    free(msg.bytes);
    free(before);
    free(d);
    free(again);
    free(sum);
}

static void check_encode(const struct dsc_codec *codec, int exponent, size_t n, const uint8_t *data,
                         size_t size)
{
    const size_t bytes = codec->ops->message_bytes(codec, n);
    const struct dsc_msg one = { exact(bytes, 0x33), n, exponent };
    const struct dsc_msg two = { exact(bytes, 0x44), n, exponent };
    float *const x = exact_copy(n * sizeof(float), data, size);
    float *const d = exact(n * sizeof(float), 0x55);
    float *const r = exact(n * sizeof(float), 0);

    codec->ops->encode(codec, &one, 0, n, x, d);
    codec->ops->encode_feedback(codec, &two, 0, n, x, r, 1.0f, r, 1);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(is_finite(r[i]));
        REQUIRE(!is_nan(x[i]) || is_nan(d[i]));
        REQUIRE(is_finite(x[i]) || !is_finite(d[i]));
        REQUIRE(codec->block > 1 || !is_nan(d[i]) || is_nan(x[i]));
    }
    /* x + 1*0 is x but for the sign of zero, which only the casts send. */
    REQUIRE(codec->block == 1 || memcmp(one.bytes, two.bytes, bytes) == 0);
    codec->ops->encode(codec, &two, 0, n, x, NULL);
    REQUIRE(memcmp(one.bytes, two.bytes, bytes) == 0);
    codec->ops->decode(codec, &one, 0, n, x);
    REQUIRE(memcmp(x, d, n * sizeof(float)) == 0);
    free(one.bytes);
    free(two.bytes);
    free(x);
    free(d);
    free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n_specs;
    const char *const *const specs = dsc_codec_test_specs(&n_specs);

    if (size < HEAD_BYTES)
        return 0;

    const struct dsc_codec *const codec = dscomm_codec(specs[data[0] % n_specs]);
    const int exponent = data[1] % 17;
    const size_t n = (data[2] | (size_t)data[3] << 8) % (ELEMS_MAX + 1);

    check_decode(codec, exponent, n, data + HEAD_BYTES, size - HEAD_BYTES);
    check_encode(codec, exponent, n, data + HEAD_BYTES, size - HEAD_BYTES);
    return 0;
}

#ifndef DSC_LIBFUZZER
struct input {
    uint8_t *data;
    size_t size;
};
static struct input corpus[CORPUS_MAX];
static size_t n_corpus;

static bool load_file(const char *path)
{
    FILE *const file = fopen(path, "rb");

    if (file == NULL || n_corpus == CORPUS_MAX) {
        (void)fprintf(stderr, "decode_fuzz: cannot take %s\n", path);
        if (file != NULL)
            (void)fclose(file);
        return false;
    }

    struct input *const in = &corpus[n_corpus++];

    in->data = exact(INPUT_BYTES_MAX, 0);
    in->size = fread(in->data, 1, INPUT_BYTES_MAX, file);
    (void)fclose(file);
    return true;
}

static bool load_path(const char *path)
{
    DIR *const dir = opendir(path);
    const struct dirent *entry;
    bool is_ok = true;

    if (dir == NULL)
        return load_file(path);
    while ((entry = readdir(dir)) != NULL) {
        char name[4096];
        const int len = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);

        if (entry->d_name[0] != '.' && len > 0 && (size_t)len < sizeof(name))
            is_ok &= load_file(name);
    }
    (void)closedir(dir);
    return is_ok;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Changes some bytes, the head sometimes included, and sometimes the size. */
static void run_changed(const struct input *in, uint64_t *state)
{
    uint8_t *const data = exact_copy(INPUT_BYTES_MAX, in->data, in->size);
    const size_t size =
        next_random(state) % 4 == 0 ? next_random(state) % INPUT_BYTES_MAX : in->size;
    const uint32_t n_changes = next_random(state) % 64;

    for (uint32_t i = 0; i < n_changes; i++) {
        const size_t range = i < 2 ? HEAD_BYTES : size;

        if (range > 0)
            data[next_random(state) % range] = (uint8_t)next_random(state);
    }
    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
}

int main(int argc, char **argv)
{
    uint64_t state = 1;
    long runs = 0;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--runs=", 7) == 0)
            runs = strtol(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            state = strtoull(argv[i] + 7, NULL, 10);
        else if (!load_path(argv[i]))
            return 2;
    }
    if (n_corpus == 0) {
        (void)fprintf(stderr, "usage: decode_fuzz [--runs=N] [--seed=N] FILE_OR_FOLDER...\n");
        return 2;
    }
    (void)dsc_fp_enter();
    for (size_t i = 0; i < n_corpus; i++)
        (void)LLVMFuzzerTestOneInput(corpus[i].data, corpus[i].size);
    for (long i = 0; i < runs; i++)
        run_changed(&corpus[next_random(&state) % n_corpus], &state);
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    (void)printf("%zu files, %ld changed, all held\n", n_corpus, runs);
    return 0;
}
#endif
