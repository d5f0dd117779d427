/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The residual object: one or two vectors, a parity that says which is current, and what may be
 * rolled back. All element values are finite at any time.
 */
#include "feedback/feedback.h"

#include <math.h>
#include <string.h>

/* The config as it was when it was first published: a caller may know no more. */
#define CONFIG_BYTES_FIRST (offsetof(dscomm_feedback_config_t, shadow) + sizeof(int))

struct dscomm_feedback {
    size_t count;
    dscomm_feedback_config_t config;
    void *vectors[2]; /* [1] is NULL with shadow 0 */
    int parity;       /* current vector */
    bool known_zero;
    bool can_roll_back;
    bool last_wrote; /* the last call swapped the vectors */
};

/* Export: this header, then count little-endian float32. */
struct export_header {
    char magic[8];
    uint64_t count;
    float beta;
    uint32_t crc; /* CRC32C of the values */
};

static const char export_magic[8] = { 'D', 'S', 'C', 'F', 'B', '0', '0', '1' };

static size_t elem_bytes(const dscomm_feedback_t *fb)
{
    return fb->config.type == DSCOMM_RESIDUAL_BF16 ? 2 : 4;
}

/* ---- element access; bf16 is the upper half of a float32, stored rounded to nearest even ---- */

static float get(const dscomm_feedback_t *fb, const void *vector, size_t i)
{
    float value;
    uint32_t bits;

    if (fb->config.type == DSCOMM_RESIDUAL_FP32)
        return ((const float *)vector)[i];
    bits = (uint32_t)((const uint16_t *)vector)[i] << 16;
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
static bool can_store(const dscomm_feedback_t *fb, float value)
{
    return isfinite(value) &&
           (fb->config.type == DSCOMM_RESIDUAL_FP32 || (to_bf16(value) & 0x7f80) != 0x7f80);
}

static void put(const dscomm_feedback_t *fb, void *vector, size_t i, float value)
{
    if (fb->config.type == DSCOMM_RESIDUAL_FP32)
        ((float *)vector)[i] = value;
    else
        ((uint16_t *)vector)[i] = to_bf16(value);
}

static void *current(const dscomm_feedback_t *fb)
{
    return fb->vectors[fb->parity];
}

/* The user changed r: nothing of before can be undone. */
static void touched(dscomm_feedback_t *fb)
{
    fb->known_zero = false;
    fb->can_roll_back = false;
}

/* ---- life ---- */

static dscomm_status_t check_config(const dscomm_feedback_config_t *config)
{
    if (!(config->beta > 0.0f && config->beta <= 1.0f))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback beta %g, must be in (0, 1]",
                        (double)config->beta);
    if (config->type != DSCOMM_RESIDUAL_FP32 && config->type != DSCOMM_RESIDUAL_BF16)
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback type %d, must be 0 (fp32) or 1 (bf16)",
                        (int)config->type);
    if (config->shadow != 0 && config->shadow != 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback shadow %d, must be 0 or 1", config->shadow);
    if (config->type == DSCOMM_RESIDUAL_BF16 && config->shadow == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "a bf16 residual needs shadow 1");
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_create(size_t count, const dscomm_feedback_config_t *config,
                                       dscomm_feedback_t **fb_out)
{
    dscomm_feedback_config_t c = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *fb;

    if (fb_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "fb_out is NULL");
    if (config != NULL && config->struct_bytes < CONFIG_BYTES_FIRST)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "feedback config struct_bytes %zu, must be its size, %zu",
                        config->struct_bytes, sizeof(*config));
    if (config != NULL)
        memcpy(&c, config, dsc_min_size(config->struct_bytes, sizeof(c)));
    DSC_TRY(check_config(&c));
    fb = dsc_calloc(DSC_MEM_FEEDBACK, 1, sizeof(*fb));
    if (fb == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "feedback object");
    fb->count = count;
    fb->config = c;
    fb->known_zero = true;
    for (int i = 0; i <= c.shadow; i++) {
        fb->vectors[i] = dsc_calloc(DSC_MEM_FEEDBACK, count, elem_bytes(fb));
        if (fb->vectors[i] == NULL) {
            dscomm_feedback_destroy(fb);
            return dsc_fail(DSCOMM_ERR_NO_MEMORY, "residual of %zu elements", count);
        }
    }
    *fb_out = fb;
    return DSCOMM_OK;
}

