/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splitting, and how hosts do it: ranks tell each other color and key over the communicator, the
 * first member of each color opens a rendezvous and tells its id, and each color joins there. The
 * new communicator has sockets, memory and failures of its own.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank says of itself. */
#define COLOR_BYTES (2 * sizeof(uint32_t))
/* A flag that says whether there is an id, then the id. */
#define ID_BYTES (1 + sizeof(dscomm_unique_id_t))

struct split {
    struct dscomm_comm *comm;
    struct dsc_split_member *members; /* [n_ranks] what all said */
    int n, rank, leader;              /* of this rank's color; leader: rank in comm */
};

/* In a turn of its own: calls that were issued before run first. */
static dscomm_status_t gather(struct dscomm_comm *comm, const void *own, size_t n, uint8_t *all)
{
    const uint32_t ticket = dsc_turns_take(&comm->turns);
    dscomm_status_t st;

    dsc_turns_wait(&comm->turns, ticket);
    st = dsc_comm_check(comm);
    if (st == DSCOMM_OK)
        st = dsc_comm_gather(comm, own, n, all);
    dsc_turns_end(&comm->turns, ticket);
    return st;
}

static dscomm_status_t gather_members(struct split *s, int color, int key)
{
    const struct dsc_split_member own = { color, key };

    _Static_assert(sizeof(own) == COLOR_BYTES, "a member is what is sent of it");
    return gather(s->comm, &own, sizeof(own), (uint8_t *)s->members);
}

static bool comes_before(const struct split *s, int a, int b)
{
    const struct dsc_split_member *const x = &s->members[a], *const y = &s->members[b];

    return x->key != y->key ? x->key < y->key : a < b;
}

/* Place of this rank among those of its color: by key, then by rank. */
static void find_place(struct split *s)
{
    const int me = s->comm->rank;

    s->leader = me;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        if (s->members[r].color != s->members[me].color)
            continue;
        s->n++;
        s->rank += r != me && comes_before(s, r, me);
        if (comes_before(s, r, s->leader))
            s->leader = r;
    }
}

struct placed {
    int key, rank;
};

static int compare_placed(const void *a, const void *b)
{
    const struct placed *const x = a, *const y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

char *dsc_split_tiers(const struct dscomm_comm *comm, const struct dsc_split_member *members)
{
    const size_t n_ranks = (size_t)comm->n_ranks;
    struct placed *const placed = dsc_calloc(DSC_MEM_COMM, n_ranks, sizeof(*placed));
    int *const ranks = dsc_calloc(DSC_MEM_COMM, n_ranks, sizeof(*ranks));
    char *text = NULL;
    int n = 0;

    if (placed != NULL && ranks != NULL) {
        for (int r = 0; r < comm->n_ranks; r++)
            if (members[r].color == members[comm->rank].color)
                placed[n++] = (struct placed){ members[r].key, r };
        qsort(placed, (size_t)n, sizeof(*placed), compare_placed);
        for (int i = 0; i < n; i++)
            ranks[i] = placed[i].rank;
        text = dsc_tiers_of_some(comm, ranks, n);
    }
    dsc_free(placed);
    dsc_free(ranks);
    return text;
}

/* The peers are told, for they wait for this rank. */
static dscomm_status_t no_memory(struct dscomm_comm *comm)
{
    return dsc_comm_fail(comm, NULL,
                         dsc_fail(DSCOMM_ERR_NO_MEMORY, "splitting %d ranks", comm->n_ranks), -1);
}

/* A leader that cannot open a rendezvous says so, that nobody waits for it. */
static dscomm_status_t share_id(struct split *s, bool is_member, dscomm_unique_id_t *id_out)
{
    const int me = s->comm->rank;
    uint8_t own[ID_BYTES] = { 0 };
    uint8_t *const all = dsc_calloc(DSC_MEM_COMM, (size_t)s->comm->n_ranks, ID_BYTES);
    dscomm_status_t opened = DSCOMM_OK, st;

    if (all == NULL)
        return no_memory(s->comm);
    if (is_member && s->leader == me)
        opened = dscomm_unique_id_create(id_out);
    own[0] = opened == DSCOMM_OK;
    memcpy(own + 1, id_out, sizeof(*id_out));
    st = gather(s->comm, own, sizeof(own), all);
    if (st == DSCOMM_OK && is_member && all[(size_t)s->leader * ID_BYTES] == 0)
        st = opened < 0 ? opened
                        : dsc_fail(DSCOMM_ERR_SYSTEM,
                                   "rank %d, the first of color %d, could not open a rendezvous",
                                   s->leader, s->members[me].color);
    memcpy(id_out, all + (size_t)s->leader * ID_BYTES + 1, sizeof(*id_out));
    dsc_free(all);
    return st;
}

dscomm_status_t dsc_comm_split_host(struct dscomm_comm *comm, int color, int key,
                                    const dscomm_comm_config_t *config, dscomm_comm_t **comm_out)
{
    struct split s = { .comm = comm };
    dscomm_unique_id_t id = { { 0 } };
    dscomm_status_t st;
    char *tiers = NULL;

    s.members = dsc_calloc(DSC_MEM_COMM, (size_t)comm->n_ranks, sizeof(*s.members));
    if (s.members == NULL)
        return no_memory(comm);
    st = gather_members(&s, color, key);
    if (st == DSCOMM_OK) {
        find_place(&s);
        st = share_id(&s, color >= 0, &id);
    }
    if (st == DSCOMM_OK && color >= 0)
        tiers = dsc_split_tiers(comm, s.members);
    dsc_free(s.members);
    if (st < 0)
        return st;
    if (color < 0) {
        *comm_out = NULL;
        return DSCOMM_OK;
    }
    if (tiers == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "tiers of %d ranks", s.n);
    st = dsc_comm_create(s.n, s.rank, &id, config, tiers, comm_out);
    dsc_free(tiers);
    return st;
}

dscomm_status_t dscomm_comm_split(dscomm_comm_t *comm, int color, int key,
                                  const dscomm_comm_config_t *config, dscomm_comm_t **comm_out)
{
    dscomm_comm_config_t inherited;

    if (comm_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm_out is NULL");
    DSC_TRY(dsc_comm_check(comm));
    if (dsc_group_is_open())
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "a split inside a group");
    if (config != NULL)
        DSC_TRY(dsc_comm_check_config(config));
    dsc_comm_config_of(comm, &inherited);
    return comm->backend->split(comm, color, key, config != NULL ? config : &inherited, comm_out);
}
