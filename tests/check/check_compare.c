/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one comparison behind all rows: sizes, inputs, parameters, placements, shared operands.
 */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
static const size_t sizes[] = {
    0,   1,   2,   3,   7,   8,   9,   15,  16,  17,   31,   32,   33,   47,   63,   64,   65,   97,
    127, 128, 129, 191, 255, 256, 257, 263, 511, 512,  513,  521,  769,  1021, 2048, 2053, 3072, 3105,
    6672, CHECK_ELEMS_MAX,
};
/* clang-format on */
#define ELEMS_LONG 1000 /* from here on it is about tiles: each style meets one kind of others */
static const uint32_t blocks[] = { 16, 32, 64, 128, 256 };
static const unsigned flags[] = { 0, DSC_KEEP_OLD, DSC_STREAM, DSC_KEEP_OLD | DSC_STREAM };
static const int exponents[] = { 0, 1, 6, 17 };

static const char *const placement_names[] = { "at front edge", "off by one", "at back edge" };

/*
 * What the inputs after the first one hold. Two huge values would hide each other in an infinite
 * sum, so they are ordinary in turn; and zero, so that the sum of a tie and the other is the tie.
 */
enum others { OTHERS_SAME, OTHERS_ORDINARY, OTHERS_ZERO, N_OTHERS };
static const char *const others_names[] = { "alike", "ordinary", "zero" };

/* Memory of one operand: what the reference writes, and what the candidate does. */
struct side {
    uint8_t *arena[CHECK_OPERANDS_MAX];
    uint8_t *data[CHECK_OPERANDS_MAX];
};
static struct side ref_side, got_side;
static uint8_t *inputs[CHECK_OPERANDS_MAX]; /* pristine contents of operands */

/* What is being run, for the text of a difference. */
struct scene {
    const struct check_row *row;
    struct check_call call;
    size_t style;
    enum others others;
    enum check_placement placement;
    int shared_out, shared_in; /* operand that is another one; -1: none */
};

static void make_arenas(void)
{
    if (inputs[0] != NULL)
        return;
    for (int i = 0; i < CHECK_OPERANDS_MAX; i++) {
        inputs[i] = check_arena_make();
        ref_side.arena[i] = check_arena_make();
        got_side.arena[i] = check_arena_make();
    }
}

static size_t operand_bytes(const struct check_call *call, const struct check_operand *op)
{
    return check_operand_bytes(op->type, call->n, call->block);
}

static size_t n_operands(const struct check_row *row)
{
    size_t n = 0;

    while (n < CHECK_OPERANDS_MAX && row->operands[n].role != CHECK_END)
        n++;
    return n;
}

/* Lays out operand i of a side: its input, or rubbish where it is only written. */
static void lay_out(struct side *side, const struct scene *scene, size_t i,
                    enum check_placement place)
{
    const struct check_operand *const op = &scene->row->operands[i];
    const size_t bytes = operand_bytes(&scene->call, op);
    uint8_t *const data =
        check_arena_place(side->arena[i], place, bytes, check_item_bytes(op->type));

    if (op->role == CHECK_OUT)
        memset(data, 0x5a, bytes);
    else
        memcpy(data, inputs[i], bytes);
    side->data[i] = data;
}

static bool is_nan_bits(uint32_t u)
{
    return (u & 0x7fffffffu) > 0x7f800000u;
}

/* Index of the first of n items that differs, or n. */
static size_t first_difference(const uint8_t *ref, const uint8_t *got, enum check_type type,
                               size_t n)
{
    const size_t bytes = check_item_bytes(type);
    const bool any_nan = type == CHECK_F32_SUM || type == CHECK_F32_GROUPS;

    if (n == 0 || memcmp(ref, got, n * bytes) == 0)
        return n;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = 0, b = 0;

        memcpy(&a, ref + i * bytes, bytes);
        memcpy(&b, got + i * bytes, bytes);
        if (a != b && !(any_nan && is_nan_bits(a) && is_nan_bits(b)))
            return i;
    }
    return n;
}

