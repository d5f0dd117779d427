/* SPDX-License-Identifier: Apache-2.0 */
/* topo: this host by hwloc, sysfs and NVML, each replaced by one that a test makes; RoCE addresses.
 */
#include "support/internal_begin.h"
#include "topo/topo.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

/* ---- a machine ---- */

/* One object of hwloc's XML; sets are left to what stands around it. */
std::string pci_object(const std::string &bus, const char *type, const std::string &inside = "",
                       const char *speed = "31.507692")
{
    static int gp = 100;

    return "<object type=\"PCIDev\" gp_index=\"" + std::to_string(gp++) + "\" pci_busid=\"" + bus +
           "\" pci_type=\"" + type + "\" pci_link_speed=\"" + speed + "\">" + inside +
           "</object>\n";
}

std::string os_object(const char *name, int type)
{
    static int gp = 1000;

    return "<object type=\"OSDev\" gp_index=\"" + std::to_string(gp++) + "\" name=\"" + name +
           "\" osdev_type=\"" + std::to_string(type) + "\"/>";
}

std::string bridge_object(const std::string &inside, int gp)
{
    return "<object type=\"Bridge\" gp_index=\"" + std::to_string(gp) +
           "\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-ff]\">" + inside +
           "</object>\n";
}

std::string sets(unsigned mask)
{
    const std::string text = "\"0x" + std::to_string(mask) + "\"";

    return " cpuset=" + text + " complete_cpuset=" + text + " nodeset=" + text +
           " complete_nodeset=" + text;
}

/* Two packages with a NUMA node and what hangs below each. */
std::string machine(const std::string &first, const std::string &second)
{
    std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                       "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n"
                       "<object type=\"Machine\" os_index=\"0\"" +
                       sets(3) +
                       " allowed_cpuset=\"0x3\" allowed_nodeset=\"0x3\" gp_index=\"1\">\n";

    for (unsigned i = 0; i < 2; i++) {
        const std::string set = sets(i + 1), n = std::to_string(i);

        text += "<object type=\"Package\" os_index=\"" + n + "\"" + set + " gp_index=\"" +
                std::to_string(10 + i) + "\">\n<object type=\"NUMANode\" os_index=\"" + n + "\"" +
                set + " gp_index=\"" + std::to_string(20 + i) + "\" local_memory=\"1048576\"/>\n" +
                "<object type=\"PU\" os_index=\"" + n + "\"" + set + " gp_index=\"" +
                std::to_string(30 + i) + "\"/>\n" +
                bridge_object(i == 0 ? first : second, 40 + static_cast<int>(i)) + "</object>\n";
    }
    return text + "</object>\n</topology>\n";
}

class TopoHost : public testing::Test {
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/dsc_topo_XXXXXX";

        ASSERT_NE(mkdtemp(name), nullptr);
        root_ = name;
        unsetenv("FAKE_NVML");
        dscomm_set_log(collect, this);
    }

    void TearDown() override
    {
        dscomm_topo_destroy(topo_);
        dscomm_set_log(nullptr, nullptr);
        unsetenv("FAKE_NVML");
        std::filesystem::remove_all(root_);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_TOPO), 0u);
    }

    static void collect(void *user, dscomm_log_level_t level, const char *line)
    {
        if (level == DSCOMM_LOG_WARN)
            static_cast<TopoHost *>(user)->warnings_.emplace_back(line);
    }

    void put(const std::string &path, const std::string &text) const
    {
        const std::filesystem::path full = std::filesystem::path(root_) / path;

        std::filesystem::create_directories(full.parent_path());
        std::ofstream(full) << text;
    }

    void load(const std::string &first, const std::string &second, const char *nvml = nullptr,
              const char *visible = nullptr)
    {
        const std::string xml = root_ + "/machine.xml";

        put("machine.xml", machine(first, second));

        const struct dsc_topo_host_sources sources = { xml.c_str(), root_.c_str(), nvml, visible };

        dscomm_topo_destroy(topo_);
        topo_ = nullptr;
        ASSERT_EQ(dsc_topo_load_host(&sources, nullptr, &topo_), DSCOMM_OK) << dscomm_last_error();
    }

    dscomm_topo_device_t device(const char *name) const
    {
        dscomm_topo_device_t dev = {};

        dev.struct_bytes = sizeof(dev);
        EXPECT_EQ(dscomm_topo_device(topo_, dscomm_topo_find(topo_, name), &dev), DSCOMM_OK)
            << name;
        return dev;
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

    int count(dscomm_device_kind_t kind) const
    {
        int n = 0;
        dscomm_topo_device_t dev = {};

        dev.struct_bytes = sizeof(dev);
        for (int i = 0; i < dscomm_topo_n_devices(topo_); i++)
            n += dscomm_topo_device(topo_, i, &dev) == DSCOMM_OK && dev.kind == kind;
        return n;
    }

    size_t n_warnings(const std::string &part) const
    {
        size_t n = 0;

        for (const std::string &line : warnings_)
            n += line.find(part) != std::string::npos;
        return n;
    }

    std::string root_;
    std::vector<std::string> warnings_;
    dscomm_topo_t *topo_ = nullptr;
};

