// SPDX-License-Identifier: Apache-2.0
// Kernels and host functions: each call enqueues an operation or, when the stream captures, appends
// a node.
#include "emu/emu_rt.h"
#include <stdlib.h>
#include <string.h>

// ---- kernels ----
static void run_kernel(const KernelArgs &k)
{
    if (!k.desc)
        return;
    const EmuLaunch l = { k.desc,
                          { k.grid.x, k.grid.y, k.grid.z },
                          { k.block.x, k.block.y, k.block.z },
                          static_cast<uint32_t>(k.dynamic_bytes),
                          k.blob.data() };
    const int e = emu_run_grid(&l);
    if (e)
        sticky_error = e;
}

static bool is_valid_shape(dim3 g, dim3 b)
{
    return g.x && g.y && g.z && b.x && b.y && b.z && b.x <= 1024 && b.y <= 1024 && b.z <= 64 &&
           b.x * b.y * b.z <= 1024 && g.y <= 65535 && g.z <= 65535;
}

// Blocks that wait for each other must all have a place, or a device would hang.
static cudaError_t check_resident(const KernelArgs &k)
{
    const int threads = static_cast<int>(k.block.x * k.block.y * k.block.z);
    const uint64_t places = static_cast<uint64_t>(blocks_that_fit(threads, k.dynamic_bytes)) *
                            static_cast<uint64_t>(sm_count());
    const uint64_t blocks = static_cast<uint64_t>(k.grid.x) * k.grid.y * k.grid.z;

    if (!k.desc->is_resident || blocks <= places)
        return cudaSuccess;
    emu_report("%s: %llu blocks wait for each other, but the device has room for %llu of them",
               k.desc->name, static_cast<unsigned long long>(blocks),
               static_cast<unsigned long long>(places));
    return cudaErrorCooperativeLaunchTooLarge;
}

static cudaError_t unknown_kernel(const Func &f)
{
    static const bool is_skipped = getenv("CUDAEMU_SKIP_UNKNOWN") != nullptr;

    if (is_skipped) {
        emu_log("skip kernel %s", f.name.c_str());
        return cudaSuccess;
    }
    emu_report("no EMU_KERNEL for %s", f.name.c_str());
    return cudaErrorNoKernelImageForDevice;
}

// Arguments are copied here. Their sizes come from the C++ types of the kernel.
cudaError_t pack_args(KernelArgs *k, Func *f, dim3 grid, dim3 block, void **args,
                      size_t dynamic_bytes, const uint8_t *packed)
{
    if (!f)
        return cudaErrorInvalidDeviceFunction;
    if (!is_valid_shape(grid, block))
        return cudaErrorInvalidConfiguration;
    if (dynamic_bytes > static_cast<size_t>(f->max_dynamic))
        return cudaErrorInvalidValue;
    *k = KernelArgs{ f, kernel_of(f), grid, block, dynamic_bytes, {}, {} };
    if (!k->desc)
        return unknown_kernel(*f);
    k->blob.resize(k->desc->params_bytes);
    for (uint32_t i = 0; i < k->desc->n_params; i++) {
        uint8_t *to = &k->blob[k->desc->param_offset[i]];
        memcpy(to, packed ? packed + k->desc->param_offset[i] : args[i], k->desc->param_bytes[i]);
    }
    return check_resident(*k);
}

static cudaError_t check_arguments(const KernelArgs &k, int dev)
{
    for (uint32_t i = 0; k.desc && i < k.desc->n_params; i++) {
        const void *p;

        if (!k.desc->param_is_pointer[i])
            continue;
        memcpy(&p, &k.blob[k.desc->param_offset[i]], sizeof(p));
        const cudaError_t e = check_argument(p, dev, k.desc->name, i);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

cudaError_t launch(Func *f, dim3 grid, dim3 block, void **args, size_t dynamic_bytes,
                   cudaStream_t st, const uint8_t *packed)
{
    CUstream_st *s = to_stream(st);
    KernelArgs k;

    TRY(stream_ready(s));
    if (s->dev != current_device)
        return ret(cudaErrorInvalidResourceHandle);
    TRY(pack_args(&k, f, grid, block, args, dynamic_bytes, packed));
    if (check_arguments(k, s->dev) != cudaSuccess) {
        sticky_error = cudaErrorIllegalAddress; // what the access would lead to
        return ret(sticky());
    }
    if (s->capture) {
        counted(Count::CAPTURED);
        capture_node(s, cudaGraphNodeTypeKernel)->work.kernel = std::move(k);
        return cudaSuccess;
    }
    TRY(watched(Count::LAUNCH, "a kernel launch"));
    enqueue(s, [k = std::move(k)] { run_kernel(k); });
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args,
                                 size_t dynamic_bytes, cudaStream_t s)
{
    return ret(launch(func_of(host), grid, block, args, dynamic_bytes, s));
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **args,
                                   size_t dynamic_bytes, cudaStream_t s)
{
    return ret(launch(reinterpret_cast<Func *>(k), grid, block, args, dynamic_bytes, s));
}

// All blocks together is what EMU_KERNEL_RESIDENT stands for; grid.sync() and clusters are not
// here.
API cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args,
                                            size_t dynamic_bytes, cudaStream_t s)
{
    Func *f = func_of(host);
    const EmuKernelDesc *desc = f ? kernel_of(f) : nullptr;

    if (desc && !desc->is_resident) {
        emu_report("cooperative launch of %s, which is not an EMU_KERNEL_RESIDENT", desc->name);
        return ret(cudaErrorNotSupported);
    }
    return ret(launch(f, grid, block, args, dynamic_bytes, s));
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const auto id = c->attrs[i].id;
        if (id == cudaLaunchAttributeClusterDimension)
            return ret(cudaErrorNotSupported);
        if (id == cudaLaunchAttributeCooperative && c->attrs[i].val.cooperative)
            return cudaLaunchCooperativeKernel(host, c->gridDim, c->blockDim, args,
                                               c->dynamicSmemBytes, c->stream);
    }
    return cudaLaunchKernel(host, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}

// ---- host functions: run on the worker, with the device window closed ----
API cudaError_t cudaLaunchHostFunc(cudaStream_t st, cudaHostFn_t fn, void *user)
{
    CUstream_st *s = to_stream(st);

    TRY(stream_ready(s));
    if (s->capture) {
        capture_node(s, cudaGraphNodeTypeHost)->work.host = { fn, user };
        return cudaSuccess;
    }
    enqueue(s, [=] {
        HostAccess closed;
        fn(user);
    });
    return cudaSuccess;
}

// ---- one graph node ----
void run_node(cudaGraphNodeType type, const Work &w)
{
    switch (type) {
    case cudaGraphNodeTypeKernel:
        if (w.op.run)
            w.op.run(w.op.arg.get());
        else
            run_kernel(w.kernel);
        break;
    case cudaGraphNodeTypeHost: {
        HostAccess closed;
        w.host.fn(w.host.userData);
        break;
    }
    case cudaGraphNodeTypeMemcpy:
        memmove(w.dst, w.src, w.bytes);
        break;
    case cudaGraphNodeTypeMemset:
        run_memset(w.set);
        break;
    default: // empty, event and allocation nodes
        break;
    }
}
