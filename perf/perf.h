/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the *_perf programs share: options, inputs whose sum is known, starting ranks, timing,
 * checks, table and JSON. A program is one struct perf_collective and `return perf_main(...)`. Only
 * public headers of the library are used. docs/perf.md defines every figure.
 *
 *   perf_args.c     options             perf_control.c  small facts shared over the communicator
 *   perf_data.c     sources of inputs   perf_inputs.c   what a call gets of them, and its sum
 *   perf_check.c    what is right       perf_rank.c     a rank's life, loops over codecs and sizes
 *   perf_launch.c   processes, threads  perf_measure.c  the calls of a row
 *   perf_report.c   table, summary      perf_json.c     the same as JSON
 *   perf_getopt.c   the command line    perf_vectors.c  what a collective's vectors hold
 *   perf_values.c   values of options, of all programs
 *   perf_host.c     vectors in host memory      perf_cuda.c, perf_no_cuda.c  in a GPU's
 */
#ifndef PERF_H
#define PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "dscomm/dscomm.h"

#define PERF_MAX_CODECS 32
#define PERF_TEXT_BYTES 256

/* Exit codes of the programs. */
enum { PERF_EXIT_OK = 0, PERF_EXIT_FAILED = 1, PERF_EXIT_USAGE = 2 };

#define PERF_TRY(expr)                      \
    do {                                    \
        const dscomm_status_t st_ = (expr); \
        if (st_ < 0)                        \
            return st_;                     \
    } while (0)

/* ---- options ---- */

struct perf_args {
    const char *program;
    int argc;
    char **argv;
    size_t min_bytes, max_bytes;
    size_t step_bytes;
    size_t step_factor; /* 0: add step_bytes */
    int n_iters, n_warmup;
    int n_ranks;    /* local ranks to start; 0: not given */
    int n_threads;  /* of a rank; 0: the library's default */
    int timeout_s;  /* 0: the library's default */
    int n_replays;  /* launches of a captured graph per timed iteration; 0: calls are eager */
    bool on_cuda;   /* vectors are in device memory */
    int root;       /* of a broadcast */
    size_t unalign; /* first element of the buffers that is used */
    bool check, per_iter, feedback;
    dscomm_op_t ops[4];
    int n_ops;
    dscomm_dtype_t dtypes[3];
    int n_dtypes;
    const char *codecs[PERF_MAX_CODECS]; /* texts, borrowed from argv */
    int n_codecs;
    const char *transport;
    const char *algorithm; /* NULL: DSCOMM_ALGORITHM */
    const char *data;      /* "normal", "lm", "cnn" or "file:PATH" */
    const char *json_path; /* NULL: none */
};

