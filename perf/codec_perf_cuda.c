/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the codecs on one large vector, by the device's clock, beside what a copy within
 * the device moves in the same time. A kernel moves every byte once at best: its bytes per element
 * times elements over its time is a rate that the copy's bounds.
 */
#include "codec_perf.h"

#include <stdio.h>

#include "codec/codec.h"
#include "gpu/gpu.h"

#define INPUTS 8 /* that reduce+encode sums, the own one among them */
#define GPU_BYTES ((size_t)128 << 20)
#define EMULATED_BYTES ((size_t)256 << 10)

static const struct {
    enum dsc_gpu_stage stage;
    const char *name;
    bool feedback;
} kernels[] = {
    { DSC_GPU_ENCODE, "enc+fb", true },
    { DSC_GPU_FINAL, "red+enc", true },
    { DSC_GPU_DECODE, "decode", false },
};

static void print_row(const dscomm_codec_t *codec, size_t n, double copy_gbps, int rounds)
{
    (void)printf("%-23s %10zu", codec->spec, n * sizeof(float));
    for (size_t i = 0; i < DSC_ARRAY_LEN(kernels); i++) {
        struct gpu_stage_bench bench = { .stage = kernels[i].stage,
                                         .codec = codec,
                                         .n = n,
                                         .n_inputs = INPUTS,
                                         .feedback = kernels[i].feedback };

        gpu_bench_stage(&bench, rounds);
        const double gbps = bench.bytes_per_elem * (double)n / (bench.us * 1e3);
        (void)printf(" %9.1f %6.2f %7.1f %5.2f", bench.us, bench.bytes_per_elem, gbps,
                     copy_gbps > 0.0 ? gbps / copy_gbps : 0.0);
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

static void print_head(const struct gpu_device *device, size_t bytes, double copy_gbps)
{
    (void)printf(
        "# device cuda, %s, compute capability %d.%d; copy rate %.1f GB/s read and written\n",
        device->name, device->major, device->minor, copy_gbps);
    if (gpu_caveat(device) != NULL)
        (void)printf("# note: %s\n", gpu_caveat(device));
    (void)printf(
        "# vectors of %zu KiB of float32; red+enc sums %d inputs and keeps a residual; B/e: "
        "bytes an element needs moved; x: times the copy rate\n",
        bytes >> 10, INPUTS);
    (void)printf("# %-21s %10s", "codec", "bytes");
    for (size_t i = 0; i < DSC_ARRAY_LEN(kernels); i++)
        (void)printf(" %6s us %6s %7s %5s", kernels[i].name, "B/e", "GB/s", "x");
    (void)printf("\n");
}

static void keep_quiet(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int codec_perf_cuda(const char *codec, size_t bytes, int rounds)
{
    const struct gpu_device device = gpu_open();
    size_t n_specs;
    const char *const *const specs = dsc_codec_test_specs(&n_specs);

    if (codec != NULL && dsc_gpu_supports(dscomm_codec(codec)) < 0) {
        (void)fprintf(stderr, "codec_perf: --codec '%s': %s\n", codec, dscomm_last_error());
        return 2;
    }
    if (bytes == 0)
        bytes = device.is_emulated ? EMULATED_BYTES : GPU_BYTES;
    const double copy_gbps = gpu_copy_gbps(bytes, rounds);

    dscomm_set_log(keep_quiet, NULL); /* codecs without kernels have no row */
    print_head(&device, bytes, copy_gbps);
    for (size_t i = 0; i < (codec != NULL ? 1 : n_specs); i++) {
        const dscomm_codec_t *const c = dscomm_codec(codec != NULL ? codec : specs[i]);

        if (dsc_gpu_supports(c) == DSCOMM_OK)
            print_row(c, bytes / sizeof(float), copy_gbps, rounds);
    }
    return 0;
}
