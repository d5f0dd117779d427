/* SPDX-License-Identifier: Apache-2.0 */
/* topo: the public queries, paths, and what happens when memory runs out. */
#include "support/internal_begin.h"
#include "topo/topo.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace {

/* Two CPUs, a switch with a GPU and a NIC, a GPU beside it, one at the other CPU. */
const char xml[] =
    "<system version=\"1\">\n"
    "<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"25\" modelid=\"1\">\n"
    "<pci busid=\"0000:10:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"8\">\n"
    "<pci busid=\"0000:11:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "<gpu dev=\"0\" sm=\"90\" rank=\"0\"><nvlink target=\"0000:31:00.0\" count=\"4\" "
    "tclass=\"0x030200\"/></gpu></pci>\n"
    "<pci busid=\"0000:12:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" "
    "link_width=\"8\">\n"
    "<nic><net name=\"mlx5_0\" dev=\"0\" speed=\"200000\" guid=\"0x1\"/></nic></pci>\n"
    "</pci>\n"
    "<pci busid=\"0000:21:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "<gpu dev=\"1\" sm=\"90\" rank=\"1\"/></pci>\n"
    "</cpu>\n"
    "<cpu numaid=\"1\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"25\" modelid=\"1\">\n"
    "<pci busid=\"0000:31:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "<gpu dev=\"2\" sm=\"90\" rank=\"2\"><nvlink target=\"0000:11:00.0\" count=\"4\" "
    "tclass=\"0x030200\"/></gpu></pci>\n"
    "<nic><net name=\"eth0\" dev=\"1\" speed=\"400000\" guid=\"0x2\"/></nic>\n"
    "</cpu>\n</system>\n";

class Topo : public testing::Test {
  protected:
    void SetUp() override
    {
        dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    }

    void TearDown() override
    {
        dscomm_topo_destroy(topo_);
        dsc_mem_fail_after(-1);
        dscomm_set_log(nullptr, nullptr);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_TOPO), 0u);
    }

    void load(dscomm_rate_kind_t rates = DSCOMM_RATES_PHYSICAL)
    {
        dscomm_topo_config_t config = DSCOMM_TOPO_CONFIG_INIT;

        config.rates = rates;
        dscomm_topo_destroy(topo_);
        topo_ = nullptr;
        ASSERT_EQ(dsc_topo_load_text("test", xml, sizeof(xml) - 1, &config, &topo_), DSCOMM_OK);
    }

    dscomm_topo_path_t path(const char *a, const char *b) const
    {
        dscomm_topo_path_t p = {};

        p.struct_bytes = sizeof(p);
        EXPECT_EQ(
            dscomm_topo_path(topo_, dscomm_topo_find(topo_, a), dscomm_topo_find(topo_, b), &p),
            DSCOMM_OK);
        return p;
    }

    dscomm_topo_t *topo_ = nullptr;
};

TEST_F(Topo, Paths)
{
    load();

    const struct {
        const char *a, *b;
        dscomm_link_kind_t kind;
        double gbps; /* 0: unknown */
        bool is_partial;
    } cases[] = {
        { "gpu0", "gpu2", DSCOMM_LINK_NVLINK, 100, false },
        { "gpu0", "mlx5_0", DSCOMM_LINK_PIX, 15.75, false },
        { "gpu0", "gpu1", DSCOMM_LINK_PHB, 31.51, false }, /* the bridge's eight lanes */
        { "gpu1", "gpu2", DSCOMM_LINK_SYS, 63.02, true },  /* CPU to CPU is not declared */
        { "gpu1", "numa0", DSCOMM_LINK_PHB, 63.02, false },
        { "numa0", "numa1", DSCOMM_LINK_SYS, 0, true },
        { "gpu2", "eth0", DSCOMM_LINK_PHB, 63.02, true },
        { "gpu0", "gpu0", DSCOMM_LINK_NONE, 0, false },
    };

    for (const auto &c : cases) {
        for (const bool is_swapped : { false, true }) {
            const dscomm_topo_path_t p = is_swapped ? path(c.b, c.a) : path(c.a, c.b);
            uint64_t bps = 0;

            EXPECT_EQ(p.kind, c.kind) << c.a << " " << c.b;
            EXPECT_EQ(dscomm_rate_best(&p.rate, &bps), c.gbps > 0 ? 1 : 0);
            EXPECT_NEAR(static_cast<double>(bps) / 1e9, c.gbps, 0.01) << c.a << " " << c.b;
            EXPECT_EQ((p.rate.marks & DSCOMM_RATE_PARTIAL) != 0, c.is_partial) << c.a << " " << c.b;
            EXPECT_EQ(p.p2p, DSCOMM_TOPO_UNKNOWN);
        }
    }
    load(DSCOMM_RATES_NCCL);
    EXPECT_EQ(path("numa0", "numa1").rate.declared, 16000000000u);
    EXPECT_EQ(path("gpu1", "gpu2").rate.declared, 16000000000u);
    EXPECT_EQ(path("gpu0", "gpu2").rate.declared, 82400000000u);
    EXPECT_EQ(dscomm_topo_rate_kind(topo_), DSCOMM_RATES_NCCL);
}

