/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank has measured of its machine: links per tier and codecs. Integers of a fixed size and
 * no pointers: ranks gather it, profiles hold it, decisions are computed from it.
 */
#ifndef DSC_RATES_H
#define DSC_RATES_H

#include "topo/topo.h"

#define DSC_RATES_VERSION 3
#define DSC_SPEEDS_MAX 64
#define DSC_SPEED_SPEC_BYTES 32

/* All 0 but kind: this rank has not measured the tier, for want of a partner in it. */
struct dsc_tier_rates {
    uint32_t kind;              /* enum dsc_tier_kind */
    uint32_t message_ns;        /* CPU time of a rank per message, sent or received */
    uint64_t latency_ns;        /* one way, small message, until the receiver's engine has it */
    uint64_t bytes_per_s_alone; /* one pair, one direction */
    uint64_t bytes_per_s;       /* per rank and direction, while all ranks send and receive */
    uint32_t byte_fs;           /* CPU time of a rank per byte moved, femtoseconds */
    uint32_t far_byte_fs; /* the same with more bytes under way than caches hold; 0: not measured */
    uint32_t by_memory;   /* 1: ranks write and read messages in shared memory: codecs' time */
};

/*
 * Femtoseconds per element, of one rank while all ranks of its host compute: a GPU takes a few
 * hundred for the cheapest step, a CPU some hundred thousand.
 */
struct dsc_codec_speed {
    char spec[DSC_SPEED_SPEC_BYTES]; /* canonical, zeros behind the text */
    uint8_t dtype;                   /* dscomm_dtype_t */
    uint8_t feedback;                /* 0 or 1 */
    uint32_t send_fs;                /* SEND: encode the own value (and the residual) */
    uint32_t add_fs;                 /* the owner's operation, per received message: decode, add */
    uint32_t own_fs; /* the same without messages: own value, sum, encode, decode to the output */
    uint32_t decode_fs; /* DECODE to the output */
    /* The same of vectors that no cache holds; 0: not measured, as those above. */
    uint32_t far_send_fs, far_own_fs, far_decode_fs;
};

struct dsc_rates {
    uint32_t version, n_tiers;
    struct dsc_tier_rates tiers[DSC_TIERS_MAX]; /* fastest first */
    uint32_t n_speeds;
    struct dsc_codec_speed speeds[DSC_SPEEDS_MAX];
    uint32_t cpus_per_host, ranks_per_host; /* as measured */
    uint32_t call_ns;                       /* fixed cost of a call */
    uint32_t op_ns;                         /* fixed cost of an operation of a plan */
    uint32_t overlap;                       /* 1: stages of a call overlap, 0: one after another */
    uint32_t stage_ns;     /* CPU time of a stage of a call: a rank sleeps and is woken in it */
    uint32_t header_bytes; /* of each message, on top of what a codec makes */
    uint64_t cache_bytes;  /* last-level cache that ranks of a host share; 0: not known */
};

/*
 * False: some value is out of its range. Writes "tiers[1].latency_ns is 0, must be 1 to
 * 10000000000" to text. Entries beyond n_tiers and n_speeds are not looked at.
 */
bool dsc_rates_check(const struct dsc_rates *rates, char *text, size_t text_bytes);

/*
 * The worst of both: least bandwidth, largest latency, slowest codec. Codecs that only one of them
 * has are dropped, so that nobody picks what a rank could not measure. Merging all ranks' rates in
 * the same order gives the same rates everywhere.
 *
 * DSCOMM_ERR_INVALID   a value of either is out of its range
 * DSCOMM_ERR_MISMATCH  they are of other tiers; into is as it was
 */
dscomm_status_t dsc_rates_merge(struct dsc_rates *into, const struct dsc_rates *other);

/* "host", "tcp", ...; "?" */
const char *dsc_tier_kind_name(uint32_t kind);

/* Of a codec, NULL: not measured. */
const struct dsc_codec_speed *dsc_rates_speed(const struct dsc_rates *rates, const char *spec,
                                              dscomm_dtype_t dtype, bool feedback);

/* ---- as bytes, little endian ---- */

#define DSC_RATES_WIRE_BYTES (10 * 4 + 8 + DSC_TIERS_MAX * 44 + DSC_SPEEDS_MAX * (32 + 2 + 7 * 4))

void dsc_rates_wire_put(const struct dsc_rates *rates, uint8_t wire[DSC_RATES_WIRE_BYTES]);
/* DSCOMM_ERR_CORRUPT: a value is out of its range, *rates_out is as it was. from: rank, for the
 * text. */
dscomm_status_t dsc_rates_wire_get(const uint8_t wire[DSC_RATES_WIRE_BYTES], int from,
                                   struct dsc_rates *rates_out);

#endif
