/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of the residual object, and transactions: one or two vectors, a parity that says which
 * is current, and what may be rolled back. Vectors and parity are in memory of the object's kind
 * and are touched through its functions; what host executors call is for host memory.
 */
#include "feedback/feedback_object.h"

#include <string.h>

/* The config as it was when it was first published: a caller may know no more. */
#define CONFIG_BYTES_FIRST (offsetof(dscomm_feedback_config_t, shadow) + sizeof(int))

/* ---- host memory ---- */

static dscomm_status_t host_alloc(size_t bytes, void **memory_out)
{
    void *const memory = dsc_calloc(DSC_MEM_FEEDBACK, 1, bytes);

    if (memory == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "residual of %zu bytes", bytes);
    *memory_out = memory;
    return DSCOMM_OK;
}

static dscomm_status_t host_copy(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return DSCOMM_OK;
}

static dscomm_status_t host_zero(void *memory, size_t bytes)
{
    memset(memory, 0, bytes);
    return DSCOMM_OK;
}

const struct dsc_feedback_memory dsc_host_memory = {
    .name = "host",
    .alloc = host_alloc,
    .free = dsc_free,
    .read = host_copy,
    .write = host_copy,
    .zero = host_zero,
};

static dscomm_status_t write_state(dscomm_feedback_t *fb, const struct dsc_feedback_state *state)
{
    return fb->memory->write(fb->state, state, sizeof(*state));
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
    if (!(config->momentum >= 0.0f && config->momentum < 1.0f))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback momentum %g, must be in [0, 1)",
                        (double)config->momentum);
    if (config->momentum > 0.0f && config->shadow == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback momentum %g needs shadow 1",
                        (double)config->momentum);
    return DSCOMM_OK;
}

static dscomm_status_t alloc_parts(dscomm_feedback_t *fb)
{
    const struct dsc_feedback_state state = { .known_zero = 1 };

    for (int i = 0; i <= fb->config.shadow; i++) {
        DSC_TRY(fb->memory->alloc(fb->count * dsc_feedback_elem_bytes(fb), &fb->vectors[i]));
        if (fb->config.momentum > 0.0f)
            DSC_TRY(fb->memory->alloc(fb->count * sizeof(float), (void **)&fb->velocity[i]));
    }
    DSC_TRY(fb->memory->alloc(sizeof(*fb->state), (void **)&fb->state));
    return write_state(fb, &state);
}

dscomm_status_t dsc_feedback_create_in(const struct dsc_feedback_memory *memory, size_t count,
                                       const dscomm_feedback_config_t *config,
                                       dscomm_feedback_t **fb_out)
{
    dscomm_feedback_config_t c = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *fb;
    dscomm_status_t st;

    if (fb_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "fb_out is NULL");
    if (config != NULL && config->struct_bytes < CONFIG_BYTES_FIRST)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "feedback config struct_bytes %zu, must be its size, %zu",
                        config->struct_bytes, sizeof(*config));
    if (config != NULL)
        memcpy(&c, config, dsc_min_size(config->struct_bytes, sizeof(c)));
    DSC_TRY(check_config(&c));
    if (count > SIZE_MAX / sizeof(float)) /* bytes are counted in size_t */
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "residual of %zu elements", count);
    fb = dsc_calloc(DSC_MEM_FEEDBACK, 1, sizeof(*fb));
    if (fb == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "feedback object");
    fb->count = count;
    fb->config = c;
    fb->memory = memory;
    st = alloc_parts(fb);
    if (st < 0) {
        dscomm_feedback_destroy(fb);
        return st;
    }
    *fb_out = fb;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_create(size_t count, const dscomm_feedback_config_t *config,
                                       dscomm_feedback_t **fb_out)
{
    return dsc_feedback_create_in(&dsc_host_memory, count, config, fb_out);
}

