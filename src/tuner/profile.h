/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profile: rates in a file, with the fingerprint of the machine and settings that they were
 * measured with. One that does not fit is not used. The file is JSON; docs/tuner.md has its fields.
 *
 *   fingerprint.c    what a measurement depends on, as texts    fingerprint_host.c   here
 *   profile_json.c   file text to profile and back       profile.c   files: where, load, save
 */
#ifndef DSC_PROFILE_H
#define DSC_PROFILE_H

#include "tuner/rates.h"

#define DSC_PROFILE_VERSION 3
#define DSC_PROFILE_BYTES_MAX 262144
#define DSC_PROFILE_PATH_BYTES 4096
#define DSC_PROFILE_WHY_BYTES 512

/* X(ENUM, "name in the file") */
#define DSC_FINGERPRINT_MAP(X)          \
    X(CPU_MODEL, "cpu_model")           \
    X(CPUS, "cpus")                     \
    X(ISA, "isa")                       \
    X(KERNEL, "kernel")                 \
    X(NICS, "nics")                     \
    X(RANKS_PER_HOST, "ranks_per_host") \
    X(TIERS, "tiers")                   \
    X(TRANSPORT, "transport")           \
    X(NSOCKS, "nsocks")                 \
    X(CRC, "crc")                       \
    X(THREADS, "threads")

enum dsc_fingerprint_field {
#define DSC_FINGERPRINT_ENUM(field, name) DSC_FINGERPRINT_##field,
    DSC_FINGERPRINT_MAP(DSC_FINGERPRINT_ENUM)
#undef DSC_FINGERPRINT_ENUM
        DSC_FINGERPRINT_N
};

#define DSC_FINGERPRINT_VALUE_BYTES 256

struct dsc_fingerprint {
    char values[DSC_FINGERPRINT_N][DSC_FINGERPRINT_VALUE_BYTES]; /* "": not known, fits any */
};

struct dsc_profile {
    struct dsc_fingerprint machine;
    struct dsc_rates rates;
};

const char *dsc_fingerprint_name(enum dsc_fingerprint_field field);
/*
 * What is known without a communicator: CPU, kernel, NICs of the topology, and the settings that
 * the environment gives. The rest is "".
 */
dscomm_status_t dsc_fingerprint_host(struct dsc_fingerprint *machine_out);
/* Cut to the room there is, characters that a file should not have replaced by '?'. */
DSC_SHARED void dsc_fingerprint_set(struct dsc_fingerprint *machine,
                                    enum dsc_fingerprint_field field, const char *value);
/* False: writes "cpus is 4 in the profile, 2 here" to why. */
bool dsc_fingerprint_fits(const struct dsc_fingerprint *file, const struct dsc_fingerprint *here,
                          char *why, size_t why_bytes);

/*
 * The path that DSCOMM_PROFILE gives, or the default one, profile-HASH.json with a hash of the
 * machine in the folder of profiles. False: there is none, and why: DSCOMM_PROFILE is none, or no
 * home is known.
 */
bool dsc_profile_path(const struct dsc_fingerprint *machine, char path[DSC_PROFILE_PATH_BYTES],
                      char *why, size_t why_bytes);
/* Of profiles with default names. False: as above. */
bool dsc_profile_folder(char path[DSC_PROFILE_PATH_BYTES], char *why, size_t why_bytes);

/*
 * Functions that take `why` write there in words why they return false, and log nothing: that a
 * profile is missing or stale may be an error or not. Files are untrusted.
 */
bool dsc_profile_parse(const char *text, size_t n_bytes, struct dsc_profile *profile_out, char *why,
                       size_t why_bytes);
bool dsc_profile_load(const char *path, struct dsc_profile *profile_out, char *why,
                      size_t why_bytes);
/* Rates of the profile for this machine; why names the file. */
bool dsc_profile_find(const struct dsc_fingerprint *here, struct dsc_rates *rates_out, char *why,
                      size_t why_bytes);

/* The text of a file, to be freed with free(); NULL: no memory. */
char *dsc_profile_text(const struct dsc_profile *profile);
/*
 * Makes the folders above, writes to a temporary file there and renames it: who reads at the same
 * time has the old one or the new one.
 *
 * DSCOMM_ERR_INVALID  rates out of range
 * DSCOMM_ERR_SYSTEM   cannot be written
 */
dscomm_status_t dsc_profile_save(const char *path, const struct dsc_profile *profile);

#endif
