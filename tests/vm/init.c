/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process 1 of the test machine. Brings up two RoCE devices at the ends of a veth pair, says READY
 * on the port `control` and waits: this is the state that is saved and restored. A job is then
 * "JOB BYTES\n" and so many bytes of NUL-ended words: the time, how many bytes may be locked, the
 * working directory, the number of arguments, these, the environment. It sees the host's files,
 * and what it writes is lost. The answer is "RC N\n".
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MAX 4096

static int control_fd = -1;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    char line[512];
    va_list args;

    va_start(args, fmt);
    const int n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (write(control_fd >= 0 ? control_fd : STDERR_FILENO, line, (size_t)n) != n)
        perror("control port");
}

/* The host reads the reason and ends the machine. */
static void give_up(const char *what)
{
    say("FAILED %s: %s\n", what, strerror(errno));
    for (;;)
        pause();
}

static void must(bool ok, const char *what)
{
    if (!ok)
        give_up(what);
}

static void make_dir(const char *path)
{
    must(mkdir(path, 0755) == 0 || errno == EEXIST, path);
}

static void write_file(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);

    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(fd);
}

static void mount_at(const char *type, const char *path, const char *options)
{
    make_dir(path);
    must(mount(type, path, type, 0, options) == 0, path);
}

static int run(char *const argv[])
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0) {
        execv(argv[0], argv);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* ---- before the state is saved ---- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_modules(void)
{
    struct dirent **names = NULL;
    const int n = scandir("/modules", &names, NULL, by_name);

    for (int i = 0; i < n; i++) {
        char path[300];

        if (names[i]->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/modules/%s", names[i]->d_name);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);

        must(fd >= 0 && (syscall(SYS_finit_module, fd, "", 0) == 0 || errno == EEXIST), path);
        close(fd);
    }
}

/* The device of the virtio-serial port that has this name, which it gets a little after boot. */
static int open_port(const char *wanted)
{
    for (int attempt = 0; attempt < 200; attempt++, usleep(50000)) {
        DIR *const dir = opendir("/sys/class/virtio-ports");
        const struct dirent *entry;

        while (dir != NULL && (entry = readdir(dir)) != NULL) {
            char path[320], name[64] = "";
            FILE *file;

            snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
            file = fopen(path, "re");
            if (file == NULL)
                continue;
            const bool found = fscanf(file, "%63s", name) == 1 && strcmp(name, wanted) == 0;

            fclose(file);
            snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
            const int fd = found ? open(path, O_RDWR | O_CLOEXEC) : -1;

            if (fd >= 0) {
                closedir(dir);
                return fd;
            }
        }
        if (dir != NULL)
            closedir(dir);
    }
    give_up(wanted);
    return -1;
}

/*
 * Both ends of the pair are in one namespace, as rxe of this kernel works in the first one alone;
 * it looks routes up by device, so that packets cross the pair all the same.
 */
static void make_network(void)
{
    char *const links[] = { "/bin/ip", "-batch", "/etc/ip.batch", NULL };

    write_file("/proc/sys/net/ipv4/conf/all/rp_filter", "0");
    write_file("/proc/sys/net/ipv4/conf/default/rp_filter", "0");
    write_file("/proc/sys/net/ipv4/conf/all/accept_local", "1");
    write_file("/proc/sys/net/ipv4/conf/default/accept_local", "1");
    write_file("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
    write_file("/proc/sys/net/core/rmem_max", "67108864");
    write_file("/proc/sys/net/core/rmem_default", "8388608");
    write_file("/proc/sys/net/core/netdev_max_backlog", "10000");
    must(run(links) == 0, "ip -batch");
    for (int i = 0; i < 2; i++) {
        char rxe[8], veth[8], path[64];
        char *const add[] = {
            "/bin/rdma", "link", "add", rxe, "type", "rxe", "netdev", veth, NULL
        };

        snprintf(rxe, sizeof(rxe), "rxe%d", i);
        snprintf(veth, sizeof(veth), "veth%d", i);
        must(run(add) == 0, "rdma link add");
        /* one CPU per link: two would reorder its packets, which looks like loss */
        snprintf(path, sizeof(path), "/sys/class/net/veth%d/queues/rx-0/rps_cpus", i);
        write_file(path, i == 0 ? "1" : "2");
    }
}

/* What handles packets goes before whoever polls busily, else it waits for a time slice. */
static void packets_first(void)
{
    DIR *const dir = opendir("/proc");
    const struct sched_param first = { .sched_priority = 1 };
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300], name[32] = "";
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
        file = fopen(path, "re");
        if (file == NULL)
            continue;
        if (fscanf(file, "%31s", name) == 1 && strncmp(name, "ksoftirqd/", 10) == 0)
            (void)sched_setscheduler(atoi(entry->d_name), SCHED_FIFO, &first);
        fclose(file);
    }
    if (dir != NULL)
        closedir(dir);
}

/* ---- the job ---- */

static void read_exactly(char *buf, size_t n)
{
    for (size_t got = 0; got < n;) {
        const ssize_t part = read(control_fd, buf + got, n - got);

        if (part > 0)
            got += (size_t)part;
        else if (part == 0)
            usleep(10000); /* nobody at the other end yet */
        else
            must(errno == EINTR || errno == EAGAIN, "read job");
    }
}

static char *read_job(size_t *bytes_out)
{
    char line[32] = "";
    size_t n = 0;

    for (; n < sizeof(line) - 1; n++) {
        read_exactly(line + n, 1);
        if (line[n] == '\n')
            break;
    }
    line[n] = '\0';
    must(sscanf(line, "JOB %zu", bytes_out) == 1, line);
    char *const job = malloc(*bytes_out + 1);

    must(job != NULL, "memory");
    read_exactly(job, *bytes_out);
    job[*bytes_out] = '\0';
    return job;
}

/* The host's tree, under a layer that takes what is written. */
static void enter_root(void)
{
    static const char *const kept[] = { "dev", "proc", "sys" };

    make_dir("/lower");
    must(mount("hostroot", "/lower", "9p", MS_RDONLY,
               "trans=virtio,version=9p2000.L,msize=262144,cache=loose") == 0,
         "mount the host's tree");
    mount_at("tmpfs", "/over", "size=80%");
    make_dir("/over/up");
    make_dir("/over/work");
    make_dir("/newroot");
    must(mount("overlay", "/newroot", "overlay", 0,
               "lowerdir=/lower,upperdir=/over/up,workdir=/over/work,xino=off") == 0,
         "overlay");
    for (size_t i = 0; i < 3; i++) {
        char from[16], to[32];

        snprintf(from, sizeof(from), "/%s", kept[i]);
        snprintf(to, sizeof(to), "/newroot/%s", kept[i]);
        make_dir(to);
        must(mount(from, to, NULL, MS_BIND | MS_REC, NULL) == 0, to);
    }
    mount_at("tmpfs", "/newroot/run", "mode=755");
    must(chroot("/newroot") == 0, "chroot");
}

static void set_clock(const char *seconds)
{
    struct timespec now = { 0 };

    if (sscanf(seconds, "%ld", &now.tv_sec) == 1)
        (void)clock_settime(CLOCK_REALTIME, &now);
}

static void limit_locked(const char *bytes)
{
    const rlim_t n = strcmp(bytes, "unlimited") == 0 ? RLIM_INFINITY : strtoull(bytes, NULL, 10);
    const struct rlimit limit = { n, n };

    must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "RLIMIT_MEMLOCK");
}