void dscomm_feedback_destroy(dscomm_feedback_t *fb)
{
    if (fb == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        fb->memory->free(fb->vectors[i]);
        fb->memory->free(fb->velocity[i]);
    }
    fb->memory->free(fb->state);
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

const struct dsc_feedback_memory *dsc_feedback_memory(const dscomm_feedback_t *fb)
{
    return fb->memory;
}

struct dsc_feedback_parts dsc_feedback_parts(const dscomm_feedback_t *fb)
{
    return (struct dsc_feedback_parts){
        .vectors = { fb->vectors[0], fb->vectors[fb->config.shadow ? 1 : 0] },
        .velocity = { fb->velocity[0], fb->velocity[1] },
        .state = fb->state,
        .type = fb->config.type,
        .beta = fb->config.beta,
        .momentum = fb->config.momentum,
        .known_zero = !fb->may_be_written && !dsc_feedback_has_momentum(fb),
    };
}

void dsc_feedback_issued(dscomm_feedback_t *fb, bool counts, bool may_write)
{
    fb->n_issued += counts;
    fb->may_be_written = fb->may_be_written || may_write;
}

void dsc_feedback_begin(const dscomm_feedback_t *fb, struct dsc_residual *residual_out)
{
    const struct dsc_feedback_state *const state = fb->state;
    void *const in = dsc_feedback_current(fb, state);

    *residual_out = (struct dsc_residual){
        .in = in,
        .out = fb->config.shadow ? fb->vectors[!state->parity] : in,
        .type = fb->config.type,
        .beta = fb->config.beta,
        .known_zero = state->known_zero != 0 && !dsc_feedback_has_momentum(fb),
        .velocity_in = fb->velocity[state->parity],
        .velocity_out = fb->velocity[!state->parity],
        .momentum = fb->config.momentum,
    };
}

void dsc_feedback_finish(dscomm_feedback_t *fb, bool wrote)
{
    struct dsc_feedback_state *const state = fb->state;

    state->n_calls++;
    fb->n_issued++;
    state->last_wrote = wrote;
    if (!wrote)
        return;
    state->known_zero = 0;
    if (fb->config.shadow)
        state->parity = !state->parity;
}

void dsc_feedback_abandon(dscomm_feedback_t *fb)
{
    struct dsc_feedback_state *const state = fb->state;

    /* Both vectors of a residual known to be zero are zero: a later call may write only a part. */
    if (fb->config.shadow && state->known_zero && fb->count > 0)
        memset(fb->vectors[!state->parity], 0, fb->count * dsc_feedback_elem_bytes(fb));
    if (!fb->config.shadow)
        state->known_zero = 0;
    dsc_feedback_settle(fb, state); /* the other vector holds a part of the failed call */
}

/* ---- transactions ---- */

dscomm_status_t dsc_feedback_check(const dscomm_feedback_t *fb)
{
    return fb != NULL ? DSCOMM_OK : dsc_fail(DSCOMM_ERR_INVALID, "feedback is NULL");
}

dscomm_status_t dsc_feedback_touched(dscomm_feedback_t *fb, struct dsc_feedback_state *state)
{
    state->known_zero = 0;
    fb->may_be_written = true;
    dsc_feedback_settle(fb, state);
    return write_state(fb, state);
}

dscomm_status_t dscomm_feedback_commit(dscomm_feedback_t *fb)
{
    struct dsc_feedback_state state;

    DSC_TRY(dsc_feedback_check(fb));
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    dsc_feedback_settle(fb, &state);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_rollback(dscomm_feedback_t *fb)
{
    struct dsc_feedback_state state;

    DSC_TRY(dsc_feedback_check(fb));
    if (!fb->config.shadow)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "rollback needs a feedback object with shadow 1");
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    if ((int32_t)(fb->n_issued - state.n_calls) > 0)
        return dsc_fail(DSCOMM_ERR_BAD_STATE,
                        "the last call has failed or still runs: nothing to roll back");
    if (state.n_calls == fb->n_settled || state.last_wrote == DSC_CALL_GIVEN_UP)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "no call to roll back");
    if (state.last_wrote)
        state.parity = !state.parity;
    dsc_feedback_settle(fb, &state);
    return write_state(fb, &state);
}

dscomm_status_t dscomm_feedback_reset(dscomm_feedback_t *fb)
{
    struct dsc_feedback_state state;

    DSC_TRY(dsc_feedback_check(fb));
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    for (int i = 0; fb->count > 0 && i <= fb->config.shadow; i++) {
        DSC_TRY(fb->memory->zero(fb->vectors[i], fb->count * dsc_feedback_elem_bytes(fb)));
        if (dsc_feedback_has_momentum(fb))
            DSC_TRY(fb->memory->zero(fb->velocity[i], fb->count * sizeof(float)));
    }
    state.known_zero = 1;
    fb->may_be_written = false;
    dsc_feedback_settle(fb, &state);
    return write_state(fb, &state);
}
