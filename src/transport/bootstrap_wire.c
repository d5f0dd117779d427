/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire forms of the rendezvous: the unique id, a rank's record, the answer. Everything decoded here
 * comes from outside; a length is compared before it is used and a text ends inside its field.
 *
 *   unique id   [magic 8][version 4][address 24][secret 32][is rank 0's 1][0 ...][CRC32C 4]
 */
#include "transport/bootstrap_internal.h"

#include <stdio.h>
#include <string.h>

#include "transport/bytes.h"
#include "transport/header.h"

#define ID_VERSION 1u

enum {
    ID_ADDR_AT = 12,
    ID_SECRET_AT = ID_ADDR_AT + DSC_ADDR_WIRE_BYTES,
    ID_RANK0_AT = ID_SECRET_AT + DSC_SECRET_BYTES,
    ID_CRC_AT = sizeof(dscomm_unique_id_t) - 4,
};

static const uint8_t id_magic[8] = { 'D', 'S', 'C', 'O', 'M', 'M', 'I', 'D' };

void dsc_unique_id_encode(const struct dsc_rendezvous *rv, dscomm_unique_id_t *id_out)
{
    uint8_t *const p = id_out->bytes;

    memset(id_out, 0, sizeof(*id_out));
    memcpy(p, id_magic, sizeof(id_magic));
    dsc_put_u32(p + 8, ID_VERSION);
    dsc_addr_encode(&rv->addr, p + ID_ADDR_AT);
    memcpy(p + ID_SECRET_AT, rv->secret, DSC_SECRET_BYTES);
    p[ID_RANK0_AT] = rv->is_rank0s;
    dsc_put_u32(p + ID_CRC_AT, dsc_crc32c(0, p, ID_CRC_AT));
}

dscomm_status_t dsc_unique_id_decode(const dscomm_unique_id_t *id, struct dsc_rendezvous *rv_out)
{
    const uint8_t *const p = id->bytes;
    struct dsc_rendezvous rv;

    if (memcmp(p, id_magic, sizeof(id_magic)) != 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "unique id was not made by dscomm_unique_id_create");
    if (dsc_get_u32(p + 8) != ID_VERSION)
        return dsc_fail(DSCOMM_ERR_INVALID, "unique id has version %u, this library makes %u",
                        dsc_get_u32(p + 8), ID_VERSION);
    if (dsc_get_u32(p + ID_CRC_AT) != dsc_crc32c(0, p, ID_CRC_AT))
        return dsc_fail(DSCOMM_ERR_INVALID, "unique id is damaged: its checksum does not fit");
    if (!dsc_addr_decode(p + ID_ADDR_AT, &rv.addr))
        return dsc_fail(DSCOMM_ERR_INVALID, "unique id has no address");
    memcpy(rv.secret, p + ID_SECRET_AT, DSC_SECRET_BYTES);
    rv.is_rank0s = p[ID_RANK0_AT] != 0;
    *rv_out = rv;
    return DSCOMM_OK;
}

uint32_t dsc_bootstrap_version(void)
{
    return DSCOMM_VERSION_MAJOR << 16 | DSCOMM_VERSION_MINOR << 8 | DSCOMM_VERSION_PATCH;
}

const char *dsc_bootstrap_version_text(uint32_t version, char buf[16])
{
    snprintf(buf, 16, "%u.%u.%u", version >> 16, version >> 8 & 0xff, version & 0xff);
    return buf;
}

void dsc_peer_info_encode(const struct dsc_peer_info *info, uint8_t wire[DSC_PEER_WIRE_BYTES])
{
    union dsc_addr addr;

    memcpy(addr.bytes, info->addr, sizeof(addr.bytes));
    memcpy(wire, info->host_id, DSC_HOST_ID_BYTES);
    wire += DSC_HOST_ID_BYTES;
    dsc_addr_encode(&addr, wire);
    wire += DSC_ADDR_WIRE_BYTES;
    dsc_put_u64(wire, info->process_id);
    dsc_put_u32(wire + 8, info->pid);
    dsc_put_u32(wire + 12, info->n_cpus);
    dsc_put_u64(wire + 16, info->rdma_key);
    memcpy(wire + 24, info->cpu_set, DSC_CPU_SET_BYTES);
}

bool dsc_peer_info_decode(const uint8_t wire[DSC_PEER_WIRE_BYTES], struct dsc_peer_info *info_out)
{
    union dsc_addr addr;

    memcpy(info_out->host_id, wire, DSC_HOST_ID_BYTES);
    info_out->host_id[DSC_HOST_ID_BYTES - 1] = '\0';
    wire += DSC_HOST_ID_BYTES;
    if (!dsc_addr_decode(wire, &addr))
        return false;
    memcpy(info_out->addr, addr.bytes, sizeof(addr.bytes));
    wire += DSC_ADDR_WIRE_BYTES;
    info_out->process_id = dsc_get_u64(wire);
    info_out->pid = dsc_get_u32(wire + 8);
    info_out->n_cpus = dsc_get_u32(wire + 12);
    info_out->rdma_key = dsc_get_u64(wire + 16);
    memcpy(info_out->cpu_set, wire + 24, DSC_CPU_SET_BYTES);
    return true;
}

size_t dsc_record_encode(const struct dsc_record *record,
                         uint8_t wire[DSC_FRAME_BYTES + DSC_RECORD_MAX])
{
    const size_t n_settings = strlen(record->settings);
    uint8_t *const p = wire + DSC_FRAME_BYTES;
    const size_t n = DSC_RECORD_PREFIX_BYTES + 4 + n_settings + DSC_PEER_WIRE_BYTES;

    dsc_put_u32(wire, (uint32_t)n);
    dsc_put_u32(p, record->version);
    dsc_put_u32(p + 4, record->n_ranks);
    dsc_put_u32(p + 8, record->rank);
    dsc_put_u32(p + 12, record->timeout_ms);
    dsc_put_u32(p + DSC_RECORD_PREFIX_BYTES, (uint32_t)n_settings);
    memcpy(p + DSC_RECORD_PREFIX_BYTES + 4, record->settings, n_settings);
    dsc_peer_info_encode(&record->info, p + n - DSC_PEER_WIRE_BYTES);
    return DSC_FRAME_BYTES + n;
}

const char *dsc_record_decode(const uint8_t *wire, size_t n, struct dsc_record *record_out)
{
    if (n < DSC_RECORD_PREFIX_BYTES)
        return "shorter than its fixed part";
    record_out->version = dsc_get_u32(wire);
    record_out->n_ranks = dsc_get_u32(wire + 4);
    record_out->rank = dsc_get_u32(wire + 8);
    record_out->timeout_ms = dsc_get_u32(wire + 12);
    if (record_out->version != dsc_bootstrap_version())
        return NULL;
    if (n < DSC_RECORD_PREFIX_BYTES + 4 + DSC_PEER_WIRE_BYTES)
        return "shorter than its fixed part";

    const uint32_t n_settings = dsc_get_u32(wire + DSC_RECORD_PREFIX_BYTES);

    if (n_settings != n - (DSC_RECORD_PREFIX_BYTES + 4 + DSC_PEER_WIRE_BYTES) ||
        n_settings >= DSC_SETTINGS_MAX)
        return "its settings have another length than it says";
    memcpy(record_out->settings, wire + DSC_RECORD_PREFIX_BYTES + 4, n_settings);
    record_out->settings[n_settings] = '\0';
    if (strlen(record_out->settings) != n_settings)
        return "its settings are not a text";
    if (!dsc_peer_info_decode(wire + n - DSC_PEER_WIRE_BYTES, &record_out->info))
        return "it has no address";
    return NULL;
}

void dsc_answer_encode(const struct dsc_answer *answer, size_t body_bytes,
                       uint8_t wire[DSC_FRAME_BYTES + DSC_ANSWER_PREFIX_BYTES])
{
    dsc_put_u32(wire, (uint32_t)(DSC_ANSWER_PREFIX_BYTES + body_bytes));
    dsc_put_u32(wire + 4, (uint32_t)(int32_t)answer->status);
    dsc_put_u32(wire + 8, answer->n_ranks);
    dsc_put_u64(wire + 12, answer->job);
}

/* DSCOMM_OK and errors; a number that this library has no name for is none. */
static bool is_final_status(int32_t number)
{
    switch (number) {
#define IS_STATUS(name, value, text) case value:
        DSCOMM_STATUS_MAP(IS_STATUS)
#undef IS_STATUS
        return number <= 0;
    default:
        return false;
    }
}

bool dsc_answer_decode(const uint8_t wire[DSC_ANSWER_PREFIX_BYTES], struct dsc_answer *answer_out)
{
    const int32_t status = (int32_t)dsc_get_u32(wire);

    if (!is_final_status(status))
        return false;
    answer_out->status = (dscomm_status_t)status;
    answer_out->n_ranks = dsc_get_u32(wire + 4);
    answer_out->job = dsc_get_u64(wire + 8);
    return true;
}
