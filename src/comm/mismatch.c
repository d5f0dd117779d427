/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks disagree on. Every rank that meets a foreign message tells its own descriptor to all
 * its peers, who pass it on; so each soon has one that differs from its own and can name the field
 * and both values.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

#define GRACE_NS 1000000000u
/* For peers that this rank was connecting with: they have yet to hear of it. */
#define LINGER_NS 200000000u
#define SLICE_NS 5000000u

struct token {
    const char *text; /* "key=value" */
    size_t n, key_n;
};

/* The next "key=value" at *at; false at the end. */
static bool next_token(const char **at, struct token *token_out)
{
    const char *equals;

    while (**at == ' ')
        (*at)++;
    if (**at == '\0')
        return false;
    token_out->text = *at;
    token_out->n = strcspn(*at, " ");
    equals = memchr(*at, '=', token_out->n);
    token_out->key_n = equals == NULL ? token_out->n : (size_t)(equals - *at);
    *at += token_out->n;
    return true;
}

static bool find_token(const char *list, const struct token *key, struct token *token_out)
{
    while (next_token(&list, token_out))
        if (token_out->key_n == key->key_n && memcmp(token_out->text, key->text, key->key_n) == 0)
            return true;
    return false;
}

static int value_n(const struct token *t)
{
    return t->n > t->key_n ? (int)(t->n - t->key_n - 1) : 0;
}

static const char *value_of(const struct token *t)
{
    return t->text + (t->n > t->key_n ? t->key_n + 1 : t->n);
}

int dsc_describe_difference(const char *mine, int my_rank, const char *theirs, int their_rank,
                            char *text, size_t text_bytes)
{
    struct token a, b;
    size_t used = 0;
    int n = 0;

    text[0] = '\0';
    while (next_token(&mine, &a)) {
        if (!find_token(theirs, &a, &b))
            b = (struct token){ "?", 1, 0 };
        if (value_n(&a) == value_n(&b) &&
            memcmp(value_of(&a), value_of(&b), (size_t)value_n(&a)) == 0)
            continue;
        if (used < text_bytes)
            used += (size_t)snprintf(
                text + used, text_bytes - used, "%s%.*s: rank %d has %.*s, rank %d has %.*s",
                n == 0 ? "ranks disagree on " : "; ", (int)a.key_n, a.text, my_rank, value_n(&a),
                value_of(&a), their_rank, value_n(&b), value_of(&b));
        n++;
    }
    return n;
}

/* A report of another rank whose descriptor is not ours. */
static bool find_difference(struct dscomm_comm *comm, const char *descriptor, char *text,
                            size_t text_bytes)
{
    const struct dsc_report *reports;
    const size_t n = dsc_net_reports(comm->net, &reports);

    for (size_t i = 0; i < n; i++)
        if (reports[i].status == DSCOMM_ERR_MISMATCH && reports[i].rank != comm->rank &&
            dsc_describe_difference(descriptor, comm->rank, reports[i].text, reports[i].rank, text,
                                    text_bytes) > 0)
            return true;
    return false;
}

void dsc_comm_explain_mismatch(struct dscomm_comm *comm, const char *descriptor, int bad_rank,
                               char *text, size_t text_bytes)
{
    char own[DSC_ERROR_TEXT_MAX], difference[DSC_ERROR_TEXT_MAX];
    uint64_t until = dsc_now_ns() + GRACE_NS;
    bool found = false;

    snprintf(own, sizeof(own), "call=%u %s", comm->sequence, descriptor);
    dsc_net_fail(comm->net, DSCOMM_ERR_MISMATCH, own);
    do {
        if (!found && find_difference(comm, own, difference, sizeof(difference))) {
            found = true;
            until = dsc_now_ns() + LINGER_NS;
        }
        if (found && !dsc_net_is_connecting(comm->net))
            break;
        dsc_net_progress(comm->net); /* the error it returns is the one being explained */
        dsc_net_wait(comm->net, SLICE_NS);
    } while (dsc_now_ns() < until);
    if (found)
        snprintf(text, text_bytes, "%s", difference);
    else if (bad_rank >= 0)
        snprintf(text, text_bytes, "rank %d is in another call than rank %d, which is in %s",
                 bad_rank, comm->rank, own);
    dsc_log(DSCOMM_LOG_ERROR, "COMM", "%s", text);
}
