/* SPDX-License-Identifier: Apache-2.0 */
/* profiles: what is written is read again; stale ones and odd files are refused by name. */
#include "support/internal_begin.h"
#include "tuner/tuner.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;

struct dsc_profile example()
{
    struct dsc_profile profile = {};

    for (int i = 0; i < DSC_FINGERPRINT_N; i++)
        dsc_fingerprint_set(&profile.machine, static_cast<enum dsc_fingerprint_field>(i),
                            ("value " + std::to_string(i)).c_str());
    profile.rates.version = DSC_RATES_VERSION;
    profile.rates.n_tiers = 2;
    profile.rates.tiers[0] = { DSC_TIER_HOST, 300, 1500, 9000000000, 5000000000, 110, 1 };
    profile.rates.tiers[1] = { DSC_TIER_TCP, 9000, 40000, 999999999999999, 117000000, 800, 0 };
    profile.rates.n_speeds = 1;
    profile.rates.speeds[0] = {
        "topk:0.01", DSCOMM_BFLOAT16, 1, 100, 200, 300, 400, 500, 600, 700
    };
    profile.rates.cpus_per_host = 2;
    profile.rates.ranks_per_host = 2;
    profile.rates.call_ns = 2500;
    profile.rates.op_ns = 150;
    profile.rates.overlap = 1;
    profile.rates.header_bytes = 32;
    profile.rates.stage_ns = 4000;
    profile.rates.cache_bytes = 16 << 20;
    return profile;
}

std::string text_of(const struct dsc_profile &profile)
{
    char *const text = dsc_profile_text(&profile);
    const std::string copy = text;

    free(text);
    return copy;
}

std::string replaced(std::string text, const std::string &from, const std::string &to)
{
    const size_t at = text.find(from);

    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

class Profile : public testing::Test {
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/dscomm_profile_XXXXXX";

        dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
        ASSERT_NE(mkdtemp(name), nullptr);
        folder_ = name;
        setenv("XDG_CACHE_HOME", name, 1);
        unsetenv("DSCOMM_PROFILE");
        dsc_env_reload();
    }

    void TearDown() override
    {
        unsetenv("XDG_CACHE_HOME");
        unsetenv("DSCOMM_PROFILE");
        dsc_env_reload();
        dscomm_set_log(nullptr, nullptr);
        fs::remove_all(folder_);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_TUNER), 0u);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_TOPO), 0u);
    }

    /* Why the text is refused; "": it is not. */
    std::string parse(const std::string &text)
    {
        char why[DSC_PROFILE_WHY_BYTES] = "";
        const bool ok = dsc_profile_parse(text.data(), text.size(), &got_, why, sizeof(why));

        EXPECT_EQ(ok, why[0] == '\0') << why;
        return why;
    }

    std::string load(const std::string &path)
    {
        char why[DSC_PROFILE_WHY_BYTES] = "";
        const bool ok = dsc_profile_load(path.c_str(), &got_, why, sizeof(why));

        EXPECT_EQ(ok, why[0] == '\0') << why;
        return why;
    }

    std::string find(const struct dsc_fingerprint &here)
    {
        char why[DSC_PROFILE_WHY_BYTES] = "";
        const bool ok = dsc_profile_find(&here, &found_, why, sizeof(why));

        EXPECT_EQ(ok, why[0] == '\0') << why;
        return why;
    }

    std::string default_path(const struct dsc_fingerprint &here)
    {
        char path[DSC_PROFILE_PATH_BYTES] = "", why[DSC_PROFILE_WHY_BYTES] = "";

        EXPECT_TRUE(dsc_profile_path(&here, path, why, sizeof(why))) << why;
        return path;
    }

    std::string folder_;
    struct dsc_profile got_ = {};
    struct dsc_rates found_ = {};
};

TEST_F(Profile, WhatIsWrittenIsReadAgain)
{
    const std::string text = text_of(example());

    ASSERT_EQ(parse(text), "");
    EXPECT_EQ(text_of(got_), text);
    EXPECT_EQ(got_.rates.tiers[1].bytes_per_s_alone, 999999999999999u);
    EXPECT_EQ(got_.rates.speeds[0].dtype, DSCOMM_BFLOAT16);
    EXPECT_STREQ(got_.machine.values[DSC_FINGERPRINT_ISA], "value 2");
    EXPECT_NE(text.find("\"kind\":\t\"tcp\""), std::string::npos) << text;
    EXPECT_NE(text.find("\"dtype\":\t\"bf16\""), std::string::npos) << text;
}

