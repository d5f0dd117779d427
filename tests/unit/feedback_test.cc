/* SPDX-License-Identifier: Apache-2.0 */
/* The residual object: transactions, spans, scaling, checkpoints. */
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "dscomm/feedback.h"

#include "support/internal_begin.h"
#include "feedback/feedback.h"
#include "support/internal_end.h"

namespace {

struct Feedback {
    dscomm_feedback_t *fb = nullptr;

    explicit Feedback(size_t n, dscomm_residual_type_t type = DSCOMM_RESIDUAL_FP32, int shadow = 1,
                      float momentum = 0.0f)
    {
        dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;

        config.type = type;
        config.shadow = shadow;
        config.momentum = momentum;
        EXPECT_EQ(dscomm_feedback_create(n, &config, &fb), DSCOMM_OK) << dscomm_last_error();
    }
    ~Feedback()
    {
        dscomm_feedback_destroy(fb);
    }
    std::vector<float> read() const
    {
        std::vector<float> r(dscomm_feedback_count(fb));

        EXPECT_EQ(dscomm_feedback_read(fb, 0, r.size(), r.data()), DSCOMM_OK);
        return r;
    }
    std::vector<float> momentum() const
    {
        std::vector<float> u(dscomm_feedback_count(fb));

        EXPECT_EQ(dscomm_feedback_read_momentum(fb, 0, u.size(), u.data()), DSCOMM_OK);
        return u;
    }
    /* What an executor does; u becomes ten times r. */
    void call(float value)
    {
        dsc_residual view;

        dsc_feedback_begin(fb, &view);
        for (size_t i = 0; i < dscomm_feedback_count(fb); i++) {
            if (view.type == DSCOMM_RESIDUAL_FP32)
                ((float *)view.out)[i] = value;
            if (view.velocity_out != nullptr)
                view.velocity_out[i] = 10 * value;
        }
        dsc_feedback_finish(fb, true);
    }
};

using Values = std::vector<float>;

TEST(Feedback, ACallSwapsAndARollbackSwapsBackOnce)
{
    Feedback f(3);

    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_ERR_BAD_STATE);
    f.call(1);
    f.call(2);
    EXPECT_EQ(f.read(), Values({ 2, 2, 2 }));
    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_OK);
    EXPECT_EQ(f.read(), Values({ 1, 1, 1 }));
    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_ERR_BAD_STATE);
    f.call(3);
    EXPECT_EQ(dscomm_feedback_commit(f.fb), DSCOMM_OK);
    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_ERR_BAD_STATE);
    EXPECT_EQ(f.read(), Values({ 3, 3, 3 }));
}

TEST(Feedback, AnAbandonedCallLeavesNothing)
{
    Feedback f(2);
    dsc_residual view;

    dsc_feedback_begin(f.fb, &view);
    EXPECT_TRUE(view.known_zero);
    ((float *)view.out)[1] = 9;
    dsc_feedback_abandon(f.fb);
    EXPECT_EQ(f.read(), Values({ 0, 0 }));
    dsc_feedback_begin(f.fb, &view); /* a call that writes only element 0 must not show the 9 */
    ((float *)view.out)[0] = 5;
    dsc_feedback_finish(f.fb, true);
    EXPECT_EQ(f.read(), Values({ 5, 0 }));
}

TEST(Feedback, ResetMakesItKnownZero)
{
    Feedback f(2);
    dsc_residual view;

    f.call(4);
    dsc_feedback_begin(f.fb, &view);
    EXPECT_FALSE(view.known_zero);
    EXPECT_EQ(dscomm_feedback_reset(f.fb), DSCOMM_OK);
    dsc_feedback_begin(f.fb, &view);
    EXPECT_TRUE(view.known_zero);
    EXPECT_EQ(f.read(), Values({ 0, 0 }));
    EXPECT_EQ(((float *)view.out)[1], 0.0f);
}

TEST(Feedback, ScaleFollowsTheLossScale)
{
    Feedback f(2);

    f.call(3);
    EXPECT_EQ(dscomm_feedback_scale(f.fb, 0.5f), DSCOMM_OK);
    EXPECT_EQ(f.read(), Values({ 1.5, 1.5 }));
    EXPECT_EQ(dscomm_feedback_scale(f.fb, INFINITY), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_feedback_scale(f.fb, 3e38f), DSCOMM_OK); /* overflows: never stored */
    EXPECT_EQ(f.read(), Values({ 0, 0 }));
}

