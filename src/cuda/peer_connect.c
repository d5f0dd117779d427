/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks come to reach each other's arenas, tell each other that they give up, and leave. Until
 * all peers have left an arena it is not freed: they write into it whenever they like.
 */
#include "cuda/peer_two_shot.h"

#include <string.h>

#include "cuda/cuda_error.h"

/* ---- cards ---- */

dscomm_status_t dsc_gpu_two_shot_card(const struct dsc_gpu_two_shot *ts, int i, uint64_t host,
                                      uint64_t process, struct dsc_two_shot_card *card_out)
{
    struct dsc_two_shot_card card;

    memset(&card, 0, sizeof(card));
    card.host = host;
    card.process = process;
    card.address = (uint64_t)(uintptr_t)ts->own[i];
    card.arena_bytes = ts->arena_bytes;
    card.n_blocks = ts->n_blocks;
    CUDA_TRY(cudaGetDevice(&card.device));
    if (ts->n_local < ts->n_ranks)
        CUDA_TRY(cudaIpcGetMemHandle(&card.handle, ts->own[i]));
    *card_out = card;
    return DSCOMM_OK;
}

/* Of a rank of this process, on another device or, as a virtual one, on the same. */
static dscomm_status_t reach_device(int own_device, int device, int rank)
{
    int can = 0;
    cudaError_t error;

    if (device == own_device)
        return DSCOMM_OK;
    CUDA_TRY(cudaDeviceCanAccessPeer(&can, own_device, device));
    if (can == 0)
        return dsc_refuse("device %d has no peer access to device %d of rank %d", own_device,
                          device, rank);
    error = cudaDeviceEnablePeerAccess(device, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return DSCOMM_OK;
    }
    CUDA_TRY(error);
    return DSCOMM_OK;
}

static dscomm_status_t open_arena(struct dsc_gpu_two_shot *ts, int rank,
                                  const struct dsc_two_shot_card *card)
{
    const cudaError_t error =
        cudaIpcOpenMemHandle(&ts->opened[rank], card->handle, cudaIpcMemLazyEnablePeerAccess);

    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        ts->opened[rank] = NULL;
        return dsc_refuse("memory of rank %d cannot be opened: %s", rank,
                          cudaGetErrorString(error));
    }
    ts->args.arenas[rank] = ts->opened[rank];
    return DSCOMM_OK;
}

static dscomm_status_t reach(struct dsc_gpu_two_shot *ts, int rank, int own_device,
                             const struct dsc_two_shot_card *own,
                             const struct dsc_two_shot_card *card)
{
    if (card->host != own->host)
        return dsc_refuse("rank %d is on another host", rank);
    if (card->arena_bytes != own->arena_bytes || card->n_blocks == 0)
        return dsc_fail(DSCOMM_ERR_MISMATCH,
                        "rank %d has %llu bytes for peers and %u blocks, must have %llu bytes and "
                        "a block",
                        rank, (unsigned long long)card->arena_bytes, card->n_blocks,
                        (unsigned long long)own->arena_bytes);
    if (card->process != own->process)
        return open_arena(ts, rank, card);
    DSC_TRY(reach_device(own_device, card->device, rank));
    ts->args.arenas[rank] = (uint8_t *)(uintptr_t)card->address;
    return DSCOMM_OK;
}

dscomm_status_t dsc_gpu_two_shot_connect(struct dsc_gpu_two_shot *ts,
                                         const struct dsc_two_shot_card *cards)
{
    const struct dsc_two_shot_card *const own = &cards[ts->local[0]];
    int device;

    CUDA_TRY(cudaGetDevice(&device));
    for (int r = 0; r < ts->n_ranks; r++) {
        DSC_TRY(reach(ts, r, device, own, &cards[r]));
        ts->n_blocks = (uint32_t)dsc_min_size(ts->n_blocks, cards[r].n_blocks);
    }
    for (int i = 0; i < ts->n_local; i++)
        ts->args.arenas[ts->local[i]] = ts->own[i];
    return DSCOMM_OK;
}

/* ---- giving up ---- */

static struct dsc_two_shot_notes *notes_of(const struct dsc_gpu_two_shot *ts, int rank)
{
    return (struct dsc_two_shot_notes *)(void *)(ts->args.arenas[rank] + ts->args.notes_at);
}

static bool is_local(const struct dsc_gpu_two_shot *ts, int rank)
{
    bool is = false;

    for (int i = 0; i < ts->n_local; i++)
        is |= ts->local[i] == rank;
    return is;
}

void dsc_gpu_two_shot_tell(const struct dsc_gpu_two_shot *ts, cudaStream_t stream)
{
    const uint32_t teller = (uint32_t)ts->local[0] + 1;

    for (int r = 0; r < ts->n_ranks; r++)
        if (!is_local(ts, r) && ts->args.arenas[r] != NULL)
            (void)cudaMemcpyAsync(&notes_of(ts, r)->told, &teller, sizeof(teller),
                                  cudaMemcpyHostToDevice, stream);
    (void)cudaGetLastError(); /* whoever gives up has an error already */
}

/* ---- leaving ---- */

void dsc_gpu_two_shot_disconnect(struct dsc_gpu_two_shot *ts)
{
    for (int r = 0; r < ts->n_ranks; r++)
        if (ts->opened[r] != NULL) {
            cudaIpcCloseMemHandle(ts->opened[r]);
            ts->opened[r] = NULL;
        }
}

dscomm_status_t dsc_gpu_two_shot_leave(struct dsc_gpu_two_shot *ts, cudaStream_t stream)
{
    const uint32_t yes = 1;

    for (int r = 0; r < ts->n_ranks; r++)
        for (int i = 0; i < ts->n_local; i++)
            CUDA_TRY(cudaMemcpyAsync(&notes_of(ts, r)->left[ts->local[i]], &yes, sizeof(yes),
                                     cudaMemcpyHostToDevice, stream));
    CUDA_TRY(cudaStreamSynchronize(stream)); /* copies of words, behind nothing that waits */
    dsc_gpu_two_shot_disconnect(ts);
    return DSCOMM_OK;
}

dscomm_status_t dsc_gpu_two_shot_read_notes(const struct dsc_gpu_two_shot *ts, int i,
                                            cudaStream_t stream, struct dsc_two_shot_notes *out)
{
    CUDA_TRY(cudaMemcpyAsync(out, ts->own[i] + ts->args.notes_at, sizeof(*out),
                             cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return DSCOMM_OK;
}

void dsc_gpu_two_shot_abandon(struct dsc_gpu_two_shot *ts)
{
    memset(ts->own, 0, sizeof(ts->own));
    dsc_gpu_two_shot_destroy(ts);
}
