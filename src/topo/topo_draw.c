/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology as a picture: for Graphviz, or as SVG by a layout of our own. Devices stand in rows
 * by their depth in the tree, as wide as what is below them; fabric and stated links are arcs
 * under the tree, fabric switches stand below it.
 */
#include "topo/topo_internal.h"

#include <stdlib.h>

enum { CELL_WIDTH = 132, ROW_HEIGHT = 76, BOX_WIDTH = 120, BOX_HEIGHT = 44, MARGIN = 20 };

/* Text of labels: names come from files. */
static void write_escaped(FILE *out, const char *text, bool is_xml)
{
    for (; *text != '\0'; text++) {
        if (is_xml && *text == '<')
            (void)fputs("&lt;", out);
        else if (is_xml && *text == '&')
            (void)fputs("&amp;", out);
        else if (!is_xml && (*text == '"' || *text == '\\'))
            (void)fprintf(out, "\\%c", *text);
        else
            (void)fputc(*text, out);
    }
}

static const char *color_of(dscomm_link_kind_t kind)
{
    return kind == DSCOMM_LINK_NVLINK || kind == DSCOMM_LINK_XGMI ? "#2a7f2a"
           : kind == DSCOMM_LINK_C2C                              ? "#7f5a2a"
                                                                  : "#888888";
}

static const char *fill_of(dscomm_device_kind_t kind)
{
    static const char *const fills[] = { "#eeeeee", "#dde6f5", "#f7f7f7", "#d9f0d3",
                                         "#fde8c8", "#e6d8f0", "#ffffff" };

    return fills[kind];
}

/* ---- Graphviz ---- */

static void write_dot_device(const dscomm_topo_t *topo, int device, FILE *out)
{
    const dscomm_topo_device_t *const pub = &topo->devices[device].pub;
    char label[DSC_TOPO_LABEL_BYTES], rate[DSC_TOPO_RATE_BYTES];

    (void)fprintf(out, "  d%d [label=\"", device);
    write_escaped(out, dsc_topo_label(topo, device, label), false);
    (void)fprintf(out, "\", fillcolor=\"%s\"];\n", fill_of(pub->kind));
    if (pub->parent < 0 || pub->kind == DSCOMM_DEVICE_FABRIC)
        return;
    (void)fprintf(out, "  d%d -- d%d", pub->parent, device);
    if (dsc_topo_is_known(&pub->up))
        (void)fprintf(out, " [label=\"%s\"]", dsc_topo_rate_text(&pub->up, rate));
    (void)fprintf(out, ";\n");
}

void dsc_topo_write_dot(const dscomm_topo_t *topo, FILE *out)
{
    char rate[DSC_TOPO_RATE_BYTES];

    (void)fprintf(out, "graph topology {\n"
                       "  node [shape=box, style=filled, fontname=\"sans-serif\"];\n"
                       "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (int i = 0; i < (int)topo->n_devices; i++)
        write_dot_device(topo, i, out);
    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t *const link = &topo->links[i];

        (void)fprintf(out, "  d%d -- d%d [color=\"%s\", constraint=false, label=\"%s", link->a,
                      link->b, color_of(link->kind), dsc_topo_link_name(link->kind));
        if (link->count > 0)
            (void)fprintf(out, " x%d", link->count);
        (void)fprintf(out, " %s\"];\n", dsc_topo_rate_text(&link->rate, rate));
    }
    (void)fprintf(out, "}\n");
}

/* ---- SVG ---- */

struct place {
    double x; /* middle */
    int row;
};

struct drawing {
    const dscomm_topo_t *topo;
    struct place *places; /* [n_devices] */
    int n_leaves, n_rows, n_switches;
};

/* Leaves get cells from the left, what is above stands over the middle of its own. */
static void place_tree(struct drawing *drawing, int device, int row)
{
    const dscomm_topo_t *const topo = drawing->topo;
    double first = -1, last = 0;

    drawing->places[device].row = row;
    if (row + 1 > drawing->n_rows)
        drawing->n_rows = row + 1;
    for (int i = 0; i < (int)topo->n_devices; i++) {
        if (topo->devices[i].pub.parent != device ||
            topo->devices[i].pub.kind == DSCOMM_DEVICE_FABRIC)
            continue;
        place_tree(drawing, i, row + 1);
        if (first < 0)
            first = drawing->places[i].x;
        last = drawing->places[i].x;
    }
    drawing->places[device].x =
        first >= 0 ? (first + last) / 2 : (drawing->n_leaves++ + 0.5) * CELL_WIDTH;
}

