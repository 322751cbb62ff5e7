#pragma once

#include <cuda_runtime_api.h>

namespace convswap {

// Throws std::runtime_error with the failing expression, CUDA's own words and, where there is one, what to
// do.
void check_cuda(cudaError_t result, const char* expression);

}  // namespace convswap

#define CONVSWAP_CHECK_CUDA(expression) ::convswap::check_cuda((expression), #expression)
