/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elements with the largest magnitudes, and where they are. Segments of 65536 elements are
 *
 *     | the k values, as a message of their own codec | i0 i1 ... i(k-1) | 0 .. 0 |
 *
 * A thread block does a whole segment. What is chosen hangs on the threshold alone: the k-th
 * largest key, a key being the bits of |x|, found by radix in three counting passes; then all
 * above it are chosen, and of those that equal it the first ones. So an encoder evaluates what it
 * encodes five times, out of the second level cache after the first: 5V bytes per element, and W
 * is k * (2 + bytes of a value) / 65536. Decoding scatters the values of 4096 elements at a time
 * into shared memory: V bytes per element.
 *
 * Received indices are checked before one is used: a peer's bytes do not decide where is written.
 */
#ifndef DSC_KERNELS_TOPK_CUH
#define DSC_KERNELS_TOPK_CUH

#include "kernels/block.cuh"
#include "kernels/cast.cuh"

struct Topk : PlainFormat {
    static constexpr uint32_t kThreads = 512, kTile = kSegment;
    static constexpr uint32_t kDecodeThreads = kThreads, kDecodeTile = kTile;
    static constexpr uint32_t kStep = kThreads * kPerLane; /* elements at a time */
    static constexpr uint32_t kRun = 256;                  /* values that share a scale */
    static constexpr uint32_t kDigits = 2048;
    static constexpr bool kLeavesOut = true;

    /* Of the segment, as a sender without a place keeps them; and of a whole one. */
    uint32_t first, n, least, least_of_full;
    bool is_poison_in = false;  /* one of the received messages is */
    bool is_poison_out = false; /* what is encoded is */

    __device__ Topk(const dsc_gpu_args &args_, const dsc_gpu_op &op_, uint32_t first_)
        : PlainFormat(args_, op_, first_), first(first_), n(min(op_.n - first_, kSegment)),
          least(least_kept(n)), least_of_full(least_kept(kSegment))
    {
    }

    /* ---- where things are ---- */

    __device__ uint32_t least_kept(uint32_t n_elems) const
    {
        const uint64_t billion = 1000000000u;

        if (args.format.kept_count != 0)
            return min(args.format.kept_count, n_elems);
        return static_cast<uint32_t>(
            (args.format.kept_ppb * static_cast<uint64_t>(n_elems) + billion - 1) / billion);
    }

    /* By a sender at its place: the last of a group keeps 1.3 times as many as the first. */
    __device__ uint32_t kept(uint32_t least_of, uint32_t n_elems, dsc_gpu_facts facts) const
    {
        uint64_t steps, more;

        if ((args.format.flags & DSC_GPU_FORMAT_BY_PLACE) == 0 || facts.position == 0)
            return least_of;
        steps = facts.members > 1 ? 10u * (facts.members - 1u) : 10u;
        more = (least_of * (steps + 3u * facts.position) + steps - 1) / steps;
        return more < n_elems ? static_cast<uint32_t>(more) : n_elems;
    }

    /* A segment of a message. */
    struct Part {
        uint8_t *values;
        uint32_t k;
        int exponent;
    };

    /* Of the message of n_values values. */
    __device__ uint32_t value_bytes(uint32_t n_values) const
    {
        if (args.format.values == DSC_GPU_KIND_FP16)
            return round_up(2 * n_values, 16);
        return round_up(4 * ((n_values - 1) / kRun + 1), 16) + round_up(n_values, 16);
    }

    __device__ Part part_of(const uint8_t *msg, dsc_gpu_facts facts) const
    {
        const uint32_t of_full = kept(least_of_full, kSegment, facts);
        const uint64_t bytes = value_bytes(of_full) + round_up(2 * of_full, 16);

        return { const_cast<uint8_t *>(msg) + first / kSegment * bytes, kept(least, n, facts),
                 facts.exponent };
    }

    __device__ uint16_t *indices(const Part &p) const
    {
        return reinterpret_cast<uint16_t *>(p.values + value_bytes(p.k));
    }

    /* ---- decoding ---- */

