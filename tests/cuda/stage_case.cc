/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See stage_case.h. All ranks are here: their operations run in turn, whichever has its messages.
 */
#include "cuda/stage_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "cuda/device_memory.h"

#include "support/internal_begin.h"
#include "exec/compute.h"
#include "plan/plan.h"
#include "support/internal_end.h"

#include "kernels/stage.h"

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kMargin = 256; /* bytes before and behind the caller's vectors */
constexpr uint8_t kUntouched = 0x5a;

/* ---- inputs ---- */

float special(uint32_t i)
{
    using Limits = std::numeric_limits<float>;
    const float values[] = { Limits::quiet_NaN(),
                             Limits::infinity(),
                             -Limits::infinity(),
                             -0.0f,
                             Limits::denorm_min(),
                             -Limits::denorm_min(),
                             Limits::max(),
                             -Limits::max(),
                             Limits::min(),
                             0x1p-100f,
                             0x1.fffffep-101f,
                             65519.0f,
                             65520.0f,
                             0x1p-24f,
                             0x1p-25f,
                             448.0f };

    return values[i % (sizeof(values) / sizeof(values[0]))];
}

/* Most blocks have none: else everything would be poison. */
float number(Data data, size_t i, std::mt19937 &random)
{
    std::normal_distribution<float> normal;
    const float x = normal(random);

    switch (data) {
    case Data::zeros:
        return i % 3 == 0 ? -0.0f : 0.0f;
    case Data::specials:
        return random() % 600 == 0 ? special(random()) : x;
    case Data::tiny:
        return i % 700 < 500 ? x * 0x1p-102f : x * 0x1p-126f;
    case Data::huge:
        return x * 0x1p126f;
    case Data::ties:
        return static_cast<float>(static_cast<int>(random() % 15) - 7) * 0.5f;
    default:
        return x * std::exp2(static_cast<float>(random() % 16) - 8.0f);
    }
}

/* n elements of the data type. */
Bytes make_input(const StageCase &c, int rank, size_t n)
{
    std::mt19937 random(c.seed * 7919u + static_cast<uint32_t>(rank));
    std::vector<float> v(n);
    Bytes bytes(n * dsc_dtype_bytes(c.dtype));

    for (size_t i = 0; i < n; i++)
        v[i] = number(c.data, i, random);
    dsc_dtype_store(c.dtype, bytes.data(), v.data(), n);
    return bytes;
}

Bytes make_residual(const StageCase &c, int rank, size_t n)
{
    std::mt19937 random(c.seed * 104729u + static_cast<uint32_t>(rank));
    std::normal_distribution<float> normal(0.0f, 0.01f);
    std::vector<float> r(n);
    Bytes bytes(n * (c.feedback == Feedback::bf16 ? 2 : 4));

    for (auto &x : r)
        x = c.known_zero ? 0.0f : random() % 50 == 0 ? -0.0f : normal(random);
    dsc_dtype_store(c.feedback == Feedback::bf16 ? DSCOMM_BFLOAT16 : DSCOMM_FLOAT32, bytes.data(),
                    r.data(), n);
    return bytes;
}

/* ---- comparing ---- */

Bytes with_margins(const Bytes &v, size_t shift)
{
    Bytes all(2 * kMargin + shift + v.size(), kUntouched);

    if (!v.empty())
        memcpy(&all[kMargin + shift], v.data(), v.size());
    return all;
}

void expect_same_bytes(const Bytes &host, const Bytes &device, const std::string &what)
{
    ASSERT_EQ(host.size(), device.size()) << what;
    for (size_t i = 0; i < host.size(); i++)
        ASSERT_EQ(static_cast<int>(host[i]), static_cast<int>(device[i]))
            << what << ", byte " << i << " of " << host.size();
}

