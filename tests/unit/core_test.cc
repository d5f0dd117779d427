/* SPDX-License-Identifier: Apache-2.0 */
/* core: last error, log lines, environment registry, tagged memory, CPU mode, futex, names. */
#include "support/internal_begin.h"
#include "core/core.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Line {
    dscomm_log_level_t level;
    std::string text;
};

/* Collects log lines and gives every test the environment it asks for. */
class CoreTest : public testing::Test {
  protected:
    void SetUp() override
    {
        for (char **entry = environ; *entry != nullptr;) { /* the caller's settings are not ours */
            const std::string name(*entry, strcspn(*entry, "="));

            if (name.compare(0, 7, "DSCOMM_") != 0)
                entry++;
            else
                unsetenv(name.c_str()); /* moves the rest down */
        }
        dscomm_set_log(collect, this);
    }

    void TearDown() override
    {
        for (const std::string &name : set_names_)
            unsetenv(name.c_str());
        dsc_env_reload();
        dsc_log_set_rank(-1, 0);
        dsc_mem_fail_after(-1);
        dscomm_set_log(nullptr, nullptr);
    }

    void set_env(const char *name, const char *value)
    {
        setenv(name, value, 1);
        set_names_.insert(name);
    }

    const struct dsc_env *reload()
    {
        const struct dsc_env *env = nullptr;

        lines_.clear();
        dsc_env_reload();
        EXPECT_EQ(DSCOMM_OK, dsc_env_get(&env)) << dscomm_last_error();
        return env;
    }

    /* The environment must be refused with a text that holds all the parts. */
    void expect_refused(const char *name, const char *value, const char *allowed)
    {
        const struct dsc_env *env = nullptr;

        set_env(name, value);
        dsc_env_reload();
        EXPECT_EQ(DSCOMM_ERR_ENV, dsc_env_get(&env)) << name << " " << value;
        EXPECT_EQ(nullptr, env);
        const std::string text = dscomm_last_error();
        EXPECT_NE(std::string::npos, text.find(name)) << text;
        EXPECT_NE(std::string::npos, text.find(value)) << text;
        EXPECT_NE(std::string::npos, text.find(allowed)) << text;
        unsetenv(name);
    }

    std::vector<Line> lines_;

  private:
    static void collect(void *user, dscomm_log_level_t level, const char *line)
    {
        static_cast<CoreTest *>(user)->lines_.push_back({ level, line });
    }

    std::set<std::string> set_names_;
};

TEST_F(CoreTest, FailKeepsTextLogsOnceAndReturnsStatus)
{
    EXPECT_EQ(DSCOMM_ERR_INVALID, dsc_fail(DSCOMM_ERR_INVALID, "count %d is odd", 3));
    EXPECT_STREQ("count 3 is odd", dscomm_last_error());
    ASSERT_EQ(1u, lines_.size());
    EXPECT_EQ(DSCOMM_LOG_ERROR, lines_[0].level);
    EXPECT_NE(std::string::npos, lines_[0].text.find("core_test.cc:"));
    EXPECT_NE(std::string::npos, lines_[0].text.find("ERROR count 3 is odd"));
    EXPECT_EQ(std::string::npos, lines_[0].text.find('\n'));
}

TEST_F(CoreTest, FailErrnoAppendsTheReason)
{
    errno = ENOENT;
    EXPECT_EQ(DSCOMM_ERR_SYSTEM, dsc_fail_errno(DSCOMM_ERR_SYSTEM, "open %s", "file"));
    EXPECT_EQ(std::string("open file: ") + strerror(ENOENT), dscomm_last_error());
}

TEST_F(CoreTest, FailMayQuoteTheLastError)
{
    dsc_set_last_error("inner");
    (void)dsc_fail(DSCOMM_ERR_INVALID, "outer (%s)", dscomm_last_error());
    EXPECT_STREQ("outer (inner)", dscomm_last_error());
}

