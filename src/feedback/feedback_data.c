/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users do with the elements of a residual and its momentum: scale, copy out and in, export
 * and import.
 */
#include "feedback/feedback_object.h"

#include <math.h>
#include <string.h>

/* ---- element access; bf16 is the upper half of a float32, stored rounded to nearest even ---- */

/* The current r or u, as it is stored. */
struct vector {
    void *values; /* NULL: the object has none */
    dscomm_residual_type_t type;
    const char *name;
};

static struct vector residual_of(const dscomm_feedback_t *fb)
{
    return (struct vector){ dsc_feedback_current(fb), fb->config.type, "residual" };
}

static struct vector velocity_of(const dscomm_feedback_t *fb)
{
    return (struct vector){ fb->velocity[fb->parity], DSCOMM_RESIDUAL_FP32, "momentum" };
}

static float get(const struct vector *v, size_t i)
{
    float value;
    uint32_t bits;

    if (v->type == DSCOMM_RESIDUAL_FP32)
        return ((const float *)v->values)[i];
    bits = (uint32_t)((const uint16_t *)v->values)[i] << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Finite, and as bf16 too: the largest floats round to Inf there. */
static bool can_store(const struct vector *v, float value)
{
    return isfinite(value) &&
           (v->type == DSCOMM_RESIDUAL_FP32 || (to_bf16(value) & 0x7f80) != 0x7f80);
}

static void put(const struct vector *v, size_t i, float value)
{
    if (v->type == DSCOMM_RESIDUAL_FP32)
        ((float *)v->values)[i] = value;
    else
        ((uint16_t *)v->values)[i] = to_bf16(value);
}

/* ---- scaling ---- */

/* How many elements overflowed and are now zero. */
static size_t scale(const struct vector *v, size_t count, float factor)
{
    size_t lost = 0;

    for (size_t i = 0; v->values != NULL && i < count; i++) {
        const float value = get(v, i) * factor;
        const bool fits = can_store(v, value);

        lost += !fits;
        put(v, i, fits ? value : 0.0f);
    }
    return lost;
}

dscomm_status_t dscomm_feedback_scale(dscomm_feedback_t *fb, float factor)
{
    struct vector r, u;
    uint32_t saved;
    size_t lost;

    DSC_TRY(dsc_feedback_check(fb));
    if (!isfinite(factor))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback scale factor %g, must be finite",
                        (double)factor);
    if (fb->known_zero) {
        fb->can_roll_back = false;
        return DSCOMM_OK;
    }
    r = residual_of(fb);
    u = velocity_of(fb);
    saved = dsc_fp_enter(); /* the caller may flush subnormals to zero */
    lost = scale(&r, fb->count, factor) + scale(&u, fb->count, factor);
    dsc_fp_leave(saved);
    if (lost > 0)
        dsc_log_warn(FEEDBACK, "scaling by %g overflowed in %zu elements, set to zero",
                     (double)factor, lost);
    dsc_feedback_touched(fb);
    return DSCOMM_OK;
}

/* ---- spans ---- */

static dscomm_status_t check_span(const dscomm_feedback_t *fb, size_t first, size_t n,
                                  const void *memory)
{
    DSC_TRY(dsc_feedback_check(fb));
    if (first > fb->count || n > fb->count - first)
        return dsc_fail(DSCOMM_ERR_INVALID, "span of %zu elements at %zu exceeds the count %zu", n,
                        first, fb->count);
    if (memory == NULL && n > 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "span memory is NULL");
    return DSCOMM_OK;
}

static dscomm_status_t check_momentum(const dscomm_feedback_t *fb)
{
    DSC_TRY(dsc_feedback_check(fb));
    return dsc_feedback_has_momentum(fb)
               ? DSCOMM_OK
               : dsc_fail(DSCOMM_ERR_BAD_STATE,
                          "the feedback object has momentum 0 and no such vector");
}

static dscomm_status_t read_span(const struct vector *v, size_t first, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = get(v, first + i);
    return DSCOMM_OK;
}

