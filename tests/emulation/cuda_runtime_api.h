#pragma once

// As much of CUDA's header as the host's part of an algorithm names.

#include "cuda_emulation.h"

enum cudaError_t { cudaSuccess };
