/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of families and the public functions on codecs. A codec is a const row of its family,
 * found by its text, or made by its family and interned. Either way equal specs give the same
 * pointer, nothing is allocated and any thread may parse.
 */
#include "codec/codec.h"

#include <stdio.h>
#include <string.h>

/* Larger vectors could overflow a size in bytes; no memory holds one. */
#define ELEMS_MAX (SIZE_MAX / 16)

static const struct dsc_family *const families[] = {
    &dsc_family_none,     &dsc_family_fp32,   &dsc_family_fp16,  &dsc_family_bf16,
    &dsc_family_int8,     &dsc_family_int4,   &dsc_family_fp8,   &dsc_family_mxfp8,
    &dsc_family_mxfp4,    &dsc_family_mxint8, &dsc_family_nvfp4, &dsc_family_topk,
    &dsc_family_lossless, &dsc_family_auto,
};

/* New ones go to the end: files of tests/fuzz/corpus hold indices. */
static const char *const test_specs[] = {
    "none",
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "int8:block=16",
    "int8:block=64",
    "int8:block=128",
    "int8:block=32",
    "int4",
    "int4:block=16",
    "int4:block=32",
    "int4:block=128",
    "int4:block=256",
    "fp8",
    "fp8:e5m2",
    "int8,hadamard",
    "int8:block=16,hadamard",
    "int4,hadamard",
    "int4:block=16,hadamard",
    "int4:block=256,hadamard",
    "fp8,hadamard",
    "fp8:e5m2,hadamard",
    "int8,sr",
    "int8:block=16,sr",
    "int4,sr",
    "int4:block=32,sr",
    "int4:signed",
    "topk:0.01",
    "topk:0.001,int8",
    "topk:k=700,fp8",
    "mxfp8",
    "mxfp8,ceil",
    "mxfp8:e5m2",
    "mxfp8:e5m2,ceil",
    "mxfp4",
    "mxfp4,ceil",
    "mxint8",
    "mxint8,ceil",
    "nvfp4",
    "topk:0.01,position",
    "topk:0.01,reuse",
    "lossless",
    "int8,entropy",
};

/* The family with the spec's first word, which ends at ':' or ','; NULL: there is none. */
static const struct dsc_family *find_family(const char *spec, size_t name_len)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(families); i++) {
        const char *const name = families[i]->name;

        if (strlen(name) == name_len && strncmp(spec, name, name_len) == 0)
            return families[i];
    }
    return NULL;
}

/* The spec without a default that is spelled out: int8:block=256,hadamard is int8,hadamard. */
static void leave_out_default(const struct dsc_family *family, const char *options, char *dst,
                              size_t dst_bytes)
{
    const char *const given = family->default_option;
    const size_t len = given != NULL ? strlen(given) : 0;
    const bool is_given =
        given != NULL && strncmp(options, given, len) == 0 && strchr(",", options[len]) != NULL;

    (void)snprintf(dst, dst_bytes, "%s%s", family->name, is_given ? options + len : options);
}