void expect_same_floats(const Bytes &host, const Bytes &device, size_t elem_bytes,
                        const std::string &what)
{
    ASSERT_EQ(host.size(), device.size()) << what;
    for (size_t i = 0; i < host.size(); i += elem_bytes) {
        uint32_t a = 0, b = 0;

        memcpy(reinterpret_cast<uint8_t *>(&a) + 4 - elem_bytes, &host[i], elem_bytes);
        memcpy(reinterpret_cast<uint8_t *>(&b) + 4 - elem_bytes, &device[i], elem_bytes);
        if ((a & 0x7fffffffu) > 0x7f800000u && (b & 0x7fffffffu) > 0x7f800000u)
            continue;
        ASSERT_EQ(a, b) << std::hex << what << std::dec << ", element " << i / elem_bytes << " of "
                        << host.size() / elem_bytes;
    }
}

Bytes bytes_of(const std::vector<float> &v)
{
    Bytes bytes(v.size() * sizeof(float));

    std::copy_n(reinterpret_cast<const uint8_t *>(v.data()), bytes.size(), bytes.begin());
    return bytes;
}

/* ---- a rank ---- */

struct Message {
    Bytes bytes;
    dsc_gpu_facts facts;
};

dsc_gpu_facts facts_of(int exponent, dsc_place place)
{
    return { exponent, place.position, place.members };
}

/* What an operation reads, in the order of struct dsc_gpu_op's recvs. */
using Inputs = std::vector<Message>;

/* State of a rank on the device. */
struct Control {
    dsc_gpu_feedback feedback;
    dsc_gpu_state state;
    dsc_gpu_stats ring[4];
};

/* Device memory that operations share, since allocating is slow. */
struct Shared {
    DeviceArray<uint8_t> messages{ 0 };
    DeviceArray<dsc_gpu_recv> recvs{ 0 };
    DeviceArray<dsc_gpu_tile> tiles{ 0 };
    DeviceArray<dsc_gpu_op> ops{ 0 };
};

class Rank {
  public:
    Rank(const StageCase &c, int rank, Shared &shared);
    ~Rank()
    {
        dsc_plan_destroy(plan);
    }
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;

    /* Both ways; the host's message. */
    Bytes run(const dsc_op &op, const Inputs &inputs);
    void compare();

    struct dscomm_plan *plan = nullptr;
    std::vector<bool> done; /* operations */

  private:
    Bytes run_host(const dsc_op &op, const Inputs &inputs);
    Bytes run_device(const dsc_op &op, const Inputs &inputs, size_t out_bytes);
    bool is_last(const dsc_op &op) const;
    void add_momentum(size_t n);

    const StageCase &c_;
    const int rank_;
    Shared &d_;
    const size_t elem_bytes_, residual_bytes_;
    Bytes send_, recv_, residual_[2]; /* with margins */
    std::vector<float> partial_, scratch_, velocity_[2];
    Bytes gather_;
    std::vector<uint32_t> thresholds_;
    dsc_call call_ = {};
    dsc_compute compute_ = {};
    size_t n_nonfinite_ = 0;
    std::unique_ptr<DeviceArray<uint8_t>> d_send_, d_recv_, d_residual_[2];
    std::unique_ptr<DeviceArray<float>> d_partial_, d_velocity_[2];
    DeviceArray<Control> d_control_{ 1 };
    dsc_gpu_call d_call_ = {};
};

dsc_algorithm algorithm_of(const StageCase &c)
{
    if (c.n_ranks == 1)
        return DSC_ALG_LOCAL;
    if (c.collective >= Collective::broadcast)
        return DSC_ALG_DIRECT;
    return c.one_shot && c.collective == Collective::allreduce ? DSC_ALG_ONE_SHOT
                                                               : DSC_ALG_TWO_SHOT;
}