static void describe(const struct scene *scene, struct check_difference *diff, const char *what)
{
    const struct check_call *const call = &scene->call;

    (void)snprintf(diff->text, sizeof(diff->text),
                   "n %zu block %u scalar %g flags %u exponent %d, input %s, others %s, %s, "
                   "operand %d is %d: %s",
                   call->n, call->block, (double)call->scalar, call->flags, call->exponent,
                   check_style_name(scene->style), others_names[scene->others],
                   placement_names[scene->placement], scene->shared_out, scene->shared_in, what);
}

static bool same_operand(const struct scene *scene, size_t i, struct check_difference *diff)
{
    const struct check_operand *const op = &scene->row->operands[i];
    const size_t bytes = check_item_bytes(op->type);
    const size_t n = operand_bytes(&scene->call, op) / bytes;
    const bool is_input = op->role == CHECK_IN;
    const uint8_t *const want = is_input ? inputs[i] : ref_side.data[i];
    const uint8_t *const got = scene->call.arg[i];
    const size_t bad = first_difference(want, got, op->type, n);
    char what[120];
    uint32_t a = 0, b = 0;

    if (bad == n)
        return true;
    memcpy(&a, want + bad * bytes, bytes);
    memcpy(&b, got + bad * bytes, bytes);
    (void)snprintf(what, sizeof(what), "operand %zu [%zu]: %s 0x%0*x, got 0x%0*x", i, bad,
                   is_input ? "input was" : "reference", (int)(2 * bytes), a, (int)(2 * bytes), b);
    describe(scene, diff, what);
    return false;
}

static void run_reference(struct scene *scene, const struct dsc_kernels *ref)
{
    const size_t n = n_operands(scene->row);

    for (size_t i = 0; i < n; i++) {
        lay_out(&ref_side, scene, i, CHECK_AT_FRONT);
        scene->call.arg[i] = ref_side.data[i];
    }
    scene->row->run(ref, &scene->call);
}

static bool run_candidate(struct scene *scene, const struct dsc_kernels *got,
                          struct check_difference *diff)
{
    const size_t n = n_operands(scene->row);
    const size_t ref_result = scene->call.result;

    for (size_t i = 0; i < n; i++) {
        lay_out(&got_side, scene, i, scene->placement);
        scene->call.arg[i] = got_side.data[i];
    }
    if (scene->shared_out >= 0)
        scene->call.arg[scene->shared_out] = got_side.data[scene->shared_in];

    if (!check_run_guarded(scene->row, got, &scene->call)) {
        describe(scene, diff, "touched memory outside its operands");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if ((int)i != scene->shared_in && !same_operand(scene, i, diff))
            return false;
        if (!check_arena_holds(got_side.arena[i], got_side.data[i],
                               operand_bytes(&scene->call, &scene->row->operands[i]))) {
            describe(scene, diff, "wrote outside its operands");
            return false;
        }
    }
    if (scene->call.result != ref_result) {
        describe(scene, diff, "returns another number than the reference");
        return false;
    }
    return true;
}

/* All placements, each with no operand shared and with every sharing the row allows. */
static bool compare_variants(struct scene *scene, const struct dsc_kernels *got,
                             struct check_difference *diff)
{
    const size_t n = n_operands(scene->row);

    for (int p = 0; p < CHECK_N_PLACEMENTS; p++) {
        scene->placement = (enum check_placement)p;
        scene->shared_out = scene->shared_in = -1;
        if (!run_candidate(scene, got, diff))
            return false;
        for (size_t i = 0; i < n * n; i++) {
            if ((scene->row->operands[i / n].may_be >> (i % n) & 1u) == 0)
                continue;
            scene->shared_out = (int)(i / n);
            scene->shared_in = (int)(i % n);
            if (!run_candidate(scene, got, diff))
                return false;
        }
    }
    return true;
}

/* The largest size is there for "counting": all patterns of 16 bits. */
static bool needs_largest(const struct check_row *row)
{
    return !row->has_flags &&
           (row->operands[0].type == CHECK_U16 || row->operands[1].type == CHECK_U16);
}