TEST(Feedback, SpansAreChecked)
{
    Feedback f(4);
    const float in[] = { 1, 2 }, bad[] = { 1, NAN };
    float out[4];

    EXPECT_EQ(dscomm_feedback_write(f.fb, 1, 2, in), DSCOMM_OK);
    EXPECT_EQ(f.read(), Values({ 0, 1, 2, 0 }));
    EXPECT_EQ(dscomm_feedback_write(f.fb, 3, 2, in), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_feedback_read(f.fb, SIZE_MAX, 2, out), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_feedback_write(f.fb, 0, 2, bad), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("element 1"), std::string::npos);
    EXPECT_EQ(f.read(), Values({ 0, 1, 2, 0 }));
    EXPECT_EQ(dscomm_feedback_read(f.fb, 4, 0, nullptr), DSCOMM_OK);
}

TEST(Feedback, Bf16StorageRounds)
{
    Feedback f(1, DSCOMM_RESIDUAL_BF16);
    const float third = 1.0f / 3, huge = 3.4e38f;

    EXPECT_EQ(dscomm_feedback_write(f.fb, 0, 1, &third), DSCOMM_OK);
    EXPECT_EQ(f.read(), Values({ 0.333984375f }));
    EXPECT_EQ(dscomm_feedback_write(f.fb, 0, 1, &huge), DSCOMM_ERR_INVALID); /* Inf as bf16 */
}

TEST(Feedback, OneVectorCannotRollBack)
{
    Feedback f(2, DSCOMM_RESIDUAL_FP32, 0);

    f.call(1);
    EXPECT_EQ(f.read(), Values({ 1, 1 }));
    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_ERR_BAD_STATE);
}

TEST(Feedback, ExportImport)
{
    Feedback f(5), same(5), bf16(5, DSCOMM_RESIDUAL_BF16), other(6);
    std::vector<unsigned char> bytes(dscomm_feedback_export_bytes(f.fb));
    size_t written = 0;

    f.call(0.75f);
    EXPECT_EQ(dscomm_feedback_export(f.fb, bytes.data(), bytes.size() - 1, &written),
              DSCOMM_ERR_INVALID);
    ASSERT_EQ(dscomm_feedback_export(f.fb, bytes.data(), bytes.size(), &written), DSCOMM_OK);
    EXPECT_EQ(written, bytes.size());
    EXPECT_EQ(dscomm_feedback_import(same.fb, bytes.data(), written), DSCOMM_OK);
    EXPECT_EQ(same.read(), f.read());
    EXPECT_EQ(dscomm_feedback_import(bf16.fb, bytes.data(), written), DSCOMM_OK);
    EXPECT_EQ(bf16.read(), f.read());
    EXPECT_EQ(dscomm_feedback_import(other.fb, bytes.data(), written), DSCOMM_ERR_INVALID);
    for (size_t cut = 0; cut < bytes.size(); cut++)
        EXPECT_LT(dscomm_feedback_import(same.fb, bytes.data(), cut), 0) << cut;
    for (size_t i = 0; i < bytes.size(); i++) { /* every flipped byte but beta's is noticed */
        if (i >= 16 && i < 20)
            continue;
        bytes[i] ^= 0x40;
        EXPECT_LT(dscomm_feedback_import(same.fb, bytes.data(), written), 0) << i;
        bytes[i] ^= 0x40;
    }
    EXPECT_EQ(same.read(), f.read());
}

/* ---- momentum ---- */

TEST(FeedbackMomentum, FollowsTheResidual)
{
    Feedback f(2, DSCOMM_RESIDUAL_FP32, 1, 0.9f);
    dsc_residual view;

    dsc_feedback_begin(f.fb, &view);
    EXPECT_FALSE(view.known_zero); /* `none` must not skip what fills u */
    EXPECT_EQ(view.momentum, 0.9f);
    view.velocity_out[0] = 7;
    dsc_feedback_abandon(f.fb);
    EXPECT_EQ(f.momentum(), Values({ 0, 0 }));
    f.call(1);
    f.call(2);
    EXPECT_EQ(f.momentum(), Values({ 20, 20 }));
    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_OK);
    EXPECT_EQ(f.momentum(), Values({ 10, 10 }));
    EXPECT_EQ(f.read(), Values({ 1, 1 }));
    EXPECT_EQ(dscomm_feedback_scale(f.fb, 0.5f), DSCOMM_OK);
    EXPECT_EQ(f.momentum(), Values({ 5, 5 }));
    EXPECT_EQ(dscomm_feedback_reset(f.fb), DSCOMM_OK);
    EXPECT_EQ(f.momentum(), Values({ 0, 0 }));
}

