# SPDX-License-Identifier: Apache-2.0
# Finds what the CUDA parts are built with: nvcc, the runtime's headers and library, and nccl.h. A
# GPU is not needed. DSCOMM_CUDA=AUTO builds them where all three are, ON insists, OFF does not look.
#   DSCOMM_CUDA_FOUND   whether CUDA parts are built; the language CUDA is enabled then
#   dsc::cudart         headers and the shared runtime; no part may link the static one, which tests
#                       could not replace by the emulator
#   dsc::nccl_headers   nccl.h alone: the library is opened at run time
# Looks in DSCOMM_CUDA_ROOT, CUDA_HOME, what tests/support/cuda_toolkit.sh installed, /usr/local/cuda.
set(DSCOMM_CUDA_ROOT "" CACHE PATH "Where the CUDA toolkit is, if not in one of the usual places")
set(DSCOMM_CUDA_FOUND OFF)

if(NOT DSCOMM_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "DSCOMM_CUDA is '${DSCOMM_CUDA}'; AUTO, ON and OFF are allowed")
endif()
if(DSCOMM_CUDA STREQUAL "OFF")
    return()
endif()

set(DSC_CUDA_PLACES ${DSCOMM_CUDA_ROOT} $ENV{CUDA_HOME}
                    ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13 /usr/local/cuda)
find_program(DSC_NVCC nvcc HINTS ${DSC_CUDA_PLACES} PATH_SUFFIXES bin)
if(DSC_NVCC)
    cmake_path(GET DSC_NVCC PARENT_PATH DSC_CUDA_ROOT)
    cmake_path(GET DSC_CUDA_ROOT PARENT_PATH DSC_CUDA_ROOT)
endif()
find_path(DSC_CUDART_INCLUDE cuda_runtime_api.h HINTS ${DSC_CUDA_ROOT} PATH_SUFFIXES include
          NO_DEFAULT_PATH)
find_library(DSC_CUDART NAMES cudart libcudart.so.13 HINTS ${DSC_CUDA_ROOT} PATH_SUFFIXES lib64 lib
             NO_DEFAULT_PATH)
find_path(DSC_NCCL_INCLUDE nccl.h HINTS ${DSC_CUDA_ROOT} ${DSC_CUDA_ROOT}/../nccl
          PATH_SUFFIXES include)

foreach(part IN ITEMS DSC_NVCC DSC_CUDART_INCLUDE DSC_CUDART DSC_NCCL_INCLUDE)
    if(NOT ${part})
        if(DSCOMM_CUDA STREQUAL "ON")
            message(FATAL_ERROR "DSCOMM_CUDA=ON, but ${part} was not found; set DSCOMM_CUDA_ROOT")
        endif()
        message(STATUS "no CUDA parts: ${part} was not found")
        return()
    endif()
endforeach()

set(DSCOMM_CUDA_FOUND ON)
set(CMAKE_CUDA_COMPILER ${DSC_NVCC})
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES) # the last one also as PTX, for what comes after it
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
enable_language(CXX)
enable_language(CUDA)

add_library(dsc::cudart SHARED IMPORTED)
set_target_properties(dsc::cudart PROPERTIES IMPORTED_LOCATION ${DSC_CUDART}
                                             INTERFACE_INCLUDE_DIRECTORIES ${DSC_CUDART_INCLUDE})
add_library(dsc::nccl_headers INTERFACE IMPORTED)
set_target_properties(
    dsc::nccl_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                 "${DSC_NCCL_INCLUDE};${DSC_CUDART_INCLUDE}")