TEST_F(Topo, NearestNicNotTheFastest)
{
    load();
    for (const char *gpu : { "gpu0", "gpu1" })
        EXPECT_EQ(dscomm_topo_nic_for(topo_, dscomm_topo_find(topo_, gpu)),
                  dscomm_topo_find(topo_, "mlx5_0"));
    EXPECT_EQ(dscomm_topo_nic_for(topo_, dscomm_topo_find(topo_, "gpu2")),
              dscomm_topo_find(topo_, "eth0"));
    EXPECT_EQ(dscomm_topo_nic_for(topo_, -1), -1);
    EXPECT_EQ(dscomm_topo_nic_for(topo_, 10000), -1);
}

TEST_F(Topo, Names)
{
    load();

    const int gpu = dscomm_topo_find(topo_, "gpu0");

    for (const char *name : { "0000:11:00.0", "11:00.0", "00000000:11:00.0" })
        EXPECT_EQ(dscomm_topo_find(topo_, name), gpu) << name;
    EXPECT_EQ(dscomm_topo_find(topo_, "0000:12:00.0"), dscomm_topo_find(topo_, "mlx5_0"));
    for (const char *name :
         { "", "gpu3", "gpu", "gpu-1", "numa2", "0000:11:00.1", "11:00", "mlx5_1" })
        EXPECT_EQ(dscomm_topo_find(topo_, name), -1) << name;
    EXPECT_EQ(dscomm_topo_find(topo_, nullptr), -1);
}

TEST_F(Topo, BadArguments)
{
    dscomm_topo_config_t config = DSCOMM_TOPO_CONFIG_INIT;
    dscomm_topo_device_t device = {};
    dscomm_topo_link_t link = {};
    dscomm_topo_path_t p = {};

    config.struct_bytes = 3;
    EXPECT_EQ(dscomm_topo_load_host(&config, &topo_), DSCOMM_ERR_INVALID);
    config = DSCOMM_TOPO_CONFIG_INIT;
    config.rates = static_cast<dscomm_rate_kind_t>(2);
    EXPECT_EQ(dscomm_topo_load_host(&config, &topo_), DSCOMM_ERR_INVALID);
    config = DSCOMM_TOPO_CONFIG_INIT;
    config.sm = 9;
    EXPECT_EQ(dsc_topo_load_text("t", xml, sizeof(xml) - 1, &config, &topo_), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_topo_load(nullptr, nullptr, &topo_), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_topo_load("/nonexistent", nullptr, &topo_), DSCOMM_ERR_SYSTEM);
    EXPECT_EQ(dscomm_topo_load("/", nullptr, &topo_), DSCOMM_ERR_SYSTEM);
    EXPECT_EQ(topo_, nullptr);

    load();
    EXPECT_EQ(dscomm_topo_device(topo_, 0, &device), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_topo_link(topo_, 0, &link), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_topo_path(topo_, 0, 0, &p), DSCOMM_ERR_INVALID);
    device.struct_bytes = sizeof(device);
    link.struct_bytes = sizeof(link);
    p.struct_bytes = sizeof(p);
    for (const int bad : { -1, 100000 }) {
        EXPECT_EQ(dscomm_topo_device(topo_, bad, &device), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_topo_link(topo_, bad, &link), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_topo_path(topo_, 0, bad, &p), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_topo_notice(topo_, bad), nullptr);
    }
    EXPECT_EQ(dscomm_topo_print(topo_, static_cast<dscomm_topo_format_t>(3), stdout),
              DSCOMM_ERR_INVALID);

    FILE *const full = fopen("/dev/full", "w");

    ASSERT_NE(full, nullptr);
    EXPECT_EQ(dscomm_topo_print(topo_, DSCOMM_TOPO_TREE, full), DSCOMM_ERR_SYSTEM);
    (void)fclose(full);
    dscomm_topo_destroy(nullptr);
}