void dscomm_feedback_destroy(dscomm_feedback_t *fb)
{
    if (fb == NULL)
        return;
    dsc_free(fb->vectors[0]);
    dsc_free(fb->vectors[1]);
    dsc_free(fb);
}

size_t dscomm_feedback_count(const dscomm_feedback_t *fb)
{
    return fb == NULL ? 0 : fb->count;
}

/* ---- executors ---- */

void dsc_feedback_begin(const dscomm_feedback_t *fb, struct dsc_residual *residual_out)
{
    *residual_out = (struct dsc_residual){
        .in = current(fb),
        .out = fb->config.shadow ? fb->vectors[!fb->parity] : current(fb),
        .type = fb->config.type,
        .beta = fb->config.beta,
        .known_zero = fb->known_zero,
    };
}

void dsc_feedback_finish(dscomm_feedback_t *fb, bool wrote)
{
    fb->last_wrote = wrote;
    fb->can_roll_back = fb->config.shadow != 0;
    if (!wrote)
        return;
    fb->known_zero = false;
    if (fb->config.shadow)
        fb->parity = !fb->parity;
}

void dsc_feedback_abandon(dscomm_feedback_t *fb)
{
    /* Both vectors of a residual known to be zero are zero: a later call may write only a part. */
    if (fb->config.shadow && fb->known_zero && fb->count > 0)
        memset(fb->vectors[!fb->parity], 0, fb->count * elem_bytes(fb));
    if (!fb->config.shadow)
        fb->known_zero = false;
    fb->can_roll_back = false; /* the other vector holds a part of the failed call */
}

/* ---- transactions ---- */

static dscomm_status_t check_object(const dscomm_feedback_t *fb)
{
    return fb != NULL ? DSCOMM_OK : dsc_fail(DSCOMM_ERR_INVALID, "feedback is NULL");
}

dscomm_status_t dscomm_feedback_commit(dscomm_feedback_t *fb)
{
    DSC_TRY(check_object(fb));
    fb->can_roll_back = false;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_rollback(dscomm_feedback_t *fb)
{
    DSC_TRY(check_object(fb));
    if (!fb->config.shadow)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "rollback needs a feedback object with shadow 1");
    if (!fb->can_roll_back)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "no call to roll back");
    if (fb->last_wrote)
        fb->parity = !fb->parity;
    fb->can_roll_back = false;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_reset(dscomm_feedback_t *fb)
{
    DSC_TRY(check_object(fb));
    for (int i = 0; i <= fb->config.shadow; i++)
        if (fb->count > 0)
            memset(fb->vectors[i], 0, fb->count * elem_bytes(fb));
    fb->known_zero = true;
    fb->can_roll_back = false;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_scale(dscomm_feedback_t *fb, float factor)
{
    size_t lost = 0;
    uint32_t saved;

    DSC_TRY(check_object(fb));
    if (!isfinite(factor))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback scale factor %g, must be finite",
                        (double)factor);
    if (fb->known_zero) {
        fb->can_roll_back = false;
        return DSCOMM_OK;
    }
    saved = dsc_fp_enter(); /* the caller may flush subnormals to zero */
    for (size_t i = 0; i < fb->count; i++) {
        const float value = get(fb, current(fb), i) * factor;

        const bool fits = can_store(fb, value);

        lost += !fits;
        put(fb, current(fb), i, fits ? value : 0.0f);
    }
    dsc_fp_leave(saved);
    if (lost > 0)
        dsc_log_warn(FEEDBACK, "scaling by %g overflowed in %zu elements, set to zero",
                     (double)factor, lost);
    touched(fb);
    return DSCOMM_OK;
}

/* ---- spans ---- */

