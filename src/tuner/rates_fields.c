/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of struct dsc_rates. Ranges are wide enough for every machine and narrow enough that
 * 64-bit products of a cost model hold: 10 s of latency, 1 PB/s, 1 us per byte or element.
 */
#include "tuner/rates_fields.h"

#define SECOND_NS UINT64_C(1000000000)
#define BYTES_PER_S_MAX UINT64_C(1000000000000000)
#define BYTE_FS_MAX UINT64_C(1000000000)
#define ELEM_FS_MAX UINT64_C(1000000000)
#define CPUS_MAX 65536
#define CACHE_MAX (UINT64_C(1) << 48)

static const char *const kinds[] = { "fabric", "host", "rack", "rdma", "tcp", "given" };
static const char *const dtypes[] = { "fp32", "fp16", "bf16" };
_Static_assert(DSC_ARRAY_LEN(kinds) == DSC_TIER_GIVEN + 1, "a word for every kind of tier");
_Static_assert(DSC_ARRAY_LEN(dtypes) == DSCOMM_BFLOAT16 + 1, "a word for every data type");

#define WORDS(type, field, min, max, worse, words)                                                \
    {                                                                                             \
#field, offsetof(struct type, field), sizeof(((struct type *)0)->field), min, max, worse, \
            words                                                                                 \
    }
#define FIELD(type, field, min, max, worse) WORDS(type, field, min, max, worse, NULL)
#define LIST(fields)                  \
    {                                 \
        fields, DSC_ARRAY_LEN(fields) \
    }

static const struct dsc_rates_field rates[] = {
    FIELD(dsc_rates, version, DSC_RATES_VERSION, DSC_RATES_VERSION, DSC_WORSE_SAME),
    FIELD(dsc_rates, n_tiers, 0, DSC_TIERS_MAX, DSC_WORSE_SAME),
    FIELD(dsc_rates, n_speeds, 0, DSC_SPEEDS_MAX, DSC_WORSE_NONE),
    FIELD(dsc_rates, cpus_per_host, 1, CPUS_MAX, DSC_WORSE_LESS),
    FIELD(dsc_rates, ranks_per_host, 1, CPUS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_rates, call_ns, 0, SECOND_NS, DSC_WORSE_MORE),
    FIELD(dsc_rates, op_ns, 0, SECOND_NS, DSC_WORSE_MORE),
    FIELD(dsc_rates, overlap, 0, 1, DSC_WORSE_LESS),
    FIELD(dsc_rates, stage_ns, 0, SECOND_NS, DSC_WORSE_MORE),
    FIELD(dsc_rates, header_bytes, 0, 4096, DSC_WORSE_MORE),
    FIELD(dsc_rates, cache_bytes, 0, CACHE_MAX, DSC_WORSE_LESS),
};

static const struct dsc_rates_field tier[] = {
    WORDS(dsc_tier_rates, kind, 0, DSC_TIER_GIVEN, DSC_WORSE_SAME, kinds),
    FIELD(dsc_tier_rates, message_ns, 0, SECOND_NS, DSC_WORSE_MORE),
    FIELD(dsc_tier_rates, latency_ns, 1, 10 * SECOND_NS, DSC_WORSE_MORE),
    FIELD(dsc_tier_rates, bytes_per_s_alone, 1, BYTES_PER_S_MAX, DSC_WORSE_LESS),
    FIELD(dsc_tier_rates, bytes_per_s, 1, BYTES_PER_S_MAX, DSC_WORSE_LESS),
    FIELD(dsc_tier_rates, byte_fs, 0, BYTE_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_tier_rates, far_byte_fs, 0, BYTE_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_tier_rates, by_memory, 0, 1, DSC_WORSE_LESS),
};

static const struct dsc_rates_field speed[] = {
    WORDS(dsc_codec_speed, dtype, 0, DSCOMM_BFLOAT16, DSC_WORSE_SAME, dtypes),
    FIELD(dsc_codec_speed, feedback, 0, 1, DSC_WORSE_SAME),
    FIELD(dsc_codec_speed, send_fs, 1, ELEM_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_codec_speed, add_fs, 1, ELEM_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_codec_speed, own_fs, 1, ELEM_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_codec_speed, decode_fs, 1, ELEM_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_codec_speed, far_send_fs, 0, ELEM_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_codec_speed, far_own_fs, 0, ELEM_FS_MAX, DSC_WORSE_MORE),
    FIELD(dsc_codec_speed, far_decode_fs, 0, ELEM_FS_MAX, DSC_WORSE_MORE),
};

const struct dsc_rates_fields dsc_rates_fields = LIST(rates), dsc_tier_fields = LIST(tier),
                              dsc_speed_fields = LIST(speed);

const char *dsc_tier_kind_name(uint32_t kind)
{
    return kind < DSC_ARRAY_LEN(kinds) ? kinds[kind] : "?";
}

uint64_t dsc_rates_field_get(const void *base, const struct dsc_rates_field *field)
{
    const void *const at = (const char *)base + field->offset;

    if (field->bytes == sizeof(uint8_t))
        return *(const uint8_t *)at;
    if (field->bytes == sizeof(uint32_t))
        return *(const uint32_t *)at;
    return *(const uint64_t *)at;
}

void dsc_rates_field_set(void *base, const struct dsc_rates_field *field, uint64_t value)
{
    void *const at = (char *)base + field->offset;

    if (field->bytes == sizeof(uint8_t))
        *(uint8_t *)at = (uint8_t)value;
    else if (field->bytes == sizeof(uint32_t))
        *(uint32_t *)at = (uint32_t)value;
    else
        *(uint64_t *)at = value;
}

bool dsc_tier_is_measured(const struct dsc_tier_rates *t)
{
    return t->message_ns != 0 || t->latency_ns != 0 || t->bytes_per_s_alone != 0 ||
           t->bytes_per_s != 0 || t->byte_fs != 0;
}
