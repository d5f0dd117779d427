/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint's error: the first one stays, every peer hears of it once. A peer that was told
 * passes it on once to all of its own peers, so an error reaches ranks that share no connection
 * with the one who found it.
 */
#include "transport/net_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/netif.h"

const char *dsc_net_peer_text(const struct dsc_net *net, int peer, const char *transport,
                              char buf[DSC_PEER_TEXT_BYTES])
{
    const struct dsc_peer_info *const info = &net->infos[peer];
    union dsc_addr addr;
    char text[DSC_ADDR_TEXT_BYTES];

    memcpy(addr.bytes, info->addr, sizeof(addr.bytes));
    if (strcmp(transport, "loopback") == 0 || strcmp(transport, "shm") == 0)
        snprintf(buf, DSC_PEER_TEXT_BYTES, "rank %d (%s, pid %u)", peer, transport, info->pid);
    else
        snprintf(buf, DSC_PEER_TEXT_BYTES, "rank %d (%s %s)", peer, transport,
                 dsc_addr_text(&addr, text));
    return buf;
}

void dsc_error_put(char *buf, size_t buf_bytes, dscomm_status_t status, int rank, const char *text)
{
    snprintf(buf, buf_bytes, "%d %d %s", (int)status, rank, text);
}

const char *dsc_error_get(const char *buf, int n_ranks, dscomm_status_t *status_out, int *rank_out)
{
    char *end;
    const long status = strtol(buf, &end, 10);
    const long rank = strtol(end, &end, 10);

    if (*end != ' ' || status > DSCOMM_IN_PROGRESS || status < -1000 || rank < 0 || rank >= n_ranks)
        return NULL;
    *status_out = (dscomm_status_t)status;
    *rank_out = (int)rank;
    return end + 1;
}

void dsc_net_set_error(struct dsc_net *net, dscomm_status_t status, int rank, const char *fmt, ...)
{
    va_list args;

    if (net->error != DSCOMM_OK)
        return;
    va_start(args, fmt);
    vsnprintf(net->error_text, sizeof(net->error_text), fmt, args);
    va_end(args);
    net->error_rank = rank;
    net->error = dsc_fail(status, "%s", net->error_text);
}

/* The limit for telling everybody, whoever does not read. */
#define NOTIFY_NS 50000000u

static void tell_all(struct dsc_net *net, dscomm_status_t status, int rank, const char *text,
                     const struct dsc_conn *except)
{
    net->notify_until_ns = dsc_now_ns() + NOTIFY_NS;
    for (int i = 0; i < net->n_conns; i++)
        if (net->conns[i] != except)
            net->conns[i]->ops->notify(net->conns[i], status, rank, text);
    dsc_setup_tell_all(net, status, rank, text);
}

static int find_report(const struct dsc_net *net, dscomm_status_t status, const char *text)
{
    for (size_t i = 0; i < net->n_reports; i++)
        if (net->reports[i].status == status && strcmp(net->reports[i].text, text) == 0)
            return (int)i;
    return -1;
}

/* False: another rank told the same, or there are enough. */
static bool add_report(struct dsc_net *net, dscomm_status_t status, int rank, const char *text)
{
    if (find_report(net, status, text) >= 0)
        return false;
    if (net->n_reports == DSC_MAX_REPORTS)
        return false;
    net->reports[net->n_reports].status = status;
    net->reports[net->n_reports].rank = rank;
    snprintf(net->reports[net->n_reports].text, DSC_ERROR_TEXT_MAX, "%s", text);
    net->n_reports++;
    return true;
}

void dsc_net_heard(struct dsc_net *net, const struct dsc_conn *from, dscomm_status_t status,
                   int rank, const char *text)
{
    if (!add_report(net, status, rank, text))
        return;
    if (strncmp(text, "rank ", 5) == 0) /* says who speaks */
        dsc_net_set_error(net, status, rank, "%s", text);
    else
        dsc_net_set_error(net, status, rank, "rank %d: %s", rank, text);
    tell_all(net, status, rank, text, from);
}

/* ---- calls that differ ---- */

void dsc_net_enter(struct dsc_net *net, uint32_t sequence, uint64_t hash, const char *descriptor)
{
    if (net->n_entered == 0 || net->sequence != sequence || net->hash != hash)
        net->n_entered++;
    net->sequence = sequence;
    net->hash = hash;
    net->descriptor = descriptor;
}

void dsc_net_leave(struct dsc_net *net)
{
    net->descriptor = NULL;
}

/* "N_ENTERED call=SEQUENCE DESCRIPTOR" */
static void call_text(const struct dsc_net *net, char text[DSC_ERROR_TEXT_MAX])
{
    snprintf(text, DSC_ERROR_TEXT_MAX, "%u call=%u %s", net->n_entered, net->sequence,
             net->descriptor);
}

void dsc_net_tell_call(struct dsc_net *net)
{
    char text[DSC_ERROR_TEXT_MAX];

    if (net->descriptor == NULL)
        return;
    call_text(net, text);
    net->notify_until_ns = dsc_now_ns() + NOTIFY_NS;
    for (int i = 0; i < net->n_conns; i++)
        net->conns[i]->ops->notify(net->conns[i], DSCOMM_IN_PROGRESS, net->rank, text);
}

/* A peer that is ahead or behind, or a rank between calls, has nothing to compare with yet. */
static void compare_calls(struct dsc_conn *conn, const char *theirs)
{
    const struct dsc_net *const net = conn->net;
    char own[DSC_ERROR_TEXT_MAX], *text;

    if (net->descriptor == NULL || net->error != DSCOMM_OK ||
        strtoul(theirs, &text, 10) != net->n_entered || *text != ' ')
        return;
    call_text(net, own);
    if (strcmp(own, theirs) != 0)
        dsc_net_heard(conn->net, conn, DSCOMM_ERR_MISMATCH, conn->peer, text + 1);
}

void dsc_net_told(struct dsc_conn *conn, dscomm_status_t status, int rank, const char *text)
{
    if (status == DSCOMM_OK)
        conn->peer_left = true;
    else if (status == DSCOMM_IN_PROGRESS)
        compare_calls(conn, text);
    else
        dsc_net_heard(conn->net, conn, status, rank, text);
}

size_t dsc_net_reports(const struct dsc_net *net, const struct dsc_report **reports_out)
{
    *reports_out = net->reports;
    return net->n_reports;
}

void dsc_net_lost(struct dsc_conn *conn, const char *why)
{
    char peer[DSC_PEER_TEXT_BYTES];

    dsc_net_set_error(conn->net, DSCOMM_ERR_PEER_LOST, conn->peer, "lost %s: %s",
                      dsc_net_peer_text(conn->net, conn->peer, conn->ops->name, peer), why);
}

void dsc_net_left(struct dsc_conn *conn)
{
    dsc_net_set_error(conn->net, DSCOMM_ERR_PEER_LOST, conn->peer,
                      "rank %d left while this rank still needed it", conn->peer);
}

void dsc_net_fail(struct dsc_net *net, dscomm_status_t status, const char *text)
{
    if (net->error == DSCOMM_OK) {
        net->error = status;
        net->error_rank = net->rank;
        snprintf(net->error_text, sizeof(net->error_text), "%s", text);
    }
    const bool is_new = add_report(net, status, net->rank, text);

    net->own_report = find_report(net, status, text);
    if (is_new)
        tell_all(net, status, net->rank, text, NULL);
    dsc_setup_tell_waiting(net);
}

const char *dsc_net_error_text(const struct dsc_net *net)
{
    return net->error_text;
}

int dsc_net_error_rank(const struct dsc_net *net)
{
    return net->error_rank;
}
