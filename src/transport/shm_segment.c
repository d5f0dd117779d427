/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that two processes of a host share. It is a memfd, found by the other side through
 * /proc/PID/fd: it has no name that could outlive a killed job, and the size of /dev/shm (64 MiB in
 * many containers) does not limit it. Pages come when they are touched. Where /proc does not lead
 * to the peer (another PID namespace), device and inode show that the file is not the one meant.
 */
#include "transport/net_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/*
 * Gives the segment its final size: sealed, so that no peer can cut it under the other's feet.
 * Pages come when they are touched. A memfd lies in no mount with a limit of its own, so a page is
 * never missing (SIGBUS) as in a full /dev/shm.
 */
static const char *reserve(int fd, size_t bytes, char text[DSC_SEGMENT_TEXT_BYTES])
{
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return NULL;
    snprintf(text, DSC_SEGMENT_TEXT_BYTES, "cannot reserve %zu bytes of shared memory (memfd): %s",
             bytes, strerror(errno));
    return text;
}

const char *dsc_segment_create(struct dsc_segment *segment, size_t bytes,
                               char text[DSC_SEGMENT_TEXT_BYTES])
{
    struct stat st;

    segment->fd = memfd_create("dscomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (segment->fd < 0 || fstat(segment->fd, &st) < 0) {
        snprintf(text, DSC_SEGMENT_TEXT_BYTES, "memfd_create: %s", strerror(errno));
        return text;
    }
    if (reserve(segment->fd, bytes, text) != NULL)
        return text;
    snprintf(segment->name, sizeof(segment->name), "%d %d %llu %llu", (int)getpid(), segment->fd,
             (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    return NULL;
}

const char *dsc_segment_map(struct dsc_segment *segment, size_t bytes,
                            char text[DSC_SEGMENT_TEXT_BYTES])
{
    struct stat st;

    if (fstat(segment->fd, &st) < 0 || (size_t)st.st_size < bytes ||
        fcntl(segment->fd, F_GET_SEALS) != SEALS) {
        snprintf(text, DSC_SEGMENT_TEXT_BYTES,
                 "segment %s is smaller than %zu bytes, or not sealed", segment->name, bytes);
        return text;
    }
    void *const memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);

    if (memory == MAP_FAILED) {
        snprintf(text, DSC_SEGMENT_TEXT_BYTES, "cannot map %zu bytes of shared memory: %s", bytes,
                 strerror(errno));
        return text;
    }
    segment->memory = memory;
    segment->bytes = bytes;
    close(segment->fd);
    segment->fd = -1;
    return NULL;
}

const char *dsc_segment_attach(struct dsc_segment *segment, const char *name, size_t bytes,
                               char text[DSC_SEGMENT_TEXT_BYTES])
{
    int pid, fd;
    unsigned long long device, inode;
    char path[64];
    struct stat st;

    if (sscanf(name, "%d %d %llu %llu", &pid, &fd, &device, &inode) != 4 || pid <= 0 || fd < 0) {
        snprintf(text, DSC_SEGMENT_TEXT_BYTES, "segment name \"%.64s\" cannot be read", name);
        return text;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    segment->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (segment->fd < 0) {
        snprintf(text, DSC_SEGMENT_TEXT_BYTES, "cannot open %s: %s", path, strerror(errno));
        return text;
    }
    if (fstat(segment->fd, &st) < 0 || st.st_dev != device || st.st_ino != inode) {
        snprintf(text, DSC_SEGMENT_TEXT_BYTES,
                 "%s is not the peer's segment: other PID namespace, or DSCOMM_HOST_ID joins hosts",
                 path);
        return text;
    }
    return dsc_segment_map(segment, bytes, text);
}

void dsc_segment_fini(struct dsc_segment *segment)
{
    if (segment->memory != NULL)
        (void)munmap(segment->memory, segment->bytes);
    if (segment->fd >= 0)
        close(segment->fd);
    *segment = (struct dsc_segment){ .fd = -1 };
}