TEST_F(Profile, TheFullestOneFits)
{
    struct dsc_profile full = example();

    for (auto &value : full.machine.values)
        memset(value, '"', sizeof(value) - 1);
    full.rates.n_tiers = DSC_TIERS_MAX;
    for (auto &tier : full.rates.tiers)
        tier = full.rates.tiers[1];
    full.rates.n_speeds = DSC_SPEEDS_MAX;
    for (int s = 0; s < DSC_SPEEDS_MAX; s++) {
        full.rates.speeds[s] = full.rates.speeds[0];
        snprintf(full.rates.speeds[s].spec, sizeof(full.rates.speeds[s].spec), "topk:k=%d", s + 1);
    }
    const std::string text = text_of(full);
    ASSERT_EQ(parse(text), "");
    EXPECT_EQ(text_of(got_), text);
}

TEST_F(Profile, MembersThatAreNotKnownAreSkipped)
{
    const std::string text = text_of(example());

    EXPECT_EQ(parse(replaced(text, "\"rates\"", "\"extra\": [1, {}], \"rates\"")), "");
    EXPECT_EQ(parse(replaced(text, "\"cpus\"", "\"sockets\": 4, \"cpus\"")), "");
    EXPECT_EQ(parse(replaced(text, "\"latency_ns\"", "\"jitter\": null, \"latency_ns\"")), "");
}

TEST_F(Profile, WhatIsWrongIsNamed)
{
    const std::string text = text_of(example());
    const struct {
        const char *from, *to, *why;
    } cases[] = {
        { "\"dscomm_profile\":\t3", "\"dscomm_profile\": 2", "dscomm_profile is 2, must be 3" },
        { "\"dscomm_profile\"", "\"other\"", "is no profile: there is no number dscomm_profile" },
        { "\"machine\"", "\"Machine\"", "machine is missing" },
        { "\"value 1\"", "17", "machine.cpus is no text" },
        { "value 1", "value \\u00e9", "machine.cpus has a character that is not printable ASCII" },
        { "\"isa\"", "\"ISA\"", "machine.isa is missing" },
        { "\"n_tiers\":\t2", "\"n_tiers\": 3", "rates.tiers is no list of 3" },
        { "\"n_tiers\":\t2", "\"n_tiers\": 9", "rates.n_tiers is 9, must be 0 to 8" },
        { "\"n_speeds\":\t1", "\"n_speeds\": 1000000",
          "rates.n_speeds is 1000000, must be 0 to 64" },
        { "1500", "-1", "rates.tiers[0].latency_ns is no whole number of 0 or more" },
        { "1500", "0.5", "rates.tiers[0].latency_ns is no whole number of 0 or more" },
        { "1500", "1e999", "rates.tiers[0].latency_ns is no whole number of 0 or more" },
        { "1500", "\"1500\"", "rates.tiers[0].latency_ns is no whole number of 0 or more" },
        { "1500", "0", "rates.tiers[0].latency_ns is 0, must be 1 to 10000000000" },
        { "117000000", "2e15",
          "rates.tiers[1].bytes_per_s is 2000000000000000, must be 1 to 1000000000000000" },
        { "\"tcp\"", "\"smoke\"",
          "rates.tiers[1].kind is 'smoke', must be a word such as 'given'" },
        { "\"tcp\"", "4", "rates.tiers[1].kind is no text" },
        { "topk:0.01", "a spec that is as long as none is",
          "rates.speeds[0].spec has 33 characters, at most 31" },
        { "topk:0.01", "", "rates.speeds[0].spec is no codec's text of 1 to 31 characters" },
        { "\"send_fs\":\t100", "\"send_fs\": 4294967296",
          "rates.speeds[0].send_fs is 4294967296, must be 1 to 1000000000" },
        { "\"overlap\"", "\"overlaps\"", "rates.overlap is missing" },
    };

    for (const auto &c : cases)
        EXPECT_EQ(parse(replaced(text, c.from, c.to)), c.why) << c.from << " -> " << c.to;
}

TEST_F(Profile, WhatIsNoJsonIsRefused)
{
    const std::string text = text_of(example());

    EXPECT_NE(parse(""), "");
    EXPECT_NE(parse("{"), "");
    EXPECT_NE(parse("[]"), "");
    EXPECT_NE(parse("null"), "");
    EXPECT_NE(parse(std::string("\0\0\0", 3)), "");
    EXPECT_NE(parse(std::string(100000, '[')), "");
    EXPECT_EQ(parse(std::string(DSC_PROFILE_BYTES_MAX + 1, ' ')),
              "has 262145 bytes, at most 262144");
    for (size_t n = 1; n < text.size(); n += 7)
        EXPECT_NE(parse(text.substr(0, n)), "") << n;
}

