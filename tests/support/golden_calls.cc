/* SPDX-License-Identifier: Apache-2.0 */
#include "support/golden_calls.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace {

std::vector<std::string> split(const std::string &text, char at)
{
    std::vector<std::string> parts;
    std::stringstream in(text);
    std::string part;

    if (text == "-")
        return parts;
    while (std::getline(in, part, at))
        parts.push_back(part);
    return parts;
}

/* A node of a layout text such as ((0,1),(2)),((3)): its leaves and its height. */
struct Node {
    std::vector<int> leaves;
    std::vector<Node> children;
    int height = 0;
};

Node parse_list(const std::string &text, size_t &at)
{
    Node node;

    for (;;) {
        Node child;

        if (text[at] == '(') {
            at++;
            child = parse_list(text, at);
            at++; /* the closing parenthesis */
        } else {
            char *end;

            child.leaves.push_back((int)strtol(text.c_str() + at, &end, 10));
            at = (size_t)(end - text.c_str());
        }
        node.height = std::max(node.height, child.height + 1);
        node.leaves.insert(node.leaves.end(), child.leaves.begin(), child.leaves.end());
        node.children.push_back(child);
        if (at >= text.size() || text[at] != ',')
            return node;
        at++;
    }
}

/* Group of each rank at every tier: the smallest rank below the node of that height. */
void mark_groups(const Node &node, GoldenCall &c)
{
    const int group = *std::min_element(node.leaves.begin(), node.leaves.end());

    for (int t = node.height - 1; t >= 0 && node.height > 0; t--)
        if (t == node.height - 1)
            for (int r : node.leaves)
                c.groups[(size_t)(t * c.n_ranks + r)] = group;
    for (const Node &child : node.children)
        mark_groups(child, c);
}

void parse_layout(GoldenCall &c)
{
    size_t at = 0;
    const Node root = parse_list(c.layout, at);

    c.n_ranks = (int)root.leaves.size();
    c.n_tiers = root.height;
    c.groups.resize((size_t)(c.n_tiers * c.n_ranks));
    for (int t = 0; t < c.n_tiers; t++) /* ranks without a node of this height stay alone */
        for (int r = 0; r < c.n_ranks; r++)
            c.groups[(size_t)(t * c.n_ranks + r)] = r;
    mark_groups(root, c);
}

template <typename T> T lookup(const std::map<std::string, T> &table, const std::string &key)
{
    const auto it = table.find(key);

    if (it == table.end())
        throw std::runtime_error("calls.txt: unknown value " + key);
    return it->second;
}

Injection parse_injection(const std::string &text)
{
    const auto parts = split(text, ':');

    return { std::stoi(parts.at(0)), std::stoi(parts.at(1)), std::stoul(parts.at(2)),
             (uint32_t)std::stoul(parts.at(3), nullptr, 16) };
}

uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

void set_sizes(GoldenCall &c)
{
    const size_t all = c.count * (size_t)c.n_ranks;

    c.gets_share = c.coll == "reduce_scatter" || c.coll == "all_to_all";
    c.send_count = c.gets_share ? all : c.count;
    c.recv_count = c.coll == "all_gather" || c.coll == "all_to_all" ? all : c.count;
}

float power_of_two(int e)
{
    const uint32_t bits = (uint32_t)(e + 127) << 23;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Nearest even, for the finite and not too large values of the generator. */
uint16_t to_fp16(float x)
{
    const _Float16 h = (_Float16)x;
    uint16_t bits;

    memcpy(&bits, &h, sizeof(bits));
    return bits;
}

} // namespace

