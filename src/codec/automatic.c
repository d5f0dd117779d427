/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `auto`: no wire format, but the wish that a communicator chooses one for each call, within an
 * error budget. What encodes by itself refuses it.
 */
#include "codec/codec.h"

#include <stdio.h>
#include <string.h>

static const char *parse(const char *options, struct dsc_codec *codec)
{
    char text[16];

    /* what is fused must be right for every codec that may be chosen: blocks divide 256 */
    *codec = (struct dsc_codec){ .is_auto = true, .block = 256, .tile_align = 256, .spec = "auto" };
    if (*options == '\0')
        return NULL;
    if (*options != ':' || !dsc_budget_parse(options + 1, &codec->budget))
        return DSC_BUDGET_FORM;
    codec->has_budget = true;
    (void)snprintf(codec->spec, sizeof(codec->spec), "auto:%s",
                   dsc_budget_text(&codec->budget, text, sizeof(text)));
    return NULL;
}

const struct dsc_family dsc_family_auto = {
    .name = "auto",
    .form = "[:BUDGET]",
    .parse = parse,
};
