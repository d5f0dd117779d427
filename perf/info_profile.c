/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What profiles say, and whether they fit this machine and the settings in the environment. Number
 * of ranks and tiers are a communicator's: they are shown, not judged.
 */
#include "info_profile.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rates_table.h"

enum { EXIT_FITS = 0, EXIT_DOES_NOT = 1, EXIT_USAGE = 2 };

static int show(const char *path, const struct dsc_fingerprint *here)
{
    struct dsc_profile *const profile = calloc(1, sizeof(*profile));
    char why[DSC_PROFILE_WHY_BYTES] = "no memory";
    int code = EXIT_DOES_NOT;

    printf("profile %s\n", path);
    if (profile == NULL || !dsc_profile_load(path, profile, why, sizeof(why))) {
        printf("refused: %s\n", why);
        free(profile);
        return code;
    }
    for (int i = 0; i < DSC_FINGERPRINT_N; i++)
        printf("  %-16s %s\n", dsc_fingerprint_name((enum dsc_fingerprint_field)i),
               profile->machine.values[i]);
    rates_table_print(&profile->rates);
    if (dsc_fingerprint_fits(&profile->machine, here, why, sizeof(why))) {
        printf("fits this machine, with %s ranks per host and tiers %s\n",
               profile->machine.values[DSC_FINGERPRINT_RANKS_PER_HOST],
               profile->machine.values[DSC_FINGERPRINT_TIERS]);
        code = EXIT_FITS;
    } else {
        printf("stale: %s\n", why);
    }
    free(profile);
    return code;
}

static int show_folder(const struct dsc_fingerprint *here)
{
    char folder[DSC_PROFILE_PATH_BYTES], path[DSC_PROFILE_PATH_BYTES + 256];
    char why[DSC_PROFILE_WHY_BYTES];
    DIR *dir;
    int code = EXIT_DOES_NOT, n = 0;

    if (!dsc_profile_folder(folder, why, sizeof(why))) {
        printf("no profiles: %s\n", why);
        return code;
    }
    dir = opendir(folder);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        const size_t len = strlen(e->d_name);

        if (strncmp(e->d_name, "profile-", 8) != 0 || len < 5 ||
            strcmp(e->d_name + len - 5, ".json") != 0)
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (n++ > 0)
            printf("\n");
        if (show(path, here) == EXIT_FITS)
            code = EXIT_FITS;
    }
    if (dir != NULL)
        (void)closedir(dir);
    if (n == 0)
        printf("no profiles in %s: link_perf writes them\n", folder);
    return code;
}

static int show_default(const struct dsc_fingerprint *here)
{
    const struct dsc_env *env;

    if (dsc_env_get(&env) < 0)
        return EXIT_DOES_NOT;
    if (strcmp(env->profile, "none") == 0) {
        printf("no profile: DSCOMM_PROFILE is none\n");
        return EXIT_DOES_NOT;
    }
    return env->profile[0] != '\0' ? show(env->profile, here) : show_folder(here);
}

int info_profile(int argc, char **argv)
{
    struct dsc_fingerprint here;
    int code = EXIT_FITS;

    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-') {
            (void)fprintf(stderr, "dscomm_info: --profile %s: allowed: names of files\n", argv[i]);
            return EXIT_USAGE;
        }
    if (dsc_fingerprint_host(&here) < 0)
        return EXIT_DOES_NOT;
    if (argc == 1)
        return show_default(&here);
    for (int i = 1; i < argc; i++)
        if (show(argv[i], &here) != EXIT_FITS)
            code = EXIT_DOES_NOT;
    return code;
}
