/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one comparison behind all rows. Each operand has an arena between two inaccessible pages:
 *
 *     | no access | canary |  elements  | canary | no access |
 *
 * Elements start at the front edge, one element after the canary (misaligned), or end at the back
 * edge, so that an access one element too far is a fault or a changed canary byte.
 */
#include "check/check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define CANARY_BYTES ((size_t)64)
#define ARENA_BYTES (CHECK_ELEMS_MAX * sizeof(float) + 2 * PAGE)
#define CANARY 0xa5

static const size_t sizes[] = {
    0,   1,   2,   3,    7,    8,    9,
    15,  16,  17,  31,   32,   33,   47,
    63,  64,  65,  97,   127,  128,  129,
    191, 255, 256, 257,  263,  511,  512,
    513, 521, 769, 1021, 2048, 2053, CHECK_ELEMS_MAX,
};
static const uint32_t blocks[] = { 16, 32, 64, 128, 256 };

enum placement { PLACE_FRONT, PLACE_SHIFTED, PLACE_BACK, N_PLACEMENTS };
static const char *const placement_names[] = { "at front edge", "off by one", "at back edge" };

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
    enum placement placement;
    int shared_out, shared_in; /* operand that is another one; -1: none */
};

static uint8_t *make_arena(void)
{
    uint8_t *const base =
        mmap(NULL, ARENA_BYTES + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED || mprotect(base + PAGE, ARENA_BYTES, PROT_READ | PROT_WRITE) != 0) {
        perror("check: mmap");
        exit(2);
    }
    return base + PAGE;
}

static void make_arenas(void)
{
    if (inputs[0] != NULL)
        return;
    for (int i = 0; i < CHECK_OPERANDS_MAX; i++) {
        inputs[i] = make_arena();
        ref_side.arena[i] = make_arena();
        got_side.arena[i] = make_arena();
    }
}

static size_t elem_bytes(enum check_type type)
{
    return type == CHECK_I8 ? 1 : type == CHECK_U16 ? 2 : 4;
}

static size_t operand_elems(const struct check_call *call, enum check_type type)
{
    return type == CHECK_SCALE ? dsc_ceil_div(call->n, call->block) : call->n;
}

static size_t operand_bytes(const struct check_call *call, const struct check_operand *op)
{
    return operand_elems(call, op->type) * elem_bytes(op->type);
}

static size_t n_operands(const struct check_row *row)
{
    size_t n = 0;

    while (n < CHECK_OPERANDS_MAX && row->operands[n].role != CHECK_END)
        n++;
    return n;
}

/* Lays out operand i of a side: canaries, then its input, or rubbish where it is only written. */
static void lay_out(struct side *side, const struct scene *scene, size_t i, enum placement place)
{
    const struct check_operand *const op = &scene->row->operands[i];
    const size_t bytes = operand_bytes(&scene->call, op);
    uint8_t *const arena = side->arena[i];
    uint8_t *data = arena;

    if (place == PLACE_SHIFTED)
        data = arena + CANARY_BYTES + elem_bytes(op->type);
    else if (place == PLACE_BACK)
        data = arena + ARENA_BYTES - bytes;
    if (data > arena)
        memset(data - CANARY_BYTES, CANARY, CANARY_BYTES);
    if (data + bytes < arena + ARENA_BYTES)
        memset(data + bytes, CANARY, CANARY_BYTES);
    if (op->role == CHECK_OUT)
        memset(data, 0x5a, bytes);
    else
        memcpy(data, inputs[i], bytes);
    side->data[i] = data;
}

static bool is_canary(const uint8_t *bytes)
{
    for (size_t i = 0; i < CANARY_BYTES; i++) {
        if (bytes[i] != CANARY)
            return false;
    }
    return true;
}

static bool canaries_hold(const struct side *side, const struct scene *scene, size_t i)
{
    const size_t bytes = operand_bytes(&scene->call, &scene->row->operands[i]);
    const uint8_t *const data = side->data[i];

    if (data > side->arena[i] && !is_canary(data - CANARY_BYTES))
        return false;
    return data + bytes >= side->arena[i] + ARENA_BYTES || is_canary(data + bytes);
}

static bool is_nan_bits(uint32_t u)
{
    return (u & 0x7fffffffu) > 0x7f800000u;
}

/* Index of the first element that differs, or n. */
static size_t first_difference(const uint8_t *ref, const uint8_t *got, enum check_type type,
                               size_t n)
{
    const size_t bytes = elem_bytes(type);

    if (n == 0 || memcmp(ref, got, n * bytes) == 0)
        return n;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = 0, b = 0;

        memcpy(&a, ref + i * bytes, bytes);
        memcpy(&b, got + i * bytes, bytes);
        if (a != b && !(type == CHECK_F32_SUM && is_nan_bits(a) && is_nan_bits(b)))
            return i;
    }
    return n;
}

