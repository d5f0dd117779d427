// SPDX-License-Identifier: Apache-2.0
// What several ranks do together with the stand-in for NCCL: operations that must be right, and
// misuse that must fail with a name.
#include "emu/selftest/nccl_ranks.h"
#include <cuda_fp16.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <algorithm>

static const size_t big = 100000; // several times what a ring holds

static std::vector<int> some_ints(int rank, size_t n)
{
    std::vector<int> v(n);

    for (size_t i = 0; i < n; i++)
        v[i] = static_cast<int>((i * 7 + 1) % 1009) * (rank + 1);
    return v;
}

static std::vector<int> sum_of_all(int n_ranks, size_t n)
{
    std::vector<int> sum(n, 0);

    for (int r = 0; r < n_ranks; r++) {
        const std::vector<int> v = some_ints(r, n);
        for (size_t i = 0; i < n; i++)
            sum[i] += v[i];
    }
    return sum;
}

static bool says(const Rank *r, const char *text)
{
    return r->last_error().find(text) != std::string::npos;
}

// ---- right ----
static void collectives(Rank *r)
{
    const size_t part = big / 4, n = static_cast<size_t>(r->n);
    Buffer<int> in(r, some_ints(r->rank, part * n)), out(r, std::vector<int>(part * n, -1));
    std::vector<int> want;

    r->init();
    RANK_OK(r, ncclAllReduce(in.p, out.p, part * n, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    want = sum_of_all(r->n, part * n);
    RANK_CHECK(r, out.get() == want);
    RANK_OK(r, ncclReduceScatter(in.p, out.p, part, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    std::vector<int> got = out.get();
    RANK_CHECK(r, std::equal(got.begin(), got.begin() + part, want.begin() + r->rank * part));
    RANK_OK(r, ncclAllGather(in.p, out.p, part, ncclInt32, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    got = out.get();
    for (int i = 0; i < r->n; i++) {
        want = some_ints(i, part);
        RANK_CHECK(r, std::equal(want.begin(), want.end(), got.begin() + i * part));
    }
    RANK_OK(r, ncclBroadcast(in.p, out.p, part, ncclInt32, 1, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    got.assign(part, 0);
    RANK_CUDA(r, cudaMemcpy(got.data(), out.p, part * sizeof(int), cudaMemcpyDeviceToHost));
    RANK_CHECK(r, got == some_ints(1, part));
    RANK_OK(r, ncclAllReduce(in.p, in.p, part, ncclInt32, ncclMax, r->comm, r->stream)); // in place
    RANK_CHECK(r, r->finish() == ncclSuccess);
    got = in.get();
    RANK_CHECK(r, got[5] == some_ints(r->n - 1, 6)[5]);
    RANK_OK(r, ncclCommFinalize(r->comm));
    RANK_OK(r, ncclCommDestroy(r->comm));
    r->comm = nullptr;
}

// Everybody with everybody, sends of some before and of others after their receives.
static void exchange(Rank *r)
{
    const size_t n = static_cast<size_t>(r->n);
    Buffer<int> in(r, some_ints(r->rank, big * n)), out(r, std::vector<int>(big * n, -1));

    r->init();
    RANK_OK(r, ncclGroupStart());
    for (int i = 0; i < r->n; i++) {
        const int peer = r->rank % 2 ? i : r->n - 1 - i;
        RANK_OK(r, ncclSend(in.p + peer * big, big, ncclInt32, peer, r->comm, r->stream));
    }
    for (int peer = 0; peer < r->n; peer++)
        RANK_OK(r, ncclRecv(out.p + peer * big, big, ncclInt32, peer, r->comm, r->stream));
    RANK_OK(r, ncclGroupEnd());
    RANK_CHECK(r, r->finish() == ncclSuccess);
    const std::vector<int> got = out.get();
    for (int peer = 0; peer < r->n; peer++) {
        const std::vector<int> theirs = some_ints(peer, big * n);
        RANK_CHECK(r, std::equal(got.begin() + peer * big, got.begin() + (peer + 1) * big,
                                 theirs.begin() + r->rank * big));
    }
}

static void half_sums(Rank *r)
{
    const std::vector<__half> mine(100, __float2half_rn(static_cast<float>(r->rank) + 0.5f));
    Buffer<__half> in(r, mine), out(r, mine);

    r->init();
    RANK_OK(r, ncclAllReduce(in.p, out.p, 100, ncclFloat16, ncclSum, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    RANK_CHECK(r, __half2float(out.get()[99]) == 0.5f * r->n + r->n * (r->n - 1) / 2);
    RANK_OK(r, ncclAllReduce(in.p, out.p, 100, ncclFloat16, ncclAvg, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    RANK_CHECK(r, __half2float(out.get()[0]) == 0.5f + (r->n - 1) / 2.0f);
}

static cudaGraphExec_t capture_all_reduce(Rank *r, int *p, size_t n)
{
    cudaGraph_t g = nullptr;
    cudaGraphExec_t e = nullptr;

    RANK_CUDA(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(r, ncclAllReduce(p, p, n, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_CUDA(r, cudaStreamEndCapture(r->stream, &g));
    RANK_CUDA(r, cudaGraphInstantiate(&e, g, 0));
    RANK_CUDA(r, cudaGraphDestroy(g));
    return e;
}

static void replays(Rank *r)
{
    Buffer<int> b(r, std::vector<int>(1000, 1));

    r->init();
    const cudaGraphExec_t e = capture_all_reduce(r, b.p, 1000);
    for (int i = 0; i < 5; i++)
        RANK_CUDA(r, cudaGraphLaunch(e, r->stream));
    RANK_OK(r,
            ncclAllReduce(b.p, b.p, 1000, ncclInt32, ncclSum, r->comm, r->stream)); // eager again
    RANK_CHECK(r, r->finish() == ncclSuccess);
    int want = 1;
    for (int i = 0; i < 6; i++)
        want *= r->n;
    RANK_CHECK(r, b.get() == std::vector<int>(1000, want));
    RANK_CUDA(r, cudaGraphExecDestroy(e));
}

// Operations keep the order of their calls across streams, and a group ties its streams together.
static void streams(Rank *r)
{
    Buffer<int> a(r, { 1 }), b(r, { 10 });
    cudaStream_t other;

    r->init();
    RANK_CUDA(r, cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (int i = 0; i < 10; i++) {
        RANK_OK(r,
                ncclAllReduce(a.p, a.p, 1, ncclInt32, ncclMax, r->comm, i % 2 ? other : r->stream));
        RANK_OK(r,
                ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclMin, r->comm, i % 2 ? r->stream : other));
    }
    RANK_OK(r, ncclGroupStart());
    RANK_OK(r, ncclAllReduce(a.p, a.p, 1, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_OK(r, ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclSum, r->comm, other));
    RANK_OK(r, ncclGroupEnd());
    RANK_CHECK(r, r->finish() == ncclSuccess); // also the end of what ran on the other stream
    RANK_CHECK(r, a.get()[0] == r->n && b.get()[0] == 10 * r->n);
    RANK_CUDA(r, cudaStreamDestroy(other));
}

static void split(Rank *r)
{
    Buffer<int> b(r, { r->rank });
    ncclComm_t part = nullptr;
    int n = 0, rank = -1;

    r->init();
    const int color = r->rank == 1 ? NCCL_SPLIT_NOCOLOR : 3;
    RANK_OK(r, ncclCommSplit(r->comm, color, -r->rank, &part, nullptr));
    RANK_CHECK(r, (part == nullptr) == (r->rank == 1));
    if (!part)
        return;
    RANK_OK(r, ncclCommCount(part, &n));
    RANK_OK(r, ncclCommUserRank(part, &rank));
    RANK_CHECK(r, n == 2 && rank == (r->rank == 0 ? 1 : 0)); // by key
    RANK_OK(r, ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclSum, part, r->stream));
    RANK_CUDA(r, cudaStreamSynchronize(r->stream));
    RANK_CHECK(r, b.get()[0] == 2);
    RANK_OK(r, ncclCommDestroy(part));
}

static void init_without_blocking(Rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t e = ncclInProgress;
    Buffer<int> b(r, { 1 });

    config.blocking = 0;
    RANK_CHECK(r,
               ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &config) == ncclInProgress);
    for (int i = 0; i < 20000 && e == ncclInProgress; i++) {
        RANK_OK(r, ncclCommGetAsyncError(r->comm, &e));
        usleep(500);
    }
    RANK_CHECK(r, e == ncclSuccess);
    RANK_OK(r, ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess && b.get()[0] == r->n);
}

// The stream of the last operation may be gone when the next one comes, and may capture when the
// communicator goes.
static void streams_come_and_go(Rank *r)
{
    Buffer<int> b(r, { 1 });
    cudaStream_t other;
    cudaGraph_t g;

    r->init();
    RANK_CUDA(r, cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    RANK_OK(r, ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclSum, r->comm, other));
    RANK_CUDA(r, cudaStreamDestroy(other));
    RANK_OK(r, ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess && b.get()[0] == r->n * r->n);
    RANK_CUDA(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
    RANK_OK(r, ncclCommDestroy(r->comm));
    r->comm = nullptr;
    RANK_CUDA(r, cudaStreamEndCapture(r->stream, &g));
    RANK_CUDA(r, cudaGraphDestroy(g));
}

// ---- wrong ----
// Whoever finds a mismatch names it, and all others hear of it.
static void expect_mismatch(Rank *r, const char *what)
{
    const ncclResult_t e = r->finish();

    RANK_CHECK(r, e == ncclInvalidUsage || e == ncclRemoteError);
    r->check(says(r, "MISMATCH") && says(r, what), what, __LINE__);
    RANK_CHECK(r, ncclAllReduce(nullptr, nullptr, 0, ncclInt32, ncclSum, r->comm, r->stream) == e);
}

static void one_eager_while_others_replay(Rank *r)
{
    Buffer<int> b(r, std::vector<int>(10, 1));

    r->init();
    const cudaGraphExec_t e = capture_all_reduce(r, b.p, 10);
    RANK_CUDA(r, cudaGraphLaunch(e, r->stream));
    RANK_CHECK(r, r->finish() == ncclSuccess);
    if (r->rank == 1)
        RANK_OK(r, ncclAllReduce(b.p, b.p, 10, ncclInt32, ncclSum, r->comm, r->stream));
    else
        RANK_CUDA(r, cudaGraphLaunch(e, r->stream));
    expect_mismatch(r, "captured against eager");
    RANK_CUDA(r, cudaGraphExecDestroy(e));
}

static void different_counts(Rank *r)
{
    Buffer<int> b(r, std::vector<int>(64, 1));

    r->init();
    if (r->rank == 0)
        RANK_OK(r, ncclSend(b.p, 64, ncclInt32, 1, r->comm, r->stream));
    if (r->rank == 1)
        RANK_OK(r, ncclRecv(b.p, 32, ncclInt32, 0, r->comm, r->stream));
    // A send that fits the ring is done early: its rank hears of the failure at a later call.
    for (int i = 0; r->rank == 0 && i < 5000 && !says(r, "MISMATCH"); i++) {
        RANK_CUDA(r, cudaStreamSynchronize(r->stream));
        ncclSend(b.p, 0, ncclInt32, 1, r->comm, r->stream);
        usleep(1000);
    }
    expect_mismatch(r, "different counts: recv of 32 int32");
}

static void different_types(Rank *r)
{
    Buffer<int> b(r, std::vector<int>(64, 1));

    r->init();
    RANK_OK(r, ncclAllReduce(b.p, b.p, 16, r->rank ? ncclInt32 : ncclFloat32, ncclSum, r->comm,
                             r->stream));
    expect_mismatch(r, "different types");
}

static void different_operations(Rank *r)
{
    Buffer<int> b(r, std::vector<int>(64, 1));

    r->init();
    if (r->rank == 0)
        RANK_OK(r, ncclAllReduce(b.p, b.p, 16, ncclInt32, ncclSum, r->comm, r->stream));
    else
        RANK_OK(r, ncclReduceScatter(b.p, b.p, 16, ncclInt32, ncclSum, r->comm, r->stream));
    expect_mismatch(r, "different operations");
}

static void init_inside_a_capture(Rank *r)
{
    cudaGraph_t g;

    RANK_CUDA(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    RANK_CHECK(r, ncclCommInitRank(&r->comm, r->n, r->id, r->rank) == ncclUnhandledCudaError);
    RANK_CHECK(r, says(r, "inside a stream capture?"));
    RANK_CHECK(r, cudaStreamEndCapture(r->stream, &g) == cudaErrorStreamCaptureInvalidated);
}

static void split_inside_a_capture(Rank *r)
{
    ncclComm_t part = nullptr;
    cudaGraph_t g;

    r->init();
    RANK_CUDA(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    RANK_CHECK(r, ncclCommSplit(r->comm, 0, 0, &part, nullptr) == ncclUnhandledCudaError);
    RANK_CHECK(r, says(r, "inside a stream capture?"));
    RANK_CHECK(r, cudaStreamEndCapture(r->stream, &g) == cudaErrorStreamCaptureInvalidated);
}

static void captured_and_live_in_one_group(Rank *r)
{
    Buffer<int> b(r, { 1, 1 });
    cudaStream_t other;
    cudaGraph_t g;

    r->init();
    RANK_CUDA(r, cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    RANK_CUDA(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(r, ncclGroupStart());
    RANK_OK(r, ncclAllReduce(b.p, b.p, 1, ncclInt32, ncclSum, r->comm, r->stream));
    RANK_OK(r, ncclAllReduce(b.p + 1, b.p + 1, 1, ncclInt32, ncclSum, r->comm, other));
    RANK_CHECK(r, ncclGroupEnd() == ncclInvalidUsage);
    RANK_CUDA(r, cudaStreamEndCapture(r->stream, &g));
    RANK_CUDA(r, cudaGraphDestroy(g));
    RANK_CUDA(r, cudaStreamDestroy(other));
}

static void replay_after_destroy(Rank *r)
{
    Buffer<int> b(r, { 7 });

    r->init();
    const cudaGraphExec_t e = capture_all_reduce(r, b.p, 1);
    RANK_OK(r, ncclCommDestroy(r->comm));
    r->comm = nullptr;
    RANK_CUDA(r, cudaGraphLaunch(e, r->stream));
    RANK_CUDA(r, cudaStreamSynchronize(r->stream));
    RANK_CHECK(r, b.get()[0] == 7);
    RANK_CUDA(r, cudaGraphExecDestroy(e));
}

static void abort_wakes_who_waits(Rank *r)
{
    Buffer<int> b(r, { 7 });

    r->init();
    if (r->rank == 0)
        RANK_OK(r, ncclRecv(b.p, 1, ncclInt32, 1, r->comm, r->stream)); // which nobody sends
    usleep(20000);
    RANK_OK(r, ncclCommAbort(r->comm));
    r->comm = nullptr;
    RANK_CUDA(r, cudaStreamSynchronize(r->stream));
    RANK_CHECK(r, b.get()[0] == 7);
}

static void waits_have_deadlines(Rank *r)
{
    Buffer<int> b(r, { 7 });

    r->init();
    if (r->rank == 1)
        return;
    setenv("EMU_NCCL_TIMEOUT_MS", "1000", 1);
    RANK_OK(r, ncclRecv(b.p, 1, ncclInt32, 1, r->comm, r->stream));
    RANK_CHECK(r, r->finish() == ncclSystemError);
    RANK_CHECK(r, says(r, "without a byte for recv of 1 int32"));
    RANK_CHECK(r, says(r, "from rank 1"));
}

static void not_all_ranks_come(Rank *r)
{
    if (r->rank == 1)
        return;
    RANK_CHECK(r, ncclCommInitRank(&r->comm, r->n, r->id, r->rank) == ncclSystemError);
    RANK_CHECK(r, r->comm == nullptr && says(r, "1 of 2 ranks arrived"));
}

static void two_ranks_on_one_device(Rank *r)
{
    RANK_CUDA(r, cudaSetDevice(0));
    const ncclResult_t e = ncclCommInitRank(&r->comm, r->n, r->id, r->rank);
    RANK_CHECK(r, e == ncclInvalidUsage || e == ncclRemoteError);
    RANK_CHECK(r, says(r, "ranks 0 and 1 are both on device 0"));
}

static void different_numbers_of_ranks(Rank *r)
{
    const ncclResult_t e = ncclCommInitRank(&r->comm, r->n + r->rank, r->id, r->rank);

    RANK_CHECK(r, e == ncclInvalidArgument || e == ncclRemoteError);
    RANK_CHECK(r, says(r, "was told of"));
}

const std::vector<NamedCase> rank_cases = {
    { "collectives", 3, collectives },
    { "exchange", 3, exchange },
    { "half_sums", 2, half_sums },
    { "replays", 3, replays },
    { "streams", 2, streams },
    { "streams_come_and_go", 2, streams_come_and_go },
    { "split", 3, split },
    { "init_without_blocking", 2, init_without_blocking },
    { "one_eager_while_others_replay", 3, one_eager_while_others_replay },
    { "different_counts", 2, different_counts },
    { "different_types", 2, different_types },
    { "different_operations", 2, different_operations },
    { "init_inside_a_capture", 2, init_inside_a_capture },
    { "split_inside_a_capture", 2, split_inside_a_capture },
    { "captured_and_live_in_one_group", 2, captured_and_live_in_one_group },
    { "replay_after_destroy", 2, replay_after_destroy },
    { "abort_wakes_who_waits", 2, abort_wakes_who_waits },
    { "waits_have_deadlines", 2, waits_have_deadlines },
    { "not_all_ranks_come", 2, not_all_ranks_come },
    { "two_ranks_on_one_device", 2, two_ranks_on_one_device },
    { "different_numbers_of_ranks", 2, different_numbers_of_ranks },
};
