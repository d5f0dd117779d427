/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared file: barrier and data. A call's input repeats one set to the length wanted. From call
 * to call the sets move on by one rank and the planes alternate, as in all_reduce_perf, so that a
 * residual meets new values of the scale of their own layer. So the exact sum of a call is a small
 * table too.
 */
#include "compare_worker.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Some microseconds: ranks with a core each leave together, others give theirs away soon. */
#define SPINS 2000

struct compare_shared *compare_shared_map(const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    void *mem = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &st) == 0)
        mem = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                   0);
    if (mem == MAP_FAILED)
        perror(path);
    if (fd >= 0)
        (void)close(fd);
    return mem == MAP_FAILED ? NULL : mem;
}

void compare_barrier(struct compare_shared *shared)
{
    const uint32_t round = atomic_load(&shared->round);

    if (atomic_fetch_add(&shared->arrived, 1) + 1 == shared->n_ranks) {
        atomic_store(&shared->arrived, 0);
        atomic_store(&shared->round, round + 1);
        return;
    }
    for (unsigned i = 0; atomic_load(&shared->round) == round; i++) {
        if (i >= SPINS)
            (void)sched_yield();
    }
}

static const float *set_of(const struct compare_shared *shared, uint64_t rank, uint64_t call)
{
    const uint64_t plane = call % COMPARE_PLANES;
    const uint64_t set = (rank + call) % shared->n_ranks;

    return shared->sets + (plane * shared->n_ranks + set) * shared->n_elems;
}

void compare_fill(const struct compare_shared *shared, float *dst, size_t count, uint64_t rank,
                  uint64_t call)
{
    const float *const set = set_of(shared, rank, call);

    for (size_t done = 0; done < count; done += shared->n_elems) {
        const size_t left = count - done;

        memcpy(dst + done, set, sizeof(float) * (left < shared->n_elems ? left : shared->n_elems));
    }
}

/* Each element of the period once, then every copy of it in the output. */
double compare_error(const struct compare_shared *shared, const float *out, size_t count,
                     uint64_t call)
{
    double wrong = 0.0, sums = 0.0, inputs = 0.0;

    for (size_t i = 0; i < shared->n_elems && i < count; i++) {
        const double copies = (double)((count - i - 1) / shared->n_elems + 1);
        double sum = 0.0;

        for (uint64_t r = 0; r < shared->n_ranks; r++) {
            const double x = set_of(shared, r, call)[i];

            sum += x;
            inputs += copies * x * x;
        }
        sums += copies * sum * sum;
        for (size_t j = i; j < count; j += shared->n_elems)
            wrong += (out[j] - sum) * (out[j] - sum);
    }
    const double norm = sqrt(fmax(sums, inputs));
    return wrong > 0.0 || norm > 0.0 ? sqrt(wrong) / norm : 0.0;
}
