/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options, as nccl-tests names them. One table makes the parser, the help text and the error lines
 * (perf_getopt.c), so a bad value is always answered with the option and what it allows.
 */
#include "perf_options.h"
#include "perf_values.h"

#include <string.h>

struct name_row {
    const char *name;
    int id;
};

static const struct name_row dtype_names[] = {
    { "float", DSCOMM_FLOAT32 },   { "half", DSCOMM_FLOAT16 },    { "bfloat16", DSCOMM_BFLOAT16 },
    { "fp32", DSCOMM_FLOAT32 },    { "float32", DSCOMM_FLOAT32 }, { "fp16", DSCOMM_FLOAT16 },
    { "float16", DSCOMM_FLOAT16 }, { "bf16", DSCOMM_BFLOAT16 },
};
static const struct name_row op_names[] = {
    { "sum", DSCOMM_SUM },
    { "avg", DSCOMM_AVG },
    { "max", DSCOMM_MAX },
    { "min", DSCOMM_MIN },
};
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

const char *perf_dtype_name(dscomm_dtype_t dtype)
{
    return dtype_names[dtype].name;
}

const char *perf_op_name(dscomm_op_t op)
{
    return op_names[op].name;
}

size_t perf_dtype_bytes(dscomm_dtype_t dtype)
{
    return dtype == DSCOMM_FLOAT32 ? 4 : 2;
}

/* ---- values ---- */

/* An id by name, or all first n_all of the table; 0 when unknown. */
static int parse_names(const char *text, const struct name_row *names, size_t n, int n_all,
                       int *ids)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, names[i].name) == 0) {
            ids[0] = names[i].id;
            return 1;
        }
    }
    if (strcmp(text, "all") != 0)
        return 0;
    for (int i = 0; i < n_all; i++)
        ids[i] = names[i].id;
    return n_all;
}

/* nccl-tests counts checks; here all rows are checked or none. */
static bool parse_check(struct perf_args *args, const char *text)
{
    uint64_t n;

    if (!perf_parse_u64(text, 0, 1000000, &n))
        return false;
    args->check = n > 0;
    return true;
}

static bool parse_op(struct perf_args *args, const char *text)
{
    int ids[ARRAY_LEN(args->ops)];

    args->n_ops = parse_names(text, op_names, ARRAY_LEN(op_names), 4, ids);
    for (int i = 0; i < args->n_ops; i++)
        args->ops[i] = (dscomm_op_t)ids[i];
    return args->n_ops > 0;
}

static bool parse_dtype(struct perf_args *args, const char *text)
{
    int ids[ARRAY_LEN(args->dtypes)];

    args->n_dtypes = parse_names(text, dtype_names, ARRAY_LEN(dtype_names), 3, ids);
    for (int i = 0; i < args->n_dtypes; i++)
        args->dtypes[i] = (dscomm_dtype_t)ids[i];
    return args->n_dtypes > 0;
}

/* The text itself is judged by the library, in a process of its own: see perf.c. */
static bool parse_codec(struct perf_args *args, const char *text)
{
    if (args->n_codecs == PERF_MAX_CODECS)
        return false;
    args->codecs[args->n_codecs++] = text;
    return true;
}

static bool parse_transport(struct perf_args *args, const char *text)
{
    args->transport = text;
    return perf_is_one_of(text, PERF_TRANSPORTS);
}

static bool parse_algorithm(struct perf_args *args, const char *text)
{
    args->algorithm = text;
    return perf_is_one_of(text, PERF_ALGORITHMS);
}

static bool parse_device(struct perf_args *args, const char *text)
{
    args->on_cuda = strcmp(text, "cuda") == 0;
    return args->on_cuda || strcmp(text, "host") == 0;
}

static bool parse_data(struct perf_args *args, const char *text)
{
    args->data = text;
    return perf_is_data(text);
}

/* ---- the table ---- */

enum { OPT_ALGORITHM = 256, OPT_CODEC, OPT_DEVICE, OPT_FEEDBACK, OPT_TRANSPORT, OPT_DATA };

#define MEMBER(name) offsetof(struct perf_args, name)
#define MAX_BYTES ((uint64_t)1 << 53) /* beyond, doubles skip integers */

