/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who this rank is: its process, its host, the CPUs it may use.
 */
#include "transport/bootstrap_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

/* Random per process, and again in a child of fork(): equal means the same address space. */
static uint64_t process_id(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t id;
    static pid_t owner;

    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        owner = getpid();
        randombytes_buf(&id, sizeof(id));
    }
    const uint64_t result = id;

    pthread_mutex_unlock(&lock);
    return result;
}

static void read_boot_id(char *buf, size_t buf_bytes)
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n;

    memset(buf, 0, buf_bytes);
    if (fd >= 0) {
        do
            n = read(fd, buf, buf_bytes - 1);
        while (n < 0 && errno == EINTR);
        close(fd);
    }
    if (buf[0] == '\0')
        gethostname(buf, buf_bytes - 1);
}

/*
 * One kernel and one /dev/shm: containers on a host share the boot id, but have each a /dev/shm of
 * their own and, which matters, a /proc of their own: segments are memfds that a peer opens through
 * /proc/PID/fd. The mount stands for the container; nothing is kept in it.
 */
static dscomm_status_t host_id(const char *override, char id_out[DSC_HOST_ID_BYTES])
{
    struct {
        char boot_id[64];
        uint64_t shm_dev, shm_ino;
    } facts = { .shm_dev = 0 };
    struct stat shm;
    uint8_t hash[16];

    if (strlen(override) >= DSC_HOST_ID_BYTES)
        return dsc_fail(DSCOMM_ERR_ENV,
                        "DSCOMM_HOST_ID is \"%s\", which has more than %d characters", override,
                        DSC_HOST_ID_BYTES - 1);
    if (override[0] != '\0') {
        snprintf(id_out, DSC_HOST_ID_BYTES, "%s", override);
        return DSCOMM_OK;
    }
    read_boot_id(facts.boot_id, sizeof(facts.boot_id));
    if (stat("/dev/shm", &shm) == 0) {
        facts.shm_dev = shm.st_dev;
        facts.shm_ino = shm.st_ino;
    }
    crypto_generichash(hash, sizeof(hash), (const uint8_t *)&facts, sizeof(facts), NULL, 0);
    sodium_bin2hex(id_out, DSC_HOST_ID_BYTES, hash, sizeof(hash));
    return DSCOMM_OK;
}

/* The CPUs that this process may use. */
static void describe_cpus(uint8_t set_out[DSC_CPU_SET_BYTES])
{
    uint8_t mask[1024] = { 0 };

    if (sched_getaffinity(0, sizeof(mask), (cpu_set_t *)(void *)mask) != 0)
        memset(mask, 0xff, sizeof(mask));
    memset(set_out, 0, DSC_CPU_SET_BYTES);
    for (size_t i = 0; i < sizeof(mask); i++)
        set_out[i % DSC_CPU_SET_BYTES] |= mask[i];
}

dscomm_status_t dsc_peer_info_self(const struct dsc_env *env, struct dsc_peer_info *info_out)
{
    memset(info_out, 0, sizeof(*info_out));
    info_out->process_id = process_id();
    info_out->pid = (uint32_t)getpid();
    info_out->n_cpus = (uint32_t)dsc_cpu_allowed();
    describe_cpus(info_out->cpu_set);
    return host_id(env->host_id, info_out->host_id);
}
