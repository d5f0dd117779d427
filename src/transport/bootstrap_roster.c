/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the ranks of a rendezvous. Each is compared with the first that came, and an error names
 * both ranks and both values: whoever reads it on any rank knows which two processes to look at.
 */
#include "transport/bootstrap_roster.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#define NAMED_MISSING_MAX 16u
#define TIMEOUT_MS_MAX 86400000u /* as in env.def */

void dsc_roster_init(struct dsc_roster *roster, uint64_t deadline_ns)
{
    *roster = (struct dsc_roster){ .deadline_ns = deadline_ns, .status = DSCOMM_IN_PROGRESS };
}

void dsc_roster_fini(struct dsc_roster *roster)
{
    dsc_free(roster->is_here);
    dsc_free(roster->infos);
}

void dsc_roster_fail(struct dsc_roster *roster, dscomm_status_t status, const char *fmt, ...)
{
    va_list args;

    if (dsc_roster_is_decided(roster))
        return;
    va_start(args, fmt);
    vsnprintf(roster->text, sizeof(roster->text), fmt, args);
    va_end(args);
    roster->status = status;
}

/* Value of a key in "key=value key=value"; its length in n_out. NULL: the key is not there. */
static const char *find_value(const char *settings, const char *key, size_t n_key, size_t *n_out)
{
    for (const char *p = settings; *p != '\0';) {
        const size_t n = strcspn(p, " ");

        if (n > n_key && p[n_key] == '=' && strncmp(p, key, n_key) == 0) {
            *n_out = n - n_key - 1;
            return p + n_key + 1;
        }
        p += n;
        p += strspn(p, " ");
    }
    return NULL;
}

/*
 * Fails for the first key of `a` whose value in `b` is another or is not there. The lower rank is
 * named first, whichever came first, so that the text of a mistake does not depend on the race.
 */
static void compare_settings(struct dsc_roster *roster, const char *a, uint32_t rank_a,
                             const char *b, uint32_t rank_b)
{
    for (const char *p = a; *p != '\0' && !dsc_roster_is_decided(roster);) {
        const size_t n = strcspn(p, " ");
        const size_t n_key = dsc_min_size(strcspn(p, "="), n);
        const char *value_a = p + n_key + (n_key < n);
        size_t n_a = n - n_key - (n_key < n), n_b = 0;
        const char *value_b = find_value(b, p, n_key, &n_b);

        if (value_b == NULL) {
            value_b = "(not set)";
            n_b = strlen(value_b);
        }
        if (n_a != n_b || memcmp(value_a, value_b, n_a) != 0) {
            const bool swap = rank_b < rank_a;

            dsc_roster_fail(roster, DSCOMM_ERR_MISMATCH,
                            "ranks disagree on %.*s: rank %u has %.*s, rank %u has %.*s",
                            (int)n_key, p, swap ? rank_b : rank_a, (int)(swap ? n_b : n_a),
                            swap ? value_b : value_a, swap ? rank_a : rank_b,
                            (int)(swap ? n_a : n_b), swap ? value_a : value_b);
        }
        p += n;
        p += strspn(p, " ");
    }
}

/* The first rank says how many there are. */
static void open_roster(struct dsc_roster *roster, const struct dsc_record *record)
{
    if (record->n_ranks == 0 || record->n_ranks > DSC_MAX_RANKS) {
        dsc_roster_fail(roster, DSCOMM_ERR_INVALID, "world size %u of rank %u is not 1 to %d",
                        record->n_ranks, record->rank, DSC_MAX_RANKS);
        return;
    }
    roster->is_here = dsc_calloc(DSC_MEM_TRANSPORT, record->n_ranks, sizeof(*roster->is_here));
    roster->infos = dsc_calloc(DSC_MEM_TRANSPORT, record->n_ranks, sizeof(*roster->infos));
    if (roster->is_here == NULL || roster->infos == NULL) {
        dsc_roster_fail(roster, DSCOMM_ERR_NO_MEMORY, "the rendezvous has no memory for %u ranks",
                        record->n_ranks);
        return;
    }
    roster->n_ranks = record->n_ranks;
    roster->first_rank = record->rank;
    memcpy(roster->settings, record->settings, sizeof(roster->settings));
}

static void check_identity(struct dsc_roster *roster, const struct dsc_record *record)
{
    char was[DSC_ADDR_TEXT_BYTES], is[DSC_ADDR_TEXT_BYTES];
    union dsc_addr addr;

    if (record->n_ranks != roster->n_ranks) {
        const bool swap = record->rank < roster->first_rank;

        dsc_roster_fail(
            roster, DSCOMM_ERR_MISMATCH,
            "ranks disagree on the world size: rank %u has %u, rank %u has %u",
            swap ? record->rank : roster->first_rank, swap ? record->n_ranks : roster->n_ranks,
            swap ? roster->first_rank : record->rank, swap ? roster->n_ranks : record->n_ranks);
    } else if (record->rank >= roster->n_ranks) {
        dsc_roster_fail(roster, DSCOMM_ERR_MISMATCH, "rank %u is not 0 to %u, the world size is %u",
                        record->rank, roster->n_ranks - 1, roster->n_ranks);
    } else if (roster->is_here[record->rank]) {
        const struct dsc_peer_info *const other = &roster->infos[record->rank];

        memcpy(addr.bytes, other->addr, sizeof(addr.bytes));
        dsc_addr_text(&addr, was);
        memcpy(addr.bytes, record->info.addr, sizeof(addr.bytes));
        dsc_roster_fail(roster, DSCOMM_ERR_MISMATCH,
                        "rank %u is used twice: by process %u at %s and by process %u at %s",
                        record->rank, other->pid, was, record->info.pid, dsc_addr_text(&addr, is));
    }
}

