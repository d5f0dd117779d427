/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs whose options are free numbers, so that no table can hold them all: each is stored when
 * its spec is first parsed and stays as long as the process. The memory is static; nothing to free,
 * and a program that makes up specs without end gets an error, not all memory.
 */
#include <pthread.h>
#include <string.h>

#include "codec/codec.h"

static struct dsc_codec known[DSC_INTERNED_MAX];
static size_t n_known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct dsc_codec *find_or_add(const struct dsc_codec *wanted)
{
    for (size_t i = 0; i < n_known; i++) {
        if (strcmp(known[i].spec, wanted->spec) == 0)
            return &known[i];
    }
    if (n_known == DSC_INTERNED_MAX)
        return NULL;
    known[n_known] = *wanted;
    return &known[n_known++];
}

const struct dsc_codec *dsc_codec_intern(const struct dsc_codec *wanted)
{
    (void)pthread_mutex_lock(&known_lock);

    const struct dsc_codec *const codec = find_or_add(wanted);

    (void)pthread_mutex_unlock(&known_lock);
    return codec;
}
