/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a communicator. comm.c makes and ends it, comm_tiers.c says which ranks are near each
 * other, arguments.c checks calls, collectives.c hands them to the backend, plans.c keeps plans by
 * shape. host*.c is the host backend; mismatch.c (what ranks disagree on), notes.c (what ranks tell
 * each other of a call), gather.c (what they tell besides), stream.c (the ordered queue),
 * measure*.c (links and codecs for a tuner), batch.c and split.c are parts of it. The CUDA backend
 * is a library of its own, libdscomm_cuda.
 */
#ifndef DSC_COMM_H
#define DSC_COMM_H

#include "comm/calls.h"
#include "comm/turns.h"
#include "exec/exec.h"
#include "topo/topo.h"
#include "tuner/tuner.h"

#define DSC_MAX_PLANS 256

/*
 * Of the last finished call, for whoever asks while the next one ends. Calls take no locks: the
 * writer makes the version odd while it writes, a reader whose version has changed reads again.
 */
#define DSC_CALL_WORDS (sizeof(dscomm_call_stats_t) / sizeof(uint64_t))
struct dsc_last_call {
    _Atomic uint32_t version; /* 0: there was none */
    _Atomic uint64_t words[DSC_CALL_WORDS];
};

/*
 * For tests: what a rank says of itself in place of what it has seen. call: number of the
 * communicator's allreduce, from 0.
 */
typedef uint32_t dsc_note_fn(void *user, uint64_t call, uint32_t note);

/* For tests: a rank's rates in place of what a profile or a measurement says. */
typedef void dsc_rates_fn(void *user, struct dsc_rates *rates_out);

struct dscomm_comm;
struct dsc_auto;
struct dsc_measure;

struct dsc_plan_entry {
    struct dsc_shape shape;
    struct dscomm_plan *plan;
    void *run;          /* what the backend has made for it */
    uint64_t last_used; /* call number, so the same entry is evicted on all ranks */
    bool pinned;        /* the caller holds the plan: never evicted */
};

/*
 * Where calls of a communicator run. The arguments were checked as far as that is possible without
 * knowing the backend; calls of a communicator come from one thread at a time.
 */
struct dsc_backend {
    const char *name;
    bool fuses;          /* small allreduces of a group may become one call */
    bool has_slots;      /* connections carry so much at once, and chunks are short */
    bool notes_are_late; /* those of an epoch come together, when the next one has ended */
    /* What of shapes only the backend knows: codecs that it does not have. */
    dscomm_status_t (*check_shape)(const struct dscomm_comm *comm, const struct dsc_shape *shape);
    /* Kinds of memory; before anything is touched. */
    dscomm_status_t (*check)(const struct dscomm_comm *comm, dscomm_stream_t *stream,
                             const struct dsc_call_args *args);
    /* Runs the call, or queues it. */
    dscomm_status_t (*issue)(struct dscomm_comm *comm, dscomm_stream_t *stream,
                             const struct dsc_call_args *args);
    /* entry->plan is there: makes entry->run. Collective. */
    dscomm_status_t (*prepare)(struct dscomm_comm *comm, struct dsc_plan_entry *entry);
    /* Ends entry->run, NULL too. */
    void (*drop)(struct dsc_plan_entry *entry);
    /* Tells the peers of an error, as in dsc_comm_fail(); text is the error's and may be improved.
     */
    void (*tell)(struct dscomm_comm *comm, const struct dsc_plan_entry *entry, dscomm_status_t st,
                 int bad_rank, char *text, size_t text_bytes);
    void (*abort)(struct dscomm_comm *comm);
    /* Adds what the backend counts. */
    void (*stats)(const struct dscomm_comm *comm, dscomm_stats_t *stats);
    /* ---- codec auto; collective ones as their namesakes below ---- */
    bool (*has_codec)(const struct dsc_codec *codec); /* NULL: all */
    dscomm_status_t (*gather)(struct dscomm_comm *comm, const void *own, size_t n, uint8_t *all);
    dscomm_status_t (*measure)(struct dscomm_comm *comm, const struct dsc_measure *what,
                               int budget_ms, struct dsc_rates *rates_out);
    /* Corrects what measurements depend on here. NULL: nothing to correct. */
    void (*describe)(const struct dscomm_comm *comm, struct dsc_fingerprint *machine);

