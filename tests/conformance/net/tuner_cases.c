/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance of a tuner plugin, by each version of its interface: it never fails, never touches
 * what NCCL has ruled out or what lies around its table, and gives one answer everywhere. The cases
 * with rows use NCCL's file format.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "net_case.h"

#define GUARD (-77.0f)
#define N_GUARD 16
#define N_ALGOS_MAX 8

static void *library;
static const void *table_of_version;
static int version;
static char warnings[4096];

static void logger(int level, unsigned long subsystems, const char *file, int line, const char *fmt,
                   ...)
{
    const size_t used = strlen(warnings);
    va_list args;

    (void)subsystems, (void)file, (void)line;
    if (level != NCCL_LOG_WARN)
        return;
    va_start(args, fmt);
    vsnprintf(warnings + used, sizeof(warnings) - used, fmt, args);
    va_end(args);
}

static void load(int v)
{
    char name[32];

    snprintf(name, sizeof(name), "ncclTunerPlugin_v%d", v);
    library = dlopen(options.plugin, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL, "%s", dlerror());
    table_of_version = dlsym(library, name);
    CHECK(table_of_version != NULL, "%s is not there", name);
    version = v;
    warnings[0] = '\0';
}

static void *start(size_t n_ranks, size_t n_nodes, struct nccl_tuner_constants *constants)
{
    const struct nccl_tuner_v3 *const v3 = table_of_version;
    const struct nccl_tuner_v5 *const v5 = table_of_version;
    struct nccl_nvl_domains domains = { (int)n_nodes, 1, 8 };
    void *ctx = NULL;

    if (version < 5)
        CHECK(v3->init(n_ranks, n_nodes, logger, &ctx) == NCCL_SUCCESS, "init() failed");
    else
        CHECK(v5->init(&ctx, 1, n_ranks, n_nodes, logger, &domains, constants) == NCCL_SUCCESS,
              "init() failed");
    return ctx;
}

static void stop(void *ctx)
{
    const struct nccl_tuner_v5 *const any = table_of_version; /* the same place in all */

    CHECK(any->finalize(ctx) == NCCL_SUCCESS, "the end failed");
    dlclose(library);
}

struct answer {
    float costs[N_GUARD + N_ALGOS_MAX * 3 + N_GUARD];
    int n_algos, n_channels;
};

static void ask(void *ctx, struct answer *a, int func, size_t bytes)
{
    float **const table = (float **)(void *)(a->costs + N_GUARD);
    nccl_result_t result;

    a->n_channels = 0;
    if (version == 3)
        result = ((const struct nccl_tuner_v3 *)table_of_version)
                     ->get_coll_info(ctx, func, bytes, 1, table, a->n_algos, 3, &a->n_channels);
    else
        result = ((const struct nccl_tuner_v4 *)table_of_version)
                     ->get_coll_info(ctx, func, bytes, 1, table, a->n_algos, 3, 0, &a->n_channels);
    CHECK(result == NCCL_SUCCESS, "get_coll_info() failed: %d", result);
    for (int i = 0; i < N_GUARD; i++) {
        CHECK(a->costs[i] == GUARD, "cell -%d was written", N_GUARD - i);
        CHECK(a->costs[N_GUARD + a->n_algos * 3 + i] == GUARD,
              "cell %d behind the table was written", i);
    }
}

static void prepare(struct answer *a, int n_algos)
{
    for (size_t i = 0; i < sizeof(a->costs) / sizeof(a->costs[0]); i++)
        a->costs[i] = GUARD;
    a->n_algos = n_algos;
    for (int i = 0; i < n_algos * 3; i++)
        a->costs[N_GUARD + i] = i % 4 == 3 ? NCCL_COST_IGNORE : 10.0f + (float)i;
}

static float *cost(struct answer *a, int algo, int proto)
{
    return &a->costs[N_GUARD + algo * 3 + proto];
}

static char config_path[64];

static void write_config(const char *text)
{
    FILE *file;

    snprintf(config_path, sizeof(config_path), "/tmp/tuner_cases.%d", (int)getpid());
    file = fopen(config_path, "we");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s", config_path);
    setenv("NCCL_TUNER_CONFIG_FILE", config_path, 1);
}