static void describe(const struct scene *scene, struct check_difference *diff, const char *what)
{
    (void)snprintf(diff->text, sizeof(diff->text),
                   "n %zu block %u scalar %g keep %d, input %s, %s, operand %d is %d: %s",
                   scene->call.n, scene->call.block, (double)scene->call.scalar, scene->call.keep,
                   check_style_name(scene->style), placement_names[scene->placement],
                   scene->shared_out, scene->shared_in, what);
}

static bool same_operand(const struct scene *scene, size_t i, struct check_difference *diff)
{
    const struct check_operand *const op = &scene->row->operands[i];
    const size_t n = operand_elems(&scene->call, op->type);
    const size_t bytes = elem_bytes(op->type);
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

static sigjmp_buf fault_jump;

static void on_fault(int sig)
{
    siglongjmp(fault_jump, sig);
}

/* Runs the candidate; false when it touched an inaccessible page. */
static bool run_guarded(const struct check_row *row, const struct dsc_kernels *k,
                        struct check_call *call)
{
    const struct sigaction act = { .sa_handler = on_fault };
    struct sigaction old_segv, old_bus;
    volatile bool is_faulty = true;

    (void)sigaction(SIGSEGV, &act, &old_segv);
    (void)sigaction(SIGBUS, &act, &old_bus);
    if (sigsetjmp(fault_jump, 1) == 0) {
        row->run(k, call);
        is_faulty = false;
    }
    (void)sigaction(SIGSEGV, &old_segv, NULL);
    (void)sigaction(SIGBUS, &old_bus, NULL);
    return !is_faulty;
}

static void run_reference(struct scene *scene, const struct dsc_kernels *ref)
{
    const size_t n = n_operands(scene->row);

    for (size_t i = 0; i < n; i++) {
        lay_out(&ref_side, scene, i, PLACE_FRONT);
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

    if (!run_guarded(scene->row, got, &scene->call)) {
        describe(scene, diff, "touched memory outside its operands");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if ((int)i != scene->shared_in && !same_operand(scene, i, diff))
            return false;
        if (!canaries_hold(&got_side, scene, i)) {
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

    for (int p = 0; p < N_PLACEMENTS; p++) {
        scene->placement = (enum placement)p;
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

static bool has_u16(const struct check_row *row)
{
    return row->operands[0].type == CHECK_U16 || row->operands[1].type == CHECK_U16;
}

/* One size and style, all parameters. */
static bool compare_inputs(struct scene *scene, const struct dsc_kernels *ref,
                           const struct dsc_kernels *got, struct check_difference *diff)
{
    const struct check_row *const row = scene->row;
    const size_t n_blocks = row->has_block ? DSC_ARRAY_LEN(blocks) : 1;
    const size_t n_scalars = row->scalars != NULL ? row->n_scalars : 1;
    const size_t n_keeps = row->has_keep ? 2 : 1;

    for (size_t i = 0; i < n_blocks * n_scalars * n_keeps; i++) {
        scene->call.block = blocks[i % n_blocks];
        scene->call.scalar = row->scalars != NULL ? row->scalars[i / n_blocks % n_scalars] : 1.0f;
        scene->call.keep = (int)(i / n_blocks / n_scalars);
        scene->call.result = 0;
        run_reference(scene, ref);
        if (!compare_variants(scene, got, diff))
            return false;
    }
    return true;
}

/*
 * Fills the operands. When `others_ordinary`, only the first input is of the scene's style: two
 * huge values, for example, would hide each other in an infinite sum.
 */
static void fill_inputs(const struct scene *scene, bool others_ordinary, uint64_t seed)
{
    bool is_first = true;

    for (size_t i = 0; i < n_operands(scene->row); i++) {
        const struct check_operand *const op = &scene->row->operands[i];
        const size_t n = operand_elems(&scene->call, op->type);
        const size_t style = others_ordinary && !is_first ? 0 : scene->style;

        check_fill(inputs[i], op->type, n, style, seed + i);
        is_first &= op->role == CHECK_OUT;
    }
}

bool check_compare(const struct check_row *row, const struct dsc_kernels *ref,
                   const struct dsc_kernels *got, uint64_t seed, struct check_difference *diff_out)
{
    const size_t n_inputs = DSC_ARRAY_LEN(sizes) * check_n_styles;
    struct scene scene = { .row = row };

    make_arenas();
    for (size_t s = 0; s < 2 * n_inputs; s++) {
        scene.call.n = sizes[s % n_inputs / check_n_styles];
        scene.call.block = 16; /* the most scales that any block size has */
        scene.style = s % check_n_styles;
        if (scene.call.n == CHECK_ELEMS_MAX && !has_u16(row))
            continue;
        fill_inputs(&scene, s >= n_inputs, seed + 1000 * s);
        if (!compare_inputs(&scene, ref, got, diff_out))
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
        check_fill(inputs[i], row->operands[i].type, N, 0, i);
        lay_out(&got_side, &scene, i, PLACE_FRONT);
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
