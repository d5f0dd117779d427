/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program: links the installed library, encodes, decodes and reduces with one rank. */
#include <dscomm/dscomm.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N 1000

static float input[N], output[N];
static _Alignas(16) unsigned char message[8 * N];

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, dscomm_last_error());
    return 1;
}

static int try_codec(void)
{
    const dscomm_codec_t *codec;
    size_t bytes;

    if (dscomm_codec_parse("int8", &codec) < 0 || strcmp(dscomm_codec_spec(codec), "int8") != 0)
        return fail("codec");
    if (dscomm_encode(codec, message, sizeof(message), input, N, &bytes) < 0)
        return fail("encode");
    if (dscomm_decode(codec, output, N, message, bytes) < 0)
        return fail("decode");
    for (int i = 0; i < N; i++)
        if (fabsf(output[i] - input[i]) > 5.0f)
            return fail("value");
    return 0;
}

static int try_allreduce(void)
{
    dscomm_unique_id_t id;
    dscomm_comm_t *comm;

    if (dscomm_unique_id_create(&id) < 0 || dscomm_comm_create(1, 0, &id, NULL, &comm) < 0)
        return fail("communicator");
    if (dscomm_allreduce_compressed(input, output, N, DSCOMM_FLOAT32, DSCOMM_SUM, NULL, NULL, comm,
                                    NULL) < 0)
        return fail("allreduce");
    dscomm_comm_destroy(comm);
    return memcmp(input, output, sizeof(input)) != 0;
}

int main(void)
{
    if (strcmp(dscomm_version(), "0.1.0") != 0)
        return fail("version");
    for (int i = 0; i < N; i++)
        input[i] = (float)(i - N / 2);
    return try_codec() + try_allreduce();
}
