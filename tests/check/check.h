/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that every level of a primitive gives the reference's bits. A primitive is one row: how it
 * is called and what its operands are. The driver in check.c does the rest for every row alike:
 * sizes, worst-case inputs, misaligned and page-edge placement, shared operands, guard bytes.
 */
#ifndef DSC_CHECK_H
#define DSC_CHECK_H

#include "codec/kernels.h"

#define CHECK_OPERANDS_MAX 5
#define CHECK_ELEMS_MAX 65536

enum check_role { CHECK_END, CHECK_IN, CHECK_OUT, CHECK_INOUT };

enum check_type {
    CHECK_F32,     /* compared bit for bit */
    CHECK_F32_SUM, /* result of arithmetic: any NaN equals any other, all else bit for bit */
    CHECK_U16,
    CHECK_BITS,       /* a bit per element; unused bits of the last byte are compared as well */
    CHECK_CODE,       /* a byte per element */
    CHECK_CODE4,      /* half a byte; the unused half of the last byte is compared as well */
    CHECK_SCALE,      /* one float per block */
    CHECK_SCALE16,    /* one bfloat16 per block */
    CHECK_SCALE8,     /* one byte per block */
    CHECK_F32_GROUPS, /* as CHECK_F32_SUM, of n rounded up to groups of 32 */
};

struct check_operand {
    enum check_role role;
    enum check_type type;
    unsigned may_be; /* an output may share the memory of these inputs: bit i is operand i */
};

struct check_call {
    void *arg[CHECK_OPERANDS_MAX];
    size_t n;
    uint32_t block;
    float scalar;
    unsigned flags;
    int exponent;
    size_t result; /* of primitives that return one */
};

struct check_row {
    const char *name;
    size_t slot; /* offset of its pointer in struct dsc_kernels */
    void (*run)(const struct dsc_kernels *k, struct check_call *call);
    struct check_operand operands[CHECK_OPERANDS_MAX];
    const float *scalars; /* NULL: takes none */
    size_t n_scalars;
    bool has_block, has_flags, has_exponent;
    uint32_t block; /* the only one that it takes; 0: any */
};

/* check_rows.c: a row for every primitive. */
extern const struct check_row check_rows[];
extern const size_t check_n_rows;

/* check_inputs.c */
extern const size_t check_n_styles;
const char *check_style_name(size_t style);
/* Bytes of an operand with n elements, in blocks of `block`; bytes of one item of its memory. */
size_t check_operand_bytes(enum check_type type, size_t n, uint32_t block);
size_t check_item_bytes(enum check_type type);
/* [bytes] of one style; the same seed gives the same bytes. */
void check_fill(void *dst, enum check_type type, size_t bytes, size_t style, uint64_t seed);
uint64_t check_random(uint64_t *state);

/* check_ties.c: values half way between two codes of a format, and their neighbours. */
uint32_t check_int8_tie(uint32_t h, size_t i);
uint32_t check_int4_tie(uint32_t h, size_t i);
uint32_t check_e4m3_tie(uint32_t h, size_t i);
uint32_t check_e5m2_tie(uint32_t h, size_t i);
uint32_t check_e2m1_tie(uint32_t h, size_t i);

/* check_arena.c: memory between inaccessible pages, with canaries around what is placed in it. */
enum check_placement { CHECK_AT_FRONT, CHECK_SHIFTED, CHECK_AT_BACK, CHECK_N_PLACEMENTS };
uint8_t *check_arena_make(void); /* exits when there is no memory; lives as long as the process */
/* Where [bytes] of items come to lie; writes the canaries. */
uint8_t *check_arena_place(uint8_t *arena, enum check_placement place, size_t bytes,
                           size_t item_bytes);
bool check_arena_holds(const uint8_t *arena, const uint8_t *data, size_t bytes);
/* Runs a call; false when it touched an inaccessible page. */
bool check_run_guarded(const struct check_row *row, const struct dsc_kernels *k,
                       struct check_call *call);

/* check_compare.c: runs one row on all inputs; false at the first difference, with its text. */
struct check_difference {
    char text[400];
};
bool check_compare(const struct check_row *row, const struct dsc_kernels *ref,
                   const struct dsc_kernels *got, uint64_t seed, struct check_difference *diff_out);
/* GB/s of n float32 elements. */
double check_bench(const struct check_row *row, const struct dsc_kernels *k, uint32_t block);

/* check_self.c, check_mode.c: named tests outside the table. */
struct check_test {
    const char *name;
    /* 1 passed, 0 failed (says why on stderr), -1 skipped (says why) */
    int (*run)(uint64_t seed);
};
extern const struct check_test check_self_tests[], check_mode_tests[];
extern const size_t check_n_self_tests, check_n_mode_tests;

#endif