/* False: *exit_code_out is what the program ends with (0 after --help); a text was printed. */
bool perf_args_parse(struct perf_args *args, int argc, char **argv, int *exit_code_out);
/* One line on stderr: "PROGRAM: OPTION 'VALUE': ..."; value NULL: none. */
void perf_complain(const struct perf_args *args, const char *option, const char *value,
                   const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Of either of a rank's vectors. */
size_t perf_buffer_bytes(const struct perf_args *args);
/* Next size of the sweep, or false at its end. */
bool perf_next_size(const struct perf_args *args, size_t *bytes);

const char *perf_dtype_name(dscomm_dtype_t dtype); /* nccl-tests' names: float half bfloat16 */
const char *perf_op_name(dscomm_op_t op);
size_t perf_dtype_bytes(dscomm_dtype_t dtype);

/* ---- inputs: sets of values that ranks take in turn ---- */

struct perf_source {
    char text[PERF_TEXT_BYTES]; /* for the header */
    size_t n_sets, n_elems;
    float *values; /* [n_sets][n_elems], finite */
};

/* A mixed counter: bits that look random. */
uint64_t perf_splitmix64(uint64_t x);

bool perf_source_init(struct perf_source *source, const struct perf_args *args);
void perf_source_fini(struct perf_source *source);

/* A source in one data type, for one operation, seen from one rank. Vectors repeat their set. */
struct perf_inputs {
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    int rank, n_ranks;
    size_t n_sets, n_elems;
    uint8_t *values; /* [2][n_sets][n_elems] of dtype: the source, then its negative */
    double *typical; /* [n_elems] mean square over the sets */
    double *want;    /* [n_elems] by perf_inputs_expect(): the exact result */
    double *mag;     /* [n_elems] likewise: sum of magnitudes, scaled as the result */
    int n_summed;    /* likewise: ranks that the result is made of */
};

/* Rank, n_ranks, dtype and op are set; the rest is filled in. */
dscomm_status_t perf_inputs_init(struct perf_inputs *in, const struct perf_source *source);
void perf_inputs_fini(struct perf_inputs *in);
/* This rank's vector of call number `call`. */
void perf_inputs_fill(const struct perf_inputs *in, void *dst, size_t count, uint64_t call);
/* rank: whose vector is wanted; PERF_ALL_RANKS: the operation's result over all. */
#define PERF_ALL_RANKS (-1)
void perf_inputs_expect(struct perf_inputs *in, uint64_t call, int rank);
/* dst[i] = src[i % period] */
void perf_repeat(void *dst, size_t count, const void *src, size_t period, size_t elem_bytes);

/* Conversions written apart from the library's, because they judge it. Nearest even. */
float perf_load(dscomm_dtype_t dtype, const void *bits, size_t i);
void perf_store(dscomm_dtype_t dtype, void *bits, size_t i, float value);

/* ---- a rank at work ---- */

struct perf_report;
struct perf_collective;

struct perf_rank {
    const struct perf_args *args;
    const struct perf_collective *coll;
    const struct perf_source *source;
    const struct perf_place_ops *where;
    dscomm_comm_t *control; /* host: small facts */
    dscomm_comm_t *comm;    /* what is measured; may be `control` */
    dscomm_stream_t *stream;
    void *where_state;
    int rank, n_ranks;
    void *send_mem, *recv_mem;
    uint8_t *send, *recv;       /* first element used, args->unalign into the memory */
    uint64_t n_calls;           /* so far, equal on all ranks: decides the data */
    char doing[128];            /* for the line that says where it failed */
    bool is_wrong;              /* a result so far was */
    struct perf_report *report; /* rank 0 */
};

/* One row of the table. */
struct perf_row {
    size_t count; /* as the call takes it: of a share, where vectors hold shares */
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    const dscomm_codec_t *codec;
    dscomm_feedback_t *feedback; /* NULL: none */
    struct perf_inputs *in;
};

struct perf_collective {
    const char *program;
    bool sends_shares, recvs_shares;   /* the vector has `count` elements for every rank */
    bool has_root;                     /* all get the root's vector; takes no feedback */
    bool reduces;                      /* takes an operation; else redop is "none" */
    double (*bus_factor)(int n_ranks); /* busbw / algbw */
    /* What a rank must send uncompressed, mean over ranks, in parts of the larger vector. */
    double (*sent_factor)(int n_ranks);
    dscomm_status_t (*call)(const struct perf_rank *rank, const struct perf_row *row,
                            const void *send, void *recv);
};

/* ---- where vectors are when they are reduced; data are made and checked in host memory ---- */

struct perf_place_ops {
    /* Makes comm, and what the others need. `control` and the host's buffers are there. Collective.
     */
    dscomm_status_t (*open)(struct perf_rank *pr, const dscomm_comm_config_t *config);
    void (*close)(struct perf_rank *pr);
    dscomm_status_t (*feedback_create)(size_t count, dscomm_feedback_t **fb_out);
    /* Around the timed calls of a row in one placement. */
    dscomm_status_t (*begin)(struct perf_rank *pr, const struct perf_row *row, bool in_place);
    void (*end)(struct perf_rank *pr);
    /* Brings the input there; outside of times, as get is. */
    dscomm_status_t (*put)(const struct perf_rank *pr, const struct perf_row *row, bool in_place);
    /* A call, or what begin() made of it; back when it is over. */
    dscomm_status_t (*call)(const struct perf_rank *pr, const struct perf_row *row, bool in_place,
                            double *us_out);
    dscomm_status_t (*get)(const struct perf_rank *pr, const struct perf_row *row, bool in_place);
    /* "device 0, NAME" for the header. */
    void (*describe)(const struct perf_rank *pr, char *text, size_t text_bytes);
    /* What figures mean, where they do not mean speed; NULL: nothing to say. */
    const char *(*caveat)(const struct perf_rank *pr);
};
extern const struct perf_place_ops perf_on_host;
extern const struct perf_place_ops *const perf_on_cuda; /* NULL: not built */

/* ---- what a collective's vectors hold ---- */

size_t perf_send_count(const struct perf_rank *pr, const struct perf_row *row);
size_t perf_recv_count(const struct perf_rank *pr, const struct perf_row *row);
/* Bytes of the larger vector: the size of a row, as nccl-tests counts. */
size_t perf_row_bytes(const struct perf_rank *pr, const struct perf_row *row);
/* The count of a row of about so many bytes; shares are multiples of 16 bytes, as in nccl-tests. */
size_t perf_row_count(const struct perf_rank *pr, dscomm_dtype_t dtype, size_t bytes);
/* Both vectors of a call in one of its two placements. */
void perf_place(const struct perf_rank *pr, const struct perf_row *row, bool in_place,
                uint8_t **send_out, uint8_t **recv_out);

/* The output is made of parts of row->count elements. */
struct perf_part {
    int rank;     /* whose vector it comes from, or PERF_ALL_RANKS */
    size_t first; /* element of that vector */
};
int perf_n_parts(const struct perf_rank *pr);
struct perf_part perf_part(const struct perf_rank *pr, const struct perf_row *row, int i);

/* -1: has none. */
int perf_root(const struct perf_collective *coll, const struct perf_args *args);
const char *perf_redop_name(const struct perf_collective *coll, dscomm_op_t op);
/* Bus and sent factor where each rank sends all but its own share. */
double perf_others_factor(int n_ranks);

struct perf_placement {
    double mean_us, median_us, p99_us, min_us, max_us, stdev_us;
    double alg_gbps, bus_gbps; /* 10^9 bytes per second */
    double err;                /* relative L2 */
    int64_t n_wrong;           /* -1: not checked */
    float *times_us;           /* [n_iters], owned; NULL unless asked for */
};

struct perf_result {
    size_t bytes, count;
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    bool feedback;
    char codec[64];
    char plan[PERF_TEXT_BYTES];
    double wire_bytes; /* sent per rank and call, headers included; mean over ranks */
    double ratio;      /* what an uncompressed exchange must send / wire_bytes; 0: none */
    double err;        /* larger of both placements */
    struct perf_placement places[2]; /* out-of-place, in-place */
};

/* Measures a row in both placements, checks it, reports it. Collective. */
dscomm_status_t perf_run_row(struct perf_rank *pr, const struct perf_row *row);

/* Runs all rows. PERF_EXIT_*; prints why. id NULL: the launcher's variables. */
int perf_rank_run(const struct perf_args *args, const struct perf_collective *coll,
                  const struct perf_source *source, int rank, int n_ranks,
                  const dscomm_unique_id_t *id);

/* ---- control: collective over the communicator, `none`, outside every timed region ---- */

dscomm_status_t perf_barrier(const struct perf_rank *pr);
dscomm_status_t perf_max_f32(const struct perf_rank *pr, float *values, size_t n);
dscomm_status_t perf_sum_u64(const struct perf_rank *pr, uint64_t value, uint64_t *sum_out);
dscomm_status_t perf_all_equal(const struct perf_rank *pr, uint64_t value, bool *equal_out);
/* Rank 0's bytes, to all. */
dscomm_status_t perf_share_bytes(const struct perf_rank *pr, void *bytes, size_t n);
/* Every rank's text of up to PERF_LINE_BYTES - 1 bytes; lines: [n_ranks][PERF_LINE_BYTES]. */
#define PERF_LINE_BYTES 160
dscomm_status_t perf_gather_lines(const struct perf_rank *pr, const char *line,
                                  char (*lines)[PERF_LINE_BYTES]);

/* ---- checks ---- */

/* A call on values that every codec carries exactly; adds the wrong elements to *n_wrong. */
dscomm_status_t perf_check_probe(const struct perf_rank *pr, const struct perf_row *row,
                                 bool in_place, int64_t *n_wrong);
/* Compares a call's output with the known result; adds to *n_wrong; rank 0 says why on stderr. */
void perf_check_output(const struct perf_rank *pr, const struct perf_row *row, const void *out,
                       uint64_t call, double *err_out, int64_t *n_wrong);
uint64_t perf_hash(uint64_t seed, const void *bytes, size_t n_bytes);

/* ---- report, rank 0 ---- */

struct perf_report {
    const struct perf_args *args;
    const struct perf_collective *coll;
    int n_ranks;
    const char *data_text;          /* borrowed */
    const char *tiers;              /* borrowed */
    const char *caveat;             /* static; NULL: none */
    char (*lines)[PERF_LINE_BYTES]; /* [n_ranks], owned: who and where the ranks are */
    struct perf_result *results;    /* owned */
    size_t n_results;
    uint64_t quiet_since_ns;          /* last time something was printed */
    char plan_shown[PERF_TEXT_BYTES]; /* last plan line of the table */
};

void perf_report_header(struct perf_report *report);
void perf_report_block(struct perf_report *report, const char *codec);
/* Prints a row and keeps it; the report owns the result's parts from here. */
dscomm_status_t perf_report_row(struct perf_report *report, const struct perf_result *result);
void perf_report_progress(struct perf_report *report, const struct perf_row *row, int iteration);
/* Summary and footer; PERF_EXIT_*. */
int perf_report_end(struct perf_report *report);
int64_t perf_report_wrong(const struct perf_report *report);
double perf_report_mean_bus(const struct perf_report *report);
void perf_report_destroy(struct perf_report *report);
/* False: could not be written; says so. */
bool perf_json_write(const struct perf_report *report);

/* ---- launch ---- */

/* True when a launcher (torchrun, mpirun, srun) has set this process's rank; names the variable. */
bool perf_launcher_present(const char **variable_out);

typedef int perf_rank_fn(void *user, int rank, int n_ranks, const dscomm_unique_id_t *id);
/* Ranks as processes (or as threads of one process), watched until the last has ended. */
int perf_launch(const struct perf_args *args, int n_ranks, bool as_threads, perf_rank_fn *fn,
                void *user);

uint64_t perf_now_ns(void);

int perf_main(const struct perf_collective *coll, int argc, char **argv);

#endif
