/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the readers of what nvidia-smi prints: lines and cells. Texts reach us through
 * terminals and issue trackers: tabs may have become blanks and the first header cell may be gone.
 */
#ifndef DSC_TOPO_SMI_H
#define DSC_TOPO_SMI_H

#include "topo/topo_internal.h"

#define DSC_SMI_COLUMNS_MAX 128
#define DSC_SMI_CELL_BYTES 64
#define DSC_SMI_LINE_BYTES 8192
/* Of a GPU that such texts are about, behind switches or not. */
#define DSC_SMI_NVLINKS_MAX 18

struct dsc_smi_cells {
    char text[DSC_SMI_COLUMNS_MAX][DSC_SMI_CELL_BYTES];
    size_t start[DSC_SMI_COLUMNS_MAX]; /* column of the line; 0 after tabs */
    int n;
};

/* The next line without its end; false: there is none. Longer ones than a buffer are cut. */
bool dsc_smi_next_line(const char **text, char line[DSC_SMI_LINE_BYTES]);
/* n characters without blanks around them. */
void dsc_smi_copy_trimmed(char cell[DSC_SMI_CELL_BYTES], const char *text, size_t n);
void dsc_smi_split_tabs(const char *line, struct dsc_smi_cells *cells);
/* Cells of a header whose tabs have become blanks: at least two between them. */
void dsc_smi_split_blanks(const char *line, struct dsc_smi_cells *cells);
/*
 * Cells of a row under such a header: the first n_names and the row's own name by the columns where
 * the header's cells begin, which they do not outgrow. What follows may: it counts only when it has
 * as many words as the header has names for them.
 */
void dsc_smi_split_columns(const char *line, const struct dsc_smi_cells *header, int n_names,
                           struct dsc_smi_cells *cells);

#endif