static dscomm_status_t write_span(dscomm_feedback_t *fb, const struct vector *v, size_t first,
                                  size_t n, const float *src)
{
    for (size_t i = 0; i < n; i++)
        if (!can_store(v, src[i]))
            return dsc_fail(DSCOMM_ERR_INVALID, "%s element %zu is %g, must be finite", v->name,
                            first + i, (double)src[i]);
    for (size_t i = 0; i < n; i++)
        put(v, first + i, src[i]);
    if (n > 0)
        dsc_feedback_touched(fb);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_read(const dscomm_feedback_t *fb, size_t first, size_t n,
                                     float *dst)
{
    DSC_TRY(check_span(fb, first, n, dst));

    const struct vector r = residual_of(fb);

    return read_span(&r, first, n, dst);
}

dscomm_status_t dscomm_feedback_write(dscomm_feedback_t *fb, size_t first, size_t n,
                                      const float *src)
{
    DSC_TRY(check_span(fb, first, n, src));

    const struct vector r = residual_of(fb);

    return write_span(fb, &r, first, n, src);
}

dscomm_status_t dscomm_feedback_read_momentum(const dscomm_feedback_t *fb, size_t first, size_t n,
                                              float *dst)
{
    DSC_TRY(check_momentum(fb));
    DSC_TRY(check_span(fb, first, n, dst));

    const struct vector u = velocity_of(fb);

    return read_span(&u, first, n, dst);
}

dscomm_status_t dscomm_feedback_write_momentum(dscomm_feedback_t *fb, size_t first, size_t n,
                                               const float *src)
{
    DSC_TRY(check_momentum(fb));
    DSC_TRY(check_span(fb, first, n, src));

    const struct vector u = velocity_of(fb);

    return write_span(fb, &u, first, n, src);
}

/* ---- checkpoints; the machines this library runs on are little endian ---- */

/* This header, then r and, with momentum, u: count float32 each. */
struct export_header {
    char magic[8];
    uint64_t count;
    float beta;
    uint32_t crc; /* CRC32C of the values */
};

#define MAGIC_BYTES 8

static const char magic_plain[MAGIC_BYTES + 1] = "DSCFB001", magic_momentum[] = "DSCFB002";

static const char *magic_of(const dscomm_feedback_t *fb)
{
    return dsc_feedback_has_momentum(fb) ? magic_momentum : magic_plain;
}

static size_t value_bytes(const dscomm_feedback_t *fb)
{
    return fb->count * sizeof(float) * (dsc_feedback_has_momentum(fb) ? 2 : 1);
}

size_t dscomm_feedback_export_bytes(const dscomm_feedback_t *fb)
{
    return fb == NULL ? 0 : sizeof(struct export_header) + value_bytes(fb);
}

static unsigned char *export_vector(const struct vector *v, size_t count, unsigned char *dst)
{
    for (size_t i = 0; v->values != NULL && i < count; i++, dst += sizeof(float)) {
        const float value = get(v, i);

        memcpy(dst, &value, sizeof(value));
    }
    return dst;
}

dscomm_status_t dscomm_feedback_export(const dscomm_feedback_t *fb, void *dst, size_t dst_bytes,
                                       size_t *written_out)
{
    struct export_header header;
    unsigned char *values = (unsigned char *)dst + sizeof(header);

    DSC_TRY(dsc_feedback_check(fb));
    if (dst == NULL || written_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    if (dst_bytes < dscomm_feedback_export_bytes(fb))
        return dsc_fail(DSCOMM_ERR_INVALID, "export needs %zu bytes, got %zu",
                        dscomm_feedback_export_bytes(fb), dst_bytes);

    const struct vector r = residual_of(fb), u = velocity_of(fb);

    (void)export_vector(&u, fb->count, export_vector(&r, fb->count, values));
    header = (struct export_header){ .count = fb->count,
                                     .beta = fb->config.beta,
                                     .crc = dsc_crc32c(0, values, value_bytes(fb)) };
    memcpy(header.magic, magic_of(fb), MAGIC_BYTES);
    memcpy(dst, &header, sizeof(header));
    *written_out = dscomm_feedback_export_bytes(fb);
    return DSCOMM_OK;
}

/* Whether it is an export, and one of such an object. */
static dscomm_status_t check_header(const dscomm_feedback_t *fb, const struct export_header *header)
{
    const bool has_momentum = memcmp(header->magic, magic_momentum, MAGIC_BYTES) == 0;

    if (!has_momentum && memcmp(header->magic, magic_plain, MAGIC_BYTES) != 0)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "not a residual export");
    if (header->count != fb->count)
        return dsc_fail(DSCOMM_ERR_INVALID, "export of %llu elements into a residual of %zu",
                        (unsigned long long)header->count, fb->count);
    if (has_momentum != dsc_feedback_has_momentum(fb))
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "export with%s momentum into a feedback object with%s; must be alike",
                        has_momentum ? "" : "out", has_momentum ? "out" : "");
    return DSCOMM_OK;
}

static dscomm_status_t check_values(const struct vector *v, size_t count, const unsigned char *src)
{
    for (size_t i = 0; v->values != NULL && i < count; i++) {
        float value;

        memcpy(&value, src + i * sizeof(value), sizeof(value));
        if (!can_store(v, value))
            return dsc_fail(DSCOMM_ERR_CORRUPT, "%s export element %zu is not finite", v->name, i);
    }
    return DSCOMM_OK;
}

static dscomm_status_t check_export(const dscomm_feedback_t *fb, const void *src, size_t src_bytes)
{
    struct export_header header;
    const unsigned char *values = (const unsigned char *)src + sizeof(header);
    const struct vector r = residual_of(fb), u = velocity_of(fb);

    if (src_bytes < sizeof(header))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export of %zu bytes is truncated", src_bytes);
    memcpy(&header, src, sizeof(header));
    DSC_TRY(check_header(fb, &header));
    if (src_bytes != dscomm_feedback_export_bytes(fb))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export of %zu bytes, must be %zu", src_bytes,
                        dscomm_feedback_export_bytes(fb));
    if (header.crc != dsc_crc32c(0, values, value_bytes(fb)))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export has a bad checksum");
    DSC_TRY(check_values(&r, fb->count, values));
    return check_values(&u, fb->count, values + fb->count * sizeof(float));
}

static void import_vector(const struct vector *v, size_t count, const unsigned char *src)
{
    for (size_t i = 0; v->values != NULL && i < count; i++) {
        float value;

        memcpy(&value, src + i * sizeof(value), sizeof(value));
        put(v, i, value);
    }
}

dscomm_status_t dscomm_feedback_import(dscomm_feedback_t *fb, const void *src, size_t src_bytes)
{
    const unsigned char *values = (const unsigned char *)src + sizeof(struct export_header);

    DSC_TRY(dsc_feedback_check(fb));
    if (src == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    DSC_TRY(check_export(fb, src, src_bytes));

    const struct vector r = residual_of(fb), u = velocity_of(fb);

    import_vector(&r, fb->count, values);
    import_vector(&u, fb->count, values + fb->count * sizeof(float));
    dsc_feedback_touched(fb);
    return DSCOMM_OK;
}