/* A listener on loopback that another host should reach is found out now, not in a timeout. */
static void check_reachable(struct dsc_roster *roster)
{
    const struct dsc_peer_info *local = NULL, *remote = NULL;

    for (uint32_t i = 0; i < roster->n_ranks; i++) {
        union dsc_addr addr;

        memcpy(addr.bytes, roster->infos[i].addr, sizeof(addr.bytes));
        if (dsc_addr_is_loopback(&addr) && local == NULL)
            local = &roster->infos[i];
        if (!dsc_addr_is_loopback(&addr) && remote == NULL)
            remote = &roster->infos[i];
    }
    if (local == NULL || remote == NULL || strcmp(local->host_id, remote->host_id) == 0)
        return;
    dsc_roster_fail(roster, DSCOMM_ERR_MISMATCH,
                    "rank %d listens on loopback, which rank %d on another host cannot reach; set "
                    "DSCOMM_SOCKET_IFNAME or MASTER_ADDR",
                    (int)(local - roster->infos), (int)(remote - roster->infos));
}

static void check_version(struct dsc_roster *roster, const struct dsc_record *record)
{
    char theirs[16], ours[16];

    if (record->version == dsc_bootstrap_version())
        return;
    dsc_roster_fail(roster, DSCOMM_ERR_MISMATCH,
                    "ranks disagree on the version: rank %u has %s, the rendezvous has %s",
                    record->rank, dsc_bootstrap_version_text(record->version, theirs),
                    dsc_bootstrap_version_text(dsc_bootstrap_version(), ours));
}

static void keep_time(struct dsc_roster *roster, uint32_t timeout_ms)
{
    const uint64_t now = dsc_now_ns();
    /* A peer's word: no longer than a setting may be. */
    const uint64_t deadline = now + dsc_min_u64(timeout_ms, TIMEOUT_MS_MAX) * 1000000u;

    if (roster->first_ns == 0) {
        roster->first_ns = now;
        roster->deadline_ns = deadline;
    }
    roster->deadline_ns = dsc_min_u64(roster->deadline_ns, deadline);
}

void dsc_roster_admit(struct dsc_roster *roster, const struct dsc_record *record)
{
    roster->n_records++;
    if (record->n_ranks > roster->max_ranks && record->n_ranks <= DSC_MAX_RANKS)
        roster->max_ranks = record->n_ranks;
    keep_time(roster, record->timeout_ms);
    check_version(roster, record);
    if (!dsc_roster_is_decided(roster) && roster->n_ranks == 0)
        open_roster(roster, record);
    if (!dsc_roster_is_decided(roster))
        check_identity(roster, record);
    compare_settings(roster, roster->settings, roster->first_rank, record->settings, record->rank);
    compare_settings(roster, record->settings, record->rank, roster->settings, roster->first_rank);
    if (dsc_roster_is_decided(roster))
        return;

    roster->is_here[record->rank] = true;
    roster->infos[record->rank] = record->info;
    roster->n_admitted++;
    if (roster->n_admitted < roster->n_ranks)
        return;
    check_reachable(roster);
    if (!dsc_roster_is_decided(roster))
        roster->status = DSCOMM_OK;
}

void dsc_roster_expire(struct dsc_roster *roster)
{
    const double waited_s = (double)(dsc_now_ns() - roster->first_ns) * 1e-9;
    const uint32_t n_missing = roster->n_ranks - roster->n_admitted;
    char names[16 * NAMED_MISSING_MAX] = "";
    char more[32] = "";
    size_t used = 0;
    uint32_t n_named = 0;

    for (uint32_t i = 0; i < roster->n_ranks && n_named < NAMED_MISSING_MAX; i++) {
        if (roster->is_here[i])
            continue;
        used += (size_t)snprintf(names + used, sizeof(names) - used, " %u", i);
        n_named++;
    }
    if (n_missing > n_named)
        snprintf(more, sizeof(more), " and %u more", n_missing - n_named);
    dsc_roster_fail(roster, DSCOMM_ERR_TIMEOUT, "rank%s%s%s never came, waited %.1f s",
                    n_missing > 1 ? "s" : "", names, more, waited_s);
}

/* Its random number tells this job's connections from those of an earlier one at the same port. */
static uint64_t new_job(void)
{
    uint64_t job = 0;

    while (job == 0)
        randombytes_buf(&job, sizeof(job));
    return job;
}

uint8_t *dsc_roster_answer(const struct dsc_roster *roster, size_t *bytes_out)
{
    const size_t prefix = DSC_FRAME_BYTES + DSC_ANSWER_PREFIX_BYTES;
    const bool is_table = roster->status == DSCOMM_OK;
    const size_t body =
        is_table ? (size_t)roster->n_ranks * DSC_PEER_WIRE_BYTES : strlen(roster->text);
    const struct dsc_answer answer = { roster->status, roster->n_ranks, new_job() };
    uint8_t *const wire = dsc_calloc(DSC_MEM_TRANSPORT, 1, prefix + body);

    if (wire == NULL)
        return NULL;
    dsc_answer_encode(&answer, body, wire);
    if (!is_table)
        memcpy(wire + prefix, roster->text, body);
    for (uint32_t i = 0; is_table && i < roster->n_ranks; i++)
        dsc_peer_info_encode(&roster->infos[i], wire + prefix + i * (size_t)DSC_PEER_WIRE_BYTES);
    *bytes_out = prefix + body;
    return wire;
}
