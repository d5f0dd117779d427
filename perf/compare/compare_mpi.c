/* SPDX-License-Identifier: Apache-2.0 */
/* The side of MPI: mpirun ... compare_mpi CONTROL SHARED SIDE. Plain MPI_Allreduce, no codec. */
#include "compare_worker.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static bool is_ok(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;

    if (code == MPI_SUCCESS)
        return true;
    (void)MPI_Error_string(code, text, &length);
    (void)fprintf(stderr, "mpi: %s: %s\n", what, text);
    return false;
}

static bool knows(void *self, const char *codec)
{
    (void)self;
    return strcmp(codec, "none") == 0;
}

static bool prepare(void *self, const char *codec, float *recv, size_t count)
{
    (void)recv;
    if (knows(self, codec) && count <= INT_MAX)
        return true;
    (void)fprintf(stderr, "mpi: codec %s, %zu elements, allowed: none, at most %d\n", codec, count,
                  INT_MAX);
    return false;
}

static bool call(void *self, const float *send, float *recv, size_t count)
{
    (void)self;
    return is_ok(MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                 "MPI_Allreduce");
}

static int64_t sent_bytes(void *self)
{
    (void)self;
    return -1;
}

/* "Open MPI v4.1.4, package: ...": up to the first comma; others end with their line. */
static const char *version(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;

    (void)MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n\"\\")] = '\0';
    return text;
}

int main(int argc, char **argv)
{
    struct compare_backend backend = {
        .knows = knows, .prepare = prepare, .call = call, .sent_bytes = sent_bytes
    };

    if (argc != 4) {
        (void)fprintf(stderr, "usage: %s CONTROL SHARED SIDE\n", argv[0]);
        return 2;
    }
    if (!is_ok(MPI_Init(&argc, &argv), "MPI_Init") ||
        !is_ok(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "error handler") ||
        !is_ok(MPI_Comm_rank(MPI_COMM_WORLD, &backend.rank), "rank"))
        return 1;
    backend.version = version();
    const int code = compare_worker_run(&backend, argv[1], argv[2], argv[3]);
    if (code != 0)
        (void)MPI_Abort(MPI_COMM_WORLD, code); /* MPI_Finalize would wait for ranks that hang */
    (void)MPI_Finalize();
    return code;
}
