/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a file whole, sees from its content which kind of text it is, hands it to that reader. What
 * can be mistaken for nothing else comes first; the plain text, whose reader knows best what is
 * wrong with it, last.
 */
#include "topo/topo_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef dscomm_status_t reader_fn(dscomm_topo_t *topo, const struct dsc_topo_source *src);

static const char *first_text(const char *text)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    return text + strspn(text, " \t\r\n");
}

static bool is_xml(const char *text)
{
    return first_text(text)[0] == '<';
}

static bool is_hwloc_xml(const char *text)
{
    return is_xml(text) &&
           (strstr(text, "<topology") != NULL || strstr(text, "hwloc2.dtd") != NULL);
}

static bool is_matrix(const char *text)
{
    return strncmp(first_text(text), "GPU0", 4) == 0;
}

static bool is_links(const char *text)
{
    return strncmp(first_text(text), "GPU 0", 5) == 0 || strstr(text, "\n\t Link 0:") != NULL;
}

static bool is_any(const char *text)
{
    (void)text;
    return true;
}

static const struct {
    bool (*is_kind)(const char *text);
    reader_fn *read;
    bool is_addable;
} kinds[] = {
    { is_hwloc_xml, dsc_topo_read_hwloc_xml, false },
    { is_xml, dsc_topo_read_nccl_xml, false },
    { is_matrix, dsc_topo_read_matrix, true },
    { is_links, dsc_topo_read_nvlinks, true },
    { is_any, dsc_topo_read_text, true },
};

static dscomm_status_t read_source(dscomm_topo_t *topo, const struct dsc_topo_source *src,
                                   bool is_adding)
{
    size_t kind = 0;

    if (memchr(src->text, '\0', src->n_bytes) != NULL)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: holds a zero byte, is no text", src->name);
    while (!kinds[kind].is_kind(src->text))
        kind++;
    if (is_adding && !kinds[kind].is_addable)
        return dsc_fail(DSCOMM_ERR_CORRUPT,
                        "%s: XML describes a whole machine, it cannot be added to another",
                        src->name);
    DSC_TRY(kinds[kind].read(topo, src));
    return dsc_topo_finish(topo);
}

dscomm_status_t dsc_topo_add_text(dscomm_topo_t *topo, const char *name, const char *text,
                                  size_t n_bytes)
{
    char *const copy =
        n_bytes <= DSC_TOPO_FILE_BYTES_MAX ? dsc_calloc(DSC_MEM_TOPO, 1, n_bytes + 1) : NULL;
    const struct dsc_topo_source src = { name, copy, n_bytes };
    dscomm_status_t st;

    if (n_bytes > DSC_TOPO_FILE_BYTES_MAX)
        return dsc_fail(DSCOMM_ERR_LIMIT, "%s: %zu bytes, at most %u", name, n_bytes,
                        DSC_TOPO_FILE_BYTES_MAX);
    if (copy == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "%zu bytes of %s", n_bytes, name);
    memcpy(copy, text, n_bytes); /* readers want a NUL at the end */
    st = read_source(topo, &src, topo->n_devices > 0);
    dsc_free(copy);
    return st;
}

dscomm_status_t dsc_topo_load_text(const char *name, const char *text, size_t n_bytes,
                                   const dscomm_topo_config_t *config, dscomm_topo_t **topo_out)
{
    dscomm_topo_t *topo;
    dscomm_status_t st;

    DSC_TRY(dsc_topo_create(config, &topo));
    DSC_TRY_GOTO(err, dsc_topo_add_text(topo, name, text, n_bytes));
    *topo_out = topo;
    return DSCOMM_OK;

err:
    dscomm_topo_destroy(topo);
    return st;
}

/* ---- files ---- */

static dscomm_status_t read_stream(FILE *file, const char *path, char **text_out, size_t *n_out)
{
    char *const text = dsc_calloc(DSC_MEM_TOPO, 1, DSC_TOPO_FILE_BYTES_MAX + 1);

    if (text == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "room for %s", path);
    *n_out = fread(text, 1, DSC_TOPO_FILE_BYTES_MAX + 1, file);
    if (ferror(file) == 0) {
        *text_out = text;
        return DSCOMM_OK;
    }
    dsc_free(text);
    return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "reading %s", path);
}

static dscomm_status_t read_file(const char *path, char **text_out, size_t *n_out)
{
    FILE *file;
    dscomm_status_t st;

    if (path == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "topology file NULL");
    file = fopen(path, "rbe");
    if (file == NULL)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "opening %s", path);
    st = read_stream(file, path, text_out, n_out);
    (void)fclose(file);
    return st;
}

dscomm_status_t dscomm_topo_load(const char *path, const dscomm_topo_config_t *config,
                                 dscomm_topo_t **topo_out)
{
    char *text;
    size_t n_bytes;
    dscomm_status_t st;

    DSC_TRY(read_file(path, &text, &n_bytes));
    st = dsc_topo_load_text(path, text, n_bytes, config, topo_out);
    dsc_free(text);
    return st;
}

dscomm_status_t dscomm_topo_add(dscomm_topo_t *topo, const char *path)
{
    char *text;
    size_t n_bytes;
    dscomm_status_t st;

    DSC_TRY(read_file(path, &text, &n_bytes));
    st = dsc_topo_add_text(topo, path, text, n_bytes);
    dsc_free(text);
    return st;
}

/* ---- this host ---- */

dscomm_status_t dsc_topo_load_host(const struct dsc_topo_host_sources *sources,
                                   const dscomm_topo_config_t *config, dscomm_topo_t **topo_out)
{
    dscomm_topo_t *topo;
    dscomm_status_t st;

    DSC_TRY(dsc_topo_create(config, &topo));
    topo->is_quiet = sources->quiet;
    DSC_TRY_GOTO(err, dsc_topo_read_hwloc(topo, sources->hwloc_xml));
    dsc_topo_read_sysfs(topo, sources->sysfs);
    DSC_TRY_GOTO(err, dsc_topo_read_nvml(topo, sources));
    DSC_TRY_GOTO(err, dsc_topo_finish(topo));
    *topo_out = topo;
    return DSCOMM_OK;

err:
    dscomm_topo_destroy(topo);
    return st;
}

dscomm_status_t dscomm_topo_load_host(const dscomm_topo_config_t *config, dscomm_topo_t **topo_out)
{
    const struct dsc_topo_host_sources sources = {
        .sysfs = "/sys",
        .nvml = "libnvidia-ml.so.1",
        .visible = dsc_env_launcher("CUDA_VISIBLE_DEVICES"),
    };

    return dsc_topo_load_host(&sources, config, topo_out);
}
