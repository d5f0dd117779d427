/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the reader of NCCL's XML: what is open while a text is read, what elements mean, and
 * their attributes.
 */
#ifndef DSC_TOPO_NCCL_XML_H
#define DSC_TOPO_NCCL_XML_H

#include "topo/topo_internal.h"

#include <expat.h>

#define DSC_XML_DEPTH_MAX 64
#define DSC_XML_VALUE_BYTES 255 /* NCCL refuses longer ones too */

/* One open element. */
struct dsc_xml_frame {
    const char *name; /* in the table of elements */
    int device;       /* that children belong to */
    int n_children;
    int n_inside; /* devices */
    bool is_pci;
};

struct dsc_xml_reader {
    dscomm_topo_t *topo;
    const struct dsc_topo_source *src;
    XML_Parser parser;
    dscomm_status_t st; /* of the first failure */
    struct dsc_xml_frame stack[DSC_XML_DEPTH_MAX];
    int depth;
    int skip; /* open elements that are skipped */
    int n_unknown;
    bool has_gpu_element, has_net_element;
};

/* A row of the table of elements. In lists each word has a blank on either side. */
struct dsc_xml_element {
    const char *name, *parents; /* parents NULL: the root */
    dscomm_status_t (*open)(struct dsc_xml_reader *reader, const char **attrs);
    const char *attrs;
};

static inline struct dsc_xml_frame *dsc_xml_top(struct dsc_xml_reader *reader)
{
    return &reader->stack[reader->depth - 1];
}

/* The element being opened, not yet on the stack: dsc_xml_top() is its parent. */
static inline struct dsc_xml_frame *dsc_xml_opened(struct dsc_xml_reader *reader)
{
    return &reader->stack[reader->depth];
}

static inline unsigned long dsc_xml_line(const struct dsc_xml_reader *reader)
{
    return (unsigned long)XML_GetCurrentLineNumber(reader->parser);
}

/* ---- topo_nccl_elements.c ---- */

/* NULL: nobody knows it. */
const struct dsc_xml_element *dsc_xml_find_element(const char *name);

/* ---- topo_nccl_attrs.c: attrs are names and values in turn, then NULL, as expat gives them ---- */

/* Value without blanks at its end; false: none, or too long to be one. */
bool dsc_xml_attr(struct dsc_xml_reader *reader, const char **attrs, const char *name,
                  char buf[DSC_XML_VALUE_BYTES]);
/* DSCOMM_TOPO_UNKNOWN: none, or not from min to max. */
int dsc_xml_attr_int(struct dsc_xml_reader *reader, const char **attrs, const char *name, int min,
                     int max);
/* "0x030200"; 0: none. */
uint32_t dsc_xml_attr_hex(struct dsc_xml_reader *reader, const char **attrs, const char *name);
/* Says which of them the element should not have. */
void dsc_xml_check_attrs(struct dsc_xml_reader *reader, const struct dsc_xml_element *element,
                         const char **attrs);
/* what is "element" or "attribute"; element, where it stands, or "". */
void dsc_xml_note_unknown(struct dsc_xml_reader *reader, const char *what, const char *element,
                          const char *name);
bool dsc_xml_is_word_of(const char *list, const char *word);

#endif