    __device__ float value(const Part &p, uint32_t i) const
    {
        float d[kPerLane];

        if (args.format.values == DSC_GPU_KIND_FP16)
            return __fmul_rn(f16_to_f32(reinterpret_cast<const uint16_t *>(p.values)[i]),
                             power_of_two(p.exponent));
        const uint32_t scale = reinterpret_cast<const uint32_t *>(p.values)[i / kRun];
        const Codes<8> q = { { p.values[round_up(4 * ((p.k - 1) / kRun + 1), 16) + i], 0 } };

        if (args.format.values == DSC_GPU_KIND_INT8)
            values_of<Int8>(d, q, scale);
        else
            values_of<E4m3>(d, q, scale);
        return d[0];
    }

    /* Values that are NaN, and indices that do not ascend or leave the segment. */
    __device__ bool is_poison(const Part &p) const
    {
        const uint16_t *const index = indices(p);
        bool is_bad = false;

        for (uint32_t i = threadIdx.x; i < p.k; i += kThreads) {
            is_bad |= is_nan(value(p, i));
            is_bad |= i + 1 < p.k ? index[i] >= index[i + 1] : index[i] >= n;
        }
        return __syncthreads_or(is_bad) != 0;
    }

    /* One poisoned message poisons the whole segment of a sum. */
    __device__ void check(const uint8_t *messages, const dsc_gpu_recv *recvs, uint32_t n_recvs)
    {
        for (uint32_t i = 0; i < n_recvs; i++)
            is_poison_in |= is_poison(part_of(messages + recvs[i].at, recvs[i].facts));
    }

    /* An index before which there is none from element `at` on; not far before the first such. */
    __device__ uint32_t start_of(const uint16_t *index, uint32_t k, uint32_t at) const
    {
        const uint32_t stride = (k - 1) / kThreads + 1, i = threadIdx.x * stride;
        uint32_t n_below;

        if (k <= 4 * kThreads)
            return 0;
        n_below = static_cast<uint32_t>(__syncthreads_count(i < k && index[i] < at));
        return n_below == 0 ? 0 : (n_below - 1) * stride;
    }