TEST_F(Profile, SavedAndFoundAtTheDefaultPath)
{
    const struct dsc_profile profile = example();
    const std::string path = default_path(profile.machine);

    EXPECT_EQ(path.rfind(folder_ + "/dscomm/profile-", 0), 0u) << path;
    EXPECT_NE(find(profile.machine).find("No such file"), std::string::npos);
    ASSERT_EQ(dsc_profile_save(path.c_str(), &profile), DSCOMM_OK);
    ASSERT_EQ(dsc_profile_save(path.c_str(), &profile), DSCOMM_OK) << "over the old one";
    EXPECT_EQ(find(profile.machine), "");
    EXPECT_EQ(found_.tiers[0].bytes_per_s, 5000000000u);

    size_t n_files = 0;
    for (const auto &entry : fs::directory_iterator(folder_ + "/dscomm")) {
        EXPECT_EQ(entry.path().string(), path) << "nothing else is left there";
        n_files++;
    }
    EXPECT_EQ(n_files, 1u);
}

TEST_F(Profile, OtherMachinesHaveOtherPaths)
{
    struct dsc_profile profile = example();
    const std::string path = default_path(profile.machine);

    for (int i = 0; i < DSC_FINGERPRINT_N; i++) {
        struct dsc_profile other = example();

        strcat(other.machine.values[i], "x");
        EXPECT_NE(default_path(other.machine), path) << i;
    }
}

TEST_F(Profile, AStaleOneIsRefusedWithFieldAndValues)
{
    struct dsc_profile profile = example();
    const std::string path = folder_ + "/mine.json";

    ASSERT_EQ(dsc_profile_save(path.c_str(), &profile), DSCOMM_OK);
    setenv("DSCOMM_PROFILE", path.c_str(), 1);
    dsc_env_reload();
    EXPECT_EQ(find(profile.machine), "");
    for (int i = 0; i < DSC_FINGERPRINT_N; i++) {
        struct dsc_fingerprint here = profile.machine;
        const std::string name = dsc_fingerprint_name(static_cast<enum dsc_fingerprint_field>(i));

        snprintf(here.values[i], sizeof(here.values[i]), "another");
        EXPECT_EQ(find(here), "profile " + path + ": " + name + " is '" +
                                  profile.machine.values[i] + "' in the profile, 'another' here");
        here.values[i][0] = '\0'; /* not known here */
        EXPECT_EQ(find(here), "");
    }
}

TEST_F(Profile, NoneReadsNoFile)
{
    const struct dsc_profile profile = example();

    ASSERT_EQ(dsc_profile_save(default_path(profile.machine).c_str(), &profile), DSCOMM_OK);
    setenv("DSCOMM_PROFILE", "none", 1);
    dsc_env_reload();
    EXPECT_EQ(find(profile.machine), "DSCOMM_PROFILE is none");
}

TEST_F(Profile, OnlyRegularFilesAreRead)
{
    const std::string pipe = folder_ + "/pipe", big = folder_ + "/big", link = folder_ + "/none";

    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(load(pipe), "is no regular file");
    EXPECT_EQ(load(folder_), "is no regular file");
    EXPECT_EQ(load(link), "No such file or directory");
    std::ofstream(big) << std::string(1 << 20, ' ');
    EXPECT_EQ(load(big), "has 262145 bytes, at most 262144");
}

TEST_F(Profile, WhatCannotBeSavedSaysSo)
{
    struct dsc_profile profile = example();
    const std::string file = folder_ + "/file";

    std::ofstream(file) << "x";
    EXPECT_EQ(dsc_profile_save((file + "/p.json").c_str(), &profile), DSCOMM_ERR_SYSTEM);
    EXPECT_NE(std::string(dscomm_last_error()).find("Not a directory"), std::string::npos);
    profile.rates.tiers[0].kind = 99;
    EXPECT_EQ(dsc_profile_save((folder_ + "/p.json").c_str(), &profile), DSCOMM_ERR_INVALID);
    EXPECT_FALSE(fs::exists(folder_ + "/p.json"));
}

TEST_F(Profile, ThisMachineFitsItself)
{
    struct dsc_profile profile = example();
    char why[DSC_PROFILE_WHY_BYTES] = "";

    ASSERT_EQ(dsc_fingerprint_host(&profile.machine), DSCOMM_OK);
    EXPECT_EQ(profile.machine.values[DSC_FINGERPRINT_CPUS], std::to_string(dsc_cpu_allowed()));
    EXPECT_STRNE(profile.machine.values[DSC_FINGERPRINT_CPU_MODEL], "");
    EXPECT_STRNE(profile.machine.values[DSC_FINGERPRINT_KERNEL], "");
    EXPECT_STRNE(profile.machine.values[DSC_FINGERPRINT_NICS], "");
    ASSERT_EQ(parse(text_of(profile)), "");
    EXPECT_TRUE(dsc_fingerprint_fits(&got_.machine, &profile.machine, why, sizeof(why))) << why;
}

} // namespace