dsc_plan_params params_of(const StageCase &c, int rank, std::vector<int> &groups)
{
    const struct dsc_collective_traits *traits =
        dsc_collective_traits(static_cast<enum dsc_collective>(c.collective));
    const bool has_shares = traits->sends_shares || traits->recvs_shares;
    dsc_plan_params p = {};

    p.collective = static_cast<enum dsc_collective>(c.collective);
    p.n_ranks = c.n_ranks;
    p.rank = rank;
    p.root = c.collective == Collective::broadcast ? c.n_ranks / 2 : 0;
    p.count = has_shares ? c.count * static_cast<size_t>(c.n_ranks) : c.count;
    p.dtype = c.dtype;
    p.op = c.op;
    p.feedback = c.feedback != Feedback::none;
    p.algorithm = algorithm_of(c);
    p.chunk_elems = c.chunk_elems;
    p.n_tiers = static_cast<int>(c.specs.size());
    for (size_t t = 0; t < c.specs.size(); t++)
        p.codecs[t] = dscomm_codec(c.specs[t].c_str());
    for (int t = 0; t < p.n_tiers; t++) /* pairs, then pairs of pairs, then all */
        for (int r = 0; r < c.n_ranks; r++)
            groups.push_back(t + 1 == p.n_tiers ? 0 : r >> (t + 1));
    p.groups = p.n_tiers > 1 ? groups.data() : nullptr;
    return p;
}

Rank::Rank(const StageCase &c, int rank, Shared &shared)
    : c_(c), rank_(rank), d_(shared), elem_bytes_(dsc_dtype_bytes(c.dtype)),
      residual_bytes_(c.feedback == Feedback::bf16 ? 2 : 4)
{
    std::vector<int> groups;
    const dsc_plan_params params = params_of(c, rank, groups);
    const size_t send_shift = c.send_shift * elem_bytes_,
                 recv_shift = (c.in_place ? c.send_shift : c.recv_shift) * elem_bytes_;
    const size_t send_elems = dsc_plan_send_elems(&params);
    const uint32_t from = c.parity, to = 1 - c.parity;
    const bool is_one = c.feedback == Feedback::one_vector;

    EXPECT_EQ(dsc_plan_build(&params, &plan), DSCOMM_OK) << dscomm_last_error();
    send_ = with_margins(make_input(c, rank, send_elems), send_shift);
    recv_ = with_margins(Bytes(dsc_plan_recv_elems(&params) * elem_bytes_, 0xb7), recv_shift);
    residual_[from] = with_margins(make_residual(c, rank, send_elems), 0);
    residual_[to] =
        is_one ? residual_[from] : with_margins(Bytes(send_elems * residual_bytes_, 0x3c), 0);
    partial_.assign(plan->partial_elems, 0.0f);
    done.resize(plan->n_ops);
    scratch_.resize(dsc_compute_scratch_floats(plan) + 16);
    gather_.resize(plan->gather_bytes + 16);

    d_send_ = std::make_unique<DeviceArray<uint8_t>>(send_);
    if (!c.in_place)
        d_recv_ = std::make_unique<DeviceArray<uint8_t>>(recv_);
    for (int i = 0; i < 2 && params.feedback; i++)
        d_residual_[i] = std::make_unique<DeviceArray<uint8_t>>(residual_[i]);
    if (!partial_.empty())
        d_partial_ = std::make_unique<DeviceArray<float>>(partial_);
    d_control_.set({ { { c.parity, c.known_zero }, { 5, 0, 0, 3, d_control_.get()->ring }, {} } });

    call_.send = &send_[kMargin + send_shift];
    call_.recv = c.in_place ? &send_[kMargin + send_shift] : &recv_[kMargin + recv_shift];
    call_.feedback = params.feedback;
    call_.residual = { &residual_[from][kMargin], &residual_[is_one ? from : to][kMargin],
                       c.feedback == Feedback::bf16 ? DSCOMM_RESIDUAL_BF16 : DSCOMM_RESIDUAL_FP32,
                       c.beta, c.known_zero && c.momentum == 0.0f };
    add_momentum(send_elems);
    call_.draw = { c.seed, 5, static_cast<uint32_t>(rank), 0 };
    thresholds_.resize(plan->n_thresholds + 1);
    dsc_compute_begin(&compute_, plan, &call_, partial_.data(), gather_.data(), thresholds_.data());

    d_call_.send = d_send_->get() + kMargin + send_shift;
    d_call_.recv = (c.in_place ? d_send_ : d_recv_)->get() + kMargin + recv_shift;
    for (uint32_t i = 0; i < 2 && params.feedback; i++)
        d_call_.residual[i] = d_residual_[is_one ? from : i]->get() + kMargin;
    d_call_.feedback = params.feedback ? &d_control_.get()->feedback : nullptr;
    d_call_.state = &d_control_.get()->state;
    d_call_.beta = c.beta;
    d_call_.seed = c.seed;
    d_call_.rank = static_cast<uint32_t>(rank);
    d_call_.n_ranks = static_cast<uint32_t>(c.n_ranks);
    d_call_.dtype = c.dtype;
    d_call_.op = c.op;
    d_call_.residual_type = call_.residual.type;
}

