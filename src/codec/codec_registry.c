/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of codecs and the public functions on them. A codec is a const row: parsing finds it by
 * its text, so equal specs give the same pointer, nothing is allocated and any thread may parse.
 */
#include "codec/codec.h"

#include <stdio.h>
#include <string.h>

/* Larger vectors could overflow a size in bytes; no memory holds one. */
#define ELEMS_MAX (SIZE_MAX / 16)

#define CAST_ROW(name, none, exact, error)                                      \
    {                                                                           \
        .ops = &dsc_codec_##name, .spec = #name, .block = 1, .is_none = (none), \
        .lossless = (exact), .tile_align = 1, .e0 = (error)                     \
    }
#define BLOCK_ROW(name, text, elems, error)                                                \
    {                                                                                      \
        .ops = &dsc_codec_##name, .spec = (text), .block = (elems), .tile_align = (elems), \
        .e0 = (error)                                                                      \
    }

enum { CODEC_NONE, CODEC_FP32, CODEC_FP16, CODEC_BF16, CODEC_INT8, CODEC_INT4, CODEC_FP8 };

static const struct dsc_codec codecs[] = {
    [CODEC_NONE] = CAST_ROW(none, true, true, 0.0),
    [CODEC_FP32] = CAST_ROW(fp32, false, true, 0.0),
    [CODEC_FP16] = CAST_ROW(fp16, false, false, 3e-4),
    [CODEC_BF16] = CAST_ROW(bf16, false, false, 2e-3),
    [CODEC_INT8] = BLOCK_ROW(int8, "int8", 256, 0.0075),
    [CODEC_INT4] = BLOCK_ROW(int4, "int4", 64, 0.11),
    [CODEC_FP8] = BLOCK_ROW(fp8_e4m3, "fp8", 256, 0.026),
    BLOCK_ROW(int8, "int8:block=128", 128, 0.0075),
    BLOCK_ROW(int8, "int8:block=64", 64, 0.0075),
    BLOCK_ROW(int8, "int8:block=32", 32, 0.0075),
    BLOCK_ROW(int8, "int8:block=16", 16, 0.0075),
    BLOCK_ROW(int4, "int4:block=256", 256, 0.13),
    BLOCK_ROW(int4, "int4:block=128", 128, 0.118),
    BLOCK_ROW(int4, "int4:block=32", 32, 0.097),
    BLOCK_ROW(int4, "int4:block=16", 16, 0.086),
    BLOCK_ROW(fp8_e5m2, "fp8:e5m2", 256, 0.052),
};

/* Texts that are understood but not canonical. */
static const struct {
    const char *text;
    const struct dsc_codec *codec;
} aliases[] = {
    { "int8:block=256", &codecs[CODEC_INT8] },
    { "int4:block=64", &codecs[CODEC_INT4] },
    { "fp8:e4m3", &codecs[CODEC_FP8] },
};

/* New ones go to the end: files of tests/fuzz/corpus hold indices. */
static const char *const test_specs[] = {
    "none",           "fp32",           "fp16",          "bf16",
    "int8",           "int8:block=16",  "int8:block=64", "int8:block=128",
    "int8:block=32",  "int4",           "int4:block=16", "int4:block=32",
    "int4:block=128", "int4:block=256", "fp8",           "fp8:e5m2",
};

/* What an error says: X(family, its options in short, and in words; NULL: it has none). */
#define BLOCK_SIZES "N one of 16 32 64 128 256"
#define FAMILIES(X)                                  \
    X("none", "", NULL)                              \
    X("fp32", "", NULL)                              \
    X("fp16", "", NULL)                              \
    X("bf16", "", NULL)                              \
    X("int8", "[:block=N]", "block=N, " BLOCK_SIZES) \
    X("int4", "[:block=N]", "block=N, " BLOCK_SIZES) \
    X("fp8", "[:e5m2]", "e4m3, the default, or e5m2")

#define FAMILY_TEXT(name, form, options) name form " "
#define ALLOWED FAMILIES(FAMILY_TEXT) "with " BLOCK_SIZES

#define FAMILY_ROW(name, form, options) { name, options },
static const struct {
    const char *name, *options;
} families[] = { FAMILIES(FAMILY_ROW) };

static const struct dsc_codec *find(const char *spec)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(codecs); i++) {
        if (strcmp(spec, codecs[i].spec) == 0)
            return &codecs[i];
    }
    for (size_t i = 0; i < DSC_ARRAY_LEN(aliases); i++) {
        if (strcmp(spec, aliases[i].text) == 0)
            return aliases[i].codec;
    }
    return NULL;
}

/* Quotes what can be printed and stops after a line's worth; specs come from command lines. */
static void quote(char *dst, size_t dst_bytes, const char *text)
{
    const size_t len = strnlen(text, dst_bytes);
    const size_t shown = len < dst_bytes - 6 ? len : dst_bytes - 6;

    dst[0] = '"';
    for (size_t i = 0; i < shown; i++)
        dst[1 + i] = text[i];
    for (size_t i = 1; i <= shown; i++) {
        if (dst[i] < ' ' || dst[i] > '~')
            dst[i] = '?';
    }
    (void)snprintf(dst + 1 + shown, dst_bytes - 1 - shown, shown < len ? "...\"" : "\"");
}

static dscomm_status_t fail_unknown(const char *spec)
{
    const size_t name_len = strcspn(spec, ":,");
    char shown[80];

    quote(shown, sizeof(shown), spec);
    for (size_t i = 0; spec[name_len] != '\0' && i < DSC_ARRAY_LEN(families); i++) {
        const char *const name = families[i].name;

        if (strlen(name) == name_len && strncmp(spec, name, name_len) == 0)
            return dsc_fail(DSCOMM_ERR_INVALID, "codec %s: %s takes %s", shown, name,
                            families[i].options != NULL ? families[i].options : "no options");
    }
    return dsc_fail(DSCOMM_ERR_INVALID, "codec %s is not known; allowed: " ALLOWED, shown);
}

