// SPDX-License-Identifier: Apache-2.0
// What nvcc's host code registers at start-up, and the kernels that implement it. Compiler output
// in the binary is ignored: kernels come from modules compiled from source.
#include "emu/emu_rt.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <unordered_map>

struct Variable {
    std::string name;
    size_t bytes;
};
static std::mutex table_lock;
// Never destroyed: modules register before this file's constructors would have run.
struct Tables {
    std::unordered_map<std::string, const EmuKernelDesc *> kernels;
    std::unordered_map<std::string, void *> symbols;
    std::unordered_map<const void *, Func *> funcs;  // by host stub
    std::set<const void *> handles;                  // Func * given out as handles
    std::unordered_map<const void *, Variable> vars; // by host variable
};
static Tables &tables()
{
    static auto &t = *new Tables;

    return t;
}

// ---- kernel modules ----
API void emu_register_kernel(const EmuKernelDesc *d)
{
    std::lock_guard<std::mutex> l(table_lock);

    tables().kernels.emplace(d->name, d);
    emu_log("kernel %s: %u arguments, %u bytes%s", d->name, d->n_params, d->params_bytes,
            d->is_resident ? ", resident" : "");
}

API void emu_register_symbol(const char *name, void *addr, size_t bytes)
{
    add_symbol_memory(addr, bytes);
    std::lock_guard<std::mutex> l(table_lock);
    tables().symbols.emplace(name, addr);
}

// CUDAEMU_KERNELS: modules, separated by colons. A module linked into the program needs none.
static void load_modules()
{
    static std::once_flag once;

    std::call_once(once, [] {
        const char *e = getenv("CUDAEMU_KERNELS");
        const std::string list = e ? e : "";

        for (size_t i = 0; i < list.size();) {
            const size_t j = std::min(list.find(':', i), list.size());
            if (!dlopen(list.substr(i, j - i).c_str(), RTLD_NOW | RTLD_GLOBAL))
                emu_report("CUDAEMU_KERNELS: %s", dlerror());
            i = j + 1;
        }
    });
}

const EmuKernelDesc *kernel_of(Func *f)
{
    load_modules();
    std::lock_guard<std::mutex> l(table_lock);
    auto it = tables().kernels.find(f->name);
    return it == tables().kernels.end() ? nullptr : it->second;
}

Func *func_of(const void *h) // host stub, or a handle from __cudaGetKernel
{
    std::lock_guard<std::mutex> l(table_lock);

    if (tables().handles.count(h))
        return static_cast<Func *>(const_cast<void *>(h));
    auto it = tables().funcs.find(h);
    return it == tables().funcs.end() ? nullptr : it->second;
}

// ---- called by code that nvcc generates ----
API void **__cudaRegisterFatBinary(void *)
{
    static void *handle;

    return &handle;
}

API void __cudaRegisterFatBinaryEnd(void **)
{
}

API void __cudaUnregisterFatBinary(void **)
{
}

API char __cudaInitModule(void **)
{
    return 1;
}

API void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *,
                                uint3 *, dim3 *, dim3 *, int *)
{
    std::lock_guard<std::mutex> l(table_lock);
    Func *f = new Func{ name, host };

    tables().funcs[host] = f;
    tables().handles.insert(f);
}

API void __cudaRegisterVar(void **, char *host, char *, const char *name, int, size_t bytes, int,
                           int)
{
    std::lock_guard<std::mutex> l(table_lock);

    tables().vars[host] = { name, bytes };
}

API void __cudaRegisterManagedVar(void **, void **, char *, const char *name, int, size_t, int, int)
{
    emu_report("managed variable %s: not supported", name);
}

struct CallConfig {
    dim3 grid, block;
    size_t dynamic_bytes;
    void *stream;
};
static thread_local std::vector<CallConfig> calls;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_bytes,
                                         struct CUstream_st *stream)
{
    calls.push_back({ grid, block, dynamic_bytes, stream });
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *dynamic_bytes,
                                           void *stream)
{
    if (calls.empty())
        return ret(cudaErrorMissingConfiguration);
    const CallConfig c = calls.back();
    calls.pop_back();
    *grid = c.grid;
    *block = c.block;
    *dynamic_bytes = c.dynamic_bytes;
    *static_cast<void **>(stream) = c.stream;
    return cudaSuccess;
}

API cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *host)
{
    *k = reinterpret_cast<cudaKernel_t>(func_of(host));
    return *k ? cudaSuccess : ret(cudaErrorInvalidDeviceFunction);
}

// ---- device variables: one copy per process, not per device ----
static cudaError_t symbol_address(char **p, const void *host, size_t offset, size_t n)
{
    load_modules();
    std::lock_guard<std::mutex> l(table_lock);
    auto v = tables().vars.find(host);

    if (v == tables().vars.end())
        return cudaErrorInvalidSymbol;
    auto s = tables().symbols.find(v->second.name);
    if (s == tables().symbols.end()) {
        emu_report("no EMU_SYMBOL for variable %s", v->second.name.c_str());
        return cudaErrorInvalidSymbol;
    }
    if (offset > v->second.bytes || n > v->second.bytes - offset)
        return cudaErrorInvalidValue;
    *p = static_cast<char *>(s->second) + offset;
    return cudaSuccess;
}

API cudaError_t cudaGetSymbolAddress(void **p, const void *host)
{
    return ret(symbol_address(reinterpret_cast<char **>(p), host, 0, 0));
}

API cudaError_t cudaMemcpyToSymbol(const void *host, const void *src, size_t n, size_t offset,
                                   cudaMemcpyKind kind)
{
    char *p;

    TRY(symbol_address(&p, host, offset, n));
    return ret(copy(p, src, n, kind, nullptr, true));
}

API cudaError_t cudaMemcpyFromSymbol(void *dst, const void *host, size_t n, size_t offset,
                                     cudaMemcpyKind kind)
{
    char *p;

    TRY(symbol_address(&p, host, offset, n));
    return ret(copy(dst, p, n, kind, nullptr, true));
}

// ---- function attributes and occupancy: registers are not modelled ----
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *host)
{
    Func *f = func_of(host);

    if (!f)
        return ret(cudaErrorInvalidDeviceFunction);
    memset(a, 0, sizeof(*a));
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = 90;
    a->maxDynamicSharedSizeBytes = f->max_dynamic;
    return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *host, cudaFuncAttribute a, int v)
{
    Func *f = func_of(host);

    if (!f)
        return ret(cudaErrorInvalidDeviceFunction);
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (v < 0 || v > shared_per_block)
            return ret(cudaErrorInvalidValue);
        f->max_dynamic = v;
    }
    return cudaSuccess;
}

API cudaError_t cudaGetFuncBySymbol(cudaFunction_t *o, const void *host)
{
    *o = reinterpret_cast<cudaFunction_t>(func_of(host));
    return *o ? cudaSuccess : ret(cudaErrorInvalidDeviceFunction);
}

int blocks_that_fit(int threads, size_t dynamic_bytes)
{
    const int by_threads = threads_per_sm / std::max(threads, 1);
    const int by_shared = dynamic_bytes
                              ? shared_per_sm / static_cast<int>(dynamic_bytes + shared_reserved)
                              : blocks_per_sm;

    return std::min({ by_threads, by_shared, blocks_per_sm });
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *,
                                                                       int threads, size_t dynamic,
                                                                       unsigned)
{
    *n = blocks_that_fit(threads, dynamic);
    return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int threads,
                                                              size_t dynamic)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, threads, dynamic, 0);
}