static void place_all(struct drawing *drawing)
{
    const dscomm_topo_t *const topo = drawing->topo;

    for (int i = 0; i < (int)topo->n_devices; i++)
        if (topo->devices[i].pub.parent < 0)
            place_tree(drawing, i, 0);
    for (size_t i = 0; i < topo->n_devices; i++)
        drawing->n_switches += topo->devices[i].pub.kind == DSCOMM_DEVICE_FABRIC;
    for (int i = 0, n_placed = 0; i < (int)topo->n_devices; i++) { /* over the whole width */
        const int n_cells =
            drawing->n_leaves > drawing->n_switches ? drawing->n_leaves : drawing->n_switches;

        if (topo->devices[i].pub.kind != DSCOMM_DEVICE_FABRIC)
            continue;
        drawing->places[i].row = drawing->n_rows + 1;
        drawing->places[i].x =
            (n_placed++ + 0.5) * CELL_WIDTH * n_cells / (double)drawing->n_switches;
    }
}

static double y_of(const struct drawing *drawing, int device)
{
    return MARGIN + (double)drawing->places[device].row * ROW_HEIGHT;
}

static double x_of(const struct drawing *drawing, int device)
{
    return MARGIN + drawing->places[device].x;
}

static void write_box(const struct drawing *drawing, int device, FILE *out)
{
    const dscomm_topo_device_t *const pub = &drawing->topo->devices[device].pub;
    const double x = x_of(drawing, device), y = y_of(drawing, device);
    char label[DSC_TOPO_LABEL_BYTES], rate[DSC_TOPO_RATE_BYTES];

    (void)fprintf(out,
                  "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"%s\" "
                  "stroke=\"#555555\"/>\n",
                  x - BOX_WIDTH / 2.0, y, BOX_WIDTH, BOX_HEIGHT, fill_of(pub->kind));
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">", x, y + 18);
    write_escaped(out, dsc_topo_label(drawing->topo, device, label), true);
    (void)fprintf(out, "</text>\n");
    if (dsc_topo_is_known(&pub->port) || dsc_topo_is_known(&pub->up))
        (void)fprintf(
            out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y + 34,
            dsc_topo_rate_text(dsc_topo_is_known(&pub->port) ? &pub->port : &pub->up, rate));
}

static void write_edges(const struct drawing *drawing, FILE *out)
{
    const dscomm_topo_t *const topo = drawing->topo;
    char rate[DSC_TOPO_RATE_BYTES];

    for (int i = 0; i < (int)topo->n_devices; i++) {
        const int parent = topo->devices[i].pub.parent;

        if (parent >= 0 && topo->devices[i].pub.kind != DSCOMM_DEVICE_FABRIC)
            (void)fprintf(out,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"#555555\"/>\n",
                          x_of(drawing, parent), y_of(drawing, parent) + BOX_HEIGHT,
                          x_of(drawing, i), y_of(drawing, i));
    }
    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t *const link = &topo->links[i];
        const double y = y_of(drawing, link->a) + BOX_HEIGHT;
        const double y_end =
            y_of(drawing, link->b) + (y_of(drawing, link->b) > y ? 0.0 : BOX_HEIGHT);
        const double dip = MARGIN + (double)drawing->n_rows * ROW_HEIGHT;

        (void)fprintf(
            out,
            "<path d=\"M %.1f %.1f Q %.1f %.1f %.1f %.1f\" fill=\"none\" "
            "stroke=\"%s\"><title>%s x%d %s</title></path>\n",
            x_of(drawing, link->a), y, (x_of(drawing, link->a) + x_of(drawing, link->b)) / 2, dip,
            x_of(drawing, link->b), y_end, color_of(link->kind), dsc_topo_link_name(link->kind),
            link->count, dsc_topo_rate_text(&link->rate, rate));
    }
}

void dsc_topo_write_svg(const dscomm_topo_t *topo, FILE *out)
{
    struct drawing drawing = { .topo = topo };
    int n_wide, n_high;

    drawing.places = dsc_calloc(DSC_MEM_TOPO, topo->n_devices + 1, sizeof(drawing.places[0]));
    if (drawing.places == NULL) {
        dsc_log_warn(TOPO, "no memory to place %zu devices: nothing drawn", topo->n_devices);
        return;
    }
    place_all(&drawing);
    n_wide = drawing.n_leaves > drawing.n_switches ? drawing.n_leaves : drawing.n_switches;
    n_high = drawing.n_rows + (drawing.n_switches > 0 ? 2 : 1);
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"10\" text-anchor=\"middle\">\n",
                  n_wide * CELL_WIDTH + 2 * MARGIN, n_high * ROW_HEIGHT + 2 * MARGIN);
    write_edges(&drawing, out);
    for (int i = 0; i < (int)topo->n_devices; i++)
        write_box(&drawing, i, out);
    (void)fprintf(out, "</svg>\n");
    dsc_free(drawing.places);
}