    __device__ void scatter(float d[kPerLane], const Part &p, Lane lane, bool is_poison) const
    {
        SHARED_ARRAY(float, tile, kStep);
        const uint16_t *const index = indices(p);
        const uint32_t at = lane.pos - threadIdx.x * kPerLane - first;
        float *const own = tile + threadIdx.x * kPerLane;

        if (is_poison) { /* for all threads of the block */
#pragma unroll
            for (uint32_t i = 0; i < kPerLane; i++)
                d[i] = float_of(kNan);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            own[i] = 0.0f;
        __syncthreads();
        for (uint32_t i = start_of(index, p.k, at) + threadIdx.x; i < p.k; i += kThreads) {
            const uint32_t place = index[i] - at; /* wraps for those before */

            if (index[i] >= at + kStep)
                break;
            if (place < kStep)
                tile[place] = value(p, i);
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            d[i] = own[i];
    }

    __device__ void decode(float d[kPerLane], const uint8_t *msg, dsc_gpu_facts facts,
                           Lane lane) const
    {
        scatter(d, part_of(msg, facts), lane, is_poison_in);
    }

    /* What was sent, which prepare() has written. */
    __device__ void encode(uint8_t *msg, dsc_gpu_facts facts, Lane lane, const float *,
                           float d[kPerLane]) const
    {
        scatter(d, part_of(msg, facts), lane, is_poison_out);
    }

    /* ---- choosing ---- */

    /* All above `key` are chosen, and the first n_equal of those that equal it. */
    struct Threshold {
        uint32_t key, n_equal;
    };

    static __device__ uint32_t key_of(float x)
    {
        return bits_of(x) & kAbs;
    }

    /* Counts the keys that begin with `prefix` by the digit that follows it. True: one is NaN or
     * Inf. */
    template <class Y>
    __device__ bool count_digits(uint32_t *count, uint32_t prefix, int shift, int bits, Y y)
    {
        bool is_bad = false;

        for (uint32_t i = threadIdx.x; i < kDigits; i += kThreads)
            count[i] = 0;
        __syncthreads();
        for (uint32_t at = 0; at < n; at += kStep) {
            const Lane lane = lane_at(first + at, op.n);
            float x[kPerLane];

            y(lane, x);
            for (uint32_t i = 0; i < lane.n; i++) {
                const uint32_t key = key_of(x[i]);

                is_bad |= key >= kInf;
                if (key >> (shift + bits) == prefix)
                    atomicAdd(&count[key >> shift & ((1u << bits) - 1)], 1u);
            }
        }
        return __syncthreads_or(is_bad) != 0;
    }

    /* The digit of the wanted-th largest; *wanted counts among those with that digit afterwards.
     * Each lane of the first warp adds up 64 digits, from the largest on. */
    __device__ uint32_t find_digit(const uint32_t *count, uint32_t *wanted) const
    {
        constexpr uint32_t kShare = kDigits / 32;
        SHARED_ARRAY(uint32_t, found, 2);
        const uint32_t top = kDigits - 1 - threadIdx.x * kShare;
        uint32_t sum = 0, before;

        if (threadIdx.x < 32) {
            for (uint32_t i = 0; i < kShare; i++)
                sum += count[top - i];
            before = inclusive_sum(sum) - sum;
            for (uint32_t i = 0; i < kShare; i++) {
                if (before < *wanted && before + count[top - i] >= *wanted) {
                    found[0] = top - i;
                    found[1] = *wanted - before;
                }
                before += count[top - i];
            }
        }
        __syncthreads();
        *wanted = found[1];
        return found[0];
    }

    static __device__ uint32_t inclusive_sum(uint32_t v)
    {
        for (uint32_t d = 1; d < 32; d *= 2) {
            const uint32_t other = __shfl_up_sync(kAllLanes, v, d);

            v += threadIdx.x % 32 >= d ? other : 0;
        }
        return v;
    }

    /* *is_bad: an element is not finite. */
    template <class Y> __device__ Threshold find_threshold(uint32_t k, bool *is_bad, Y y)
    {
        SHARED_ARRAY(uint32_t, count, kDigits);
        Threshold t = { 0, k };
        int shift = 31;

        *is_bad = false;
        for (int pass = 0; pass < 3; pass++) {
            const int bits = pass == 0 ? 11 : 10;

            shift -= bits;
            *is_bad |= count_digits(count, t.key, shift, bits, y);
            t.key = t.key << bits | find_digit(count, &t.n_equal);
        }
        return t;
    }

    /* ---- writing ---- */

    /* Sums over the threads before this one, and over all, of two counts of at most 4096. */
    __device__ void sum_before(uint32_t packed, uint32_t *before_out, uint32_t *all_out) const
    {
        SHARED_ARRAY(uint32_t, of_warp, kThreads / 32);
        const uint32_t sum = inclusive_sum(packed), warp = threadIdx.x / 32;
        uint32_t before = sum - packed, all = 0;

        if (threadIdx.x % 32 == 31)
            of_warp[warp] = sum;
        __syncthreads();
        for (uint32_t i = 0; i < kThreads / 32; i++) {
            before += i < warp ? of_warp[i] : 0;
            all += of_warp[i];
        }
        *before_out = before;
        *all_out = all;
        __syncthreads();
    }

    /* Values [at, at + n_values), at a multiple of kRun, by the warps, kRun at a time. */
    __device__ void encode_values(const Part &p, const float *x, uint32_t at,
                                  uint32_t n_values) const
    {
        for (uint32_t run = threadIdx.x / 32 * kRun; run < n_values; run += kThreads / 32 * kRun) {
            const uint32_t pos = run + threadIdx.x % 32 * kPerLane;
            const uint32_t here = pos < n_values ? min(n_values - pos, kPerLane) : 0;
            float y[kPerLane];

#pragma unroll
            for (uint32_t i = 0; i < kPerLane; i++)
                y[i] = i >= here ? 0.0f : is_poison_out ? float_of(kNan) : x[pos + i];
            encode_run(p, y, at + pos);
        }
    }

    __device__ void encode_run(const Part &p, const float y[kPerLane], uint32_t pos) const
    {
        float d[kPerLane];

        switch (args.format.values) {
        case DSC_GPU_KIND_FP16:
            Fp16::encode_of(p.values, p.exponent, { pos, 0 }, p.k, y, d);
            return;
        case DSC_GPU_KIND_INT8:
            Blocks<Int8, ScaleF32>(p.values, p.k, 8).encode(d, pos, y, 0, [](uint32_t, float t) {
                return Int8::code(t);
            });
            return;
        default:
            Blocks<E4m3, ScaleF32>(p.values, p.k, 8).encode(d, pos, y, 0, [](uint32_t, float t) {
                return E4m3::code(t);
            });
        }
    }

    /* The first k elements, all NaN. */
    __device__ void write_poison(const Part &p) const
    {
        uint16_t *const index = indices(p);

        for (uint32_t i = threadIdx.x; i < p.k; i += kThreads)
            index[i] = static_cast<uint16_t>(i);
        encode_values(p, nullptr, 0, p.k);
    }

    /* Which of a lane's elements are chosen; *n_before: chosen ones of the segment before them. */
    __device__ uint32_t choose(const Threshold &t, const float x[kPerLane], Lane lane,
                               uint32_t *n_above, uint32_t *n_equal, uint32_t *n_before) const
    {
        uint32_t above = 0, equal = 0, before, all, room;

        for (uint32_t i = 0; i < lane.n; i++) {
            above |= static_cast<uint32_t>(key_of(x[i]) > t.key) << i;
            equal |= static_cast<uint32_t>(key_of(x[i]) == t.key) << i;
        }
        sum_before(static_cast<uint32_t>(__popc(above)) | static_cast<uint32_t>(__popc(equal))
                                                              << 16,
                   &before, &all);
        room = t.n_equal - min(t.n_equal, *n_equal + (before >> 16)); /* for equal ones from here */
        *n_before = *n_above + (before & 0xffff) + t.n_equal - room;
        *n_above += all & 0xffff;
        *n_equal += all >> 16;
        for (; static_cast<uint32_t>(__popc(equal)) > room;)
            equal &= ~(1u << (31 - __clz(static_cast<int>(equal)))); /* the last one goes */
        return above | equal;
    }

    /* Chosen elements in ascending order: the indices as they come, the values by runs. */
    template <class Y>
    __device__ void write_chosen(const Part &p, const Threshold &t, Y y)
    {
        SHARED_ARRAY(float, pending, kStep + kRun);
        uint16_t *const index = indices(p);
        uint32_t n_above = 0, n_equal = 0, n_written = 0; /* values */

        for (uint32_t at = 0; at < n; at += kStep) {
            const Lane lane = lane_at(first + at, op.n);
            uint32_t place, chosen, n_ready;
            float x[kPerLane];

            y(lane, x);
            chosen = choose(t, x, lane, &n_above, &n_equal, &place);
            for (uint32_t i = 0; i < kPerLane; i++) {
                if ((chosen >> i & 1u) == 0)
                    continue;
                index[place] = static_cast<uint16_t>(lane.pos - first + i);
                pending[place - n_written] = x[i];
                place++;
            }
            __syncthreads();
            n_ready = n_above + min(n_equal, t.n_equal) - n_written;
            if (at + kStep < n)
                n_ready -= n_ready % kRun;
            encode_values(p, pending, n_written, n_ready);
            n_written += n_ready;
            if (at + kStep < n)
                carry(pending, n_ready);
        }
    }

    /* Less than a run is left behind what was encoded. */
    static __device__ void carry(float *pending, uint32_t from)
    {
        __syncthreads();

        const float left = threadIdx.x < kRun ? pending[from + threadIdx.x] : 0.0f;

        __syncthreads();
        if (threadIdx.x < kRun)
            pending[threadIdx.x] = left;
        __syncthreads();
    }

    template <class Y>
    __device__ void prepare(uint8_t *msg, dsc_gpu_facts facts, uint32_t, uint32_t, Y y)
    {
        const Part p = part_of(msg, facts);
        const Threshold t = find_threshold(p.k, &is_poison_out, y);

        if (is_poison_out)
            write_poison(p);
        else
            write_chosen(p, t, y);
        if (threadIdx.x < 32)
            pad_part(reinterpret_cast<uint8_t *>(indices(p)), 2 * p.k);
        __syncthreads();
    }

    __device__ void clear_sent(const uint8_t *msg, dsc_gpu_facts facts, float *u) const
    {
        const Part p = part_of(msg, facts);
        const uint16_t *const index = indices(p);

        for (uint32_t i = threadIdx.x; i < p.k; i += kThreads)
            u[first + index[i]] = 0.0f;
    }
};

#endif
