/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes in NCCL's topology XML: their values, and notices about what nobody knows or NCCL
 * would refuse.
 */
#include "topo/topo_nccl_xml.h"

#include <stdlib.h>
#include <string.h>

enum {
    NCCL_ATTRS_MAX = 16,
    UNKNOWN_MAX = 8, /* unknown names that get a notice */
};

bool dsc_xml_is_word_of(const char *list, const char *word)
{
    const size_t len = strlen(word);

    for (const char *at = list; (at = strstr(at, word)) != NULL; at++)
        if (len > 0 && at > list && at[-1] == ' ' && at[len] == ' ')
            return true;
    return false;
}

bool dsc_xml_attr(struct dsc_xml_reader *reader, const char **attrs, const char *name,
                  char buf[DSC_XML_VALUE_BYTES])
{
    size_t len;

    while (attrs[0] != NULL && strcmp(attrs[0], name) != 0)
        attrs += 2;
    if (attrs[0] == NULL)
        return false;
    len = strlen(attrs[1]);
    if (len >= DSC_XML_VALUE_BYTES) {
        dsc_topo_note(reader->topo, "long value",
                      "line %lu: %s has %zu characters, at most 254 (NCCL refuses it): left out",
                      dsc_xml_line(reader), name, len);
        return false;
    }
    while (len > 0 && (attrs[1][len - 1] == ' ' || attrs[1][len - 1] == '\t'))
        len--;
    if (attrs[1][len] != '\0')
        dsc_topo_note(reader->topo, "value end",
                      "line %lu: value of %s ends in a blank or line break: ignored",
                      dsc_xml_line(reader), name);
    dsc_topo_copy(buf, DSC_XML_VALUE_BYTES, attrs[1], len);
    return true;
}

int dsc_xml_attr_int(struct dsc_xml_reader *reader, const char **attrs, const char *name, int min,
                     int max)
{
    char buf[DSC_XML_VALUE_BYTES];
    int64_t value;

    if (!dsc_xml_attr(reader, attrs, name, buf) || buf[0] == '\0')
        return DSCOMM_TOPO_UNKNOWN;
    if (dsc_topo_parse_int(buf, min, max, &value))
        return (int)value;
    dsc_topo_note(reader->topo, name, "line %lu: %s \"%.40s\", allowed: %d to %d: unknown",
                  dsc_xml_line(reader), name, buf, min, max);
    return DSCOMM_TOPO_UNKNOWN;
}

uint32_t dsc_xml_attr_hex(struct dsc_xml_reader *reader, const char **attrs, const char *name)
{
    char buf[DSC_XML_VALUE_BYTES];

    return dsc_xml_attr(reader, attrs, name, buf) ? (uint32_t)strtoul(buf, NULL, 16) : 0;
}

void dsc_xml_note_unknown(struct dsc_xml_reader *reader, const char *what, const char *element,
                          const char *name)
{
    char key[DSC_XML_VALUE_BYTES];

    (void)snprintf(key, sizeof(key), "unknown %s %.60s %.60s", what, element, name);
    if (reader->n_unknown < UNKNOWN_MAX)
        dsc_topo_note(reader->topo, key, "line %lu: unknown %s \"%.60s\" %s%.60s: skipped",
                      dsc_xml_line(reader), what, name, element[0] != '\0' ? "in " : "", element);
    reader->n_unknown++;
}

void dsc_xml_check_attrs(struct dsc_xml_reader *reader, const struct dsc_xml_element *element,
                         const char **attrs)
{
    int n = 0;

    for (; attrs[0] != NULL; attrs += 2, n++)
        if (!dsc_xml_is_word_of(element->attrs, attrs[0]) && strcmp(attrs[0], "keep") != 0)
            dsc_xml_note_unknown(reader, "attribute", element->name, attrs[0]);
    if (n > NCCL_ATTRS_MAX)
        dsc_topo_note(reader->topo, "many attributes",
                      "line %lu: %s has %d attributes, NCCL refuses more than %d",
                      dsc_xml_line(reader), element->name, n, NCCL_ATTRS_MAX);
}