    /* dscomm_comm_split(); the arguments were checked. */
    dscomm_status_t (*split)(struct dscomm_comm *comm, int color, int key,
                             const dscomm_comm_config_t *config, dscomm_comm_t **comm_out);
    /* Ends plans and parts; on an error nothing has ended. All calls are over. */
    dscomm_status_t (*close)(struct dscomm_comm *comm);
};

extern const struct dsc_backend dsc_backend_host;

/* The first member of a backend's own struct, if it has one. */
struct dscomm_comm {
    const struct dsc_backend *backend;
    int n_ranks, rank;
    dscomm_comm_config_t config; /* as the communicator was made, all members set */
    char transport[16];          /* config.transport */
    size_t chunk_elems, min_chunk_elems;
    size_t oneshot_bytes;
    enum dsc_algorithm algorithm;      /* DSC_ALG_AUTO: by size */
    int cpus_per_host, ranks_per_host; /* of this rank's host: CPUs that its ranks may use */
    struct dsc_tiers tiers;
    char *tiers_text; /* as DSCOMM_TIERS gives them */
    struct dsc_plan_entry plans[DSC_MAX_PLANS];
    int n_plans;
    struct dsc_plan_entry *last; /* used last, looked at first */
    struct dsc_group group;
    uint32_t sequence; /* of the next call on the wire */
    struct dsc_turns turns;
    _Atomic uint64_t calls, call_ns, plans_made;
    _Atomic bool failing; /* somebody writes error_text, or has */
    _Atomic int failed;   /* dscomm_status_t of the first error */
    char error_text[DSC_ERROR_TEXT_MAX];
    /* The host backend's. */
    struct dsc_net *net;
    struct dsc_exec *exec;
    struct dsc_batch *batches;
    struct dsc_pack pack;
    void *saved_input;
    size_t saved_bytes;
    struct dsc_last_call last_call;
    uint64_t allreduces;        /* finished */
    uint32_t own_note;          /* about the last of them; what the next one tells */
    struct dsc_budget budget;   /* of codec auto */
    struct dsc_auto *automatic; /* NULL before the first call with that codec */
    dsc_note_fn *note_fn;
    dsc_rates_fn *rates_fn;
    void *test_user; /* of both */
};

/* ---- comm.c ---- */

dscomm_status_t dsc_comm_check_config(const dscomm_comm_config_t *config);
/* A config with the environment's values filled in, all members set. config: NULL for defaults. */
DSC_SHARED dscomm_status_t dsc_comm_settings(const dscomm_comm_config_t *config,
                                             const struct dsc_env *env,
                                             dscomm_comm_config_t *settings_out);
/* As dscomm_comm_create(); tiers go before DSCOMM_TIERS, NULL: that. */
dscomm_status_t dsc_comm_create(int n_ranks, int rank, const dscomm_unique_id_t *id,
                                const dscomm_comm_config_t *config, const char *tiers,
                                dscomm_comm_t **comm_out);
/* What all backends have. comm is zeroed. */
DSC_SHARED void dsc_comm_init(struct dscomm_comm *comm, const struct dsc_backend *backend,
                              int n_ranks, int rank, const dscomm_comm_config_t *settings,
                              const struct dsc_env *env);
/* The config that makes a communicator with the same settings; borrowed from comm. */
void dsc_comm_config_of(const struct dscomm_comm *comm, dscomm_comm_config_t *config_out);

/* ---- host_open.c ---- */

/*
 * Makes the parts; takes boot->listen_fd, unless it fails before. tiers: as dsc_tiers_build()
 * has them given, "" for those of the hosts.
 */
dscomm_status_t dsc_host_open(struct dscomm_comm *comm, struct dsc_bootstrap *boot,
                              const struct dsc_env *env, const char *tiers);

/* ---- host.c ---- */

/* Waits for the ticket's turn, runs the call, lets the next one go. */
dscomm_status_t dsc_comm_run(struct dscomm_comm *comm, uint32_t ticket,
                             const struct dsc_call_args *args);
/* A call's plan is there and its memory is ready: runs it, with its draw; an error has been told to
 * the peers. */
dscomm_status_t dsc_comm_execute(struct dscomm_comm *comm, struct dsc_plan_entry *entry,
                                 struct dsc_call *call);

/* ---- notes.c ---- */