static int run_job(char *words[], size_t n_words)
{
    const size_t n_args = n_words > 3 ? strtoul(words[3], NULL, 10) : 0;
    char *argv[WORDS_MAX];
    int status = 0;

    must(n_args > 0 && 4 + n_args <= n_words, "job");
    memcpy(argv, words + 4, n_args * sizeof(*argv));
    argv[n_args] = NULL;
    const pid_t pid = fork();

    must(pid >= 0, "fork");
    if (pid == 0) {
        setsid();
        environ = words + 4 + n_args; /* its PATH finds the program */
        if (chdir(words[2]) == 0)
            execvp(argv[0], argv);
        fprintf(stderr, "%s in %s: %s\n", argv[0], words[2], strerror(errno));
        _exit(127);
    }
    while (wait(&status) != pid)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
    char *words[WORDS_MAX + 1];
    size_t bytes = 0, n = 0;

    mount_at("devtmpfs", "/dev", "");
    mount_at("proc", "/proc", "");
    mount_at("sysfs", "/sys", "");
    load_modules();
    control_fd = open_port("control");
    mount_at("tmpfs", "/dev/shm", "mode=1777");
    make_network();
    packets_first();
    write_file("/proc/sys/vm/drop_caches", "3");
    say("READY\n");

    char *const job = read_job(&bytes);

    for (char *at = job; at < job + bytes && n < WORDS_MAX; at += strlen(at) + 1)
        words[n++] = at;
    words[n] = NULL;
    must(n > 3, "job");
    set_clock(words[0]);
    limit_locked(words[1]);
    const int out = open_port("out"), err = open_port("err");

    must(dup2(open("/dev/null", O_RDONLY), 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2,
         "output");
    enter_root();
    const int rc = run_job(words, n);

    sync();
    say("RC %d\n", rc);
    for (;;)
        pause();
}
