/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of slots and the bell between two threads. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "support/internal_begin.h"
#include "transport/ring.h"
#include "support/internal_end.h"

namespace {

struct Free {
    void operator()(void *p) const
    {
        std::free(p);
    }
};

/* Memory of one direction with a view per side. */
class Ring {
  public:
    Ring(uint32_t n_slots, size_t slot_bytes)
        : memory_(std::aligned_alloc(64, dsc_ring_bytes(n_slots, slot_bytes)))
    {
        std::memset(memory_.get(), 0xee, dsc_ring_bytes(n_slots, slot_bytes));
        dsc_ring_init(&ring, memory_.get(), n_slots, slot_bytes);
        dsc_ring_format(&ring);
    }
    dsc_ring ring;

  private:
    std::unique_ptr<void, Free> memory_;
};

void post(const dsc_ring *ring, uint64_t index, uint64_t not_before_ns = 0)
{
    dsc_header h = {};

    h.magic = DSC_HEADER_MAGIC;
    h.descriptor = index * 3;
    h.payload_bytes = 8;
    std::memcpy(dsc_ring_tx_slot(ring, index), &index, sizeof(index));
    dsc_ring_post(ring, index, &h, not_before_ns);
}

bool take(const dsc_ring *ring, uint64_t index)
{
    dsc_header h;
    uint64_t content;
    const uint8_t *const payload = dsc_ring_rx_msg(ring, index, &h);

    if (payload == nullptr)
        return false;
    std::memcpy(&content, payload, sizeof(content));
    EXPECT_EQ(index, content);
    EXPECT_EQ(index * 3, h.descriptor);
    EXPECT_EQ(8u, h.payload_bytes);
    EXPECT_EQ(DSC_HEADER_MAGIC, h.magic);
    dsc_ring_release(ring, index);
    return true;
}

TEST(Ring, SlotsAreAlignedAndApart)
{
    Ring r(3, 100);
    uint8_t *const a = dsc_ring_tx_slot(&r.ring, 0);
    uint8_t *const b = dsc_ring_tx_slot(&r.ring, 1);

    EXPECT_EQ(3u * (64 + 128), dsc_ring_bytes(3, 100));
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(a) % 64);
    EXPECT_EQ(64 + 128, b - a);
}

TEST(Ring, SlotBelongsToOneSideAtATime)
{
    Ring r(2, 64);
    dsc_header h;

    EXPECT_NE(nullptr, dsc_ring_tx_slot(&r.ring, 0));
    EXPECT_NE(nullptr, dsc_ring_tx_slot(&r.ring, 1));
    EXPECT_EQ(nullptr, dsc_ring_tx_slot(&r.ring, 2)) << "outside of the window";
    EXPECT_EQ(nullptr, dsc_ring_rx_msg(&r.ring, 0, &h));
    post(&r.ring, 1);
    EXPECT_EQ(nullptr, dsc_ring_rx_msg(&r.ring, 0, &h)) << "1 came first";
    EXPECT_EQ(nullptr, dsc_ring_tx_slot(&r.ring, 1)) << "posted";
    EXPECT_TRUE(take(&r.ring, 1));
    EXPECT_FALSE(take(&r.ring, 1)) << "released";
    EXPECT_EQ(nullptr, dsc_ring_tx_slot(&r.ring, 1)) << "done for ever";
    EXPECT_NE(nullptr, dsc_ring_tx_slot(&r.ring, 3)) << "released out of order";
    EXPECT_EQ(nullptr, dsc_ring_tx_slot(&r.ring, 2));
}

TEST(Ring, LacksWhatWasNotPosted)
{
    Ring r(4, 64);

    EXPECT_FALSE(dsc_ring_lacks(&r.ring, 0));
    EXPECT_TRUE(dsc_ring_lacks(&r.ring, 1));
    for (uint64_t i = 0; i < 4; i++)
        post(&r.ring, i);
    EXPECT_FALSE(dsc_ring_lacks(&r.ring, 4));
    EXPECT_FALSE(dsc_ring_lacks(&r.ring, 5)) << "message 4 may have no room yet";
    EXPECT_TRUE(take(&r.ring, 0));
    EXPECT_TRUE(dsc_ring_lacks(&r.ring, 5));
    EXPECT_FALSE(dsc_ring_lacks(&r.ring, 4));
}

