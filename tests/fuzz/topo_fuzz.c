/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a topology file, and texts of our own with values replaced and lines copied by
 * choices that the bytes make: random bytes alone hardly get past an XML parser. What is accepted
 * must answer every query within its arrays, be above zero where it is known, and print in every
 * format; nothing may be left.
 *
 *     byte 0   how many changes              byte 1   odd: text number (byte 1)/2, else the rest
 *     byte 2   bit 0: which kind of rates    the rest, 4 bytes per change
 */
#include "fuzz/fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/topo.h"

#define CHECK(condition)  \
    do {                  \
        if (!(condition)) \
            abort();      \
    } while (0)

enum { TEXT_MAX = 4 * FUZZ_INPUT_MAX, PATHS_MAX = 24 };

/* What values of attributes are replaced by. */
static const char *const oddities[] = {
    "",
    "-1",
    "0",
    "1",
    "16",
    "64",
    "999999999999999999999",
    "0x",
    "0x030200",
    "0x120000",
    "0x068000",
    "0x060400",
    "0x020000",
    "nan",
    "2.5 GT/s PCIe",
    "1e308 GT/s",
    "0000:11:00.0",
    "0000:21:00.0",
    "fffffff:ff:ff.0",
    ":::...",
    "ffffffff:ff:ff.f",
    "mlx5_0",
    "veth&lt;&quot;\\",
    "gfx942",
    "90",
    "100",
    "AuthenticAMD",
};

static FILE *sink;

static void drop(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    dscomm_set_log(drop, NULL);
    sink = fopen("/dev/null", "w");
    CHECK(sink != NULL);
    return 0;
}

/* A bit of everything that the readers know. */
static const char xml[] =
    "<system version=\"2\">\n"
    "<cpu numaid=\"0\" host_hash=\"0x1\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" "
    "modelid=\"143\">\n"
    "<pci busid=\"0000:10:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "<pci busid=\"0000:11:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "<gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\">\n"
    "<nvlink target=\"0000:f0:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "<nvlink target=\"fffffff:ff:ff.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "<nvlink target=\"0000:21:00.0\" count=\"4\" tclass=\"0x030200\"/>\n"
    "<c2c bw=\"44712\" count=\"5\"/>\n"
    "</gpu>\n"
    "</pci>\n"
    "<pci busid=\"0000:12:00.0\" class=\"0x020700\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "<nic>\n"
    "<net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" guid=\"0x1\"/>\n"
    "<net name=\"mlx5_1\" dev=\"1\" speed=\"400000\" port=\"2\" guid=\"0x1\"/>\n"
    "</nic>\n"
    "</pci>\n"
    "</pci>\n"
    "<pci busid=\"0000:21:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"8\">\n"
    "<gpu dev=\"1\" sm=\"86\" rank=\"1\">\n"
    "<nvlink target=\"0000:11:00.0\" count=\"4\" tclass=\"0x030200\"/>\n"
    "<nvlink target=\"0000:f0:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "</gpu>\n"
    "<gpu dev=\"1\" sm=\"86\" rank=\"2\">\n"
    "<nvlink target=\"0000:f0:00.0\" count=\"13\"/>\n"
    "</gpu>\n"
    "</pci>\n"
    "<nic>\n"
    "<net name=\"veth0\" dev=\"2\" speed=\"10000\"/>\n"
    "<net name=\"eth0\" dev=\"3\" speed=\"1000\"/>\n"
    "</nic>\n"
    "</cpu>\n"
    "<cpu numaid=\"1\" host_hash=\"0x1\" arch=\"arm64\">\n"
    "<pci busid=\"0000:31:00.0\" class=\"0x120000\" link_speed=\"2.5 GT/s\" link_width=\"1\">\n"
    "<gpu dev=\"2\" sm=\"304\" gcn=\"gfx942\" rank=\"3\">\n"
    "<xgmi target=\"0000:32:00.0\" count=\"1\" tclass=\"0x120000\"/>\n"
    "</gpu>\n"
    "</pci>\n"
    "<pci busid=\"0000:32:00.0\" class=\"0x120000\" link_speed=\"\" link_width=\"0\">\n"
    "<gpu dev=\"3\" sm=\"304\" gcn=\"910\" rank=\"4\">\n"
    "<xgmi target=\"0000:31:00.0\" count=\"1\" tclass=\"0x120000\"/>\n"
    "</gpu>\n"
    "</pci>\n"
    "<nic>\n"
    "<net name=\"eth0\" dev=\"3\" speed=\"1000\"/>\n"
    "</nic>\n"
    "</cpu>\n"
    "<cpu numaid=\"0\" host_hash=\"0x2\">\n"
    "<pci busid=\"0000:11:00.0\"/>\n"
    "</cpu>\n"
    "</system>\n";

