/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of profiles: where they are, load, save.
 */
#include "tuner/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- where ---- */

bool dsc_profile_folder(char path[DSC_PROFILE_PATH_BYTES], char *why, size_t why_bytes)
{
    const char *const cache = dsc_env_launcher("XDG_CACHE_HOME");
    const char *const home = dsc_env_launcher("HOME");
    int n;

    if (cache != NULL && cache[0] == '/') /* a relative one is to be ignored, says its standard */
        n = snprintf(path, DSC_PROFILE_PATH_BYTES, "%s/dscomm", cache);
    else if (home != NULL && home[0] == '/')
        n = snprintf(path, DSC_PROFILE_PATH_BYTES, "%s/.cache/dscomm", home);
    else {
        snprintf(why, why_bytes, "neither XDG_CACHE_HOME nor HOME names a folder");
        return false;
    }
    if (n >= DSC_PROFILE_PATH_BYTES - 64) {
        snprintf(why, why_bytes, "the path below XDG_CACHE_HOME or HOME is too long");
        return false;
    }
    return true;
}

/* Of all values with their names, so that a value never passes for another field's. */
static uint64_t hash_machine(const struct dsc_fingerprint *machine)
{
    char text[DSC_FINGERPRINT_N * (DSC_FINGERPRINT_VALUE_BYTES + 24)];
    size_t used = 0;

    for (int i = 0; i < DSC_FINGERPRINT_N; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s=%s\n",
                                 dsc_fingerprint_name((enum dsc_fingerprint_field)i),
                                 machine->values[i]);
    return dsc_hash_text(text);
}

bool dsc_profile_path(const struct dsc_fingerprint *machine, char path[DSC_PROFILE_PATH_BYTES],
                      char *why, size_t why_bytes)
{
    const struct dsc_env *env;
    size_t used;

    if (dsc_env_get(&env) < 0) {
        snprintf(why, why_bytes, "%s", dscomm_last_error());
        return false;
    }
    if (strcmp(env->profile, "none") == 0) {
        snprintf(why, why_bytes, "DSCOMM_PROFILE is none");
        return false;
    }
    if (env->profile[0] != '\0') {
        snprintf(path, DSC_PROFILE_PATH_BYTES, "%s", env->profile);
        return true;
    }
    if (!dsc_profile_folder(path, why, why_bytes))
        return false;
    used = strlen(path);
    snprintf(path + used, DSC_PROFILE_PATH_BYTES - used, "/profile-%012llx.json",
             (unsigned long long)(hash_machine(machine) >> 16));
    return true;
}

/* ---- load ---- */

/* The whole file; -1: errno says why, or 0 where it is no file. One byte more than allowed tells.
 */
static ssize_t read_whole(const char *path, char *text, size_t text_bytes)
{
    /* a pipe of that name must not make us wait */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    size_t used = 0;
    ssize_t n = -1;

    if (fd < 0)
        return -1;
    errno = 0;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        while ((n = read(fd, text + used, text_bytes - used)) > 0)
            used += (size_t)n;
    close(fd);
    return n < 0 ? -1 : (ssize_t)used;
}

bool dsc_profile_load(const char *path, struct dsc_profile *profile_out, char *why,
                      size_t why_bytes)
{
    char *const text = dsc_calloc(DSC_MEM_TUNER, 1, DSC_PROFILE_BYTES_MAX + 1);
    ssize_t n;
    bool ok = false;

    if (text == NULL) {
        snprintf(why, why_bytes, "no memory");
        return false;
    }
    n = read_whole(path, text, DSC_PROFILE_BYTES_MAX + 1);
    if (n < 0)
        snprintf(why, why_bytes, "%s", errno == 0 ? "is no regular file" : strerror(errno));
    else
        ok = dsc_profile_parse(text, (size_t)n, profile_out, why, why_bytes);
    dsc_free(text);
    return ok;
}

bool dsc_profile_find(const struct dsc_fingerprint *here, struct dsc_rates *rates_out, char *why,
                      size_t why_bytes)
{
    char path[DSC_PROFILE_PATH_BYTES], reason[DSC_PROFILE_WHY_BYTES];
    struct dsc_profile *profile;
    bool ok;

    if (!dsc_profile_path(here, path, why, why_bytes))
        return false;
    profile = dsc_calloc(DSC_MEM_TUNER, 1, sizeof(*profile));
    if (profile == NULL) {
        snprintf(why, why_bytes, "no memory");
        return false;
    }
    ok = dsc_profile_load(path, profile, reason, sizeof(reason)) &&
         dsc_fingerprint_fits(&profile->machine, here, reason, sizeof(reason));
    if (ok)
        *rates_out = profile->rates;
    else
        snprintf(why, why_bytes, "profile %s: %s", path, reason);
    dsc_free(profile);
    return ok;
}

/* ---- save ---- */

/* Those above the file; one that is there is no error, others show when the file is made. */
static void make_folders(const char *path)
{
    char folder[DSC_PROFILE_PATH_BYTES];

    snprintf(folder, sizeof(folder), "%s", path);
    for (char *c = folder + 1; *c != '\0'; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        (void)mkdir(folder, 0700);
        *c = '/';
    }
}

static bool write_whole(int fd, const char *text)
{
    const size_t n = strlen(text);
    size_t done = 0;

    while (done < n) {
        const ssize_t wrote = write(fd, text + done, n - done);

        if (wrote < 0 && errno != EINTR)
            return false;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return true;
}

static dscomm_status_t write_file(const char *path, const char *text)
{
    char temporary[DSC_PROFILE_PATH_BYTES + 24];
    dscomm_status_t st = DSCOMM_OK;
    int fd;

    make_folders(path);
    snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "profile %s", temporary);
    if (!write_whole(fd, text))
        st = dsc_fail_errno(DSCOMM_ERR_SYSTEM, "profile %s", temporary);
    if (close(fd) != 0 && st == DSCOMM_OK)
        st = dsc_fail_errno(DSCOMM_ERR_SYSTEM, "profile %s", temporary);
    if (st == DSCOMM_OK && rename(temporary, path) != 0)
        st = dsc_fail_errno(DSCOMM_ERR_SYSTEM, "profile %s", path);
    if (st < 0)
        (void)unlink(temporary);
    return st;
}

dscomm_status_t dsc_profile_save(const char *path, const struct dsc_profile *profile)
{
    char why[DSC_PROFILE_WHY_BYTES];
    dscomm_status_t st;
    char *text;

    if (!dsc_rates_check(&profile->rates, why, sizeof(why)))
        return dsc_fail(DSCOMM_ERR_INVALID, "profile %s: rates.%s", path, why);
    if (strlen(path) >= DSC_PROFILE_PATH_BYTES)
        return dsc_fail(DSCOMM_ERR_INVALID, "path of %zu characters, at most %d", strlen(path),
                        DSC_PROFILE_PATH_BYTES - 1);
    text = dsc_profile_text(profile);
    if (text == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "profile %s", path);
    st = write_file(path, text);
    free(text);
    return st;
}
