/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's topology XML, and RCCL's dialect of it: files that NCCL dumps, and files by which vendors
 * of virtual machines describe theirs. Reads more than NCCL does, but says what NCCL would refuse:
 * the text is somebody's input to NCCL too.
 *
 *   system > cpu > pci (nested) > gpu > nvlink | xgmi | c2c
 *                               > nic > net
 *
 * Here: the walk through the text, which places elements may stand in, and what is seen when one is
 * closed. topo_nccl_elements.c has what each of them means.
 */
#include "topo/topo_nccl_xml.h"

#include <string.h>

#define NCCL_CHILDREN_MAX 640

/* Of the first failure: expat goes on to the end of its buffer otherwise. */
static void stop(struct dsc_xml_reader *reader, dscomm_status_t st)
{
    if (reader->st >= 0)
        reader->st = st;
    (void)XML_StopParser(reader->parser, XML_FALSE);
}

/* Whether the element may stand here; false: it was said, and it is skipped. */
static bool check_place(struct dsc_xml_reader *reader, const struct dsc_xml_element *element,
                        const char *name)
{
    if (element == NULL) {
        dsc_xml_note_unknown(reader, "element", "", name);
        return false;
    }
    if (element->parents == NULL ||
        !dsc_xml_is_word_of(element->parents, dsc_xml_top(reader)->name)) {
        dsc_topo_note(reader->topo, "misplaced", "line %lu: <%s> inside <%s>: skipped",
                      dsc_xml_line(reader), name, dsc_xml_top(reader)->name);
        return false;
    }
    if (++dsc_xml_top(reader)->n_children == NCCL_CHILDREN_MAX + 1)
        dsc_topo_note(reader->topo, "many children",
                      "line %lu: <%s> has more than %d children, NCCL refuses that",
                      dsc_xml_line(reader), dsc_xml_top(reader)->name, NCCL_CHILDREN_MAX);
    return true;
}

/* Whether the element is read; false: skipped, or reading has stopped. */
static bool may_open(struct dsc_xml_reader *reader, const struct dsc_xml_element *element,
                     const char *name)
{
    if (reader->depth == 0 && strcmp(name, "system") != 0) {
        stop(reader, dsc_fail(DSCOMM_ERR_CORRUPT,
                              "%s: root element <%.40s>, allowed: <system> "
                              "(NCCL), <topology> (hwloc)",
                              reader->src->name, name));
        return false;
    }
    if (reader->depth == DSC_XML_DEPTH_MAX) {
        stop(reader, dsc_fail(DSCOMM_ERR_LIMIT, "%s:%lu: elements nest deeper than %d",
                              reader->src->name, dsc_xml_line(reader), DSC_XML_DEPTH_MAX));
        return false;
    }
    if (reader->depth > 0 && !check_place(reader, element, name)) {
        reader->skip = 1;
        return false;
    }
    return true;
}

static void XMLCALL on_start(void *arg, const XML_Char *name, const XML_Char **attrs)
{
    struct dsc_xml_reader *const reader = arg;
    const struct dsc_xml_element *const element = dsc_xml_find_element(name);
    dscomm_status_t st;

    if (reader->st < 0)
        return;
    if (reader->skip > 0) {
        reader->skip++;
        return;
    }
    if (!may_open(reader, element, name))
        return;
    dsc_xml_check_attrs(reader, element, attrs);
    *dsc_xml_opened(reader) =
        (struct dsc_xml_frame){ .name = element->name,
                                .device = reader->depth > 0 ? dsc_xml_top(reader)->device : -1 };
    st = element->open(reader, attrs);
    if (st < 0)
        stop(reader, st);
    else if (reader->skip == 0)
        reader->depth++;
}

/* What a PCI device is, now that all inside it is known. */
static void classify(struct dsc_topo_device *dev, int n_inside)
{
    if (n_inside > 0 || dev->pci_class >> 16 == 0x06) {
        dev->pub.kind = DSCOMM_DEVICE_PCI;
    } else if (dsc_topo_class_is_gpu(dev->pci_class)) {
        dev->pub.kind = DSCOMM_DEVICE_GPU;
        dev->pub.flags |= DSCOMM_DEVICE_BY_CLASS;
    } else if (dev->pci_class >> 16 == 0x02) {
        dev->pub.kind = DSCOMM_DEVICE_NIC;
        dev->pub.flags |= DSCOMM_DEVICE_BY_CLASS;
    } else if (dev->pci_class == 0) {
        dev->pub.flags |= DSCOMM_DEVICE_UNCLASSED;
    }
}

