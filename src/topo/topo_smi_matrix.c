/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrices of `nvidia-smi topo -m` and `topo -p2p`. The first says how many NVLinks a pair of
 * GPUs has, not which GPUs these are, so their rate needs the model from elsewhere.
 */
#include "topo/topo_smi.h"

#include <ctype.h>
#include <string.h>

struct matrix {
    dscomm_topo_t *topo;
    const struct dsc_topo_source *src;
    struct dsc_smi_cells header; /* cell 0 stands above the rows' names */
    bool has_tabs;
    int n_names;                     /* columns that are devices: 1 to n_names */
    int device[DSC_SMI_COLUMNS_MAX]; /* of a column */
    int n_rows, n_kinds;             /* n_kinds: cells that say how a pair is joined */
};

static bool is_gpu_name(const char *name)
{
    return strncmp(name, "GPU", 3) == 0 && isdigit((unsigned char)name[3]);
}

static bool is_device_name(const char *name)
{
    return name[0] != '\0' && strcmp(name, "CPU Affinity") != 0 &&
           strcmp(name, "NUMA Affinity") != 0 && strcmp(name, "GPU NUMA ID") != 0;
}

static void read_header(struct matrix *matrix, const char *line)
{
    struct dsc_smi_cells *const header = &matrix->header;

    matrix->has_tabs = strchr(line, '\t') != NULL;
    if (!matrix->has_tabs) {
        dsc_smi_split_blanks(line, header);
    } else if (strncmp(line, "GPU", 3) == 0) { /* the tab in front was trimmed away */
        char whole[DSC_SMI_LINE_BYTES + 1];

        (void)snprintf(whole, sizeof(whole), "\t%s", line);
        dsc_smi_split_tabs(whole, header);
    } else {
        dsc_smi_split_tabs(line, header);
    }
    while (matrix->n_names + 1 < header->n && is_device_name(header->text[matrix->n_names + 1]))
        matrix->n_names++;
}

/* Where the topology is there already: "GPU3" is its gpu3, a NIC its name or nic3. */
static int find_listed(const dscomm_topo_t *topo, const char *name)
{
    const int found = dscomm_topo_find(topo, name);
    char lower[DSC_SMI_CELL_BYTES];

    if (found >= 0)
        return found;
    for (size_t i = 0; i < sizeof(lower); i++)
        lower[i] = (char)tolower((unsigned char)name[i]);
    return dscomm_topo_find(topo, lower);
}

static dscomm_status_t add_device(struct matrix *matrix, int host, int column)
{
    const char *const name = matrix->header.text[column];
    const bool is_gpu = is_gpu_name(name);
    dscomm_topo_device_t *pub;

    for (int i = 1; i < column; i++)
        if (strcmp(matrix->header.text[i], name) == 0)
            return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: two columns are named %s", matrix->src->name,
                            name);
    DSC_TRY(dsc_topo_device_add(matrix->topo, is_gpu ? DSCOMM_DEVICE_GPU : DSCOMM_DEVICE_NIC, host,
                                &matrix->device[column]));
    pub = &matrix->topo->devices[matrix->device[column]].pub;
    dsc_topo_copy(pub->name, sizeof(pub->name), name, strlen(name));
    return DSCOMM_OK;
}

/* Devices of the header, made below a host, or for host -1 found. */
static dscomm_status_t take_devices(struct matrix *matrix, int host)
{
    for (int i = 1; i <= matrix->n_names; i++) {
        if (host >= 0) {
            DSC_TRY(add_device(matrix, host, i));
            continue;
        }
        matrix->device[i] = find_listed(matrix->topo, matrix->header.text[i]);
        if (matrix->device[i] < 0)
            return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: %s is not in the topology", matrix->src->name,
                            matrix->header.text[i]);
    }
    return DSCOMM_OK;
}

static int row_of(const struct matrix *matrix, const char *name)
{
    for (int i = 1; i <= matrix->n_names; i++)
        if (strcmp(matrix->header.text[i], name) == 0)
            return i;
    return 0;
}