void Rank::add_momentum(size_t n)
{
    std::mt19937 random(c_.seed * 31u + static_cast<uint32_t>(rank_));
    std::normal_distribution<float> normal;

    for (int i = 0; i < 2 && c_.momentum > 0.0f; i++) {
        velocity_[i].resize(n);
        for (auto &u : velocity_[i])
            u = normal(random);
        d_velocity_[i] = std::make_unique<DeviceArray<float>>(velocity_[i]);
        d_call_.velocity[i] = d_velocity_[i]->get();
    }
    if (c_.momentum > 0.0f) {
        call_.residual.velocity_in = velocity_[c_.parity].data();
        call_.residual.velocity_out = velocity_[1 - c_.parity].data();
    }
    call_.residual.momentum = d_call_.momentum = c_.momentum;
}

Bytes Rank::run_host(const dsc_op &op, const Inputs &inputs)
{
    std::vector<std::vector<uint64_t>> aligned; /* messages are 16-byte aligned */
    std::vector<const uint8_t *> msgs;
    std::vector<uint64_t> out(op.msg_bytes / 8 + 2);
    float *scratch = scratch_.data();
    struct dsc_flaw flaw = {};
    const uint32_t saved = dsc_fp_enter();
    const auto align16 = [](std::vector<uint64_t> &v) {
        return reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(v.data()) + 15) / 16 * 16);
    };

    aligned.reserve(inputs.size());
    for (size_t i = 0; i < inputs.size(); i++) {
        if (op.kind == DSC_OP_SUM && static_cast<int>(i) == op.own_at && op.n_recvs > 0)
            continue; /* the host finds it in the gather buffer */
        aligned.emplace_back(inputs[i].bytes.size() / 8 + 4);
        std::copy(inputs[i].bytes.begin(), inputs[i].bytes.end(), align16(aligned.back()));
        msgs.push_back(align16(aligned.back()));
    }
    scratch = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64);
    n_nonfinite_ += dsc_compute_op(&compute_, &op, msgs.data(),
                                   op.msg_bytes > 0 ? align16(out) : nullptr, scratch, &flaw);
    dsc_fp_leave(saved);
    if (op.kind == DSC_OP_ENCODE || op.kind == DSC_OP_GATHER)
        std::copy_n(align16(out), op.msg_bytes, gather_.begin() + op.keep);
    return Bytes(align16(out), align16(out) + op.msg_bytes);
}

dsc_gpu_stage stage_of(dsc_op_kind kind)
{
    switch (kind) {
    case DSC_OP_SEND:
    case DSC_OP_ENCODE:
        return DSC_GPU_ENCODE;
    case DSC_OP_REDUCE:
        return DSC_GPU_REDUCE;
    case DSC_OP_FINAL:
        return DSC_GPU_FINAL;
    case DSC_OP_DECODE:
        return DSC_GPU_DECODE;
    case DSC_OP_SUM:
        return DSC_GPU_SUM;
    case DSC_OP_RESTORE:
        return DSC_GPU_RESTORE;
    default:
        return DSC_GPU_RESULT;
    }
}