static void case_tuner_tables(void)
{
    write_config("# a comment\n"
                 "allreduce,0,65536,tree,ll,-1,-1,-1\n"
                 "allreduce,65537,4294967295,ring,simple,4,2,16,-1,-1\n"
                 "allgather,0,4294967295,pat,simple,-1,-1,-1\n");
    for (int v = 3; v <= 6; v++) {
        load(v);
        void *const ctx = start(16, 2, NULL);

        for (int n_algos = 2; n_algos <= N_ALGOS_MAX; n_algos++) {
            struct answer a, before;

            for (int func = 0; func < 5; func++)
                for (size_t bytes = 0; bytes < (size_t)1 << 33; bytes = bytes * 2 + 1) {
                    prepare(&a, n_algos);
                    before = a;
                    ask(ctx, &a, func, bytes);
                    for (int i = 0; i < n_algos * 3; i++)
                        CHECK(before.costs[N_GUARD + i] != NCCL_COST_IGNORE ||
                                  a.costs[N_GUARD + i] == NCCL_COST_IGNORE,
                              "cell %d was ignored and now costs %f", i,
                              (double)a.costs[N_GUARD + i]);
                    CHECK(a.n_channels == 0 || a.n_channels == 4, "%d channels", a.n_channels);
                }
            prepare(&a, n_algos);
            ask(ctx, &a, NCCL_ALL_REDUCE, 1000);
            CHECK(*cost(&a, NCCL_TREE, NCCL_LL) == 0.0f && a.n_channels == 0,
                  "the row has no effect");
            prepare(&a, n_algos);
            ask(ctx, &a, NCCL_ALL_REDUCE, (size_t)1 << 32);
            CHECK(*cost(&a, NCCL_RING, NCCL_SIMPLE) == 0.0f && a.n_channels == 4,
                  "the row of all sizes ends at 4 GiB");
        }
        stop(ctx);
    }
}

/* Without a context there is no opinion. */
static void case_tuner_off(void)
{
    write_config("allreduce,0,4294967295,tree,ll,2,-1,-1\n");
    setenv("DSCOMM_TUNER", "0", 1);
    for (int v = 3; v <= 6; v++) {
        struct answer a, before;

        load(v);
        void *const ctx = start(16, 2, NULL);

        CHECK(ctx == NULL, "there is a context");
        prepare(&a, 7);
        before = a;
        ask(ctx, &a, NCCL_ALL_REDUCE, 1000);
        CHECK(memcmp(&a, &before, sizeof(a)) == 0 || a.n_channels == 0, "an opinion");
        CHECK(memcmp(a.costs, before.costs, sizeof(a.costs)) == 0, "an opinion");
        stop(ctx);
    }
}

static void case_tuner_bad_files(void)
{
    static const char *const texts[] = {
        "",
        "\n\n,,,,,,,\n",
        "allreduce,0\n",
        "allreduce,5,4,ring,simple,-1,-1,-1\n",
        "allreduce,0,4,ring,simple,0,-1,-1\n",
        "allreduce,0,4,ring,simple,-2,-1,-1\n",
        "everything,0,4,ring,simple,-1,-1,-1\n",
        "allreduce,0,4,star,simple,-1,-1,-1\n",
        "allreduce,0,4,ring,fast,-1,-1,-1\n",
        "allreduce,0,4,ring,simple,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1\n",
        "allreduce,99999999999999999999999,4,ring,simple,-1,-1,-1\n",
        "\xff\xfe\x01allreduce,0,4,ring,simple,-1,-1,x\n",
    };

    for (size_t i = 0; i <= sizeof(texts) / sizeof(texts[0]); i++) {
        struct answer a, before;

        if (i < sizeof(texts) / sizeof(texts[0]))
            write_config(texts[i]);
        else
            setenv("NCCL_TUNER_CONFIG_FILE", "/nonexistent/tuner.conf", 1);
        load(4);
        void *const ctx = start(16, 1, NULL);

        CHECK(i == 0 || strstr(warnings, i < 12 ? "line " : "/nonexistent/tuner.conf") != NULL,
              "text %zu: no warning names the line or file: %s", i, warnings);
        prepare(&a, 7);
        before = a;
        ask(ctx, &a, NCCL_ALL_REDUCE, 2);
        CHECK(memcmp(a.costs, before.costs, sizeof(a.costs)) == 0, "text %zu has an effect", i);
        stop(ctx);
    }
}

