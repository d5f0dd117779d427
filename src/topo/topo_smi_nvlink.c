/* SPDX-License-Identifier: Apache-2.0 */
/* The listings of `nvidia-smi nvlink -s`, rates of links, and `nvlink -R`, their other ends. */
#include "topo/topo_smi.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct listing {
    dscomm_topo_t *topo;
    const struct dsc_topo_source *src;
    int gpu; /* of the lines that follow; -1: none yet */
    bool is_new;
};

static dscomm_status_t take_gpu(struct listing *listing, const char *line)
{
    dscomm_topo_t *const topo = listing->topo;
    const char *const colon = strchr(line, ':');
    char name[32];

    (void)snprintf(name, sizeof(name), "gpu%lu", strtoul(line + 4, NULL, 10) % 100000);
    listing->gpu = dscomm_topo_find(topo, name);
    if (listing->gpu < 0 && !listing->is_new)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: %s is not in the topology", listing->src->name,
                        name);
    if (listing->gpu < 0) {
        DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_GPU, 0, &listing->gpu));
        if (colon != NULL)
            dsc_topo_copy(topo->devices[listing->gpu].pub.name, DSCOMM_TOPO_NAME_BYTES,
                          colon + 1 + strspn(colon + 1, " "), strcspn(colon + 1, "(\r\n") - 1);
    }
    topo->devices[listing->gpu].pub.fabric_links = 0;
    return DSCOMM_OK;
}

/* "Link 3: 25 GB/s", "Link 3: Remote Device 00000000:C5:00.0: Link 46", "Link 3: <inactive>". */
static dscomm_status_t take_link(struct listing *listing, const char *value)
{
    static const char remote[] = "Remote Device ";
    struct dsc_topo_end end = { .gpu = listing->gpu, .kind = DSCOMM_LINK_NVLINK, .count = 1 };
    struct dsc_topo_device *const dev = &listing->topo->devices[listing->gpu];
    char bus[32];

    if (strncmp(value, remote, sizeof(remote) - 1) == 0) {
        const char *const port = strstr(value, ": Link ");

        value += sizeof(remote) - 1;
        dsc_topo_copy(bus, sizeof(bus), value, strcspn(value, " "));
        if (port != NULL && strtoul(port + 7, NULL, 10) >= DSC_SMI_NVLINKS_MAX)
            end.target_class = DSC_TOPO_CLASS_SWITCH;
        if (bus[0] != '\0' && bus[strlen(bus) - 1] == ':')
            bus[strlen(bus) - 1] = '\0';
        if (!dsc_topo_bus_normalize(bus, end.target))
            return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: remote device \"%s\", expected a bus id",
                            listing->src->name, bus);
        return dsc_topo_end_add(listing->topo, &end);
    }

    const double gbps = strtod(value, NULL);

    if (!(gbps > 0) || gbps > 1e6)
        return DSCOMM_OK; /* inactive */
    dev->pub.fabric_links++;
    dev->fabric_link_bps = dsc_topo_nvlink_payload(gbps);
    if (dev->fabric_link_bps == 0)
        dsc_topo_note(listing->topo, "nvlink rate",
                      "links of %g GB/s: payload of such links is not known", gbps);
    return DSCOMM_OK;
}

/* A port number that no GPU has shows that its device is a switch, also for the other ports. */
static void spread_classes(dscomm_topo_t *topo)
{
    for (size_t i = 0; i < topo->n_ends; i++)
        for (size_t k = 0; k < topo->n_ends && topo->ends[i].target_class != 0; k++)
            if (strcmp(topo->ends[k].target, topo->ends[i].target) == 0)
                topo->ends[k].target_class = topo->ends[i].target_class;
}

dscomm_status_t dsc_topo_read_nvlinks(dscomm_topo_t *topo, const struct dsc_topo_source *src)
{
    struct listing listing = { topo, src, -1, topo->n_devices == 0 };
    const char *text = src->text;
    char line[DSC_SMI_LINE_BYTES];
    int host;

    if (listing.is_new)
        DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_HOST, -1, &host));
    while (dsc_smi_next_line(&text, line)) {
        const char *const at = line + strspn(line, " \t");
        const char *const colon = strchr(at, ':');

        if (strncmp(at, "GPU ", 4) == 0 && isdigit((unsigned char)at[4]))
            DSC_TRY(take_gpu(&listing, at));
        else if (strncmp(at, "Link ", 5) == 0 && colon != NULL && listing.gpu >= 0)
            DSC_TRY(take_link(&listing, colon + 1 + strspn(colon + 1, " ")));
        else if (at[0] != '\0')
            return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: \"%.40s\", expected \"GPU N:\" or \"Link N:\"",
                            src->name, at);
    }
    spread_classes(topo);
    return DSCOMM_OK;
}
