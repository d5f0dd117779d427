# SPDX-License-Identifier: Apache-2.0
# How kernels are built for the emulator and tests run on it.

# dsc_emu_module(name sources...): kernels compiled by g++ from the .cuh files that nvcc compiles, and
# the EMU_KERNEL lines that name them. CUDAEMU_KERNELS names the result.
function(dsc_emu_module name)
    add_library(${name} MODULE ${ARGN})
    dsc_build(${name})
    if(DSCOMM_SANITIZE MATCHES "thread") # it does not know fibers; host code is what it looks at
        set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
    endif()
    target_compile_definitions(${name} PRIVATE DSC_CUDA_EMULATED)
    target_compile_options(${name} PRIVATE -ffp-contract=off -Wno-unknown-pragmas)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                               ${PROJECT_SOURCE_DIR}/tests)
    target_include_directories(${name} SYSTEM PRIVATE ${DSC_CUDART_INCLUDE})
    # a variable or kernel of the module is the module's own, also where libc has a function of its name
    target_link_options(${name} PRIVATE -Wl,-Bsymbolic)
    target_link_libraries(${name} PRIVATE emu_cudart)
endfunction()

# dsc_on_emulator(test modules... [ENVIRONMENT VAR=x ...]): runs a test's command on the emulator.
function(dsc_on_emulator test)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ENVIRONMENT")
    list(TRANSFORM arg_UNPARSED_ARGUMENTS REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE modules)
    string(REPLACE ";" ":" modules "${modules}")
    set_property(
        TEST ${test} APPEND PROPERTY ENVIRONMENT
        LD_LIBRARY_PATH=$<TARGET_FILE_DIR:emu_cudart>
        CUDAEMU_KERNELS=${modules}
        # stacks of fibers are not what the detector of returned frames expects
        ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=0
        ${arg_ENVIRONMENT})
endfunction()

# dsc_emu_test(name PROGRAM target MODULES ... LABELS ... [TIMEOUT seconds] [ENVIRONMENT VAR=x ...]
#              [MODES ...])
# One test per mode, name_<mode>: the order of threads fwd, rev and rand, and lazy, where work runs only
# when somebody waits for it. Without MODES all four.
function(dsc_emu_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "PROGRAM;TIMEOUT" "MODULES;LABELS;ENVIRONMENT;MODES")
    if(NOT arg_MODES)
        set(arg_MODES fwd rev rand lazy)
    endif()
    add_dependencies(${arg_PROGRAM} emu_cudart emu_nccl fake_nvml ${arg_MODULES}) # found at run time
    foreach(mode IN LISTS arg_MODES)
        dsc_test_command(${name}_${mode} COMMAND $<TARGET_FILE:${arg_PROGRAM}>
                         LABELS emu ${arg_LABELS} TIMEOUT ${arg_TIMEOUT})
        dsc_on_emulator(${name}_${mode} ${arg_MODULES} ENVIRONMENT ${arg_ENVIRONMENT})
        if(mode STREQUAL "lazy")
            set_property(TEST ${name}_${mode} APPEND PROPERTY ENVIRONMENT CUDAEMU_LAZY=1)
        elseif(mode STREQUAL "rand")
            set_property(TEST ${name}_${mode} APPEND PROPERTY ENVIRONMENT CUDAEMU_SCHED=rand:1)
        else()
            set_property(TEST ${name}_${mode} APPEND PROPERTY ENVIRONMENT CUDAEMU_SCHED=${mode})
        endif()
    endforeach()
endfunction()