TEST_F(CoreTest, LongTextIsCutNotOverrun)
{
    const std::string longer(5000, 'x');

    (void)dsc_fail(DSCOMM_ERR_INVALID, "%s", longer.c_str());
    EXPECT_GT(strlen(dscomm_last_error()), 1024u);
    EXPECT_LT(strlen(dscomm_last_error()), 5000u);
    ASSERT_EQ(1u, lines_.size());
    EXPECT_LT(lines_[0].text.size(), 4096u);
}

TEST_F(CoreTest, LastErrorBelongsToItsThread)
{
    std::string other = "unset";

    dsc_set_last_error("mine");
    std::thread([&other] { other = dscomm_last_error(); }).join();
    EXPECT_EQ("", other);
    EXPECT_STREQ("mine", dscomm_last_error());
}

TEST_F(CoreTest, StatusTextsAreDistinctAndNeverNull)
{
    std::set<std::string> texts;

    for (int s = 1; s >= -12; s--)
        texts.insert(dscomm_status_text(static_cast<dscomm_status_t>(s)));
    EXPECT_EQ(14u, texts.size());
    EXPECT_EQ(0u, texts.count("unknown status"));
    EXPECT_STREQ("unknown status", dscomm_status_text(static_cast<dscomm_status_t>(-999)));
}

TEST_F(CoreTest, LogLevelFilters)
{
    set_env("DSCOMM_LOG_LEVEL", "info");
    reload();
    dsc_log_debug(CORE, "hidden");
    dsc_log_info(CORE, "shown %d", 1);
    ASSERT_EQ(1u, lines_.size());
    EXPECT_NE(std::string::npos, lines_[0].text.find(" CORE INFO shown 1"));

    set_env("DSCOMM_LOG_LEVEL", "error");
    reload();
    dsc_log_warn(CORE, "hidden");
    EXPECT_TRUE(lines_.empty());
}

TEST_F(CoreTest, LogLineNamesRank)
{
    dsc_log_set_rank(3, 8);
    dsc_log_warn(NET, "text");
    ASSERT_EQ(1u, lines_.size());
    EXPECT_NE(std::string::npos, lines_[0].text.find(" 3/8 NET WARN text"));
}

TEST_F(CoreTest, EnvDefaults)
{
    const struct dsc_env *const env = reload();

    ASSERT_NE(nullptr, env);
    EXPECT_EQ(257024u, env->chunk_bytes);
    EXPECT_EQ(4294967295u, env->cpu_mask);
    EXPECT_STREQ("auto", env->transport);
    EXPECT_STREQ("", env->host_id);
}

TEST_F(CoreTest, EnvValuesAreReadAndCopied)
{
    set_env("DSCOMM_CHUNK_BYTES", "0x1000");
    set_env("DSCOMM_PORT", "65535");
    set_env("DSCOMM_HOST_ID", "rack one");
    const struct dsc_env *const env = reload();

    set_env("DSCOMM_HOST_ID", "another text");
    ASSERT_NE(nullptr, env);
    EXPECT_EQ(4096u, env->chunk_bytes);
    EXPECT_EQ(65535u, env->port);
    EXPECT_STREQ("rack one", env->host_id);
}

TEST_F(CoreTest, EnvBadNumbersNameVariableValueAndRange)
{
    const char *const bad[] = {
        "65536", "-1", "+1", " 1", "1 ", "1k", "0x", "99999999999999999999"
    };

    for (const char *value : bad)
        expect_refused("DSCOMM_PORT", value, "0 to 65535");
    expect_refused("DSCOMM_CHUNK_BYTES", "1023", "1024 to 67108864");
    expect_refused("DSCOMM_THREADS", "0", "1 to 256");
}

