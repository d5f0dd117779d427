/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of the residual object, and transactions: one or two vectors, a parity that says which
 * is current, and what may be rolled back.
 */
#include "feedback/feedback_object.h"

#include <string.h>

/* The config as it was when it was first published: a caller may know no more. */
#define CONFIG_BYTES_FIRST (offsetof(dscomm_feedback_config_t, shadow) + sizeof(int))

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
    if (!(config->momentum >= 0.0f && config->momentum < 1.0f))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback momentum %g, must be in [0, 1)",
                        (double)config->momentum);
    if (config->momentum > 0.0f && config->shadow == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback momentum %g needs shadow 1",
                        (double)config->momentum);
    return DSCOMM_OK;
}

static bool has_all_vectors(const dscomm_feedback_t *fb)
{
    for (int i = 0; i <= fb->config.shadow; i++)
        if (fb->vectors[i] == NULL || (fb->config.momentum > 0.0f && fb->velocity[i] == NULL))
            return false;
    return true;
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
        fb->vectors[i] = dsc_calloc(DSC_MEM_FEEDBACK, count, dsc_feedback_elem_bytes(fb));
        if (c.momentum > 0.0f)
            fb->velocity[i] = dsc_calloc(DSC_MEM_FEEDBACK, count, sizeof(float));
    }
    if (!has_all_vectors(fb)) {
        dscomm_feedback_destroy(fb);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "residual of %zu elements", count);
    }
    *fb_out = fb;
    return DSCOMM_OK;
}

void dscomm_feedback_destroy(dscomm_feedback_t *fb)
{
    if (fb == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        dsc_free(fb->vectors[i]);
        dsc_free(fb->velocity[i]);
    }
    dsc_free(fb);
}

size_t dscomm_feedback_count(const dscomm_feedback_t *fb)
{
    return fb == NULL ? 0 : fb->count;
}

/* ---- executors ---- */

bool dsc_feedback_has_momentum(const dscomm_feedback_t *fb)
{
    return fb->velocity[0] != NULL;
}

void dsc_feedback_begin(const dscomm_feedback_t *fb, struct dsc_residual *residual_out)
{
    *residual_out = (struct dsc_residual){
        .in = dsc_feedback_current(fb),
        .out = fb->config.shadow ? fb->vectors[!fb->parity] : dsc_feedback_current(fb),
        .type = fb->config.type,
        .beta = fb->config.beta,
        .known_zero = fb->known_zero && !dsc_feedback_has_momentum(fb),
        .velocity_in = fb->velocity[fb->parity],
        .velocity_out = fb->velocity[!fb->parity],
        .momentum = fb->config.momentum,
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
        memset(fb->vectors[!fb->parity], 0, fb->count * dsc_feedback_elem_bytes(fb));
    if (!fb->config.shadow)
        fb->known_zero = false;
    fb->can_roll_back = false; /* the other vector holds a part of the failed call */
}

/* ---- transactions ---- */

dscomm_status_t dsc_feedback_check(const dscomm_feedback_t *fb)
{
    return fb != NULL ? DSCOMM_OK : dsc_fail(DSCOMM_ERR_INVALID, "feedback is NULL");
}

dscomm_status_t dscomm_feedback_commit(dscomm_feedback_t *fb)
{
    DSC_TRY(dsc_feedback_check(fb));
    fb->can_roll_back = false;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_rollback(dscomm_feedback_t *fb)
{
    DSC_TRY(dsc_feedback_check(fb));
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
    DSC_TRY(dsc_feedback_check(fb));
    for (int i = 0; fb->count > 0 && i <= fb->config.shadow; i++) {
        memset(fb->vectors[i], 0, fb->count * dsc_feedback_elem_bytes(fb));
        if (dsc_feedback_has_momentum(fb))
            memset(fb->velocity[i], 0, fb->count * sizeof(float));
    }
    fb->known_zero = true;
    fb->can_roll_back = false;
    return DSCOMM_OK;
}