static const struct dsc_codec *find_codec(const struct dsc_family *family, const char *options)
{
    char spec[sizeof(family->rows->spec) + 1]; /* a longer one is cut and still equals no row */

    leave_out_default(family, options, spec, sizeof(spec));
    for (size_t i = 0; i < family->n_rows; i++) {
        if (strcmp(spec, family->rows[i].spec) == 0)
            return &family->rows[i];
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

/* "none fp32 ... int8[:block=N]": the families and how their options look. */
static void list_allowed(char *dst, size_t dst_bytes)
{
    size_t used = 0;

    for (size_t i = 0; i < DSC_ARRAY_LEN(families) && used < dst_bytes; i++)
        used += (size_t)snprintf(dst + used, dst_bytes - used, "%s%s%s", i > 0 ? " " : "",
                                 families[i]->name, families[i]->form);
    if (used < dst_bytes)
        (void)snprintf(dst + used, dst_bytes - used, " with " DSC_BLOCK_SIZES);
}

static dscomm_status_t fail_null(const char *what)
{
    char allowed[400];

    list_allowed(allowed, sizeof(allowed));
    return dsc_fail(DSCOMM_ERR_INVALID, "codec %s is NULL; allowed: %s", what, allowed);
}

static dscomm_status_t fail_unknown(const char *spec)
{
    char shown[80], allowed[400];

    quote(shown, sizeof(shown), spec);
    list_allowed(allowed, sizeof(allowed));
    return dsc_fail(DSCOMM_ERR_INVALID, "codec %s is not known; allowed: %s", shown, allowed);
}

static dscomm_status_t fail_options(const struct dsc_family *family, const char *spec,
                                    const char *allowed)
{
    char shown[80];

    quote(shown, sizeof(shown), spec);
    return dsc_fail(DSCOMM_ERR_INVALID, "codec %s: %s takes %s", shown, family->name,
                    allowed != NULL ? allowed : "no options");
}

/* Of a family whose options are free numbers. */
static dscomm_status_t make_codec(const struct dsc_family *family, const char *spec,
                                  const char *options, const struct dsc_codec **codec_out)
{
    struct dsc_codec made;
    const char *const allowed = family->parse(options, &made);
    const struct dsc_codec *codec;

    if (allowed != NULL)
        return fail_options(family, spec, allowed);
    codec = dsc_codec_intern(&made);
    if (codec == NULL)
        return dsc_fail(DSCOMM_ERR_LIMIT,
                        "codec \"%s\": at most %d specs with numbers of their own", made.spec,
                        DSC_INTERNED_MAX);
    *codec_out = codec;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_codec_parse(const char *spec, const dscomm_codec_t **codec_out)
{
    if (spec == NULL || codec_out == NULL)
        return fail_null(spec == NULL ? "spec" : "output");

    const size_t name_len = strcspn(spec, ":,");
    const struct dsc_family *const family = find_family(spec, name_len);

    if (family == NULL)
        return fail_unknown(spec);
    if (family->parse != NULL)
        return make_codec(family, spec, spec + name_len, codec_out);

    const struct dsc_codec *const codec = find_codec(family, spec + name_len);

    if (codec == NULL)
        return fail_options(family, spec, family->options);
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
    return codec == NULL ? dsc_family_none.rows->spec : codec->spec;
}

size_t dscomm_codec_bound(const dscomm_codec_t *codec, size_t n)
{
    if (codec == NULL)
        codec = dsc_family_none.rows;
    return n <= ELEMS_MAX && !codec->is_auto ? dsc_codec_message_bytes(codec, n) : SIZE_MAX - 15;
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
    if (codec->is_auto)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "codec %s has no messages: it lets a communicator choose one for its "
                        "allreduces",
                        codec->spec);
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
    *written_out = dsc_codec_used_bytes(codec, &msg);
    return DSCOMM_OK;
}

static dscomm_status_t check_size(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                  size_t bytes)
{
    const size_t need_bytes = codec->variable ? codec->ops->used_bytes(codec, msg, bytes)
                                              : dsc_codec_message_bytes(codec, msg->n);

    if (bytes == need_bytes)
        return DSCOMM_OK;
    return dsc_fail(DSCOMM_ERR_CORRUPT, "message has %zu bytes, %s of %zu elements has %zu%s",
                    bytes, codec->spec, msg->n, need_bytes,
                    codec->variable ? ", or more, by its own table" : "");
}

dscomm_status_t dscomm_decode(const dscomm_codec_t *codec, float *dst, size_t n, const void *src,
                              size_t src_bytes)
{
    DSC_TRY(check_call(codec, src, "src", dst, "dst", n));

    struct dsc_flaw flaw = { 0 };
    /* Decoding only reads; struct dsc_msg serves both directions. */
    const struct dsc_msg msg = { .bytes = (uint8_t *)(uintptr_t)src, .n = n, .flaw = &flaw };

    DSC_TRY(check_size(codec, &msg, src_bytes));
    if (n > 0) {
        const uint32_t saved = dsc_fp_enter();

        codec->ops->decode(codec, &msg, 0, n, dst, 0);
        dsc_fp_leave(saved);
    }
    if (flaw.what != NULL)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "message of %s has %s", codec->spec, flaw.what);
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

const char *const *dsc_codec_test_specs(size_t *n_out)
{
    *n_out = DSC_ARRAY_LEN(test_specs);
    return test_specs;
}
