/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's parameters, and a rank that makes it on the device and on the host with the same data.
 */
#ifndef DSC_TEST_GPU_CASE_H
#define DSC_TEST_GPU_CASE_H

#include <cstring>
#include <ostream>
#include <random>

#include "cuda/gpu_world.h"

using Bytes = std::vector<uint8_t>;

struct GpuCase {
    std::string spec = "int8";
    int n_ranks = 2;
    size_t count = 1000;
    dscomm_dtype_t dtype = DSCOMM_FLOAT32;
    dscomm_op_t op = DSCOMM_SUM;
    bool feedback = true;
    dscomm_residual_type_t residual = DSCOMM_RESIDUAL_FP32;
    int shadow = 1;
    float momentum = 0.0f;
    bool in_place = false;
    size_t shift = 0; /* elements by which vectors miss 256-byte alignment */
    uint32_t seed = 1;

    size_t elem() const
    {
        return dtype == DSCOMM_FLOAT32 ? 4 : 2;
    }
};

inline std::ostream &operator<<(std::ostream &out, const GpuCase &c)
{
    return out << c.spec << " ranks " << c.n_ranks << " count " << c.count << " dtype " << c.dtype
               << " op " << c.op << " feedback " << c.feedback << " residual " << c.residual
               << " shadow " << c.shadow << " momentum " << c.momentum << " in place " << c.in_place
               << " shift " << c.shift << " seed " << c.seed;
}

/* Elements of a type from bits that are numbers of ordinary size, now and then special ones. */
inline Bytes make_input(const GpuCase &c, int rank, int step, bool with_specials)
{
    std::mt19937 random(c.seed * 1000003u + (uint32_t)rank * 101u + (uint32_t)step);
    std::normal_distribution<float> normal;
    Bytes bytes(c.count * c.elem());

    for (size_t i = 0; i < c.count; i++) {
        float x = normal(random) * (i % 7 == 0 ? 30.0f : 1.0f);
        uint32_t bits;
        uint16_t half;

        if (with_specials && random() % 3001 == 0)
            x = random() % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                  : std::numeric_limits<float>::infinity();
        std::memcpy(&bits, &x, 4);
        if (c.dtype == DSCOMM_FLOAT32) {
            std::memcpy(&bytes[i * 4], &x, 4);
            continue;
        }
        half = (uint16_t)(bits >> 16);
        if (c.dtype == DSCOMM_FLOAT16) { /* sign, exponent near one, ten random bits */
            const bool is_special = (bits & 0x7f800000u) == 0x7f800000u;

            half = (uint16_t)((bits >> 16 & 0x8000u) |
                              (is_special ? 0x7c00u | ((bits >> 13) & 0x3ffu)
                                          : (12u + random() % 6u) << 10 | (bits >> 13 & 0x3ffu)));
        }
        std::memcpy(&bytes[i * 2], &half, 2);
    }
    return bytes;
}

/* A rank's two sides of a sequence of calls. */
struct GpuSides {
    const GpuWorld &world;
    const GpuCase &c;
    int rank;
    DeviceArray<uint8_t> send, recv;
    dscomm_feedback_t *device_fb = nullptr, *host_fb = nullptr;

    GpuSides(const GpuWorld &w, const GpuCase &test_case, int r)
        : world(w), c(test_case), rank(r), send(memory_bytes()), recv(memory_bytes())
    {
        dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;

        config.type = c.residual;
        config.shadow = c.shadow;
        config.momentum = c.momentum;
        if (!c.feedback)
            return;
        EXPECT_EQ(dscomm_feedback_create_cuda(c.count, &config, &device_fb), DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(dscomm_feedback_create(c.count, &config, &host_fb), DSCOMM_OK);
    }
    ~GpuSides()
    {
        dscomm_feedback_destroy(device_fb);
        dscomm_feedback_destroy(host_fb);
    }
    GpuSides(const GpuSides &) = delete;

    size_t memory_bytes() const
    {
        return (c.count + c.shift + 1) * c.elem();
    }
    uint8_t *device_send() const
    {
        return send.get() + c.shift * c.elem();
    }
    uint8_t *device_recv() const
    {
        return c.in_place ? device_send() : recv.get() + c.shift * c.elem();
    }

    void put(const Bytes &input) const
    {
        EXPECT_EQ(cudaMemcpyAsync(device_send(), input.data(), input.size(), cudaMemcpyHostToDevice,
                                  world.streams[rank]),
                  cudaSuccess);
    }
    dscomm_status_t call() const
    {
        return dscomm_allreduce_compressed(device_send(), device_recv(), c.count, c.dtype, c.op,
                                           dscomm_codec(c.spec.c_str()), device_fb,
                                           world.comms[rank], world.stream(rank));
    }
    Bytes output() const
    {
        Bytes bytes(c.count * c.elem());

        world.sync(rank);
        EXPECT_EQ(cudaMemcpy(bytes.data(), device_recv(), bytes.size(), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return bytes;
    }
    Bytes host_call(const Bytes &input) const
    {
        Bytes out(c.count * c.elem());

        EXPECT_EQ(dscomm_allreduce_compressed(input.data(), out.data(), c.count, c.dtype, c.op,
                                              dscomm_codec(c.spec.c_str()), host_fb,
                                              world.host->comms[rank], nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        return out;
    }
    static std::vector<float> residual(const dscomm_feedback_t *fb)
    {
        std::vector<float> r(dscomm_feedback_count(fb));

        EXPECT_EQ(dscomm_feedback_read(fb, 0, r.size(), r.data()), DSCOMM_OK)
            << dscomm_last_error();
        return r;
    }
    static std::vector<float> velocity(const dscomm_feedback_t *fb)
    {
        std::vector<float> u(dscomm_feedback_count(fb));

        EXPECT_EQ(dscomm_feedback_read_momentum(fb, 0, u.size(), u.data()), DSCOMM_OK)
            << dscomm_last_error();
        return u;
    }
    /* Bits, not values: -0 and NaN count. */
    void expect_same(const char *what, const std::vector<float> &device,
                     const std::vector<float> &on_host) const
    {
        for (size_t i = 0; i < c.count; i++)
            if (std::memcmp(&device[i], &on_host[i], 4) != 0) {
                ADD_FAILURE() << c << ": " << what << " of rank " << rank << " at " << i
                              << ": device " << device[i] << ", host " << on_host[i];
                return;
            }
    }
    void expect_same_residuals() const
    {
        if (!c.feedback || c.count == 0)
            return;
        expect_same("residual", residual(device_fb), residual(host_fb));
        if (c.momentum > 0.0f)
            expect_same("momentum", velocity(device_fb), velocity(host_fb));
    }
    void expect_same_output(const Bytes &on_host, int step) const
    {
        const Bytes device = output();

        for (size_t i = 0; i < device.size(); i++)
            if (device[i] != on_host[i]) {
                ADD_FAILURE() << c << ": output of rank " << rank << ", call " << step
                              << ", differs from element " << i / c.elem() << " on";
                return;
            }
    }
};

#endif