/* v2 names a pair, and keeps silent when the user has chosen. */
static void case_tuner_v2(void)
{
    const struct nccl_tuner_v2 *v2;
    int algo = -1, proto = -1, n_channels = 0;
    void *ctx;

    write_config(
        "allreduce,0,65536,tree,simple,-1,-1,-1\nbroadcast,0,65536,nvls,simple,-1,-1,-1\n");
    load(2);
    v2 = table_of_version;
    ctx = start(16, 2, NULL);
    OK(v2->get_coll_info(ctx, NCCL_ALL_REDUCE, 100, 0, 0, 1, &algo, &proto, &n_channels));
    CHECK(algo == NCCL_TREE && proto == NCCL_SIMPLE && n_channels == 0, "%d %d %d", algo, proto,
          n_channels);
    algo = proto = -1;
    OK(v2->get_coll_info(ctx, NCCL_BROADCAST, 100, 0, 0, 1, &algo, &proto, &n_channels));
    CHECK(algo == -1 && proto == -1, "NVLS where there is none");
    stop(ctx);
    setenv("NCCL_ALGO", "ring", 1);
    load(2);
    v2 = table_of_version; /* perhaps elsewhere than before */
    ctx = start(16, 2, NULL);
    OK(v2->get_coll_info(ctx, NCCL_ALL_REDUCE, 100, 0, 0, 1, &algo, &proto, &n_channels));
    CHECK(algo == -1 && proto == -1, "NCCL_ALGO was overridden");
    stop(ctx);
}

/* LL128 between nodes over DSComm's net is off, unless nothing else is left. */
static void case_tuner_ll128(void)
{
    unsetenv("NCCL_TUNER_CONFIG_FILE");
    setenv("NCCL_NET_PLUGIN", "dscomm", 1);
    for (size_t n_nodes = 1; n_nodes <= 2; n_nodes++) {
        struct answer a;

        load(5);
        void *const ctx = start(16, n_nodes, NULL);

        prepare(&a, 7);
        ask(ctx, &a, NCCL_ALL_REDUCE, 1000);
        CHECK((*cost(&a, NCCL_RING, NCCL_LL128) == NCCL_COST_IGNORE) == (n_nodes > 1),
              "%zu nodes: LL128 costs %f", n_nodes, (double)*cost(&a, NCCL_RING, NCCL_LL128));
        prepare(&a, 7);
        for (int i = 0; i < 21; i++)
            if (i % 3 != NCCL_LL128)
                a.costs[N_GUARD + i] = NCCL_COST_IGNORE;
        ask(ctx, &a, NCCL_ALL_REDUCE, 1000);
        CHECK(*cost(&a, NCCL_RING, NCCL_LL128) >= 0, "nothing is left");
        stop(ctx);
    }
}

static void case_tuner_constants(void)
{
    struct nccl_tuner_constants constants, before;

    unsetenv("NCCL_TUNER_CONFIG_FILE");
    memset(&constants, 0, sizeof(constants));
    constants.hw_latencies[NCCL_LINK_NET][NCCL_RING][NCCL_SIMPLE] = 14;
    before = constants;
    for (int v = 5; v <= 6; v++) {
        load(v);
        void *const ctx = start(16, 2, &constants);

        CHECK(memcmp(&constants, &before, sizeof(constants)) == 0,
              "constants changed without a profile");
        CHECK(v < 6 || ((const struct nccl_tuner_v6 *)table_of_version)->get_chunk_size == NULL,
              "chunk sizes are NCCL's");
        stop(ctx);
    }
}

static bool is_dscomm(void)
{
    void *const probe = dlopen(options.plugin, RTLD_NOW | RTLD_LOCAL);
    const struct nccl_tuner_v3 *const any =
        probe != NULL ? dlsym(probe, "ncclTunerPlugin_v3") : NULL;
    const bool is = any != NULL && strcmp(any->name, "DSComm") == 0;

    if (probe != NULL)
        dlclose(probe);
    return is;
}

/* Plugins without a tuner have nothing to show; what DSComm's settings do is DSComm's. */
#define TUNER_CASE(name)            \
    static void run_##name(void)    \
    {                               \
        if (is_dscomm())            \
            case_tuner_##name();    \
        if (config_path[0] != '\0') \
            unlink(config_path);    \
    }
TUNER_CASE(tables)
TUNER_CASE(off)
TUNER_CASE(bad_files)
TUNER_CASE(v2)
TUNER_CASE(ll128)
TUNER_CASE(constants)

const struct net_test tuner_cases[] = {
    { "tuner_tables", run_tables },
    { "tuner_off", run_off },
    { "tuner_bad_files", run_bad_files },
    { "tuner_v2", run_v2 },
    { "tuner_ll128", run_ll128 },
    { "tuner_constants", run_constants },
    { 0 },
};