TEST_F(Topo, TooLarge)
{
    std::string text = "<system version=\"1\"><cpu numaid=\"0\">";

    for (int i = 0; i <= DSC_TOPO_DEVICES_MAX; i++)
        text += "<pci/>";
    text += "</cpu></system>";
    EXPECT_EQ(dsc_topo_load_text("t", text.data(), text.size(), nullptr, &topo_), DSCOMM_ERR_LIMIT);
    text.assign(DSC_TOPO_FILE_BYTES_MAX + 1, ' ');
    EXPECT_EQ(dsc_topo_load_text("t", text.data(), text.size(), nullptr, &topo_), DSCOMM_ERR_LIMIT);
    EXPECT_EQ(topo_, nullptr);
}

/* Every allocation fails once: the status says so, nothing is left. */
TEST_F(Topo, NoMemory)
{
    bool was_enough = false;

    for (int64_t n = 1; n < 100 && !was_enough; n++) {
        dscomm_topo_t *topo = nullptr;

        dsc_mem_fail_after(n);

        const dscomm_status_t st = dsc_topo_load_text("t", xml, sizeof(xml) - 1, nullptr, &topo);

        dsc_mem_fail_after(-1);
        was_enough = st == DSCOMM_OK;
        if (!was_enough)
            EXPECT_EQ(st, DSCOMM_ERR_NO_MEMORY);
        dscomm_topo_destroy(topo);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_TOPO), 0u);
    }
    EXPECT_TRUE(was_enough);
}

TEST_F(Topo, PeerAccess)
{
    const char matrix[] = " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tGNS\t\n GPU1\tOK\tX\tOK\t\n"
                          " GPU2\tGNS\tOK\tX\t\n";

    load();
    ASSERT_EQ(dsc_topo_add_text(topo_, "m", matrix, sizeof(matrix) - 1), DSCOMM_OK)
        << dscomm_last_error();
    EXPECT_EQ(path("gpu0", "gpu1").p2p, 1);
    EXPECT_EQ(path("gpu2", "gpu0").p2p, 0);
    EXPECT_EQ(path("gpu2", "gpu0").kind, DSCOMM_LINK_NVLINK);
}

/* What is better known by hand. */
TEST_F(Topo, Override)
{
    const char text[] = "pcie gpu0 rate 20\nlink gpu0 gpu1 nvlink rate 400\n";

    load();
    ASSERT_EQ(dsc_topo_add_text(topo_, "t", text, sizeof(text) - 1), DSCOMM_OK)
        << dscomm_last_error();
    EXPECT_EQ(path("gpu0", "gpu1").rate.declared, 400000000000u);
    EXPECT_EQ(path("gpu0", "numa0").rate.declared, 20000000000u);

    const char bad[] = "measured gpu0 gpu1 300\nmeasured gpu0 gpu9 1\n";

    EXPECT_EQ(dsc_topo_add_text(topo_, "bad", bad, sizeof(bad) - 1), DSCOMM_ERR_CORRUPT);
    EXPECT_NE(strstr(dscomm_last_error(), "bad:2:"), nullptr) << dscomm_last_error();
    EXPECT_EQ(path("gpu0", "gpu1").rate.measured, 300000000000u); /* the line before is taken */
}

} // namespace
