/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a residual and its momentum. The machines this library runs on are little endian.
 */
#include "feedback/feedback_vector.h"

#include <string.h>

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

/* To memory of any alignment, behind which *dst is afterwards. */
static dscomm_status_t export_vector(const struct dsc_feedback_vector *v, size_t count,
                                     unsigned char **dst)
{
    for (size_t i = 0; v->values != NULL && i < count; i += DSC_FEEDBACK_TILE) {
        const size_t n = dsc_min_size(DSC_FEEDBACK_TILE, count - i);
        float values[DSC_FEEDBACK_TILE];

        DSC_TRY(dsc_feedback_get(v, i, n, values));
        memcpy(*dst, values, n * sizeof(float));
        *dst += n * sizeof(float);
    }
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_export(const dscomm_feedback_t *fb, void *dst, size_t dst_bytes,
                                       size_t *written_out)
{
    unsigned char *values = (unsigned char *)dst + sizeof(struct export_header), *end = values;
    struct export_header header;
    struct dsc_feedback_state state;
    struct dsc_feedback_vector r, u;

    DSC_TRY(dsc_feedback_check(fb));
    if (dst == NULL || written_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    if (dst_bytes < dscomm_feedback_export_bytes(fb))
        return dsc_fail(DSCOMM_ERR_INVALID, "export needs %zu bytes, got %zu",
                        dscomm_feedback_export_bytes(fb), dst_bytes);
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    r = dsc_feedback_residual(fb, &state);
    u = dsc_feedback_velocity(fb, &state);
    DSC_TRY(export_vector(&r, fb->count, &end));
    DSC_TRY(export_vector(&u, fb->count, &end));
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

static dscomm_status_t check_values(const struct dsc_feedback_vector *v, size_t count,
                                    const unsigned char *src)
{
    for (size_t i = 0; v->values != NULL && i < count; i++) {
        float value;

        memcpy(&value, src + i * sizeof(value), sizeof(value));
        if (!dsc_feedback_can_store(v, value))
            return dsc_fail(DSCOMM_ERR_CORRUPT, "%s export element %zu is not finite", v->name, i);
    }
    return DSCOMM_OK;
}

static dscomm_status_t check_export(const dscomm_feedback_t *fb,
                                    const struct dsc_feedback_state *state, const void *src,
                                    size_t src_bytes)
{
    struct export_header header;
    const unsigned char *values = (const unsigned char *)src + sizeof(header);
    const struct dsc_feedback_vector r = dsc_feedback_residual(fb, state),
                                     u = dsc_feedback_velocity(fb, state);

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

static dscomm_status_t import_vector(const struct dsc_feedback_vector *v, size_t count,
                                     const unsigned char *src)
{
    for (size_t i = 0; v->values != NULL && i < count; i += DSC_FEEDBACK_TILE) {
        const size_t n = dsc_min_size(DSC_FEEDBACK_TILE, count - i);
        float values[DSC_FEEDBACK_TILE];

        memcpy(values, src + i * sizeof(float), n * sizeof(float));
        DSC_TRY(dsc_feedback_put(v, i, n, values));
    }
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_import(dscomm_feedback_t *fb, const void *src, size_t src_bytes)
{
    const unsigned char *values = (const unsigned char *)src + sizeof(struct export_header);
    struct dsc_feedback_state state;
    struct dsc_feedback_vector r, u;

    DSC_TRY(dsc_feedback_check(fb));
    if (src == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    DSC_TRY(check_export(fb, &state, src, src_bytes));
    r = dsc_feedback_residual(fb, &state);
    u = dsc_feedback_velocity(fb, &state);
    DSC_TRY(import_vector(&r, fb->count, values));
    DSC_TRY(import_vector(&u, fb->count, values + fb->count * sizeof(float)));
    return dsc_feedback_touched(fb, &state);
}
