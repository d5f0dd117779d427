/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages in memory that a peer may write to at any time, as over shm: whatever it writes while
 * they are read, or made, nothing outside the arrays is touched. The peer here has a mapping of its
 * own, and beside the arrays no access is allowed.
 */
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "unit/codec_test_support.h"

namespace {

constexpr size_t kGuard = 512 << 10; /* as far as an index of 16 bits reaches, and more */

size_t whole_pages(size_t bytes)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

    return (bytes + page - 1) / page * page;
}

/* Memory that ends at its last byte, rounded up to 16; of a file, or nobody else's. */
class Guarded {
  public:
    explicit Guarded(size_t bytes, int fd = -1)
        : pages_(whole_pages(bytes)), all_(pages_ + 2 * kGuard)
    {
        const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

        memory_ = mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(memory_, MAP_FAILED);
        start_ = static_cast<uint8_t *>(memory_) + kGuard;
        if (pages_ > 0) {
            EXPECT_EQ(mmap(start_, pages_, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0),
                      start_);
        }
        start_ += pages_ - (bytes + 15) / 16 * 16;
    }
    ~Guarded()
    {
        munmap(memory_, all_);
    }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;

    uint8_t *bytes()
    {
        return start_;
    }
    float *floats_at_start()
    {
        return reinterpret_cast<float *>(start_);
    }

  private:
    size_t pages_, all_;
    void *memory_ = nullptr;
    uint8_t *start_ = nullptr;
};

/* Writes to a message again and again: rubbish here and there, then what it was. */
class Peer {
  public:
    Peer(uint8_t *bytes, std::vector<uint8_t> good)
        : bytes_(bytes), good_(std::move(good)), thread_([this] { write(); })
    {
    }
    ~Peer()
    {
        stop_ = true;
        thread_.join();
    }
    Peer(const Peer &) = delete;
    Peer &operator=(const Peer &) = delete;

  private:
    void write()
    {
        std::mt19937 gen(1);

        while (!stop_) {
            for (int i = 0; i < 8; i++) {
                const uint32_t draw = gen();
                const size_t at = draw % 2 == 0 ? gen() % good_.size() : gen() % 64 % good_.size();

                bytes_[at] = static_cast<uint8_t>(draw % 4 < 2 ? 0xff : draw >> 8);
            }
            std::memset(bytes_ + good_.size() - good_.size() / 16, 0xff, good_.size() / 16);
            std::this_thread::yield();
            std::memcpy(bytes_, good_.data(), good_.size());
        }
    }

    uint8_t *bytes_;
    std::vector<uint8_t> good_;
    std::atomic<bool> stop_{ false };
    std::thread thread_;
};

/* A message that two can write to, and a rank's vectors. */
struct Shared {
    const dscomm_codec_t *codec;
    size_t n, size;
    int fd;
    Guarded own, peers, v, r, out;
    dsc_flaw flaw = {};
    dsc_msg msg = {};

    Shared(const char *spec, size_t count)
        : codec(dscomm_codec(spec)), n(count), size(codec->ops->message_bytes(codec, n)),
          fd(make_file(size)), own(size, fd), peers(size, fd), v(n * 4), r(n * 4), out(n * 4)
    {
        const floats x = normal(n, 1), kept = normal(n, 2, 0.1f);

        std::memcpy(v.bytes(), x.data(), n * 4);
        std::memcpy(r.bytes(), kept.data(), n * 4);
        msg.bytes = own.bytes();
        msg.n = n;
        msg.flaw = &flaw;
        encode();
    }
    ~Shared()
    {
        close(fd);
    }
    static int make_file(size_t bytes)
    {
        const int file = memfd_create("message", MFD_CLOEXEC);

        EXPECT_EQ(ftruncate(file, static_cast<off_t>(whole_pages(bytes))), 0);
        return file;
    }

    std::vector<uint8_t> bytes()
    {
        return { own.bytes(), own.bytes() + size };
    }
    void encode()
    {
        codec->ops->encode(codec, &msg, 0, n, v.floats_at_start(), out.floats_at_start());
    }
    void read()
    {
        codec->ops->decode(codec, &msg, 0, n, out.floats_at_start(), 0);
        codec->ops->decode_add(codec, &msg, 0, n, out.floats_at_start());
        if (codec->ops->stays_finite != nullptr)
            (void)codec->ops->stays_finite(codec, &msg, 0, n, 3.0f);
    }
    void write()
    {
        encode();
        codec->ops->encode_feedback(codec, &msg, 0, n, v.floats_at_start(), r.floats_at_start(),
                                    0.5f, out.floats_at_start(), DSC_KEEP_OLD);
        if (codec->ops->clear_sent != nullptr)
            codec->ops->clear_sent(codec, &msg, 0, n, out.floats_at_start());
        EXPECT_LE(dsc_codec_used_bytes(codec, &msg), size);
    }
};

class SharedMessage : public ::testing::TestWithParam<const char *> {
  protected:
    static constexpr auto for_a_while = std::chrono::milliseconds(60);

    template <typename Work> void with_peer(size_t n, Work work)
    {
        Shared s(GetParam(), n);
        const floats before(s.out.floats_at_start(), s.out.floats_at_start() + n);
        const auto good = s.bytes();
        const auto end = std::chrono::steady_clock::now() + for_a_while;

        {
            Peer peer(s.peers.bytes(), good);

            while (std::chrono::steady_clock::now() < end)
                work(s);
        }
        std::memcpy(s.own.bytes(), good.data(), good.size());
        s.codec->ops->decode(s.codec, &s.msg, 0, n, s.out.floats_at_start(), 0);
        EXPECT_TRUE(
            same_bits(before, floats(s.out.floats_at_start(), s.out.floats_at_start() + n)));
    }
};

TEST_P(SharedMessage, ChangesWhileItIsRead)
{
    with_peer(5000, [](Shared &s) { s.read(); });
}

TEST_P(SharedMessage, ChangesWhileItIsMade)
{
    with_peer(5000, [](Shared &s) { s.write(); });
}

std::vector<const char *> all_specs()
{
    size_t n = 0;
    const char *const *specs = dsc_codec_test_specs(&n);
    return { specs, specs + n };
}

INSTANTIATE_TEST_SUITE_P(Registry, SharedMessage, ::testing::ValuesIn(all_specs()),
                         [](const ::testing::TestParamInfo<const char *> &info) {
                             std::string name = info.param;
                             for (char &c : name)
                                 c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                             return name;
                         });

} // namespace
