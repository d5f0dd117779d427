/* SPDX-License-Identifier: Apache-2.0 */
/* What a connection has carried, for the next job's profile: one line per connection, at its end.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "net_wrap.h"

void wrap_meter_begin(struct wrap_meter *meter)
{
    if (meter->in_flight++ == 0)
        meter->busy_since = dsc_now_ns();
}

void wrap_meter_end(struct wrap_meter *meter, size_t bytes, size_t wire_bytes)
{
    meter->messages++;
    meter->bytes += bytes;
    meter->wire_bytes += wire_bytes;
    if (--meter->in_flight == 0)
        meter->busy_ns += dsc_now_ns() - meter->busy_since;
}

void wrap_meter_write(const struct wrap_comm *comm)
{
    const struct wrap_meter *const m = &comm->meter;
    const struct dsc_env *env;
    char line[512];
    int fd, n;

    if (dsc_env_get(&env) < 0 || env->net_meter[0] == '\0')
        return;
    n = snprintf(line, sizeof(line),
                 "{\"net\": \"%s\", \"role\": \"%s\", \"messages\": %llu, \"bytes\": %llu, "
                 "\"wire_bytes\": %llu, \"busy_ns\": %llu, \"host\": %llu, \"pid\": %d}\n",
                 wrap_inner()->name, comm->sends ? "send" : "receive",
                 (unsigned long long)m->messages, (unsigned long long)m->bytes,
                 (unsigned long long)m->wire_bytes, (unsigned long long)m->busy_ns,
                 (unsigned long long)(unsigned long)gethostid(), (int)getpid());
    fd = open(env->net_meter, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)n) != n) /* one write: lines do not mix */
        net_warn(NET_NAME ": cannot write to DSCOMM_NET_METER, %s", env->net_meter);
    if (fd >= 0)
        close(fd);
}
