/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernels a codec has. A spec is taken apart word by word: what is not known here, however
 * new, has no kernel and is refused by name.
 */
#include "kernels/stage.h"

#include <string.h>

#include "codec/codec.h"

#define SEGMENT 65536
#define PLAIN_TILE 4096

/* The first word of a spec. */
static const struct {
    const char *name;
    enum dsc_gpu_kind kind;
} families[] = {
    { "none", DSC_GPU_KIND_FP32 },   { "fp32", DSC_GPU_KIND_FP32 },
    { "fp16", DSC_GPU_KIND_FP16 },   { "bf16", DSC_GPU_KIND_BF16 },
    { "int8", DSC_GPU_KIND_INT8 },   { "int4", DSC_GPU_KIND_INT4 },
    { "fp8", DSC_GPU_KIND_E4M3 },    { "mxfp8", DSC_GPU_KIND_MXFP8 },
    { "mxfp4", DSC_GPU_KIND_MXFP4 }, { "mxint8", DSC_GPU_KIND_MXINT8 },
    { "nvfp4", DSC_GPU_KIND_NVFP4 }, { "topk", DSC_GPU_KIND_TOPK },
};

/* The words after it. With `:`, or `,` where options are added to a row. */
static const struct {
    const char *word;
    uint32_t flag;
} options[] = {
    { ":signed", DSC_GPU_FORMAT_SIGNED },
    { ",ceil", DSC_GPU_FORMAT_CEIL },
    { ",sr", DSC_GPU_FORMAT_DRAWS },
    { ",hadamard", DSC_GPU_FORMAT_ROTATES },
};

static bool find_family(const char *spec, size_t len, enum dsc_gpu_kind *kind_out)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(families); i++) {
        if (strlen(families[i].name) == len && memcmp(families[i].name, spec, len) == 0) {
            *kind_out = families[i].kind;
            return true;
        }
    }
    return false;
}

static bool find_option(const char *word, size_t len, uint32_t *flag_out)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(options); i++) {
        if (strlen(options[i].word) == len && memcmp(options[i].word, word, len) == 0) {
            *flag_out = options[i].flag;
            return true;
        }
    }
    return false;
}

/* A word that says which numbers there are, not how they are made. */
static bool is_number_word(const char *word, size_t len, struct dsc_gpu_format *format)
{
    if (len == 5 && memcmp(word, ":e5m2", 5) == 0) {
        format->kind += DSC_GPU_KIND_E5M2 - DSC_GPU_KIND_E4M3;
        return true;
    }
    return len > 7 && memcmp(word, ":block=", 7) == 0; /* the block is in the codec */
}

/*
 * Of topk: how many are kept, and the type of the values, are in the codec. Thresholds are not
 * reused: what that saves hosts is a search, and it changes no bit.
 */
static bool fill_topk(const struct dsc_codec *codec, struct dsc_gpu_format *format)
{
    enum dsc_gpu_kind values;

    if (codec->values == NULL ||
        !find_family(codec->values->spec, strlen(codec->values->spec), &values) ||
        (values != DSC_GPU_KIND_FP16 && values != DSC_GPU_KIND_INT8 && values != DSC_GPU_KIND_E4M3))
        return false;
    format->values = values;
    format->kept_count = codec->kept_count;
    format->kept_ppb = codec->kept_ppb;
    format->flags |= codec->by_position ? DSC_GPU_FORMAT_BY_PLACE : 0;
    return true;
}

static uint32_t log2_of(uint32_t n)
{
    uint32_t log2 = 0;

    while (n >> log2 > 1)
        log2++;
    return log2;
}

/* False: there is no kernel. */
static bool fill_format(const struct dsc_codec *codec, struct dsc_gpu_format *format)
{
    const char *word = codec->spec + strcspn(codec->spec, ":,");
    enum dsc_gpu_kind kind;

    if (!find_family(codec->spec, (size_t)(word - codec->spec), &kind))
        return false;
    *format = (struct dsc_gpu_format){
        .kind = kind,
        .block_log2 = log2_of(codec->inner != NULL ? codec->inner->block : codec->block),
        .flags = codec->by_dtype ? DSC_GPU_FORMAT_NONE : 0,
    };
    if (kind == DSC_GPU_KIND_TOPK)
        return fill_topk(codec, format);
    while (*word != '\0') {
        const size_t len = 1 + strcspn(word + 1, ":,");
        uint32_t flag = 0;

        if (!find_option(word, len, &flag) && !is_number_word(word, len, format))
            return false;
        format->flags |= flag;
        word += len;
    }
    return true;
}

dscomm_status_t dsc_gpu_supports(const dscomm_codec_t *codec)
{
    struct dsc_gpu_format format;

    if (codec == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "codec is NULL");
    if (codec->variable)
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED,
                        "codec %s is for CPUs: its messages vary in length, which CUDA kernels and "
                        "graphs do not know",
                        codec->spec);
    if (!fill_format(codec, &format))
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED,
                        "codec %s has no CUDA kernels; those of none, fp32, fp16, bf16, int8, "
                        "int4, fp8, mxfp8, mxfp4, mxint8, nvfp4 and topk have",
                        codec->spec);
    return DSCOMM_OK;
}

bool dsc_gpu_knows(const dscomm_codec_t *codec)
{
    struct dsc_gpu_format format;

    return !codec->variable && fill_format(codec, &format);
}

struct dsc_gpu_format dsc_gpu_format_of(const dscomm_codec_t *codec, dscomm_dtype_t dtype)
{
    const struct dsc_codec *const resolved = dsc_codec_resolve(codec, dtype);
    struct dsc_gpu_format format;
    const bool is_known = fill_format(resolved, &format);

    DSC_ASSERT(is_known); /* callers have asked dsc_gpu_supports() */
    if (codec->by_dtype)
        format.flags |= DSC_GPU_FORMAT_NONE;
    return format;
}

uint32_t dsc_gpu_tile_elems(enum dsc_gpu_stage stage, const dscomm_codec_t *codec,
                            dscomm_dtype_t dtype)
{
    const struct dsc_gpu_format format = dsc_gpu_format_of(codec, dtype);
    const bool encodes = stage == DSC_GPU_ENCODE || stage == DSC_GPU_FINAL;
    const bool has_segments =
        format.kind == DSC_GPU_KIND_TOPK || (format.kind == DSC_GPU_KIND_NVFP4 && encodes);

    return stage != DSC_GPU_RESTORE && has_segments ? SEGMENT : PLAIN_TILE;
}