static const char matrix[] = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\n"
                             "GPU0\t X \tNV4\tPHB\tPIX\t0-7\t0\n"
                             "GPU1\tNV4\t X \tSYS\tNODE\t\t1\n"
                             "GPU2\tPHB\tSYS\t X \tPXB\t0-7\t0-1\n"
                             "NIC0\tPIX\tNODE\tPXB\t X \t\t\n\n  NIC0: mlx5_7\n";

static const char links[] = "GPU 0: NVIDIA X (UUID: y)\n\t Link 0: 26.562 GB/s\n"
                            "\t Link 1: Remote Device 00000000:C5:00.0: Link 46\n"
                            "GPU 1: NVIDIA X (UUID: y)\n\t Link 0: 25 GB/s\n"
                            "\t Link 1: Remote Device 00000000:C5:00.0: Link 4\n";

static const char plain[] = "gpu a numa 0 bus 3:0.0 sm 90\ngpu b numa 1\nnic n numa 1 gbit 100\n"
                            "link a b nvlink count 4\nlink a n pix rate 25\npcie a rate 60\n"
                            "measured b n 11.5\n";

static const struct {
    const char *text, *quotes; /* what stands around a value */
} texts[] = {
    { xml, "\"" }, { xml, "\"" }, { matrix, "\t\n" }, { links, " \n" }, { plain, " \n" }
};

/* Replaces the value behind a place; the text grows at most by it. */
static size_t replace_value(char *text, size_t n_bytes, size_t place, const char *quotes,
                            const char *value)
{
    const size_t value_bytes = strlen(value);
    size_t at = n_bytes > 0 ? place % n_bytes : 0, end;

    at += strcspn(text + at, quotes);
    if (at >= n_bytes || n_bytes + value_bytes > TEXT_MAX)
        return n_bytes;
    at++;
    end = at + strcspn(text + at, quotes);
    memmove(text + at + value_bytes, text + end, n_bytes - end + 1);
    memcpy(text + at, value, value_bytes);
    return n_bytes + value_bytes - (end - at);
}

/* Copies the line around one place before that around another. */
static size_t copy_line(char *text, size_t n_bytes, size_t from, size_t to)
{
    char line[512];
    size_t begin = n_bytes > 0 ? from % n_bytes : 0, at = n_bytes > 0 ? to % n_bytes : 0, len;

    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    while (at > 0 && text[at - 1] != '\n')
        at--;
    len = strcspn(text + begin, "\n");
    if (len >= sizeof(line) || n_bytes + len + 1 > TEXT_MAX)
        return n_bytes;
    memcpy(line, text + begin, len);
    line[len++] = '\n';
    memmove(text + at + len, text + at, n_bytes - at + 1);
    memcpy(text + at, line, len);
    return n_bytes + len;
}

static size_t make_text(char *text, const uint8_t *data, size_t size)
{
    const size_t row = data[1] / 2 % DSC_ARRAY_LEN(texts);
    size_t n_bytes = strlen(texts[row].text);
    const uint8_t *choice = data + FUZZ_HEAD_BYTES;

    memcpy(text, texts[row].text, n_bytes + 1);
    for (int i = 0; i < data[0] % 16 && choice + 4 <= data + size; i++, choice += 4) {
        const size_t place = (size_t)choice[0] << 8 | choice[1];

        n_bytes = choice[2] % 8 == 0 ? copy_line(text, n_bytes, place, (size_t)choice[3] << 4)
                                     : replace_value(text, n_bytes, place, texts[row].quotes,
                                                     oddities[choice[3] % DSC_ARRAY_LEN(oddities)]);
    }
    return n_bytes;
}