static dscomm_link_kind_t kind_of(const char *cell, int *count_out)
{
    static const struct {
        const char *name;
        dscomm_link_kind_t kind;
    } kinds[] = { { "PIX", DSCOMM_LINK_PIX }, { "PXB", DSCOMM_LINK_PXB },
                  { "PHB", DSCOMM_LINK_PHB }, { "NODE", DSCOMM_LINK_NODE },
                  { "SYS", DSCOMM_LINK_SYS }, { "SOC", DSCOMM_LINK_SYS } };
    int64_t count;

    *count_out = 0;
    for (size_t i = 0; i < DSC_ARRAY_LEN(kinds); i++)
        if (strcmp(cell, kinds[i].name) == 0)
            return kinds[i].kind;
    if (strncmp(cell, "NV", 2) != 0 || !dsc_topo_parse_int(cell + 2, 1, 64, &count))
        return DSCOMM_LINK_NONE;
    *count_out = (int)count;
    return DSCOMM_LINK_NVLINK;
}

/* Peer access: OK, or the reason why not. */
static bool is_p2p(const char *cell, bool *allowed_out)
{
    static const char *const no[] = { "CNS", "GNS", "TNS", "NS", "DR", "U" };

    *allowed_out = strcmp(cell, "OK") == 0;
    for (size_t i = 0; i < DSC_ARRAY_LEN(no); i++)
        if (strcmp(cell, no[i]) == 0)
            return true;
    return *allowed_out;
}

static dscomm_status_t take_cell(struct matrix *matrix, int row, int column, const char *cell)
{
    const int a = matrix->device[row], b = matrix->device[column];
    dscomm_topo_link_t *link;
    dscomm_link_kind_t kind;
    bool is_allowed;
    int count;

    if (row == column || strcmp(cell, "X") == 0)
        return DSCOMM_OK;
    if (is_p2p(cell, &is_allowed))
        return dsc_topo_p2p_add(matrix->topo, a, b, is_allowed);
    kind = kind_of(cell, &count);
    if (kind == DSCOMM_LINK_NONE)
        return dsc_fail(DSCOMM_ERR_CORRUPT,
                        "%s: %s to %s is \"%s\", allowed: X NV1 to NV64 PIX PXB "
                        "PHB NODE SYS, or OK CNS GNS TNS NS DR U",
                        matrix->src->name, matrix->header.text[row], matrix->header.text[column],
                        cell);
    matrix->n_kinds++;
    if (column < row) /* stated from the other side */
        return DSCOMM_OK;
    return dsc_topo_link_add(matrix->topo, a, b, kind, count, &link);
}

/* Behind the devices' columns: CPUs, then the NUMA node, which may be empty or a range. */
static dscomm_status_t take_affinity(struct matrix *matrix, int row,
                                     const struct dsc_smi_cells *cells)
{
    int column = 0, numa;
    int64_t number;

    for (int i = matrix->n_names + 1; i < matrix->header.n; i++)
        if (strcmp(matrix->header.text[i], "NUMA Affinity") == 0)
            column = i;
    if (column == 0 || column >= cells->n || matrix->device[row] < 0)
        return DSCOMM_OK;
    if (dsc_topo_parse_int(cells->text[column], 0, 4096, &number)) {
        DSC_TRY(dsc_topo_numa(matrix->topo, 0, (int)number, &numa));
        matrix->topo->devices[matrix->device[row]].pub.numa = (int)number;
        matrix->topo->devices[matrix->device[row]].pub.parent = numa;
    } else if (strchr(cells->text[column], '-') != NULL) {
        dsc_topo_note(matrix->topo, "numa range", "%s is at NUMA nodes %s: node unknown",
                      matrix->header.text[row], cells->text[column]);
    }
    return DSCOMM_OK;
}