TEST_F(CoreTest, EnvEmptyNumberIsBad)
{
    const struct dsc_env *env = nullptr;

    set_env("DSCOMM_PORT", "");
    dsc_env_reload();
    EXPECT_EQ(DSCOMM_ERR_ENV, dsc_env_get(&env));
    EXPECT_NE(nullptr, strstr(dscomm_last_error(), "DSCOMM_PORT is \"\""));
}

TEST_F(CoreTest, EnvBadWordsNameWhatIsAllowed)
{
    expect_refused("DSCOMM_TRANSPORT", "rdma", "auto loopback shm verbs tcp nccl_net");
    expect_refused("DSCOMM_TRANSPORT", "tc", "auto loopback shm verbs tcp nccl_net");
    expect_refused("DSCOMM_TRANSPORT", "shm tcp", "auto loopback shm verbs tcp nccl_net");
    expect_refused("DSCOMM_LOG_LEVEL", "loud", "error warn info debug");
}

TEST_F(CoreTest, EnvBadValueIsAnErrorAtEveryCall)
{
    const struct dsc_env *env = nullptr;

    set_env("DSCOMM_CRC", "2");
    dsc_env_reload();
    for (int i = 0; i < 3; i++) {
        dsc_set_last_error("");
        EXPECT_EQ(DSCOMM_ERR_ENV, dsc_env_get(&env));
        EXPECT_NE(nullptr, strstr(dscomm_last_error(), "DSCOMM_CRC"));
    }
}

TEST_F(CoreTest, EnvUnknownNameWarnsOnceWithTheNearest)
{
    set_env("DSCOMM_CHUNKBYTES", "4096");
    reload();
    ASSERT_EQ(1u, lines_.size());
    EXPECT_EQ(DSCOMM_LOG_WARN, lines_[0].level);
    EXPECT_NE(std::string::npos, lines_[0].text.find("DSCOMM_CHUNKBYTES"));
    EXPECT_NE(std::string::npos, lines_[0].text.find("DSCOMM_CHUNK_BYTES"));

    const struct dsc_env *env = nullptr;
    EXPECT_EQ(DSCOMM_OK, dsc_env_get(&env));
    EXPECT_EQ(1u, lines_.size());
}

TEST_F(CoreTest, EnvLongUnknownNameIsHarmless)
{
    set_env(("DSCOMM_" + std::string(3000, 'Y')).c_str(), "1");
    reload();
    EXPECT_EQ(1u, lines_.size());
}

TEST_F(CoreTest, EnvDocsAreSortedAndComplete)
{
    size_t n = 0;
    const struct dsc_env_doc *const docs = dsc_env_docs(&n);

    ASSERT_GE(n, 16u);
    for (size_t i = 0; i < n; i++) {
        EXPECT_EQ(0, strncmp("DSCOMM_", docs[i].name, 7));
        EXPECT_NE(nullptr, docs[i].dflt);
        EXPECT_NE(nullptr, docs[i].range);
        EXPECT_GT(strlen(docs[i].doc), 10u);
        EXPECT_TRUE(i == 0 || strcmp(docs[i - 1].name, docs[i].name) < 0) << docs[i].name;
    }
}

TEST_F(CoreTest, LauncherVariables)
{
    unsetenv("CORE_TEST_LAUNCHER");
    EXPECT_EQ(nullptr, dsc_env_launcher("CORE_TEST_LAUNCHER"));
    set_env("CORE_TEST_LAUNCHER", "7");
    EXPECT_STREQ("7", dsc_env_launcher("CORE_TEST_LAUNCHER"));
}

