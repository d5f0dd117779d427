/* SPDX-License-Identifier: Apache-2.0 */
/* The whole text has to be a value: nothing before it, nothing behind it. */
#include "perf_values.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool perf_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *value_out)
{
    char *end = NULL;

    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0)
        return false;
    if (value < min || value > max)
        return false;
    *value_out = value;
    return true;
}

bool perf_parse_int(const char *text, int min, int max, int *value_out)
{
    uint64_t value;

    if (!perf_parse_u64(text, (uint64_t)min, (uint64_t)max, &value))
        return false;
    *value_out = (int)value;
    return true;
}

bool perf_parse_bytes(const char *text, uint64_t min, uint64_t max, size_t *bytes_out)
{
    static const char units[] = "KMG";
    char *end = NULL;
    const double number = strtod(text, &end);
    double unit = 1.0;

    if (!isdigit((unsigned char)text[0]) || text[1] == 'x' || text[1] == 'X')
        return false;
    if (*end != '\0') {
        const char *const hit = strchr(units, toupper((unsigned char)*end));
        if (hit == NULL || end[1] != '\0')
            return false;
        for (const char *u = units; u <= hit; u++)
            unit *= 1024.0;
    }
    if (!(number * unit >= (double)min && number * unit <= (double)max))
        return false;
    *bytes_out = (size_t)(number * unit);
    return true;
}

bool perf_is_one_of(const char *text, const char *words)
{
    const size_t len = strlen(text);

    for (const char *word = words; *word != '\0';) {
        const size_t word_len = strcspn(word, " ");

        if (word_len == len && memcmp(word, text, len) == 0)
            return true;
        word += word_len;
        word += strspn(word, " ");
    }
    return false;
}

bool perf_is_data(const char *text)
{
    if (strncmp(text, "file:", 5) == 0)
        return text[5] != '\0';
    return perf_is_one_of(text, "normal lm cnn");
}
