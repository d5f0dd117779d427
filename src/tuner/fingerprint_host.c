/* SPDX-License-Identifier: Apache-2.0 */
/* What this host and its settings are, as a profile's fingerprint says it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "tuner/profile.h"

static void set_number(struct dsc_fingerprint *machine, enum dsc_fingerprint_field field,
                       uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    dsc_fingerprint_set(machine, field, text);
}

/* The first line of /proc/cpuinfo with that key. False: there is none. */
static bool find_cpuinfo(const char *info, const char *key, char *value, size_t value_bytes)
{
    const size_t key_len = strlen(key);

    for (const char *line = info; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_len) != 0)
            continue;
        line += key_len;
        line += strspn(line, " \t:");
        snprintf(value, value_bytes, "%.*s", (int)strcspn(line, "\n"), line);
        return true;
    }
    return false;
}

static void set_cpu_model(struct dsc_fingerprint *machine)
{
    char info[8192] = "", value[DSC_FINGERPRINT_VALUE_BYTES] = "unknown";
    FILE *const file = fopen("/proc/cpuinfo", "re");

    if (file != NULL) {
        info[fread(info, 1, sizeof(info) - 1, file)] = '\0';
        fclose(file);
    }
    if (!find_cpuinfo(info, "model name", value, sizeof(value))) /* x86 */
        find_cpuinfo(info, "CPU part", value, sizeof(value));    /* ARM */
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_CPU_MODEL, value);
}

static void set_isa(struct dsc_fingerprint *machine)
{
    const uint32_t features = dsc_cpu_features();
    const char *isa = "scalar";

    if ((features & DSC_CPU_AVX512) != 0)
        isa = "avx512";
    else if ((features & DSC_CPU_AVX2) != 0)
        isa = "avx2";
    else if ((features & DSC_CPU_NEON) != 0)
        isa = "neon";
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_ISA, isa);
}

static void append(char *text, size_t text_bytes, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t text_bytes, const char *fmt, ...)
{
    const size_t used = strlen(text);
    va_list args;

    va_start(args, fmt);
    vsnprintf(text + used, text_bytes - used, fmt, args);
    va_end(args);
}

static void append_nic(const dscomm_topo_t *topo, int device, char *text, size_t text_bytes)
{
    dscomm_topo_device_t d = { .struct_bytes = sizeof(d) };
    uint64_t rate;

    if (dscomm_topo_device(topo, device, &d) < 0 || d.kind != DSCOMM_DEVICE_NIC ||
        (d.flags & DSCOMM_DEVICE_VIRTUAL) != 0)
        return;
    append(text, text_bytes, "%s%s:", text[0] == '\0' ? "" : ",", d.name);
    if ((d.flags & DSCOMM_DEVICE_DOWN) != 0)
        append(text, text_bytes, "down");
    else if (dscomm_rate_best(&d.port, &rate))
        append(text, text_bytes, "%lluMbit", (unsigned long long)(rate / 125000));
    else
        append(text, text_bytes, "?");
}

/* Names and speeds of what is hardware; a hash in the place of a list that is too long. */
static void set_nics(struct dsc_fingerprint *machine, const dscomm_topo_t *topo)
{
    char text[8192] = "";

    for (int i = 0; i < dscomm_topo_n_devices(topo); i++)
        append_nic(topo, i, text, sizeof(text));
    if (strlen(text) >= DSC_FINGERPRINT_VALUE_BYTES)
        snprintf(text, sizeof(text), "list %016llx", (unsigned long long)dsc_hash_text(text));
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_NICS, text[0] != '\0' ? text : "none");
}

dscomm_status_t dsc_fingerprint_host(struct dsc_fingerprint *machine_out)
{
    /* NICs alone: what is odd about the rest is not this file's to say */
    const struct dsc_topo_host_sources sources = { .sysfs = "/sys", .quiet = true };
    const struct dsc_env *env;
    dscomm_topo_t *topo;
    struct utsname kernel;

    memset(machine_out, 0, sizeof(*machine_out));
    DSC_TRY(dsc_env_get(&env));
    if (uname(&kernel) != 0)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "uname");
    DSC_TRY(dsc_topo_load_host(&sources, NULL, &topo));
    set_nics(machine_out, topo);
    dscomm_topo_destroy(topo);
    set_cpu_model(machine_out);
    set_isa(machine_out);
    set_number(machine_out, DSC_FINGERPRINT_CPUS, (uint64_t)dsc_cpu_allowed());
    dsc_fingerprint_set(machine_out, DSC_FINGERPRINT_KERNEL, kernel.release);
    dsc_fingerprint_set(machine_out, DSC_FINGERPRINT_TRANSPORT, env->transport);
    set_number(machine_out, DSC_FINGERPRINT_NSOCKS, env->socket_nsocks);
    set_number(machine_out, DSC_FINGERPRINT_CRC, env->crc);
    set_number(machine_out, DSC_FINGERPRINT_THREADS, env->threads);
    return DSCOMM_OK;
}
