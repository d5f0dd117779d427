/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire header and the handshake: who proves the key gets in, and nobody else, however slowly,
 * partially or wrongly he speaks. All on socket pairs, both ends stepped by one thread, so that a
 * step that blocked would hang the test at once.
 */
#include <gtest/gtest.h>

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "support/internal_begin.h"
#include "transport/handshake.h"
#include "transport/header.h"
#include "support/internal_end.h"

namespace {

/* ---- header ---- */

dsc_header sample_header()
{
    dsc_header h = {};

    h.magic = DSC_HEADER_MAGIC;
    h.version = DSC_HEADER_VERSION;
    h.kind = DSC_MSG_DATA;
    h.sequence = 0x01020304;
    h.descriptor = 0x1112131415161718;
    h.chunk = 0x2122;
    h.stage = 0x3132;
    h.payload_bytes = 5;
    h.note = 0x41424344;
    h.crc = 0x51525354;
    return h;
}

TEST(Header, CrcHasTheCheckValueAndChains)
{
    const char text[] = "123456789";

    EXPECT_EQ(dsc_crc32c(0, text, 9), 0xe3069283u);
    EXPECT_EQ(dsc_crc32c(0, text, 0), 0u);
    for (size_t cut = 0; cut <= 9; cut++)
        EXPECT_EQ(dsc_crc32c(dsc_crc32c(0, text, cut), text + cut, 9 - cut), 0xe3069283u);
}

TEST(Header, EveryFieldIsAtItsOffset)
{
    const dsc_header h = sample_header();
    const uint8_t expected[DSC_HEADER_BYTES] = {
        DSC_HEADER_MAGIC & 0xff,
        DSC_HEADER_MAGIC >> 8,
        1,
        1,
        0x04,
        0x03,
        0x02,
        0x01,
        0x18,
        0x17,
        0x16,
        0x15,
        0x14,
        0x13,
        0x12,
        0x11,
        0x22,
        0x21,
        0x32,
        0x31,
        5,
        0,
        0,
        0,
        0x44,
        0x43,
        0x42,
        0x41,
        0x54,
        0x53,
        0x52,
        0x51,
    };
    uint8_t wire[DSC_HEADER_BYTES];
    dsc_header back = {};

    dsc_header_encode(&h, wire);
    EXPECT_EQ(memcmp(wire, expected, sizeof(wire)), 0);
    dsc_header_decode(wire, &back);
    EXPECT_EQ(memcmp(&back, &h, sizeof(h)), 0);
}

TEST(Header, CrcCoversHeaderAndPayloadButNotItself)
{
    dsc_header h = sample_header();
    uint8_t wire[DSC_HEADER_BYTES + 5];
    const uint32_t crc = dsc_header_crc(&h, "hello");

    h.crc = 0;
    dsc_header_encode(&h, wire);
    memcpy(wire + DSC_HEADER_BYTES, "hello", 5);
    EXPECT_EQ(crc, dsc_crc32c(0, wire, sizeof(wire)));
    h.stage++;
    EXPECT_NE(crc, dsc_header_crc(&h, "hello"));
    h.stage--;
    EXPECT_NE(crc, dsc_header_crc(&h, "hellp"));
}

/* CRC is linear in the note's bits: solve for the note whose checksum computes to 0. */
TEST(Header, ComputedCrcOfZeroIsSentAsAllOnes)
{
    dsc_header h = sample_header();
    uint32_t column[32], source[32];
    uint8_t wire[DSC_HEADER_BYTES];

    auto crc_of_note = [&](uint32_t note) {
        h.note = note;
        h.crc = 0;
        dsc_header_encode(&h, wire);
        return dsc_crc32c(0, wire, sizeof(wire));
    };
    h.payload_bytes = 0;
    const uint32_t base = crc_of_note(0);
    for (uint32_t i = 0; i < 32; i++) {
        column[i] = crc_of_note(1u << i) ^ base;
        source[i] = 1u << i;
    }
    uint32_t rest = base, note = 0;
    for (uint32_t bit = 0, row = 0; bit < 32; bit++) {
        uint32_t pivot = row;
        while (pivot < 32 && !(column[pivot] >> bit & 1))
            pivot++;
        ASSERT_LT(pivot, 32u);
        std::swap(column[pivot], column[row]);
        std::swap(source[pivot], source[row]);
        for (uint32_t i = row + 1; i < 32; i++) {
            if (column[i] >> bit & 1) {
                column[i] ^= column[row];
                source[i] ^= source[row];
            }
        }
        if (rest >> bit & 1) {
            rest ^= column[row];
            note ^= source[row];
        }
        row++;
    }
    ASSERT_EQ(crc_of_note(note), 0u);
    EXPECT_EQ(dsc_header_crc(&h, ""), UINT32_MAX);
}

TEST(Header, CheckNamesWhatIsWrong)
{
    const dsc_header good = sample_header();
    dsc_header h = good;

    EXPECT_EQ(dsc_header_check(&h, 5), nullptr);
    EXPECT_STREQ(dsc_header_check(&h, 4), "more payload than a slot holds");
    h.magic ^= 1;
    EXPECT_STREQ(dsc_header_check(&h, 5), "bad magic");
    h = good;
    h.version = 2;
    EXPECT_STREQ(dsc_header_check(&h, 5), "unknown header version");
    h = good;
    for (int kind : { 0, 3, 255 }) {
        h.kind = (uint8_t)kind;
        EXPECT_STREQ(dsc_header_check(&h, 5), "unknown message kind");
    }
    h.kind = DSC_MSG_ERROR;
    h.payload_bytes = DSC_ERROR_TEXT_MAX;
    EXPECT_EQ(dsc_header_check(&h, 1 << 20), nullptr);
    h.payload_bytes++;
    EXPECT_STREQ(dsc_header_check(&h, 1 << 20), "error text too long");
}

/* ---- handshake ---- */

constexpr size_t kGreetingBytes = 44, kProofBytes = 268, kReplyBytes = 228;

const uint8_t key_a[32] = { 1, 2, 3 };
const uint8_t key_b[32] = { 1, 2, 4 };

dsc_hello make_hello(int rank)
{
    dsc_hello h = {};

    h.purpose = DSC_LINK_PEER;
    h.rank = rank;
    h.n_ranks = 8;
    h.index = 3;
    h.job = 0x1234567890abcdef;
    h.slot_bytes = (1ull << 40) + 7;
    h.n_slots = 4;
    h.n_socks = 2;
    strcpy(h.transport, "tcp");
    strcpy(h.detail, "rank's own");
    h.detail[0] = (char)('0' + rank);
    return h;
}

void expect_equal(const dsc_hello &a, const dsc_hello &b)
{
    EXPECT_EQ(a.purpose, b.purpose);
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_EQ(a.n_ranks, b.n_ranks);
    EXPECT_EQ(a.index, b.index);
    EXPECT_EQ(a.job, b.job);
    EXPECT_EQ(a.slot_bytes, b.slot_bytes);
    EXPECT_EQ(a.n_slots, b.n_slots);
    EXPECT_EQ(a.n_socks, b.n_socks);
    EXPECT_STREQ(a.transport, b.transport);
    EXPECT_STREQ(a.detail, b.detail);
}

struct Sockets {
    int fd[2];
    Sockets()
    {
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
    }
    ~Sockets()
    {
        shut(0);
        shut(1);
    }
    int take(int i)
    {
        const int taken = fd[i];
        fd[i] = -1;
        return taken;
    }
    void shut(int i)
    {
        if (fd[i] >= 0)
            close(fd[i]);
        fd[i] = -1;
    }
    std::string read_all(int i)
    {
        char buf[4096];
        const ssize_t n = recv(fd[i], buf, sizeof(buf), MSG_DONTWAIT);
        return std::string(buf, n > 0 ? (size_t)n : 0);
    }
    void write(int i, const std::string &bytes)
    {
        EXPECT_EQ(send(fd[i], bytes.data(), bytes.size(), MSG_NOSIGNAL), (ssize_t)bytes.size());
    }
};

/* One side of a handshake, owned. */
struct Side {
    dsc_handshake *hs = nullptr;
    Side(int fd, bool acceptor, const uint8_t *key, int rank, int timeout_ms = 5000)
    {
        const dsc_hello hello = make_hello(rank);

        EXPECT_EQ(dsc_handshake_create(fd, acceptor, key, acceptor ? nullptr : &hello,
                                       dsc_deadline_ns(timeout_ms), &hs),
                  DSCOMM_OK);
    }
    ~Side()
    {
        dsc_handshake_destroy(hs);
    }
    Side(const Side &) = delete;
    /* Answers as rank 1 when asked. */
    dscomm_status_t step()
    {
        const dscomm_status_t st = dsc_handshake_step(hs);

        if (st != DSCOMM_IN_PROGRESS || !dsc_handshake_wants_reply(hs))
            return st;
        EXPECT_EQ(dsc_handshake_events(hs), 0);
        const dsc_hello hello = make_hello(1);
        dsc_handshake_reply(hs, &hello);
        return dsc_handshake_step(hs);
    }
    std::string error() const
    {
        return dsc_handshake_error(hs);
    }
};

bool contains(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

TEST(Handshake, BothLearnTheOtherAndNothingMoreIsRead)
{
    Sockets s;
    Side acceptor(s.take(0), true, key_a, 1), connector(s.take(1), false, key_a, 0);
    dscomm_status_t a = DSCOMM_IN_PROGRESS, c = DSCOMM_IN_PROGRESS;

    for (int i = 0; i < 10 && (a != DSCOMM_OK || c != DSCOMM_OK); i++) {
        a = acceptor.step();
        c = connector.step();
    }
    ASSERT_EQ(a, DSCOMM_OK);
    ASSERT_EQ(c, DSCOMM_OK);
    expect_equal(*dsc_handshake_peer(acceptor.hs), make_hello(0));
    expect_equal(*dsc_handshake_peer(connector.hs), make_hello(1));

    const int a_fd = dsc_handshake_take_fd(acceptor.hs);
    const int c_fd = dsc_handshake_take_fd(connector.hs);
    char byte = 0;
    ASSERT_EQ(send(c_fd, "x", 1, 0), 1);
    EXPECT_EQ(recv(a_fd, &byte, 1, MSG_DONTWAIT), 1);
    EXPECT_EQ(byte, 'x');
    EXPECT_EQ(recv(c_fd, &byte, 1, MSG_DONTWAIT), -1);
    close(a_fd);
    close(c_fd);
}

TEST(Handshake, WrongKeyIsRefusedOnBothSides)
{
    Sockets s;
    Side acceptor(s.take(0), true, key_a, 1), connector(s.take(1), false, key_b, 0);

    EXPECT_EQ(acceptor.step(), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(connector.step(), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(acceptor.step(), DSCOMM_ERR_CORRUPT);
    EXPECT_TRUE(contains(acceptor.error(), "does not have this job's key")) << acceptor.error();
    EXPECT_FALSE(dsc_handshake_wants_reply(acceptor.hs));
    EXPECT_EQ(connector.step(), DSCOMM_ERR_MISMATCH);
    EXPECT_TRUE(contains(connector.error(), "DSCOMM_SECRET")) << connector.error();
    EXPECT_EQ(connector.step(), DSCOMM_ERR_MISMATCH) << "an error stays";
}

/* Talks to a real connector: greets it, then answers with `reply`. */
dscomm_status_t connector_meets(const std::string &reply, std::string *error)
{
    Sockets s, donor;
    Side teller(donor.take(0), true, key_a, 1), connector(s.take(1), false, key_a, 0);

    EXPECT_EQ(teller.step(), DSCOMM_IN_PROGRESS);
    s.write(0, donor.read_all(1));
    EXPECT_EQ(connector.step(), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(s.read_all(0).size(), kProofBytes);
    s.write(0, reply);
    const dscomm_status_t st = connector.step();
    *error = connector.error();
    return st;
}

TEST(Handshake, ConnectorRefusesAnAcceptorWithoutKey)
{
    std::string reply(kReplyBytes, '\0'), error;

    reply[0] = 1; /* "welcome", then no proof */
    EXPECT_EQ(connector_meets(reply, &error), DSCOMM_ERR_CORRUPT);
    EXPECT_TRUE(contains(error, "does not have this job's key")) << error;
    reply[0] = 2;
    EXPECT_EQ(connector_meets(reply.substr(0, 4), &error), DSCOMM_ERR_MISMATCH);
    EXPECT_EQ(connector_meets(reply.substr(0, 3), &error), DSCOMM_IN_PROGRESS);
}

dscomm_status_t acceptor_meets(const std::string &bytes, std::string *error)
{
    Sockets s;
    Side acceptor(s.take(0), true, key_a, 1);

    EXPECT_EQ(acceptor.step(), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(s.read_all(1).size(), kGreetingBytes);
    s.write(1, bytes);
    const dscomm_status_t st = acceptor.step();
    *error = acceptor.error();
    EXPECT_FALSE(dsc_handshake_wants_reply(acceptor.hs));
    return st;
}

TEST(Handshake, StrangersAreKnownByTheirFirstWrongByte)
{
    const uint8_t other_version[] = { 'D', 'S', 'C', 'O', 'M', 'M', 'H', 'S', 9, 0, 0, 0 };
    std::string error;

    EXPECT_EQ(acceptor_meets("GET / HTTP/1.1\r\n\r\n", &error), DSCOMM_ERR_CORRUPT);
    EXPECT_TRUE(contains(error, "bad magic")) << error;
    EXPECT_EQ(acceptor_meets("X", &error), DSCOMM_ERR_CORRUPT);
    EXPECT_EQ(acceptor_meets("DSCOMMHX", &error), DSCOMM_ERR_CORRUPT);
    EXPECT_EQ(acceptor_meets(std::string(other_version, other_version + 11), &error),
              DSCOMM_IN_PROGRESS);
    EXPECT_EQ(acceptor_meets(std::string(other_version, other_version + 12), &error),
              DSCOMM_ERR_MISMATCH);
    EXPECT_TRUE(contains(error, "version 9, this side 2")) << error;
}

TEST(Handshake, RandomBytesNeverGetIn)
{
    std::mt19937 random(1);
    std::string error;

    for (int round = 0; round < 300; round++) {
        std::string bytes(random() % 600, '\0');
        for (char &c : bytes)
            c = (char)random();
        if (round % 2 == 0 && bytes.size() >= 12)
            bytes.replace(0, 12, std::string("DSCOMMHS\1\0\0\0", 12));
        const dscomm_status_t st = acceptor_meets(bytes, &error);
        EXPECT_TRUE(st < 0 || (st == DSCOMM_IN_PROGRESS && bytes.size() < kProofBytes)) << round;
    }
}

/* The proof a real connector gives to an acceptor at the other end of `s`. */
std::string make_proof(Sockets *s, Side *acceptor)
{
    Sockets far;
    Side connector(far.take(1), false, key_a, 0);

    EXPECT_EQ(acceptor->step(), DSCOMM_IN_PROGRESS);
    far.write(0, s->read_all(1));
    EXPECT_EQ(connector.step(), DSCOMM_IN_PROGRESS);
    return far.read_all(0);
}

TEST(Handshake, AnyChangedBitOfTheProofIsNoticed)
{
    for (size_t at = 0; at < kProofBytes; at += 7) {
        Sockets s;
        Side acceptor(s.take(0), true, key_a, 1);
        std::string proof = make_proof(&s, &acceptor);

        ASSERT_EQ(proof.size(), kProofBytes);
        proof[at] = (char)(proof[at] ^ 0x10);
        s.write(1, proof);
        EXPECT_LT(acceptor.step(), 0) << at;
    }
}

TEST(Handshake, AReplayedProofIsRefused)
{
    Sockets first, second;
    Side acceptor(first.take(0), true, key_a, 1), other(second.take(0), true, key_a, 1);
    const std::string proof = make_proof(&first, &acceptor);

    first.write(1, proof);
    EXPECT_EQ(acceptor.step(), DSCOMM_OK);
    EXPECT_EQ(other.step(), DSCOMM_IN_PROGRESS);
    second.write(1, proof);
    EXPECT_EQ(other.step(), DSCOMM_ERR_CORRUPT);
}

TEST(Handshake, SilenceEndsAtTheDeadline)
{
    Sockets s;
    Side acceptor(s.take(0), true, key_a, 1, 30);
    const uint64_t start = dsc_now_ns();

    while (acceptor.step() == DSCOMM_IN_PROGRESS && dsc_now_ns() - start < 2000000000u) {
        pollfd p = { dsc_handshake_fd(acceptor.hs), dsc_handshake_events(acceptor.hs), 0 };
        poll(&p, 1, 5);
    }
    EXPECT_EQ(acceptor.step(), DSCOMM_ERR_TIMEOUT);
    EXPECT_GE(dsc_now_ns() - start, 29000000u);
    EXPECT_TRUE(contains(acceptor.error(), "in time")) << acceptor.error();
}

TEST(Handshake, HalfAProofThenTheEnd)
{
    Sockets s;
    Side acceptor(s.take(0), true, key_a, 1);
    const std::string proof = make_proof(&s, &acceptor);

    s.write(1, proof.substr(0, 100));
    EXPECT_EQ(acceptor.step(), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(dsc_handshake_events(acceptor.hs), POLLIN);
    s.shut(1);
    EXPECT_EQ(acceptor.step(), DSCOMM_ERR_PEER_LOST);
    EXPECT_TRUE(contains(acceptor.error(), "closed the connection")) << acceptor.error();
}

TEST(Handshake, APeerThatIsGoneRaisesNoSignal)
{
    Sockets s;
    Side acceptor(s.take(0), true, key_a, 1);

    s.shut(1);
    EXPECT_EQ(acceptor.step(), DSCOMM_ERR_PEER_LOST);
}

/* A relay passes one byte per step in each direction. */
TEST(Handshake, SlowByteByByte)
{
    Sockets near, far;
    Side acceptor(near.take(0), true, key_a, 1), connector(far.take(1), false, key_a, 0);
    dscomm_status_t a = DSCOMM_IN_PROGRESS, c = DSCOMM_IN_PROGRESS;
    size_t n_steps = 0;
    char byte;

    while ((a == DSCOMM_IN_PROGRESS || c == DSCOMM_IN_PROGRESS) && n_steps++ < 10000) {
        if (a == DSCOMM_IN_PROGRESS)
            a = acceptor.step();
        if (c == DSCOMM_IN_PROGRESS)
            c = connector.step();
        if (recv(near.fd[1], &byte, 1, MSG_DONTWAIT) == 1) {
            ASSERT_EQ(send(far.fd[0], &byte, 1, MSG_NOSIGNAL), 1);
        }
        if (recv(far.fd[0], &byte, 1, MSG_DONTWAIT) == 1) {
            ASSERT_EQ(send(near.fd[1], &byte, 1, MSG_NOSIGNAL), 1);
        }
    }
    EXPECT_EQ(a, DSCOMM_OK);
    EXPECT_EQ(c, DSCOMM_OK);
    EXPECT_GE(n_steps, kGreetingBytes + kProofBytes + kReplyBytes);
}

TEST(Handshake, TextsOfAPeerEndInsideTheirFields)
{
    Sockets s;
    dsc_hello hello = make_hello(0);
    dsc_handshake *hs = nullptr;
    Side acceptor(s.take(0), true, key_a, 1);

    memset(hello.transport, 't', sizeof(hello.transport));
    memset(hello.detail, 'd', sizeof(hello.detail));
    ASSERT_EQ(dsc_handshake_create(s.take(1), false, key_a, &hello, dsc_deadline_ns(5000), &hs),
              DSCOMM_OK);
    EXPECT_EQ(acceptor.step(), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(dsc_handshake_step(hs), DSCOMM_IN_PROGRESS);
    EXPECT_EQ(acceptor.step(), DSCOMM_OK);
    EXPECT_EQ(std::string(dsc_handshake_peer(acceptor.hs)->transport), std::string(15, 't'));
    EXPECT_EQ(std::string(dsc_handshake_peer(acceptor.hs)->detail), std::string(135, 'd'));
    dsc_handshake_destroy(hs);
}

TEST(Handshake, NoMemoryLeavesTheSocketToTheCaller)
{
    Sockets s;
    dsc_handshake *hs = nullptr;
    const size_t live = dsc_mem_live(DSC_MEM_TRANSPORT);

    dsc_mem_fail_after(1);
    EXPECT_EQ(dsc_handshake_create(s.fd[0], true, key_a, nullptr, dsc_deadline_ns(5000), &hs),
              DSCOMM_ERR_NO_MEMORY);
    dsc_mem_fail_after(-1);
    EXPECT_EQ(hs, nullptr);
    EXPECT_EQ(send(s.fd[0], "x", 1, MSG_NOSIGNAL), 1) << "still open";
    dsc_handshake_destroy(nullptr);
    EXPECT_EQ(dsc_mem_live(DSC_MEM_TRANSPORT), live);
}

} /* namespace */
