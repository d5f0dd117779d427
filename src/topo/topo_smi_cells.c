/* SPDX-License-Identifier: Apache-2.0 */
/* Lines and cells of what nvidia-smi prints, with tabs or with blanks in their place. */
#include "topo/topo_smi.h"

#include <ctype.h>
#include <string.h>

bool dsc_smi_next_line(const char **text, char line[DSC_SMI_LINE_BYTES])
{
    size_t len;

    if (**text == '\0')
        return false;
    len = strcspn(*text, "\n");
    memcpy(line, *text, dsc_min_size(len, DSC_SMI_LINE_BYTES - 1));
    line[dsc_min_size(len, DSC_SMI_LINE_BYTES - 1)] = '\0';
    line[strcspn(line, "\r")] = '\0';
    *text += len + ((*text)[len] == '\n');
    return true;
}

void dsc_smi_copy_trimmed(char cell[DSC_SMI_CELL_BYTES], const char *text, size_t n)
{
    while (n > 0 && isspace((unsigned char)text[0])) {
        text++;
        n--;
    }
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        n--;
    dsc_topo_copy(cell, DSC_SMI_CELL_BYTES, text, n);
}

static void add_cell(struct dsc_smi_cells *cells, const char *text, size_t n, size_t start)
{
    if (cells->n == DSC_SMI_COLUMNS_MAX)
        return;
    dsc_smi_copy_trimmed(cells->text[cells->n], text, n);
    cells->start[cells->n++] = start;
}

void dsc_smi_split_tabs(const char *line, struct dsc_smi_cells *cells)
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

void dsc_smi_split_blanks(const char *line, struct dsc_smi_cells *cells)
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

void dsc_smi_split_columns(const char *line, const struct dsc_smi_cells *header, int n_names,
                           struct dsc_smi_cells *cells)
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