TEST(FeedbackMomentum, SpansAreChecked)
{
    Feedback f(3, DSCOMM_RESIDUAL_BF16, 1, 0.5f), without(3);
    const float in[] = { 1.0f / 3, 2 }, bad[] = { 1, INFINITY };
    float out[3];

    f.call(1);
    EXPECT_EQ(dscomm_feedback_write_momentum(f.fb, 1, 2, in), DSCOMM_OK);
    EXPECT_EQ(f.momentum(), Values({ 10, 1.0f / 3, 2 })); /* never bf16 */
    EXPECT_EQ(dscomm_feedback_rollback(f.fb), DSCOMM_ERR_BAD_STATE);
    EXPECT_EQ(dscomm_feedback_write_momentum(f.fb, 2, 2, in), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_feedback_write_momentum(f.fb, 0, 2, bad), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("momentum element 1 is inf"),
              std::string::npos);
    EXPECT_EQ(f.momentum(), Values({ 10, 1.0f / 3, 2 }));
    EXPECT_EQ(dscomm_feedback_read_momentum(without.fb, 0, 3, out), DSCOMM_ERR_BAD_STATE);
    EXPECT_EQ(dscomm_feedback_write_momentum(without.fb, 0, 2, in), DSCOMM_ERR_BAD_STATE);
    EXPECT_EQ(dscomm_feedback_read_momentum(nullptr, 0, 3, out), DSCOMM_ERR_INVALID);
}

TEST(FeedbackMomentum, ExportImport)
{
    Feedback f(5, DSCOMM_RESIDUAL_FP32, 1, 0.9f), same(5, DSCOMM_RESIDUAL_FP32, 1, 0.5f),
        without(5);
    std::vector<unsigned char> bytes(dscomm_feedback_export_bytes(f.fb)),
        plain(dscomm_feedback_export_bytes(without.fb));
    size_t written = 0, plain_written = 0;

    f.call(0.75f);
    ASSERT_EQ(dscomm_feedback_export(f.fb, bytes.data(), bytes.size(), &written), DSCOMM_OK);
    ASSERT_EQ(dscomm_feedback_export(without.fb, plain.data(), plain.size(), &plain_written),
              DSCOMM_OK);
    EXPECT_EQ(bytes.size(), plain.size() + 5 * sizeof(float));
    EXPECT_EQ(dscomm_feedback_import(same.fb, bytes.data(), written), DSCOMM_OK);
    EXPECT_EQ(same.momentum(), f.momentum());
    EXPECT_EQ(same.read(), f.read());
    EXPECT_EQ(dscomm_feedback_import(without.fb, bytes.data(), written), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_feedback_import(f.fb, plain.data(), plain_written), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("export without momentum"), std::string::npos);
    for (size_t cut = 0; cut < bytes.size(); cut++)
        EXPECT_LT(dscomm_feedback_import(same.fb, bytes.data(), cut), 0) << cut;
    for (size_t i = 0; i < bytes.size(); i++) {
        if (i >= 16 && i < 20) /* beta */
            continue;
        bytes[i] ^= 0x40;
        EXPECT_LT(dscomm_feedback_import(same.fb, bytes.data(), written), 0) << i;
        bytes[i] ^= 0x40;
    }
    EXPECT_EQ(same.momentum(), f.momentum());
}

TEST(Feedback, BadConfigs)
{
    dscomm_feedback_t *fb = nullptr;

    for (float beta : { 0.0f, -1.0f, 1.5f, NAN, INFINITY }) {
        dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;

        config.beta = beta;
        EXPECT_EQ(dscomm_feedback_create(1, &config, &fb), DSCOMM_ERR_INVALID) << beta;
    }
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;

    config.type = DSCOMM_RESIDUAL_BF16;
    config.shadow = 0;
    EXPECT_EQ(dscomm_feedback_create(1, &config, &fb), DSCOMM_ERR_INVALID);
    config.type = DSCOMM_RESIDUAL_FP32;
    config.momentum = 0.9f; /* one vector could not be restored */
    EXPECT_EQ(dscomm_feedback_create(1, &config, &fb), DSCOMM_ERR_INVALID);
    config.shadow = 1;
    for (float momentum : { -0.1f, 1.0f, NAN, INFINITY }) {
        config.momentum = momentum;
        EXPECT_EQ(dscomm_feedback_create(1, &config, &fb), DSCOMM_ERR_INVALID) << momentum;
    }
    config.struct_bytes = offsetof(dscomm_feedback_config_t, momentum); /* of before momentum */
    EXPECT_EQ(dscomm_feedback_create(1, &config, &fb), DSCOMM_OK);
    dscomm_feedback_destroy(fb);
    fb = nullptr;
    config.struct_bytes = 3;
    EXPECT_EQ(dscomm_feedback_create(1, &config, &fb), DSCOMM_ERR_INVALID);
    for (size_t count : { (size_t)1 << 60, SIZE_MAX / 4 + 2, SIZE_MAX }) /* bytes that overflow */
        EXPECT_EQ(dscomm_feedback_create(count, nullptr, &fb), DSCOMM_ERR_NO_MEMORY);
    EXPECT_EQ(fb, nullptr);
}

} // namespace