const char h100[] = "0302 [10de:2330] [10de:16c1] a1";
const char mlx[] = "0200 [15b3:101d] [15b3:0022] 00";

/* D25: the nearer port is down. */
TEST_F(TopoHost, PortThatIsDownIsNotChosen)
{
    put("class/net/near0/operstate", "down\n");
    put("class/net/near0/speed", "-1\n");
    put("class/net/far0/operstate", "up\n");
    put("class/net/far0/speed", "100000\n");
    load(pci_object("0000:11:00.0", h100) + pci_object("0000:12:00.0", mlx, os_object("near0", 2)),
         pci_object("0000:81:00.0", mlx, os_object("far0", 2)));
    EXPECT_NE(device("near0").flags & DSCOMM_DEVICE_DOWN, 0u);
    EXPECT_EQ(path("gpu0", "near0").kind, DSCOMM_LINK_PHB);
    EXPECT_EQ(path("gpu0", "far0").kind, DSCOMM_LINK_SYS);
    EXPECT_EQ(dscomm_topo_nic_for(topo_, dscomm_topo_find(topo_, "gpu0")),
              dscomm_topo_find(topo_, "far0"));
    EXPECT_EQ(device("far0").port.declared, 12500000000u);

    put("class/net/near0/operstate", "up\n"); /* and up again it is */
    put("class/net/near0/speed", "25000\n");
    load(pci_object("0000:11:00.0", h100) + pci_object("0000:12:00.0", mlx, os_object("near0", 2)),
         pci_object("0000:81:00.0", mlx, os_object("far0", 2)));
    EXPECT_EQ(dscomm_topo_nic_for(topo_, dscomm_topo_find(topo_, "gpu0")),
              dscomm_topo_find(topo_, "near0"));
}