static dscomm_status_t take_row(struct matrix *matrix, const char *line)
{
    struct dsc_smi_cells cells;
    int row;

    if (matrix->has_tabs)
        dsc_smi_split_tabs(line, &cells);
    else
        dsc_smi_split_columns(line, &matrix->header, matrix->n_names, &cells);
    row = row_of(matrix, cells.text[0]);
    if (row == 0)
        return DSCOMM_OK; /* the legend */
    matrix->n_rows++;
    if (cells.n <= matrix->n_names)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: row %s has %d cells, %d devices are named",
                        matrix->src->name, cells.text[0], cells.n - 1, matrix->n_names);
    for (int i = 1; i <= matrix->n_names; i++)
        DSC_TRY(take_cell(matrix, row, i, cells.text[i]));
    return is_gpu_name(cells.text[0]) ? take_affinity(matrix, row, &cells) : DSCOMM_OK;
}

/* "  NIC0: mlx5_0" of the legend names a column. */
static void take_legend(struct matrix *matrix, const char *line)
{
    char text[DSC_SMI_CELL_BYTES];
    char *colon;

    dsc_smi_copy_trimmed(text, line, strlen(line));
    colon = strchr(text, ':');
    if (colon == NULL || strncmp(text, "NIC", 3) != 0)
        return;
    *colon = '\0';

    const int row = row_of(matrix, text);
    const char *const name = colon + 1 + strspn(colon + 1, " ");

    if (row != 0 && name[0] != '\0')
        dsc_topo_copy(matrix->topo->devices[matrix->device[row]].pub.name, DSCOMM_TOPO_NAME_BYTES,
                      name, strlen(name));
}

/*
 * Links of a GPU over all pairs. Direct links add up; behind switches every pair shows all of them,
 * and the sum exceeds what any such GPU has.
 */
static void count_fabric(struct matrix *matrix)
{
    dscomm_topo_t *const topo = matrix->topo;

    for (int i = 0; i < (int)topo->n_devices; i++) {
        int sum = 0, most = 0;

        if (topo->devices[i].pub.kind != DSCOMM_DEVICE_GPU)
            continue;
        for (size_t k = 0; k < topo->n_links; k++) {
            const dscomm_topo_link_t *const link = &topo->links[k];

            if (link->kind != DSCOMM_LINK_NVLINK || (link->a != i && link->b != i))
                continue;
            sum += link->count;
            most = link->count > most ? link->count : most;
        }
        topo->devices[i].pub.fabric_links = sum <= DSC_SMI_NVLINKS_MAX ? sum : most;
    }
}

static dscomm_status_t read_rows(struct matrix *matrix, const char *text)
{
    char line[DSC_SMI_LINE_BYTES];

    while (dsc_smi_next_line(&text, line)) {
        DSC_TRY(take_row(matrix, line));
        take_legend(matrix, line);
    }
    if (matrix->n_rows == matrix->n_names)
        return DSCOMM_OK;
    return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: %d devices are named, %d rows are there",
                    matrix->src->name, matrix->n_names, matrix->n_rows);
}

dscomm_status_t dsc_topo_read_matrix(dscomm_topo_t *topo, const struct dsc_topo_source *src)
{
    struct matrix *const matrix = dsc_calloc(DSC_MEM_TOPO, 1, sizeof(*matrix));
    const bool is_new = topo->n_devices == 0;
    const char *text = src->text;
    char line[DSC_SMI_LINE_BYTES];
    dscomm_status_t st;
    int host = -1;

    if (matrix == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "matrix of %s", src->name);
    matrix->topo = topo;
    matrix->src = src;
    do {
        line[0] = '\0';
    } while (dsc_smi_next_line(&text, line) && line[strspn(line, " \t")] == '\0');
    read_header(matrix, line);
    if (is_new)
        DSC_TRY_GOTO(out, dsc_topo_device_add(topo, DSCOMM_DEVICE_HOST, -1, &host));
    DSC_TRY_GOTO(out, take_devices(matrix, host));
    DSC_TRY_GOTO(out, read_rows(matrix, text));
    if (is_new && matrix->n_kinds > 0)
        count_fabric(matrix);
    st = DSCOMM_OK;

out:
    dsc_free(matrix);
    return st;
}
