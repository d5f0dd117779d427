/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two ranks of one process find each other: a list, keyed by job and ranks. Whoever comes second
 * makes the memory.
 */
#include "transport/loopback_pair.h"

#include <pthread.h>
#include <stdio.h>

/* Guards waiting, and the pairs in it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct dsc_loop_pair *waiting;

void dsc_loop_unref(struct dsc_loop_pair *pair)
{
    pthread_mutex_lock(&mutex);
    const int left = --pair->n_refs;
    pthread_mutex_unlock(&mutex);
    if (left > 0)
        return;
    dsc_local_bell_release(pair->bells[0]);
    dsc_local_bell_release(pair->bells[1]);
    dsc_free(pair->memory);
    dsc_free(pair);
}

/* Where the list has this job's pair of these ranks, with the other side in it; else its end. */
static struct dsc_loop_pair **find_waiting(uint64_t job, int lo, int hi)
{
    struct dsc_loop_pair **at = &waiting;

    while (*at != NULL && ((*at)->job != job || (*at)->ranks[0] != lo || (*at)->ranks[1] != hi))
        at = &(*at)->next;
    return at;
}

static void attach(struct dsc_loop_pair *pair, struct dsc_net *net, int side)
{
    dsc_local_bell_acquire(net->bell);
    pair->bells[side] = net->bell;
    pair->n_refs++;
}

static dscomm_status_t make_memory(struct dsc_loop_pair *pair)
{
    const size_t bytes = dsc_ring_bytes(pair->n_slots, pair->slot_bytes);
    struct dsc_ring ring;

    pair->memory = dsc_calloc(DSC_MEM_TRANSPORT, 2, bytes);
    if (pair->memory == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for 2 rings of %zu bytes", bytes);
    for (int i = 0; i < 2; i++) {
        dsc_ring_init(&ring, pair->memory + (size_t)i * bytes, pair->n_slots, pair->slot_bytes);
        dsc_ring_format(&ring);
    }
    return DSCOMM_OK;
}

/* With the mutex held. */
static dscomm_status_t offer_locked(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const int side = net->rank > peer;
    const int lo = side ? peer : net->rank;
    const int hi = side ? net->rank : peer;
    struct dsc_loop_pair **const at = find_waiting(net->job, lo, hi);
    struct dsc_loop_pair *pair = *at;

    if (pair != NULL) {
        if (!dsc_setup_check_slots(net, peer, pair->slot_bytes))
            return net->error; /* the pair stays in the list: the other side is told there */
        *at = pair->next;
        attach(pair, net, side);
        setup->pair = pair;
        DSC_TRY(make_memory(pair));
        dsc_local_bell_ring(pair->bells[!side]);
        return DSCOMM_OK;
    }
    pair = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*pair));
    if (pair == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a loopback pair");
    pair->job = net->job;
    pair->ranks[0] = lo;
    pair->ranks[1] = hi;
    pair->slot_bytes = net->params.slot_bytes;
    pair->n_slots = net->params.n_slots;
    attach(pair, net, side);
    setup->pair = pair;
    pair->next = waiting;
    waiting = pair;
    return DSCOMM_OK;
}

dscomm_status_t dsc_loopback_offer(struct dsc_net *net, int peer)
{
    pthread_mutex_lock(&mutex);
    const dscomm_status_t st = offer_locked(net, peer);
    pthread_mutex_unlock(&mutex);
    return st;
}

bool dsc_loopback_met(const struct dsc_net *net, int peer)
{
    const struct dsc_loop_pair *const pair = net->peers[peer].setup.pair;

    pthread_mutex_lock(&mutex);
    const bool met = pair->memory != NULL;
    pthread_mutex_unlock(&mutex);
    return met;
}

void dsc_loopback_withdraw(struct dsc_setup *setup)
{
    if (setup->pair == NULL)
        return;
    pthread_mutex_lock(&mutex);
    for (struct dsc_loop_pair **at = &waiting; *at != NULL; at = &(*at)->next) {
        if (*at == setup->pair) {
            *at = setup->pair->next;
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    dsc_loop_unref(setup->pair);
    setup->pair = NULL;
}

void dsc_loop_fill_box(struct dsc_loop_pair *pair, int side, enum dsc_loop_box_state state,
                       dscomm_status_t status, int rank, const char *text)
{
    for (int i = 0; i < DSC_N_BOXES; i++) {
        struct dsc_loop_box *const box = &pair->boxes[side][i];

        if (atomic_load_explicit(&box->state, memory_order_relaxed) != DSC_BOX_EMPTY)
            continue;
        box->status = status;
        box->rank = rank;
        snprintf(box->text, sizeof(box->text), "%s", text);
        atomic_store_explicit(&box->state, state, memory_order_release);
        break;
    }
    if (pair->bells[!side] != NULL)
        dsc_local_bell_ring(pair->bells[!side]);
}

void dsc_loopback_tell(struct dsc_net *net, dscomm_status_t status, int rank, const char *text)
{
    pthread_mutex_lock(&mutex);
    for (struct dsc_loop_pair *pair = waiting; pair != NULL; pair = pair->next)
        for (int side = 0; side < 2; side++)
            if (pair->job == net->job && pair->ranks[side] == net->rank)
                dsc_loop_fill_box(pair, side, DSC_BOX_ERROR, status, rank, text);
    pthread_mutex_unlock(&mutex);
}

void dsc_loopback_look(struct dsc_net *net, int peer)
{
    const struct dsc_loop_pair *const pair = net->peers[peer].setup.pair;
    const struct dsc_loop_box *const boxes = pair->boxes[net->rank < peer];

    if (dsc_loopback_met(net, peer))
        return;
    for (int i = 0; i < DSC_N_BOXES && atomic_load(&boxes[i].state) == DSC_BOX_ERROR; i++)
        dsc_net_heard(net, NULL, boxes[i].status, boxes[i].rank, boxes[i].text);
}