/* clang-format off */
static const struct perf_option options[] = {
    { 'b', "minbytes", "SIZE", KIND_BYTES, MEMBER(min_bytes), 0, MAX_BYTES, PERF_BYTES,
      "smallest message (32M)", NULL },
    { 'e', "maxbytes", "SIZE", KIND_BYTES, MEMBER(max_bytes), 0, MAX_BYTES, PERF_BYTES,
      "largest message (32M)", NULL },
    { 'i', "stepbytes", "SIZE", KIND_BYTES, MEMBER(step_bytes), 1, MAX_BYTES,
      "1 byte or more, with K, M or G if wanted", "added from size to size (1M)", NULL },
    { 'f', "stepfactor", "N", KIND_SIZE, MEMBER(step_factor), 2, 1u << 20,
      "2 to 1048576 (for equal steps use -i)", "multiplied from size to size, instead of -i",
      NULL },
    { 'n', "iters", "N", KIND_INT, MEMBER(n_iters), 1, 1000000, NULL, "timed calls per row (20)",
      NULL },
    { 'w', "warmup_iters", "N", KIND_INT, MEMBER(n_warmup), 0, 1000000, NULL,
      "calls before them (1)", NULL },
    { 'c', "check", "N", KIND_OTHER, 0, 0, 1000000, NULL, "0: do not check results (1)",
      parse_check },
    { 'g', "ngpus", "N", KIND_INT, MEMBER(n_ranks), 1, 1024, NULL,
      "ranks to start on this machine; without it a launcher's (torchrun, mpirun, srun)", NULL },
    { 'G', "cudagraph", "N", KIND_INT, MEMBER(n_replays), 0, 10000, NULL,
      "with --device cuda: capture a call, time N launches of the graph; 0: eager (0)", NULL },
    { 't', "nthreads", "N", KIND_INT, MEMBER(n_threads), 1, 256, NULL,
      "threads that compute in each rank (DSCOMM_THREADS)", NULL },
    { 'o', "op", "OP", KIND_OTHER, 0, 0, 0, "sum avg max min all", "operation (sum)", parse_op },
    { 'r', "root", "RANK", KIND_INT, MEMBER(root), 0, 65534, NULL,
      "rank that sends in broadcast_perf (0)", NULL },
    { 'd', "datatype", "TYPE", KIND_OTHER, 0, 0, 0,
      "float half bfloat16 all (also fp32 fp16 bf16)", "data type (float)", parse_dtype },
    { 'J', "output_file", "FILE", KIND_TEXT, MEMBER(json_path), 0, 0, "a file name",
      "write JSON too; replaces FILE", NULL },
    { 'u', "unalign", "N", KIND_SIZE, MEMBER(unalign), 0, 1u << 20, NULL,
      "index of the first element used: misaligns the buffers (0)", NULL },
    { 'I', "per_iter_timing", "0|1", KIND_BOOL, MEMBER(per_iter), 0, 1, "0 or 1",
      "columns i_min i_max i_p99 i_cv%, all times in JSON (0)", NULL },
    { 'T', "timeout", "SECONDS", KIND_INT, MEMBER(timeout_s), 1, 86400, NULL,
      "deadline of every wait (DSCOMM_TIMEOUT_MS)", NULL },
    { OPT_ALGORITHM, "algorithm", "NAME", KIND_OTHER, 0, 0, 0, PERF_ALGORITHMS,
      "of allreduce; tiered goes by DSCOMM_TIERS, else by host (DSCOMM_ALGORITHM)",
      parse_algorithm },
    { OPT_CODEC, "codec", "SPEC", KIND_OTHER, 0, 0, 0, "at most 32 codecs",
      "codec of a table; repeat for more (none, bf16, int8)", parse_codec },
    { OPT_DEVICE, "device", "NAME", KIND_OTHER, 0, 0, 0, "host cuda",
      "where vectors are; cuda: rank r of a machine has device r (host)", parse_device },
    { OPT_FEEDBACK, "feedback", "0|1", KIND_BOOL, MEMBER(feedback), 0, 1, "0 or 1",
      "error feedback (1; never for max and min)", NULL },
    { OPT_TRANSPORT, "transport", "NAME", KIND_OTHER, 0, 0, 0, PERF_TRANSPORTS,
      "how ranks talk; loopback makes them threads (DSCOMM_TRANSPORT)", parse_transport },
    { OPT_DATA, "data", "NAME", KIND_OTHER, 0, 0, 0, PERF_DATA,
      "gradients of a language model or CNN, random, or a .grad file (lm)", parse_data },
    { 'h', "help", NULL, KIND_FLAG, 0, 0, 0, "", "this text", NULL },
};
/* clang-format on */

_Static_assert(ARRAY_LEN(options) <= PERF_OPTIONS_MAX, "perf_getopt.c has room for so many");

size_t perf_n_options(void)
{
    return ARRAY_LEN(options);
}

const struct perf_option *perf_option(size_t i)
{
    return &options[i];
}

bool perf_option_parse(const struct perf_option *o, struct perf_args *args, const char *text)
{
    void *const member = (char *)args + o->offset;
    uint64_t number = 0;

    switch (o->kind) {
    case KIND_BYTES:
        return perf_parse_bytes(text, o->min, o->max, member);
    case KIND_SIZE:
        return perf_parse_u64(text, o->min, o->max, member);
    case KIND_INT:
        if (!perf_parse_u64(text, o->min, o->max, &number))
            return false;
        *(int *)member = (int)number;
        return true;
    case KIND_BOOL:
        if (!perf_parse_u64(text, o->min, o->max, &number))
            return false;
        *(bool *)member = number != 0;
        return true;
    case KIND_TEXT:
        *(const char **)member = text;
        return text[0] != '\0';
    case KIND_OTHER:
        return o->parse(args, text);
    case KIND_FLAG:
        break;
    }
    return true;
}

bool perf_next_size(const struct perf_args *args, size_t *bytes)
{
    size_t next = *bytes + args->step_bytes; /* both at most 2^53 */

    if (args->step_factor != 0) {
        if (*bytes > args->max_bytes / args->step_factor)
            return false;
        /* Zero times anything would never end. */
        next = *bytes == 0 ? 4 : *bytes * args->step_factor;
    }
    if (next > args->max_bytes)
        return false;
    *bytes = next;
    return true;
}
