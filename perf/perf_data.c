/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources of inputs: a few sets of float32, for example the gradients of four ranks, from a file, or
 * made.
 */
#include "perf.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* docs/gradient_data.md, "File format". */
struct grad_header {
    char magic[8];
    uint32_t n_ranks;
    uint32_t reserved;
    uint64_t elems_per_rank;
    uint32_t step;
    uint32_t crc32;
    uint64_t offset;
    uint8_t zeros[24];
};
_Static_assert(sizeof(struct grad_header) == 64, "the data start at byte 64");

#define MAX_SETS 1024u
#define MAX_ELEMS ((uint64_t)1 << 26)

/* More ranks than sets repeat them. A prime: repetitions meet blocks and chunks elsewhere. */
#define NORMAL_SETS 16
#define NORMAL_ELEMS 65521

uint64_t perf_splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In (0, 1]: its logarithm is finite. */
static double uniform(uint64_t counter)
{
    return ((double)(perf_splitmix64(counter) >> 11) + 1.0) * 0x1p-53;
}

static bool source_alloc(struct perf_source *source, const struct perf_args *args, size_t n_sets,
                         size_t n_elems)
{
    source->n_sets = n_sets;
    source->n_elems = n_elems;
    source->values = malloc(n_sets * n_elems * sizeof(float));
    if (source->values == NULL)
        perf_complain(args, "--data", args->data, "out of memory");
    return source->values != NULL;
}

static bool make_normal(struct perf_source *source, const struct perf_args *args)
{
    const double two_pi = 6.283185307179586;

    if (!source_alloc(source, args, NORMAL_SETS, NORMAL_ELEMS))
        return false;
    for (uint64_t i = 0; i < (uint64_t)NORMAL_SETS * NORMAL_ELEMS; i++) {
        const double radius = sqrt(-2.0 * log(uniform(2 * i)));
        source->values[i] = (float)(radius * cos(two_pi * uniform(2 * i + 1)));
    }
    (void)snprintf(source->text, sizeof(source->text), "normal: mean 0, deviation 1");
    return true;
}

/* What is wrong with a header, or NULL. */
static const char *header_problem(const struct grad_header *h)
{
    if (memcmp(h->magic, "DSCGRAD1", sizeof(h->magic)) != 0)
        return "not a .grad file: magic DSCGRAD1 is missing";
    if (h->n_ranks == 0 || h->n_ranks > MAX_SETS)
        return "number of ranks in the header is not 1 to 1024";
    if (h->elems_per_rank == 0 || h->elems_per_rank > MAX_ELEMS / h->n_ranks)
        return "number of elements in the header is not 1 to 2^26";
    return NULL;
}

/* ISA-L leaves the upper halves of vector registers in use, which slows down all SSE code after it.
 */
static uint32_t crc32_of(const void *data, size_t bytes)
{
    const uint32_t crc = crc32_gzip_refl(0, (const unsigned char *)data, bytes);

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroupper");
#endif
    return crc;
}

static const char *data_problem(const struct perf_source *source, const struct grad_header *h,
                                FILE *file)
{
    const size_t n = source->n_sets * source->n_elems;

    if (fread(source->values, sizeof(float), n, file) != n || fgetc(file) != EOF)
        return "length is not what the header says";
    if (crc32_of(source->values, n * sizeof(float)) != h->crc32)
        return "CRC-32 of the data is not the header's";
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(source->values[i]))
            return "a value is not finite";
    }
    return NULL;
}

static bool read_grad(struct perf_source *source, const struct perf_args *args, FILE *file,
                      const char *path)
{
    struct grad_header header = { 0 };
    const bool whole = fread(&header, sizeof(header), 1, file) == 1;
    const char *problem = whole ? header_problem(&header) : "shorter than a header";

    if (problem == NULL) {
        if (!source_alloc(source, args, header.n_ranks, header.elems_per_rank))
            return false;
        problem = data_problem(source, &header, file);
    }
    if (problem != NULL) {
        perf_complain(args, "--data", args->data, "%s: %s", path, problem);
        return false;
    }
    const char *const slash = strrchr(path, '/');
    (void)snprintf(source->text, sizeof(source->text), "%.100s: %zu x %zu elements, step %u",
                   slash != NULL ? slash + 1 : path, source->n_sets, source->n_elems, header.step);
    return true;
}

/* Installed: beside the program, so that the tree can be moved. Else the tree it was built from. */
static FILE *open_known(const struct perf_args *args, char *path, size_t path_bytes)
{
    char exe[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    if (n > 0) {
        exe[n] = '\0';
        *strrchr(exe, '/') = '\0';
        (void)snprintf(path, path_bytes, "%s/../share/dscomm/%s.grad", exe, args->data);
        FILE *const file = fopen(path, "rb");
        if (file != NULL)
            return file;
    }
    (void)snprintf(path, path_bytes, "%s/%s.grad", PERF_DATA_DIR, args->data);
    return fopen(path, "rb");
}

bool perf_source_init(struct perf_source *source, const struct perf_args *args)
{
    char path[PATH_MAX + 64];
    FILE *file;

    *source = (struct perf_source){ 0 };
    if (strcmp(args->data, "normal") == 0)
        return make_normal(source, args);
    if (strncmp(args->data, "file:", 5) == 0) {
        (void)snprintf(path, sizeof(path), "%s", args->data + 5);
        file = fopen(path, "rb");
    } else {
        file = open_known(args, path, sizeof(path));
    }
    if (file == NULL) {
        perf_complain(args, "--data", args->data, "%s: %s", path, strerror(errno));
        return false;
    }
    const bool ok = read_grad(source, args, file, path);
    (void)fclose(file);
    return ok;
}

void perf_source_fini(struct perf_source *source)
{
    free(source->values);
    source->values = NULL;
}