GoldenCall parse_golden_call(const std::string &line)
{
    std::map<std::string, std::string> v;
    GoldenCall c;

    for (const auto &token : split(line, ' '))
        v[token.substr(0, token.find('='))] = token.substr(token.find('=') + 1);
    c.line = line;
    c.layout = v.at("layout");
    parse_layout(c);
    c.codecs = split(v.at("codecs"), ';');
    c.op = lookup<dscomm_op_t>({ { "sum", DSCOMM_SUM },
                                 { "avg", DSCOMM_AVG },
                                 { "max", DSCOMM_MAX },
                                 { "min", DSCOMM_MIN } },
                               v.at("op"));
    c.dtype = lookup<dscomm_dtype_t>(
        { { "fp32", DSCOMM_FLOAT32 }, { "fp16", DSCOMM_FLOAT16 }, { "bf16", DSCOMM_BFLOAT16 } },
        v.at("dtype"));
    c.algo = v.at("algo");
    c.count = std::stoul(v.at("count"));
    c.chunk = std::stoul(v.at("chunk"));
    c.calls = std::stoi(v.at("calls"));
    c.beta = std::stof(v.at("beta"));
    c.feedback = v.at("feedback") == "1";
    c.bf16_residual = v.at("rdtype") == "bf16";
    c.shadow = v.at("shadow") == "1";
    c.known_zero = v.at("known_zero") == "1";
    c.seed = (uint32_t)std::stoul(v.at("seed"));
    c.coll = v.count("coll") != 0 ? v.at("coll") : "allreduce";
    c.root = v.count("root") != 0 ? std::stoi(v.at("root")) : 0;
    set_sizes(c);
    for (const auto &text : split(v.at("inject"), ','))
        c.inject.push_back(parse_injection(text));
    for (const auto &text : split(v.at("out"), ','))
        c.out.push_back((uint32_t)std::stoul(text, nullptr, 16));
    for (const auto &text : split(v.at("res"), ','))
        c.res.push_back((uint32_t)std::stoul(text, nullptr, 16));
    for (const auto &text : split(v.at("sent"), ','))
        c.sent.push_back(std::stoull(text));
    c.momentum = v.count("momentum") != 0 ? std::stof(v.at("momentum")) : 0.0f;
    for (const auto &text : split(v.count("mom") != 0 ? v.at("mom") : "-", ','))
        c.mom.push_back((uint32_t)std::stoul(text, nullptr, 16));
    return c;
}

size_t golden_out_index(const GoldenCall &c, int rank, int call)
{
    return c.gets_share ? (size_t)(call * c.n_ranks + rank) : (size_t)call;
}

std::vector<GoldenCall> read_golden_calls(const std::string &path)
{
    std::ifstream in(path);
    std::vector<GoldenCall> calls;
    std::string line;

    if (!in)
        throw std::runtime_error("cannot read " + path);
    while (std::getline(in, line))
        if (!line.empty() && line[0] != '#')
            calls.push_back(parse_golden_call(line));
    return calls;
}

std::vector<uint8_t> golden_input(const GoldenCall &c, int rank, int call)
{
    const uint32_t key = mix(c.seed + mix((uint32_t)call + mix((uint32_t)rank)));
    const size_t elem = c.dtype == DSCOMM_FLOAT32 ? 4 : 2;
    std::vector<uint8_t> bytes(c.send_count * elem);

    for (size_t i = 0; i < c.send_count; i++) {
        const int32_t h = (int32_t)mix(key ^ (uint32_t)i) >> 8;
        const uint32_t g = mix(~key ^ (uint32_t)(i >> 6));
        const float x = (g & 15) != 0 ? (float)h * power_of_two(-20 - (int)(g >> 4 & 7)) : 0.0f;
        const uint16_t half = c.dtype == DSCOMM_FLOAT16 ? to_fp16(x) : to_bf16(x);

        if (elem == 4)
            memcpy(&bytes[i * 4], &x, 4);
        else
            memcpy(&bytes[i * 2], &half, 2);
    }
    for (const auto &in : c.inject)
        if (in.call == call && in.rank == rank && in.index < c.send_count)
            memcpy(&bytes[in.index * elem], &in.bits, elem);
    return bytes;
}

uint32_t crc32_of(const void *bytes, size_t n)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < n; i++) {
        crc ^= ((const uint8_t *)bytes)[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}
