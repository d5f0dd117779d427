// SPDX-License-Identifier: Apache-2.0
// The lines of a kernel module: which kernels of a .cuh exist. Included by cuda_emu.h.
//
//   EMU_KERNEL((k)) EMU_KERNEL((k<float, 3>))  one line per instantiation that is launched
//   EMU_KERNEL_RESIDENT((k<float>))            its blocks wait for each other: they run interleaved
//   EMU_SYMBOL(v)                              a __device__ or __constant__ variable
//
// The name that nvcc's host code registers is the mangled one, which equals the dynamic symbol of
// the module; nvcc passes no sizes of arguments, so they follow from the kernel's C++ type.
#ifndef DSC_EMU_KERNEL_H
#define DSC_EMU_KERNEL_H

#include <dlfcn.h>
#include <stdio.h>
#include <tuple>
#include <utility>

template <class F> struct EmuReg;
template <class... A> struct EmuReg<void (*)(A...)> {
    template <class T> static T arg(const EmuThread *t, size_t i)
    {
        T v;

        memcpy(static_cast<void *>(&v), t->params + offsets()[i], sizeof(v));
        return v;
    }

    // [sizeof...(A)] is the size of all.
    static const uint32_t *offsets()
    {
        static uint32_t off[sizeof...(A) + 1];
        static const bool is_filled = [] {
            uint32_t at = 0, i = 0;

            ((at = (at + alignof(A) - 1) & ~static_cast<uint32_t>(alignof(A) - 1), off[i++] = at,
              at += sizeof(A)),
             ...);
            off[i] = at;
            return true;
        }();

        static_cast<void>(is_filled);
        return off;
    }

    template <void (*K)(A...), size_t... I>
    static void call(EmuThread *t, std::index_sequence<I...>)
    {
        K(arg<std::tuple_element_t<I, std::tuple<A...>>>(t, I)...);
    }
    template <void (*K)(A...)> static void entry(EmuThread *t)
    {
        call<K>(t, std::index_sequence_for<A...>{});
    }

    template <void (*K)(A...)> static int add(const char *text, bool is_resident)
    {
        static const uint32_t sizes[] = { sizeof(A)..., 0 };
        static const uint8_t pointers[] = { std::is_pointer_v<A>..., 0 };
        Dl_info info;

        if (!dladdr(reinterpret_cast<void *>(K), &info) ||
            info.dli_saddr != reinterpret_cast<void *>(K)) {
            fprintf(stderr, "[cudaemu] kernel %s has no exported symbol: static?\n", text);
            return 1;
        }
        static const EmuKernelDesc desc = {
            info.dli_sname,          entry<K>,    sizeof...(A), sizes, offsets(), pointers,
            offsets()[sizeof...(A)], is_resident,
        };
        emu_register_kernel(&desc);
        return 0;
    }
};

#define EMU_CAT2(a, b) a##b
#define EMU_CAT(a, b) EMU_CAT2(a, b)
#define EMU_UNPAREN(...) __VA_ARGS__
#define EMU_ADD(k, is_resident)                                        \
    [[maybe_unused]] static const int EMU_CAT(emu_reg_, __COUNTER__) = \
        EmuReg<decltype(+(EMU_UNPAREN k))>::template add<(EMU_UNPAREN k)>(#k, is_resident);
#define EMU_KERNEL(k) EMU_ADD(k, false)
#define EMU_KERNEL_RESIDENT(k) EMU_ADD(k, true)
#define EMU_SYMBOL(v)                                                                           \
    [[maybe_unused]] static const int EMU_CAT(emu_sym_, __COUNTER__) =                          \
        (emu_register_symbol(#v, const_cast<void *>(static_cast<const void *>(&v)), sizeof(v)), \
         0);

#endif
