/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this build of the library is and what it finds on this machine: the first thing to look at,
 * and to send along, when something is not as expected. --env-md makes docs/env.md.
 */
#include <getopt.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "codec/codec.h"
#include "codec/kernels.h"
#include "info_profile.h"
#include "info_topo.h"
#include "transport/transport.h"

enum { EXIT_OK = 0, EXIT_BAD_ENV = 1, EXIT_USAGE = 2 };

/* ---- environment ---- */

static void print_u64(const struct dsc_env_doc *doc, uint64_t value)
{
    printf("  %-22s %llu\n", doc->name, (unsigned long long)value);
}

static void print_text(const struct dsc_env_doc *doc, const char *value)
{
    const bool is_secret = strcmp(doc->name, "DSCOMM_SECRET") == 0 && value[0] != '\0';

    printf("  %-22s %s\n", doc->name, is_secret ? "(set)" : value[0] != '\0' ? value : "(empty)");
}

/* Values in use. False: one is bad; the library has said which. */
static bool print_env_values(void)
{
    const struct dsc_env *env;
    size_t n;
    const struct dsc_env_doc *doc = dsc_env_docs(&n);

    printf("environment\n");
    if (dsc_env_get(&env) < 0) {
        printf("  bad: %s\n", dscomm_last_error());
        return false;
    }
#define ENV(field, kind, name, dflt, min, max, text) print_##kind(doc++, env->field);
#include "core/env.def"
#undef ENV
    return true;
}

static void print_env_docs(void)
{
    size_t n;
    const struct dsc_env_doc *const docs = dsc_env_docs(&n);

    for (size_t i = 0; i < n; i++)
        printf("%s\n  default %s; allowed: %s\n  %s\n", docs[i].name,
               docs[i].dflt[0] != '\0' ? docs[i].dflt : "(empty)", docs[i].range, docs[i].doc);
}

static void print_env_markdown(void)
{
    size_t n;
    const struct dsc_env_doc *const docs = dsc_env_docs(&n);

    printf("# Environment variables\n\n"
           "Generated from `src/core/env.def` by `dscomm_info --env-md`; do not edit.\n\n"
           "A bad value is an error that names the variable, the value and what is allowed.\n"
           "An unknown `DSCOMM_*` name is ignored with a warning that names the nearest\n"
           "known one. Numbers are decimal, or hexadecimal with `0x`. A configuration passed\n"
           "to `dscomm_comm_create()` wins over the environment.\n\n"
           "| variable | default | allowed | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        printf("| `%s` | %s%s%s | %s | %s |\n", docs[i].name, docs[i].dflt[0] != '\0' ? "`" : "",
               docs[i].dflt[0] != '\0' ? docs[i].dflt : "empty", docs[i].dflt[0] != '\0' ? "`" : "",
               docs[i].range, docs[i].doc);
}

/* ---- what is here ---- */

static void print_build(void)
{
    printf("dscomm %s\n  compiler %s, C %ld, assertions %s\n", dscomm_version(), __VERSION__,
           __STDC_VERSION__,
#ifdef NDEBUG
           "off"
#else
           "on"
#endif
    );
}

static const struct {
    const char *name;
    uint32_t bit;
} levels[] = {
    { "avx2", DSC_CPU_AVX2 },
    { "avx512", DSC_CPU_AVX512 },
    { "neon", DSC_CPU_NEON },
};

/* Whether level i brings kernels of its own: its table is not that of the levels below. */
static bool has_kernels(size_t i)
{
    struct dsc_kernels below, with;
    uint32_t bits = 0;

    for (size_t k = 0; k < i; k++)
        bits |= levels[k].bit;
    dsc_kernels_init(&below, bits);
    dsc_kernels_init(&with, bits | levels[i].bit);
    return memcmp(&below, &with, sizeof(with)) != 0;
}

static void print_cpu(void)
{
    const uint32_t features = dsc_cpu_features();
    const char *used = "scalar";

    printf("cpu\n  allowed CPUs %d\n  instruction sets", dsc_cpu_allowed());
    for (size_t i = 0; i < DSC_ARRAY_LEN(levels); i++) {
        if ((features & levels[i].bit) != 0)
            printf(" %s", levels[i].name);
    }
    printf("%s (after DSCOMM_CPU_MASK)\n  kernels scalar", features == 0 ? " none" : "");
    for (size_t i = 0; i < DSC_ARRAY_LEN(levels); i++) {
        if (!has_kernels(i))
            continue;
        printf(" %s", levels[i].name);
        if ((features & levels[i].bit) != 0)
            used = levels[i].name;
    }
    printf("; used: %s\n", used);
}

