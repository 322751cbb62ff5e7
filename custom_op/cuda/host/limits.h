#pragma once

#include <initializer_list>
#include <string>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

inline constexpr int64_t kMostGridRows = 65'535;

// How many products of the tensor core one sum may take in precision ieee. It cuts the sum off where float32
// ends, each time, so that what is lost grows with their number: on an H200, with random data, 42 products
// left a relative L2 error of 8.9e-7 and 50 of 1.07e-6. Older cards are said to cut off twice in a product
// of this depth, so they take half; those and newer ones have not been measured.
int64_t most_products_of_ieee(const Device& device);

// Why a kernel whose grid has a row for each group cannot compute a problem, whatever its sizes else; empty
// where nothing is in the way.
std::string why_not_counted(const ConvProblem& problem);

// The same where it takes float32, float16 and bfloat16 data.
std::string why_not_float(const ConvProblem& problem);

// The same where each filter sees one channel.
std::string why_not_depthwise(const ConvProblem& problem);

// The same as of why_not_float where data have one or two spatial axes.
std::string why_not_flat(const ConvProblem& problem);

// Why a device cannot run kernels that need that compute capability (80 for 8.0) or a newer one; empty where
// it can.
std::string why_not_from(int compute_capability, const Device& device);

// The same of kernels with instructions for warpgroups, which need compute capability 9.0 and no other.
std::string why_not_hopper(const Device& device);

// Why there is no tiling: `what` ("its tiles do") not fit into the shared memory of a block of the device.
std::string why_not_fitting(const std::string& what, const Device& device);

// The extent of the input along an axis, with its padding.
int64_t padded_input(const ConvProblem& problem, int axis);

// Why a kernel whose indices have 32 bits cannot reach so far; empty where it can.
std::string why_not_indexed(std::initializer_list<int64_t> largest);

}  // namespace convswap
