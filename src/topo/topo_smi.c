/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nvidia-smi prints: the matrix of `topo -m`, that of `topo -p2p`, and the links of `nvlink
 * -s` and `nvlink -R`. Texts reach us through terminals and issue trackers: tabs may have become
 * blanks and the first header cell may be gone. The matrix says how many NVLinks a pair has, not
 * which GPUs these are, so their rate needs the model from elsewhere.
 */
#include "topo/topo_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS_MAX = 128,
    CELL_BYTES = 64,
    LINE_BYTES = 8192,
    NVLINKS_MAX = 18, /* of a GPU that is in such a matrix, behind switches or not */
};

/* ---- lines and cells ---- */

/* The next line without its end; false: there is none. Longer ones than a buffer are cut. */
static bool next_line(const char **text, char line[LINE_BYTES])
{
    size_t len;

    if (**text == '\0')
        return false;
    len = strcspn(*text, "\n");
    memcpy(line, *text, dsc_min_size(len, LINE_BYTES - 1));
    line[dsc_min_size(len, LINE_BYTES - 1)] = '\0';
    line[strcspn(line, "\r")] = '\0';
    *text += len + ((*text)[len] == '\n');
    return true;
}

static void copy_trimmed(char cell[CELL_BYTES], const char *text, size_t n)
{
    while (n > 0 && isspace((unsigned char)text[0])) {
        text++;
        n--;
    }
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        n--;
    dsc_topo_copy(cell, CELL_BYTES, text, n);
}

struct cells {
    char text[COLUMNS_MAX][CELL_BYTES];
    size_t start[COLUMNS_MAX];
    int n;
};

static void add_cell(struct cells *cells, const char *text, size_t n, size_t start)
{
    if (cells->n == COLUMNS_MAX)
        return;
    copy_trimmed(cells->text[cells->n], text, n);
    cells->start[cells->n++] = start;
}

static void split_tabs(const char *line, struct cells *cells)
{
    cells->n = 0;
    for (const char *at = line;;) {
        const size_t len = strcspn(at, "\t");

        add_cell(cells, at, len, 0);
        if (at[len] == '\0')
            return;
        at += len + 1;
    }
}

/* Cells of a header whose tabs have become blanks: at least two between them. */
static void split_blanks(const char *line, struct cells *cells)
{
    cells->n = 0;
    add_cell(cells, "", 0, 0);
    for (const char *at = line + strspn(line, " "); *at != '\0'; at += strspn(at, " ")) {
        const char *const end = strstr(at, "  ");
        const size_t len = end != NULL ? (size_t)(end - at) : strlen(at);

        add_cell(cells, at, len, (size_t)(at - line));
        at += len;
    }
}

/*
 * Cells of a row under such a header: the first n_names and the row's own name by the columns where
 * the header's cells begin, which they do not outgrow. What follows may: it counts only when it has
 * as many words as the header has names for them.
 */
static void split_columns(const char *line, const struct cells *header, int n_names,
                          struct cells *cells)
{
    const size_t len = strlen(line);
    const int n_rest = header->n - n_names - 1;
    int n_words = 0;

    cells->n = 0;
    for (int i = 0; i <= n_names; i++) {
        const size_t from = dsc_min_size(header->start[i], len);
        const size_t to = i + 1 < header->n ? dsc_min_size(header->start[i + 1], len) : len;

        add_cell(cells, line + from, to - from, from);
    }
    if (n_rest == 0)
        return;
    for (size_t at = dsc_min_size(header->start[n_names + 1], len); at < len;) {
        at += strspn(line + at, " ");

        const size_t word = strcspn(line + at, " ");

        n_words += word > 0;
        if (word > 0)
            add_cell(cells, line + at, word, at);
        at += word;
    }
    if (n_words != n_rest)
        cells->n = n_names + 1;
}

/* ---- the matrix ---- */

struct matrix {
    dscomm_topo_t *topo;
    const struct dsc_topo_source *src;
    struct cells header; /* cell 0 stands above the rows' names */
    bool has_tabs;
    int n_names;             /* columns that are devices: 1 to n_names */
    int device[COLUMNS_MAX]; /* of a column */
    int n_rows, n_kinds;     /* n_kinds: cells that say how a pair is joined */
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
    struct cells *const header = &matrix->header;

    matrix->has_tabs = strchr(line, '\t') != NULL;
    if (!matrix->has_tabs) {
        split_blanks(line, header);
    } else if (strncmp(line, "GPU", 3) == 0) { /* the tab in front was trimmed away */
        char whole[LINE_BYTES + 1];

        (void)snprintf(whole, sizeof(whole), "\t%s", line);
        split_tabs(whole, header);
    } else {
        split_tabs(line, header);
    }
    while (matrix->n_names + 1 < header->n && is_device_name(header->text[matrix->n_names + 1]))
        matrix->n_names++;
}

/* Where the topology is there already: "GPU3" is its gpu3, a NIC its name or nic3. */
static int find_listed(const dscomm_topo_t *topo, const char *name)
{
    const int found = dscomm_topo_find(topo, name);
    char lower[CELL_BYTES];

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
static dscomm_status_t take_affinity(struct matrix *matrix, int row, const struct cells *cells)
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
    struct cells cells;
    int row;

    if (matrix->has_tabs)
        split_tabs(line, &cells);
    else
        split_columns(line, &matrix->header, matrix->n_names, &cells);
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
    char text[CELL_BYTES];
    char *colon;

    copy_trimmed(text, line, strlen(line));
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
        topo->devices[i].pub.fabric_links = sum <= NVLINKS_MAX ? sum : most;
    }
}

static dscomm_status_t read_rows(struct matrix *matrix, const char *text)
{
    char line[LINE_BYTES];

    while (next_line(&text, line)) {
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
    char line[LINE_BYTES];
    dscomm_status_t st;
    int host = -1;

    if (matrix == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "matrix of %s", src->name);
    matrix->topo = topo;
    matrix->src = src;
    do {
        line[0] = '\0';
    } while (next_line(&text, line) && line[strspn(line, " \t")] == '\0');
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

/* ---- nvlink -s and nvlink -R ---- */

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
        if (port != NULL && strtoul(port + 7, NULL, 10) >= NVLINKS_MAX)
            end.target_class = 0x068000;
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
    char line[LINE_BYTES];
    int host;

    if (listing.is_new)
        DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_HOST, -1, &host));
    while (next_line(&text, line)) {
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
