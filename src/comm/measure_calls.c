/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call costs besides its messages and elements.
 */
#include "comm/measure.h"

#define SMALL_ELEMS 16 /* a call whose elements cost nothing */
/* A call of many operations whose elements cost next to nothing, for each rank: */
#define MANY_CHUNK_ELEMS 256
#define MANY_CHUNKS 8
#define CALLS_PER_ROUND 16

struct call_cost {
    uint64_t cpu_ns;      /* of one call; here and below the mean of all ranks */
    uint64_t messages_ns; /* what its messages take by themselves */
    uint64_t n_ops;
};

static uint64_t less(uint64_t a, uint64_t b)
{
    return a - dsc_min_u64(a, b);
}

/* The tier that joins two ranks. */
static int tier_between(const struct dscomm_comm *comm, int a, int b)
{
    for (int t = 0; t < comm->tiers.n_tiers; t++) {
        const int *const group = comm->tiers.groups + (size_t)t * (size_t)comm->n_ranks;

        if (group[a] == group[b])
            return t;
    }
    return comm->tiers.n_tiers - 1;
}

static uint64_t messages_ns(const struct dsc_meter *m, const struct dscomm_plan *plan)
{
    uint64_t ns = 0;

    for (int i = 0; i < plan->n_peers; i++)
        ns += (uint64_t)(plan->n_tx[i] + plan->n_rx[i]) *
              m->rates->tiers[tier_between(m->comm, m->comm->rank, plan->peers[i])].message_ns;
    return ns;
}

static dscomm_status_t time_calls(struct dsc_meter *m, const struct dsc_shape *shape, float *vector,
                                  struct call_cost *cost_out)
{
    uint64_t rounds[DSC_ROUNDS_MAX];
    struct dsc_plan_entry *entry;
    struct dsc_agreed agreed;

    for (uint32_t i = 0; i < m->n_rounds; i++) {
        uint64_t cpu;

        DSC_TRY(dsc_meter_agree(m, 0, &agreed));
        DSC_TRY(dsc_comm_plan(m->comm, shape, &entry));
        cpu = dsc_thread_cpu_ns();
        for (int k = 0; k < CALLS_PER_ROUND; k++) {
            struct dsc_call call = { .send = vector, .recv = vector };

            DSC_TRY(dsc_comm_execute(m->comm, entry, &call));
        }
        rounds[i] = (dsc_thread_cpu_ns() - cpu) / CALLS_PER_ROUND;
    }
    DSC_TRY(dsc_meter_agree(m, entry->plan->n_ops, &agreed));
    cost_out->n_ops = agreed.mean;
    DSC_TRY(dsc_meter_agree(m, messages_ns(m, entry->plan), &agreed));
    cost_out->messages_ns = agreed.mean;
    DSC_TRY(dsc_meter_agree(m, dsc_quartile(rounds, m->n_rounds), &agreed)); /* others only add */
    cost_out->cpu_ns = agreed.mean;
    return DSCOMM_OK;
}

/* Of a call, its messages and operations taken off. */
static uint64_t rest_ns(const struct call_cost *c, uint64_t op_ns)
{
    return less(c->cpu_ns, c->messages_ns + c->n_ops * op_ns);
}

/* What is besides messages and elements, of calls with one stage, two, and many operations. */
static void solve(struct dsc_rates *rates, const struct call_cost *one, const struct call_cost *two,
                  const struct call_cost *many)
{
    const uint64_t ops = dsc_max_size(1, less(many->n_ops, two->n_ops));
    const uint64_t op_ns = less(rest_ns(many, 0), rest_ns(two, 0)) / ops;
    const uint64_t of_one = rest_ns(one, op_ns);
    const uint64_t stage_ns = dsc_min_u64(less(rest_ns(two, op_ns), of_one), of_one);

    rates->op_ns = (uint32_t)dsc_min_u64(op_ns, 1000000);
    rates->stage_ns = (uint32_t)dsc_min_u64(stage_ns, 1000000000);
    rates->call_ns = (uint32_t)dsc_min_u64(of_one - stage_ns, 1000000000);
}

/*
 * Three calls tell the costs apart: one stage; two stages with as many operations as it takes; the
 * same with more operations. Of each the mean of all ranks is taken: each rank's own costs are
 * uncertain in different ways, and the worst of each would count some of it twice.
 */
static dscomm_status_t time_three(struct dsc_meter *m, float *vector)
{
    const size_t chunks = (size_t)m->comm->n_ranks * MANY_CHUNK_ELEMS;
    struct dsc_shape one =
        dsc_shape_make(DSC_ALLREDUCE, SMALL_ELEMS, DSCOMM_FLOAT32, DSCOMM_SUM, NULL, false);
    struct dsc_shape two = one, many;
    struct call_cost a, b, c;

    one.choice.algorithm = DSC_ALG_ONE_SHOT;
    two.count = chunks;
    two.choice.algorithm = DSC_ALG_TWO_SHOT;
    two.choice.chunk_elems = MANY_CHUNK_ELEMS;
    two.choice.n_tiers = 1;
    many = two;
    many.count = chunks * MANY_CHUNKS;
    DSC_TRY(time_calls(m, &one, vector, &a));
    DSC_TRY(time_calls(m, &two, vector, &b));
    DSC_TRY(time_calls(m, &many, vector, &c));
    solve(m->rates, &a, &b, &c);
    return DSCOMM_OK;
}

/* Without spinning: CPU time is work then. */
dscomm_status_t dsc_meter_calls(struct dsc_meter *m)
{
    const size_t n = (size_t)m->comm->n_ranks * MANY_CHUNK_ELEMS * MANY_CHUNKS;
    float *const vector = dsc_calloc(DSC_MEM_COMM, n, sizeof(*vector));
    uint64_t spin;
    dscomm_status_t st;

    if (vector == NULL)
        return dsc_comm_fail(m->comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "%zu elements", n), -1);
    spin = dsc_net_set_spin(m->comm->net, 0);
    st = time_three(m, vector);
    dsc_net_set_spin(m->comm->net, spin);
    dsc_free(vector);
    return st;
}
