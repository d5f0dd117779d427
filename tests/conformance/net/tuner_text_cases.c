/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuner files that differ between hosts may make ranks choose differently, and hang: processes that
 * connect say so, once each, with both hashes and file names. Of DSComm's plugin.
 */
#include <string.h>
#include <unistd.h>

#include "net_case.h"

#define TEXT_BYTES 512
#define HASH_DIGITS 16

static char paths[2][64]; /* the receiver's, the sender's */

static void write_rows(const char *path, int channels)
{
    FILE *const file = fopen(path, "we");

    CHECK(file != NULL && fprintf(file, "allreduce,0,65536,tree,ll,%d,-1,-1\n", channels) > 0 &&
              fclose(file) == 0,
          "%s", path);
}

static void prepare_own(bool sends)
{
    setenv("NCCL_TUNER_CONFIG_FILE", paths[sends], 1);
}

static void prepare_same(bool sends)
{
    (void)sends;
    setenv("NCCL_TUNER_CONFIG_FILE", paths[0], 1);
}

/* What stands before " NAME WORD" is the hash of that file. */
static void take_hash(const char *text, const char *name, const char *word,
                      char hash[HASH_DIGITS + 1])
{
    char wanted[128];
    const char *at;

    snprintf(wanted, sizeof(wanted), " %s %s", name, word);
    at = strstr(text, wanted);
    CHECK(at != NULL && at - text >= HASH_DIGITS, "no \"%s\" in: %s", wanted, text);
    memcpy(hash, at - HASH_DIGITS, HASH_DIGITS);
    hash[HASH_DIGITS] = '\0';
    CHECK(strspn(hash, "0123456789abcdef") == HASH_DIGITS, "no hash in: %s", text);
}

/* The other side's warning must name the same two the other way around. */
static void check_warning(struct side *side, bool sends)
{
    char mine[TEXT_BYTES] = "", other[TEXT_BYTES] = "";
    char own_hash[HASH_DIGITS + 1], peer_hash[HASH_DIGITS + 1], hash[HASH_DIGITS + 1];

    CHECK(n_warnings() == 1, "%d warnings, the last: %s", n_warnings(), last_warning());
    snprintf(mine, sizeof(mine), "%s", last_warning());
    move_bytes(side->socket, sends ? mine : other, TEXT_BYTES, sends);
    move_bytes(side->socket, sends ? other : mine, TEXT_BYTES, !sends);
    take_hash(mine, paths[sends], "here,", own_hash);
    take_hash(mine, paths[!sends], "at ", peer_hash);
    CHECK(strcmp(own_hash, peer_hash) != 0, "different files have one hash: %s", mine);
    take_hash(other, paths[sends], "at ", hash);
    CHECK(strcmp(own_hash, hash) == 0, "%s is not what the peer says: %s", mine, other);
}

static void connect_twice(struct side *side, bool sends)
{
    void *const again = sends ? side_connect(side) : side_accept(side);

    OK((sends ? net->close_send : net->close_recv)(again));
}

static void send_differs(struct side *side)
{
    connect_twice(side, true);
    check_warning(side, true);
}

static void receive_differs(struct side *side)
{
    connect_twice(side, false);
    check_warning(side, false);
}

static void no_warning(struct side *side)
{
    (void)side;
    CHECK(n_warnings() == 0, "%d warnings, the last: %s", n_warnings(), last_warning());
}

/* Another plugin's handshake, wrapped or not, is its own. */
static bool has_texts(void)
{
    load_plugin();
    return strcmp(net->name, "DSComm") == 0 && getenv("DSCOMM_NET_INNER") == NULL;
}

static void prepare_paths(void)
{
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/tmp/rows_%d.%d", i, (int)getpid());
        write_rows(paths[i], i + 1);
    }
    unsetenv("DSCOMM_PROFILE");
}

static void remove_paths(void)
{
    for (int i = 0; i < 2; i++)
        unlink(paths[i]);
}

static void case_tuner_files_differ(void)
{
    if (!has_texts())
        return;
    prepare_paths();
    run_prepared_sides(prepare_own, send_differs, receive_differs);
    remove_paths();
}

static void case_tuner_files_equal(void)
{
    if (!has_texts())
        return;
    prepare_paths();
    run_prepared_sides(prepare_same, no_warning, no_warning);
    remove_paths();
}

const struct net_test tuner_text_cases[] = {
    { "tuner_files_differ", case_tuner_files_differ },
    { "tuner_files_equal", case_tuner_files_equal },
    { 0 },
};