static dscomm_status_t check_span(const dscomm_feedback_t *fb, size_t first, size_t n,
                                  const void *memory)
{
    DSC_TRY(check_object(fb));
    if (first > fb->count || n > fb->count - first)
        return dsc_fail(DSCOMM_ERR_INVALID, "span of %zu elements at %zu exceeds the count %zu", n,
                        first, fb->count);
    if (memory == NULL && n > 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "span memory is NULL");
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_read(const dscomm_feedback_t *fb, size_t first, size_t n,
                                     float *dst)
{
    DSC_TRY(check_span(fb, first, n, dst));
    for (size_t i = 0; i < n; i++)
        dst[i] = get(fb, current(fb), first + i);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_write(dscomm_feedback_t *fb, size_t first, size_t n,
                                      const float *src)
{
    DSC_TRY(check_span(fb, first, n, src));
    for (size_t i = 0; i < n; i++)
        if (!can_store(fb, src[i]))
            return dsc_fail(DSCOMM_ERR_INVALID, "residual element %zu is %g, must be finite",
                            first + i, (double)src[i]);
    for (size_t i = 0; i < n; i++)
        put(fb, current(fb), first + i, src[i]);
    if (n > 0)
        touched(fb);
    return DSCOMM_OK;
}

/* ---- checkpoints; the machines this library runs on are little endian ---- */

size_t dscomm_feedback_export_bytes(const dscomm_feedback_t *fb)
{
    return fb == NULL ? 0 : sizeof(struct export_header) + fb->count * sizeof(float);
}

dscomm_status_t dscomm_feedback_export(const dscomm_feedback_t *fb, void *dst, size_t dst_bytes,
                                       size_t *written_out)
{
    struct export_header header;
    unsigned char *values = (unsigned char *)dst + sizeof(header);

    DSC_TRY(check_object(fb));
    if (dst == NULL || written_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    if (dst_bytes < dscomm_feedback_export_bytes(fb))
        return dsc_fail(DSCOMM_ERR_INVALID, "export needs %zu bytes, got %zu",
                        dscomm_feedback_export_bytes(fb), dst_bytes);
    for (size_t i = 0; i < fb->count; i++) {
        const float value = get(fb, current(fb), i);

        memcpy(values + i * sizeof(value), &value, sizeof(value));
    }
    header = (struct export_header){ .count = fb->count,
                                     .beta = fb->config.beta,
                                     .crc = dsc_crc32c(0, values, fb->count * sizeof(float)) };
    memcpy(header.magic, export_magic, sizeof(header.magic));
    memcpy(dst, &header, sizeof(header));
    *written_out = dscomm_feedback_export_bytes(fb);
    return DSCOMM_OK;
}

static dscomm_status_t check_export(const dscomm_feedback_t *fb, const void *src, size_t src_bytes)
{
    struct export_header header;
    const unsigned char *values = (const unsigned char *)src + sizeof(header);

    if (src_bytes < sizeof(header))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export of %zu bytes is truncated", src_bytes);
    memcpy(&header, src, sizeof(header));
    if (memcmp(header.magic, export_magic, sizeof(header.magic)) != 0)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "not a residual export");
    if (header.count != fb->count)
        return dsc_fail(DSCOMM_ERR_INVALID, "export of %llu elements into a residual of %zu",
                        (unsigned long long)header.count, fb->count);
    if (src_bytes != dscomm_feedback_export_bytes(fb))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export of %zu bytes, must be %zu", src_bytes,
                        dscomm_feedback_export_bytes(fb));
    if (header.crc != dsc_crc32c(0, values, fb->count * sizeof(float)))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export has a bad checksum");
    for (size_t i = 0; i < fb->count; i++) {
        float value;

        memcpy(&value, values + i * sizeof(value), sizeof(value));
        if (!can_store(fb, value))
            return dsc_fail(DSCOMM_ERR_CORRUPT, "residual export element %zu is not finite", i);
    }
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_import(dscomm_feedback_t *fb, const void *src, size_t src_bytes)
{
    DSC_TRY(check_object(fb));
    if (src == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    DSC_TRY(check_export(fb, src, src_bytes));
    for (size_t i = 0; i < fb->count; i++) {
        float value;

        memcpy(&value,
               (const unsigned char *)src + sizeof(struct export_header) + i * sizeof(value),
               sizeof(value));
        put(fb, current(fb), i, value);
    }
    touched(fb);
    return DSCOMM_OK;
}