/* D25: an RDMA device above a bond states one port's rate. */
TEST_F(TopoHost, BondHasTheSumOfItsPorts)
{
    put("class/infiniband/mlx5_bond_0/ports/1/state", "4: ACTIVE\n");
    put("class/infiniband/mlx5_bond_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    put("class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0\n");
    put("class/net/bond0/speed", "800000\n");
    put("class/net/bond0/operstate", "up\n");
    put("class/net/bond0/bonding/slaves", "eth4 eth5\n");
    load(pci_object("0000:12:00.0", mlx, os_object("mlx5_bond_0", 3)), "");
    EXPECT_EQ(device("mlx5_bond_0").port.declared, 100000000000u);
    EXPECT_EQ(device("bond0").port.declared, 100000000000u);
    EXPECT_EQ(device("bond0").flags & DSCOMM_DEVICE_VIRTUAL, 0u);
}

/* A card with an RDMA device has a network interface beside it: one NIC. */
TEST_F(TopoHost, InterfaceOfAnRdmaDeviceIsNoSecondNic)
{
    put("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
    put("class/net/eth4/speed", "200000\n");
    put("devices/pci0000:00/0000:12:00.0/uevent", "DRIVER=mlx5_core\n");
    std::filesystem::create_symlink("../../../devices/pci0000:00/0000:12:00.0",
                                    root_ + "/class/net/eth4/device");
    load(pci_object("0000:12:00.0", mlx, os_object("eth4", 2) + os_object("mlx5_0", 3)), "");
    EXPECT_EQ(count(DSCOMM_DEVICE_NIC), 1);
    EXPECT_EQ(device("mlx5_0").port.declared, 25000000000u);
}

/* D25: files that hold no rate. */
TEST_F(TopoHost, UnreadableSpeedIsUnknownWithOneWarning)
{
    const char *const texts[] = { "-1\n", "", "Unknown\n", nullptr, "4294967295\n", "0\n" };

    for (const char *text : texts) {
        warnings_.clear();
        std::filesystem::remove_all(root_ + "/class");
        put("class/net/eth9/operstate", "up\n");
        if (text != nullptr)
            put("class/net/eth9/speed", text);
        load(pci_object("0000:12:00.0", mlx, os_object("eth9", 2)), "");

        const dscomm_topo_device_t nic = device("eth9");
        uint64_t bps = 77;

        EXPECT_EQ(nic.port.marks, 0u);
        EXPECT_EQ(dscomm_rate_best(&nic.port, &bps), 0);
        EXPECT_EQ(bps, 77u);
        EXPECT_EQ(n_warnings("eth9"), 1u) << (text != nullptr ? text : "absent");

        FILE *const null = fopen("/dev/null", "w");

        ASSERT_NE(null, nullptr);
        EXPECT_EQ(dscomm_topo_print(topo_, DSCOMM_TOPO_SVG, null), DSCOMM_OK);
        (void)fclose(null);
    }
}

/* D25: an idle GPU lowers its link's speed. */
TEST_F(TopoHost, MaximumLinkSpeedCounts)
{
    put("bus/pci/devices/0000:11:00.0/current_link_speed", "2.5 GT/s PCIe\n");
    put("bus/pci/devices/0000:11:00.0/max_link_speed", "32.0 GT/s PCIe\n");
    put("bus/pci/devices/0000:11:00.0/current_link_width", "16\n");
    put("bus/pci/devices/0000:11:00.0/max_link_width", "16\n");
    load(pci_object("0000:11:00.0", h100, "", "4.0"), "");

    const dscomm_topo_device_t gpu = device("gpu0");

    EXPECT_NEAR(static_cast<double>(gpu.up.declared), 63.02e9, 0.01e9);
    EXPECT_EQ(gpu.up.marks, static_cast<uint32_t>(DSCOMM_RATE_DECLARED | DSCOMM_RATE_MAXIMUM));

    const char measured[] = "measured gpu0 numa0 55\n"; /* and a measurement goes over it */
    uint64_t bps = 0;

    ASSERT_EQ(dsc_topo_add_text(topo_, "more", measured, sizeof(measured) - 1), DSCOMM_OK);
    const dscomm_rate_t rate = path("gpu0", "numa0").rate;

    EXPECT_EQ(dscomm_rate_best(&rate, &bps), 1);
    EXPECT_EQ(bps, 55000000000u);
}

TEST_F(TopoHost, CurrentSpeedCountsWhereThereIsNoMaximum)
{
    put("bus/pci/devices/0000:11:00.0/current_link_speed", "16.0 GT/s PCIe\n");
    put("bus/pci/devices/0000:11:00.0/max_link_speed", "Unknown\n");
    put("bus/pci/devices/0000:11:00.0/current_link_width", "0\n");
    load(pci_object("0000:11:00.0", h100, "", "0"), "");
    EXPECT_EQ(device("gpu0").up.marks, 0u); /* no width: unknown */
    put("bus/pci/devices/0000:11:00.0/current_link_width", "8\n");
    load(pci_object("0000:11:00.0", h100, "", "0"), "");
    EXPECT_NEAR(static_cast<double>(device("gpu0").up.declared), 15.75e9, 0.01e9);
    EXPECT_EQ(device("gpu0").up.marks, static_cast<uint32_t>(DSCOMM_RATE_DECLARED));
}

std::string eight_gpus(const char *fake)
{
    std::string pci;

    for (int i = 0; i < 8; i++)
        pci += pci_object("0000:" + std::to_string(i + 1) + "0:00.0", h100);
    if (fake != nullptr)
        setenv("FAKE_NVML", fake, 1);
    return pci;
}

/* D25: a container or CUDA_VISIBLE_DEVICES leaves two of eight. */
TEST_F(TopoHost, OnlyVisibleGpusAreThere)
{
    load(eight_gpus("0000:30:00.0 90|0000:60:00.0 90"), "", FAKE_NVML_LIBRARY);
    EXPECT_EQ(count(DSCOMM_DEVICE_GPU), 2);
    EXPECT_STREQ(device("gpu0").bus, "0000:30:00.0");
    EXPECT_STREQ(device("gpu1").bus, "0000:60:00.0");
    EXPECT_EQ(n_warnings("6 GPUs of this host are not visible"), 1u);

    std::string all;

    for (int i = 0; i < 8; i++)
        all += "0000:" + std::to_string(i + 1) + "0:00.0 90|";
    for (const char *visible : { "2,5", "GPU-0002-fake,GPU-0005-fake", "GPU-0002,5" }) {
        load(eight_gpus(all.c_str()), "", FAKE_NVML_LIBRARY, visible);
        EXPECT_EQ(count(DSCOMM_DEVICE_GPU), 2) << visible;
        EXPECT_STREQ(device("gpu0").bus, "0000:30:00.0");
        EXPECT_STREQ(device("gpu1").bus, "0000:60:00.0");
    }
    load(eight_gpus(all.c_str()), "", FAKE_NVML_LIBRARY, "");
    EXPECT_EQ(count(DSCOMM_DEVICE_GPU), 0);
}

TEST_F(TopoHost, LinksByNvml)
{
    load(eight_gpus("0000:10:00.0 80 4x00000000:20:00.0|0000:20:00.0 80 4x00000000:10:00.0"), "",
         FAKE_NVML_LIBRARY);
    EXPECT_EQ(device("gpu0").fabric_links, 4);
    EXPECT_EQ(device("gpu0").sm, 80);
    EXPECT_STREQ(device("gpu0").name, "Fake 80");
    EXPECT_EQ(path("gpu0", "gpu1").kind, DSCOMM_LINK_NVLINK);
    EXPECT_EQ(path("gpu0", "gpu1").rate.declared, 100000000000u);
    EXPECT_EQ(path("gpu0", "gpu1").fabric_known, 1);

    load(eight_gpus("0000:10:00.0 100 18xswitch|0000:20:00.0 100 18xswitch"), "",
         FAKE_NVML_LIBRARY);
    EXPECT_EQ(path("gpu0", "gpu1").rate.declared, 900000000000u);

    load(eight_gpus("0000:10:00.0 90 18x?|0000:20:00.0 90 18x?"), "", FAKE_NVML_LIBRARY);
    EXPECT_EQ(device("gpu0").fabric_links, 18);
    EXPECT_EQ(path("gpu0", "gpu1").kind, DSCOMM_LINK_PHB); /* where they go is not known */
}

TEST_F(TopoHost, NoNvml)
{
    for (const char *library : { static_cast<const char *>(nullptr), "/nonexistent.so",
                                 FAKE_NVML_LIBRARY /* no driver */ }) {
        warnings_.clear();
        unsetenv("FAKE_NVML");
        load(eight_gpus(nullptr), "", library);
        EXPECT_EQ(count(DSCOMM_DEVICE_GPU), 8);
        EXPECT_EQ(path("gpu0", "gpu1").fabric_known, 0);
        EXPECT_EQ(n_warnings("NVLinks are unknown"), 1u);
    }
}

TEST_F(TopoHost, InterfacesWithoutHardwareAreVirtual)
{
    put("class/net/lo/operstate", "unknown\n");
    put("class/net/veth12/operstate", "up\n");
    put("class/net/veth12/speed", "10000\n");
    put("class/net/mystery/operstate", "up\n");
    load("", "");
    EXPECT_EQ(count(DSCOMM_DEVICE_NIC), 2);
    EXPECT_EQ(device("veth12").port.marks & DSCOMM_RATE_IMPLAUSIBLE, DSCOMM_RATE_IMPLAUSIBLE + 0u);
    EXPECT_NE(device("mystery").flags & DSCOMM_DEVICE_VIRTUAL, 0u);
}

TEST_F(TopoHost, ThisHost)
{
    ASSERT_EQ(dscomm_topo_load_host(nullptr, &topo_), DSCOMM_OK) << dscomm_last_error();
    EXPECT_GE(count(DSCOMM_DEVICE_NUMA), 1);
}

TEST_F(TopoHost, BadXml)
{
    put("machine.xml", "<topology version=\"2.0\"><object");

    const std::string xml = root_ + "/machine.xml";
    const struct dsc_topo_host_sources sources = { xml.c_str(), root_.c_str(), nullptr, nullptr };

    EXPECT_EQ(dsc_topo_load_host(&sources, nullptr, &topo_), DSCOMM_ERR_CORRUPT);
    EXPECT_EQ(dscomm_topo_load(xml.c_str(), nullptr, &topo_), DSCOMM_ERR_CORRUPT);
    EXPECT_EQ(topo_, nullptr);
    put("machine.xml", machine(pci_object("0000:11:00.0", h100), ""));
    ASSERT_EQ(dscomm_topo_load(xml.c_str(), nullptr, &topo_), DSCOMM_OK) << dscomm_last_error();
    EXPECT_NEAR(static_cast<double>(device("gpu0").up.declared), 31.51e9, 0.01e9);
}

/* ---- D21: RoCE addresses ---- */

struct dsc_gid gid(std::initializer_list<int> head, uint32_t tail, enum dsc_gid_type type)
{
    struct dsc_gid entry = {};
    size_t i = 0;

    for (const int byte : head)
        entry.bytes[i++] = static_cast<uint8_t>(byte);
    for (int k = 0; k < 4; k++)
        entry.bytes[12 + k] = static_cast<uint8_t>(tail >> (8 * (3 - k)));
    entry.type = type;
    return entry;
}

class Gid : public testing::Test {
  protected:
    Gid()
    {
        const std::initializer_list<int> link_local = { 0xfe, 0x80 };
        const std::initializer_list<int> mapped = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

        table_ = { gid(link_local, 1, DSC_GID_IB_ROCE_V1), gid(link_local, 1, DSC_GID_ROCE_V2),
                   gid(mapped, 0x0a000001, DSC_GID_IB_ROCE_V1),
                   gid(mapped, 0x0a000001, DSC_GID_ROCE_V2), gid({}, 0, DSC_GID_ROCE_V2) };
    }

    dscomm_status_t choose(bool is_infiniband, int wanted)
    {
        index_ = -7;
        return dsc_gid_choose(table_.data(), static_cast<int>(table_.size()), is_infiniband, wanted,
                              &index_);
    }

    std::vector<struct dsc_gid> table_;
    int index_ = -7;
};

TEST_F(Gid, RoceTakesVersion2WithAnAddress)
{
    ASSERT_EQ(choose(false, DSC_GID_AUTO), DSCOMM_OK);
    EXPECT_EQ(index_, 3);
    std::swap(table_[0], table_[3]); /* wherever it stands */
    ASSERT_EQ(choose(false, DSC_GID_AUTO), DSCOMM_OK);
    EXPECT_EQ(index_, 0);
}

TEST_F(Gid, InfinibandTakesTheFirst)
{
    ASSERT_EQ(choose(true, DSC_GID_AUTO), DSCOMM_OK);
    EXPECT_EQ(index_, 0);
}

TEST_F(Gid, TheUserWins)
{
    for (const bool is_infiniband : { false, true }) {
        ASSERT_EQ(choose(is_infiniband, 1), DSCOMM_OK);
        EXPECT_EQ(index_, 1);
    }
    for (const int bad : { 5, -2, 1000 }) {
        EXPECT_EQ(choose(false, bad), DSCOMM_ERR_INVALID);
        EXPECT_NE(std::string(dscomm_last_error()).find("the port has 0 to 4"), std::string::npos);
        EXPECT_EQ(index_, -7);
    }
    EXPECT_EQ(choose(false, 4), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("unused"), std::string::npos);
}

TEST_F(Gid, WhatIsLeft)
{
    table_[3] = gid({ 0x20, 0x01 }, 1, DSC_GID_ROCE_V2); /* global IPv6 before any version 1 */
    ASSERT_EQ(choose(false, DSC_GID_AUTO), DSCOMM_OK);
    EXPECT_EQ(index_, 3);
    table_.resize(1);
    ASSERT_EQ(choose(false, DSC_GID_AUTO), DSCOMM_OK);
    EXPECT_EQ(index_, 0);
    table_[0] = gid({}, 0, DSC_GID_ROCE_V2);
    EXPECT_EQ(choose(false, DSC_GID_AUTO), DSCOMM_ERR_INVALID);
}

} // namespace
