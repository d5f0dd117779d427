#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the CUDA parts are built with, from PyPI, where no toolkit is installed: nvcc, the runtime's
# headers and library, and nccl.h. No GPU and no driver. src/cmake/dsc_cuda.cmake looks in build/cuda.
#
#   tests/support/cuda_toolkit.sh [FOLDER]      default: build/cuda; keeps what is there already
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

FOLDER=${1:-build/cuda}
ROOT=$FOLDER/nvidia/cu13
WHEELS=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nccl-cu13==2.28.9)

# The wheels hold no names without a version, and nvcc looks in targets/.
link_up() {
    ln -sfn lib "$ROOT/lib64"
    ln -sf libcudart.so.13 "$ROOT/lib/libcudart.so"
    mkdir -p "$ROOT/targets/x86_64-linux"
    ln -sfn ../../include "$ROOT/targets/x86_64-linux/include"
    ln -sfn ../../lib "$ROOT/targets/x86_64-linux/lib"
    chmod +x "$ROOT"/bin/* "$ROOT"/nvvm/bin/*
}

# Proves more than that files exist.
try_out() {
    local try=$FOLDER/try

    printf '#include <cuda_fp16.h>\n__global__ void k(__half *p) { *p = __float2half(1.0f); }\n%s' \
        'int main() { k<<<1, 1>>>(nullptr); return cudaDeviceSynchronize() == cudaSuccess; }' >"$try.cu"
    "$ROOT/bin/nvcc" -arch=sm_80 -cudart shared -o "$try" "$try.cu"
    rm -f "$try" "$try.cu"
}

if [ "$(uname -m)" != x86_64 ]; then
    echo "the emulator of CUDA runs on x86-64 only, this is $(uname -m)"
    exit 1
fi
if [ -e "$FOLDER/complete" ]; then
    exit 0
fi
rm -rf "$FOLDER"
mkdir -p "$FOLDER"
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m pip install --quiet --no-deps --only-binary :all: --target "$FOLDER" "${WHEELS[@]}"
link_up
try_out
touch "$FOLDER/complete"