static void XMLCALL on_end(void *arg, const XML_Char *name)
{
    struct dsc_xml_reader *const reader = arg;
    struct dsc_xml_frame *frame;

    (void)name;
    if (reader->st < 0) /* the end of <a/> is reported even after its start stopped the parser */
        return;
    if (reader->skip > 0) {
        reader->skip--;
        return;
    }
    frame = &reader->stack[--reader->depth];
    if (frame->is_pci)
        classify(&reader->topo->devices[frame->device], frame->n_inside);
    else if (strcmp(frame->name, "nic") == 0)
        dsc_xml_top(reader)->n_inside += frame->n_inside;
}

/* Entities could make megabytes out of a line, and no topology has any. */
static void XMLCALL on_doctype(void *arg, const XML_Char *name, const XML_Char *system_id,
                               const XML_Char *public_id, int has_internal)
{
    struct dsc_xml_reader *const reader = arg;

    (void)name, (void)system_id, (void)public_id, (void)has_internal;
    stop(reader, dsc_fail(DSCOMM_ERR_CORRUPT, "%s:%lu: document type declaration, not allowed here",
                          reader->src->name, dsc_xml_line(reader)));
}

/* ---- the whole text ---- */

static bool breaks_inside_tag(const char *text)
{
    char quote = '\0';
    bool is_tag = false;

    for (const char *at = text; *at != '\0'; at++) {
        if (!is_tag && strncmp(at, "<!--", 4) == 0) {
            at = strstr(at, "-->");
            if (at == NULL)
                return false;
        } else if (quote != '\0') {
            quote = *at == quote ? '\0' : quote;
        } else if (is_tag && (*at == '"' || *at == '\'')) {
            quote = *at;
        } else if (is_tag && *at == '\n') {
            return true;
        } else if (*at == '<' || *at == '>') {
            is_tag = *at == '<';
        }
    }
    return false;
}

static void note_dialect(dscomm_topo_t *topo, const char *text)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        dsc_topo_note(topo, "bom", "begins with a byte order mark, which NCCL refuses");
    if (strstr(text, "\r\n") != NULL)
        dsc_topo_note(topo, "crlf", "lines end in CR LF, which NCCL may refuse");
    if (breaks_inside_tag(text))
        dsc_topo_note(topo, "tag break", "a line break between attributes, which NCCL refuses");
}

/* Where a file has <gpu> or <net>, a PCI class alone makes none: those are for others. */
static void trust_elements(const struct dsc_xml_reader *reader)
{
    for (size_t i = 0; i < reader->topo->n_devices; i++) {
        dscomm_topo_device_t *const pub = &reader->topo->devices[i].pub;

        if ((pub->flags & DSCOMM_DEVICE_BY_CLASS) == 0 ||
            !(pub->kind == DSCOMM_DEVICE_GPU ? reader->has_gpu_element : reader->has_net_element))
            continue;
        pub->kind = DSCOMM_DEVICE_OTHER;
        pub->flags &= ~(uint32_t)DSCOMM_DEVICE_BY_CLASS;
    }
}

static dscomm_status_t parse(struct dsc_xml_reader *reader)
{
    XML_SetUserData(reader->parser, reader);
    XML_SetElementHandler(reader->parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(reader->parser, on_doctype);
    if (XML_Parse(reader->parser, reader->src->text, (int)reader->src->n_bytes, XML_TRUE) ==
            XML_STATUS_OK ||
        reader->st < 0)
        return reader->st;
    return dsc_fail(DSCOMM_ERR_CORRUPT, "%s:%lu: %s", reader->src->name, dsc_xml_line(reader),
                    XML_ErrorString(XML_GetErrorCode(reader->parser)));
}

dscomm_status_t dsc_topo_read_nccl_xml(dscomm_topo_t *topo, const struct dsc_topo_source *src)
{
    struct dsc_xml_reader reader = { .topo = topo, .src = src, .parser = XML_ParserCreate(NULL) };

    if (reader.parser == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "XML parser for %s", src->name);
    note_dialect(topo, src->text);

    const dscomm_status_t st = parse(&reader);

    XML_ParserFree(reader.parser);
    DSC_TRY(st);
    if (topo->n_devices == 0)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: no <cpu> in <system>", src->name);
    trust_elements(&reader);
    return DSCOMM_OK;
}
