/* SPDX-License-Identifier: Apache-2.0 */
/* The library as a file, its tables, its devices, and what is left when it is unloaded. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net_case.h"
#include "transport/nccl_load.h"

static bool may_export(const char *name)
{
    static const char *const kinds[] = { "ncclNetPlugin_v",   "ncclCollNetPlugin_v",
                                         "ncclTunerPlugin_v", "ncclProfiler_v",
                                         "ncclEnvPlugin_v",   "ncclGinPlugin_v",
                                         "ncclRmaPlugin_v" };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strncmp(name, kinds[i], strlen(kinds[i])) == 0)
            return true;
    return false;
}

/* Every defined symbol of a table of dynamic symbols. */
static void check_symbols(const uint8_t *file, const Elf64_Shdr *table, const Elf64_Shdr *names)
{
    const Elf64_Sym *const symbols = (const Elf64_Sym *)(const void *)(file + table->sh_offset);
    int n_tables = 0;

    for (size_t i = 0; i < table->sh_size / sizeof(*symbols); i++) {
        const char *const name = (const char *)file + names->sh_offset + symbols[i].st_name;

        if (symbols[i].st_shndx == SHN_UNDEF || symbols[i].st_shndx == SHN_ABS)
            continue;
        CHECK(may_export(name), "%s is exported, which is none of NCCL's names", name);
        n_tables++;
    }
    CHECK(n_tables > 0, "nothing is exported");
}

static void case_symbols(void)
{
    const int fd = open(options.plugin, O_RDONLY | O_CLOEXEC);
    struct stat st;
    const uint8_t *file;
    const Elf64_Ehdr *head;
    const Elf64_Shdr *sections;

    CHECK(fd >= 0 && fstat(fd, &st) == 0, "%s", options.plugin);
    file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(file != MAP_FAILED, "mmap");
    head = (const Elf64_Ehdr *)(const void *)file;
    CHECK(memcmp(head->e_ident, ELFMAG, SELFMAG) == 0, "%s is no ELF file", options.plugin);
    sections = (const Elf64_Shdr *)(const void *)(file + head->e_shoff);
    for (size_t i = 0; i < head->e_shnum; i++)
        if (sections[i].sh_type == SHT_DYNSYM)
            check_symbols(file, &sections[i], &sections[sections[i].sh_link]);
    close(fd);
    load_plugin(); /* RTLD_NOW: nothing is undefined */
    dsc_nccl_unload();
}

static void case_properties(void)
{
    uint64_t guids[NCCL_DEVICES_MAX];
    int ports[NCCL_DEVICES_MAX], n = 0;
    void *ctx;

    load_plugin();
    CHECK(net->name != NULL && net->name[0] != '\0', "no name");
    ctx = start_plugin();
    CHECK(n_infos() <= 1, "init() wrote %d lines", n_infos());
    OK(net->devices(&n));
    for (int i = 0; i < n; i++) {
        struct nccl_props_v12 props;

        memset(&props, 0x5a, sizeof(props));
        OK(net->get_properties(i, &props));
        CHECK(props.name != NULL && props.name[0] != '\0' && strlen(props.name) < 256, "device %d",
              i);
        CHECK(props.max_p2p_bytes > 0 && props.max_p2p_bytes <= NCCL_NET_BYTES_MAX,
              "device %d: %zu", i, props.max_p2p_bytes);
        CHECK(props.max_coll_bytes > 0 && props.max_coll_bytes <= NCCL_NET_BYTES_MAX,
              "device %d: %zu", i, props.max_coll_bytes);
        CHECK((props.ptr_support & NCCL_PTR_HOST) != 0, "device %d: %d", i, props.ptr_support);
        CHECK(props.speed > 0 && props.max_comms > 0 && props.max_recvs >= 1, "device %d", i);
        CHECK(props.device_type == 0 && props.device_version == 0, "device %d offloads", i);
        CHECK(props.vdevice.n_devs == 1 && props.vdevice.devs[0] == i, "device %d", i);
        for (int k = 0; k < i; k++)
            CHECK(guids[k] != props.guid || ports[k] != props.port,
                  "devices %d and %d have one guid and port", k, i);
        guids[i] = props.guid;
        ports[i] = props.port;
    }
    CHECK(net->get_properties(n, &(struct nccl_props_v12){ 0 }) != NCCL_SUCCESS,
          "there are properties of device %d of %d", n, n);
    OK(net->finalize(ctx));
}

static void one_cycle(void)
{
    char out[1000], in[1000];
    struct ends ends;
    void *ctx, *send_mr, *recv_mr, *send, *recv;
    int bytes = 0;
    bool sent = false, received = false;
    const double end = now_s() + CASE_WAIT_S;

    load_plugin();
    ctx = start_plugin();
    connect_ends(&ends, ctx);
    send_mr = reg(ends.send, out, sizeof(out));
    recv_mr = reg(ends.recv, in, sizeof(in));
    fill(out, sizeof(out), 1);
    recv = recv_now(ends.recv, in, sizeof(in), recv_mr);
    send = send_now(ends.send, out, sizeof(out), send_mr);
    while (!sent || !received) {
        sent = sent || try_test(send, &bytes);
        received = received || try_test(recv, &bytes);
        CHECK(now_s() < end, "a message took %d s", CASE_WAIT_S);
    }
    CHECK(is_filled(in, sizeof(in), 1), "wrong data");
    dereg(ends.send, send_mr);
    dereg(ends.recv, recv_mr);
    close_ends(&ends);
    OK(net->finalize(ctx));
    dsc_nccl_unload();
}

/* Memory may grow while other libraries warm up: hence the first cycles do not count. */
static void case_cycles(void)
{
    const int warm = 10;
    size_t memory = 0;
    int fds = 0, threads = 0;

    for (int i = 0; i < options.cycles; i++) {
        one_cycle();
        if (i != warm)
            continue;
        memory = mallinfo2().uordblks;
        fds = count_entries("/proc/self/fd");
        threads = count_entries("/proc/self/task");
    }
    CHECK(count_entries("/proc/self/fd") <= fds, "%d descriptors, before %d",
          count_entries("/proc/self/fd"), fds);
    CHECK(count_entries("/proc/self/task") <= threads, "%d threads, before %d",
          count_entries("/proc/self/task"), threads);
    CHECK(mallinfo2().uordblks < memory + 16384, "%zu bytes of memory, before %zu",
          mallinfo2().uordblks, memory);
}

const struct net_test load_cases[] = {
    { "symbols", case_symbols },
    { "properties", case_properties },
    { "cycles", case_cycles },
    { 0 },
};
