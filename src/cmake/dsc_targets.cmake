# SPDX-License-Identifier: Apache-2.0
# How every target of the project is made, so that the folders only list names.

# ---- dsc_flags: what everything built here is compiled with; never exported ----
add_library(dsc_flags INTERFACE)
target_compile_definitions(dsc_flags INTERFACE _GNU_SOURCE)
# nvcc hands the same options to its host compiler, one -Xcompiler for each.
set(DSC_CUDA_HOST_FLAGS -Wall -Wextra -Wno-unused-parameter
                        -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(DSCOMM_SANITIZE)
    list(APPEND DSC_CUDA_HOST_FLAGS -fno-omit-frame-pointer -fno-sanitize-recover=all)
    string(REPLACE "," ";-fsanitize=" sanitizers "-fsanitize=${DSCOMM_SANITIZE}")
    list(APPEND DSC_CUDA_HOST_FLAGS ${sanitizers} -fno-sanitize=vptr)
endif()
list(TRANSFORM DSC_CUDA_HOST_FLAGS PREPEND -Xcompiler=)
target_compile_options(
    dsc_flags
    INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall>
              $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>
              $<$<COMPILE_LANGUAGE:C>:-Wshadow>
              $<$<COMPILE_LANGUAGE:C>:-Wconversion>
              $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
              $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>
              # GoogleTest's macros hold an else; {first} leaves the other members zero
              $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-else>
              $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
              # __FILE__ and debug information name files from the source root, on any machine
              $<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
              "$<$<COMPILE_LANGUAGE:CUDA>:${DSC_CUDA_HOST_FLAGS}>")
if(DSCOMM_WERROR)
    target_compile_options(dsc_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
                                               $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(DSCOMM_SANITIZE)
    # vptr: its check of an object's memory opens a pipe, which fails where a test has no descriptors
    target_compile_options(
        dsc_flags
        INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${DSCOMM_SANITIZE}>
                  $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize=vptr>
                  $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>
                  $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
    target_link_options(dsc_flags INTERFACE -fsanitize=${DSCOMM_SANITIZE})
endif()

# dsc_build(target): language settings that are properties, not options.
function(dsc_build target)
    set_target_properties(${target} PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF
                                               C_VISIBILITY_PRESET hidden
                                               CXX_STANDARD 17 CXX_EXTENSIONS OFF
                                               CUDA_STANDARD 17 CUDA_EXTENSIONS OFF)
    target_link_libraries(${target} PRIVATE dsc_flags)
endfunction()

# dsc_sources(module files...): files of src/<module> that go into the library. The compiler must
# not fuse multiplications and additions where bits are promised.
set(DSC_EXACT_MODULES codec feedback exec)
function(dsc_sources module)
    foreach(file IN LISTS ARGN)
        target_sources(dsc_objects PRIVATE ${module}/${file})
        if(module IN_LIST DSC_EXACT_MODULES)
            set_property(SOURCE ${module}/${file} APPEND PROPERTY COMPILE_OPTIONS
                                                                  -ffp-contract=off)
        endif()
    endforeach()
endfunction()

# dsc_isa_sources(FLAGS ... SOURCES ...): files with intrinsics, each built for its ISA alone.
function(dsc_isa_sources)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FLAGS;SOURCES")
    foreach(file IN LISTS arg_SOURCES)
        target_sources(dsc_objects PRIVATE ${file})
        set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS ${arg_FLAGS}
                                                    -ffp-contract=off)
    endforeach()
endfunction()

# dsc_test(name SOURCES ... LABELS ... [LIBS ...] [ARGS ...] [TIMEOUT seconds] [PRELOAD] [SERIAL])
# A program with GoogleTest's main when a source is C++, else with its own; exit code 77 is a skip.
# PRELOAD runs it under the library of tests/support/count_calls.c, SERIAL beside no other test.
function(dsc_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "PRELOAD;SERIAL" "TIMEOUT" "SOURCES;LABELS;LIBS;ARGS")
    add_executable(${name} ${arg_SOURCES})
    dsc_build(${name})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE dsc_internal ${arg_LIBS})
    if(arg_SOURCES MATCHES "\\.cc")
        target_link_libraries(${name} PRIVATE GTest::gtest_main)
    endif()
    dsc_test_command(${name} COMMAND $<TARGET_FILE:${name}> ${arg_ARGS} LABELS ${arg_LABELS}
                     TIMEOUT ${arg_TIMEOUT})
    set_property(TEST ${name} PROPERTY RUN_SERIAL ${arg_SERIAL})
    if(arg_PRELOAD)
        set_property(TEST ${name} APPEND PROPERTY LABELS preload)
        set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
                                                  LD_PRELOAD=$<TARGET_FILE:count_calls>)
    endif()
endfunction()

# dsc_test_command(name COMMAND ... LABELS ... [TIMEOUT seconds] [SERIAL]): a test that is a command
# line.
function(dsc_test_command name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "TIMEOUT" "COMMAND;LABELS")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    add_test(NAME ${name} COMMAND ${arg_COMMAND})
    set_tests_properties(
        ${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
                           RUN_SERIAL ${arg_SERIAL} ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1")
endfunction()

# dsc_perf(name [SOURCES ...] [LIBS ...]): a program in <build>/perf. Without SOURCES it is name.c
# and perf.c; without LIBS it links the shared library, as any user would.
function(dsc_perf name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
    if(NOT arg_SOURCES)
        set(arg_SOURCES ${name}.c perf.c)
    endif()
    if(NOT arg_LIBS)
        set(arg_LIBS dscomm::dscomm)
    endif()
    add_executable(${name} ${arg_SOURCES})
    dsc_build(${name})
    target_link_libraries(${name} PRIVATE ${arg_LIBS} Threads::Threads m)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/perf)
endfunction()