dscomm_status_t dscomm_codec_parse(const char *spec, const dscomm_codec_t **codec_out)
{
    if (spec == NULL || codec_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "codec %s is NULL; allowed: " ALLOWED,
                        spec == NULL ? "spec" : "output");

    const struct dsc_codec *const codec = find(spec);

    if (codec == NULL)
        return fail_unknown(spec);
    *codec_out = codec;
    return DSCOMM_OK;
}

const dscomm_codec_t *dscomm_codec(const char *spec)
{
    const dscomm_codec_t *codec = NULL;

    return dscomm_codec_parse(spec, &codec) == DSCOMM_OK ? codec : NULL;
}

const char *dscomm_codec_spec(const dscomm_codec_t *codec)
{
    return codec == NULL ? codecs[CODEC_NONE].spec : codec->spec;
}

size_t dscomm_codec_bound(const dscomm_codec_t *codec, size_t n)
{
    if (codec == NULL)
        codec = &codecs[CODEC_NONE];
    return n <= ELEMS_MAX ? dsc_codec_message_bytes(codec, n) : SIZE_MAX - 15;
}

/* An array of a call: there, unless nothing is read or written, and aligned. */
static dscomm_status_t check_array(const char *name, const void *ptr, size_t n, size_t align)
{
    if (ptr == NULL && n > 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL for %zu elements", name, n);
    if ((uintptr_t)ptr % align != 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s %p is not aligned to %zu bytes", name, ptr, align);
    return DSCOMM_OK;
}

static dscomm_status_t check_call(const dscomm_codec_t *codec, const void *bytes, const char *role,
                                  const void *floats, const char *floats_role, size_t n)
{
    if (codec == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "codec is NULL");
    if (n > ELEMS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "%zu elements, at most %zu", n, ELEMS_MAX);
    DSC_TRY(check_array(role, bytes, n, 16));
    return check_array(floats_role, floats, n, sizeof(float));
}

dscomm_status_t dscomm_encode(const dscomm_codec_t *codec, void *dst, size_t dst_bytes,
                              const float *src, size_t n, size_t *written_out)
{
    DSC_TRY(check_call(codec, dst, "dst", src, "src", n));
    if (written_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "written_out is NULL");

    const size_t need_bytes = dsc_codec_message_bytes(codec, n);
    const struct dsc_msg msg = { .bytes = dst, .n = n, .exponent = 0 };

    if (dst_bytes < need_bytes)
        return dsc_fail(DSCOMM_ERR_INVALID, "dst has %zu bytes, %s of %zu elements needs %zu",
                        dst_bytes, codec->spec, n, need_bytes);
    if (n > 0) {
        const uint32_t saved = dsc_fp_enter();

        codec->ops->encode(codec, &msg, 0, n, src, NULL);
        dsc_fp_leave(saved);
    }
    *written_out = need_bytes;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_decode(const dscomm_codec_t *codec, float *dst, size_t n, const void *src,
                              size_t src_bytes)
{
    DSC_TRY(check_call(codec, src, "src", dst, "dst", n));

    const size_t need_bytes = dsc_codec_message_bytes(codec, n);
    /* Decoding only reads; struct dsc_msg serves both directions. */
    const struct dsc_msg msg = { .bytes = (uint8_t *)(uintptr_t)src, .n = n, .exponent = 0 };

    if (src_bytes != need_bytes)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "message has %zu bytes, %s of %zu elements has %zu",
                        src_bytes, codec->spec, n, need_bytes);
    if (n > 0) {
        const uint32_t saved = dsc_fp_enter();

        codec->ops->decode(codec, &msg, 0, n, dst, 0);
        dsc_fp_leave(saved);
    }
    return DSCOMM_OK;
}

size_t dsc_codec_decode_output(const struct dsc_codec *codec, const struct dsc_msg *msg,
                               size_t first, size_t n, float *dst, float a, unsigned flags)
{
    const struct dsc_codec_ops *const ops = codec->ops;
    const size_t step = dsc_max_size(DSC_TILE_ELEMS, codec->tile_align);
    size_t n_bad = 0;

    if (ops->stays_finite != NULL && ops->stays_finite(codec, msg, first, n, a)) {
        ops->decode(codec, msg, first, n, dst, flags);
        return 0;
    }
    for (size_t at = 0; at < n; at += step) { /* counted while the tile is in the first cache */
        const size_t len = dsc_min_size(step, n - at);

        ops->decode(codec, msg, first + at, len, dst + at, 0);
        n_bad += dsc_kernels_get()->count_nonfinite(dst + at, a, len);
    }
    return n_bad;
}

void dsc_codec_pad(uint8_t *part, size_t used_bytes)
{
    memset(part + used_bytes, 0, dsc_round_up(used_bytes, 16) - used_bytes);
}

const struct dsc_codec *dsc_codec_resolve(const struct dsc_codec *codec, dscomm_dtype_t dtype)
{
    if (!codec->is_none)
        return codec;
    switch (dtype) {
    case DSCOMM_FLOAT32:
        return &codecs[CODEC_FP32];
    case DSCOMM_FLOAT16:
        return &codecs[CODEC_FP16];
    case DSCOMM_BFLOAT16:
        return &codecs[CODEC_BF16];
    }
    DSC_ASSERT(dsc_dtype_bytes(dtype) != 0); /* callers check data types */
    return codec;
}

const char *const *dsc_codec_test_specs(size_t *n_out)
{
    *n_out = DSC_ARRAY_LEN(test_specs);
    return test_specs;
}
