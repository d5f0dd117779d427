/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/comm: messages that ranks send each other to see how long they take. */
#ifndef DSC_MEASURE_BURST_H
#define DSC_MEASURE_BURST_H

#include "comm/measure.h"

/* Whom this rank talks to in a burst. */
struct dsc_pattern {
    int out; /* -1: to nobody */
    int n_in;
    const int *in;
};

struct dsc_burst {
    const struct dsc_pattern *pattern;
    const uint8_t *source; /* [bytes] what is sent */
    uint8_t *sink;         /* [bytes] where it ends */
    size_t bytes;
    uint32_t count;
    uint16_t stage;      /* in headers */
    uint64_t latency_ns; /* as far as it is known */
    /* What came of it. */
    uint64_t cpu_ns;
    uint64_t message_ns; /* of the slowest sender to this rank; 0: no sender */
};

/*
 * Every rank sends `count` messages to its target and takes those that are sent to it; they are
 * connected. An error ends the communicator.
 */
dscomm_status_t dsc_burst_run(struct dsc_meter *m, struct dsc_burst *b);

#endif