/* What the rank tells in a call: 0 unless it is an allreduce. */
uint32_t dsc_notes_own(const struct dscomm_comm *comm, const struct dsc_plan_params *params);
/* For dscomm_comm_last_call(). One thread at a time. */
DSC_SHARED void dsc_notes_publish(struct dscomm_comm *comm, const dscomm_call_stats_t *stats);
/* A call has finished: what is known of it is kept. */
void dsc_notes_finish(struct dscomm_comm *comm, const struct dscomm_plan *plan,
                      const struct dsc_exec_outcome *outcome);

/* ---- auto*.c: in a call's turn ---- */

/*
 * A call with codec auto gets codec and choice; with any other it stays as it is. The first auto
 * call makes ready, which is collective, and takes a moment where no profile fits. An error has
 * been told to the peers.
 */
DSC_SHARED dscomm_status_t dsc_auto_resolve(struct dscomm_comm *comm, struct dsc_shape *shape);
/*
 * The same by what was chosen for such a call before, without talking to anybody. False: nothing
 * was.
 */
DSC_SHARED bool dsc_auto_recall(const struct dscomm_comm *comm, struct dsc_shape *shape);
/* What the guard is to be told about the call that was resolved last. */
DSC_SHARED struct dsc_guard_call dsc_auto_running(const struct dscomm_comm *comm);
/* Another allreduce has its merged note, which is about `call`. */
DSC_SHARED void dsc_auto_feed(struct dscomm_comm *comm, uint32_t note,
                              const struct dsc_guard_call *call);
/* An allreduce has finished, with this merged note about the one before. */
void dsc_auto_finish(struct dscomm_comm *comm, uint32_t note);
void dsc_auto_destroy(struct dsc_auto *automatic); /* NULL allowed */
/* What it has learned. NULL: no auto call was made. */
DSC_SHARED const struct dsc_guard *dsc_auto_guard(const struct dscomm_comm *comm);
/* auto_rates.c: the worst of all ranks, from profiles or by measuring. Collective. */
dscomm_status_t dsc_auto_rates(struct dscomm_comm *comm, struct dsc_rates *rates_out);

/* ---- split.c ---- */

/* What a rank says when a communicator is split. */
struct dsc_split_member {
    int color, key;
};

/*
 * Tiers that were given for all ranks, as they are among those of this rank's color; "" if none
 * were. members: [n_ranks]. Owned by the caller; NULL: out of memory.
 */
DSC_SHARED char *dsc_split_tiers(const struct dscomm_comm *comm,
                                 const struct dsc_split_member *members);
dscomm_status_t dsc_comm_split_host(struct dscomm_comm *comm, int color, int key,
                                    const dscomm_comm_config_t *config, dscomm_comm_t **comm_out);

/* ---- collectives.c ---- */

/* DSCOMM_ERR_BAD_STATE once the communicator has failed. */
DSC_SHARED dscomm_status_t dsc_comm_check(const struct dscomm_comm *comm);
/* The communicator has failed, by the first error that comes here. Threads: any. */
DSC_SHARED void dsc_comm_set_failed(struct dscomm_comm *comm, dscomm_status_t status,
                                    const char *text);
/*
 * Tells the peers of an error and keeps it: the communicator has failed. entry: of the call's plan,
 * as far as it was made, or NULL. bad_rank: who sent a message of another call, -1 unknown. Returns
 * st; the thread's last error is the full text.
 */
DSC_SHARED dscomm_status_t dsc_comm_fail(struct dscomm_comm *comm,
                                         const struct dsc_plan_entry *entry, dscomm_status_t st,
                                         int bad_rank);

/* ---- plans.c ---- */

bool dsc_shape_equal(const struct dsc_shape *a, const struct dsc_shape *b);

/* What a plan's parameters take from the shape alone. */
DSC_SHARED struct dsc_plan_params dsc_shape_params(const struct dscomm_comm *comm,
                                                   const struct dsc_shape *shape);
/* NULL: there is none yet. */
DSC_SHARED struct dsc_plan_entry *dsc_comm_find_plan(struct dscomm_comm *comm,
                                                     const struct dsc_shape *shape);
/*
 * Finds or makes; making is collective. An error has been told to the peers, unless all plans are
 * held by the caller: that is so on all ranks, and the communicator stays usable.
 */
DSC_SHARED dscomm_status_t dsc_comm_plan(struct dscomm_comm *comm, const struct dsc_shape *shape,
                                         struct dsc_plan_entry **entry_out);
