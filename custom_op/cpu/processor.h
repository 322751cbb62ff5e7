#pragma once

#include <string>

namespace convswap {

// The processor's own name for itself, such as "AMD EPYC 7763 64-Core Processor".
std::string processor_name();

}  // namespace convswap