static void print_codecs(void)
{
    size_t n;
    const char *const *const specs = dsc_codec_test_specs(&n);
    const size_t elems = 65536;

    printf("codecs\n  %-24s %10s  %s\n", "spec", "bits/elem", "nominal relative error of one call");
    for (size_t i = 0; i < n; i++) {
        const struct dsc_codec *const codec = dscomm_codec(specs[i]);

        if (codec != NULL)
            printf("  %-24s %10.3f  %g%s\n", dscomm_codec_spec(codec),
                   8.0 * (double)dscomm_codec_bound(codec, elems) / (double)elems,
                   1e-6 * codec->e0_ppm, codec->variable ? "  (bits at most)" : "");
    }
}

static void print_transports(void)
{
    size_t n;
    const struct dsc_transport_ops *const *const ops = dsc_transports(&n);

    printf("transports, preferred first\n");
    for (size_t i = 0; i < n; i++)
        printf("  %s%s\n", ops[i]->name, ops[i]->wants_crc ? ", with checksums" : "");
}

static void print_interface(const struct ifaddrs *ifa)
{
    const int family = ifa->ifa_addr != NULL ? ifa->ifa_addr->sa_family : AF_UNSPEC;
    const socklen_t n =
        family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    char host[NI_MAXHOST];

    if (family != AF_INET && family != AF_INET6)
        return;
    if (getnameinfo(ifa->ifa_addr, n, host, sizeof(host), NULL, 0, NI_NUMERICHOST) != 0)
        return;
    printf("  %-16s %-40s %s%s\n", ifa->ifa_name, host,
           (ifa->ifa_flags & IFF_UP) != 0 ? "up" : "down",
           (ifa->ifa_flags & IFF_LOOPBACK) != 0 ? ", loopback" : "");
}

static void print_interfaces(void)
{
    struct ifaddrs *list = NULL;

    printf("interfaces\n");
    if (getifaddrs(&list) != 0) {
        perror("  getifaddrs");
        return;
    }
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next)
        print_interface(ifa);
    freeifaddrs(list);
}

static int print_all(void)
{
    print_build();
    print_cpu();
    print_codecs();
    print_transports();
    print_interfaces();
    printf("topology\n");
    info_topo_host();
    return print_env_values() ? EXIT_OK : EXIT_BAD_ENV;
}

/* ---- options ---- */

static const struct option options[] = {
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, 'V' },
    { "env", no_argument, NULL, 'e' },
    { "env-md", no_argument, NULL, 'm' },
    { NULL, 0, NULL, 0 },
};

static int act(int option)
{
    switch (option) {
    case 'h':
        printf("Usage: dscomm_info [--env | --env-md | --topo ... | --profile [FILE...] | "
               "--version | --help]\n\n"
               "Without options: version, CPU, codecs, transports, interfaces, topology,\n"
               "environment.\n"
               "  --env      every DSCOMM_* variable: default, range, meaning\n"
               "  --env-md   the same as Markdown (docs/env.md)\n"
               "  --profile  what profiles of measured rates say and whether they fit this\n"
               "             machine: those of files, or all that link_perf has written\n"
               "  --topo     this host's topology, or a file's: --topo --help\n"
               "  --version  the version alone\n"
               "Exit code: 0, 1 a bad variable is set, 2 a bad option.\n");
        return EXIT_OK;
    case 'V':
        printf("%s\n", dscomm_version());
        return EXIT_OK;
    case 'e':
        print_env_docs();
        return EXIT_OK;
    case 'm':
        print_env_markdown();
        return EXIT_OK;
    default:
        return EXIT_USAGE;
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--topo") == 0)
        return info_topo(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "--profile") == 0)
        return info_profile(argc - 1, argv + 1);
    opterr = 0;
    const int option = getopt_long(argc, argv, "h", options, NULL);

    if (option == '?' || optind < argc) {
        (void)fprintf(
            stderr,
            "dscomm_info: %s: not known, allowed: --env --env-md --profile --topo --version "
            "--help\n",
            argv[option == '?' ? optind - 1 : optind]);
        return EXIT_USAGE;
    }
    return option == -1 ? print_all() : act(option);
}