DSC_SHARED void dsc_comm_drop_plans(struct dscomm_comm *comm);
/* Whether an allreduce that is made as a two-shot goes by the communicator's tiers. */
DSC_SHARED bool dsc_shape_is_tiered(const struct dscomm_comm *comm, const struct dsc_shape *shape);
/* Of a vector of so many elements, in messages of float32. */
size_t dsc_comm_chunk(const struct dscomm_comm *comm, size_t count);

/* ---- comm_tiers.c ---- */

/*
 * What ranks compare of DSCOMM_TIERS, in at most DSC_TIERS_SETTING_BYTES: the same text where they
 * give the same tiers. DSCOMM_ERR_ENV as dsc_tiers_build().
 */
#define DSC_TIERS_SETTING_BYTES 128
DSC_SHARED dscomm_status_t dsc_tiers_setting(const char *given, int n_ranks, char *text,
                                             size_t bytes);
/*
 * Makes the communicator's tiers and logs them; plans made so far go. facts: [n_ranks], the same on
 * all ranks; NULL if tiers are given.
 */
DSC_SHARED dscomm_status_t dsc_comm_set_tiers(struct dscomm_comm *comm,
                                              const struct dsc_tier_facts *facts,
                                              const char *given);

/*
 * Tiers of some of the ranks, [n] of them, who are ranks 0 to n - 1 in a communicator of their own.
 * The text is the caller's, "" if they follow from facts there too. NULL: out of memory.
 */
char *dsc_tiers_of_some(const struct dscomm_comm *comm, const int *ranks, int n);

/* ---- gather.c ---- */

/*
 * Every rank's n bytes. all: [n_ranks][n]. In a call's turn, collective, an error ends the
 * communicator.
 */
dscomm_status_t dsc_comm_gather(struct dscomm_comm *comm, const void *own, size_t n, uint8_t *all);

/* ---- measure*.c: in a call's turn, collective, an error ends the communicator ---- */

/* What to measure besides links. */
struct dsc_measure_codec {
    const struct dsc_codec *codec;
    dscomm_dtype_t dtype;
    bool feedback;
};
struct dsc_measure {
    const struct dsc_measure_codec *codecs;
    size_t n_codecs; /* at most DSC_SPEEDS_MAX */
};

/* All that a tuner looks at. Returns their number. */
size_t dsc_measure_all(struct dsc_measure_codec codecs[DSC_SPEEDS_MAX]);
/* Value i to measure with: bell-shaped as of gradients, not all of one size. */
DSC_SHARED float dsc_measure_value(size_t i);
/*
 * Measures in about budget_ms. `what` and budget_ms are the same on all ranks, and so are the
 * rates: the worst of all ranks. Codecs that the time was too short for are left out. Of one rank
 * alone there are no links to measure.
 */
dscomm_status_t dsc_comm_measure(struct dscomm_comm *comm, const struct dsc_measure *what,
                                 int budget_ms, struct dsc_rates *rates_out);
/*
 * Whom a rank sends to while links of a tier are measured: every rank to one of another sub-group
 * of its group. -1: it is alone there.
 */
DSC_SHARED int dsc_measure_target(const struct dscomm_comm *comm, int tier, int rank);
/* All but what is measured. */
DSC_SHARED void dsc_rates_begin(const struct dscomm_comm *comm, struct dsc_rates *rates_out);
/* Each rank's rates become the worst of all ranks, the same everywhere. */
DSC_SHARED dscomm_status_t dsc_comm_merge_rates(struct dscomm_comm *comm, struct dsc_rates *rates);
/* Of this rank's machine and the communicator's settings. Not collective. */
dscomm_status_t dsc_comm_fingerprint(const struct dscomm_comm *comm,
                                     struct dsc_fingerprint *machine_out);

/* ---- mismatch.c ---- */

/*
 * Compares two descriptors, "key=value key=value". Writes "ranks disagree on count: rank 0 has
 * 1000, rank 1 has 998; ..." and returns the number of fields that differ.
 */
DSC_SHARED int dsc_describe_difference(const char *mine, int my_rank, const char *theirs,
                                       int their_rank, char *text, size_t text_bytes);
/*
 * A message of another call arrived, or a peer says one did. Tells the own descriptor to all and
 * waits at most a second for one that differs. Writes the error text over the reason in `text`,
 * which stays if no descriptor differs.
 */
void dsc_comm_explain_mismatch(struct dscomm_comm *comm, const char *descriptor, int bad_rank,
                               char *text, size_t text_bytes);

#endif
