/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sizes of the public enums, the version, words, and the hash that stands for a text. */
#include "core/core.h"

#include <string.h>

#define FNV_OFFSET 0xcbf29ce484222325u
#define FNV_PRIME 0x100000001b3u

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [DSCOMM_FLOAT32] = { "fp32", 4 },
    [DSCOMM_FLOAT16] = { "fp16", 2 },
    [DSCOMM_BFLOAT16] = { "bf16", 2 },
};

static const char *const ops[] = {
    [DSCOMM_SUM] = "sum",
    [DSCOMM_AVG] = "avg",
    [DSCOMM_MAX] = "max",
    [DSCOMM_MIN] = "min",
};

const char *dscomm_version(void)
{
    return VERSION_TEXT(DSCOMM_VERSION_MAJOR, DSCOMM_VERSION_MINOR, DSCOMM_VERSION_PATCH);
}

bool dsc_is_word_of(const char *words, const char *text)
{
    const size_t len = strlen(text);

    for (const char *word = words; *word != '\0';) {
        const size_t word_len = strcspn(word, " ");

        if (word_len == len && memcmp(word, text, len) == 0)
            return true;
        word += word_len;
        word += strspn(word, " ");
    }
    return false;
}

uint64_t dsc_hash_text(const char *text)
{
    uint64_t hash = FNV_OFFSET;

    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * FNV_PRIME;
    return hash;
}

const char *dsc_dtype_name(dscomm_dtype_t dtype)
{
    return (size_t)dtype < DSC_ARRAY_LEN(dtypes) ? dtypes[dtype].name : "?";
}

const char *dsc_op_name(dscomm_op_t op)
{
    return (size_t)op < DSC_ARRAY_LEN(ops) ? ops[op] : "?";
}

size_t dsc_dtype_bytes(dscomm_dtype_t dtype)
{
    return (size_t)dtype < DSC_ARRAY_LEN(dtypes) ? dtypes[dtype].bytes : 0;
}
