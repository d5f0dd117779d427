/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordered queue of calls and the thread that runs them. One producer, one consumer: `tail`
 * counts calls added, `head` calls finished, both futex words.
 */
#include "comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define DEPTH 256u
#define SLEEP_NS 1000000000u

struct entry {
    struct dscomm_comm *comm;
    uint32_t ticket;
    struct dsc_call_args args;
};

struct dscomm_stream {
    struct entry entries[DEPTH];
    _Atomic uint32_t tail, head;
    _Atomic uint32_t wake; /* +1 per call added and at the end */
    _Atomic uint32_t stop;
    _Atomic int status; /* first error since the last synchronize */
    char error_text[DSC_ERROR_TEXT_MAX];
    pthread_t thread;
};

static void wake(struct dscomm_stream *stream)
{
    atomic_fetch_add(&stream->wake, 1);
    dsc_futex_wake(&stream->wake, 1);
}

static void keep_error(struct dscomm_stream *stream, dscomm_status_t st)
{
    if (st >= 0 || atomic_load(&stream->status) < 0)
        return;
    snprintf(stream->error_text, sizeof(stream->error_text), "%s", dscomm_last_error());
    atomic_store(&stream->status, st);
}

static void *stream_main(void *arg)
{
    struct dscomm_stream *stream = arg;
    uint32_t head = 0;

    for (;;) {
        const uint32_t seen = atomic_load(&stream->wake);

        if (head == atomic_load(&stream->tail)) {
            if (atomic_load(&stream->stop))
                return NULL;
            dsc_futex_wait(&stream->wake, seen, SLEEP_NS);
            continue;
        }
        const struct entry *e = &stream->entries[head % DEPTH];

        keep_error(stream, dsc_comm_run(e->comm, e->ticket, &e->args));
        head++;
        atomic_store(&stream->head, head);
        dsc_futex_wake(&stream->head, INT32_MAX); /* several threads may synchronize */
    }
}

dscomm_status_t dscomm_stream_create(dscomm_stream_t **stream_out)
{
    dscomm_stream_t *stream;

    if (stream_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "stream_out is NULL");
    stream = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*stream));
    if (stream == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "stream");
    if (!dsc_thread_start(&stream->thread, stream_main, stream)) {
        dsc_free(stream);
        return dsc_fail(DSCOMM_ERR_LIMIT, "cannot start a stream's thread");
    }
    *stream_out = stream;
    return DSCOMM_OK;
}

/* Waits until at most `open` calls are unfinished. */
static void wait_for_room(struct dscomm_stream *stream, uint32_t open)
{
    for (;;) {
        const uint32_t head = atomic_load(&stream->head);

        if (atomic_load(&stream->tail) - head <= open)
            return;
        dsc_futex_wait(&stream->head, head, SLEEP_NS);
    }
}

void dscomm_stream_destroy(dscomm_stream_t *stream)
{
    if (stream == NULL)
        return;
    wait_for_room(stream, 0);
    atomic_store(&stream->stop, 1);
    wake(stream);
    pthread_join(stream->thread, NULL);
    dsc_free(stream);
}

dscomm_status_t dsc_stream_add(struct dscomm_stream *stream, struct dscomm_comm *comm,
                               uint32_t ticket, const struct dsc_call_args *args)
{
    const uint32_t tail = atomic_load(&stream->tail);

    wait_for_room(stream, DEPTH - 1);
    stream->entries[tail % DEPTH] = (struct entry){ comm, ticket, *args };
    atomic_store(&stream->tail, tail + 1);
    wake(stream);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_stream_synchronize(dscomm_stream_t *stream)
{
    dscomm_status_t st;

    if (stream == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "stream is NULL");
    wait_for_room(stream, 0);
    st = (dscomm_status_t)atomic_load(&stream->status);
    if (st < 0)
        dsc_set_last_error(stream->error_text);
    atomic_store(&stream->status, DSCOMM_OK);
    return st;
}

dscomm_status_t dscomm_stream_query(dscomm_stream_t *stream)
{
    if (stream == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "stream is NULL");
    return atomic_load(&stream->tail) == atomic_load(&stream->head) ? DSCOMM_OK
                                                                    : DSCOMM_IN_PROGRESS;
}
