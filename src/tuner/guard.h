/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks learn from calls, and when it counts. The communicator's allreduces are cut into
 * epochs of DSC_EPOCH_CALLS; what is found in epoch e changes decisions from epoch e + 2 on, so a
 * rank that is up to an epoch ahead needs nobody's word. A pure state machine on integers: fed with
 * the same notes, which ranks hold alike after a call, all ranks change their decisions in the same
 * call.
 *
 * Where notes are late, an epoch is fed at once when the one after it has ended: what was found then
 * counts from there on, and that is the same rule.
 *
 *   error     three of the last 32 notes about a codec are above twice its nominal error, or what
 *             feedback keeps back grew in each of three epochs, beyond what it is bound by: that
 *             codec is banned, and all that lose as much
 *   drift     calls of an epoch took 30 % longer or less than predicted: wire times of the slowest
 *             tier are scaled, unless it is CPUs that differ: calls that took longer but hardly
 *             waited, or took less where the wire had a small part. Calls whose bytes were to take
 *             less time than their messages' latency say nothing of rates
 */
#ifndef DSC_GUARD_H
#define DSC_GUARD_H

#include "codec/codec.h"

#define DSC_EPOCH_CALLS 32
#define DSC_GUARD_CODECS 64 /* bits of a set of codecs */
#define DSC_GUARD_EVENTS 64 /* kept; older ones are gone */
#define DSC_GUARD_BAD_NOTES 3
#define DSC_GUARD_EPOCHS 3 /* of growth */
#define DSC_NO_LIMIT UINT32_MAX

/* The call that a note is about; equal on all ranks. All zero: not chosen by the tuner. */
struct dsc_guard_call {
    uint64_t predicted_ns, latency_ns, wire_ns; /* the last on the slowest tier */
    uint64_t cpu_ns;                            /* of the rank itself, kernels' on a device */
    uint64_t bytes;                             /* of the vector in its data type */
    const struct dsc_codec *codec;              /* of the slowest tier */
    int number;      /* of that codec among candidates, below DSC_GUARD_CODECS */
    uint32_t e0_ppm; /* nominal error of one encode; 0: lossless */
};

/* What was decided or learned, and why. */
struct dsc_guard_event {
    uint64_t call; /* allreduces before it */
    char text[400];
};

/* What decisions depend on. */
struct dsc_guard_state {
    uint32_t limit_ppm; /* codecs with this nominal error or more are banned */
    uint32_t scale_ppm; /* wire times of the slowest tier are so many millionths */
};

struct dsc_guard_codec {
    uint32_t bad;            /* the last 32 notes, newest in bit 0: above twice e0 */
    uint64_t residual_ppm;   /* largest of this epoch; */
    uint64_t before_ppm;     /* of the last epoch that had notes */
    uint32_t n_notes, grown; /* notes in this epoch; epochs of growth in a row */
    uint32_t e0_ppm;
    const struct dsc_codec *codec;
};

struct dsc_guard {
    struct dsc_guard_state now;
    uint32_t version;            /* changes when `now` does */
    uint64_t calls;              /* allreduces fed */
    struct dsc_guard_state next; /* what the running epoch has found */
    struct dsc_guard_state due;  /* found in the epoch before: `now` from the next epoch on */
    bool is_late;     /* the caller's: an epoch's notes are fed when the one after it has ended */
    bool has_changed; /* at the last epoch's end, `now` */
    uint64_t observed_ns, predicted_ns, wire_ns; /* of the epoch's notes that know times */
    uint64_t wait_ppm;                           /* sum of theirs */
    uint32_t n_timed;
    struct dsc_guard_codec codecs[DSC_GUARD_CODECS];
    struct dsc_guard_event events[DSC_GUARD_EVENTS]; /* ring */
    uint64_t n_events;                               /* all that there were */
};

/* Bits of the candidates that are banned, as in struct dsc_question. */
uint64_t dsc_guard_banned(const struct dsc_guard *guard);

void dsc_guard_init(struct dsc_guard *guard);

/* After each allreduce: the note that all ranks hold, about `call`. Any bits are a note. */
void dsc_guard_feed(struct dsc_guard *guard, uint32_t note, const struct dsc_guard_call *call);

/* Writes an event down. */
void dsc_guard_say(struct dsc_guard *guard, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The last DSC_GUARD_EVENTS before number n_events are kept. */
const struct dsc_guard_event *dsc_guard_at(const struct dsc_guard *guard, uint64_t number);

#endif