TEST_F(CoreTest, MemoryIsZeroedAlignedAndCounted)
{
    const size_t before = dsc_mem_live(DSC_MEM_PLAN);

    for (size_t bytes :
         { size_t{ 0 }, size_t{ 1 }, size_t{ 63 }, size_t{ 4096 }, size_t{ 1 << 20 } }) {
        unsigned char *const p = static_cast<unsigned char *>(dsc_calloc(DSC_MEM_PLAN, bytes, 1));

        ASSERT_NE(nullptr, p);
        EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(p) % 64);
        for (size_t i = 0; i < bytes; i++)
            ASSERT_EQ(0, p[i]);
        memset(p, 0xff, bytes); /* the next block must not show it */
        EXPECT_EQ(before + 1, dsc_mem_live(DSC_MEM_PLAN));
        dsc_free(p);
        EXPECT_EQ(before, dsc_mem_live(DSC_MEM_PLAN));
    }
    dsc_free(nullptr);
}

TEST_F(CoreTest, MemoryRefusesOverflow)
{
    EXPECT_EQ(nullptr, dsc_calloc(DSC_MEM_CORE, SIZE_MAX / 2, 3));
    EXPECT_EQ(nullptr, dsc_calloc(DSC_MEM_CORE, SIZE_MAX, 1));
    EXPECT_EQ(nullptr, dsc_calloc(DSC_MEM_CORE, 1, SIZE_MAX - 64));
}

TEST_F(CoreTest, MemoryFailsTheNthAllocationOnce)
{
    for (int n = 1; n <= 3; n++) {
        dsc_mem_fail_after(n);
        for (int i = 1; i <= 5; i++) {
            void *const p = dsc_calloc(DSC_MEM_CORE, 1, 8);

            EXPECT_EQ(i == n, p == nullptr) << "n " << n << " i " << i;
            dsc_free(p);
        }
    }
}

TEST_F(CoreTest, ClockMovesForward)
{
    const uint64_t start = dsc_now_ns();

    EXPECT_GE(dsc_now_ns(), start);
    EXPECT_GE(dsc_deadline_ns(1000), start + 1000000000u);
}

TEST_F(CoreTest, CpuMaskHidesFeatures)
{
    set_env("DSCOMM_CPU_MASK", "0");
    reload();
    EXPECT_EQ(0u, dsc_cpu_features());

    set_env("DSCOMM_CPU_MASK", "4294967295");
    reload();
#if defined(__x86_64__)
    EXPECT_EQ(__builtin_cpu_supports("avx2") != 0, (dsc_cpu_features() & DSC_CPU_AVX2) != 0);
#endif
}

TEST_F(CoreTest, CpuAllowedIsTheAffinityMask)
{
    cpu_set_t old, one;
    ASSERT_EQ(0, sched_getaffinity(0, sizeof(old), &old));
    EXPECT_EQ(CPU_COUNT(&old), dsc_cpu_allowed());

    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &old))
            CPU_SET(cpu, &one);
    ASSERT_EQ(0, sched_setaffinity(0, sizeof(one), &one));
    EXPECT_EQ(1, dsc_cpu_allowed());
    EXPECT_LT(dsc_cpu_cache_bytes(), uint64_t(1) << 40); /* 0 where it is not told */
    ASSERT_EQ(0, sched_setaffinity(0, sizeof(old), &old));
}

#if defined(__x86_64__)
TEST_F(CoreTest, FpEnterClearsFtzAndDazAndLeaveRestores)
{
    const unsigned before = __builtin_ia32_stmxcsr();
    const unsigned flush = before | 0x8040u | 0x6000u; /* FTZ, DAZ, round toward zero */
    volatile float tiny = 1e-40f;

    __builtin_ia32_ldmxcsr(flush);
    EXPECT_EQ(0.0f, tiny * 1.0f);
    const uint32_t saved = dsc_fp_enter();
    const unsigned inside = __builtin_ia32_stmxcsr();
    const bool is_kept = tiny * 1.0f != 0.0f;
    dsc_fp_leave(saved);
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);

    EXPECT_EQ(0u, inside & 0xe040u);
    EXPECT_TRUE(is_kept);
    EXPECT_EQ(flush & ~0x3fu, after & ~0x3fu);
}
#endif

#if defined(__x86_64__)
/* Which register states are in use: bit 2 the upper halves of ymm, bit 6 of zmm. */
uint64_t states_in_use()
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return low & 0x44u;
}