/* ---- what must hold ---- */

static void check_rate(const dscomm_rate_t *rate)
{
    uint64_t bps;

    if (dscomm_rate_best(rate, &bps) != 0)
        CHECK(bps > 0);
    if ((rate->marks & DSCOMM_RATE_DECLARED) != 0)
        CHECK(rate->declared > 0);
}

static void check_device(const dscomm_topo_t *topo, int i)
{
    dscomm_topo_device_t device = { .struct_bytes = sizeof(device) };

    CHECK(dscomm_topo_device(topo, i, &device) == DSCOMM_OK);
    CHECK(device.parent >= -1 && device.parent < dscomm_topo_n_devices(topo));
    CHECK((device.parent == -1) == (device.kind == DSCOMM_DEVICE_HOST));
    CHECK(memchr(device.name, '\0', sizeof(device.name)) != NULL);
    CHECK(memchr(device.bus, '\0', sizeof(device.bus)) != NULL);
    CHECK(device.card >= -1 && device.card <= i);
    check_rate(&device.up);
    check_rate(&device.port);
    CHECK(dscomm_topo_nic_for(topo, i) < dscomm_topo_n_devices(topo));
}

static void check_paths(const dscomm_topo_t *topo, int n)
{
    for (int a = 0; a < n; a++) {
        for (int b = 0; b < n; b++) {
            dscomm_topo_path_t there = { .struct_bytes = sizeof(there) };
            dscomm_topo_path_t back = { .struct_bytes = sizeof(back) };

            CHECK(dscomm_topo_path(topo, a, b, &there) == DSCOMM_OK);
            CHECK(dscomm_topo_path(topo, b, a, &back) == DSCOMM_OK);
            CHECK(there.kind == back.kind);
            CHECK(there.rate.declared == back.rate.declared);
            CHECK(a != b || there.kind == DSCOMM_LINK_NONE);
            check_rate(&there.rate);
        }
    }
}

static void check_topology(const dscomm_topo_t *topo)
{
    const int n = dscomm_topo_n_devices(topo);

    CHECK(n > 0);
    for (int i = 0; i < n; i++)
        check_device(topo, i);
    for (int i = 0; i < dscomm_topo_n_links(topo); i++) {
        dscomm_topo_link_t link = { .struct_bytes = sizeof(link) };

        CHECK(dscomm_topo_link(topo, i, &link) == DSCOMM_OK);
        CHECK(link.a >= 0 && link.a < n && link.b >= 0 && link.b < n && link.a != link.b);
        CHECK(link.count >= 0);
        check_rate(&link.rate);
    }
    check_paths(topo, n < PATHS_MAX ? n : PATHS_MAX);
    for (int format = DSCOMM_TOPO_TREE; format <= DSCOMM_TOPO_SVG; format++)
        CHECK(dscomm_topo_print(topo, (dscomm_topo_format_t)format, sink) == DSCOMM_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_MAX + 1];
    static const char more[] = "measured gpu0 gpu1 3\npcie gpu0 rate 5\n";
    dscomm_topo_config_t config = DSCOMM_TOPO_CONFIG_INIT;
    dscomm_topo_t *topo;
    size_t n_bytes;

    if (size < FUZZ_HEAD_BYTES || size > FUZZ_INPUT_MAX)
        return 0;
    n_bytes = size - FUZZ_HEAD_BYTES;
    if (data[1] % 2 != 0)
        n_bytes = make_text(text, data, size);
    else
        memcpy(text, data + FUZZ_HEAD_BYTES, n_bytes);
    config.rates = (data[2] & 1) != 0 ? DSCOMM_RATES_NCCL : DSCOMM_RATES_PHYSICAL;
    if (dsc_topo_load_text("fuzz", text, n_bytes, &config, &topo) == DSCOMM_OK) {
        check_topology(topo);
        if (dsc_topo_add_text(topo, "more", more, sizeof(more) - 1) == DSCOMM_OK)
            check_topology(topo);
        dscomm_topo_destroy(topo);
    }
    CHECK(dsc_mem_live(DSC_MEM_TOPO) == 0);
    return 0;
}
