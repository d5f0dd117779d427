/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flat two-shot allreduce as one kernel: ranks whose memory all others can reach write codes into
 * the owner's memory, and read the final codes out of it, without NCCL. Bits are those of the plan.
 *
 * Every rank has an arena, a piece of device memory that all ranks see at some address:
 *
 *     | final[n_tiles] | sent[n_ranks][max_tiles] | in[2][n_ranks] | out[2] | notes |
 *       flags, 32 bits each                         messages, by parity       of hosts
 *                                                   of the epoch
 *
 * A tile is a part of somebody's piece of the vector; all ranks number the tiles alike. Block b of
 * every rank has the tiles b, b + B, b + 2B, ... of B blocks. For each of them, in three rounds:
 *
 *     tile of another rank's piece             tile of the own piece
 *     1  encode to the owner's in, post sent
 *     2                                        wait for all sent, sum, encode to out, post final
 *     3  wait for final, decode owner's out
 *
 * So block b waits for blocks b of other ranks alone, and posts all that it owes before it waits.
 * Blocks are numbered in the order in which they start (a ticket), so those that others wait for
 * are never behind ones that wait. The epoch counts launches; it is in device memory, and the last
 * block advances it, so that replays of a graph go on. A flag is posted when it holds the epoch.
 * There are two sets of messages, by the epoch's parity: an owner posts epoch e + 1 after its
 * kernel of epoch e has ended, and nobody comes to epoch e + 2 without that, so a set is free when
 * it is written again, whatever order a kernel takes its tiles in.
 *
 * A wait that is aborted (board of struct dsc_gpu_state), that a peer ends by a note, or that
 * reaches its deadline ends the kernel, and no call ends any more: the residual is as it was, and
 * the feedback object is told that the call was given up.
 */
#ifndef DSC_KERNELS_TWO_SHOT_H
#define DSC_KERNELS_TWO_SHOT_H

#include "kernels/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_TWO_SHOT_RANKS 8

/* Device memory, of a launch's ranks together; all zero to begin with. */
struct dsc_two_shot_control {
    uint32_t epoch;   /* launches that have ended */
    uint32_t tickets; /* taken, of all launches */
    uint32_t done;    /* blocks of this launch */
    uint32_t failed;  /* not 0: a wait was given up, and so is all that follows */
};

/* What hosts of other ranks write into an arena. */
struct dsc_two_shot_notes {
    uint32_t told;                     /* not 0: rank told - 1 has given up, so waits end */
    uint32_t left[DSC_TWO_SHOT_RANKS]; /* 1: that rank does not touch the arena any more */
};

/* The one argument of the kernel. */
struct dsc_two_shot_args {
    /*
     * Ranks that this launch computes: one, or several that share a device. work.ops is
     * [2][DSC_TWO_SHOT_RANKS], by parity of the epoch and owner: where the rank's message goes in
     * the owner's arena and, for its own piece, what it sums and where the result goes in its own.
     * The message to decode is the first of an operation's recvs. work.tiles are all tiles, op: the
     * owner.
     */
    struct dsc_gpu_args ranks[DSC_TWO_SHOT_RANKS];
    uint8_t *arenas[DSC_TWO_SHOT_RANKS]; /* of all ranks */
    struct dsc_two_shot_control *control;
    uint64_t timeout_ns; /* of the kernel */
    uint64_t notes_at;   /* bytes in an arena */
    uint32_t n_ranks, n_local;
    uint32_t max_tiles; /* of a piece */
    uint32_t pad;
};

/* What dsc_gpu_board.stuck holds: which rank was waited for, in which stage. */
#define DSC_STUCK(stage, peer) ((uint64_t)(stage) << 32 | ((uint64_t)(peer) + 1))
#define DSC_STUCK_STAGE(stuck) ((enum dsc_gpu_stage)((stuck) >> 32))
#define DSC_STUCK_PEER(stuck) ((int)((stuck)&0xffffffffu) - 1)
/* In place of the stage: that rank has given up and said so. */
#define DSC_STUCK_TOLD DSC_GPU_N_STAGES

/* The kernel of a codec, of DSC_TWO_SHOT_THREADS threads; NULL: there is none (segment formats). */
const void *dsc_two_shot_function(const dscomm_codec_t *codec, dscomm_dtype_t dtype);
#define DSC_TWO_SHOT_THREADS 256

#ifdef __cplusplus
}
#endif

#endif