/* Operations that compute nothing are no kernels. */
bool Rank::is_last(const dsc_op &op) const
{
    for (uint32_t i = 0; i < plan->n_ops; i++)
        if (!done[i] && &plan->ops[i] != &op && plan->ops[i].kind != DSC_OP_GATHER)
            return false;
    return true;
}

bool all_none(const dscomm_plan *plan)
{
    for (int t = 0; t < plan->params.n_tiers; t++)
        if (!plan->params.codecs[t]->by_dtype)
            return false;
    return true;
}

Bytes Rank::run_device(const dsc_op &op, const Inputs &inputs, size_t out_bytes)
{
    const dsc_gpu_stage stage = stage_of(op.kind);
    const dscomm_codec_t *codec = plan->params.codecs[op.tier];
    const uint32_t tile_elems = dsc_gpu_tile_elems(stage, codec, c_.dtype);
    std::vector<dsc_gpu_recv> recvs;
    std::vector<dsc_gpu_tile> tiles;
    Bytes messages;
    dsc_gpu_op g = {};

    for (const auto &m : inputs) {
        recvs.push_back({ messages.size(), m.facts });
        messages.insert(messages.end(), m.bytes.begin(), m.bytes.end());
    }
    for (uint32_t at = 0; at < op.n; at += tile_elems)
        tiles.push_back({ 1, at });
    g.start = op.start;
    g.send_at = op.start - plan->send_base;
    g.recv_at = op.start - plan->recv_base;
    g.out_at = out_bytes > 0 ? messages.size() : DSC_GPU_NONE;
    g.own_partial = op.own_partial == DSC_NO_BUFFER ? DSC_GPU_NONE : op.own_partial;
    g.out_partial = op.out_partial;
    g.own_start = op.own_start;
    g.own_end = op.own_end;
    g.n = op.n;
    g.facts = facts_of(op.exponent, op.place);
    g.own_at = static_cast<uint32_t>(op.own_at);
    g.n_recvs = static_cast<uint32_t>(recvs.size());
    g.flags = c_.collective == Collective::allreduce ? DSC_GPU_OP_RESTORES : 0;
    messages.resize(messages.size() + out_bytes + 16, kUntouched);

    d_.messages.set(messages);
    d_.recvs.set(recvs);
    d_.tiles.set(tiles);
    d_.ops.set({ {}, g });
    const dsc_gpu_work work = {
        d_.ops.get(),
        d_.recvs.get(),
        d_.tiles.get(),
        d_.messages.get(),
        d_partial_ ? d_partial_->get() : nullptr,
        static_cast<uint32_t>(tiles.size()),
        (is_last(op) ? DSC_GPU_WORK_LAST : 0) | (all_none(plan) ? DSC_GPU_WORK_ALL_NONE : 0),
    };
    const dsc_gpu_prepared launch = dsc_gpu_prepare(stage, codec, &work, &d_call_);

    EXPECT_EQ(dsc_gpu_launch(&launch, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    const Bytes after = d_.messages.read(messages.size());
    const size_t out_at = messages.size() - 16 - out_bytes;

    EXPECT_TRUE(
        std::equal(messages.begin(), messages.begin() + static_cast<long>(out_at), after.begin()))
        << "received messages were written";
    EXPECT_TRUE(std::all_of(after.end() - 16, after.end(), [](int b) { return b == kUntouched; }))
        << "written behind the message";
    return Bytes(after.begin() + static_cast<long>(out_at), after.end() - 16);
}

Bytes Rank::run(const dsc_op &op, const Inputs &inputs)
{
    const Bytes out = run_host(op, inputs);
    const bool has_message = op.kind != DSC_OP_REDUCE && op.kind != DSC_OP_DECODE &&
                             op.kind != DSC_OP_RESTORE && op.kind != DSC_OP_SUM;

    if (op.kind != DSC_OP_GATHER)
        expect_same_bytes(has_message ? out : Bytes(),
                          run_device(op, inputs, has_message ? out.size() : 0),
                          "message of operation kind " + std::to_string(op.kind) + " rank " +
                              std::to_string(rank_) + " at " + std::to_string(op.start));
    return op.kind == DSC_OP_DECODE || op.kind == DSC_OP_RESTORE ? inputs[0].bytes : out;
}

void Rank::compare()
{
    const Control control = d_control_.read()[0];
    const dsc_gpu_state &state = control.state;
    const dsc_gpu_stats &stats = control.ring[6 & 3];
    const dsc_gpu_feedback &fb = control.feedback;
    const bool wrote = dsc_compute_writes_residual(&compute_);
    const std::string at = " of rank " + std::to_string(rank_);

    expect_same_bytes(send_, d_send_->read(), "send" + at);
    if (!c_.in_place)
        expect_same_bytes(recv_, d_recv_->read(), "recv" + at);
    if (d_partial_)
        expect_same_floats(bytes_of(partial_), bytes_of(d_partial_->read()), 4,
                           "partial sums" + at);
    for (int i = 0; i < 2 && c_.momentum > 0.0f; i++)
        expect_same_floats(bytes_of(velocity_[i]), bytes_of(d_velocity_[i]->read()), 4,
                           "momentum " + std::to_string(i) + at);
    for (int i = 0; i < 2 && c_.feedback != Feedback::none; i++)
        expect_same_floats(residual_[i], d_residual_[i]->read(), residual_bytes_,
                           "residual " + std::to_string(i) + at);
    EXPECT_EQ(state.sequence, 6u);
    EXPECT_EQ(state.n_nonfinite, 0u);
    EXPECT_EQ(state.blocks_done, 0u);
    EXPECT_EQ(stats.number, 6u);
    EXPECT_EQ(stats.n_nonfinite, n_nonfinite_) << at;
    EXPECT_EQ(fb.parity, wrote ? 1 - c_.parity : c_.parity);
    EXPECT_EQ(fb.known_zero, c_.known_zero && !wrote);
}

/* ---- all ranks ---- */

using Channel = std::tuple<int, int, uint32_t>; /* from, to, index */

class Call {
  public:
    explicit Call(const StageCase &c) : c_(c), random_(c.seed)
    {
        for (int r = 0; r < c.n_ranks; r++)
            ranks_.push_back(std::make_unique<Rank>(c, r, shared_));
        kept_.resize(static_cast<size_t>(c.n_ranks));
    }

    void run()
    {
        bool progress = true;

        while (progress && !testing::Test::HasFatalFailure()) {
            progress = false;
            for (int r = 0; r < static_cast<int>(ranks_.size()); r++)
                while (!testing::Test::HasFatalFailure() && step(r))
                    progress = true;
        }
        for (auto &rank : ranks_) {
            ASSERT_FALSE(testing::Test::HasFatalFailure());
            ASSERT_EQ(std::count(rank->done.begin(), rank->done.end(), false), 0);
            rank->compare();
        }
    }

  private:
    /* One operation of rank r; false: none is ready. */
    bool step(int r)
    {
        Rank &rank = *ranks_[static_cast<size_t>(r)];

        for (uint32_t i = 0; i < rank.plan->n_ops; i++) {
            Inputs inputs;

            if (!rank.done[i] && deps_done(rank, rank.plan->ops[i]) &&
                collect(r, rank.plan->ops[i], inputs)) {
                run_operation(r, rank.plan->ops[i], inputs);
                rank.done[i] = true;
                return true;
            }
        }
        return false;
    }

    static bool deps_done(const Rank &rank, const dsc_op &op)
    {
        for (uint32_t i = op.first_dep; i < op.first_dep + op.n_deps; i++)
            if (!rank.done[rank.plan->deps[i]])
                return false;
        return true;
    }

    void run_operation(int r, const dsc_op &op, const Inputs &inputs)
    {
        Rank &rank = *ranks_[static_cast<size_t>(r)];
        const Bytes out = rank.run(op, inputs);

        if (op.kind == DSC_OP_ENCODE || op.kind == DSC_OP_GATHER)
            kept_[static_cast<size_t>(r)][op.keep] = { out, facts_of(op.exponent, op.place) };
        for (uint32_t i = op.first_send; i < op.first_send + op.n_sends; i++) {
            const dsc_plan_msg &m = rank.plan->sends[i];

            sent_[{ r, rank.plan->peers[m.conn], m.index }] = { arriving(out), {} };
        }
    }

    /* Some bytes are others, or all. */
    Bytes arriving(Bytes bytes)
    {
        const size_t n = random_() % 3 == 0 ? bytes.size() : 4;

        for (size_t i = 0; c_.hostile && !bytes.empty() && i < n; i++)
            bytes[random_() % bytes.size()] = static_cast<uint8_t>(random_());
        return bytes;
    }

    /* Of who has encoded a received message. */
    static dsc_place place_of(const dscomm_plan *plan, const dsc_op &op, const dsc_plan_msg &m)
    {
        if (op.kind == DSC_OP_SUM)
            return { static_cast<uint16_t>(plan->peers[m.conn]),
                     static_cast<uint16_t>(plan->params.n_ranks) };
        return op.kind == DSC_OP_REDUCE || op.kind == DSC_OP_FINAL || op.kind == DSC_OP_RESULT
                   ? m.place
                   : op.place;
    }

    bool collect(int r, const dsc_op &op, Inputs &inputs)
    {
        const dscomm_plan *plan = ranks_[static_cast<size_t>(r)]->plan;
        auto &kept = kept_[static_cast<size_t>(r)];

        for (uint32_t i = op.first_recv; i < op.first_recv + op.n_recvs; i++) {
            const dsc_plan_msg &m = plan->recvs[i];
            const auto found = sent_.find({ plan->peers[m.conn], r, m.index });

            if (found == sent_.end())
                return false;
            inputs.push_back({ found->second.bytes, facts_of(m.exponent, place_of(plan, op, m)) });
        }
        if (op.kind != DSC_OP_SUM)
            return true;
        if (op.n_recvs > 0) {
            inputs.insert(inputs.begin() + op.own_at, kept.at(op.keep));
        } else {
            for (int q = 0; q < plan->params.n_ranks; q++)
                inputs.push_back(kept.at(op.keep + static_cast<size_t>(q) * plan->gather_stride));
        }
        return true;
    }

    const StageCase &c_;
    std::mt19937 random_;
    Shared shared_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    std::map<Channel, Message> sent_;
    std::vector<std::map<size_t, Message>> kept_; /* per rank, by place in the gather buffer */
};

} // namespace

std::string StageCase::text() const
{
    std::string s;

    for (const auto &spec : specs)
        s += spec + " ";
    return s + "collective " + std::to_string(static_cast<int>(collective)) + " ranks " +
           std::to_string(n_ranks) + " count " + std::to_string(count) + " dtype " +
           dsc_dtype_name(dtype) + " op " + std::to_string(op) + (one_shot ? " one-shot" : "") +
           (in_place ? " in-place" : "") + (hostile ? " hostile" : "") +
           (known_zero ? " known-zero" : "") + (momentum > 0.0f ? " momentum" : "") + " feedback " +
           std::to_string(static_cast<int>(feedback)) + " data " +
           std::to_string(static_cast<int>(data)) + " shifts " + std::to_string(send_shift) + " " +
           std::to_string(recv_shift) + " seed " + std::to_string(seed);
}

void run_stage_case(const StageCase &c)
{
    SCOPED_TRACE(c.text());
    Call call(c);

    call.run();
}