TEST_F(CoreTest, ChecksumsDoNotSlowDownSse)
{
    unsigned eax, ebx, ecx, edx;
    if (!__builtin_cpu_supports("avx") || __get_cpuid_count(13, 1, &eax, &ebx, &ecx, &edx) == 0 ||
        (eax & 4u) == 0)
        GTEST_SKIP() << "this CPU cannot tell which registers are in use";
    const std::vector<uint8_t> data(1 << 20, 7);
    __asm__ volatile("vzeroupper");
    ASSERT_EQ(states_in_use(), 0u);
    volatile uint32_t crc = dsc_crc32c(0, data.data(), data.size());
    EXPECT_EQ(states_in_use(), 0u) << crc;
}
#endif

TEST_F(CoreTest, FutexWaitReturnsOnOtherValueTimeoutAndWake)
{
    uint32_t word = 5;
    const uint64_t start = dsc_now_ns();

    dsc_futex_wait(&word, 4, 10000000000u); /* another value: at once */
    EXPECT_LT(dsc_now_ns() - start, 5000000000u);

    const uint64_t sleep_start = dsc_now_ns();
    while (dsc_now_ns() - sleep_start < 2000000u) /* may wake early */
        dsc_futex_wait(&word, 5, 2000000u);

    std::thread waker([&word] {
        __atomic_store_n(&word, 6, __ATOMIC_SEQ_CST);
        dsc_futex_wake(&word, 1);
    });
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == 5)
        dsc_futex_wait(&word, 5, 10000000000u);
    waker.join();
    EXPECT_LT(dsc_now_ns() - start, 9000000000u);
}

TEST_F(CoreTest, NamesAndSizes)
{
    EXPECT_STREQ("fp32", dsc_dtype_name(DSCOMM_FLOAT32));
    EXPECT_STREQ("fp16", dsc_dtype_name(DSCOMM_FLOAT16));
    EXPECT_STREQ("bf16", dsc_dtype_name(DSCOMM_BFLOAT16));
    EXPECT_STREQ("?", dsc_dtype_name(static_cast<dscomm_dtype_t>(3)));
    EXPECT_STREQ("?", dsc_dtype_name(static_cast<dscomm_dtype_t>(-1)));
    EXPECT_STREQ("sum", dsc_op_name(DSCOMM_SUM));
    EXPECT_STREQ("min", dsc_op_name(DSCOMM_MIN));
    EXPECT_STREQ("?", dsc_op_name(static_cast<dscomm_op_t>(4)));
    EXPECT_EQ(4u, dsc_dtype_bytes(DSCOMM_FLOAT32));
    EXPECT_EQ(2u, dsc_dtype_bytes(DSCOMM_BFLOAT16));
    EXPECT_EQ(0u, dsc_dtype_bytes(static_cast<dscomm_dtype_t>(9)));
}

TEST_F(CoreTest, HashIsFnv1a)
{
    EXPECT_EQ(0xcbf29ce484222325u, dsc_hash_text(""));
    EXPECT_EQ(0xaf63dc4c8601ec8cu, dsc_hash_text("a"));
    EXPECT_EQ(0x85944171f73967e8u, dsc_hash_text("foobar"));
}

TEST_F(CoreTest, RoundingHelpersDoNotOverflow)
{
    EXPECT_EQ(0u, dsc_ceil_div(0, 7));
    EXPECT_EQ(1u, dsc_ceil_div(1, 7));
    EXPECT_EQ(SIZE_MAX, dsc_ceil_div(SIZE_MAX, 1));
    EXPECT_EQ(256u, dsc_round_up(1, 256));
    EXPECT_EQ(256u, dsc_round_up(256, 256));
}

TEST_F(CoreTest, VersionText)
{
    EXPECT_STREQ("0.1.0", dscomm_version());
}

} // namespace
