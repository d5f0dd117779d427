/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users do with the elements of a residual and its momentum: scale, copy out and in, export
 * and import.
 */
#include "feedback/feedback_object.h"

#include <math.h>
#include <string.h>

/* ---- element access; bf16 is the upper half of a float32, stored rounded to nearest even ---- */

/* Elements that are converted at a time. */
#define TILE 1024

/* The current r or u, as it is stored. */
struct vector {
    const struct dsc_feedback_memory *memory;
    char *values; /* NULL: the object has none */
    dscomm_residual_type_t type;
    const char *name;
};

static struct vector residual_of(const dscomm_feedback_t *fb,
                                 const struct dsc_feedback_state *state)
{
    return (struct vector){ fb->memory, dsc_feedback_current(fb, state), fb->config.type,
                            "residual" };
}

static struct vector velocity_of(const dscomm_feedback_t *fb,
                                 const struct dsc_feedback_state *state)
{
    return (struct vector){ fb->memory, (void *)fb->velocity[state->parity], DSCOMM_RESIDUAL_FP32,
                            "momentum" };
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

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

/* Elements [first, first + n), 1 to TILE. */
static dscomm_status_t get(const struct vector *v, size_t first, size_t n, float *values)
{
    uint16_t halves[TILE];

    if (v->type == DSCOMM_RESIDUAL_FP32)
        return v->memory->read(values, v->values + first * sizeof(float), n * sizeof(float));
    DSC_TRY(v->memory->read(halves, v->values + first * sizeof(*halves), n * sizeof(*halves)));
    for (size_t i = 0; i < n; i++)
        values[i] = from_bf16(halves[i]);
    return DSCOMM_OK;
}

static dscomm_status_t put(const struct vector *v, size_t first, size_t n, const float *values)
{
    uint16_t halves[TILE];

    if (v->type == DSCOMM_RESIDUAL_FP32)
        return v->memory->write(v->values + first * sizeof(float), values, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        halves[i] = to_bf16(values[i]);
    return v->memory->write(v->values + first * sizeof(*halves), halves, n * sizeof(*halves));
}

/* ---- scaling ---- */

/* How many elements overflowed and are now zero. */
static size_t scale_tile(const struct vector *v, float *values, size_t n, float factor)
{
    const uint32_t saved = dsc_fp_enter(); /* the caller may flush subnormals to zero */
    size_t lost = 0;

    for (size_t i = 0; i < n; i++) {
        const float value = values[i] * factor;
        const bool fits = can_store(v, value);

        lost += !fits;
        values[i] = fits ? value : 0.0f;
    }
    dsc_fp_leave(saved);
    return lost;
}

static dscomm_status_t scale(const struct vector *v, size_t count, float factor, size_t *lost)
{
    for (size_t i = 0; v->values != NULL && i < count; i += TILE) {
        const size_t n = dsc_min_size(TILE, count - i);
        float values[TILE];

        DSC_TRY(get(v, i, n, values));
        *lost += scale_tile(v, values, n, factor);
        DSC_TRY(put(v, i, n, values));
    }
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_scale(dscomm_feedback_t *fb, float factor)
{
    struct dsc_feedback_state state;
    struct vector r, u;
    size_t lost = 0;

    DSC_TRY(dsc_feedback_check(fb));
    if (!isfinite(factor))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback scale factor %g, must be finite",
                        (double)factor);
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    dsc_feedback_settle(fb, &state);
    if (state.known_zero)
        return DSCOMM_OK;
    r = residual_of(fb, &state);
    u = velocity_of(fb, &state);
    DSC_TRY(scale(&r, fb->count, factor, &lost));
    DSC_TRY(scale(&u, fb->count, factor, &lost));
    if (lost > 0)
        dsc_log_warn(FEEDBACK, "scaling by %g overflowed in %zu elements, set to zero",
                     (double)factor, lost);
    return dsc_feedback_touched(fb, &state);
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

/* A vector of the object, as it is now. */
typedef struct vector vector_fn(const dscomm_feedback_t *fb,
                                const struct dsc_feedback_state *state);

static dscomm_status_t read_span(const dscomm_feedback_t *fb, vector_fn *vector_of, size_t first,
                                 size_t n, float *dst)
{
    struct dsc_feedback_state state;
    struct vector v;

    DSC_TRY(check_span(fb, first, n, dst));
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    v = vector_of(fb, &state);
    for (size_t i = 0; i < n; i += TILE)
        DSC_TRY(get(&v, first + i, dsc_min_size(TILE, n - i), dst + i));
    return DSCOMM_OK;
}

static dscomm_status_t write_span(dscomm_feedback_t *fb, vector_fn *vector_of, size_t first,
                                  size_t n, const float *src)
{
    struct dsc_feedback_state state;
    struct vector v;

    DSC_TRY(check_span(fb, first, n, src));
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    v = vector_of(fb, &state);
    for (size_t i = 0; i < n; i++)
        if (!can_store(&v, src[i]))
            return dsc_fail(DSCOMM_ERR_INVALID, "%s element %zu is %g, must be finite", v.name,
                            first + i, (double)src[i]);
    for (size_t i = 0; i < n; i += TILE)
        DSC_TRY(put(&v, first + i, dsc_min_size(TILE, n - i), src + i));
    return n > 0 ? dsc_feedback_touched(fb, &state) : DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_read(const dscomm_feedback_t *fb, size_t first, size_t n,
                                     float *dst)
{
    return read_span(fb, residual_of, first, n, dst);
}

dscomm_status_t dscomm_feedback_write(dscomm_feedback_t *fb, size_t first, size_t n,
                                      const float *src)
{
    return write_span(fb, residual_of, first, n, src);
}

dscomm_status_t dscomm_feedback_read_momentum(const dscomm_feedback_t *fb, size_t first, size_t n,
                                              float *dst)
{
    DSC_TRY(check_momentum(fb));
    return read_span(fb, velocity_of, first, n, dst);
}

dscomm_status_t dscomm_feedback_write_momentum(dscomm_feedback_t *fb, size_t first, size_t n,
                                               const float *src)
{
    DSC_TRY(check_momentum(fb));
    return write_span(fb, velocity_of, first, n, src);
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

/* To memory of any alignment, behind which *dst is afterwards. */
static dscomm_status_t export_vector(const struct vector *v, size_t count, unsigned char **dst)
{
    for (size_t i = 0; v->values != NULL && i < count; i += TILE) {
        const size_t n = dsc_min_size(TILE, count - i);
        float values[TILE];

        DSC_TRY(get(v, i, n, values));
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
    struct vector r, u;

    DSC_TRY(dsc_feedback_check(fb));
    if (dst == NULL || written_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    if (dst_bytes < dscomm_feedback_export_bytes(fb))
        return dsc_fail(DSCOMM_ERR_INVALID, "export needs %zu bytes, got %zu",
                        dscomm_feedback_export_bytes(fb), dst_bytes);
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    r = residual_of(fb, &state);
    u = velocity_of(fb, &state);
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

static dscomm_status_t check_export(const dscomm_feedback_t *fb,
                                    const struct dsc_feedback_state *state, const void *src,
                                    size_t src_bytes)
{
    struct export_header header;
    const unsigned char *values = (const unsigned char *)src + sizeof(header);
    const struct vector r = residual_of(fb, state), u = velocity_of(fb, state);

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

static dscomm_status_t import_vector(const struct vector *v, size_t count, const unsigned char *src)
{
    for (size_t i = 0; v->values != NULL && i < count; i += TILE) {
        const size_t n = dsc_min_size(TILE, count - i);
        float values[TILE];

        memcpy(values, src + i * sizeof(float), n * sizeof(float));
        DSC_TRY(put(v, i, n, values));
    }
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_import(dscomm_feedback_t *fb, const void *src, size_t src_bytes)
{
    const unsigned char *values = (const unsigned char *)src + sizeof(struct export_header);
    struct dsc_feedback_state state;
    struct vector r, u;

    DSC_TRY(dsc_feedback_check(fb));
    if (src == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "export memory is NULL");
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    DSC_TRY(check_export(fb, &state, src, src_bytes));
    r = residual_of(fb, &state);
    u = velocity_of(fb, &state);
    DSC_TRY(import_vector(&r, fb->count, values));
    DSC_TRY(import_vector(&u, fb->count, values + fb->count * sizeof(float)));
    return dsc_feedback_touched(fb, &state);
}