TEST(Ring, MessageIsNotShownBeforeItsTime)
{
    Ring r(1, 64);

    const uint64_t due_ns = dsc_now_ns() + 20000000;

    post(&r.ring, 0, due_ns);
    EXPECT_FALSE(take(&r.ring, 0));
    while (!take(&r.ring, 0))
        ASSERT_LT(dsc_now_ns(), due_ns + 1000000000);
    EXPECT_GE(dsc_now_ns(), due_ns);
}

/* Both sides shuffle inside the window; 2^20 messages pass. */
TEST(Ring, MillionMessagesOutOfOrder)
{
    constexpr uint32_t kSlots = 8;
    constexpr uint64_t kMessages = 1 << 20;
    Ring r(kSlots, 64);
    const dsc_ring reader_view = r.ring;

    const auto orders = [](unsigned seed) {
        std::vector<std::vector<uint64_t>> list(64);
        std::minstd_rand random(seed);
        for (auto &order : list) {
            order = { 0, 1, 2, 3, 4, 5, 6, 7 };
            std::shuffle(order.begin(), order.end(), random);
        }
        return list;
    };
    std::thread reader([&] {
        const auto order = orders(2);

        for (uint64_t base = 0; base < kMessages; base += kSlots)
            for (const uint64_t k : order[base / kSlots % order.size()])
                while (!take(&reader_view, base + k))
                    std::this_thread::yield();
    });
    const auto order = orders(1);

    for (uint64_t base = 0; base < kMessages; base += kSlots)
        for (const uint64_t k : order[base / kSlots % order.size()]) {
            while (dsc_ring_tx_slot(&r.ring, base + k) == nullptr)
                std::this_thread::yield();
            post(&r.ring, base + k);
        }
    reader.join();
}

TEST(Bell, ArmingSeesWhatRangBefore)
{
    dsc_bell bell = {};

    EXPECT_TRUE(dsc_bell_arm(&bell, DSC_BELL_FUTEX, 0));
    dsc_bell_disarm(&bell);
    EXPECT_FALSE(dsc_bell_ring(&bell)) << "nobody sleeps";
    EXPECT_EQ(1u, dsc_bell_count(&bell));
    EXPECT_FALSE(dsc_bell_arm(&bell, DSC_BELL_FUTEX, 0));
    EXPECT_TRUE(dsc_bell_arm(&bell, DSC_BELL_EPOLL, 1));
    EXPECT_TRUE(dsc_bell_ring(&bell)) << "a descriptor must wake this sleeper";
    EXPECT_FALSE(dsc_bell_ring(&bell)) << "once";
}

/* The first ringer is held up between its two halves; meanwhile the waiter goes on and sleeps again. */
TEST(Bell, LateRingerLeavesTheNextSleepAlone)
{
    for (const uint32_t first : { 0u, 0xffffffffu, 0x3fffffffu }) {
        dsc_bell bell = {};

        bell.word = first;
        ASSERT_TRUE(dsc_bell_arm(&bell, DSC_BELL_EPOLL, first));
        const uint32_t before = dsc_bell_count_one(&bell);

        dsc_bell_disarm(&bell);
        ASSERT_TRUE(dsc_bell_arm(&bell, DSC_BELL_EPOLL, first + 1));
        dsc_bell_wake(&bell, before);
        EXPECT_TRUE(dsc_bell_ring(&bell)) << "the second sleep was never ended, count " << first;
    }
}

/* Two threads wake each other; a lost wake-up would cost the whole time-out. */
TEST(Bell, NoWakeUpIsLost)
{
    constexpr uint32_t kRounds = 20000;
    dsc_bell bells[2] = {};
    const uint64_t start_ns = dsc_now_ns();
    const auto wait_for = [](dsc_bell *bell, uint32_t seen) {
        while (dsc_bell_count(bell) == seen) {
            if (dsc_bell_arm(bell, DSC_BELL_FUTEX, seen))
                dsc_futex_wait(&bell->word, seen, 10000000000u);
            dsc_bell_disarm(bell);
        }
    };
    std::thread other([&] {
        for (uint32_t i = 0; i < kRounds; i++) {
            wait_for(&bells[1], i);
            dsc_bell_ring(&bells[0]);
        }
    });

    for (uint32_t i = 0; i < kRounds; i++) {
        dsc_bell_ring(&bells[1]);
        wait_for(&bells[0], i);
    }
    other.join();
    EXPECT_LT(dsc_now_ns() - start_ns, 10000000000u);
}

} // namespace