/*
 * One size and style, all parameters but the scalar: that one takes turns, from input to input and
 * from parameter to parameter.
 */
static bool compare_inputs(struct scene *scene, size_t turn, const struct dsc_kernels *ref,
                           const struct dsc_kernels *got, struct check_difference *diff)
{
    const struct check_row *const row = scene->row;
    const size_t n_blocks = row->has_block && row->block == 0 ? DSC_ARRAY_LEN(blocks) : 1;
    const size_t n_flags = row->has_flags ? DSC_ARRAY_LEN(flags) : 1;
    const size_t n_exponents = row->has_exponent ? DSC_ARRAY_LEN(exponents) : 1;

    for (size_t i = 0; i < n_blocks * n_flags * n_exponents; i++) {
        scene->call.block = row->block != 0 ? row->block : blocks[i % n_blocks];
        scene->call.flags = flags[i / n_blocks % n_flags];
        scene->call.exponent = exponents[i / n_blocks / n_flags];
        scene->call.scalar =
            row->scalars != NULL ? row->scalars[(turn + i) % row->n_scalars] : 1.0f;
        scene->call.result = 0;
        run_reference(scene, ref);
        if (!compare_variants(scene, got, diff))
            return false;
    }
    return true;
}

static void fill_inputs(const struct scene *scene, uint64_t seed)
{
    bool is_first = true;

    for (size_t i = 0; i < n_operands(scene->row); i++) {
        const struct check_operand *const op = &scene->row->operands[i];
        const size_t bytes = operand_bytes(&scene->call, op);

        if (is_first || scene->others == OTHERS_SAME)
            check_fill(inputs[i], op->type, bytes, scene->style, seed + i);
        else if (scene->others == OTHERS_ORDINARY)
            check_fill(inputs[i], op->type, bytes, 0, seed + i);
        else
            memset(inputs[i], 0, bytes);
        is_first &= op->role == CHECK_OUT;
    }
}

bool check_compare(const struct check_row *row, const struct dsc_kernels *ref,
                   const struct dsc_kernels *got, uint64_t seed, struct check_difference *diff_out)
{
    const size_t n_inputs = DSC_ARRAY_LEN(sizes) * check_n_styles;
    struct scene scene = { .row = row };

    make_arenas();
    for (size_t s = 0; s < N_OTHERS * n_inputs; s++) {
        scene.call.n = sizes[s % n_inputs / check_n_styles];
        scene.call.block = 16; /* the most scales that any block size has */
        scene.style = s % check_n_styles;
        scene.others = (enum others)(s / n_inputs);
        if (scene.call.n == CHECK_ELEMS_MAX && !needs_largest(row))
            continue;
        if (scene.call.n >= ELEMS_LONG && scene.others != scene.style % N_OTHERS)
            continue;
        fill_inputs(&scene, seed + 1000 * s);
        if (!compare_inputs(&scene, s, ref, got, diff_out))
            return false;
    }
    return true;
}

double check_bench(const struct check_row *row, const struct dsc_kernels *k, uint32_t block)
{
    enum { N = 4096, CALLS = 2000, ROUNDS = 7 };
    struct scene scene = { .row = row, .call = { .n = N, .block = block, .scalar = 1.0f } };
    uint64_t best_ns = UINT64_MAX;

    make_arenas();
    for (size_t i = 0; i < n_operands(row); i++) {
        check_fill(inputs[i], row->operands[i].type, operand_bytes(&scene.call, &row->operands[i]),
                   0, i);
        lay_out(&got_side, &scene, i, CHECK_AT_FRONT);
        scene.call.arg[i] = got_side.data[i];
    }
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t start_ns = dsc_now_ns();

        for (int i = 0; i < CALLS; i++)
            row->run(k, &scene.call);
        best_ns = dsc_min_u64(best_ns, dsc_now_ns() - start_ns);
    }
    return (double)N * sizeof(float) * CALLS / (double)best_ns;
}
